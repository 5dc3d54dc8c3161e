"""Table of the synthetic experiments (McDermott et al., Table 1) with the published figures."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from raybio.core.markdown import markdown_table
from raybio.core.published import published
from raybio.core.table_layout import UNFINISHED, unfinished_remarks
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
        letters: AUROC of character 2- to 4-grams, without training.
        initial: AUROC of SPPT's encoder before training, of the draws where it was evaluated.
        alone: AUROC of the language model alone.
        with_graph: AUROC of SPPT.
        unfinished: why a training of them is not finished; None: all are.
    """

    kind: str
    noise: float
    homophily: list[float]
    letters: list[float]
    initial: list[float]
    alone: list[float]
    with_graph: list[float]
    unfinished: str | None = None


def graph_table(scores: Sequence[GraphScores], weight: float) -> str:
    """Return the Markdown table of all graphs, with a note on its numbers.

    Cells hold mean ± deviation over draws, as in the paper, and from three draws on a 95 %
    interval. The gain over the language model, and the difference from the letters, are means of
    the paired differences with their 95 % intervals, and from three draws on with p-values that are
    corrected for all graphs and both (Holm). Each draw has its own nodes, so the spread over draws
    covers both seeds and units.

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
        "AUROC, letters",
        "AUROC, untrained",
        "AUROC, language model",
        f"AUROC, λ = {weight:g}",
        "gain",
        "λ minus letters",
        "published: language model / SPPT",
    ]
    rows = []
    corrected = iter(_corrected_p(scores))
    for row in scores:
        cells = [row.kind + (UNFINISHED if row.unfinished else "")]
        if has_noise:
            cells.append(f"{row.noise:g}")
        cells.append(mean_over_seeds(row.homophily).text(digits=3, scale=1))
        for values in (row.letters, row.initial, row.alone, row.with_graph):
            cell = mean_over_seeds(values).text(digits=3, scale=1) if values else "-"
            if len(values) >= MIN_DRAWS:
                _, low, high = t_mean(values).difference
                cell += f" [{low:.3f}, {high:.3f}]"
            cells.append(cell)
        for difference in _differences(row):
            p = next(corrected, None)
            cells.append(_mean_with_interval(difference) + ("" if p is None else f", p = {p:.2g}"))
        in_paper = None if row.noise else PUBLISHED.get(row.kind)
        if in_paper is None:
            cells.append("-")
        else:
            cells.append(f"{in_paper['language_model']:.2f} / {in_paper['sppt']:.2f}")
        rows.append(cells)
    reason_by_row = {
        f"{row.kind}, noise {row.noise:g}" if has_noise else row.kind: row.unfinished
        for row in scores
        if row.unfinished
    }
    notes = [_note(len(scores[0].alone)), *unfinished_remarks(reason_by_row)]
    return "\n\n".join([markdown_table(head, rows), *notes])


def _corrected_p(scores: Sequence[GraphScores]) -> list[float]:
    """Return the corrected p of each difference; nothing with fewer than three draws."""
    if any(len(row.alone) < MIN_DRAWS for row in scores):
        return []
    return list(holm([t_mean(values).p for row in scores for values in _differences(row)]))


def _differences(row: GraphScores) -> list[list[float]]:
    """Return SPPT minus the language model, and minus the letters, of each draw."""
    return [np.subtract(row.with_graph, other).tolist() for other in (row.alone, row.letters)]


def _note(num_draws: int) -> str:
    if num_draws == 1:
        return "one draw of graph and sentences, without an estimate of spread; use --repeats 3"
    text = (
        f"mean ± deviation over {num_draws} draws of graph and sentences; gain over the language "
        "model, and difference from character n-grams: mean and 95 % interval (Student's t)"
    )
    if num_draws < MIN_DRAWS:
        return f"{text}; too few draws for a test"
    return f"{text}, with p corrected for all of them (Holm); all intervals are over draws"


def _mean_with_interval(values: Sequence[float]) -> str:
    mean = float(np.mean(values))
    if len(values) == 1:
        return f"{mean:.3f}"
    return t_mean(values).difference.text(digits=3, scale=1)
