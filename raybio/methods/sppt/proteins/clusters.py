"""Clusters of related sequences, by shared k-mers.

Two proteins are relatives if they share so many of the k-mers of the shorter one as sequences of
the stated identity do on average: with independent substitutions, a k-mer survives with probability
identity^k. A cluster is a set of proteins that relatives connect (single linkage). So no protein
has a relative in another cluster.

About half of the pairs at the stated identity are found, nearly all pairs that are some points
above it, and nearly none that are below; ``tests/methods/sppt/proteins/test_clusters.py`` measures
it. Identity counts substitutions only: k-mers across an insertion or a deletion do not survive.
Sequences of fewer than ``KMER + MIN_SHARED - 1`` letters have no relatives.

Shape letters: N proteins, B proteins of a block, T residues, K k-mers (or pairs of a k-mer and a
protein that has it), P pairs of proteins, C clusters, A letters.
"""

from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components
from scipy.stats import nbinom, poisson

from raybio.core.randomness import hash_uniform
from raybio.store.ragged import Ragged

KMER = 5
"""Letters of a k-mer."""

MIN_SHARED = 3
"""Relatives share at least so many k-mers."""

MAX_CHANCE = 1e-9
"""Largest probability that unrelated sequences of the same lengths share as many k-mers."""

NUM_DEVIATIONS = 7.0
"""Standard deviations above the mean that no normal draw of a billion reaches."""

NUM_LETTERS = 26

MAX_PROTEINS_OF_KMER = 128
"""A k-mer of more proteins is split into parts of so many, which bounds time. Relatives share other
k-mers, which are split elsewhere."""

PROTEINS_AT_ONCE = 2048


def identity_clusters(sequences: Ragged, identity: float) -> NDArray[np.int64]:
    """Return the cluster (N,) of each protein, numbered by first member.

    Args:
        sequences: upper-case letters of the proteins.
        identity: fraction of equal residues, in (0, 1], from which on proteins are relatives.
    """
    kmer_KN = _proteins_of_kmers(sequences)
    has_NK = kmer_KN.T.tocsr()
    num_proteins = has_NK.shape[0]
    size_N = np.diff(has_NK.indptr)
    chance = _SharedByChance.of(sequences.value_T)
    rows = [np.arange(num_proteins, dtype=np.int32)]
    columns = [np.arange(num_proteins, dtype=np.int32)]
    for first in range(0, num_proteins, PROTEINS_AT_ONCE):
        shared_BN = has_NK[first : first + PROTEINS_AT_ONCE] @ kmer_KN
        # Most pairs share one or two k-mers by chance.
        shared_BN.data[shared_BN.data < MIN_SHARED] = 0
        shared_BN.eliminate_zeros()
        pairs = shared_BN.tocoo()
        row_P = pairs.row + first
        size_P = size_N[row_P].astype(np.float64)
        other_P = size_N[pairs.col].astype(np.float64)
        wanted_P = np.ceil(identity**KMER * np.minimum(size_P, other_P))
        above_chance_P = chance.wanted(size_P * other_P)
        is_related_P = pairs.data >= np.maximum(wanted_P, above_chance_P)
        rows.append(row_P[is_related_P])
        columns.append(pairs.col[is_related_P])
    row_P = np.concatenate(rows)
    pair = (row_P, np.concatenate(columns))
    related_NN = sp.csr_matrix((np.ones(len(row_P), bool), pair), shape=(num_proteins,) * 2)
    found_N = connected_components(related_NN, directed=False)[1]
    _, first_C, cluster_N = np.unique(found_N, return_index=True, return_inverse=True)
    number_C = np.empty(len(first_C), np.int64)
    number_C[np.argsort(first_C)] = np.arange(len(first_C))
    return number_C[cluster_N]


def _proteins_of_kmers(sequences: Ragged) -> sp.csr_matrix:
    """Return which (part of a) k-mer is in which protein: a matrix (K, N) of zeros and ones."""
    num_proteins = len(sequences.indptr_N1) - 1
    owners: list[NDArray[np.int32]] = []
    codes: list[NDArray[np.int32]] = []
    for first in range(0, num_proteins, PROTEINS_AT_ONCE):
        # A block at a time: finding the distinct ones needs several copies.
        bounds_B1 = sequences.indptr_N1[first : first + PROTEINS_AT_ONCE + 1]
        owner_K, code_K = _distinct_kmers(sequences.value_T, bounds_B1)
        owners.append((owner_K + first).astype(np.int32))
        codes.append(code_K.astype(np.int32))
    nothing = np.empty(0, np.int32)
    code_K = np.concatenate([nothing, *codes])
    owner_K = np.concatenate([nothing, *owners])
    del codes, owners
    # By k-mer and then by protein.
    order_K = np.argsort(code_K, kind="stable")
    code_K = code_K[order_K]
    owner_K = owner_K[order_K]
    del order_K
    start_K = np.flatnonzero(np.diff(code_K, prepend=-1) != 0)
    num_K = np.diff(np.append(start_K, len(code_K)))
    # Parts begin at another place in each k-mer.
    phase_K = (hash_uniform(0, code_K[start_K]) * MAX_PROTEINS_OF_KMER).astype(np.int64)
    place_K = np.arange(len(code_K)) - np.repeat(start_K - phase_K, num_K)
    is_start_K = place_K % MAX_PROTEINS_OF_KMER == 0
    is_start_K[start_K] = True
    indptr_K1 = np.append(np.flatnonzero(is_start_K), len(code_K))
    ones_K = np.ones(len(owner_K), np.int32)
    return sp.csr_matrix((ones_K, owner_K, indptr_K1), shape=(len(indptr_K1) - 1, num_proteins))


def _distinct_kmers(
    letter_T: NDArray[np.uint8], bounds_B1: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return owner and code of the distinct k-mers of each sequence of a block."""
    inside_T = letter_T[bounds_B1[0] : bounds_B1[-1]].astype(np.int64) - ord("A")
    owner_T = np.repeat(np.arange(len(bounds_B1) - 1), np.diff(bounds_B1))
    num_kmers = max(len(inside_T) - KMER + 1, 0)
    code_T = np.zeros(num_kmers, np.int64)
    for offset in range(KMER):
        code_T = code_T * NUM_LETTERS + inside_T[offset : offset + num_kmers]
    is_inside_T = owner_T[:num_kmers] == owner_T[KMER - 1 :]
    key_T = owner_T[:num_kmers][is_inside_T] * NUM_LETTERS**KMER + code_T[is_inside_T]
    return np.divmod(np.unique(key_T), NUM_LETTERS**KMER)


class _SharedByChance(NamedTuple):
    """Numbers of k-mers that unrelated proteins hardly ever share.

    Shared words come as a Poisson number of runs, and each run goes on with the probability that
    two random letters are equal: the Polya-Aeppli law of word matches (Reinert, Schbath and
    Waterman 2000).

    Attributes:
        equal: probability that two random letters of this composition are equal.
        num_runs_E: expected numbers of runs.
        wanted_E: for each of them, the smallest number with a probability below ``MAX_CHANCE``.
    """

    equal: float
    num_runs_E: NDArray[np.float64]
    wanted_E: NDArray[np.float64]

    @classmethod
    def of(cls, letter_T: NDArray[np.uint8]) -> "_SharedByChance":
        """Compute the law for the composition of a corpus."""
        share_A = np.bincount(letter_T) / max(len(letter_T), 1)
        equal = min(float((share_A**2).sum()), 0.5)
        num_runs_E = np.geomspace(1e-6, 30, 100)
        runs_R = np.arange(1, 120)
        count_W = np.arange(1, 240)
        # P(at least w shared | r runs): w - r letters by which runs go on.
        tail_WR = nbinom.sf(count_W[:, None] - runs_R - 1, runs_R, 1 - equal)
        tail_EW = poisson.pmf(runs_R, num_runs_E[:, None]) @ tail_WR.T
        wanted_E = count_W[np.argmax(tail_EW < MAX_CHANCE, axis=1)]
        return cls(equal, num_runs_E, wanted_E.astype(np.float64))

    def wanted(self, num_pairs_P: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the numbers for pairs of proteins with so many pairs of k-mers."""
        num_runs_P = num_pairs_P * self.equal**KMER * (1 - self.equal)
        place_P = np.searchsorted(self.num_runs_E, num_runs_P)
        wanted_P = self.wanted_E[np.minimum(place_P, len(self.wanted_E) - 1)]
        # Long sequences: the normal law with the same mean and variance.
        mean_P = num_runs_P / (1 - self.equal)
        deviation_P = np.sqrt(num_runs_P * (1 + self.equal)) / (1 - self.equal)
        return np.maximum(wanted_P, mean_P + NUM_DEVIATIONS * deviation_P)
