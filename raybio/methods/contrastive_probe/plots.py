"""Figures of the paper: heat maps, curves over lengths and layers, experts' scores, statistics."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from raybio.evaluation.curves import Curve, means_over_steps
from raybio.evaluation.figures import COLORS, save_figure
from raybio.evaluation.plots import plot_curves, plot_heat_map


def plot_probe(data: Mapping[str, Any], folder: Path) -> list[Path]:
    """Plot the figures of a report (``report.report_data``); return the files."""
    files = []
    for query_set in data["sets"]:
        results = query_set["results"]
        name = query_set["name"]
        for k in ("1", "10"):
            files.append(_plot_relations(results, k, name, folder))
            bins_by_label = {result["label"]: result["by_length"][k] for result in results}
            path = folder / f"lengths_{name}_acc{k}.png"
            files.append(plot_lengths(bins_by_label, path, f"acc@{k}, {name} set"))
            curves = _layer_curves(results, k)
            if any(len(curve) > 1 for curve in curves.values()):
                path = folder / f"layers_{name}_acc{k}.png"
                title = f"acc@{k} by layer, {name} set"
                files.append(_plot_accuracies(curves, path, title, "layers"))
    return files


def _plot_relations(
    results: Sequence[Mapping[str, Any]], k: str, set_name: str, folder: Path
) -> Path:
    relations = list(results[0]["by_relation"][k])
    rows = []
    for relation in relations:
        values = [result["by_relation"][k][relation] for result in results]
        rows.append([np.nan if value is None else value for value in values])
    labels = [result["label"] for result in results]
    path = folder / f"relations_{set_name}_acc{k}.png"
    title = f"acc@{k} by relation, {set_name} set (%)"
    return plot_heat_map(np.array(rows), relations, labels, path, title)


def _layer_curves(
    results: Sequence[Mapping[str, Any]], k: str
) -> dict[str, list[tuple[int, float]]]:
    """Return model -> (layers, accuracy) of the results with a number of layers."""
    curves: dict[str, list[tuple[int, float]]] = {}
    for result in results:
        if result["layer"] is not None:
            point = (result["layer"], result["micro"][k]["value"])
            curves.setdefault(result["model"], []).append(point)
    return curves


def plot_lengths(
    bins_by_label: Mapping[str, Sequence[Mapping[str, Any]]], path: Path, title: str
) -> Path:
    """Plot accuracies by length of the answers (Figure 3): a line per label, a point per bin.

    Args:
        bins_by_label: bins of each result (``report.length_data``).
        path: the PNG file.
        title: above the axes.
    """
    curves = {}
    for label, bins in bins_by_label.items():
        points = [(length_bin["first"], length_bin["accuracy"]) for length_bin in bins]
        curves[label] = points
    title = f"{title}, by length of the answers"
    return _plot_accuracies(curves, path, title, "characters (start of the bin)")


def _plot_accuracies(
    curve_by_label: Mapping[str, Curve], path: Path, title: str, x_label: str
) -> Path:
    points = means_over_steps({label: [curve] for label, curve in curve_by_label.items()})
    return plot_curves(
        points, path, title=title, x_label=x_label, y_label="accuracy", in_percent=True
    )


def plot_expert_scores(count_S2: np.ndarray, scores: Sequence[int], path: Path) -> Path:
    """Plot the confusion matrix of experts' scores and gold (Figure 8), counts as shades."""
    figure = Figure(figsize=(3.6, 3.8), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.imshow(count_S2, cmap="Blues", vmin=0, aspect="auto")
    for (row, column), count in np.ndenumerate(count_S2):
        color = "white" if count > 0.6 * count_S2.max() else "black"
        axes.text(column, row, str(count), ha="center", va="center", color=color)
    axes.set_xticks([0, 1], ["not gold", "gold"])
    axes.set_yticks(range(len(scores)), [str(score) for score in scores])
    axes.set(ylabel="experts' score")
    return save_figure(figure, path)


def plot_statistics(data: Mapping[str, Any], path: Path) -> Path:
    """Plot the queries of each relation, and the shares of answers by length (Figure 1).

    Args:
        data: of ``benchmark.statistics.benchmark_statistics``.
        path: the PNG file.
    """
    relations = data["relations"]
    share_by_length = data["share_by_length"]
    figure = Figure(figsize=(10, 1.6 + 0.22 * len(relations)), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, width_ratios=(2, 1))
    positions = np.arange(len(relations))
    num_full = [relation["full"] for relation in relations]
    left.barh(positions, num_full, color=COLORS[0], label="full")
    if data["num_hard_queries"] is not None:
        num_hard = [relation["hard"] for relation in relations]
        left.barh(positions, num_hard, height=0.4, color=COLORS[1], label="hard")
    labels = [relation["relation"].replace("_", " ") for relation in relations]
    left.set_yticks(positions, labels, fontsize=7)
    left.invert_yaxis()
    left.set(xlabel="queries")
    left.legend(frameon=False, fontsize=8, ncols=2, loc="lower left", bbox_to_anchor=(0, 1))
    percents = [100 * share for share in share_by_length.values()]
    right.bar(list(share_by_length), percents, color=COLORS[0])
    right.set(xlabel=f"{data['unit']} of an answer", ylabel="answers (%)")
    return save_figure(figure, path)
