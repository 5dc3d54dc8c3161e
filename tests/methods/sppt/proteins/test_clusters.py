"""Clusters of related proteins: planted mutants, chance, and what does not depend on the order."""

import numpy as np
import pytest

from raybio.methods.sppt.proteins import clusters
from raybio.methods.sppt.proteins.clusters import KMER, MIN_SHARED, identity_clusters
from raybio.store.ragged import Ragged

LETTERS = np.frombuffer(b"ACDEFGHIKLMNPQRSTVWY", np.uint8)


def ragged(sequences: list[np.ndarray]) -> Ragged:
    indptr_N1 = np.concatenate([[0], np.cumsum([len(one) for one in sequences])])
    return Ragged(np.concatenate([np.empty(0, np.uint8), *sequences]), indptr_N1)


def random_protein(rng: np.random.Generator, length: int) -> np.ndarray:
    return rng.choice(LETTERS, length)


def mutant(sequence: np.ndarray, identity: float, rng: np.random.Generator) -> np.ndarray:
    """Return a copy with other letters at a share of 1 - identity of the places, exactly."""
    copy = sequence.copy()
    places = rng.permutation(len(copy))[: round((1 - identity) * len(copy))]
    for place in places:
        copy[place] = rng.choice(LETTERS[copy[place] != LETTERS])
    return copy


@pytest.mark.parametrize("length", [30, 100, 400])
def test_planted_mutants_of_95_percent_never_leave_their_cluster(length: int) -> None:
    rng = np.random.default_rng(0)
    ancestors = [random_protein(rng, length) for _ in range(100)]
    mutants = [mutant(one, 0.95, rng) for one in ancestors]
    cluster_N = identity_clusters(ragged(ancestors + mutants), 0.5)
    assert (cluster_N[:100] == cluster_N[100:]).all()
    assert len(np.unique(cluster_N)) == 100


def test_half_of_the_pairs_at_the_stated_identity_are_found_and_nearly_all_above() -> None:
    rng = np.random.default_rng(1)
    found = {}
    for identity in (0.3, 0.5, 0.6, 0.7):
        pairs = []
        for _ in range(300):
            first = random_protein(rng, 300)
            pairs += [first, mutant(first, identity, rng)]
        cluster_N = identity_clusters(ragged(pairs), 0.5)
        found[identity] = float((cluster_N[::2] == cluster_N[1::2]).mean())
    assert found[0.3] < 0.02
    assert 0.3 < found[0.5] < 0.8
    assert found[0.6] > 0.9
    assert found[0.7] > 0.99


def test_unrelated_proteins_of_a_biased_composition_are_no_relatives() -> None:
    """Runs of shared k-mers overlap: a Poisson law of them would join a third of these."""
    rng = np.random.default_rng(2)
    share = np.ones(20)
    share[:3] = 5
    sequences = [
        rng.choice(LETTERS, int(length), p=share / share.sum())
        for length in rng.integers(40, 2000, 600)
    ]
    cluster_N = identity_clusters(ragged(sequences), 0.5)
    assert len(np.unique(cluster_N)) == len(sequences)


def test_families_of_more_proteins_than_a_k_mer_keeps_together_stay_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clusters, "MAX_PROTEINS_OF_KMER", 8)
    monkeypatch.setattr(clusters, "PROTEINS_AT_ONCE", 7)
    rng = np.random.default_rng(3)
    families = [random_protein(rng, 200) for _ in range(4)]
    sequences = [mutant(families[number % 4], 0.9, rng) for number in range(200)]
    cluster_N = identity_clusters(ragged(sequences), 0.5)
    assert cluster_N.tolist() == [number % 4 for number in range(200)]


def test_relatives_of_relatives_are_one_cluster_numbered_by_its_first_member() -> None:
    rng = np.random.default_rng(4)
    left, right, alone = (random_protein(rng, 120) for _ in range(3))
    both = np.concatenate([left, right])
    cluster_N = identity_clusters(ragged([alone, left, right, both]), 0.5)
    assert cluster_N.tolist() == [0, 1, 1, 1]


def test_k_mers_do_not_cross_sequences_and_short_sequences_are_alone() -> None:
    rng = np.random.default_rng(5)
    short = random_protein(rng, KMER + MIN_SHARED - 2)
    whole = random_protein(rng, 60)
    pieces = [whole[start : start + 4] for start in range(0, 60, 4)]
    sequences = [short, short, *pieces, whole, np.empty(0, np.uint8)]
    assert identity_clusters(ragged(sequences), 0.5).tolist() == list(range(len(sequences)))
    assert identity_clusters(ragged([]), 0.5).tolist() == []


def test_letters_of_unknown_residues_are_letters() -> None:
    sequence = np.frombuffer(b"XXXXXMKVLAWWRTYGGHPUBZOJ" * 4, np.uint8)
    assert identity_clusters(ragged([sequence, sequence.copy()]), 0.5).tolist() == [0, 0]
