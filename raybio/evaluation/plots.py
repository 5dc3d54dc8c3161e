"""Plots of a run, as PNG files: readable in print, and with colours that the colour-blind can tell apart."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from raybio.core.final_report import FinalReport

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000", "#F0E442")
"""Okabe and Ito's palette."""


MARKERS = "o^sDvPX*"


_MOST_GROUPS = 16


def plot_run(reports: Sequence[Mapping[str, Any]], folder: Path) -> list[Path]:
    """Loss curves and evaluation results over steps, from the lines of ``metrics.jsonl``; returns the files.

    An evaluation metric of a part (``val/acc_at_10/may_treat``) is a row of a heat map, its columns are steps.
    """
    losses = [name for name in _names(reports) if "loss" in name and "/" not in name]
    evaluations = [name for name in _names(reports) if name.count("/") == 1]
    files = []
    if losses:
        files.append(_curves(reports, losses, "loss", folder / "losses.png"))
    if evaluations:
        files.append(_panels(reports, evaluations, folder / "evaluation.png"))
    for metric, curve_by_part in parts_over_steps(reports).items():
        steps = sorted({step for curve in curve_by_part.values() for step in curve})
        value_RM = np.array(
            [[curve.get(step, np.nan) for step in steps] for curve in curve_by_part.values()]
        )
        path = folder / f"{metric.replace('/', '-')}.png"
        files.append(
            plot_heat_map(
                value_RM, list(curve_by_part), [f"{step:,}" for step in steps], path, metric
            )
        )
    return files


def parts_over_steps(
    reports: Sequence[Mapping[str, Any]],
) -> dict[str, dict[str, dict[int, float]]]:
    """Metric -> part -> step -> value, of metrics that are named ``val/metric/part``."""
    found: dict[str, dict[str, dict[int, float]]] = {}
    for report in reports:
        for name, value in report["metrics"].items():
            metric, _, part = name.rpartition("/")
            if "/" in metric:
                found.setdefault(metric, {}).setdefault(part, {})[report["step"]] = value
    return found


def plot_final(report: FinalReport | None, folder: Path) -> list[Path]:
    """Plot the map of the embedding space of a final evaluation, if there is one; return the files."""
    if report is None or report.embedding_map is None:
        return []
    points = report.embedding_map
    return [plot_embedding_map(points.position_S2, points.group_S, folder / "embedding_map.png")]


def plot_embedding_map(
    coordinate_N2: np.ndarray, group_N: Sequence[str], path: Path, *, title: str = "Embedding map"
) -> Path:
    """A scatter plot of embedded rows, coloured by group; the rarest groups beyond 16 share a grey.

    Args:
        coordinate_N2: two coordinates a row, from t-SNE for example.
        group_N: each row's group, such as its species.
        path: the PNG file.
        title: above the plot.
    """
    groups, count = np.unique(np.asarray(group_N), return_counts=True)
    shown = groups[np.argsort(-count, kind="stable")][:_MOST_GROUPS]
    figure, axes = _figure(8, 7)
    rest = ~np.isin(group_N, shown)
    if rest.any():
        axes.scatter(
            *coordinate_N2[rest].T, s=6, c="#BBBBBB", label=f"{len(groups) - len(shown)} others"
        )
    for number, group in enumerate(shown):
        chosen = np.asarray(group_N) == group
        colour, marker = (
            COLOURS[number % len(COLOURS)],
            MARKERS[number // len(COLOURS) % len(MARKERS)],
        )
        axes.scatter(
            *coordinate_N2[chosen].T, s=9, c=colour, marker=marker, label=str(group), linewidths=0
        )
    axes.set(title=title, xticks=[], yticks=[])
    axes.legend(
        markerscale=2.5, fontsize=9, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False
    )
    return save(figure, path)


def plot_comparison(
    rows: Mapping[str, Mapping[str, Mapping[str, Mapping[str, float]]]],
    splits: Mapping[str, str],
    metrics: Mapping[str, str],
    path: Path,
) -> Path:
    """Scores of several models with their intervals: a row of panels a split, a panel a metric.

    Args:
        rows: label -> split -> metric -> {"value", "low", "high"}; the last row is drawn in the accent colour.
        splits: split -> what it is called.
        metrics: metric -> what it is called.
        path: the PNG file.
    """
    figure = Figure(
        figsize=(3.1 * len(metrics), 0.9 + (0.5 + 0.28 * len(rows)) * len(splits)),
        dpi=130,
        layout="constrained",
    )
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(splits), len(metrics), squeeze=False, sharey=True)
    labels = list(rows)
    for panel_row, (split, split_name) in zip(panels, splits.items(), strict=True):
        for axes, (metric, metric_name) in zip(panel_row, metrics.items(), strict=True):
            for place, label in enumerate(labels):
                if split not in rows[label]:
                    continue
                score = rows[label][split][metric]
                low, high = (score.get(bound, score["value"]) for bound in ("low", "high"))
                is_last = place == len(labels) - 1
                axes.errorbar(
                    score["value"],
                    place,
                    xerr=[[score["value"] - low], [high - score["value"]]],
                    fmt="D" if is_last else "o",
                    color=COLOURS[5] if is_last else COLOURS[0],
                    capsize=3,
                )
            shown = [scores[split][metric] for scores in rows.values() if split in scores]
            highs = [score.get("high", score["value"]) for score in shown]
            highest = max(
                (high for high in highs if not np.isnan(high)), default=0.0
            )  # NaN: an undefined score
            axes.set(title=f"{metric_name}, {split_name}", xlim=(0, 1.1 * highest or 1))
            axes.title.set_fontsize(9)
            axes.grid(alpha=0.3)
        panel_row[0].set_yticks(range(len(labels)), labels)
        panel_row[0].set_ylim(len(labels) - 0.5, -0.5)
    return save(figure, path)


def plot_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], path: Path, *, title: str = ""
) -> Path:
    """A table as a picture, for the README and for MLflow."""
    figure, axes = _figure(1.5 + 1.45 * len(header), 0.9 + 0.36 * len(rows))
    axes.axis("off")
    table = axes.table(
        cellText=[list(row) for row in rows], colLabels=list(header), loc="center", cellLoc="center"
    )
    table.auto_set_font_size(False)
    table.set_fontsize(9)
    table.auto_set_column_width(list(range(len(header))))
    table.scale(1, 1.4)
    axes.set_title(title)
    return save(figure, path)


def plot_heat_map(
    value_RM: np.ndarray, rows: Sequence[str], columns: Sequence[str], path: Path, title: str
) -> Path:
    """Shares as a heat map, written in percent; NaN (nobody asked) stays grey. Figures 5, 7 and 10."""
    figure = Figure(
        figsize=(4 + 0.75 * len(columns), 1.6 + 0.3 * len(rows)), dpi=130, layout="constrained"
    )
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.set_facecolor("#BBBBBB")
    highest = float(np.nanmax(value_RM, initial=0)) or 1.0
    axes.imshow(np.ma.masked_invalid(value_RM), cmap="viridis", vmin=0, vmax=highest, aspect="auto")
    for (row, column), value in np.ndenumerate(value_RM):
        if np.isfinite(value):
            colour = "black" if value > 0.6 * highest else "white"
            axes.text(
                column,
                row,
                f"{100 * value:.1f}",
                ha="center",
                va="center",
                color=colour,
                fontsize=7,
            )
    axes.set_xticks(range(len(columns)), columns, rotation=30, ha="right", fontsize=8)
    axes.set_yticks(range(len(rows)), [row.replace("_", " ") for row in rows], fontsize=8)
    axes.set_title(title, fontsize=9)
    return save(figure, path)


def _curves(
    reports: Sequence[Mapping[str, Any]], names: Sequence[str], label: str, path: Path
) -> Path:
    figure, axes = _figure(8, 4.5)
    for number, name in enumerate(names):
        step, value = _series(reports, name)
        colour, style = COLOURS[number % len(COLOURS)], ("-", "--")[number // len(COLOURS) % 2]
        axes.plot(step, value, color=colour, linewidth=1.4, linestyle=style, label=name)
    axes.set(xlabel="step", ylabel=label, title=label.capitalize())
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, loc="upper right")
    return save(figure, path)


def _panels(reports: Sequence[Mapping[str, Any]], names: Sequence[str], path: Path) -> Path:
    """One panel a measure (the part after the '/'), one line a question."""
    by_measure: dict[str, list[str]] = {}
    for name in names:
        by_measure.setdefault(_measure(name), []).append(name)
    columns = min(3, len(by_measure))
    rows = -(-len(by_measure) // columns)
    figure = Figure(figsize=(4.6 * columns, 3.2 * rows), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    for axes, (measure, members) in zip(
        np.ravel(figure.subplots(rows, columns)), by_measure.items(), strict=False
    ):
        for number, name in enumerate(members):
            step, value = _series(reports, name)
            marker = MARKERS[number % len(MARKERS)]
            axes.plot(
                step, value, marker=marker, ms=4, color=COLOURS[number % len(COLOURS)], label=name
            )
        axes.set(title=measure, xlabel="step")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7, frameon=False, loc="lower right")
    for axes in figure.axes[len(by_measure) :]:
        axes.axis("off")
    return save(figure, path)


def _measure(name: str) -> str:
    return name.rsplit("/", 1)[-1].replace("_", " ")


def _names(reports: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for report in reports for name in report["metrics"]))


def _series(reports: Sequence[Mapping[str, Any]], name: str) -> tuple[list[int], list[float]]:
    pairs = [
        (report["step"], report["metrics"][name]) for report in reports if name in report["metrics"]
    ]
    return [step for step, _ in pairs], [value for _, value in pairs]


def _figure(width: float, height: float) -> tuple[Figure, Any]:
    # Not pyplot: it keeps every figure in a global list, and asks the display for a backend.
    figure = Figure(figsize=(width, height), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots()


def save(figure: Figure, path: Path) -> Path:
    """Write a figure, in a folder that need not be there yet; returns the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return path


Curve = Sequence[tuple[int, float]]
"""(step, accuracy) of one run, accuracy as a share."""


def plot_curves(
    runs_by_label: Mapping[str, Sequence[Curve]],
    path: Path,
    *,
    title: str = "",
    x_label: str = "step",
    y_label: str = "accuracy",
) -> Path:
    """Scores over steps: a line a label, the mean of its runs, shaded by their deviation (Figures 3, 4, 6, 9).

    Args:
        runs_by_label: label (a model, a mask ratio) -> a curve a seed or sentence set; at each step the runs that
            have it are taken.
        path: the PNG file.
        title: above the plot.
        x_label: what steps are.
        y_label: what the score is; it is shown in percent.
    """
    figure = Figure(figsize=(7, 4.2), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for number, (label, runs) in enumerate(runs_by_label.items()):
        by_step: dict[int, list[float]] = {}
        for step, accuracy in (point for run in runs for point in run):
            by_step.setdefault(step, []).append(100 * accuracy)
        steps = sorted(by_step)
        mean = np.array([np.mean(by_step[step]) for step in steps])
        # Of a sample: divided by one less; a single run has none.
        deviation = np.array(
            [np.std(by_step[step], ddof=1) if len(by_step[step]) > 1 else 0.0 for step in steps]
        )
        colour, marker = (
            COLOURS[number % len(COLOURS)],
            MARKERS[number // len(COLOURS) % len(MARKERS)],
        )
        axes.plot(steps, mean, color=colour, marker=marker, ms=4, linewidth=1.4, label=label)
        axes.fill_between(
            steps, mean - deviation, mean + deviation, color=colour, alpha=0.2, linewidth=0
        )
    axes.set(xlabel=x_label, ylabel=f"{y_label} (%)")
    axes.set_title(title, fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=8)
    return save(figure, path)
