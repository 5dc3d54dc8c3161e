"""Plots of a run, from its log and its final report, as PNG files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from raybio.core.final_report import FinalReport
from raybio.evaluation.figures import COLORS, MARKERS, new_figure, save_figure
from raybio.evaluation.plots import plot_embedding_map, plot_heat_map

Reports = Sequence[Mapping[str, Any]]
"""Lines of ``metrics.jsonl``: each has a ``step`` and a mapping ``metrics``."""

MOST_PANEL_COLUMNS = 3


def plot_run(reports: Reports, folder: Path) -> list[Path]:
    """Plot losses and evaluation metrics over steps; return the files.

    A metric of a part (``val/acc_at_10/may_treat``) is a row of a heat map with a column a step.
    """
    names = _metric_names(reports)
    losses = [name for name in names if "loss" in name and "/" not in name]
    metrics = [name for name in names if name.count("/") == 1]
    files = []
    if losses:
        files.append(_plot_losses(reports, losses, folder / "losses.png"))
    if metrics:
        files.append(_plot_metrics(reports, metrics, folder / "evaluation.png"))
    for metric, curve_by_part in parts_over_steps(reports).items():
        path = folder / f"{metric.replace('/', '-')}.png"
        files.append(_plot_parts(metric, curve_by_part, path))
    return files


def plot_final(report: FinalReport | None, folder: Path) -> list[Path]:
    """Plot the embedding map of a final evaluation, if there is one; return the files."""
    if report is None or report.embedding_map is None:
        return []
    points = report.embedding_map
    return [plot_embedding_map(points.position_S2, points.group_S, folder / "embedding_map.png")]


def parts_over_steps(reports: Reports) -> dict[str, dict[str, dict[int, float]]]:
    """Return metric -> part -> step -> value for the metrics that are named ``val/metric/part``."""
    value_by_metric: dict[str, dict[str, dict[int, float]]] = {}
    for report in reports:
        for name, value in report["metrics"].items():
            metric, _, part = name.rpartition("/")
            if "/" in metric:
                value_by_part = value_by_metric.setdefault(metric, {})
                value_by_part.setdefault(part, {})[report["step"]] = value
    return value_by_metric


def _plot_losses(reports: Reports, names: Sequence[str], path: Path) -> Path:
    figure = new_figure(8, 4.5)
    axes = figure.subplots()
    for number, name in enumerate(names):
        steps, values = _series(reports, name)
        color = COLORS[number % len(COLORS)]
        style = ("-", "--")[number // len(COLORS) % 2]
        axes.plot(steps, values, color=color, linewidth=1.4, linestyle=style, label=name)
    axes.set(xlabel="step", ylabel="loss", title="Loss")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, loc="upper right")
    return save_figure(figure, path)


def _plot_metrics(reports: Reports, names: Sequence[str], path: Path) -> Path:
    """Draw a panel for each measure (the part after the '/') and a line for each split."""
    names_by_measure: dict[str, list[str]] = {}
    for name in names:
        measure = name.rsplit("/", 1)[-1].replace("_", " ")
        names_by_measure.setdefault(measure, []).append(name)
    num_columns = min(MOST_PANEL_COLUMNS, len(names_by_measure))
    num_rows = -(-len(names_by_measure) // num_columns)
    figure = new_figure(4.6 * num_columns, 3.2 * num_rows)
    panels = np.ravel(figure.subplots(num_rows, num_columns))
    for axes, (measure, members) in zip(panels, names_by_measure.items(), strict=False):
        for number, name in enumerate(members):
            steps, values = _series(reports, name)
            color = COLORS[number % len(COLORS)]
            marker = MARKERS[number % len(MARKERS)]
            axes.plot(steps, values, marker=marker, ms=4, color=color, label=name)
        axes.set(title=measure, xlabel="step")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7, frameon=False, loc="best")
    for axes in panels[len(names_by_measure) :]:
        axes.axis("off")
    return save_figure(figure, path)


def _plot_parts(metric: str, curve_by_part: Mapping[str, Mapping[int, float]], path: Path) -> Path:
    steps = sorted({step for curve in curve_by_part.values() for step in curve})
    value_RM = np.full((len(curve_by_part), len(steps)), np.nan)
    for row, curve in enumerate(curve_by_part.values()):
        for step, value in curve.items():
            value_RM[row, steps.index(step)] = value
    return plot_heat_map(
        value_RM, list(curve_by_part), [f"{step:,}" for step in steps], path, metric
    )


def _metric_names(reports: Reports) -> list[str]:
    return list(dict.fromkeys(name for report in reports for name in report["metrics"]))


def _series(reports: Reports, name: str) -> tuple[list[int], list[float]]:
    reporting = [report for report in reports if name in report["metrics"]]
    steps = [report["step"] for report in reporting]
    values = [report["metrics"][name] for report in reporting]
    return steps, values
