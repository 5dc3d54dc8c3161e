"""Clusters of related proteins: planted mutants, chance, and what does not depend on the order."""

import tempfile
import tracemalloc
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from raybio.core.randomness import hash_uniform
from raybio.methods.sppt.proteins import clusters
from raybio.methods.sppt.proteins.clusters import KMER, MIN_SHARED, identity_clusters
from raybio.store.ragged import Ragged

LETTERS = np.frombuffer(b"ACDEFGHIKLMNPQRSTVWY", np.uint8)


def ragged(sequences: list[np.ndarray]) -> Ragged:
    indptr_N1 = np.concatenate([[0], np.cumsum([len(one) for one in sequences])])
    return Ragged(np.concatenate([np.empty(0, np.uint8), *sequences]), indptr_N1)


def cluster(sequences: list[np.ndarray]) -> np.ndarray:
    with tempfile.TemporaryDirectory() as folder:
        return identity_clusters(ragged(sequences), Path(folder), identity=0.5)


def random_protein(rng: np.random.Generator, length: int) -> np.ndarray:
    return rng.choice(LETTERS, length)


def mutant(sequence: np.ndarray, identity: float, rng: np.random.Generator) -> np.ndarray:
    """Return a copy with other letters at a share of 1 - identity of the positions, exactly."""
    copy = sequence.copy()
    positions = rng.permutation(len(copy))[: round((1 - identity) * len(copy))]
    index = np.searchsorted(LETTERS, copy[positions])
    shift = rng.integers(1, len(LETTERS), len(positions))
    copy[positions] = LETTERS[(index + shift) % len(LETTERS)]
    return copy


@pytest.mark.parametrize("length", [30, 100, 400])
def test_planted_mutants_of_95_percent_never_leave_their_cluster(length: int) -> None:
    rng = np.random.default_rng(0)
    ancestors = [random_protein(rng, length) for _ in range(100)]
    mutants = [mutant(one, 0.95, rng) for one in ancestors]
    cluster_N = cluster(ancestors + mutants)
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
        cluster_N = cluster(pairs)
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
    cluster_N = cluster(sequences)
    assert len(np.unique(cluster_N)) == len(sequences)


def test_families_of_more_proteins_than_a_k_mer_keeps_together_stay_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clusters, "MAX_PROTEINS_OF_KMER", 8)
    monkeypatch.setattr(clusters, "PROTEINS_AT_ONCE", 7)
    rng = np.random.default_rng(3)
    families = [random_protein(rng, 200) for _ in range(4)]
    sequences = [mutant(families[number % 4], 0.9, rng) for number in range(200)]
    cluster_N = cluster(sequences)
    assert cluster_N.tolist() == [number % 4 for number in range(200)]


def relatives_of_any_identity() -> list[np.ndarray]:
    rng = np.random.default_rng(6)
    families = [random_protein(rng, int(rng.integers(4, 200))) for _ in range(12)]
    return [mutant(families[number % 12], float(rng.uniform(0.4, 1)), rng) for number in range(120)]


@pytest.mark.parametrize("num_proteins", [7, 128])
def test_ranges_of_k_mers_give_the_clusters_of_all_at_once(
    num_proteins: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sequences = relatives_of_any_identity()
    monkeypatch.setattr(clusters, "MAX_PROTEINS_OF_KMER", num_proteins)
    whole = cluster(sequences)
    assert 12 < len(np.unique(whole)) < 100
    monkeypatch.setattr(clusters, "PROTEINS_AT_ONCE", 11)
    for num_kmers in (100, 5000):
        monkeypatch.setattr(clusters, "KMERS_AT_ONCE", num_kmers)
        assert cluster(sequences).tolist() == whole.tolist()


def test_a_k_mer_is_divided_by_its_own_proteins_and_not_by_blocks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(clusters, "MAX_PROTEINS_OF_KMER", 5)
    monkeypatch.setattr(clusters, "PROTEINS_AT_ONCE", 11)
    sequences = relatives_of_any_identity()
    proteins_of_kmer = defaultdict(list)
    for number, sequence in enumerate(sequences):
        letters = bytes(sequence)
        for kmer in {letters[i : i + KMER] for i in range(len(letters) - KMER + 1)}:
            proteins_of_kmer[kmer].append(number)
    expected: Counter[tuple[int, ...]] = Counter()
    for kmer, proteins in proteins_of_kmer.items():
        code = 0
        for letter in kmer:
            code = code * clusters.NUM_LETTERS + letter - ord("A")
        parts = defaultdict(list)
        for place, protein in enumerate(proteins, start=int(5 * hash_uniform(0, code)[()])):
            parts[place // 5].append(protein)
        expected.update(map(tuple, parts.values()))
    with (tmp_path / "kmers").open("w+b") as file:
        kmers = clusters._KmerFile(file, ragged(sequences))
        kmer_KN = kmers.read(0, len(sequences)).T.tocsr()
    rows = np.split(kmer_KN.indices, kmer_KN.indptr[1:-1])
    assert Counter(tuple(row.tolist()) for row in rows if len(row)) == expected
    assert max(map(len, expected)) == 5


def test_memory_does_not_grow_with_the_pairs_of_relatives(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    families = [random_protein(rng, 30) for _ in range(3)]
    sequences = [mutant(families[number % 3], 0.9, rng) for number in range(3000)]
    expected = [number % 3 for number in range(3000)]
    monkeypatch.setattr(clusters, "PROTEINS_AT_ONCE", 64)
    monkeypatch.setattr(clusters, "PAIRS_AT_ONCE", 1 << 14)
    tracemalloc.start()
    cluster_N = cluster(sequences)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert cluster_N.tolist() == expected
    # Every protein has hundreds of relatives: about a million pairs of 8 bytes. The state of each
    # k-mer, 5 bytes, is only touched where there is one.
    assert peak < 5 * clusters.NUM_LETTERS**KMER + 8_000_000


def test_memory_holds_the_k_mers_of_a_range_and_not_those_of_all_proteins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(7)
    sequences = [random_protein(rng, 300) for _ in range(1200)]
    num_kmers = 1200 * (300 - KMER + 1)
    num_parts = []
    all_ranges = clusters._KmerFile.ranges

    def ranges(kmers: clusters._KmerFile) -> Iterator[tuple[int, int]]:
        num_parts.append(kmers.num_parts)
        tracemalloc.reset_peak()  # of writing the file
        yield from all_ranges(kmers)

    def peak_bytes(kmers_at_once: int) -> int:
        monkeypatch.setattr(clusters, "KMERS_AT_ONCE", kmers_at_once)
        tracemalloc.start()
        cluster_N = cluster(sequences)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert len(np.unique(cluster_N)) == len(sequences)
        return peak

    monkeypatch.setattr(clusters._KmerFile, "ranges", ranges)
    monkeypatch.setattr(clusters, "PROTEINS_AT_ONCE", 32)
    whole = peak_bytes(1 << 25)
    in_ranges = peak_bytes(1 << 14)
    # Pointers to the proteins of each part of a k-mer are held for all parts.
    bound = 8 * max(num_parts) + 24 * (1 << 14) + 1_000_000
    assert in_ranges < bound
    assert whole > 16 * num_kmers > bound


def test_relatives_of_relatives_are_one_cluster_numbered_by_its_first_member() -> None:
    rng = np.random.default_rng(4)
    left, right, alone = (random_protein(rng, 120) for _ in range(3))
    both = np.concatenate([left, right])
    cluster_N = cluster([alone, left, right, both])
    assert cluster_N.tolist() == [0, 1, 1, 1]


@pytest.mark.parametrize(
    ("letters", "num_copies"),
    [(b"MKTAYIA", 2), (b"MKTAYIAK", 130), (b"Q" * 30, 5), (b"GS" * 15, 5), (b"MK", 2)],
)
def test_copies_are_relatives_however_short_or_repetitive(letters: bytes, num_copies: int) -> None:
    rng = np.random.default_rng(6)
    others = [random_protein(rng, 100) for _ in range(100)]
    copies = [np.frombuffer(letters, np.uint8)] * num_copies
    assert cluster([*others, *copies]).tolist() == [*range(100), *[100] * num_copies]


def test_k_mers_do_not_cross_sequences_and_short_sequences_are_alone() -> None:
    rng = np.random.default_rng(5)
    short = random_protein(rng, KMER + MIN_SHARED - 2)
    whole = random_protein(rng, 60)
    pieces = [whole[start : start + 4] for start in range(0, 60, 4)]
    sequences = [short, *pieces, whole, np.empty(0, np.uint8)]
    assert cluster(sequences).tolist() == list(range(len(sequences)))
    assert cluster([]).tolist() == []


def test_letters_of_unknown_residues_are_letters() -> None:
    sequence = np.frombuffer(b"XXXXXMKVLAWWRTYGGHPUBZOJ" * 4, np.uint8)
    assert cluster([sequence, sequence.copy()]).tolist() == [0, 0]
