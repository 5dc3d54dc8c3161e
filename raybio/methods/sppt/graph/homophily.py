"""Label homophily of a graph: a predictor of the tasks that an encoder of the graph can help.

Suppose that in an embedding exactly the linked nodes lie within some radius of each other. Then the
majority vote of all nodes within that radius predicts a label as often as the graph is homophilous
(McDermott et al., Structure-inducing pre-training, theory section). So ``homophily`` predicts,
before any training, whether a graph helps a task.

Shape letters: N nodes, M directed edges, V distinct pairs of (node, class of a neighbor).
"""

import numpy as np
from numpy.typing import NDArray

from raybio.core.arrays import Floats
from raybio.methods.sppt.graph.csr import Graph

Labels = NDArray[np.integer]  # type: ignore[type-arg]


def neighbor_vote(graph: Graph, label_N: Labels) -> Floats:
    """Return the probability (N,) that the most frequent label among a node's neighbors is its own.

    Of several equally frequent labels, each is chosen with the same probability.

    Args:
        graph: N nodes.
        label_N: classes from 0; -1 for nodes without a label, which neither vote nor get a
            probability.

    Returns:
        float64, NaN for nodes without a label or without a labeled neighbor.

    Raises:
        ValueError: if labels do not fit the graph.
    """
    label_N = _checked(graph, label_N)
    num_classes = int(label_N.max(initial=0)) + 1
    node_M = np.repeat(np.arange(graph.num_nodes), graph.degree_N)
    vote_M = label_N[np.asarray(graph.indices)]
    counts_M = (vote_M >= 0) & (label_N[node_M] >= 0)
    key_V, num_votes_V = np.unique(
        node_M[counts_M] * num_classes + vote_M[counts_M], return_counts=True
    )
    node_V, class_V = np.divmod(key_V, num_classes)
    most_votes_N = np.zeros(graph.num_nodes, dtype=np.int64)
    np.maximum.at(most_votes_N, node_V, num_votes_V)
    wins_V = num_votes_V == most_votes_N[node_V]
    num_winners_N = np.bincount(node_V[wins_V], minlength=graph.num_nodes)
    own_wins_V = wins_V & (class_V == label_N[node_V])
    own_wins_N = np.bincount(node_V[own_wins_V], minlength=graph.num_nodes)
    probability_N: Floats = np.full(graph.num_nodes, np.nan)
    np.divide(own_wins_N, num_winners_N, out=probability_N, where=num_winners_N > 0)
    return probability_N


def homophily(graph: Graph, label_N: Labels) -> float:
    """Return the mean of ``neighbor_vote`` over the nodes that have one; NaN without any.

    Raises:
        ValueError: if labels do not fit the graph.
    """
    probability_N = neighbor_vote(graph, label_N)
    if np.isnan(probability_N).all():
        return float("nan")
    return float(np.nanmean(probability_N))


def edge_homophily(graph: Graph, label_N: Labels) -> float:
    """Return the fraction of edges between labeled nodes that join equal labels; NaN without any.

    Raises:
        ValueError: if labels do not fit the graph.
    """
    label_N = _checked(graph, label_N)
    source_M = np.repeat(label_N, graph.degree_N)
    target_M = label_N[graph.indices]
    counts_M = (source_M >= 0) & (target_M >= 0)
    if not counts_M.any():
        return float("nan")
    return float((source_M == target_M)[counts_M].mean())


def neighbor_mean(graph: Graph, value_N: Floats) -> Floats:
    """Return the mean (N,) of the neighbors' values that are not NaN; NaN where there is none.

    Raises:
        ValueError: if values do not fit the graph.
    """
    value_N = np.asarray(value_N, dtype=np.float64)
    if value_N.shape != (graph.num_nodes,):
        raise ValueError(
            f"values have shape {value_N.shape}, want one a node: ({graph.num_nodes},)"
        )
    node_M = np.repeat(np.arange(graph.num_nodes), graph.degree_N)
    value_M = value_N[graph.indices]
    counts_M = ~np.isnan(value_M)
    sum_N = np.bincount(node_M[counts_M], weights=value_M[counts_M], minlength=graph.num_nodes)
    num_N = np.bincount(node_M[counts_M], minlength=graph.num_nodes)
    mean_N: Floats = np.full(graph.num_nodes, np.nan)
    np.divide(sum_N, num_N, out=mean_N, where=num_N > 0)
    return mean_N


def _checked(graph: Graph, label_N: Labels) -> NDArray[np.int64]:
    label_N = np.asarray(label_N)
    if label_N.shape != (graph.num_nodes,) or label_N.dtype.kind not in "iu":
        raise ValueError(
            f"labels are {label_N.dtype} {label_N.shape}, want integers, one a node: "
            f"({graph.num_nodes},)"
        )
    return label_N.astype(np.int64)
