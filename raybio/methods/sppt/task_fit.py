"""Task fit: how well neighbors in a graph predict a task's labels, compared with shuffled labels.

Where neighbors predict a label better than chance, an encoder that was pre-trained on the graph can
help (McDermott et al., theory section and Table 1; ``graph/homophily.py``). Where they do not, as
for roles in a graph, no gain is expected. Labels that differ between linked nodes are predicted
worse than by chance.

Labels are shuffled within each group of nodes. So labels that only depend on the group, such as the
species, are not credited to the graph.

Shape letters: N nodes, L labeled nodes.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

from raybio.core.markdown import markdown_table
from raybio.methods.sppt.graph.csr import Graph
from raybio.methods.sppt.graph.homophily import (
    edge_homophily,
    homophily,
    neighbor_mean,
    neighbor_vote,
)

NUM_SHUFFLES = 199
"""If labels are independent of the graph, 1 of 20 graphs lies outside the 95 % of the shuffles."""

MIN_EVALUATED_NODES = 100
"""With fewer evaluated nodes, the fit makes no prediction."""


class ChanceComparison(NamedTuple):
    """A measure, and the same measure on shuffled labels.

    Attributes:
        value: measure on the given labels.
        chance: mean over shuffles.
        low: lower bound of the interval that holds 95 % of the shuffles.
        high: its upper bound.
    """

    value: float
    chance: float
    low: float
    high: float


def class_fit(
    graph: Graph, label_N: NDArray[np.int64], *, num_shuffles: int = NUM_SHUFFLES, seed: int = 0
) -> dict[str, Any]:
    """Measure how well neighbors predict classes.

    Args:
        graph: N nodes; only nodes of one group are linked.
        label_N: classes from 0, -1 for nodes without a label.
        num_shuffles: number of shuffles of the labels within groups.
        seed: seed of the shuffles.

    Returns:
        ``nodes``, ``labeled``, ``evaluated`` (labeled nodes with a labeled neighbor),
        ``classes``, ``largest_class`` (its fraction of the labeled nodes), ``prediction`` ("help",
        "nothing", "harm", or "too few") and, as ``ChanceComparison``, ``homophily`` and
        ``edge_homophily``.

    Raises:
        ValueError: if labels do not fit the graph.
    """
    num_evaluated = int((~np.isnan(neighbor_vote(graph, label_N))).sum())
    nodes = []
    edges = []
    for rng in _generators(seed, num_shuffles):
        shuffled_N = _shuffled(graph.group_N, label_N, label_N >= 0, rng)
        nodes.append(homophily(graph, shuffled_N))
        edges.append(edge_homophily(graph, shuffled_N))
    measures = {
        "homophily": _compared(homophily(graph, label_N), nodes),
        "edge_homophily": _compared(edge_homophily(graph, label_N), edges),
    }
    num_by_class = np.bincount(label_N[label_N >= 0], minlength=1)
    return {
        "nodes": graph.num_nodes,
        "labeled": int((label_N >= 0).sum()),
        "evaluated": num_evaluated,
        "classes": int((num_by_class > 0).sum()),
        "largest_class": float(num_by_class.max() / max(num_by_class.sum(), 1)),
        **measures,
        "prediction": _prediction(measures["homophily"], num_evaluated),
    }


def number_fit(graph: Graph, value_N: NDArray[np.float64], *, seed: int = 0) -> dict[str, Any]:
    """Measure Spearman's correlation between nodes and the means of their neighbors.

    Args:
        graph: as for ``class_fit``.
        value_N: numbers, NaN for nodes without one.
        seed: seed of the shuffles within groups.

    Returns:
        ``nodes``, ``labeled``, ``evaluated``, ``prediction`` and, as ``ChanceComparison``,
        ``correlation``.

    Raises:
        ValueError: if values do not fit the graph.
    """
    has_value_N = ~np.isnan(value_N)
    num_evaluated = int((has_value_N & ~np.isnan(neighbor_mean(graph, value_N))).sum())
    shuffled_values = []
    for rng in _generators(seed, NUM_SHUFFLES):
        shuffled_N = _shuffled(graph.group_N, value_N, has_value_N, rng)
        shuffled_values.append(_correlation(graph, shuffled_N))
    correlation = _compared(_correlation(graph, value_N), shuffled_values)
    return {
        "nodes": graph.num_nodes,
        "labeled": int(has_value_N.sum()),
        "evaluated": num_evaluated,
        "correlation": correlation,
        "prediction": _prediction(correlation, num_evaluated),
    }


def fit_report(fit: Mapping[str, Any], title: str) -> str:
    """Return the result of ``class_fit`` or ``number_fit`` as Markdown."""
    text = (
        f"{fit['labeled']:,} of {fit['nodes']:,} nodes have a label, {fit['evaluated']:,} of them "
        "a labeled neighbor."
    )
    if "classes" in fit:
        percent = 100 * fit["largest_class"]
        text += f" {fit['classes']:,} classes; the largest has {percent:.1f} % of the nodes."
    names = {
        "homophily": "homophily: the most frequent label among a node's neighbors is its own",
        "edge_homophily": "linked nodes have equal labels",
        "correlation": "rank correlation of a node with the mean of its neighbors",
    }
    rows = []
    for name, comparison in fit.items():
        if isinstance(comparison, ChanceComparison):
            rows.append([names[name], *(f"{number:.3f}" for number in comparison)])
    table = markdown_table(["", "labels", "shuffled: mean", "2.5 %", "97.5 %"], rows)
    return "\n".join([f"# {title}", "", text, "", table, "", _EXPLANATIONS[fit["prediction"]]])


_EXPLANATIONS = {
    "help": "Neighbors predict labels better than chance: pre-training on this graph can help this "
    "task. The farther the measure lies from chance, the more.",
    "nothing": "Neighbors predict labels no better than chance: no gain is expected from "
    "pre-training on this graph.",
    "harm": "Neighbors predict labels worse than chance: linked nodes differ. Pre-training on this "
    "graph pulls them together and is expected to harm this task.",
    "too few": f"Fewer than {MIN_EVALUATED_NODES} nodes have a labeled neighbor: too few for a "
    "prediction.",
}


def _prediction(comparison: ChanceComparison, num_evaluated: int) -> str:
    if num_evaluated < MIN_EVALUATED_NODES:
        return "too few"
    if comparison.value > comparison.high:
        return "help"
    return "harm" if comparison.value < comparison.low else "nothing"


def _compared(value: float, shuffled_values: list[float]) -> ChanceComparison:
    low, high = np.percentile(shuffled_values, [2.5, 97.5])
    return ChanceComparison(value, float(np.mean(shuffled_values)), float(low), float(high))


def _correlation(graph: Graph, value_N: NDArray[np.float64]) -> float:
    mean_N = neighbor_mean(graph, value_N)
    has_both_N = ~np.isnan(value_N) & ~np.isnan(mean_N)
    own = value_N[has_both_N]
    others = mean_N[has_both_N]
    if len(own) < 2 or np.ptp(own) == 0 or np.ptp(others) == 0:
        return 0.0  # A constant is correlated with nothing.
    return float(spearmanr(own, others).statistic)


def _generators(seed: int, num: int) -> list[np.random.Generator]:
    return [np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(num)]


def _shuffled(
    group_N: NDArray[np.integer[Any]],
    label_N: NDArray[Any],
    has_label_N: NDArray[np.bool_],
    rng: np.random.Generator,
) -> NDArray[Any]:
    """Return the existing labels in another order within each group."""
    node_L = np.flatnonzero(has_label_N)
    group_L = np.asarray(group_N)[node_L]
    by_group_L = node_L[np.argsort(group_L, kind="stable")]
    random_by_group_L = node_L[np.lexsort((rng.random(len(node_L)), group_L))]
    shuffled_N = label_N.copy()
    shuffled_N[by_group_L] = label_N[random_by_group_L]
    return shuffled_N
