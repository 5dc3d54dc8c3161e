import numpy as np
import pytest

from raybio.core.errors import DataError
from raybio.methods.sppt.graph import negatives
from raybio.methods.sppt.graph.csr import Graph
from tests import oracles


def random_graph(num_nodes=60, num_edges=300, num_groups=3, seed=0, scattered=False, crossing=True):
    """A graph with duplicates, self pairs, isolated nodes and links across groups.

    ``scattered``: the nodes of a group are not a range.
    """
    rng = np.random.default_rng(seed)
    group = np.sort(rng.integers(0, num_groups, num_nodes)) * 10
    if scattered:
        group = rng.permutation(group)
    edge = rng.integers(0, num_nodes - 3, (num_edges, 2))
    if not crossing:
        edge = edge[group[edge[:, 0]] == group[edge[:, 1]]]
    return Graph.from_edges(edge, num_nodes, group), oracles.neighbors_of(edge.tolist(), num_nodes)


def test_rows_hold_the_sorted_neighbors_without_duplicates_and_self_pairs():
    graph, neighbors = random_graph()
    rows = [graph.indices[graph.indptr[u] : graph.indptr[u + 1]].tolist() for u in range(60)]
    assert rows == [sorted(row) for row in neighbors]
    assert graph.degree_N.tolist() == [len(row) for row in neighbors]
    assert graph.num_edges == sum(len(row) for row in neighbors) // 2
    assert graph.num_nodes == 60
    assert graph.indices.dtype == np.int32


def test_the_order_and_direction_of_edges_do_not_matter():
    rng = np.random.default_rng(0)
    edge = rng.integers(0, 30, (100, 2))
    shuffled = rng.permuted(rng.permutation(np.concatenate([edge, edge[:20]])), axis=1)
    one, two = Graph.from_edges(edge, 30, None), Graph.from_edges(shuffled, 30, None)
    assert np.array_equal(one.indptr, two.indptr)
    assert np.array_equal(one.indices, two.indices)


@pytest.mark.parametrize("num_nodes", [0, 5])
def test_a_graph_without_edges_works(num_nodes):
    graph = Graph.from_edges([], num_nodes, np.zeros(num_nodes, dtype=int))
    nodes = np.arange(num_nodes)
    assert graph.num_edges == 0
    assert not graph.has_edge(nodes[:, None], nodes).any()
    assert len(graph.links_into(nodes, nodes)[0]) == 0
    drawn = graph.sample_negatives(nodes, 4, np.random.default_rng(0))
    assert drawn.shape == (num_nodes, 4)
    assert (drawn != nodes[:, None]).all()


@pytest.mark.parametrize(
    ("edge", "error", "message"),
    [
        ([[0, 5]], DataError, r"edge 0 is \(0, 5\)"),
        ([[0, 1], [-1, 2]], DataError, r"edge 1 is \(-1, 2\)"),
        ([[0.0, 1.0]], ValueError, "integers"),
        ([[0, 1, 2]], ValueError, "shape"),
    ],
)
def test_wrong_edges_are_refused(edge, error, message):
    with pytest.raises(error, match=message):
        Graph.from_edges(edge, 5, None)


def test_arrays_that_do_not_fit_together_are_refused():
    with pytest.raises(ValueError, match="indptr must run"):
        Graph(np.array([0, 1]), np.array([0, 1]), np.array([0]))
    with pytest.raises(ValueError, match="one a node"):
        Graph(np.array([0, 0]), np.array([], dtype=np.int32), np.array([0, 0]))


@pytest.mark.parametrize("query", [([7], [99]), ([-1], [0])])
def test_nodes_that_are_not_in_the_graph_are_refused(query):
    graph, _ = random_graph()
    with pytest.raises(ValueError, match="want"):
        graph.has_edge(*query)


def test_memory_mapped_arrays_are_used_as_they_are(tmp_path):
    graph, _ = random_graph()
    for name in ("indptr", "indices", "group_N"):
        np.save(tmp_path / name, getattr(graph, name))
    mapped = [
        np.load(tmp_path / f"{name}.npy", mmap_mode="r")
        for name in ("indptr", "indices", "group_N")
    ]
    opened = Graph(*mapped)
    assert opened.indices is mapped[1]
    nodes = np.arange(50)
    assert np.array_equal(
        opened.has_edge(nodes[:, None], nodes), graph.has_edge(nodes[:, None], nodes)
    )
    drawn = [g.sample_negatives(nodes, 3, np.random.default_rng(0)) for g in (graph, opened)]
    assert np.array_equal(*drawn)


def test_has_edge_equals_a_set_look_up_and_broadcasts():
    graph, neighbors = random_graph()
    nodes = np.arange(60)
    expected = [[v in neighbors[u] for v in range(60)] for u in range(60)]
    assert graph.has_edge(nodes[:, None], nodes).tolist() == expected
    assert graph.has_edge(nodes.astype(np.int32), 4).tolist() == [4 in row for row in neighbors]


def test_has_edge_equals_a_set_look_up_with_hubs_and_more_pairs_than_a_block():
    rng = np.random.default_rng(1)
    num_nodes = 5000
    edge = np.concatenate(
        [rng.integers(0, num_nodes, (20_000, 2)), [[7, v] for v in range(0, num_nodes, 2)]]
    )
    graph = Graph.from_edges(edge, num_nodes, None)
    neighbors = oracles.neighbors_of(edge.tolist(), num_nodes)
    pair = np.concatenate(
        [edge, rng.integers(0, num_nodes, (50_000, 2)), [[u, 7] for u in range(num_nodes)]]
    )
    assert graph.has_edge(*pair.T).tolist() == [v in neighbors[u] for u, v in pair.tolist()]


def test_links_into_a_set_equal_has_edge_also_for_repeated_nodes():
    graph, _ = random_graph()
    rng = np.random.default_rng(2)
    row, column = rng.integers(0, 60, 40), rng.integers(0, 60, 20)
    position, node = graph.links_into(row, np.concatenate([column, column]))
    distinct = np.unique(column)
    expected_position, expected_slot = np.nonzero(graph.has_edge(row[:, None], distinct))
    assert 0 < len(position) < len(graph.links_into(row, np.arange(60))[0])
    assert np.array_equal(position, expected_position)
    assert np.array_equal(node, distinct[expected_slot])
    assert [part.shape for part in graph.links_into([], column)] == [(0,), (0,)]
    assert [part.shape for part in graph.links_into(row, [])] == [(0,), (0,)]


def test_neighbors_are_drawn_uniformly():
    graph, neighbors = random_graph()
    nodes = np.flatnonzero(graph.degree_N)
    drawn = graph.sample_neighbors(nodes, 4000, np.random.default_rng(3))
    assert drawn.shape == (len(nodes), 4000)
    for node, row in zip(nodes, drawn, strict=True):
        assert_uniform(row, neighbors[node])


def test_a_node_without_neighbors_is_named_when_a_positive_is_requested():
    graph, _ = random_graph()
    with pytest.raises(ValueError, match=r"1 of 2 nodes have no neighbor \(the first: 59\)"):
        graph.sample_neighbors([0, 59], 1, np.random.default_rng(0))


@pytest.mark.parametrize("scattered", [False, True])
@pytest.mark.parametrize("crossing", [False, True])
@pytest.mark.parametrize("num_edges", [60, 700, 4000])
def test_negatives_are_drawn_uniformly_from_the_allowed_nodes(scattered, crossing, num_edges):
    graph, neighbors = random_graph(
        scattered=scattered, crossing=crossing, num_edges=num_edges, seed=5
    )
    group = graph.group_N.tolist()
    allowed = [oracles.allowed_negatives(neighbors, group, node) for node in range(60)]
    nodes = np.array([node for node in range(60) if allowed[node]])
    drawn = graph.sample_negatives(nodes, 3000, np.random.default_rng(4))
    for node, row in zip(nodes, drawn, strict=True):
        assert_uniform(row, allowed[node])


def test_a_complete_group_falls_back_to_the_other_groups_where_it_has_no_link():
    clique = [[u, v] for u in range(5) for v in range(u)]
    graph = Graph.from_edges([*clique, [0, 5], [0, 7]], 9, [0] * 5 + [1] * 4)
    drawn = graph.sample_negatives([0, 1, 5], 3000, np.random.default_rng(0))
    assert_uniform(drawn[0], {6, 8})
    assert_uniform(drawn[1], {5, 6, 7, 8})
    assert_uniform(drawn[2], {6, 7, 8})
    is_fallback = graph.group_N[drawn] != graph.group_N[[0, 1, 5]][:, None]
    assert is_fallback.all(axis=1).tolist() == [True, True, False]


def test_a_node_linked_to_all_others_is_named():
    graph = Graph.from_edges([[0, 1], [0, 2]], 3, None)
    with pytest.raises(ValueError, match="node 0 is linked to all 2 others"):
        graph.sample_negatives([1, 0], 1, np.random.default_rng(0))


def test_a_million_negatives_hold_no_edge_no_self_pair_and_no_foreign_node():
    rng = np.random.default_rng(6)
    num_nodes, size = 2000, 40
    group = np.arange(num_nodes) // size
    edge = (
        rng.integers(0, size, (20_000, 2))
        + (rng.integers(0, num_nodes // size, 20_000) * size)[:, None]
    )
    hub = [[0, v] for v in range(1, size - 1)]
    complete = [[size + u, size + v] for u in range(size) for v in range(u)]
    graph = Graph.from_edges(np.concatenate([edge, hub, complete]), num_nodes, group)
    node = rng.integers(0, num_nodes, 250_000)
    drawn = graph.sample_negatives(node, 4, rng)
    assert drawn.size == 10**6
    assert not graph.has_edge(node[:, None], drawn).any()
    assert (drawn != node[:, None]).all()
    is_own = group[drawn] == group[node][:, None]
    is_linked_to_its_whole_group = graph.degree_N[node] == size - 1
    assert is_linked_to_its_whole_group[group[node] == 1].all()
    assert np.array_equal(is_own, np.repeat(~is_linked_to_its_whole_group[:, None], 4, axis=1))


@pytest.mark.parametrize("samples_at_once", [1, 7, 1 << 14, 1 << 40])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_negative_is_the_drawn_one_of_the_allowed_nodes_however_many_are_looked_up_together(
    monkeypatch, seed, samples_at_once
):
    monkeypatch.setattr(negatives, "SAMPLES_AT_ONCE", samples_at_once)
    clique = [[u, v] for u in range(5) for v in range(u)]
    rng = np.random.default_rng(seed)
    edges = [*clique, [0, 5], [0, 7], *rng.integers(5, 40, (60, 2)).tolist()]
    group = np.repeat([0, 1, 2], [5, 20, 15])
    graph = Graph.from_edges([edge for edge in edges if edge[0] != edge[1]], 40, group)
    node = rng.integers(0, 40, 50)
    allowed = []
    for one in node:
        others = np.setdiff1d(
            np.arange(40), [one, *graph.indices[graph.indptr[one] : graph.indptr[one + 1]]]
        )
        own = others[group[others] == group[one]]
        allowed.append(own if len(own) else others)
    num_allowed = np.array([len(ids) for ids in allowed])
    rank = np.random.default_rng(seed).integers(0, num_allowed[:, None], size=(50, 6))
    expected = [ids[ranks] for ids, ranks in zip(allowed, rank, strict=True)]
    assert np.array_equal(graph.sample_negatives(node, 6, np.random.default_rng(seed)), expected)


def test_equal_generators_give_equal_draws_and_one_draw_is_used_a_sample():
    graph, _ = random_graph()
    nodes = np.flatnonzero(graph.degree_N)
    draws = [graph.sample_negatives(nodes, 5, np.random.default_rng(8)) for _ in range(2)]
    assert np.array_equal(*draws)


def assert_uniform(drawn, allowed):
    values, counts = np.unique(drawn, return_counts=True)
    assert set(values.tolist()) == set(allowed)
    expected = len(drawn) / len(allowed)
    freedom = len(allowed) - 1
    assert ((counts - expected) ** 2 / expected).sum() < freedom + 6 * np.sqrt(2 * freedom + 1)
