"""Intervals and paired tests of scores of a task.

Shape letters: U units.
"""

import math
from collections.abc import Sequence

import numpy as np

from raybio.benchmark.task import TaskScores
from raybio.core.final_report import UnitScores
from raybio.core.randomness import derive_seed
from raybio.core.unit_counts import RATIO, UnitCounts
from raybio.evaluation.unit_scores import interval_over_runs
from raybio.ops.significance import (
    DifferenceTest,
    Interval,
    RunGroup,
    interval_over_units,
    ratio_interval,
    swap_test,
    without_each_unit,
)


def task_seed(seed: int, task: str) -> int:
    """Return the seed of all resamples of a task, the same as in ``raybio evaluate zero-shot``."""
    return int(np.random.default_rng(derive_seed(seed, task)).integers(2**63))


Limits = tuple[float, float]
"""The lowest and the highest possible score."""

_ROUNDING = 1e-12
"""A difference that rounding leaves between equal scores."""

_NO_LIMITS = (-math.inf, math.inf)


def score_interval(scores: TaskScores, seed: int, limits: Limits = _NO_LIMITS) -> Interval:
    """Return the score with its 95 % bootstrap interval over units; NaN where it is undefined.

    If the units are a sample, the sample's interval is shifted to the score. It is cut at the
    limits; no true score lies beyond them, so its coverage does not change.
    """
    if not _is_finite(scores):
        return Interval(scores.score, math.nan, math.nan)
    of_units = ratio_interval(scores.numerator_U, scores.denominator_U, np.random.default_rng(seed))
    return _within(limits, of_units if scores.value is None else _around(scores.value, of_units))


def difference_test(
    first: TaskScores, second: TaskScores, seed: int, limits: Limits = _NO_LIMITS
) -> DifferenceTest | None:
    """Return the difference of two scores; None where it is undefined.

    The interval is a bootstrap over the units that both scores share. p is from a paired
    permutation test, which swaps the counts of units. If the units are a sample, their difference
    is shifted to the difference of the scores, with interval and p. The interval is cut to the
    differences that two scores within the limits can have.
    """
    if first.unit_ids != second.unit_ids or not (_is_finite(first) and _is_finite(second)):
        return None
    if len(first.unit_ids) < 2:
        return None
    first_counts = _counts(first)
    second_counts = _counts(second)
    shift = first.score - second.score - (first_counts.value - second_counts.value)
    # Shifted units that do not differ would give a certain result without any evidence.
    if abs(shift) > _ROUNDING and _is_varied(first_counts, second_counts):
        first_counts = _counts(first, shift)
    p = swap_test(first_counts, second_counts, np.random.default_rng(seed)).p
    rng = np.random.default_rng(seed)
    whole_U = first.denominator_U
    if np.allclose(whole_U, second.denominator_U):
        # The difference is a ratio itself, which has a closed form for many units.
        part_U = first_counts.count_U[:, 0] - second_counts.count_U[:, 0]
        of_units = ratio_interval(part_U, whole_U, rng)
    else:
        of_units = interval_over_units(_groups(first_counts, second_counts), rng)
    span = limits[1] - limits[0]
    difference = _around(first.score - second.score, of_units)
    return DifferenceTest(_within((-span, span), difference), p)


def interval_of_seeds(of_runs: Sequence[TaskScores], limits: Limits = _NO_LIMITS) -> Interval:
    """Return the mean score of runs that differ in their seed, with its 95 % interval.

    It is a bootstrap over seeds and units; NaN where the units of the runs differ or their scores
    are undefined.
    """
    score_S = [scores.score for scores in of_runs]
    has_units = len({scores.unit_ids for scores in of_runs}) == 1
    if not has_units or not all(map(_is_finite, of_runs)):
        return Interval(float(np.mean(score_S)), math.nan, math.nan)
    units = np.arange(len(of_runs[0].unit_ids))
    found = [
        UnitScores(units, {"score": _counts(scores).count_U}, {"score": RATIO})
        for scores in of_runs
    ]
    return _within(limits, interval_over_runs(score_S, found, "score"))


def _counts(scores: TaskScores, shift: float = 0.0) -> UnitCounts:
    """Return the counts of units; ``shift`` is added to their score."""
    part_U = scores.numerator_U + shift * scores.denominator_U
    return UnitCounts(np.stack([part_U, scores.denominator_U], axis=-1), RATIO)


def _is_varied(first: UnitCounts, second: UnitCounts) -> bool:
    """Return whether units differ in the difference of two scores."""
    return bool(np.ptp(without_each_unit(_groups(first, second))) > _ROUNDING)


def _groups(*counts: UnitCounts) -> list[RunGroup]:
    return [RunGroup([each]) for each in counts]


def mean_of_tasks(intervals: Sequence[Interval]) -> Interval:
    """Return the mean score of tasks, with the mean of their intervals.

    Tasks may share inputs. However they depend on each other, the standard deviation of a mean is
    at most the mean of the standard deviations, so the interval is conservative. It is NaN if the
    interval of any task is.
    """
    values = [interval.value for interval in intervals]
    if not values or not np.isfinite(values).all():
        return Interval(math.nan, math.nan, math.nan)
    return Interval(*np.mean(intervals, axis=0).tolist())


def _around(value: float, of_units: Interval) -> Interval:
    """Return the interval of a sample of units, shifted to the score of all units."""
    shift = value - of_units.value
    return Interval(value, of_units.low + shift, of_units.high + shift)


def _within(limits: Limits, interval: Interval) -> Interval:
    low, high = np.clip([interval.low, interval.high], *limits).tolist()
    return Interval(interval.value, low, high)


def _is_finite(scores: TaskScores) -> bool:
    values_U = np.concatenate([scores.numerator_U, scores.denominator_U])
    return bool(np.isfinite(values_U).all()) and scores.denominator_U.sum() > 0
