"""Plots of scores and of embeddings, as PNG files."""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from raybio.core.final_report import Score, SplitScores
from raybio.evaluation.curves import CurvePoint
from raybio.evaluation.figures import (
    COLORS,
    GREY,
    LINE_INCHES,
    labeled_scatter,
    line_style,
    new_figure,
    num_lines,
    save_figure,
)

MOST_GROUPS = 16
"""Groups of an embedding map with a color and marker of their own."""

MAX_LABEL = 40
"""Characters of a row's name in a picture."""

_MOST_MARKERS = 12


def plot_embedding_map(position_N2: np.ndarray, group_N: Sequence[str], path: Path) -> Path:
    """Plot embedded rows, colored by group; the rarest groups beyond ``MOST_GROUPS`` share a grey.

    Args:
        position_N2: two coordinates a row, from t-SNE for example.
        group_N: each row's group, such as its species.
        path: the PNG file.
    """
    groups, number_N, count = np.unique(
        np.asarray(group_N), return_inverse=True, return_counts=True
    )
    by_count = np.argsort(-count, kind="stable")
    rank_of_group = np.empty(len(groups), np.int64)
    rank_of_group[by_count] = np.arange(len(groups))
    labels = [str(groups[group]) for group in by_count[:MOST_GROUPS]]
    num_others = len(groups) - len(labels)
    figure = new_figure(8, 7)
    axes = figure.subplots()
    labeled_scatter(
        axes,
        position_N2,
        rank_of_group[number_N],
        labels,
        background_label=f"{num_others} others" if num_others else None,
        size=9,
    )
    axes.set_title("Embedding map of the trained model (t-SNE)")
    axes.legend(
        markerscale=2.5, fontsize=9, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False
    )
    return save_figure(figure, path)


def plot_comparison(
    rows: Mapping[str, SplitScores],
    splits: Mapping[str, str],
    metrics: Mapping[str, str],
    path: Path,
) -> Path:
    """Plot scores of several models with intervals: a row of panels a split, a panel a metric.

    Args:
        rows: label -> scores; the last row is drawn in the accent color.
        splits: split -> its title.
        metrics: metric -> its title.
        path: the PNG file.
    """
    height = 0.9 + (0.5 + 0.28 * len(rows)) * len(splits)
    figure = new_figure(3.1 * len(metrics), height)
    panels = figure.subplots(len(splits), len(metrics), squeeze=False, sharey=True)
    for panel_row, (split, split_title) in zip(panels, splits.items(), strict=True):
        for axes, (metric, metric_title) in zip(panel_row, metrics.items(), strict=True):
            score_by_label = {
                label: scores[split][metric] for label, scores in rows.items() if split in scores
            }
            _draw_scores(axes, score_by_label, list(rows))
            axes.set(title=f"{metric_title}, {split_title}")
            axes.title.set_fontsize(9)
            axes.grid(alpha=0.3)
        panel_row[0].set_yticks(range(len(rows)), [_shortened(label) for label in rows])
        panel_row[0].set_ylim(len(rows) - 0.5, -0.5)
    return save_figure(figure, path)


def _shortened(label: str) -> str:
    """Return the end of a long label, such as a model's path, which would leave no room."""
    return label if len(label) <= MAX_LABEL else f"…{label[1 - MAX_LABEL :]}"


def _draw_scores(axes: Axes, score_by_label: Mapping[str, Score], labels: Sequence[str]) -> None:
    """Draw the scores of one panel; a model without a score leaves its line empty."""
    highest = 0.0
    for line, label in enumerate(labels):
        if label not in score_by_label:
            continue
        score = score_by_label[label]
        value = score["value"]
        low = score.get("low", value)
        high = score.get("high", value)
        is_last = line == len(labels) - 1
        axes.errorbar(
            value,
            line,
            xerr=[[value - low], [high - value]],
            fmt="D" if is_last else "o",
            color=COLORS[5] if is_last else COLORS[0],
            capsize=3,
        )
        if not np.isnan(high):  # NaN: an undefined score
            highest = max(highest, high)
    axes.set_xlim(0, 1.1 * highest or 1)


def plot_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], path: Path, *, title: str = ""
) -> Path:
    """Draw a table as a picture, for the README and for MLflow."""
    figure = new_figure(1.5 + 1.45 * len(header), 0.9 + 0.36 * len(rows))
    axes = figure.subplots()
    axes.axis("off")
    cells = [[_shortened(cell) for cell in row] for row in rows]
    table = axes.table(cellText=cells, colLabels=list(header), loc="center", cellLoc="center")
    table.auto_set_font_size(False)
    table.set_fontsize(9)
    table.auto_set_column_width(list(range(len(header))))
    table.scale(1, 1.4)
    axes.set_title(title)
    return save_figure(figure, path)


def plot_heat_map(
    value_RM: np.ndarray, rows: Sequence[str], columns: Sequence[str], path: Path, title: str
) -> Path:
    """Draw shares as a heat map, written in percent; NaN (no query) stays grey."""
    figure = new_figure(4 + 0.75 * len(columns), 1.6 + 0.3 * len(rows))
    axes = figure.subplots()
    axes.set_facecolor(GREY)
    highest = float(np.nanmax(value_RM, initial=0)) or 1.0
    axes.imshow(np.ma.masked_invalid(value_RM), cmap="viridis", vmin=0, vmax=highest, aspect="auto")
    text_settings: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 7}
    for (row, column), value in np.ndenumerate(value_RM):
        if np.isfinite(value):
            color = "black" if value > 0.6 * highest else "white"
            axes.text(column, row, f"{100 * value:.1f}", color=color, **text_settings)
    axes.set_xticks(range(len(columns)), columns, rotation=30, ha="right", fontsize=8)
    axes.set_yticks(range(len(rows)), [row.replace("_", " ") for row in rows], fontsize=8)
    axes.set_title(title, fontsize=9)
    return save_figure(figure, path)


def plot_curves(
    points: Sequence[CurvePoint],
    path: Path,
    *,
    title: str = "",
    x_label: str = "step",
    y_label: str = "",
    in_percent: bool = False,
) -> Path:
    """Plot scores over steps: a line for each label, shaded by the standard deviation of its runs.

    Args:
        points: in order of label and step.
        path: the PNG file.
        title: above the plot.
        x_label: name of the steps.
        y_label: name of the score.
        in_percent: whether the scores are shares, and shown in percent.
    """
    labels = list(dict.fromkeys(point.label for point in points))
    shown = [textwrap.fill(label, 44) for label in labels]
    figure = new_figure(5, 3.2 + LINE_INCHES * num_lines(shown))
    axes = figure.subplots()
    scale = 100 if in_percent else 1
    for number, label in enumerate(labels):
        own_points = [point for point in points if point.label == label]
        steps = [point.step for point in own_points]
        mean = scale * np.array([point.mean for point in own_points])
        deviation = scale * np.array([point.deviation for point in own_points])
        style = line_style(number)
        every = max(1, len(steps) // _MOST_MARKERS)
        axes.plot(steps, mean, label=shown[number], linewidth=1.4, markevery=every, **style)
        axes.fill_between(
            steps, mean - deviation, mean + deviation, color=style["color"], alpha=0.2, linewidth=0
        )
    axes.set(xlabel=x_label, ylabel=f"{y_label} (%)" if in_percent else y_label)
    axes.set_title(title, fontsize=10)
    axes.grid(alpha=0.3)
    figure.legend(frameon=False, fontsize=9, loc="outside lower center", handlelength=4)
    return save_figure(figure, path)
