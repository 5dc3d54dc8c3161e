import numpy as np
import pytest

from raybio.methods.sppt.graph.csr import Graph
from raybio.methods.sppt.graph.edge_table import build_edge_table
from tests import oracles


@pytest.mark.parametrize(
    ("num_nodes", "num_edges"),
    [(2, 1), (3, 5), (40, 600), (300, 1000), (5000, 300), (70_000, 20_000)],
)
def test_the_table_answers_as_a_set_does(num_nodes, num_edges):
    rng = np.random.default_rng(0)
    edge = rng.integers(0, num_nodes, (num_edges, 2))
    graph = Graph.from_edges(edge, num_nodes, None)
    neighbors = oracles.neighbors_of(edge.tolist(), num_nodes)
    pair = np.concatenate([edge, edge[:, ::-1], rng.integers(0, num_nodes, (5000, 2))])
    found = build_edge_table(graph.indptr, graph.indices).has(*pair.T)
    assert found.tolist() == [v in neighbors[u] for u, v in pair.tolist()]


def test_pairs_in_arithmetic_progressions_that_crowd_buckets_are_all_found():
    step = np.arange(3000)
    edge = np.concatenate(
        [np.stack([step, step + 1], 1), np.stack([np.zeros_like(step), step * 4], 1), [[5, 11_999]]]
    )
    graph = Graph.from_edges(edge, 12_000, None)
    table = build_edge_table(graph.indptr, graph.indices)
    nodes = np.arange(12_000)
    for hub in (0, 5, 100):
        expected = np.isin(nodes, graph.indices[graph.indptr[hub] : graph.indptr[hub + 1]])
        assert np.array_equal(table.has(np.full(12_000, hub), nodes), expected)


def test_a_large_question_gets_the_answer_of_small_ones():
    rng = np.random.default_rng(1)
    edge = rng.integers(0, 2000, (30_000, 2))
    graph, fresh = (Graph.from_edges(edge, 2000, None) for _ in range(2))
    pair = rng.integers(0, 2000, (100_000, 2))
    small = np.concatenate([fresh.has_edge(*part.T) for part in np.array_split(pair, 50)])
    assert "_table" not in vars(fresh)
    assert np.array_equal(graph.has_edge(*pair.T), small)
    assert "_table" in vars(graph)


def test_a_graph_with_too_many_nodes_for_the_table_is_searched():
    many_rows = np.broadcast_to(np.int32(0), 2**26 + 2)
    assert build_edge_table(many_rows, np.array([2**26, 0], dtype=np.int32)) is None
