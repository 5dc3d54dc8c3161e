"""Pictures of several runs, distinguishable by markers and line styles as well as colors.

They are five inches wide, so that their text can be read on a phone.
"""

import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from raybio.evaluation.figures import COLORS, MARKERS, save_figure
from raybio.runtime.compare.curves import CurvePoint

_STROKES = ("-", "--", ":", "-.")
_MOST_MARKERS = 12
_LINE_INCHES = 0.2
_LONGEST_LINEAR_SPAN = 20
_LETTER_SHARE = 0.021
"""Width of a digit below an axis, as a share of the axis."""


def plot_overlaid(rows: Sequence[CurvePoint], path: Path, *, title: str) -> Path:
    """Plot a metric over steps: a line for each label, shaded by the deviation of its runs."""
    labels = list(dict.fromkeys(row[0] for row in rows))
    shown = [textwrap.fill(label, 44) for label in labels]
    figure = Figure(
        figsize=(5, 3.2 + _LINE_INCHES * _num_lines(shown)), dpi=160, layout="constrained"
    )
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for number, label in enumerate(labels):
        _, steps, nums, means, deviations = zip(
            *(row for row in rows if row[0] == label), strict=True
        )
        style = _style(number) | {
            "linewidth": 1.4,
            "markevery": max(1, len(steps) // _MOST_MARKERS),
        }
        axes.plot(steps, means, label=shown[number], **style)
        if max(nums) > 1:
            low, high = (
                [mean + sign * spread for mean, spread in zip(means, deviations, strict=True)]
                for sign in (-1, 1)
            )
            axes.fill_between(steps, low, high, color=style["color"], alpha=0.2, linewidth=0)
    axes.set(xlabel="step")
    axes.set_title(title, fontsize=10)
    axes.grid(alpha=0.3)
    figure.legend(frameon=False, fontsize=9, loc="outside lower center", handlelength=4)
    return save_figure(figure, path)


def plot_scores(
    scores_by_label: Mapping[str, Mapping[str, Mapping[str, float]]],
    measures: Mapping[str, str],
    path: Path,
    *,
    title: str,
) -> Path:
    """Plot final scores of a split with intervals: a panel for each measure, a line for each run.

    Args:
        scores_by_label: label -> measure -> {"value", "low", "high"}; chance has a value alone.
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
            low, high = (score.get(bound, score["value"]) for bound in ("low", "high"))
            spread = [[score["value"] - low], [high - score["value"]]]
            axes.errorbar(
                score["value"],
                number,
                xerr=spread,
                capsize=3,
                **_style(number) | {"linestyle": "none"},
            )
        axes.set_title(name, fontsize=9)
        axes.set_yticks(range(len(labels)), shown, fontsize=9)
        axes.set_ylim(len(labels) - 0.5, -0.5)
        axes.grid(alpha=0.3)
    return save_figure(figure, path)


def plot_scores_by_setting(
    score_by_line: Mapping[str, Mapping[float, Mapping[str, Mapping[str, float]]]],
    measures: Mapping[str, str],
    path: Path,
    *,
    title: str,
    setting: str,
) -> Path:
    """Plot final scores of a split with their spread against a setting, a panel for each measure.

    The setting has a logarithmic axis where its values are positive and span more than a factor of
    20.

    Args:
        score_by_line: label -> value of the setting -> measure -> {"value", "low", "high"}, of
            repetitions "num_runs".
        measures: measure -> what it is called.
        path: the PNG file.
        title: above the picture.
        setting: what the axis is called.
    """
    shown = [textwrap.fill(line or "other runs", 60) for line in score_by_line]
    values = sorted({value for scores in score_by_line.values() for value in scores})
    is_log = values[0] > 0 and values[-1] > _LONGEST_LINEAR_SPAN * values[0]
    height = 1 + 1.7 * len(measures) + _LINE_INCHES * _num_lines(shown)
    figure = Figure(figsize=(5, height), dpi=160, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(measures), squeeze=False, sharex=True)[:, 0]
    for axes, (measure, name) in zip(panels, measures.items(), strict=True):
        for number, (line, scores_by_value) in enumerate(
            zip(shown, score_by_line.values(), strict=True)
        ):
            scores = [scores[measure] for scores in scores_by_value.values()]
            means = [score["value"] for score in scores]
            spread = [
                [score["value"] - score["low"] for score in scores],
                [s["high"] - s["value"] for s in scores],
            ]
            style = _style(number) | {"linewidth": 1.4, "elinewidth": 0.8, "capsize": 3}
            axes.errorbar(list(scores_by_value), means, yerr=spread, label=line, **style)
        axes.set_ylabel(name, fontsize=9)
        axes.grid(alpha=0.3)
    every = [
        score
        for scores in score_by_line.values()
        for one in scores.values()
        for score in one.values()
    ]
    repeated = {"num_runs" in score for score in every}
    spreads = {False: "95 % bootstrap intervals", True: "mean ± standard deviation over runs"}
    figure.suptitle(f"{title}\n{'; '.join(spreads[one] for one in sorted(repeated))}", fontsize=10)
    panels[-1].set(xlabel=setting, xscale="log" if is_log else "linear")
    named = _apart(values, is_log)
    panels[-1].set_xticks(named, [f"{value:g}" for value in named])
    panels[-1].minorticks_off()
    if len(shown) > 1:
        handles = panels[0].get_legend_handles_labels()
        figure.legend(
            *handles, frameon=False, fontsize=9, loc="outside lower center", handlelength=4
        )
    return save_figure(figure, path)


def _apart(values: Sequence[float], is_log: bool) -> list[float]:
    """Return the ascending values whose names do not overlap below an axis."""
    place = [math.log(value) if is_log else value for value in values]
    width = (
        _LETTER_SHARE * (1 + max(len(f"{value:g}") for value in values)) * (place[-1] - place[0])
    )
    kept = [0]
    for number in range(1, len(values)):
        if place[number] - place[kept[-1]] >= width:
            kept.append(number)
    return [values[number] for number in kept]


def _num_lines(texts: Sequence[str]) -> int:
    return sum(text.count("\n") + 1 for text in texts)


def _style(number: int) -> dict[str, Any]:
    """Marker and stroke together repeat after 32."""
    place = number % len(MARKERS)
    stroke = _STROKES[(number + number // len(MARKERS)) % len(_STROKES)]
    return {"color": COLORS[place], "marker": MARKERS[place], "ms": 5, "linestyle": stroke}
