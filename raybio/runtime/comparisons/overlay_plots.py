"""Pictures of several runs in one frame, to be told apart by markers and strokes as well as by colours.

They are five inches wide, so that their text can be read on a phone.
"""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from raybio.runtime.plots import COLOURS, MARKERS, save

Row = tuple[str, int, int, float, float]
"""Label, step, runs, mean, deviation."""

_STROKES = ("-", "--", ":", "-.")
_MOST_MARKERS = 12
_LINE_INCHES = 0.2


def plot_overlaid(rows: Sequence[Row], path: Path, *, title: str) -> Path:
    """A metric over steps, a line a label: the mean of its runs, shaded by their deviation where there are several."""
    labels = list(dict.fromkeys(row[0] for row in rows))
    shown = [textwrap.fill(label, 44) for label in labels]
    figure = Figure(figsize=(5, 3.2 + _LINE_INCHES * _num_lines(shown)), dpi=160, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for number, label in enumerate(labels):
        _, steps, nums, means, deviations = zip(*(row for row in rows if row[0] == label), strict=True)
        style = _style(number) | {"linewidth": 1.4, "markevery": max(1, len(steps) // _MOST_MARKERS)}
        axes.plot(steps, means, label=shown[number], **style)
        if max(nums) > 1:
            low, high = (
                [mean + sign * spread for mean, spread in zip(means, deviations, strict=True)] for sign in (-1, 1)
            )
            axes.fill_between(steps, low, high, color=style["color"], alpha=0.2, linewidth=0)
    axes.set(xlabel="step")
    axes.set_title(title, fontsize=10)
    axes.grid(alpha=0.3)
    figure.legend(frameon=False, fontsize=9, loc="outside lower center", handlelength=4)
    return save(figure, path)


def plot_scores(
    scores_by_label: Mapping[str, Mapping[str, Mapping[str, float]]],
    measures: Mapping[str, str],
    path: Path,
    *,
    title: str,
) -> Path:
    """Final scores of a split with their intervals: a panel a measure, a line a run, one below the other.

    Args:
        scores_by_label: label -> measure -> {"value", "low", "high"}.
        measures: measure -> what it is called.
        path: the PNG file.
        title: above the picture.
    """
    labels = list(scores_by_label)
    shown = [textwrap.fill(label, 22) for label in labels]
    height = 0.6 + (0.7 + _LINE_INCHES * _num_lines(shown)) * len(measures)
    figure = Figure(figsize=(5, height), dpi=160, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=10)
    for axes, (measure, name) in zip(
        figure.subplots(len(measures), squeeze=False)[:, 0], measures.items(), strict=True
    ):
        for number, label in enumerate(labels):
            score = scores_by_label[label][measure]
            spread = [[score["value"] - score["low"]], [score["high"] - score["value"]]]
            axes.errorbar(score["value"], number, xerr=spread, capsize=3, **_style(number) | {"linestyle": "none"})
        axes.set_title(name, fontsize=9)
        axes.set_yticks(range(len(labels)), shown, fontsize=9)
        axes.set_ylim(len(labels) - 0.5, -0.5)
        axes.grid(alpha=0.3)
    return save(figure, path)


def _num_lines(texts: Sequence[str]) -> int:
    return sum(text.count("\n") + 1 for text in texts)


def _style(number: int) -> dict[str, Any]:
    """Marker and stroke together repeat after 32."""
    place = number % len(MARKERS)
    stroke = _STROKES[(number + number // len(MARKERS)) % len(_STROKES)]
    return {"color": COLOURS[place], "marker": MARKERS[place], "ms": 5, "linestyle": stroke}
