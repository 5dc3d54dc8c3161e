import subprocess
import sys

import numpy as np
import pytest

from raybio.methods.sppt.config import PrepareConfig
from raybio.methods.sppt.prepare import prepare_proteins
from raybio.methods.sppt.proteins.demo import (
    SIMULATED_PROTEINS,
    SimulationConfig,
    write_tree_of_life,
)
from tests.paths import ROOT

SMALL = SimulationConfig(num_species=6, num_proteins=600, num_links=2400, seed=3)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return SIMULATED_PROTEINS.prepare(tmp_path_factory.mktemp("corpus"), SMALL)


def test_the_corpus_has_the_sizes_that_were_requested(small):
    counts = small.manifest["counts"]
    assert (counts["rows"], counts["groups"]) == (600, 6)
    assert counts["links"] + counts["heldout_links"] == 2400
    sizes = np.bincount(small.group_N)
    assert 70 < sizes.min() <= sizes.max() < 130


def test_the_files_have_the_layout_of_the_download_and_what_is_odd_in_it_is_set_aside(small):
    raw = small.path.parent / "raw"
    assert (raw / "interactomes" / "90000001.txt").read_bytes().count(b"\r\n") > 300
    assert (raw / "interactomes" / "__MACOSX" / "._90000001.txt").exists()
    assert (
        (raw / "treeoflife.species.tsv")
        .read_bytes()
        .startswith(b"Species_ID\tCompact_name\tOfficial_NCBI_name\r\n")
    )
    assert (raw / "species" / "90000001.fa").read_bytes().startswith(b">90000001.SIM_00001\n")
    assert set(small.manifest["quarantine"]) == {"duplicate link (merged)", "self pair (dropped)"}


def test_one_fasta_file_gives_the_same_store(small, tmp_path):
    source = write_tree_of_life(tmp_path / "raw", SMALL, one_fasta=True)
    settings = PrepareConfig(held_out="homology", heldout_share=0.1)
    again = prepare_proteins(tmp_path / "store", source, settings)
    assert again.manifest["files"] == small.manifest["files"]


def test_the_corpus_is_prepared_once_and_found_again(small):
    home = small.path.parents[1]
    before = (small.path / "manifest.json").stat().st_mtime_ns
    assert SIMULATED_PROTEINS.prepare(home, SMALL) is small
    assert (small.path / "manifest.json").stat().st_mtime_ns == before
    assert len(list(home.iterdir())) == 1


@pytest.mark.nightly
def test_another_seed_is_another_corpus_and_another_hash_seed_is_not(small, tmp_path):
    other = SMALL.model_copy(update={"seed": 4})
    assert SIMULATED_PROTEINS.prepare(tmp_path, other).digest != small.digest
    code = (
        "from raybio.methods.sppt.proteins.demo import *; "
        f"print(SIMULATED_PROTEINS.prepare({str(tmp_path / 'again')!r}, "
        "SimulationConfig(num_species=6, num_proteins=600, num_links=2400, seed=3)).digest)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONHASHSEED": "77"},
        cwd=ROOT,
    )
    assert done.stdout.strip() == small.digest


def profiles(store):
    """Unit vectors of 3-letter counts, one a protein."""
    count = np.zeros((store.num_rows, 26**3), dtype=np.float32)
    letter = store.residue_T.astype(np.int64) - ord("A")
    word = letter[:-2] * 676 + letter[1:-1] * 26 + letter[2:]
    row = np.searchsorted(store.indptr_N1, np.arange(len(word)), side="right") - 1
    inside = np.arange(len(word)) + 2 < store.indptr_N1[row + 1]
    np.add.at(count, (row[inside], word[inside]), 1.0)
    return count / np.linalg.norm(count, axis=1, keepdims=True)


def mean_reciprocal_rank(store, score_NN):
    """Of held-out links in both directions, and its expectation for random scores."""
    group_N = store.group_N
    graph = store.graph
    ranks = []
    chance = []
    for u, v in np.concatenate([store.heldout, store.heldout[:, ::-1]]):
        is_known = graph.has_edge(u, np.arange(store.num_rows))
        others = np.flatnonzero((group_N == group_N[u]) & ~is_known)
        others = others[others != u]
        scores = score_NN[u, others]
        truth = scores[others == v][0]
        ranks.append((scores > truth).sum() + ((scores == truth).sum() + 1) / 2)
        chance.append((1 / np.arange(1, len(others) + 1)).mean())
    return (1 / np.array(ranks)).mean(), np.mean(chance)


def training_links(store):
    link_NN = np.zeros((store.num_rows, store.num_rows))
    source = np.repeat(np.arange(store.num_rows), store.graph.degree_N)
    link_NN[source, store.graph.indices] = 1
    return link_NN


def test_relatives_do_not_give_held_out_links_away(small):
    """No relative of one end is in training, and similar sequences do not know the links."""
    leakage = small.manifest["leakage"]
    assert leakage["with_twin"] == leakage["c1"] == 0
    similar = profiles(small)
    similar = similar @ similar.T
    relative_NN = similar * (similar >= 0.3)
    found, chance = mean_reciprocal_rank(small, relative_NN @ training_links(small) @ relative_NN.T)
    assert found < 1.5 * chance


def shares_of_letters(store, num_first=None):
    """Shares of letters (N, 26) of whole proteins, or of their first residues."""
    position = np.arange(len(store.residue_T)) - np.repeat(
        store.indptr_N1[:-1], np.diff(store.indptr_N1)
    )
    owner = np.repeat(np.arange(store.num_rows), np.diff(store.indptr_N1))
    read = position < (num_first or np.inf)
    share_NA = np.zeros((store.num_rows, 26))
    np.add.at(share_NA, (owner[read], store.residue_T[read].astype(np.int64) - ord("A")), 1.0)
    return share_NA / share_NA.sum(axis=1, keepdims=True)


def votes_of_like(share_NA, store, width):
    """Training links between proteins of like composition vote, without any training."""
    distance_NN = np.linalg.norm(share_NA[:, None] - share_NA, axis=2)
    near_NN = np.exp(-((distance_NN / width) ** 2))
    return near_NN @ training_links(store) @ near_NN.T


@pytest.mark.parametrize("width", [0.03, 0.06, 0.12, 0.24])
def test_the_composition_of_sequences_does_not_give_held_out_links_away(small, width):
    found, chance = mean_reciprocal_rank(
        small, votes_of_like(shares_of_letters(small), small, width)
    )
    assert found < 1.5 * chance


def test_held_out_links_follow_from_the_signals(small):
    """Who knows that the first residues matter can look the links up: a model can learn them."""
    first_NA = shares_of_letters(small, num_first=10)
    found, chance = mean_reciprocal_rank(small, votes_of_like(first_NA, small, 0.17))
    assert found > 3 * chance


def test_linked_proteins_are_no_more_alike_than_others(small):
    similar = profiles(small)
    u = np.repeat(np.arange(small.num_rows), np.diff(small.graph.indptr))
    linked = (similar[u] * similar[small.graph.indices]).sum(axis=1)
    rng = np.random.default_rng(0)
    random = (similar[u] * similar[rng.permutation(small.graph.indices)]).sum(axis=1)
    assert abs((linked < 0.1).mean() - (random < 0.1).mean()) < 0.1


def test_about_a_tenth_of_the_links_is_held_out(small):
    assert 0.05 < small.manifest["counts"]["heldout_links"] / 2400 <= 0.1
