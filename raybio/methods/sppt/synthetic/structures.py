"""Synthetic graph structures: cliques, points near each other on a surface, a cycle with graphlets.

The constructions follow the synthetic experiments of McDermott et al., without sentences.

Shape letters: N nodes, E edges, M pairs of nodes, T triangles.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from raybio.core.arrays import Floats, Integers
from raybio.methods.sppt.graph.csr import Graph
from raybio.methods.sppt.synthetic.simplicial import geodesic_distances
from raybio.ops.segments import Positions, expand

CYCLE_LENGTH = 36
"""Nodes of the cycle that graphlets are attached to."""

JOINT_DISTANCE = 4
"""Distance on the cycle between nodes with a graphlet."""

MAX_NODES = 6
"""Nodes of the largest graphlet."""


def cliques(label_N: Integers) -> Graph:
    """Return the graph that links nodes if and only if their labels are equal."""
    label_N = np.asarray(label_N)
    is_linked_NN = label_N[:, None] == label_N
    return Graph.from_edges(np.argwhere(np.triu(is_linked_NN, 1)), len(label_N))


def near_on_surface(
    triangle_T3: Integers, triangle_N: Integers, weight_N3: Floats, radius: float
) -> Graph:
    """Return the graph that links nodes if and only if their geodesic distance is below ``radius``.

    Args:
        triangle_T3: corners of the surface's triangles.
        triangle_N: index of each node's triangle.
        weight_N3: barycentric coordinates of each node.
        radius: as ``up_to`` of ``geodesic_distances``.

    Raises:
        ValueError: for a radius, triangle or coordinates out of range.
    """
    distance_NN = geodesic_distances(triangle_T3, triangle_N, weight_N3, up_to=radius)
    return Graph.from_edges(np.argwhere(np.triu(distance_NN < radius, 1)), len(distance_NN))


class CycleWithGraphlets(NamedTuple):
    """A cycle with small graphs attached to it (Donnat et al. 2018).

    Attributes:
        graph: the cycle's nodes first, then the nodes of each graphlet.
        part_N: 0 for nodes of the cycle, else 1 + the index of the node's graphlet.
    """

    graph: Graph
    part_N: NDArray[np.int64]


def cycle_with_graphlets(rng: np.random.Generator) -> CycleWithGraphlets:
    """Return a cycle with a random connected graph attached by one edge to every few nodes.

    A graphlet has 2 to ``MAX_NODES`` nodes: a random tree, to which each other pair is added with a
    probability that is drawn for the graphlet.

    Args:
        rng: source of randomness.
    """
    edges = [(node, (node + 1) % CYCLE_LENGTH) for node in range(CYCLE_LENGTH)]
    parts = [0] * CYCLE_LENGTH
    for number, joint in enumerate(range(0, CYCLE_LENGTH, JOINT_DISTANCE), start=1):
        first = len(parts)
        size = int(rng.integers(2, MAX_NODES + 1))
        density = rng.random()
        for node in range(1, size):
            parent = int(rng.integers(node))
            others = [other for other in range(node) if other != parent and rng.random() < density]
            edges += [(first + node, first + other) for other in (parent, *others)]
        edges.append((joint, first + int(rng.integers(size))))
        parts += [number] * size
    return CycleWithGraphlets(Graph.from_edges(np.array(edges), len(parts)), np.array(parts))


def within_steps(graph: Graph, num_steps: int) -> NDArray[np.bool_]:
    """Return whether node j is at most ``num_steps`` links away from node i (N, N).

    Each node is within any number of steps of itself.
    """
    num_nodes = graph.num_nodes
    is_near_NN = np.eye(num_nodes, dtype=np.bool_)
    position, owner = expand(graph.indptr[:-1].astype(np.int64), graph.degree_N.astype(np.int64))
    target = np.asarray(graph.indices)[position]
    for _ in range(num_steps):
        reached_NN = is_near_NN.copy()
        np.logical_or.at(reached_NN, owner, is_near_NN[target])
        is_near_NN = reached_NN
    return is_near_NN


def with_noise(
    graph: Graph, rate: float, rng: np.random.Generator, *, may_remove: bool = False
) -> Graph:
    """Return the graph with noise: each pair of nodes is drawn with probability ``rate``.

    A drawn pair without a link gets one. With ``may_remove``, a drawn pair with a link loses it.

    Raises:
        ValueError: for a rate outside [0, 1].
    """
    if not 0 <= rate <= 1:
        raise ValueError(f"rate is {rate}, want a probability in [0, 1]")
    num_nodes = graph.num_nodes
    u_M, v_M = np.triu_indices(num_nodes, 1)
    is_linked_M = graph.has_edge(u_M, v_M)
    is_drawn_M = rng.random(len(u_M)) < rate
    kept_M = is_linked_M ^ is_drawn_M if may_remove else is_linked_M | is_drawn_M
    edge_E2: Positions = np.stack([u_M[kept_M], v_M[kept_M]], axis=1)
    return Graph.from_edges(edge_E2, num_nodes, graph.group_N)
