"""Structures of the synthetic graphs."""

from itertools import combinations

import numpy as np
import pytest
from scipy.sparse.csgraph import connected_components, shortest_path

from raybio.methods.sppt.graph.csr import Graph
from raybio.methods.sppt.synthetic.simplicial import geodesic_distances, surface
from raybio.methods.sppt.synthetic.structures import (
    cliques,
    cycle_with_graphlets,
    near_on_surface,
    with_noise,
    within_steps,
)


def matrix(graph: Graph) -> np.ndarray:
    found = np.zeros((graph.num_nodes, graph.num_nodes), bool)
    found[np.repeat(np.arange(graph.num_nodes), graph.degree_N), graph.indices] = True
    return found


def test_cliques_link_equal_labels_alone() -> None:
    label_N = np.array([3, 1, 3, 3, 2, 1])
    linked = matrix(cliques(label_N))
    for u, v in combinations(range(6), 2):
        assert linked[u, v] == linked[v, u] == (label_N[u] == label_N[v])
    assert not linked.diagonal().any()


def test_nodes_on_a_surface_are_linked_if_they_are_near() -> None:
    rng = np.random.default_rng(0)
    triangles = surface("torus")
    triangle_N = rng.integers(len(triangles), size=80)
    weight_N3 = rng.dirichlet(np.ones(3), 80)
    distance = geodesic_distances(triangles, triangle_N, weight_N3, up_to=0.4)
    linked = matrix(near_on_surface(triangles, triangle_N, weight_N3, 0.4))
    np.testing.assert_array_equal(linked, (distance < 0.4) & ~np.eye(80, dtype=bool))
    assert 0 < linked.sum() < 80 * 79


@pytest.mark.parametrize("seed", range(5))
def test_graphlets_hang_from_every_fourth_node_of_a_cycle_by_one_edge(seed: int) -> None:
    graph, part_N = cycle_with_graphlets(np.random.default_rng(seed))
    linked = matrix(graph)
    assert connected_components(linked)[0] == 1
    assert (part_N[:36] == 0).all()
    assert set(part_N[36:].tolist()) == set(range(1, 10))
    cycle = linked[:36, :36]
    assert (cycle.sum(axis=1) == 2).all()
    for number in range(1, 10):
        own = np.flatnonzero(part_N == number)
        assert 2 <= len(own) <= 6
        assert connected_components(linked[np.ix_(own, own)])[0] == 1
        outside = np.argwhere(linked[own] & (part_N != number))
        assert outside.shape == (1, 2)
        assert outside[0, 1] == 4 * (number - 1)


def test_balls_are_those_of_shortest_paths() -> None:
    graph, _ = cycle_with_graphlets(np.random.default_rng(3))
    length = shortest_path(matrix(graph), unweighted=True)
    for steps in (0, 1, 3):
        np.testing.assert_array_equal(within_steps(graph, steps), length <= steps)


def test_noise_adds_its_share_of_pairs_and_removes_only_if_it_may() -> None:
    graph = cliques(np.repeat(np.arange(20), 10))
    before, pairs = matrix(graph), np.triu(np.ones((200, 200), bool), 1)
    for may_remove in (False, True):
        after = matrix(with_noise(graph, 0.1, np.random.default_rng(0), may_remove=may_remove))
        np.testing.assert_array_equal(after, after.T)
        added = (after & ~before)[pairs].sum() / (~before)[pairs].sum()
        removed = (before & ~after)[pairs].sum() / before[pairs].sum()
        assert added == pytest.approx(0.1, abs=0.01)
        assert removed == (pytest.approx(0.1, abs=0.03) if may_remove else 0)
    assert (matrix(with_noise(graph, 0, np.random.default_rng(0))) == before).all()
    assert matrix(with_noise(graph, 1, np.random.default_rng(0))).sum() == 200 * 199


def test_what_is_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match="rate is 2, want a probability"):
        with_noise(cliques(np.zeros(3)), 2, np.random.default_rng(0))
