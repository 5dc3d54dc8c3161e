"""Scores over steps, averaged over the runs of a label."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

Curve = Sequence[tuple[int, float]]
"""(step, value) of each evaluation of one run."""


class CurvePoint(NamedTuple):
    """A score at one step, over the runs of a label that were evaluated there.

    Attributes:
        label: label of the runs.
        step: training step, or another x value of the curve.
        num_runs: runs with a value at this step.
        mean: over these runs.
        deviation: sample standard deviation; 0 for one run.
    """

    label: str
    step: int
    num_runs: int
    mean: float
    deviation: float


def means_over_steps(curves_by_label: Mapping[str, Sequence[Curve]]) -> list[CurvePoint]:
    """Return the points of all labels, in order of label and step.

    Args:
        curves_by_label: label (a model, a mask ratio) -> a curve for each seed or sentence set. At
            each step, the runs with a value there are averaged.
    """
    points = []
    for label, curves in curves_by_label.items():
        values_by_step: dict[int, list[float]] = {}
        for curve in curves:
            for step, value in curve:
                values_by_step.setdefault(step, []).append(value)
        for step in sorted(values_by_step):
            values = values_by_step[step]
            deviation = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
            points.append(CurvePoint(label, step, len(values), float(np.mean(values)), deviation))
    return points
