"""Figures of SPPT's synthetic experiments: nodes in embedding space with their links, and scores over noise."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure

from raybio.evaluation.plots import COLOURS, MARKERS, save
from raybio.methods.sppt.synthetic.graphs import SyntheticGraph
from raybio.methods.sppt.synthetic.report import GraphScores
from raybio.methods.sppt.synthetic.simplicial import surface

GREY = "#BBBBBB"


def draw_nodes(panels: Mapping[str, np.ndarray], nodes: SyntheticGraph, kind: str) -> Figure:
    """A panel an embedding: its first two principal components, nodes coloured by class, links as lines.

    Beneath the nodes of a surface lies the surface: its triangles, whose corners are where they fit the nodes best.

    Args:
        panels: title -> embedding (N, D).
        nodes: links, classes, and places on a surface.
        kind: the graph, the title above all panels.
    """
    graph, label_N = nodes.graph, nodes.label_N
    figure = Figure(figsize=(6 * len(panels), 5.5), dpi=130, layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    source_E = np.repeat(np.arange(graph.num_nodes), graph.degree_N)
    edge_E2 = np.stack([source_E, np.asarray(graph.indices)], axis=1)
    for (name, embedding_ND), one in zip(panels.items(), axes, strict=True):
        centred = embedding_ND - embedding_ND.mean(axis=0)
        _, _, axis_DD = np.linalg.svd(centred, full_matrices=False)
        position_N2 = centred @ axis_DD[:2].T
        one.add_collection(
            LineCollection(
                list(position_N2[edge_E2]), colors=GREY, linewidths=0.4, alpha=0.4, zorder=1
            )
        )
        if nodes.place_N is not None and nodes.weight_N3 is not None:
            _draw_triangles(
                one,
                surface(kind),
                corners(surface(kind), nodes.place_N, nodes.weight_N3, position_N2),
            )
        for label in np.unique(label_N):
            chosen, number = label_N == label, int(label)
            colour, marker = (
                COLOURS[number % len(COLOURS)],
                MARKERS[number // len(COLOURS) % len(MARKERS)],
            )
            one.scatter(*position_N2[chosen].T, s=14, c=colour, marker=marker, linewidths=0)
        one.set(title=name, xticks=[], yticks=[])
    figure.suptitle(kind)
    return figure


def corners(
    triangle_T3: np.ndarray, place_N: np.ndarray, weight_N3: np.ndarray, position_N2: np.ndarray
) -> np.ndarray:
    """Where a surface's corners (V, 2) lie if flat triangles between them fit the nodes' positions: least squares."""
    share_NV = np.zeros((len(place_N), int(triangle_T3.max()) + 1))
    np.put_along_axis(share_NV, triangle_T3[place_N], weight_N3, axis=1)
    found: np.ndarray = np.linalg.lstsq(share_NV, position_N2, rcond=None)[0]
    return found


def _draw_triangles(axes: Axes, triangle_T3: np.ndarray, corner_V2: np.ndarray) -> None:
    colour = "black"
    axes.add_collection(
        PolyCollection(
            list(corner_V2[triangle_T3]), facecolor=colour, edgecolor="none", alpha=0.06, zorder=0
        )
    )
    axes.add_collection(
        PolyCollection(
            list(corner_V2[triangle_T3]),
            facecolor="none",
            edgecolor=colour,
            linewidths=0.9,
            zorder=2,
        )
    )
    box = {
        "facecolor": "white",
        "edgecolor": colour,
        "boxstyle": "round,pad=0.15",
        "linewidth": 0.6,
    }
    for number, place in enumerate(corner_V2, start=1):
        axes.annotate(
            str(number), place, fontsize=8, color=colour, ha="center", va="center", bbox=box
        )


def plot_noise(scores: Sequence[GraphScores], path: Path) -> Path:
    """A panel a graph: AUROC over noise without and with the graph loss, mean and range of the draws."""
    kinds = list(dict.fromkeys(one.kind for one in scores))
    figure = Figure(figsize=(5 * len(kinds), 4), dpi=130, layout="constrained")
    axes = figure.subplots(1, len(kinds), squeeze=False)[0]
    for kind, panel in zip(kinds, axes, strict=True):
        own = sorted((one for one in scores if one.kind == kind), key=lambda one: one.noise)
        noise = [one.noise for one in own]
        for number, (name, values) in enumerate(
            (
                ("language model", [one.alone for one in own]),
                ("SPPT", [one.with_graph for one in own]),
            )
        ):
            mean, low, high = (
                np.mean(values, axis=1),
                np.min(values, axis=1),
                np.max(values, axis=1),
            )
            panel.plot(noise, mean, color=COLOURS[number], marker=MARKERS[number], label=name)
            panel.fill_between(noise, low, high, color=COLOURS[number], alpha=0.2, linewidth=0)
        panel.set(
            title=kind, xlabel="noise: share of pairs of nodes that are linked", ylabel="AUROC"
        )
        panel.legend(frameon=False)
    return save(figure, path)
