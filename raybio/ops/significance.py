"""Bootstrap intervals, paired permutation tests and means over seeds.

Every score here is a ratio of sums, ``numerator_Q.sum() / denominator_Q.sum()``. With the counts of
each query it is a micro average; with the value of each query over 1 it is a macro mean.

Shape letters: Q queries (or other units that are resampled or swapped), R resamples at once, T
tests. U units, C counts of a unit, X bootstrap samples.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, stdtr, stdtrit

from raybio.ops.closed_form_bootstrap import ratio_quantiles

_ENTRIES_AT_ONCE = 1 << 22
"""Entries of the arrays of resamples."""

MAX_RESAMPLED_UNITS = 10_000
"""With more units, intervals are computed in closed form, which takes milliseconds instead of
minutes and differs from 20,000 resamples by less than 2 % of the width; 1,000 resamples differ by
as much from each other."""

Numbers = NDArray[np.integer[Any]] | NDArray[np.floating[Any]]


class PairedTest(NamedTuple):
    """The difference of two systems' scores, and its two-sided p value."""

    difference: float
    p: float


class SeedMean(NamedTuple):
    """Mean and standard deviation (n - 1, NaN for a single run) over runs with different seeds."""

    mean: float
    deviation: float
    num: int

    def text(self, *, digits: int = 1, scale: float = 100.0) -> str:
        """Return "61.5 ± 0.4", or only the mean of a single run; ``scale`` 100 shows percent."""
        mean = f"{scale * self.mean:.{digits}f}"
        return mean if self.num == 1 else f"{mean} ± {scale * self.deviation:.{digits}f}"


def mean_over_seeds(value_S: Sequence[float]) -> SeedMean:
    """Return the mean and standard deviation of a score over seeds.

    Raises:
        ValueError: without any value.
    """
    values = np.asarray(value_S, np.float64)
    if len(values) == 0:
        raise ValueError("there are no values to take a mean of")
    deviation = float(values.std(ddof=1)) if len(values) > 1 else float("nan")
    return SeedMean(float(values.mean()), deviation, len(values))


class Interval(NamedTuple):
    """A score with its 95 % bootstrap interval; NaN where that is unknown."""

    value: float
    low: float
    high: float

    def text(self, *, digits: int = 2, scale: float = 100.0) -> str:
        """Return "61.52 [59.01, 63.97]"; ``scale`` 100 shows percent.

        Where the interval is unknown (NaN), only the value.
        """
        value, low, high = (f"{scale * number:.{digits}f}" for number in self)
        return value if math.isnan(self.low) else f"{value} [{low}, {high}]"


def ratio_interval(
    numerator_Q: Numbers,
    denominator_Q: Numbers,
    rng: np.random.Generator,
    *,
    num_resamples: int = 1000,
) -> Interval:
    """Return the ratio of sums with its 95 % bootstrap percentile interval (Efron, 1979).

    The interval reflects the choice of queries only: candidates and the scores of each query are
    fixed. With very few queries it is too narrow, and with a single one unknown: NaN. Resamples
    whose denominators are all 0 are skipped.

    With more than ``MAX_RESAMPLED_UNITS`` queries the quantiles are those of infinitely many
    resamples by ``ops.closed_form_bootstrap``, unless few queries dominate the sums.

    Args:
        numerator_Q: achieved score of each query.
        denominator_Q: achievable score of each query, >= 0.
        rng: draws the resamples.
        num_resamples: number of resamples.

    Raises:
        ValueError: if the arrays do not fit together, or the denominators are all 0.
    """
    numerator, denominator = _checked(numerator_Q, denominator_Q)
    num_queries = len(numerator)
    if num_queries == 1:
        return Interval(float(numerator[0] / denominator[0]), math.nan, math.nan)
    if num_queries > MAX_RESAMPLED_UNITS:
        interval = closed_form_interval(numerator, denominator, np.zeros(1, np.int64))
        if interval is not None:
            return interval
    ratios = np.full(num_resamples, np.nan)
    rows = max(1, _ENTRIES_AT_ONCE // num_queries)
    for start in range(0, num_resamples, rows):
        drawn_RQ = rng.integers(0, num_queries, (min(rows, num_resamples - start), num_queries))
        total_R = denominator[drawn_RQ].sum(axis=1)
        block = ratios[start : start + len(drawn_RQ)]
        np.divide(numerator[drawn_RQ].sum(axis=1), total_R, out=block, where=total_R > 0)
    low, high = np.nanpercentile(ratios, [2.5, 97.5])
    return Interval(float(numerator.sum() / denominator.sum()), float(low), float(high))


def closed_form_interval(
    numerator_Q: Numbers, denominator_Q: Numbers, start_G: NDArray[np.integer[Any]]
) -> Interval | None:
    """Return the ratio of sums with its 95 % percentile interval, without resamples.

    Args:
        numerator_Q: achieved score of each query, in order of stratum. Queries are drawn within
            their stratum.
        denominator_Q: achievable score of each query, whose sum is above 0; ones for a mean.
        start_G: first query of each stratum, ascending from 0.

    Returns:
        None if few queries dominate the sums: such an interval needs resamples.
    """
    numerator = np.asarray(numerator_Q, np.float64)
    denominator = np.asarray(denominator_Q, np.float64)
    quantiles = ratio_quantiles(numerator, denominator, start_G, float(ndtri(0.975)))
    if quantiles is None:
        return None
    return Interval(float(numerator.sum() / denominator.sum()), *quantiles)


def mean_interval(
    value_Q: Numbers, rng: np.random.Generator, *, num_resamples: int = 1000
) -> Interval:
    """Return the mean with its interval; arguments as for ``ratio_interval``."""
    return ratio_interval(value_Q, np.ones(len(value_Q)), rng, num_resamples=num_resamples)


def resampled_sums(
    count_UC: Numbers, rng: np.random.Generator, num_resamples: int = 1000
) -> NDArray[np.float64]:
    """Return the sums (X, C) of the counts over bootstrap samples of the units.

    One sample is drawn at a time: memory does not grow with units times samples.
    """
    counts = count_UC.astype(np.float64)
    num_units = len(counts)
    probability_U = np.full(num_units, 1 / num_units)
    sum_XC = np.empty((num_resamples, counts.shape[1]))
    for sum_C in sum_XC:
        sum_C[:] = rng.multinomial(num_units, probability_U) @ counts
    return sum_XC


def percentile_intervals(
    value_by_name: Mapping[str, float],
    resampled_by_name: Mapping[str, NDArray[np.floating[Any]]],
    num_units: int,
) -> dict[str, Interval]:
    """Return values with their 95 % bootstrap percentile intervals (Efron, 1979).

    Args:
        value_by_name: the values over all units.
        resampled_by_name: the same of each bootstrap sample, (X,).
        num_units: units that the samples were drawn from; the interval of a single one is unknown.
    """
    intervals = {}
    for name, value in value_by_name.items():
        low = math.nan
        high = math.nan
        if num_units > 1:
            low, high = np.percentile(resampled_by_name[name], [2.5, 97.5]).tolist()
        intervals[name] = Interval(value, low, high)
    return intervals


class DifferenceTest(NamedTuple):
    """A mean over runs, or the difference of two, with its interval and its two-sided p value."""

    difference: Interval
    p: float


def hierarchical_mean(
    value_SQ: NDArray[np.float64], rng: np.random.Generator, *, num_resamples: int = 2000
) -> DifferenceTest:
    """Return the mean over runs and queries with its interval, and the p value of a mean of 0.

    Seeds are drawn, and queries for all runs together, as in ``hierarchical_test``, with S - 1
    degrees of freedom. For scores, the interval says what runs with other seeds on other queries
    would give. For differences from something without a seed, such as a fixed ranking of
    candidates, the p value is valid: seeds of the runs and queries are random, and the fixed side
    adds no variance but through the queries. Where both sides have the same seeds, their
    differences seed by seed are the values.

    Args:
        value_SQ: values of the queries in at least two runs with different seeds.
        rng: draws the resamples.
        num_resamples: number of resamples.
    """
    (mean_N,) = _resampled_means((value_SQ,), rng, num_resamples)
    return _tested(float(value_SQ.mean()), mean_N, [value_SQ])


def hierarchical_test(
    first_SQ: NDArray[np.float64],
    second_SQ: NDArray[np.float64],
    rng: np.random.Generator,
    *,
    num_resamples: int = 2000,
) -> DifferenceTest:
    """Test whether two groups of runs differ: a bootstrap over seeds and queries.

    Seeds are drawn within each group, and queries for all runs together (Saravanan, Berman and
    Sober 2020). The bootstrap of few seeds is too narrow, so deviations between seeds are widened
    by sqrt(S / (S - 1)) and by Student's t over the normal quantile, with Welch's degrees of
    freedom: those of one group where the seeds of the other hardly vary. They are an approximation:
    intervals of three runs against twenty whose seeds vary as much cover 91 %. p is that of
    ``_p_of_components``: a bootstrap of three seeds has 27 outcomes and knows no small p, and a
    permutation of three against three runs has 20 orders.

    Args:
        first_SQ: values of the queries in at least two runs with different seeds.
        second_SQ: those of the other group, whose number of seeds may differ.
        rng: draws the resamples.
        num_resamples: number of resamples.
    """
    first_N, second_N = _resampled_means((first_SQ, second_SQ), rng, num_resamples)
    observed = float(first_SQ.mean() - second_SQ.mean())
    return _tested(observed, first_N - second_N, [first_SQ, second_SQ])


def _resampled_means(
    groups: Sequence[NDArray[np.float64]], rng: np.random.Generator, num_resamples: int
) -> list[NDArray[np.float64]]:
    """Return the means (num_resamples,) of each group (S, Q), over drawn seeds and queries."""
    num_queries = groups[0].shape[1]
    _, degrees = _seed_error(groups)
    quantile = float(stdtrit(degrees, 0.975) / ndtri(0.975))
    means = [np.empty(num_resamples) for _ in groups]
    rows = max(1, _ENTRIES_AT_ONCE // num_queries)
    for start in range(0, num_resamples, rows):
        num_rows = min(rows, num_resamples - start)
        drawn_RQ = rng.integers(0, num_queries, (num_rows, num_queries))
        drawn_RQ += num_queries * np.arange(num_rows)[:, None]
        count_RQ = np.bincount(drawn_RQ.ravel(), minlength=num_rows * num_queries)
        share_RQ = count_RQ.reshape(num_rows, num_queries) / num_queries
        for value_SQ, mean_N in zip(groups, means, strict=True):
            num_seeds = len(value_SQ)
            mean_RS = share_RQ @ value_SQ.T
            drawn_RS = rng.integers(0, num_seeds, (num_rows, num_seeds))
            seed_mean_R = np.take_along_axis(mean_RS, drawn_RS, axis=1).mean(axis=1)
            all_R = mean_RS.mean(axis=1)
            widened = quantile * np.sqrt(num_seeds / (num_seeds - 1))
            mean_N[start : start + num_rows] = all_R + widened * (seed_mean_R - all_R)
    return means


def _tested(
    observed: float, resampled_N: NDArray[np.float64], groups: Sequence[NDArray[np.float64]]
) -> DifferenceTest:
    low, high = np.percentile(resampled_N, [2.5, 97.5]).tolist()
    # Rounding may put a score that all units share outside of its own interval.
    interval = Interval(observed, min(low, observed), max(high, observed))
    return DifferenceTest(interval, _p_of_components(observed, groups))


def _p_of_components(observed: float, groups: Sequence[NDArray[np.float64]]) -> float:
    """Return the p value of a mean, or a difference of two means, over seeds and queries.

    The variance is the sum of what queries and the seeds of each group (S, Q) contribute, each
    estimated by itself. Student's t has the degrees of freedom of the seeds alone (Welch 1947):
    few seeds know little of their own variance, however many queries there are. Where queries
    contribute most, p is larger than it need be.
    """
    # A difference that rounding leaves between equal runs is none.
    if abs(observed) <= 1e-12:
        return 1.0
    value_Q = groups[0].mean(axis=0)
    if len(groups) > 1:
        value_Q = value_Q - groups[1].mean(axis=0)
    query_variance = float(value_Q.var(ddof=1)) / len(value_Q) if len(value_Q) > 1 else 0.0
    seed_error, degrees = _seed_error(groups)
    if seed_error == 0 and len(value_Q) > 1:
        # Equal runs, as of a method without a seed: only queries vary.
        degrees = len(value_Q) - 1
    return _t_test(observed, math.sqrt(query_variance + seed_error**2), degrees).p


def _seed_error(groups: Sequence[NDArray[np.float64]]) -> tuple[float, float]:
    """Return the standard error of what the seeds of groups (S, Q) add, and its degrees of freedom.

    The degrees are those of Welch (1947).
    """
    variances = [float(value_SQ.mean(axis=1).var(ddof=1)) / len(value_SQ) for value_SQ in groups]
    return _sum_of_variances(variances, [len(value_SQ) - 1 for value_SQ in groups])


def _sum_of_variances(
    variances: Sequence[float], degrees_by_part: Sequence[int]
) -> tuple[float, float]:
    """Return the root of the sum of variances, and its degrees of freedom (Satterthwaite 1946)."""
    variance = sum(variances)
    squares = [own**2 / number for own, number in zip(variances, degrees_by_part, strict=True)]
    # Squares of tiny variances may be 0.
    degrees = variance**2 / sum(squares) if sum(squares) > 0 else float(min(degrees_by_part))
    return math.sqrt(variance), degrees


def t_mean(value_S: Sequence[float], *, overlap: float = 0.0) -> DifferenceTest:
    """Return the mean of S >= 2 values with its 95 % interval, and p of a mean of 0.

    Both are by Student's t with S - 1 degrees of freedom.

    The variance of the mean is s^2 (1 / S + overlap): the corrected resampled t-test (Nadeau and
    Bengio 2003).

    Args:
        value_S: scores of independent runs, or differences of two models.
        overlap: test rows over training rows, if runs share training rows. In a cross-validation
            of K folds it is 1 / (K - 1).
    """
    values = np.asarray(value_S, np.float64)
    error = float(values.std(ddof=1) * np.sqrt(1 / len(values) + overlap))
    return _t_test(float(values.mean()), error, len(values) - 1)


def welch_test(first_S: Sequence[float], second_S: Sequence[float]) -> DifferenceTest:
    """Return the difference of two means with its 95 % interval and p: Welch's t-test.

    Args:
        first_S: at least two scores of independent runs.
        second_S: those of other runs, whose variance may differ.
    """
    variances = []
    degrees_by_side = []
    for values in (np.asarray(first_S, np.float64), np.asarray(second_S, np.float64)):
        variances.append(float(values.var(ddof=1)) / len(values))
        degrees_by_side.append(len(values) - 1)
    difference = float(np.mean(first_S) - np.mean(second_S))
    return _t_test(difference, *_sum_of_variances(variances, degrees_by_side))


def _t_test(mean: float, error: float, degrees: float) -> DifferenceTest:
    half = float(stdtrit(degrees, 0.975)) * error
    p = 1.0 if mean == 0 else 0.0
    if error > 0:
        p = float(2 * stdtr(degrees, -abs(mean) / error))
    return DifferenceTest(Interval(mean, mean - half, mean + half), p)


def paired_test(
    first_Q: Numbers,
    second_Q: Numbers,
    denominator_Q: Numbers,
    rng: np.random.Generator,
    *,
    num_permutations: int = 10_000,
) -> PairedTest:
    """Test whether two systems' ratios differ: two-sided paired permutation test.

    Under the null hypothesis the two scores of a query are exchangeable, so a permutation flips the
    signs of some differences. p = (1 + permutations at least as far from 0) / (1 + permutations),
    which is never 0 (Phipson and Smyth, 2010). It cannot fall far below 2^(1 - Q).

    Args:
        first_Q: numerators of the first system.
        second_Q: numerators of the second system, on the same queries.
        denominator_Q: denominators of both systems.
        rng: draws the permutations.
        num_permutations: number of permutations.

    Raises:
        ValueError: if the arrays do not fit together, or the denominators are all 0.
    """
    first, denominator = _checked(first_Q, denominator_Q)
    second, _ = _checked(second_Q, denominator_Q)
    difference_Q = first - second
    observed = difference_Q.sum()
    # Sums that are mathematically equal may differ in their last bits.
    threshold = abs(observed) - 1e-12 * np.abs(difference_Q).sum()
    nonzero_Q = difference_Q[difference_Q != 0]
    num_as_far = 0
    rows = max(1, _ENTRIES_AT_ONCE // max(len(nonzero_Q), 1))
    for start in range(0, num_permutations, rows):
        shape = (min(rows, num_permutations - start), len(nonzero_Q))
        is_swapped_RQ = rng.integers(0, 2, shape, dtype=np.int8)
        sum_R = nonzero_Q.sum() - 2 * (is_swapped_RQ @ nonzero_Q)
        num_as_far += int((np.abs(sum_R) >= threshold).sum())
    p = (1 + num_as_far) / (1 + num_permutations)
    return PairedTest(float(observed / denominator.sum()), p)


def holm(p_T: Sequence[float]) -> NDArray[np.float64]:
    """Return the p values of T tests, adjusted for multiple testing (Holm, 1979).

    The smallest is multiplied by T, the next by T - 1, and so on. Adjusted values keep the order
    and are at most 1. The probability that any true null hypothesis falls below a level is at most
    that level.
    """
    p = np.asarray(p_T, np.float64)
    order = np.argsort(p, kind="stable")
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(1, np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)))
    return adjusted


def _checked(
    numerator_Q: Numbers, denominator_Q: Numbers
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    numerator = np.asarray(numerator_Q, np.float64)
    denominator = np.asarray(denominator_Q, np.float64)
    if numerator.shape != denominator.shape or numerator.ndim != 1:
        raise ValueError(
            f"numerators {numerator.shape} and denominators {denominator.shape}: want one of each "
            "a query"
        )
    if not (np.isfinite(numerator).all() and (denominator >= 0).all() and denominator.sum() > 0):
        raise ValueError(
            "want finite numerators, and denominators >= 0 that are not all 0; skip empty queries"
        )
    return numerator, denominator
