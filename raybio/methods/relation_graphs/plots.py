"""Maps of pairs of words and of single words, space beside space: a figure, and a table of its points."""

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from raybio.evaluation.plots import COLOURS, MARKERS, save
from raybio.methods.relation_graphs.store import WordStore
from raybio.methods.relation_graphs.word_map import Panel

_GREY = "#CCCCCC"


def plot_word_maps(panels: Sequence[Panel], path: Path) -> Path:
    """A panel a map; a colour and a marker a label, the first label in grey behind the others.

    Args:
        panels: the maps.
        path: the PNG file.
    """
    figure = Figure(figsize=(max(4.4 * len(panels), 5.5), 5.2), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for number, label in enumerate(panel.shown.labels):
            chosen_S = panel.shown.label_S == number
            axes.scatter(
                *panel.position_S2[chosen_S].T,
                s=12,
                c=COLOURS[(number - 1) % len(COLOURS)] if number else _GREY,
                marker=MARKERS[(number - 1) % len(MARKERS)] if number else ".",
                linewidths=0,
                label=f"{label} ({chosen_S.sum():,})",
            )
        axes.set(xticks=[], yticks=[])
        axes.set_title(panel.name, fontsize=10)
        handles, labels = axes.get_legend_handles_labels()
        axes.legend(
            [*handles[1:], handles[0]],
            [*labels[1:], labels[0]],
            loc="upper center",
            bbox_to_anchor=(0.5, -0.01),
            ncols=2,
            frameon=False,
            fontsize=9,
            markerscale=2,
        )
    return save(figure, path)


def write_word_maps(panels: Sequence[Panel], store: WordStore, path: Path) -> Path:
    """A line a point: what the figure shows.

    Args:
        panels: the maps.
        store: where the words are from.
        path: the CSV file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["panel", "orig_id", "words", "label", "x", "y"])
        for panel in panels:
            shown = panel.shown
            points = zip(shown.row_S.tolist(), shown.word_SK, shown.label_S.tolist(), strict=True)
            for (row, word_K, label), (x, y) in zip(
                points, panel.position_S2.tolist(), strict=True
            ):
                words = " ".join(
                    store.words[word] for word in np.asarray(store.sentence(row))[word_K].tolist()
                )
                table.writerow(
                    [
                        panel.name,
                        store.orig_ids[row],
                        words,
                        shown.labels[label],
                        f"{x:.4f}",
                        f"{y:.4f}",
                    ]
                )
    return path
