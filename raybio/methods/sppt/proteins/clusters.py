"""Clusters of related sequences, by shared k-mers.

Two proteins are relatives if they share as many of the k-mers of the shorter one as sequences of
the stated identity do on average: with independent substitutions, a k-mer survives with probability
identity^k. A cluster is a set of proteins that relatives connect (single linkage). So no protein
has a relative in another cluster.

About half of the pairs at the stated identity are found, nearly all pairs that are some points
above it, and nearly none that are below; ``tests/methods/sppt/proteins/test_clusters.py`` measures
it. Identity counts substitutions only: k-mers across an insertion or a deletion do not survive
(``mmseqs.py`` finds such relatives by alignments).
Copies are relatives, whatever their k-mers. Sequences of fewer than ``KMER + MIN_SHARED - 1``
letters have no other relatives.

Shape letters: N proteins, B proteins of a block, T residues, K k-mers (or pairs of a k-mer and a
protein that has it), V all possible k-mers, G distinct k-mers of a block, R proteins of a range,
P pairs of proteins, C clusters, A letters.
"""

import tempfile
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components

from raybio.core.arrays import distinct
from raybio.core.randomness import hash_uniform
from raybio.store.ragged import Ragged

KMER = 5
"""Letters of a k-mer."""

MIN_SHARED = 3
"""Minimum number of k-mers that relatives share."""

MAX_CHANCE = 1e-9
"""Largest probability that unrelated sequences of the same lengths share as many k-mers."""

NUM_DEVIATIONS = 7.0
"""Standard deviations above the mean that no normal draw of a billion reaches."""

NUM_LETTERS = 26

MAX_PROTEINS_OF_KMER = 128
"""A k-mer of more proteins is split into parts of this size, which bounds time. Relatives share
other k-mers, which are split elsewhere."""

PROTEINS_AT_ONCE = 512

KMERS_AT_ONCE = 1 << 25
"""K-mers of a range of proteins, 8 bytes each, and 16 while they are sorted. With fewer, the k-mers
of all proteins are looked up more often."""

LETTERS_AT_ONCE = 1 << 20

PAIRS_AT_ONCE = 1 << 23
"""Pairs of relatives that are held before their clusters are joined, 8 bytes each."""


def identity_clusters(sequences: Ragged, folder: Path, *, identity: float) -> NDArray[np.int64]:
    """Return the cluster (N,) of each protein, numbered by first member.

    Memory holds the k-mers of ``KMERS_AT_ONCE``, whatever the number of proteins: all proteins are
    compared with a range of them, then with the next one.

    Args:
        sequences: upper-case letters of the proteins.
        folder: takes a temporary file of 4 bytes a residue.
        identity: fraction of equal residues, in (0, 1], from which on proteins are relatives.
    """
    num_proteins = len(sequences.indptr_N1) - 1
    chance = _SharedByChance.of(sequences.value_T)
    components = _Components(num_proteins)
    components.add(np.arange(num_proteins), _first_copies(sequences))
    with tempfile.TemporaryFile(dir=folder) as file:
        kmers = _KmerFile(file, sequences)
        size_N = np.diff(kmers.indptr_N1)
        for start, end in kmers.ranges():
            kmer_KR = kmers.read(start, end).T.tocsr()
            # Pairs with earlier proteins were found when these were the range.
            for first in range(start, num_proteins, PROTEINS_AT_ONCE):
                has_BK = kmers.read(first, min(first + PROTEINS_AT_ONCE, num_proteins))
                shared_BR = has_BK @ kmer_KR
                # Most pairs share one or two k-mers by chance.
                shared_BR.data[shared_BR.data < MIN_SHARED] = 0
                shared_BR.eliminate_zeros()
                pairs = shared_BR.tocoo()
                row_P = pairs.row + first
                other_P = pairs.col + start
                size_P = size_N[row_P].astype(np.float64)
                other_size_P = size_N[other_P].astype(np.float64)
                wanted_P = np.ceil(identity**KMER * np.minimum(size_P, other_size_P))
                above_chance_P = chance.wanted(size_P * other_size_P)
                is_related_P = pairs.data >= np.maximum(wanted_P, above_chance_P)
                components.add(row_P[is_related_P], other_P[is_related_P])
    return number_by_first_member(components.labels())


def _first_copies(sequences: Ragged) -> NDArray[np.int64]:
    """Return the first protein (N,) that has the same letters as each one."""
    num_proteins = len(sequences.indptr_N1) - 1
    digest_N = np.empty(num_proteins, np.uint64)
    for number in range(num_proteins):
        start, end = sequences.indptr_N1[number : number + 2]
        digest = blake2b(sequences.value_T[start:end].tobytes(), digest_size=8).digest()
        digest_N[number] = int.from_bytes(digest, "little")
    _, first_C, copy_N = np.unique(digest_N, return_index=True, return_inverse=True)
    return first_C[copy_N]


def number_by_first_member(label_N: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return the clusters (N,) of these labels, numbered in the order of their first members."""
    _, first_C, cluster_N = np.unique(label_N, return_index=True, return_inverse=True)
    number_C = np.empty(len(first_C), np.int64)
    number_C[np.argsort(first_C)] = np.arange(len(first_C))
    return number_C[cluster_N]


class _Components:
    """Connected components of pairs that come in blocks.

    Memory does not grow with the pairs: in a corpus of many species each protein has hundreds.
    """

    def __init__(self, num_nodes: int) -> None:
        self._label_N = np.arange(num_nodes, dtype=np.int32)
        self._waiting: list[tuple[NDArray[np.int32], NDArray[np.int32]]] = []
        self._num_waiting = 0

    def add(self, row_P: NDArray[np.integer], column_P: NDArray[np.integer]) -> None:
        """Add pairs of nodes."""
        self._waiting.append((row_P.astype(np.int32), column_P.astype(np.int32)))
        self._num_waiting += len(row_P)
        if self._num_waiting >= PAIRS_AT_ONCE:
            self._join()

    def labels(self) -> NDArray[np.int32]:
        """Return the number (N,) of each node's component."""
        self._join()
        return self._label_N

    def _join(self) -> None:
        """Join the components that waiting pairs connect."""
        if not self._num_waiting:
            return
        rows, columns = zip(*self._waiting, strict=True)
        self._waiting = []
        self._num_waiting = 0
        num_labels = int(self._label_N.max()) + 1
        ends = (self._label_N[np.concatenate(rows)], self._label_N[np.concatenate(columns)])
        linked_CC = sp.csr_matrix(
            (np.ones(len(ends[0]), bool), ends), shape=(num_labels, num_labels)
        )
        self._label_N = connected_components(linked_CC, directed=False)[1][self._label_N]


class _KmerFile:
    """The distinct k-mers of each protein in a file, as numbers of parts of k-mers.

    A part has at most ``MAX_PROTEINS_OF_KMER`` proteins that follow each other in the list of a
    k-mer's proteins.

    Attributes:
        indptr_N1: row pointers to the k-mers of each protein.
        num_parts: number of parts.
    """

    def __init__(self, file: IO[bytes], sequences: Ragged) -> None:
        """Write the file, in one pass over the proteins."""
        self._file = file
        self.num_parts = 1
        # For each k-mer: the part that takes its next protein (0 before the first one), and the
        # number of proteins in this part.
        self._part_V = np.zeros(NUM_LETTERS**KMER, np.int32)
        self._filled_V = np.zeros(NUM_LETTERS**KMER, np.uint8)
        sizes = [np.zeros(1, np.int64)]
        for first in range(0, len(sequences.indptr_N1) - 1, PROTEINS_AT_ONCE):
            bounds_B1 = sequences.indptr_N1[first : first + PROTEINS_AT_ONCE + 1]
            code_K, owner_K = _distinct_kmers(sequences.value_T, bounds_B1)
            key_K = owner_K << 32 | self._parts(code_K)
            key_K.sort()
            file.write((key_K & 0xFFFFFFFF).astype(np.int32).data)
            sizes.append(np.bincount(owner_K, minlength=len(bounds_B1) - 1))
        del self._part_V, self._filled_V
        self.indptr_N1 = np.cumsum(np.concatenate(sizes))

    def _parts(self, code_K: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the parts of ascending k-mers, each of which occurs once per protein."""
        start_G = np.flatnonzero(np.diff(code_K, prepend=-1))
        num_G = np.diff(start_G, append=len(code_K))
        code_G = code_K[start_G]
        is_first_G = self._part_V[code_G] == 0
        # Parts begin at a different position for each k-mer.
        phase_G = hash_uniform(0, code_G[is_first_G]) * MAX_PROTEINS_OF_KMER
        self._filled_V[code_G[is_first_G]] = phase_G.astype(np.uint8)
        place_K = np.arange(len(code_K)) - np.repeat(start_G - self._filled_V[code_G], num_G)
        begins_K = place_K % MAX_PROTEINS_OF_KMER == 0
        begins_K[start_G[is_first_G]] = True
        part_K = self.num_parts - 1 + np.cumsum(begins_K)
        self.num_parts = int(part_K[-1]) + 1 if len(part_K) else self.num_parts
        # Proteins of a part that an earlier block began.
        is_open_K = place_K < MAX_PROTEINS_OF_KMER
        is_open_K &= ~np.repeat(is_first_G, num_G)
        part_K[is_open_K] = np.repeat(self._part_V[code_G], num_G)[is_open_K]
        end_G = start_G + num_G - 1
        self._part_V[code_G] = part_K[end_G]
        self._filled_V[code_G] = place_K[end_G] % MAX_PROTEINS_OF_KMER + 1
        return part_K

    def ranges(self) -> Iterator[tuple[int, int]]:
        """Yield ranges of proteins with about ``KMERS_AT_ONCE`` k-mers: the first, the end."""
        num_proteins = len(self.indptr_N1) - 1
        start = 0
        while start < num_proteins:
            last = self.indptr_N1[start] + KMERS_AT_ONCE
            end = int(np.searchsorted(self.indptr_N1, last, side="right")) - 1
            end = max(end, start + 1)
            yield start, end
            start = end

    def read(self, first: int, end: int) -> sp.csr_matrix:
        """Return a 0/1 matrix of some proteins: protein x part of the k-mers."""
        indptr_B1 = (self.indptr_N1[first : end + 1] - self.indptr_N1[first]).astype(np.int32)
        self._file.seek(4 * int(self.indptr_N1[first]))
        part_K = np.frombuffer(self._file.read(4 * int(indptr_B1[-1])), np.int32)
        ones_K = np.ones(len(part_K), np.int32)
        return sp.csr_matrix((ones_K, part_K, indptr_B1), shape=(end - first, self.num_parts))


def _distinct_kmers(
    letter_T: NDArray[np.uint8], bounds_B1: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return code and owner of the distinct k-mers of each sequence of a block, by code."""
    inside_T = letter_T[bounds_B1[0] : bounds_B1[-1]].astype(np.int64) - ord("A")
    num_owners = len(bounds_B1) - 1
    owner_T = np.repeat(np.arange(num_owners), np.diff(bounds_B1))
    num_kmers = max(len(inside_T) - KMER + 1, 0)
    code_T = np.zeros(num_kmers, np.int64)
    for offset in range(KMER):
        code_T = code_T * NUM_LETTERS + inside_T[offset : offset + num_kmers]
    is_inside_T = owner_T[:num_kmers] == owner_T[KMER - 1 :]
    key_T = code_T[is_inside_T] * num_owners + owner_T[:num_kmers][is_inside_T]
    return np.divmod(distinct(key_T), num_owners)


class _SharedByChance(NamedTuple):
    """Numbers of k-mers that unrelated proteins hardly ever share.

    Shared words form a Poisson number of runs, and each run continues with the probability that two
    random letters are equal: the Polya-Aeppli law of word matches (Reinert, Schbath and Waterman
    2000).

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
        from scipy.stats import nbinom, poisson  # imported here: it takes most of a second

        count_A = np.zeros(256, np.int64)
        # A block at a time: numpy counts 64-bit numbers, of which it makes a copy.
        for start in range(0, len(letter_T), LETTERS_AT_ONCE):
            count_A += np.bincount(letter_T[start : start + LETTERS_AT_ONCE], minlength=256)
        share_A = np.trim_zeros(count_A, "b") / max(len(letter_T), 1)
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
        """Return the numbers for pairs of proteins with ``num_pairs_P`` pairs of k-mers."""
        num_runs_P = num_pairs_P * self.equal**KMER * (1 - self.equal)
        place_P = np.searchsorted(self.num_runs_E, num_runs_P)
        wanted_P = self.wanted_E[np.minimum(place_P, len(self.wanted_E) - 1)]
        # Long sequences: the normal law with the same mean and variance.
        mean_P = num_runs_P / (1 - self.equal)
        deviation_P = np.sqrt(num_runs_P * (1 + self.equal)) / (1 - self.equal)
        return np.maximum(wanted_P, mean_P + NUM_DEVIATIONS * deviation_P)
