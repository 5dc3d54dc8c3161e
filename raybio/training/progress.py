"""The state of the training loop: its step, the best weights so far, and early stopping."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from raybio.core.errors import ConfigError
from raybio.core.text import near_names, suggestion
from raybio.training.settings import ScheduleConfig


@dataclass
class Progress:
    """The loop's own state, which checkpoints hold.

    Attributes:
        step: optimizer updates so far.
        evaluated_step: step of the last evaluation; -1 before the first.
        best_metric: best value of ``schedule.early_stopping_metric``.
        num_evaluations_without_improvement: evaluations since that value.
        best_step: step after the start with the best value of ``schedule.best_metric``; its
            checkpoint is kept.
        best_step_metric: the value at ``best_step``.
        num_skipped: steps skipped by ``on_nonfinite``.
        precision: ``fp32``, ``tf32`` or ``bf16``.
        report: the report of ``step``, as keyword arguments of ``Report``; None before the first.
    """

    step: int = 0
    evaluated_step: int = -1
    best_metric: float | None = None
    num_evaluations_without_improvement: int = 0
    best_step: int | None = None
    best_step_metric: float | None = None
    num_skipped: int = 0
    precision: str | None = None
    report: dict[str, Any] | None = None


def has_stopped_improving(progress: Progress, schedule: ScheduleConfig) -> bool:
    """Return whether early stopping ends the run."""
    if schedule.early_stopping_metric is None:
        return False
    num_evaluations = progress.num_evaluations_without_improvement
    return num_evaluations >= schedule.early_stopping_patience


def update_best(progress: Progress, schedule: ScheduleConfig, metrics: Mapping[str, float]) -> None:
    """Record an evaluation, and update the best values and the step of the best weights."""
    stopping = _value(schedule, metrics, "early_stopping_metric")
    if stopping is not None and _is_better(stopping, progress.best_metric):
        progress.best_metric = stopping
        progress.num_evaluations_without_improvement = 0
    elif stopping is not None:
        progress.num_evaluations_without_improvement += 1
    kept = _value(schedule, metrics, "keep_best")
    kept = stopping if kept is None else kept
    # Step 0 is the initial encoder of the table, not a result of training.
    if progress.step and kept is not None and _is_better(kept, progress.best_step_metric):
        progress.best_step_metric = kept
        progress.best_step = progress.step


def _value(schedule: ScheduleConfig, metrics: Mapping[str, float], setting: str) -> float | None:
    """Return the value of the metric that a setting of the schedule names; None for null."""
    name = getattr(schedule, setting)
    if name is not None and name not in metrics:
        split, _, score = name.partition("/")
        near = near_names(name, metrics)
        if split in ("dev", "valid", "validation") and f"val/{score}" in metrics:
            near = [f"val/{score}"]
        raise ConfigError(
            f"schedule.{setting} {name!r} is not evaluated; there are {sorted(metrics)}."
            f"{suggestion(near)}"
        )
    return None if name is None else metrics[name]


def _is_better(value: float, best: float | None) -> bool:
    """Return whether a value is above the best one; an undefined value (NaN) never is."""
    return value > (-math.inf if best is None else best)
