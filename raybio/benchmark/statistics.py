"""Intervals and paired tests of scores of a task.

Shape letters: U units.
"""

import math
from collections.abc import Sequence

import numpy as np

from raybio.benchmark.task import TaskScores
from raybio.core.randomness import derive_seed
from raybio.evaluation.unit_scores import linear_share
from raybio.ops.significance import Interval, PairedTest, paired_test, ratio_interval


def task_seed(seed: int, task: str) -> int:
    """Return the seed of all resamples of a task: those of ``raybio evaluate zero-shot``."""
    return int(np.random.default_rng(derive_seed(seed, task)).integers(2**63))


def score_interval(scores: TaskScores, seed: int) -> Interval:
    """Return the score with its 95 % bootstrap interval over units; NaN where it is undefined.

    Where the units are a sample, the interval is that of the sample, around the score.
    """
    if not _is_finite(scores):
        return Interval(scores.score, math.nan, math.nan)
    of_units = ratio_interval(scores.numerator_U, scores.denominator_U, np.random.default_rng(seed))
    if scores.value is None:
        return of_units
    shift = scores.value - of_units.value
    return Interval(scores.value, of_units.low + shift, of_units.high + shift)


def difference_test(first: TaskScores, second: TaskScores, seed: int) -> PairedTest | None:
    """Return the paired permutation test of two scores; None where it is undefined.

    Where both could achieve different totals, as with F1, each unit's contribution is linearized
    (the delta method).
    """
    if first.unit_ids != second.unit_ids or not (_is_finite(first) and _is_finite(second)):
        return None
    if len(first.unit_ids) < 2:
        return None
    rng = np.random.default_rng(seed)
    total = first.denominator_U.sum()
    if math.isclose(total, second.denominator_U.sum()):
        return paired_test(first.numerator_U, second.numerator_U, first.denominator_U, rng)
    first_U = linear_share(first.numerator_U, first.denominator_U)
    second_U = linear_share(second.numerator_U, second.denominator_U)
    return paired_test(first_U, second_U, np.ones(len(first_U)), rng)


def mean_of_tasks(intervals: Sequence[Interval]) -> Interval:
    """Return the mean score of tasks; units of different tasks count as independent."""
    values = [interval.value for interval in intervals]
    if not values or not np.isfinite(values).all():
        return Interval(math.nan, math.nan, math.nan)
    mean = float(np.mean(values))
    below = math.hypot(*(each.value - each.low for each in intervals)) / len(values)
    above = math.hypot(*(each.high - each.value for each in intervals)) / len(values)
    return Interval(mean, mean - below, mean + above)


def _is_finite(scores: TaskScores) -> bool:
    values_U = np.concatenate([scores.numerator_U, scores.denominator_U])
    return bool(np.isfinite(values_U).all()) and scores.denominator_U.sum() > 0
