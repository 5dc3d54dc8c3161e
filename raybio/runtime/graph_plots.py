"""Figures of SPPT's synthetic experiments: nodes in embedding space with their links, and scores over noise."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from raybio.evaluation.synthetic_report import GraphScores
from raybio.graphs import Graph
from raybio.runtime.plots import COLOURS, MARKERS, save

GREY = "#BBBBBB"


def plot_nodes(panels: Mapping[str, np.ndarray], graph: Graph, label_N: np.ndarray, title: str, path: Path) -> Path:
    """A panel an embedding: its first two principal components, nodes coloured by class, links as lines.

    Args:
        panels: title -> embedding (N, D).
        graph: the links.
        label_N: class of each node.
        title: above all panels.
        path: the PNG file.
    """
    figure = Figure(figsize=(6 * len(panels), 5.5), dpi=130, layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    source_E = np.repeat(np.arange(graph.num_nodes), graph.degree_N)
    edge_E2 = np.stack([source_E, np.asarray(graph.indices)], axis=1)
    for (name, embedding_ND), one in zip(panels.items(), axes, strict=True):
        centred = embedding_ND - embedding_ND.mean(axis=0)
        _, _, axis_DD = np.linalg.svd(centred, full_matrices=False)
        position_N2 = centred @ axis_DD[:2].T
        one.add_collection(LineCollection(list(position_N2[edge_E2]), colors=GREY, linewidths=0.4, zorder=0))
        for label in np.unique(label_N):
            chosen, number = label_N == label, int(label)
            colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number // len(COLOURS) % len(MARKERS)]
            one.scatter(*position_N2[chosen].T, s=14, c=colour, marker=marker, linewidths=0)
        one.set(title=name, xticks=[], yticks=[])
    figure.suptitle(title)
    return save(figure, path)


def plot_noise(scores: Sequence[GraphScores], path: Path) -> Path:
    """A panel a graph: AUROC over noise without and with the graph loss, mean and range of the draws."""
    kinds = list(dict.fromkeys(one.kind for one in scores))
    figure = Figure(figsize=(5 * len(kinds), 4), dpi=130, layout="constrained")
    axes = figure.subplots(1, len(kinds), squeeze=False)[0]
    for kind, panel in zip(kinds, axes, strict=True):
        own = sorted((one for one in scores if one.kind == kind), key=lambda one: one.noise)
        noise = [one.noise for one in own]
        for number, (name, values) in enumerate(
            (("language model", [one.alone for one in own]), ("SPPT", [one.with_graph for one in own]))
        ):
            mean, low, high = np.mean(values, axis=1), np.min(values, axis=1), np.max(values, axis=1)
            panel.plot(noise, mean, color=COLOURS[number], marker=MARKERS[number], label=name)
            panel.fill_between(noise, low, high, color=COLOURS[number], alpha=0.2, linewidth=0)
        panel.set(title=kind, xlabel="noise: share of pairs of nodes that are linked", ylabel="AUROC")
        panel.legend(frameon=False)
    return save(figure, path)
