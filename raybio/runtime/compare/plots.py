"""Pictures of several runs, distinguishable by markers and line styles as well as colors.

They are five inches wide, so that their text can be read on a phone.
"""

import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from raybio.evaluation.figures import LINE_INCHES, line_style, new_figure, num_lines, save_figure

_LONGEST_LINEAR_SPAN = 20
_LETTER_SHARE = 0.021
"""Width of a digit below an axis, as a share of the axis."""


def plot_scores(
    scores_by_label: Mapping[str, Mapping[str, Mapping[str, float]]],
    measures: Mapping[str, str],
    path: Path,
    *,
    title: str,
) -> Path:
    """Plot final scores of a split with intervals: a panel for each measure, a line for each run.

    Args:
        scores_by_label: label -> measure -> {"value", "low", "high"}; chance has only a value.
        measures: measure -> its displayed name.
        path: the PNG file.
        title: above the picture.
    """
    labels = list(scores_by_label)
    shown = [textwrap.fill(label, 22) for label in labels]
    height = 0.6 + (0.7 + LINE_INCHES * num_lines(shown)) * len(measures)
    figure = new_figure(5, height)
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
                **line_style(number) | {"linestyle": "none"},
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
        score_by_line: label -> value of the setting -> measure -> {"value", "low", "high"}, and
            for repetitions "num_runs" and, with an interval, "deviation".
        measures: measure -> its displayed name.
        path: the PNG file.
        title: above the picture.
        setting: name of the axis.
    """
    shown = [textwrap.fill(line or "other runs", 60) for line in score_by_line]
    values = sorted({value for scores in score_by_line.values() for value in scores})
    is_log = values[0] > 0 and values[-1] > _LONGEST_LINEAR_SPAN * values[0]
    height = 1 + 1.7 * len(measures) + LINE_INCHES * num_lines(shown)
    figure = new_figure(5, height)
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
            style = line_style(number) | {"linewidth": 1.4, "elinewidth": 0.8, "capsize": 3}
            axes.errorbar(list(scores_by_value), means, yerr=spread, label=line, **style)
        axes.set_ylabel(name, fontsize=9)
        axes.grid(alpha=0.3)
    every = [
        score
        for scores in score_by_line.values()
        for score_by_measure in scores.values()
        for score in score_by_measure.values()
    ]
    are_deviations = {"num_runs" in score and "deviation" not in score for score in every}
    # Means of runs without unit scores have no interval.
    spreads = {False: "95 % bootstrap intervals", True: "mean ± standard deviation over runs"}
    shown_spreads = "; ".join(spreads[is_deviation] for is_deviation in sorted(are_deviations))
    figure.suptitle(f"{title}\n{shown_spreads}", fontsize=10)
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
    positions = [math.log(value) if is_log else value for value in values]
    num_letters = 1 + max(len(f"{value:g}") for value in values)
    width = _LETTER_SHARE * num_letters * (positions[-1] - positions[0])
    kept = [0]
    for number in range(1, len(values)):
        if positions[number] - positions[kept[-1]] >= width:
            kept.append(number)
    return [values[number] for number in kept]
