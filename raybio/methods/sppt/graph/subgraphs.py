"""Neighborhoods and induced subgraphs.

Shape letters: M nodes, S nodes of a subgraph, E directed links.
"""

import numpy as np

from raybio.methods.sppt.graph.csr import Graph
from raybio.ops.segments import expand


def neighbors_of(graph: Graph, node_M: np.ndarray) -> np.ndarray:
    """Return all neighbors of the given nodes, node after node."""
    start_M = graph.indptr[node_M].astype(np.int64)
    entry, _ = expand(start_M, graph.degree_N[node_M].astype(np.int64))
    return np.asarray(graph.indices)[entry].astype(np.int64)


def induced_subgraph(graph: Graph, node_S: np.ndarray, group_S: np.ndarray) -> Graph:
    """Return the subgraph on the sorted nodes ``node_S``, renumbered 0..S-1."""
    degree_S = graph.degree_N[node_S].astype(np.int64)
    source_E = np.repeat(np.arange(len(node_S)), degree_S)
    target_E = neighbors_of(graph, node_S)
    index_E = np.searchsorted(node_S, target_E).clip(max=len(node_S) - 1)
    is_inside_E = node_S[index_E] == target_E
    edge_E2 = np.stack([source_E[is_inside_E], index_E[is_inside_E]], axis=1)
    return Graph.from_edges(edge_E2, len(node_S), group_S)
