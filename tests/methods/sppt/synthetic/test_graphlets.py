"""Graphlet degree vectors, against looking at every set of two to four nodes."""

import itertools

import numpy as np
import pytest

from raybio.methods.sppt.graph.csr import Graph
from raybio.methods.sppt.synthetic.graphlets import graphlet_degrees

# Orbit of a node by its degree, for each graphlet's sorted degrees. The sorted degrees identify
# all graphlets of up to four nodes.
ORBIT_BY_DEGREES = {
    (1, 1): {1: 0},
    (1, 1, 2): {1: 1, 2: 2},
    (2, 2, 2): {2: 3},
    (1, 1, 2, 2): {1: 4, 2: 5},
    (1, 1, 1, 3): {1: 6, 3: 7},
    (2, 2, 2, 2): {2: 8},
    (1, 2, 2, 3): {1: 9, 2: 10, 3: 11},
    (2, 2, 3, 3): {2: 12, 3: 13},
    (3, 3, 3, 3): {3: 14},
}


def by_sets(linked: np.ndarray) -> np.ndarray:
    num = len(linked)
    found = np.zeros((num, 15), dtype=int)
    for size in (2, 3, 4):
        for nodes in itertools.combinations(range(num), size):
            within = linked[np.ix_(nodes, nodes)]
            reached = np.linalg.matrix_power(within + np.eye(size), size) > 0
            if reached.all():
                degrees = within.sum(axis=1)
                orbits = ORBIT_BY_DEGREES[tuple(sorted(degrees))]
                for node, degree in zip(nodes, degrees, strict=True):
                    found[node, orbits[degree]] += 1
    return found


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_they_are_those_of_every_set_of_nodes(seed, share):
    rng = np.random.default_rng(seed)
    pairs = np.array(list(itertools.combinations(range(14), 2)))
    edges = pairs[rng.random(len(pairs)) < share]
    linked = np.zeros((14, 14), dtype=int)
    linked[tuple(edges.T)] = linked[tuple(edges.T[::-1])] = 1
    np.testing.assert_array_equal(graphlet_degrees(Graph.from_edges(edges, 14)), by_sets(linked))


def test_a_hub_has_its_stars_counted_and_not_listed():
    edges = np.stack([np.zeros(3000, dtype=int), np.arange(1, 3001)], axis=1)
    hub, leaf = graphlet_degrees(Graph.from_edges(edges, 3001))[[0, 1]]
    assert hub[[0, 2, 7]].tolist() == [3000, 3000 * 2999 // 2, 3000 * 2999 * 2998 // 6]
    assert leaf[[0, 1, 6]].tolist() == [1, 2999, 2999 * 2998 // 2]
    assert hub.sum() == hub[[0, 2, 7]].sum()
