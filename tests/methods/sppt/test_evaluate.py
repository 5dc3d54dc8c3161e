import numpy as np
import pytest
import torch

from raybio.methods.sppt.config import LinkEvaluationConfig
from raybio.methods.sppt.evaluate import (
    QUERY_SEED,
    draw_link_queries,
    evaluate_links,
    retrieve_links,
)
from raybio.methods.sppt.graph.csr import Graph
from raybio.methods.sppt.scores import link_unit_scores


def random_graph(
    num_nodes: int = 60, num_edges: int = 150, num_groups: int = 3, seed: int = 0
) -> Graph:
    rng = np.random.default_rng(seed)
    group_N = np.sort(rng.integers(num_groups, size=num_nodes)).astype(np.int32)
    edge_E2 = rng.integers(num_nodes, size=(num_edges, 2))
    return Graph.from_edges(
        edge_E2[group_N[edge_E2[:, 0]] == group_N[edge_E2[:, 1]]], num_nodes, group_N
    )


def edges(graph: Graph, node_S: np.ndarray) -> set[tuple[int, int]]:
    source = np.repeat(np.arange(graph.num_nodes), graph.degree_N)
    return {(int(node_S[u]), int(node_S[v])) for u, v in zip(source, graph.indices, strict=True)}


def test_the_sample_holds_all_neighbors_of_the_drawn_nodes_and_all_links_among_its_nodes() -> None:
    graph, heldout = random_graph(), np.array([[0, 1], [2, 5]])
    queries = draw_link_queries(graph, heldout, 4)
    chosen = set(queries.node_S.tolist())
    every = edges(graph, np.arange(graph.num_nodes))
    assert edges(queries.training, queries.node_S) == {
        (u, v) for u, v in every if u in chosen and v in chosen
    }
    whole = [u for u in chosen if {v for a, v in every if a == u} <= chosen]
    per_group = np.bincount(graph.group_N[whole], minlength=3)
    assert (per_group >= np.minimum(4, np.bincount(graph.group_N, minlength=3))).all()


def hub_graph(num_nodes: int, ring_size: int = 0) -> tuple[Graph, np.ndarray, np.ndarray]:
    """Return a graph, its held-out links and its leaves.

    The node that is drawn first has a link to each leaf, every fourth of which is held out. All
    others are a ring, so each has two links.
    """
    drawn_first = np.random.default_rng(QUERY_SEED).random(num_nodes).argsort()
    hub = drawn_first[0]
    ring = np.sort(drawn_first[1 : 1 + ring_size])
    leaves = np.setdiff1d(np.arange(num_nodes), [hub, *ring])
    spokes = np.stack([np.full(len(leaves), hub), leaves], axis=1)
    is_heldout = np.arange(len(leaves)) % 4 == 0
    trained = np.concatenate([spokes[~is_heldout], np.stack([ring, np.roll(ring, 1)], axis=1)])
    return Graph.from_edges(trained, num_nodes), spokes[is_heldout], leaves


def test_neighbors_of_a_hub_are_bounded_and_all_other_drawn_nodes_keep_theirs() -> None:
    graph, heldout, leaves = hub_graph(500, ring_size=60)
    every = draw_link_queries(graph, heldout, 20)
    # The hub makes the sample the graph.
    assert len(every.node_S) > 450 and every.num_left_out == 0
    num_neighbors = len(every.node_S) - 20
    for max_neighbors in (60, 90, 200):
        bounded = draw_link_queries(graph, heldout, 20, max_neighbors=max_neighbors)
        assert len(bounded.node_S) == 20 + max_neighbors
        assert bounded.num_left_out == num_neighbors - max_neighbors
        assert np.isin(np.setdiff1d(every.node_S, bounded.node_S), leaves).all()
        again = draw_link_queries(graph, heldout, 20, max_neighbors=max_neighbors)
        assert np.array_equal(again.node_S, bounded.node_S)
    enough = draw_link_queries(graph, heldout, 20, max_neighbors=num_neighbors)
    assert np.array_equal(enough.node_S, every.node_S) and enough.num_left_out == 0


def test_links_that_a_hub_keeps_are_a_uniform_draw_of_training_and_held_out_ones() -> None:
    graph, heldout, leaves = hub_graph(20_001)
    queries = draw_link_queries(graph, heldout, 1, max_neighbors=2000)
    kept = np.isin(leaves, queries.node_S)
    assert kept.sum() == 2000 and queries.training.num_edges + queries.heldout.num_edges == 2000
    # Within four standard deviations.
    assert abs(queries.heldout.num_edges / 2000 - 0.25) < 4 * (0.25 * 0.75 / 2000) ** 0.5
    assert abs(kept[:10_000].sum() / 2000 - 0.5) < 4 * (0.25 / 2000) ** 0.5


def test_nodes_are_drawn_from_as_many_groups_as_wanted() -> None:
    graph, heldout = random_graph(num_groups=6), np.array([[0, 1]])
    every = draw_link_queries(graph, heldout, 4)
    for num_groups in (1, 4):
        queries = draw_link_queries(graph, heldout, 4, num_groups=num_groups)
        groups = np.unique(queries.group_S)
        assert len(groups) == num_groups
        # The same nodes as where all groups are drawn.
        assert np.array_equal(queries.node_S, every.node_S[np.isin(every.group_S, groups)])
        whole = draw_link_queries(graph, heldout, 0, num_groups=num_groups)
        assert np.array_equal(whole.node_S, np.flatnonzero(np.isin(graph.group_N, groups)))
    for num_groups in (0, 6, 7):
        queries = draw_link_queries(graph, heldout, 4, num_groups=num_groups)
        assert np.array_equal(queries.node_S, every.node_S)


def test_groups_are_drawn_of_those_with_training_links() -> None:
    group_N = np.array([0, 0, 0, 1, 1, 1, 2, 2, 2], np.int32)
    graph = Graph.from_edges(np.array([[0, 1], [1, 2], [0, 2]]), 9, group_N)
    heldout = np.array([[3, 4], [4, 5], [6, 7]])
    for num_groups in (1, 2):
        queries = draw_link_queries(graph, heldout, 50, num_groups=num_groups)
        assert queries.training.num_edges == 3


def test_zero_nodes_per_group_asks_everything() -> None:
    graph = random_graph()
    queries = draw_link_queries(graph, np.array([[0, 1]]), 0)
    assert len(queries.node_S) == graph.num_nodes
    assert queries.heldout.num_edges == 1


def test_training_links_do_not_hide_heldout_ones() -> None:
    group_N = np.zeros(12, dtype=np.int32)
    cliques = np.repeat(np.arange(3), 4)
    pairs = np.array([(u, v) for u in range(12) for v in range(u) if cliques[u] == cliques[v]])
    heldout = pairs[::6]
    graph = Graph.from_edges(np.delete(pairs, np.s_[::6], axis=0), 12, group_N)
    embedding = torch.tensor(
        cliques[:, None] * 10.0 + np.arange(12)[:, None] * 1e-3, dtype=torch.float32
    )
    queries = draw_link_queries(graph, heldout, 0)
    found = retrieve_links(queries, embedding, LinkEvaluationConfig(num_nodes_per_group=0))
    seen, kept_out = found.values()
    assert kept_out is not None
    assert kept_out.mrr == 1.0
    assert kept_out.average_precision == 1.0
    # Held-out neighbors are unlinked candidates in the query for training links.
    assert 0.5 < seen.lrap < 1.0


def test_metrics_have_the_names_that_search_spaces_use() -> None:
    graph = random_graph()
    queries = draw_link_queries(graph, np.array([[0, 1]]), 0)
    found = evaluate_links(queries, torch.randn(len(queries.node_S), 4), LinkEvaluationConfig())
    assert {
        "train/link_average_precision",
        "val/link_average_precision",
        "val/link_mrr",
        "train/link_precision_at_10",
        "val/link_recall_at_10",
    } <= found.keys()


def test_without_heldout_links_only_training_links_are_requested() -> None:
    queries = draw_link_queries(random_graph(), np.empty((0, 2), dtype=np.int64), 0)
    found = evaluate_links(queries, torch.randn(len(queries.node_S), 4), LinkEvaluationConfig())
    assert not any(name.startswith("val/") for name in found)


def test_the_mean_over_nodes_is_the_score_also_where_groups_differ_in_nodes_and_links() -> None:
    graph = random_graph(num_nodes=40, num_edges=70, num_groups=4, seed=3)
    queries = draw_link_queries(graph, np.array([[0, 1], [0, 2], [38, 39]]), 0)
    embedding = torch.from_numpy(np.random.default_rng(1).normal(size=(40, 3)))
    retrievals = retrieve_links(queries, embedding, LinkEvaluationConfig())
    row_S = queries.node_S + 100
    unit_scores = link_unit_scores(retrievals, row_S)
    for scores, retrieval in zip(unit_scores.values(), retrievals.values(), strict=True):
        assert scores.unit_U.tolist() == (retrieval.anchor_A + 100).tolist()
        assert len(set(retrieval.num_links_A.tolist())) > 1
        assert scores.value_by_measure.keys() == retrieval.measures().keys()
        for measure, value_U in scores.value_by_measure.items():
            assert value_U.mean() == pytest.approx(retrieval.measures()[measure]), measure
