"""Maps of pairs of entities for several models: a figure, and a table of its points."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from raybio.core.csv_table import write_csv
from raybio.evaluation.figures import background_last, labeled_scatter, new_figure, save_figure

MOST_COLUMNS = 4


def plot_relation_maps(
    position_by_name: Mapping[str, np.ndarray],
    group_S: np.ndarray,
    relations: Sequence[str],
    path: Path,
) -> Path:
    """Draw one panel per model; unrelated pairs are grey, behind the colors of the relations.

    Args:
        position_by_name: name of the model -> coordinates (S, 2).
        group_S: index of each pair's relation in ``relations``; any other number: none.
        relations: names.
        path: the PNG file.
    """
    num_columns = min(len(position_by_name), MOST_COLUMNS)
    num_rows = -(-len(position_by_name) // num_columns)
    figure = new_figure(max(3.6 * num_columns, 5.5), 3.6 * num_rows + 0.6)
    panels = np.ravel(figure.subplots(num_rows, num_columns))
    labels = [relation.replace("_", " ") for relation in relations]
    for axes, (name, position_S2) in zip(panels, position_by_name.items(), strict=False):
        labeled_scatter(axes, position_S2, group_S, labels, background_label="none")
        axes.set_title(name, fontsize=10)
    for axes in panels[len(position_by_name) :]:
        axes.axis("off")
    handles, labels = background_last(panels[0])
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=max(2, int(figure.get_figwidth() // 2.2)),
        frameon=False,
        fontsize=9,
        markerscale=2,
    )
    return save_figure(figure, path)


def write_coordinates(
    rows: Sequence[Sequence[object]], position_by_name: Mapping[str, np.ndarray], path: Path
) -> Path:
    """Write the points of the figure to a CSV file, one line per model and pair.

    Args:
        rows: (document, head, tail, relation) of each pair.
        position_by_name: name of the model -> coordinates (S, 2).
        path: the CSV file.
    """
    table: list[list[object]] = [["model", "document", "head", "tail", "relation", "x", "y"]]
    for name, position_S2 in position_by_name.items():
        for row, (x, y) in zip(rows, position_S2.tolist(), strict=True):
            table.append([name, *row, f"{x:.4f}", f"{y:.4f}"])
    write_csv(path, table)
    return path
