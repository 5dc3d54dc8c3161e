"""The synthetic graphs of SPPT's experiments (facts §7): cliques, surfaces, a cycle with graphlets; and noise.

N nodes, E edges.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from raybio.graphs.csr import Graph
from raybio.graphs.rows import expand
from raybio.graphs.simplicial import Floats, geodesic_distances
from raybio.graphs.types import Integers, Positions


def cliques(label_N: Integers) -> Graph:
    """Nodes are linked if and only if their labels are equal."""
    label_N = np.asarray(label_N)
    is_linked_NN = label_N[:, None] == label_N
    return Graph.from_edges(np.argwhere(np.triu(is_linked_NN, 1)), len(label_N))


def near_on_surface(triangle_T3: Integers, place_N: Integers, weight_N3: Floats, radius: float) -> Graph:
    """Nodes are linked if and only if they are nearer than ``radius`` along a surface; see ``geodesic_distances``.

    Raises:
        ValueError: for a radius, a place or coordinates that are out of range.
    """
    distance_NN = geodesic_distances(triangle_T3, place_N, weight_N3, up_to=radius)
    return Graph.from_edges(np.argwhere(np.triu(distance_NN < radius, 1)), len(distance_NN))


class CycleWithGraphlets(NamedTuple):
    """A cycle to which small graphs are joined (Donnat et al., 2018).

    Attributes:
        graph: the cycle's nodes first, then those of each graphlet.
        part_N: 0 for the cycle, 1 and up for the graphlet that a node belongs to.
    """

    graph: Graph
    part_N: NDArray[np.int64]


def cycle_with_graphlets(
    rng: np.random.Generator, *, cycle: int = 36, every: int = 4, max_nodes: int = 6
) -> CycleWithGraphlets:
    """A cycle; at every ``every``-th node a random connected graph hangs by one edge.

    A graphlet has 2 to ``max_nodes`` nodes: a random tree, and each other pair is linked with a chance of its own.

    Raises:
        ValueError: for a cycle of fewer than three nodes, or graphlets of fewer than two.
    """
    if cycle < 3 or every < 1 or max_nodes < 2:
        raise ValueError(f"got cycle {cycle}, every {every}, max_nodes {max_nodes}; want at least 3, 1 and 2")
    edges = [(node, (node + 1) % cycle) for node in range(cycle)]
    parts = [0] * cycle
    for number, joint in enumerate(range(0, cycle, every), start=1):
        first, size = len(parts), int(rng.integers(2, max_nodes + 1))
        density = rng.random()
        for node in range(1, size):
            parent = int(rng.integers(node))
            others = [other for other in range(node) if other != parent and rng.random() < density]
            edges += [(first + node, first + other) for other in (parent, *others)]
        edges.append((joint, first + int(rng.integers(size))))
        parts += [number] * size
    return CycleWithGraphlets(Graph.from_edges(np.array(edges), len(parts)), np.array(parts))


def within_steps(graph: Graph, num_steps: int) -> NDArray[np.bool_]:
    """Whether node j is at most ``num_steps`` links away from node i (N, N); each node is near itself."""
    num_nodes = graph.num_nodes
    is_near_NN = np.eye(num_nodes, dtype=np.bool_)
    position, owner = expand(graph.indptr[:-1].astype(np.int64), graph.degree_N.astype(np.int64))
    target = np.asarray(graph.indices)[position]
    for _ in range(num_steps):
        reached_NN = is_near_NN.copy()
        np.logical_or.at(reached_NN, owner, is_near_NN[target])
        is_near_NN = reached_NN
    return is_near_NN


def with_noise(graph: Graph, rate: float, rng: np.random.Generator, *, may_remove: bool = False) -> Graph:
    """Of all pairs of nodes, each with the chance ``rate``: link it; with ``may_remove`` unlink it if it is linked.

    Raises:
        ValueError: for a rate outside [0, 1].
    """
    if not 0 <= rate <= 1:
        raise ValueError(f"rate is {rate}, want a share in [0, 1]")
    num_nodes = graph.num_nodes
    u_M, v_M = np.triu_indices(num_nodes, 1)
    is_linked_M = graph.has_edge(u_M, v_M)
    is_drawn_M = rng.random(len(u_M)) < rate
    kept_M = is_linked_M ^ is_drawn_M if may_remove else is_linked_M | is_drawn_M
    edge_E2: Positions = np.stack([u_M[kept_M], v_M[kept_M]], axis=1)
    return Graph.from_edges(edge_E2, num_nodes, graph.group_N)
