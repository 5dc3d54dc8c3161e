"""Splits of links by proteins and clusters, and what training shows of held-out links."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from raybio.cli.stores import show_store
from raybio.core.errors import DataError
from raybio.methods.sppt.config import PrepareConfig
from raybio.methods.sppt.evaluate import draw_link_queries
from raybio.methods.sppt.graph.csr import Graph
from raybio.methods.sppt.graph.splits import MIN_FILLED, hold_out_nodes
from raybio.methods.sppt.leakage import link_classes
from raybio.methods.sppt.prepare import prepare_proteins
from raybio.methods.sppt.proteins.formats.tables import Tables
from raybio.methods.sppt.proteins.store import ProteinStore

LETTERS = list("ACDEFGHIKLMNPQRSTVWY")
NUM_FAMILIES = 60
SPECIES = 3


def write_families(folder: Path, *, has_twins: bool = False) -> Tables:
    """Write proteins of families whose members are 95 % equal, and random links.

    Args:
        folder: of the files.
        has_twins: whether all species have the same links.
    """
    rng = np.random.default_rng(0)
    proteins = ["protein_id\tspecies_taxid\tsequence"]
    edges = ["protein_a\tprotein_b"]
    ancestors = [rng.choice(LETTERS, 100) for _ in range(NUM_FAMILIES)]
    for species in range(1, SPECIES + 1):
        for family, ancestor in enumerate(ancestors):
            sequence = ancestor.copy()
            sequence[rng.permutation(100)[:5]] = rng.choice(LETTERS, 5)
            proteins.append(f"{species}.f{family}\t{species}\t{''.join(sequence)}")
        if species == 1 or not has_twins:
            pairs = set()
        while len(pairs) < 240:
            left, right = sorted(rng.choice(NUM_FAMILIES, 2, replace=False).tolist())
            pairs.add((left, right))
        edges += [f"{species}.f{left}\t{species}.f{right}" for left, right in sorted(pairs)]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "proteins.tsv").write_text("\n".join(proteins) + "\n")
    (folder / "edges.tsv").write_text("\n".join(edges) + "\n")
    return Tables([folder / "edges.tsv"], [folder / "proteins.tsv"])


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Tables:
    return write_families(tmp_path_factory.mktemp("families"))


def prepared(tables: Tables, folder: Path, held_out: str, share: float = 0.1) -> ProteinStore:
    config = PrepareConfig(held_out=held_out, heldout_share=share)
    return prepare_proteins(folder / held_out, tables, config)


def families_of(store: ProteinStore) -> np.ndarray:
    return np.array([int(key.split(".f")[1]) for key in store.keys.to_pylist()])


def num_seen(store: ProteinStore, node: int) -> bool:
    """Whether the protein or a member of its family has a training link."""
    family_N = families_of(store)
    relatives = np.flatnonzero(family_N == family_N[node])
    return bool((store.graph.degree_N[relatives] > 0).any())


def test_clusters_are_the_planted_families_and_never_straddle_a_homology_split(
    tables: Tables, tmp_path: Path
) -> None:
    store = prepared(tables, tmp_path, "homology")
    family_N = families_of(store)
    pairs = np.unique(np.stack([store.cluster_N, family_N], axis=1), axis=0)
    assert len(pairs) == NUM_FAMILIES
    is_seen_N = np.array([num_seen(store, node) for node in range(store.num_rows)])
    unseen = np.flatnonzero(~is_seen_N)
    assert len(unseen)
    assert not np.isin(store.cluster_N[unseen], store.cluster_N[is_seen_N]).any()
    assert (store.graph.degree_N[unseen] == 0).all()


def test_the_command_says_what_to_do_where_most_held_out_links_have_twins_or_they_are_few(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = write_families(tmp_path, has_twins=True)
    few = tmp_path / "few"
    for folder, held_out, share, lines in (
        (tmp_path, "random", 0.1, ["twin"]),
        (tmp_path, "homology", 0.1, []),
        (few, "random", 0.01, ["few", "twin"]),
    ):
        store = prepared(tables, folder, held_out, share)
        num_links = len(store.heldout)
        num_twins = store.manifest["leakage"]["with_twin"]
        assert (num_links < 30, 2 * num_twins > num_links) == ("few" in lines, "twin" in lines)
        show_store(store, 0.0)
        shown = capsys.readouterr().out.splitlines()
        twin = f"{num_twins} of {num_links} held-out links have a twin in training: a look-up among"
        assert any(line.startswith(twin) for line in shown) == ("twin" in lines)
        assert any("--held-out homology" in line for line in shown) == ("twin" in lines)
        sparse = f"only {num_links} links are held out: their scores will say little. Prepare"
        assert any(line.startswith(sparse) for line in shown) == ("few" in lines)


@pytest.mark.parametrize("held_out", ["random", "homology", "proteins"])
def test_the_manifest_counts_links_by_what_training_shows_of_them(
    tables: Tables, tmp_path: Path, held_out: str
) -> None:
    store = prepared(tables, tmp_path, held_out)
    family_N = families_of(store)
    trained = set()
    for node in range(store.num_rows):
        for other in store.graph.indices[store.graph.indptr[node] : store.graph.indptr[node + 1]]:
            trained.add((family_N[node], family_N[other]))
    counts = {"with_twin": 0, "c1": 0, "c2": 0, "c3": 0}
    for left, right in store.heldout.tolist():
        counts["with_twin"] += (family_N[left], family_N[right]) in trained
        ends = num_seen(store, left) + num_seen(store, right)
        counts[{2: "c1", 1: "c2", 0: "c3"}[ends]] += 1
    leakage = store.manifest["leakage"]
    assert leakage == counts | {"links": len(store.heldout), "clusters": NUM_FAMILIES}
    if held_out == "homology":
        assert leakage["c1"] == leakage["with_twin"] == 0 and leakage["c2"]
    else:
        assert leakage["c1"] > 0.9 * len(store.heldout)


def test_all_links_of_held_out_proteins_are_held_out(tables: Tables, tmp_path: Path) -> None:
    store = prepared(tables, tmp_path, "proteins")
    is_out_N = store.graph.degree_N == 0
    assert is_out_N.any() and is_out_N[store.heldout].any(axis=1).all()
    share = len(store.heldout) / (len(store.heldout) + store.graph.num_edges)
    assert 0.05 < share <= 0.1


def test_nothing_that_can_be_held_out_is_an_error(tmp_path: Path) -> None:
    folder = tmp_path / "two"
    folder.mkdir()
    sequence = "MKVLAWWRTYGGHPMKVLAWWRTYGGHP"
    (folder / "proteins.tsv").write_text(
        f"protein_id\tspecies_taxid\tsequence\na\t1\t{sequence}\nb\t1\t{sequence}\n"
    )
    (folder / "edges.tsv").write_text("protein_a\tprotein_b\na\tb\n")
    tables = Tables([folder / "edges.tsv"], [folder / "proteins.tsv"])
    with pytest.raises(DataError, match="--held-out proteins: nothing can be held out"):
        prepare_proteins(tmp_path / "s", tables, PrepareConfig(held_out="proteins"))


def test_nodes_are_drawn_by_clusters_up_to_a_share_of_the_links() -> None:
    rng = np.random.default_rng(0)
    edge_E2 = np.array(list(itertools.combinations(range(40), 2)))
    edge_E2 = edge_E2[rng.random(len(edge_E2)) < 0.2]
    cluster_N = np.repeat(np.arange(20), 2)
    for seed in range(20):
        is_out_N = hold_out_nodes(edge_E2, cluster_N, share=0.3, rng=np.random.default_rng(seed))
        assert (is_out_N[::2] == is_out_N[1::2]).all()
        assert 0 < is_out_N[edge_E2].any(axis=1).mean() <= 0.3
    # A hub with most of the links can never be held out.
    star_E2 = np.array([(0, node) for node in range(1, 30)] + [(1, 2), (3, 4), (5, 6)])
    for seed in range(20):
        is_out_N = hold_out_nodes(
            star_E2, np.arange(30), share=0.2, rng=np.random.default_rng(seed)
        )
        assert not is_out_N[0] and is_out_N.any()


def test_a_cluster_that_would_exceed_the_share_is_skipped_and_others_are_drawn() -> None:
    """30 clusters of 3 links, and 5 of 20, each of which may be drawn first."""
    sizes = [3] * 30 + [20] * 5
    hubs = np.cumsum([0, *[size + 1 for size in sizes[:-1]]])
    edge_E2 = np.array(
        [
            (hub, hub + 1 + leaf)
            for hub, size in zip(hubs, sizes, strict=True)
            for leaf in range(size)
        ]
    )
    cluster_N = np.repeat(np.arange(35), np.array(sizes) + 1)
    wanted = 22
    num_skipped = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        is_out_N = hold_out_nodes(edge_E2, cluster_N, share=wanted / len(edge_E2), rng=rng)
        # All sizes are below the share, so that the order is that of the permutation.
        order = np.argsort(np.random.default_rng(seed).permutation(35))
        num_held = 0
        expected = set()
        for cluster in order.tolist():
            if num_held >= MIN_FILLED * wanted:
                break
            if num_held + sizes[cluster] <= wanted:
                expected.add(cluster)
                num_held += sizes[cluster]
            else:
                num_skipped += 1
        assert set(cluster_N[is_out_N].tolist()) == expected
        assert MIN_FILLED * wanted <= is_out_N[edge_E2].any(axis=1).sum() == num_held <= wanted
    assert num_skipped > 20


def test_each_class_is_scored_among_candidates_that_are_no_other_links() -> None:
    group_N = np.zeros(8, np.int64)
    graph = Graph.from_edges(np.array([(0, 1), (1, 2), (2, 3)]), 8, group_N)
    heldout = np.array([(0, 2), (4, 5), (1, 4)])
    cluster_N = np.array([0, 1, 2, 3, 4, 5, 6, 7])
    classes = link_classes(graph, heldout, cluster_N)
    assert classes.num_seen_E.tolist() == [2, 0, 1]
    assert classes.has_twin_E.tolist() == [False, False, False]
    twin = link_classes(graph, heldout, np.array([0, 1, 1, 3, 4, 5, 6, 7]))
    assert twin.has_twin_E.tolist() == [True, False, False]
    parts = classes.parts(heldout)
    assert {name: links.tolist() for name, links in parts.items()} == {
        "c1": [[0, 2]],
        "c2": [[1, 4]],
        "c3": [[4, 5]],
    }
    queries = draw_link_queries(graph, heldout, 0, parts=parts)
    assert list(queries.splits) == ["train", "val", "c1", "c2", "c3"]
    for name in ("c1", "c2", "c3"):
        split = queries.splits[name]
        for left, right in itertools.permutations(range(8), 2):
            is_link = (left, right) in {*map(tuple, parts[name]), *map(tuple, parts[name][:, ::-1])}
            is_known = bool(graph.has_edge(left, right) | queries.heldout.has_edge(left, right))
            assert bool(split.links.has_edge(left, right)) == is_link
            assert bool(split.ignored.has_edge(left, right)) == (is_known and not is_link)
