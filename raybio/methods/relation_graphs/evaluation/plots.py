"""Maps of word pairs and of words, one panel per head: a figure, and a table of its points."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from raybio.core.csv_table import write_csv
from raybio.evaluation.figures import background_last, labeled_scatter, new_figure, save_figure
from raybio.methods.relation_graphs.evaluation.word_map import Panel
from raybio.methods.relation_graphs.store import WordStore


def plot_word_maps(panels: Sequence[Panel], path: Path) -> Path:
    """Draw one panel per map: a color and marker per label, the first label in grey behind.

    Args:
        panels: the maps.
        path: the PNG file.
    """
    figure = new_figure(max(4.4 * len(panels), 5.5), 5.2)
    all_axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, panel in zip(all_axes, panels, strict=True):
        background, *labels = panel.points.labels
        group_S = panel.points.label_S - 1
        labeled_scatter(axes, panel.position_S2, group_S, labels, background_label=background)
        axes.set_title(panel.name, fontsize=10)
        axes.legend(
            *background_last(axes),
            loc="upper center",
            bbox_to_anchor=(0.5, -0.01),
            ncols=2,
            frameon=False,
            fontsize=9,
            markerscale=2,
        )
    return save_figure(figure, path)


def write_word_maps(panels: Sequence[Panel], store: WordStore, path: Path) -> Path:
    """Write one line per point of the figure.

    Args:
        panels: the maps.
        store: the store of the words.
        path: the CSV file.
    """
    table = [["panel", "orig_id", "words", "label", "x", "y"]]
    for panel in panels:
        selected = panel.points
        points = zip(
            selected.row_S.tolist(), selected.word_SK, selected.label_S.tolist(), strict=True
        )
        for (row, word_K, label), (x, y) in zip(points, panel.position_S2.tolist(), strict=True):
            words = " ".join(
                store.words[word] for word in np.asarray(store.sentence(row))[word_K].tolist()
            )
            table.append(
                [
                    panel.name,
                    store.orig_ids[row],
                    words,
                    selected.labels[label],
                    f"{x:.4f}",
                    f"{y:.4f}",
                ]
            )
    write_csv(path, table)
    return path
