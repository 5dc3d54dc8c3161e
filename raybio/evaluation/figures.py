"""Building blocks of figures: palette, figures without a display, files, labeled scatter plots.

Figures are readable in print, and their colors are distinct for color-blind readers.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from raybio.core.files import replacing

COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000", "#F0E442")
"""The palette of Okabe and Ito."""

MARKERS = "o^sDvPX*"

STROKES = ("-", "--", ":", "-.")

GREY = "#CCCCCC"

LINE_INCHES = 0.2
"""Height of a line of a legend."""

DPI = 160


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of a size in inches.

    It does not come from pyplot, which keeps every figure in a global list and needs a backend for
    the display.
    """
    figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Figure, path: Path) -> Path:
    """Write a figure to a PNG file as a whole, in a folder that need not exist; return the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        figure.savefig(file, format="png")
    return path


def style_of(number: int) -> tuple[str, str]:
    """Return the color and the marker of a line or a group; the first 64 styles are distinct."""
    color = COLORS[number % len(COLORS)]
    marker = MARKERS[(number + number // len(COLORS)) % len(MARKERS)]
    return color, marker


def line_style(number: int) -> dict[str, Any]:
    """Return the style of a line; marker and stroke together repeat after 32."""
    index = number % len(MARKERS)
    stroke = STROKES[(number + number // len(MARKERS)) % len(STROKES)]
    return {"color": COLORS[index], "marker": MARKERS[index], "ms": 5, "linestyle": stroke}


def num_lines(texts: Sequence[str]) -> int:
    """Return the number of lines that texts take in a legend."""
    return sum(text.count("\n") + 1 for text in texts)


def labeled_scatter(
    axes: Axes,
    position_S2: np.ndarray,
    group_S: np.ndarray,
    labels: Sequence[str],
    *,
    background_label: str | None = None,
    size: float = 12,
) -> None:
    """Draw S points with a color and a marker for each group, and others in grey behind them.

    Args:
        axes: where to draw; ticks are removed, since the axes of a map have no meaning.
        position_S2: coordinates.
        group_S: index of each point's group in ``labels``; any other number is the background.
        labels: name of each group.
        background_label: name of the points of no group; None: there are none.
        size: size of a point, in matplotlib's units.
    """
    if background_label is not None:
        is_background_S = (group_S < 0) | (group_S >= len(labels))
        _scatter(axes, position_S2[is_background_S], background_label, GREY, ".", size)
    for group, label in enumerate(labels):
        color, marker = style_of(group)
        _scatter(axes, position_S2[group_S == group], label, color, marker, size)
    axes.set(xticks=[], yticks=[])


def background_last(axes: Axes) -> tuple[list[Any], list[str]]:
    """Return legend handles and labels of axes with the background, the first entry, moved last."""
    handles, labels = axes.get_legend_handles_labels()
    return [*handles[1:], handles[0]], [*labels[1:], labels[0]]


def _scatter(
    axes: Axes, position_P2: np.ndarray, name: str, color: str, marker: str, size: float
) -> None:
    label = f"{name} ({len(position_P2):,})"
    x_P, y_P = position_P2.T
    axes.scatter(x_P, y_P, s=size, c=color, marker=marker, linewidths=0, label=label)
