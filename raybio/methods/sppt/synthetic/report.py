"""The table of SPPT's synthetic experiments (the paper's Table 1), beside the published figures."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from raybio.core.markdown import markdown_table

PUBLISHED = {
    "cliques": (0.62, 0.94),
    "plane": (0.51, 0.94),
    "moebius": (0.55, 0.89),
    "sphere": (0.51, 0.86),
    "torus": (0.54, 0.77),
    "homophily": (0.94, 0.99),
    "motif": (0.73, 0.88),
    "structural": (0.90, 0.79),
}
"""AUROC of the language model alone and of SPPT."""


class GraphScores(NamedTuple):
    """What came of a graph, a number a draw.

    Attributes:
        kind: the graph.
        noise: chance of a pair of nodes to be linked all the same.
        homophily: how often the commonest class among a node's neighbours is its own.
        alone: AUROC of the language model alone.
        with_graph: AUROC of SPPT.
    """

    kind: str
    noise: float
    homophily: list[float]
    alone: list[float]
    with_graph: list[float]


def graph_table(scores: Sequence[GraphScores], weight: float) -> str:
    """Mean ± deviation over draws, and the mean of the differences, which are in pairs, with its 95 % interval."""
    has_noise = any(one.noise for one in scores)
    head = [
        "graph",
        *(["noise"] if has_noise else []),
        "homophily",
        "AUROC, language model",
        f"AUROC, λ = {weight:g}",
    ]
    rows = []
    for one in scores:
        gain = [after - before for before, after in zip(one.alone, one.with_graph, strict=True)]
        published = PUBLISHED.get(one.kind) if not one.noise else None
        rows.append(
            [
                one.kind,
                *([f"{one.noise:g}"] if has_noise else []),
                *(_over_draws(values) for values in (one.homophily, one.alone, one.with_graph)),
                _mean_with_interval(gain),
                "{:.2f} / {:.2f}".format(*published) if published else "-",
            ]
        )
    draws = len(scores[0].alone)
    note = "one draw of graph and sentences, which tells nothing about others: --repeats 3"
    if draws > 1:
        note = f"mean ± deviation over {draws} draws of graph and sentences; gain: mean and 95 % interval (Student's t)"
    table = markdown_table([*head, "gain", "published: language model / SPPT"], rows)
    return f"{table}\n\n{note}"


def _mean_with_interval(values: Sequence[float]) -> str:
    mean = float(np.mean(values))
    if len(values) == 1:
        return f"{mean:.3f}"
    half = float(stats.t.ppf(0.975, len(values) - 1) * stats.sem(values))
    return f"{mean:.3f} [{mean - half:.3f}, {mean + half:.3f}]"


def _over_draws(values: Sequence[float]) -> str:
    if len(values) == 1:
        return f"{values[0]:.3f}"
    return f"{np.mean(values):.3f} ± {np.std(values, ddof=1):.3f}"
