"""Table of the synthetic experiments (McDermott et al., Table 1) with the published figures."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from raybio.core.markdown import markdown_table
from raybio.core.published import published
from raybio.ops.significance import holm, mean_over_seeds, t_mean

PUBLISHED: Mapping[str, Mapping[str, float]] = published("raybio.methods.sppt")["table_1"]

MIN_DRAWS = 3
"""With fewer draws there is no test."""


class GraphScores(NamedTuple):
    """Results on one graph, one number a draw.

    Attributes:
        kind: the graph.
        noise: probability of a random link.
        homophily: fraction of nodes whose class is the most frequent one among their neighbors.
        alone: AUROC of the language model alone.
        with_graph: AUROC of SPPT.
    """

    kind: str
    noise: float
    homophily: list[float]
    alone: list[float]
    with_graph: list[float]


def graph_table(scores: Sequence[GraphScores], weight: float) -> str:
    """Return the Markdown table of all graphs, with a note on its numbers.

    Cells hold mean ± deviation over draws, as in the paper, and from three draws on a 95 %
    interval. The gain is the mean of the paired differences with its 95 % interval, and from three
    draws on a p-value, corrected for all graphs (Holm). Each draw has nodes of its own, so that
    draws are the seeds and their nodes the units: the spread over draws has both.

    Args:
        scores: one element a graph and noise rate, with equal numbers of draws.
        weight: the λ of the graph loss.
    """
    has_noise = any(row.noise for row in scores)
    noise_column = ["noise"] if has_noise else []
    head = [
        "graph",
        *noise_column,
        "homophily",
        "AUROC, language model",
        f"AUROC, λ = {weight:g}",
        "gain",
        "published: language model / SPPT",
    ]
    rows = []
    corrected = iter(_corrected_p(scores))
    for row in scores:
        gain = [after - before for before, after in zip(row.alone, row.with_graph, strict=True)]
        cells = [row.kind]
        if has_noise:
            cells.append(f"{row.noise:g}")
        means = [mean_over_seeds(values) for values in (row.homophily, row.alone, row.with_graph)]
        cells += [mean.text(digits=3, scale=1) for mean in means]
        if len(gain) >= MIN_DRAWS:
            for number, values in ((-2, row.alone), (-1, row.with_graph)):
                _, low, high = t_mean(values).difference
                cells[number] += f" [{low:.3f}, {high:.3f}]"
        p = next(corrected, None)
        cells.append(_mean_with_interval(gain) + ("" if p is None else f", p = {p:.2g}"))
        in_paper = None if row.noise else PUBLISHED.get(row.kind)
        if in_paper is None:
            cells.append("-")
        else:
            cells.append(f"{in_paper['language_model']:.2f} / {in_paper['sppt']:.2f}")
        rows.append(cells)
    return f"{markdown_table(head, rows)}\n\n{_note(len(scores[0].alone))}"


def _corrected_p(scores: Sequence[GraphScores]) -> list[float]:
    """Return the corrected p of the gain on each graph; nothing with fewer than three draws."""
    if any(len(row.alone) < MIN_DRAWS for row in scores):
        return []
    p = [t_mean(np.subtract(row.with_graph, row.alone).tolist()).p for row in scores]
    return list(holm(p))


def _note(num_draws: int) -> str:
    if num_draws == 1:
        return "one draw of graph and sentences, without an estimate of spread; use --repeats 3"
    text = (
        f"mean ± deviation over {num_draws} draws of graph and sentences; gain: mean and 95 % "
        "interval (Student's t)"
    )
    if num_draws < MIN_DRAWS:
        return f"{text}; too few draws for a test"
    return f"{text}, with p corrected for all graphs (Holm); all intervals are over draws"


def _mean_with_interval(values: Sequence[float]) -> str:
    mean = float(np.mean(values))
    if len(values) == 1:
        return f"{mean:.3f}"
    return t_mean(values).difference.text(digits=3, scale=1)
