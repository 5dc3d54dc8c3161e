"""Clusters by MMseqs2's alignments: planted relatives, and the same numbers in any order."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from raybio.core.errors import ConfigError, DataError
from raybio.methods.sppt.config import PrepareConfig
from raybio.methods.sppt.prepare import prepare_proteins
from raybio.methods.sppt.proteins.clusters import identity_clusters
from raybio.methods.sppt.proteins.mmseqs import mmseqs_clusters
from tests.conftest import write_tables
from tests.methods.sppt.proteins.test_clusters import mutant, ragged, random_protein

needs_mmseqs = pytest.mark.skipif(
    shutil.which("mmseqs") is None, reason="the program mmseqs (MMseqs2) is not installed"
)


@needs_mmseqs
def test_relatives_share_a_cluster_and_unrelated_proteins_do_not(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    ancestors = [random_protein(rng, 300) for _ in range(30)]
    equal_by_identity = {}
    for identity in (0.3, 0.6):
        mutants = [mutant(ancestor, identity, rng) for ancestor in ancestors]
        cluster_N = mmseqs_clusters(ragged(ancestors + mutants), tmp_path, identity=0.5)
        assert len(np.unique(cluster_N[:30])) == 30
        equal_by_identity[identity] = (cluster_N[:30] == cluster_N[30:]).mean()
    assert equal_by_identity == {0.3: 0.0, 0.6: 1.0}


@needs_mmseqs
def test_a_part_and_a_copy_with_deletions_are_relatives(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    ancestors = [random_protein(rng, 300) for _ in range(20)]
    shorter = [np.delete(mutant(protein, 0.65, rng), np.s_[::12]) for protein in ancestors]
    parts = [protein[100:220] for protein in ancestors]
    sequences = ragged(ancestors + shorter + parts)
    cluster_N = mmseqs_clusters(sequences, tmp_path, identity=0.5)
    assert (cluster_N[:20] == cluster_N[20:40]).all()
    assert (cluster_N[:20] == cluster_N[40:]).all()


@pytest.mark.nightly
@needs_mmseqs
def test_many_near_copies_do_not_hide_distant_relatives(tmp_path: Path) -> None:
    """MMseqs2's default aligns each protein with 300 others."""
    rng = np.random.default_rng(4)
    ancestor = random_protein(rng, 100)
    copies = []
    for head in (mutant(ancestor, 0.85, rng), mutant(ancestor, 0.85, rng)):
        copies += [mutant(head, 0.9, rng) for _ in range(310)]
    assert len(np.unique(mmseqs_clusters(ragged(copies), tmp_path, identity=0.5))) == 1


@pytest.mark.nightly
@needs_mmseqs
def test_below_half_of_the_residues_alignments_find_what_kmers_miss(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    ancestors = [random_protein(rng, 300) for _ in range(30)]
    mutants = [mutant(protein, 0.4, rng) for protein in ancestors]
    sequences = ragged(ancestors + mutants)
    by_kmers_N = identity_clusters(sequences, tmp_path, identity=0.3)
    cluster_N = mmseqs_clusters(sequences, tmp_path, identity=0.3)
    assert (by_kmers_N[:30] == by_kmers_N[30:]).mean() < 0.2
    assert (cluster_N[:30] == cluster_N[30:]).mean() > 0.9
    assert len(np.unique(cluster_N[:30])) == 30


@pytest.mark.nightly
@needs_mmseqs
def test_clusters_join_what_relatives_connect_and_are_numbered_by_first_member(
    tmp_path: Path,
) -> None:
    """Each protein of a chain is a relative of the next one alone."""
    rng = np.random.default_rng(2)
    chain = [random_protein(rng, 200)]
    for _ in range(5):
        chain.append(mutant(chain[-1], 0.65, rng))
    assert (chain[0] == chain[2]).mean() < 0.5
    every_second = mmseqs_clusters(ragged(chain[::2]), tmp_path, identity=0.5)
    assert every_second.tolist() == [0, 1, 2]
    tiny = chain[0][:3]
    other = random_protein(rng, 200)
    sequences = [other, *chain[:3], tiny, *chain[3:]]
    cluster_N = mmseqs_clusters(ragged(sequences), tmp_path, identity=0.5)
    assert cluster_N.tolist() == [0, 1, 1, 1, 2, 1, 1, 1]
    assert list(tmp_path.iterdir()) == []


@needs_mmseqs
def test_a_store_says_who_found_its_relatives(tmp_path: Path) -> None:
    tables = write_tables(tmp_path / "raw", num_groups=2, rows_per_group=24)
    config = PrepareConfig(held_out="homology", relatives="mmseqs2", heldout_share=0.3)
    store = prepare_proteins(tmp_path / "store", tables, config)
    again = prepare_proteins(tmp_path / "again", tables, config)
    assert store.manifest["parameters"]["relatives"] == "mmseqs2"
    assert store.manifest["mmseqs2_version"]
    assert store.digest == again.digest
    assert store.manifest["leakage"]["clusters"] < 48


@needs_mmseqs
def test_a_failure_of_mmseqs_shows_the_end_of_its_output(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"(?s)mmseqs easy-cluster ended with exit code 1.*kmers"):
        mmseqs_clusters(ragged([]), tmp_path, identity=0.5)


def test_without_the_program_nothing_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = write_tables(tmp_path / "raw", num_groups=1, rows_per_group=8)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="no program mmseqs on PATH.*--relatives kmers"):
        prepare_proteins(tmp_path / "store", tables, PrepareConfig(relatives="mmseqs2"))
    assert not (tmp_path / "store").exists()
