"""Maps of pairs of entities, model beside model: a figure, and a table of its points."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from raybio.evaluation.plots import COLOURS, MARKERS, save

_MOST_COLUMNS = 4


_GREY = "#CCCCCC"


def plot_relation_maps(
    position_by_name: Mapping[str, np.ndarray],
    group_S: np.ndarray,
    relations: Sequence[str],
    path: Path,
) -> Path:
    """A panel a model; a colour and a marker a relation, pairs without any in grey behind them.

    Args:
        position_by_name: name of the model -> coordinates (S, 2).
        group_S: place of each pair's relation in ``relations``; beyond them: none.
        relations: names.
        path: the PNG file.
    """
    columns = min(len(position_by_name), _MOST_COLUMNS)
    rows = -(-len(position_by_name) // columns)
    figure = Figure(
        figsize=(max(3.6 * columns, 5.5), 3.6 * rows + 0.6), dpi=130, layout="constrained"
    )
    FigureCanvasAgg(figure)
    panels = np.ravel(figure.subplots(rows, columns))
    order = [len(relations), *range(len(relations))]
    for axes, (name, position_S2) in zip(panels, position_by_name.items(), strict=False):
        for group in order:
            is_none, chosen_S = group == len(relations), group_S == group
            axes.scatter(
                *position_S2[chosen_S].T,
                s=12,
                c=_GREY if is_none else COLOURS[group % len(COLOURS)],
                marker="." if is_none else MARKERS[group % len(MARKERS)],
                linewidths=0,
                label=f"{'none' if is_none else relations[group].replace('_', ' ')} ({chosen_S.sum():,})",
            )
        axes.set(xticks=[], yticks=[])
        axes.set_title(name, fontsize=10)
    for axes in panels[len(position_by_name) :]:
        axes.axis("off")
    handles, labels = panels[0].get_legend_handles_labels()
    # Those in colour first, grey last.
    figure.legend(
        [*handles[1:], handles[0]],
        [*labels[1:], labels[0]],
        loc="outside lower center",
        ncols=max(2, int(figure.get_figwidth() // 2.2)),
        frameon=False,
        fontsize=9,
        markerscale=2,
    )
    return save(figure, path)


def write_coordinates(
    rows: Sequence[Sequence[object]], position_by_name: Mapping[str, np.ndarray], path: Path
) -> Path:
    """A line a model and pair: what the figure shows.

    Args:
        rows: (document, head, tail, relation) of each pair.
        position_by_name: name of the model -> coordinates (S, 2).
        path: the CSV file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["model", "document", "head", "tail", "relation", "x", "y"])
        for name, position_S2 in position_by_name.items():
            for row, (x, y) in zip(rows, position_S2.tolist(), strict=True):
                table.writerow([name, *row, f"{x:.4f}", f"{y:.4f}"])
    return path
