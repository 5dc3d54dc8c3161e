"""Figures of a sweep, readable without color: markers and line styles carry the meaning too."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from raybio.core.search_space import Distribution, SearchSpace, format_value
from raybio.evaluation.figures import COLORS, new_figure, save_figure
from raybio.runtime.tune.leaderboard import TrialRecord
from raybio.runtime.tune.trial import (
    FAILED,
    FINISHED,
    INTERRUPTED,
    REPLACED,
    STOPPED,
    settings_text,
)

MARKER_BY_STATUS = {FINISHED: "o", STOPPED: "x", REPLACED: "+", FAILED: "v", INTERRUPTED: "s"}


GREY = "#9A9A9A"
STYLES = ("-", "--", "-.", ":")
NUM_NAMED = 4
"""Number of the best trials that have a color, line style and name; the others are grey."""


def plot_parameters(space: SearchSpace, trials: Sequence[TrialRecord], path: Path) -> Path:
    """Plot the metric against each parameter, with a marker for each trial at its best step."""
    evaluated = [trial for trial in trials if trial.best_value is not None]
    columns = min(3, len(space.space))
    rows = -(-len(space.space) // columns)
    figure = new_figure(3.6 * columns, 3.2 * rows)
    panels = figure.subplots(rows, columns, squeeze=False, sharey=True)
    for axes in panels.flat[len(space.space) :]:
        axes.set_visible(False)
    for axes, (name, distribution) in zip(panels.flat, space.space.items(), strict=False):
        shown = [trial for trial in evaluated if name in trial.settings]
        for status, marker in MARKER_BY_STATUS.items():
            some = [trial for trial in shown if trial.status == status]
            positions = [_position(distribution, trial.settings[name]) for trial in some]
            values = [trial.best_value for trial in some]
            color = COLORS[0] if status == FINISHED else GREY
            axes.scatter(
                positions, values, marker=marker, c=color, s=36, label=status if some else None
            )
        _axis(axes, distribution)
        axes.set(xlabel=name.rsplit(".", 1)[-1])
    for row in panels:
        row[0].set_ylabel(space.metric)
    used = [
        status for status in MARKER_BY_STATUS if any(trial.status == status for trial in evaluated)
    ]
    handles = [
        Line2D([], [], ls="", marker=MARKER_BY_STATUS[status], c="#333333", label=status)
        for status in used
    ]
    figure.legend(
        handles=handles, loc="outside upper center", ncols=len(handles), frameon=False, fontsize=9
    )
    return save_figure(figure, path)


def plot_parallel(space: SearchSpace, trials: Sequence[TrialRecord], path: Path) -> Path:
    """Plot parallel coordinates: a line for each trial over all parameters to the metric."""
    evaluated = [trial for trial in trials if trial.best_value is not None]
    names = list(space.space)
    figure = new_figure(2.2 + 1.7 * len(names), 4.2)
    axes = figure.subplots()
    values = np.array([trial.best_value for trial in evaluated], dtype=float)
    low, high = (values.min(), values.max()) if len(values) else (0.0, 1.0)
    scaled = (values - low) / (high - low) if high > low else np.full(len(values), 0.5)
    for number in reversed(range(len(evaluated))):
        trial = evaluated[number]
        heights = [
            _height(space.space[name], trial.settings[name]) if name in trial.settings else np.nan
            for name in names
        ]
        axes.plot(
            range(len(names) + 1), [*heights, scaled[number]], marker="o", ms=3, **_style(number)
        )
    for position, name in enumerate(names):
        _ticks(axes, position, space.space[name])
    for height, value in ((0.0, low), (1.0, high)):
        axes.annotate(
            f"{value:.4g}",
            (len(names), height),
            xytext=(6, 0),
            textcoords="offset points",
            fontsize=8,
        )
    labels = [*(name.rsplit(".", 1)[-1] for name in names), space.metric]
    axes.set_xticks(range(len(names) + 1), labels, fontsize=9)
    axes.set(yticks=[], ylim=(-0.08, 1.08), xlim=(-0.2, len(names) + 0.5))
    for position in range(len(names) + 1):
        axes.axvline(position, c="#333333", lw=0.8, zorder=0)
    axes.spines[:].set_visible(False)
    _legend(figure, evaluated)
    return save_figure(figure, path)


def plot_learning(space: SearchSpace, trials: Sequence[TrialRecord], path: Path) -> Path:
    """Plot the metric over steps, with a line for each trial."""
    evaluated = [trial for trial in trials if trial.values]
    figure = new_figure(7.5, 4.4)
    axes = figure.subplots()
    for number in reversed(range(len(evaluated))):
        steps, values = zip(*evaluated[number].values, strict=True)
        axes.plot(steps, values, marker="o", ms=3, **_style(number))
        if evaluated[number].status == STOPPED:
            axes.plot(steps[-1], values[-1], marker="x", ms=7, c="#333333")
    axes.set(xlabel="step", ylabel=space.metric)
    axes.grid(alpha=0.3)
    _legend(
        figure,
        evaluated,
        more=[Line2D([], [], ls="", marker="x", c="#333333", label="stopped here")],
    )
    return save_figure(figure, path)


def plot_importance(shares: dict[str, float], path: Path) -> Path:
    """Plot the share of the metric's variance that each parameter explains, as bars."""
    names = sorted(shares, key=lambda name: shares[name])
    figure = new_figure(6.5, 0.9 + 0.42 * len(names))
    axes = figure.subplots()
    axes.barh(
        [name.rsplit(".", 1)[-1] for name in names],
        [shares[name] for name in names],
        color=COLORS[0],
    )
    for position, name in enumerate(names):
        axes.text(shares[name], position, f" {shares[name]:.2f}", va="center", fontsize=9)
    axes.set(xlim=(0, 1.12), xlabel="share of the variance between trials")
    return save_figure(figure, path)


def plot_cost(trials: Sequence[TrialRecord], path: Path) -> Path:
    """Plot the worker-minutes of each trial, hatched by its status."""
    figure = new_figure(7.5, 1.0 + 0.26 * len(trials))
    axes = figure.subplots()
    hatches = {FINISHED: "", STOPPED: "////", REPLACED: "....", FAILED: "xxxx", INTERRUPTED: "----"}
    for status, hatch in hatches.items():
        some = [
            (position, trial) for position, trial in enumerate(trials) if trial.status == status
        ]
        minutes = [trial.worker_seconds / 60 for _, trial in some]
        positions = [position for position, _ in some]
        axes.barh(
            positions,
            minutes,
            hatch=hatch,
            color="#CFE3F1",
            edgecolor="#333333",
            label=status if some else None,
        )
    axes.set_yticks(range(len(trials)), [trial.name for trial in trials], fontsize=7)
    axes.invert_yaxis()
    axes.set(xlabel="worker-minutes")
    axes.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return save_figure(figure, path)


def _style(number: int) -> dict[str, Any]:
    if number >= NUM_NAMED:
        return {"c": GREY, "lw": 0.8, "ls": "-"}
    return {"c": COLORS[(0, 5, 2, 3)[number]], "lw": 2.0, "ls": STYLES[number]}


def _legend(figure: Figure, trials: Sequence[TrialRecord], more: Sequence[Line2D] = ()) -> None:
    named = [
        Line2D([], [], label=_name(position, trial), **_style(position))
        for position, trial in enumerate(trials[:NUM_NAMED])
    ]
    rest = []
    if len(trials) > NUM_NAMED:
        label = f"{len(trials) - NUM_NAMED} others"
        rest.append(Line2D([], [], c=GREY, lw=0.8, label=label))
    handles = [*named, *rest, *more]
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=1,
        fontsize=8,
        frameon=False,
        handlelength=4,
    )


def _name(position: int, trial: TrialRecord) -> str:
    return f"{position + 1}: {settings_text(trial.settings)}"


def _position(distribution: Distribution, value: object) -> float:
    """Return the position of a value on its axis; choices keep their order."""
    if distribution.kind == "choice":
        return float(distribution.values.index(value))
    return float(value)  # type: ignore[arg-type]


def _axis(axes: Axes, distribution: Distribution) -> None:
    if distribution.kind == "choice":
        axes.set_xticks(
            range(len(distribution.values)),
            [format_value(value) for value in distribution.values],
            fontsize=8,
        )
        axes.margins(x=0.15)
    elif distribution.kind == "log_uniform":
        axes.set_xscale("log")
    axes.grid(alpha=0.3)


def _height(distribution: Distribution, value: object) -> float:
    """Return the height of a value on a vertical axis from 0 to 1."""
    position = _position(distribution, value)
    if distribution.kind == "choice":
        return position / max(len(distribution.values) - 1, 1)
    low, high = map(float, distribution.values)
    if distribution.kind == "log_uniform":
        low = np.log(low)
        high = np.log(high)
        position = np.log(position)
    return float((position - low) / (high - low))


def _ticks(axes: Axes, position: int, distribution: Distribution) -> None:
    for value in distribution.values:
        at = (position, _height(distribution, value))
        axes.annotate(
            format_value(value), at, xytext=(4, 2), textcoords="offset points", fontsize=8
        )
