"""How much neighbours in a graph tell of a node's label: what an encoder that embeds the graph can be good for.

In an embedding where linked nodes, and no others, lie nearer than some radius, the vote of all nodes within it finds a
label as often as the graph is homophilous (McDermott, Yap, Szolovits, Zitnik, *Structure-inducing pre-training*, theory
section): before anything is trained, ``homophily`` foretells whether pre-training on a graph helps a task.

N nodes, E undirected edges, C classes, V entries of the counts (node, class).
"""

import numpy as np
from numpy.typing import NDArray

from raybio.methods.sppt.graph.csr import Graph

Labels = NDArray[np.integer]  # type: ignore[type-arg]


Floats = NDArray[np.float64]


def vote_of_neighbours(graph: Graph, label_N: Labels) -> Floats:
    """Chance (N,) that the commonest label among each node's neighbours is its own; of several, any is as likely.

    Args:
        graph: N nodes.
        label_N: classes from 0; -1 for nodes without a label, which neither vote nor are asked.

    Returns:
        float64, NaN for nodes without a label or without a labelled neighbour.

    Raises:
        ValueError: if labels do not fit the graph.
    """
    label_N = _checked(graph, label_N)
    num_classes = int(label_N.max(initial=0)) + 1
    node_M, voter_M = (
        np.repeat(np.arange(graph.num_nodes), graph.degree_N),
        np.asarray(graph.indices),
    )
    votes_M = label_N[voter_M]
    says_M = (votes_M >= 0) & (label_N[node_M] >= 0)
    key_V, count_V = np.unique(node_M[says_M] * num_classes + votes_M[says_M], return_counts=True)
    node_V, class_V = np.divmod(key_V, num_classes)
    most_N = np.zeros(graph.num_nodes, dtype=np.int64)
    np.maximum.at(most_N, node_V, count_V)
    is_most_V = count_V == most_N[node_V]
    num_most_N = np.bincount(node_V[is_most_V], minlength=graph.num_nodes)
    has_own_N = np.bincount(
        node_V[is_most_V & (class_V == label_N[node_V])], minlength=graph.num_nodes
    )
    chance_N: Floats = np.full(graph.num_nodes, np.nan)
    np.divide(has_own_N, num_most_N, out=chance_N, where=num_most_N > 0)
    return chance_N


def homophily(graph: Graph, label_N: Labels) -> float:
    """Mean of ``vote_of_neighbours`` over the nodes that have one; NaN without any.

    Raises:
        ValueError: if labels do not fit the graph.
    """
    chance_N = vote_of_neighbours(graph, label_N)
    return float(np.nanmean(chance_N)) if not np.isnan(chance_N).all() else float("nan")


def edge_homophily(graph: Graph, label_N: Labels) -> float:
    """Share of the edges between labelled nodes that join equal labels; NaN without any.

    Raises:
        ValueError: if labels do not fit the graph.
    """
    label_N = _checked(graph, label_N)
    one_M, other_M = np.repeat(label_N, graph.degree_N), label_N[graph.indices]
    counts_M = (one_M >= 0) & (other_M >= 0)
    return float((one_M == other_M)[counts_M].mean()) if counts_M.any() else float("nan")


def mean_of_neighbours(graph: Graph, value_N: Floats) -> Floats:
    """Mean (N,) of the neighbours' values, those alone that have one (are not NaN); NaN where none has.

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
    says_M = ~np.isnan(value_M)
    sum_N = np.bincount(node_M[says_M], weights=value_M[says_M], minlength=graph.num_nodes)
    num_N = np.bincount(node_M[says_M], minlength=graph.num_nodes)
    mean_N: Floats = np.full(graph.num_nodes, np.nan)
    np.divide(sum_N, num_N, out=mean_N, where=num_N > 0)
    return mean_N


def _checked(graph: Graph, label_N: Labels) -> NDArray[np.int64]:
    label_N = np.asarray(label_N)
    if label_N.shape != (graph.num_nodes,) or label_N.dtype.kind not in "iu":
        raise ValueError(
            f"labels are {label_N.dtype} {label_N.shape}, want integers, one a node: ({graph.num_nodes},)"
        )
    return label_N.astype(np.int64)
