"""Ways on surfaces of triangles, against shortest paths between very many points of their edges."""

import itertools
from collections import Counter

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import dijkstra

from raybio.methods.sppt.synthetic.config import TRIANGLE_HEIGHT
from raybio.methods.sppt.synthetic.simplicial import EDGE, SURFACES, geodesic_distances, surface


def random_points(
    triangle_T3, num: int, seed: int, evenness: float
) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, len(triangle_T3), num), rng.dirichlet(np.full(3, evenness), num)


def by_paths(triangle_T3, place_P, weight_P3, per_edge: int = 60) -> np.ndarray:
    """Shortest paths of straight pieces between points of the triangles' edges: an upper bound."""
    num_corners = int(triangle_T3.max()) + 1
    nodes = [tuple(row) for row in np.eye(num_corners).tolist()]  # barycentric over all corners
    for a, b in {
        tuple(sorted(pair))
        for three in triangle_T3.tolist()
        for pair in itertools.combinations(three, 2)
    }:
        for step in range(1, per_edge):
            node = np.zeros(num_corners)
            node[[a, b]] = 1 - step / per_edge, step / per_edge
            nodes.append(tuple(node))
    edge_nodes = np.array(nodes)
    own = np.zeros((len(place_P), num_corners))
    for row, (place, weight) in enumerate(zip(place_P, weight_P3, strict=True)):
        own[row, triangle_T3[place]] = weight
    every = np.concatenate([own, edge_nodes])
    length = np.full((len(every), len(every)), np.inf)
    for number, three in enumerate(triangle_T3):
        outside = np.delete(np.arange(num_corners), three)
        on_it = np.flatnonzero((edge_nodes[:, outside] == 0).all(axis=1)) + len(own)
        here = np.concatenate([np.flatnonzero(place_P == number), on_it])
        # In the standard simplex the distance is that of the coordinates.
        between = np.linalg.norm(every[here][:, None] - every[here][None], axis=2)
        length[np.ix_(here, here)] = np.minimum(length[np.ix_(here, here)], between)
    length[length == 0] = 1e-12
    np.fill_diagonal(length, np.inf)
    graph = csr_matrix(np.where(np.isinf(length), 0, length))
    return dijkstra(graph, indices=np.arange(len(own)))[:, : len(own)]


@pytest.mark.parametrize(
    "name, euler, is_closed",
    [("plane", 1, False), ("moebius", 0, False), ("sphere", 2, True), ("torus", 0, True)],
)
def test_the_surfaces_are_what_they_are_called(name, euler, is_closed):
    triangles = surface(name)
    edges = Counter(
        frozenset(pair) for three in triangles.tolist() for pair in itertools.combinations(three, 2)
    )
    corners = np.unique(triangles)
    assert corners.tolist() == list(range(len(corners)))
    assert len(corners) - len(edges) + len(triangles) == euler
    assert (set(edges.values()) == {2}) == is_closed and max(edges.values()) == 2


@pytest.mark.parametrize("name", SURFACES)
@pytest.mark.parametrize("evenness", [1.0, 0.25])
def test_ways_are_the_shortest_of_very_many_paths(name, evenness):
    triangles, up_to = surface(name), 1.2
    place, weight = random_points(triangles, 70, seed=len(name), evenness=evenness)
    found, expected = (
        geodesic_distances(triangles, place, weight, up_to=up_to),
        by_paths(triangles, place, weight),
    )
    np.fill_diagonal(expected, 0)
    is_near = np.isfinite(found)
    assert is_near.mean() > 0.1
    assert (found[is_near] <= expected[is_near] + 1e-9).all()  # no path is shorter
    excess = (expected - found)[is_near]
    assert (
        excess.max() < EDGE / 60 and excess.mean() < 2e-3
    )  # a path crosses edges at points that lie so far apart
    assert (expected[~is_near] > up_to - 1e-9).all()
    np.testing.assert_array_equal(found, found.T)


def test_three_points_obey_the_triangle_inequality_and_names_do_not_matter():
    triangles = surface("torus")
    place, weight = random_points(triangles, 60, seed=0, evenness=0.4)
    found = geodesic_distances(triangles, place, weight, up_to=1.2)
    assert (
        np.minimum(found, 1.2)[:, None, :] <= found[:, :, None] + found[None, :, :] + 1e-9
    ).all()
    rng = np.random.default_rng(1)
    order, names = np.array([rng.permutation(3) for _ in triangles]), rng.permutation(9)
    turned = names[np.take_along_axis(triangles, order, axis=1)]
    again = geodesic_distances(
        turned, place, np.take_along_axis(weight, order[place], axis=1), up_to=1.2
    )
    np.testing.assert_allclose(again, found, atol=1e-9)


def test_two_triangles_lie_flat():
    # Corners 0 and 3 lie opposite each other across the edge from 1 to 2, two heights apart.
    weight = np.array([[0.4, 0.3, 0.3], [0.3, 0.3, 0.4]])
    found = geodesic_distances(surface("plane"), np.array([0, 1]), weight, up_to=1.2)
    assert found[0, 1] == pytest.approx(0.8 * TRIANGLE_HEIGHT)
    corners = np.array([[0.0, 1, 0], [1.0, 0, 0], [0, 1, 0]])
    same, apart = geodesic_distances(surface("plane"), np.array([0, 1, 1]), corners, up_to=1.2)[
        0, 1:
    ]
    assert (
        same == 0 and apart == np.inf and EDGE > 1.2
    )  # corner 1 in both triangles; corners 1 and 2


@pytest.mark.parametrize(
    "triangles, weights, up_to, message",
    [
        ([[0, 1, 1]], [[1, 0, 0]], 0.2, "three different corners"),
        ([[0, 1, 2]], [[0.5, 0, 0]], 0.2, "sum to 1"),
        ([[0, 1, 2]], [[1.5, -0.5, 0]], 0.2, "numbers >= 0"),
        ([[0, 1, 2]], [[1, 0, 0]], 1.3, "below a triangle's height, 1.2247"),
    ],
)
def test_what_is_no_surface_is_refused(triangles, weights, up_to, message):
    with pytest.raises(ValueError, match=message):
        geodesic_distances(
            np.array(triangles), np.array([0]), np.array(weights, dtype=float), up_to=up_to
        )
