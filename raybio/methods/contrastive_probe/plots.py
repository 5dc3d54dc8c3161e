"""Figures of a probe, those of Contrastive-Probe: heat maps, curves over layers and steps, experts' judgements."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from raybio.evaluation.figures import COLORS, save_figure
from raybio.evaluation.plots import plot_curves, plot_heat_map


def plot_probe(data: Mapping[str, Any], folder: Path) -> list[Path]:
    """All figures that a report's data (``evaluation.probe_report.report_data``) has numbers for; returns the files."""
    files = []
    for one in data["sets"]:
        results, name = one["results"], one["name"]
        for k in ("1", "10"):
            rows = list(results[0]["by_relation"][k])
            value_RM = np.array(
                [[_number(result["by_relation"][k][row]) for result in results] for row in rows]
            )
            labels = [result["label"] for result in results]
            heading = f"acc@{k} by relation, {name} set (%)"
            files.append(
                plot_heat_map(
                    value_RM, rows, labels, folder / f"relations_{name}_acc{k}.png", heading
                )
            )
            lengths = {result["label"]: result["by_length"][k] for result in results}
            files.append(
                plot_lengths(lengths, folder / f"lengths_{name}_acc{k}.png", f"acc@{k}, {name} set")
            )
            by_layer: dict[str, list[tuple[int, float]]] = {}
            for result in results:
                if result["layer"] is not None:
                    point = (result["layer"], result["micro"][k]["value"])
                    by_layer.setdefault(result["model"], []).append(point)
            if any(len(curve) > 1 for curve in by_layer.values()):
                path = folder / f"layers_{name}_acc{k}.png"
                title = f"acc@{k} by layer, {name} set"
                curves = {model: [curve] for model, curve in by_layer.items()}
                files.append(plot_curves(curves, path, title=title, x_label="layers"))
    return files


def plot_lengths(
    bins_by_label: Mapping[str, Sequence[Mapping[str, Any]]], path: Path, title: str
) -> Path:
    """Accuracies by length of the answers (Figure 3): a line a label, a point a bin of ``probe_report.length_data``."""
    curves = {
        label: [[(part["first"], part["accuracy"]) for part in bins]]
        for label, bins in bins_by_label.items()
    }
    title = f"{title}, by length of the answers"
    return plot_curves(curves, path, title=title, x_label="characters (start of the bin)")


def plot_judgements(count_S2: np.ndarray, scores: Sequence[int], path: Path) -> Path:
    """Experts' scores against gold: counts, dark where there are many (Figure 8)."""
    figure = Figure(figsize=(3.6, 3.8), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.imshow(count_S2, cmap="Blues", vmin=0, aspect="auto")
    for (row, column), count in np.ndenumerate(count_S2):
        colour = "white" if count > 0.6 * count_S2.max() else "black"
        axes.text(column, row, str(count), ha="center", va="center", color=colour)
    axes.set_xticks([0, 1], ["not gold", "gold"])
    axes.set_yticks(range(len(scores)), [str(score) for score in scores])
    axes.set(ylabel="experts' score")
    return save_figure(figure, path)


def plot_statistics(data: Mapping[str, Any], path: Path) -> Path:
    """Queries of each relation, and the share of answers by length (Figure 1); ``data`` as of the statistics."""
    relations, lengths = data["relations"], data["share_by_length"]
    figure = Figure(figsize=(10, 1.6 + 0.22 * len(relations)), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, width_ratios=(2, 1))
    places = np.arange(len(relations))
    left.barh(places, [one["full"] for one in relations], color=COLORS[0], label="full")
    if data["num_hard_queries"] is not None:
        left.barh(
            places, [one["hard"] for one in relations], height=0.4, color=COLORS[1], label="hard"
        )
    left.set_yticks(places, [one["relation"].replace("_", " ") for one in relations], fontsize=7)
    left.invert_yaxis()
    left.set(xlabel="queries")
    left.legend(frameon=False, fontsize=8, ncols=2, loc="lower left", bbox_to_anchor=(0, 1))
    right.bar(list(lengths), [100 * share for share in lengths.values()], color=COLORS[0])
    right.set(xlabel=f"{data['unit']} of an answer", ylabel="answers (%)")
    return save_figure(figure, path)


def _number(value: float | None) -> float:
    return np.nan if value is None else value
