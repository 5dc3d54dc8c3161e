"""Figures of the synthetic experiments: embedded nodes with their links, and AUROC over noise."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure

from raybio.evaluation.figures import COLORS, MARKERS, labeled_scatter, save_figure
from raybio.methods.sppt.synthetic.graphs import SyntheticGraph
from raybio.methods.sppt.synthetic.report import GraphScores
from raybio.methods.sppt.synthetic.simplicial import surface

LINK_COLOR = "#BBBBBB"
SURFACE_COLOR = "black"


def draw_nodes(panels: Mapping[str, np.ndarray], nodes: SyntheticGraph, kind: str) -> Figure:
    """Return a figure with one panel per embedding: two principal components, links as lines.

    Nodes are colored by class. On a surface, its triangles are drawn beneath the nodes, with the
    corners at their least-squares positions.

    Args:
        panels: embedding (N, D) by title.
        nodes: links, classes and, on a surface, coordinates.
        kind: name of the graph, the figure's title.
    """
    graph = nodes.graph
    classes = [f"class {label}" for label in range(int(nodes.label_N.max()) + 1)]
    figure = Figure(figsize=(6 * len(panels), 5.5), dpi=130, layout="constrained")
    axes_by_panel = figure.subplots(1, len(panels), squeeze=False)[0]
    source_E = np.repeat(np.arange(graph.num_nodes), graph.degree_N)
    edge_E2 = np.stack([source_E, np.asarray(graph.indices)], axis=1)
    for (title, embedding_ND), axes in zip(panels.items(), axes_by_panel, strict=True):
        position_N2 = _principal_components(embedding_ND)
        lines = list(position_N2[edge_E2])
        axes.add_collection(
            LineCollection(lines, colors=LINK_COLOR, linewidths=0.4, alpha=0.4, zorder=1)
        )
        if nodes.triangle_N is not None and nodes.weight_N3 is not None:
            triangle_T3 = surface(kind)
            corner_V2 = fit_corners(triangle_T3, nodes.triangle_N, nodes.weight_N3, position_N2)
            _draw_triangles(axes, triangle_T3, corner_V2)
        labeled_scatter(axes, position_N2, nodes.label_N, classes, size=14)
        axes.set_title(title)
    figure.suptitle(kind)
    return figure


def fit_corners(
    triangle_T3: np.ndarray,
    triangle_N: np.ndarray,
    weight_N3: np.ndarray,
    position_N2: np.ndarray,
) -> np.ndarray:
    """Return positions (V, 2) of a surface's corners: the least-squares fit of flat triangles.

    Args:
        triangle_T3: corners of each triangle.
        triangle_N: triangle of each node.
        weight_N3: barycentric coordinates of each node.
        position_N2: position of each node in the plane.
    """
    share_NV = np.zeros((len(triangle_N), int(triangle_T3.max()) + 1))
    np.put_along_axis(share_NV, triangle_T3[triangle_N], weight_N3, axis=1)
    corner_V2: np.ndarray = np.linalg.lstsq(share_NV, position_N2, rcond=None)[0]
    return corner_V2


def plot_noise(scores: Sequence[GraphScores], path: Path) -> Path:
    """Write a figure with one panel per graph: AUROC over noise, mean and range over draws.

    Returns:
        ``path``.
    """
    kinds = list(dict.fromkeys(row.kind for row in scores))
    figure = Figure(figsize=(5 * len(kinds), 4), dpi=130, layout="constrained")
    axes_by_panel = figure.subplots(1, len(kinds), squeeze=False)[0]
    for kind, axes in zip(kinds, axes_by_panel, strict=True):
        rows = sorted((row for row in scores if row.kind == kind), key=lambda row: row.noise)
        noise = [row.noise for row in rows]
        curves = {
            "language model": [row.alone for row in rows],
            "SPPT": [row.with_graph for row in rows],
        }
        for number, (name, values) in enumerate(curves.items()):
            color = COLORS[number]
            axes.plot(
                noise, np.mean(values, axis=1), color=color, marker=MARKERS[number], label=name
            )
            low = np.min(values, axis=1)
            high = np.max(values, axis=1)
            axes.fill_between(noise, low, high, color=color, alpha=0.2, linewidth=0)
        axes.set(
            title=kind,
            xlabel="noise: probability to link a pair of nodes at random",
            ylabel="AUROC",
        )
        axes.legend(frameon=False)
    return save_figure(figure, path)


def _principal_components(embedding_ND: np.ndarray) -> np.ndarray:
    centered_ND = embedding_ND - embedding_ND.mean(axis=0)
    _, _, axis_DD = np.linalg.svd(centered_ND, full_matrices=False)
    position_N2: np.ndarray = centered_ND @ axis_DD[:2].T
    return position_N2


def _draw_triangles(axes: Axes, triangle_T3: np.ndarray, corner_V2: np.ndarray) -> None:
    polygons = list(corner_V2[triangle_T3])
    axes.add_collection(
        PolyCollection(polygons, facecolor=SURFACE_COLOR, edgecolor="none", alpha=0.06, zorder=0)
    )
    axes.add_collection(
        PolyCollection(
            polygons, facecolor="none", edgecolor=SURFACE_COLOR, linewidths=0.9, zorder=2
        )
    )
    box = {
        "facecolor": "white",
        "edgecolor": SURFACE_COLOR,
        "boxstyle": "round,pad=0.15",
        "linewidth": 0.6,
    }
    for number, position_2 in enumerate(corner_V2, start=1):
        axes.annotate(
            str(number),
            position_2,
            fontsize=8,
            color=SURFACE_COLOR,
            ha="center",
            va="center",
            bbox=box,
        )
