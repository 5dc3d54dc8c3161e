"""Bootstrap intervals, paired permutation tests and means over seeds.

A score is a statistic of the counts of units (``core.unit_counts``): a mean of values, a ratio of
sums such as a micro F1, or a mean of such ratios. Resamples, permutations and leave-one-out scores
are computed from the same counts.

Shape letters: Q queries and U units (what is resampled or swapped), R resamples at once, T tests,
X bootstrap samples, S runs with different seeds, Z quantiles.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, ndtri, stdtr, stdtrit

from raybio.core.arrays import Floats
from raybio.core.unit_counts import RATIO, UnitCounts
from raybio.ops.closed_form_bootstrap import ratio_quantiles

_ENTRIES_AT_ONCE = 1 << 22
"""Entries of the arrays of resamples."""

_WEIGHTS_AT_ONCE = 1 << 20
"""Maximum size of an array of unit weights in samples; a few such arrays are in memory."""

_ROUNDING = 1e-12
"""Differences and deviations of scores up to this size are rounding errors."""

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
    """A score with its 95 % bootstrap interval, whose limits are NaN if unknown."""

    value: float
    low: float
    high: float

    def text(self, *, digits: int = 2, scale: float = 100.0) -> str:
        """Return "61.52 [59.01, 63.97]"; ``scale`` 100 shows percent.

        If the interval is unknown (NaN), return only the value.
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


def percentile_intervals(
    counts_by_name: Mapping[str, UnitCounts],
    rng: np.random.Generator,
    *,
    num_resamples: int = 1000,
) -> dict[str, Interval]:
    """Return scores with their 95 % bootstrap percentile intervals (Efron, 1979).

    All scores have the same samples. A few samples are drawn at a time: memory does not grow with
    units times samples.

    Args:
        counts_by_name: counts of the same units; the interval of a single one is unknown.
        rng: draws the samples.
        num_resamples: number of samples.
    """
    num_units = next(iter(counts_by_name.values())).num_units
    # One matrix product a block: many small ones take longer, most of all on several threads.
    flat = [counts.count_U.reshape(num_units, -1) for counts in counts_by_name.values()]
    flat_UC = np.concatenate(flat, axis=1, dtype=np.float64)
    ends = np.cumsum([part_UC.shape[1] for part_UC in flat])
    values_by_name: dict[str, list[Floats]] = {name: [] for name in counts_by_name}
    for weight_XU in _drawn_weights(num_units, rng, num_resamples):
        parts = np.split(weight_XU @ flat_UC, ends[:-1], axis=1)
        for (name, counts), mean_XC in zip(counts_by_name.items(), parts, strict=True):
            mean_X = mean_XC.reshape(len(weight_XU), *counts.count_U.shape[1:])
            values_by_name[name].append(counts.of_means(mean_X))
    intervals = {}
    for name, counts in counts_by_name.items():
        low = math.nan
        high = math.nan
        if num_units > 1:
            low, high = np.percentile(np.concatenate(values_by_name[name]), [2.5, 97.5]).tolist()
        intervals[name] = Interval(counts.value, low, high)
    return intervals


class DifferenceTest(NamedTuple):
    """A mean over runs, or the difference of two, with its interval and its two-sided p value."""

    difference: Interval
    p: float


@dataclass(frozen=True, eq=False)
class RunGroup:
    """Scores of runs on the same units; each run belongs to an independent draw, such as a seed.

    Attributes:
        runs: counts of each run.
        minus: counts, in each run, of a model whose score is subtracted; empty: no subtraction.
        draws: indices of the runs of each independent draw; None: each run is one. The score of a
            draw is the mean of its runs. If draws have unequal numbers of runs, their deviations
            from the mean over all runs are weighted by these numbers, which preserves that mean.
    """

    runs: Sequence[UnitCounts]
    minus: Sequence[UnitCounts] = ()
    draws: Sequence[Sequence[int]] | None = None

    @property
    def num_units(self) -> int:
        """U."""
        return self.runs[0].num_units

    @property
    def num_draws(self) -> int:
        """S."""
        return len(self.runs) if self.draws is None else len(self.draws)

    @property
    def value_S(self) -> Floats:
        """The score of each draw."""
        all_1U = np.full((1, self.num_units), 1 / self.num_units)
        return np.asarray(self.of_samples(all_1U)[0])

    def of_samples(self, weight_XU: Floats) -> Floats:
        """Return the scores (X, S) of samples of the units (``UnitCounts.of_samples``)."""
        values = [counts.of_samples(weight_XU) for counts in self.runs]
        minus = [counts.of_samples(weight_XU) for counts in self.minus]
        return self._of_draws(values, minus)

    def without_each(self) -> Floats:
        """Return the scores (U, S) without each unit in turn."""
        values = [counts.without_each() for counts in self.runs]
        minus = [counts.without_each() for counts in self.minus]
        return self._of_draws(values, minus)

    def _of_draws(self, values: Sequence[Floats], minus: Sequence[Floats]) -> Floats:
        value_XR = np.stack(values, axis=1)
        if minus:
            value_XR = value_XR - np.stack(minus, axis=1)
        if self.draws is None:
            return value_XR
        mean_X = value_XR.mean(axis=1)
        mean_runs = len(self.runs) / len(self.draws)
        columns = []
        for numbers in self.draws:
            deviation_X = value_XR[:, list(numbers)].mean(axis=1) - mean_X
            columns.append(mean_X + len(numbers) / mean_runs * deviation_X)
        return np.stack(columns, axis=1)


def hierarchical_mean(
    group: RunGroup, rng: np.random.Generator, *, shift: float = 0.0, num_resamples: int = 2000
) -> DifferenceTest:
    """Return the mean over runs and units with its interval, and the p value of a mean of 0.

    As in ``hierarchical_test``, resamples draw seeds, and units for all runs together; seeds have
    S - 1 degrees of freedom. For scores, the interval covers runs with other seeds on other units.
    The p value is also valid for differences from something without a seed, such as a fixed ranking
    of candidates, which varies only through the units. If both sides have the same seeds, pass
    their differences seed by seed as the scores (``RunGroup.minus``).

    Args:
        group: scores of at least two runs with different seeds.
        rng: draws the resamples.
        shift: added to the mean and to its interval.
        num_resamples: number of resamples.
    """
    (mean_N,) = _resampled_means((group,), rng, num_resamples)
    return _tested(mean_N, [group], shift)


def hierarchical_test(
    first: RunGroup,
    second: RunGroup,
    rng: np.random.Generator,
    *,
    shift: float = 0.0,
    num_resamples: int = 2000,
) -> DifferenceTest:
    """Test whether two groups of runs differ: a bootstrap over seeds and units.

    Seeds are drawn within each group, and units for all runs together (Saravanan, Berman and
    Sober 2020). The bootstrap of few seeds is too narrow, so deviations between seeds are widened
    by sqrt(S / (S - 1)) and by Student's t over the normal quantile, with Welch's degrees of
    freedom (those of one group if the seeds of the other hardly vary). This is an approximation:
    intervals of three runs against twenty with the same variance over seeds cover 91 %.
    ``_p_of_components`` computes p from the same two errors, of seeds and of units: a bootstrap of
    three seeds has only 27 outcomes, and a permutation of three against three runs only 20, so
    neither can give a small p.

    Args:
        first: scores of at least two runs with different seeds.
        second: scores of the other group on the same units; its number of seeds may differ.
        rng: draws the resamples.
        shift: added to the difference and to its interval.
        num_resamples: number of resamples.
    """
    first_N, second_N = _resampled_means((first, second), rng, num_resamples)
    return _tested(first_N - second_N, [first, second], shift)


def interval_over_units(
    groups: Sequence[RunGroup],
    rng: np.random.Generator,
    *,
    shift: float = 0.0,
    num_resamples: int = 1000,
) -> Interval:
    """Return the mean score of one group, or the difference of two, with its interval over units.

    It does not cover other seeds. For a single unit it is NaN.

    Args:
        groups: one or two groups, on the same units.
        rng: draws the resamples.
        shift: added to the score and to its interval.
        num_resamples: number of resamples.
    """
    observed = _observed(groups) + shift
    if groups[0].num_units == 1:
        return Interval(observed, math.nan, math.nan)
    values = [
        _difference([group.of_samples(weight_XU) for group in groups])
        for weight_XU in _drawn_weights(groups[0].num_units, rng, num_resamples)
    ]
    return _around(observed, np.concatenate(values) + shift)


def _difference(values: Sequence[Floats]) -> Floats:
    """Return the means (X,) over the draws of one group (X, S), or the difference of two."""
    first_X, *others = (value_XS.mean(axis=1) for value_XS in values)
    return np.asarray(first_X - others[0] if others else first_X)


def _observed(groups: Sequence[RunGroup]) -> float:
    return float(_difference([group.value_S[None] for group in groups])[0])


def _drawn_weights(
    num_units: int, rng: np.random.Generator, num_resamples: int
) -> Iterator[Floats]:
    """Yield blocks (R, U) of the weights of units in bootstrap samples."""
    rows = max(1, _WEIGHTS_AT_ONCE // num_units)
    for start in range(0, num_resamples, rows):
        num_rows = min(rows, num_resamples - start)
        drawn_RU = rng.integers(0, num_units, (num_rows, num_units))
        drawn_RU += num_units * np.arange(num_rows)[:, None]
        count_RU = np.bincount(drawn_RU.ravel(), minlength=num_rows * num_units)
        yield count_RU.reshape(num_rows, num_units) / num_units


def _resampled_means(
    groups: Sequence[RunGroup], rng: np.random.Generator, num_resamples: int
) -> list[Floats]:
    """Return the means (num_resamples,) of each group, over drawn seeds and units."""
    _, degrees = _seed_error(groups)
    quantile = float(stdtrit(degrees, 0.975) / ndtri(0.975))
    blocks: list[list[Floats]] = [[] for _ in groups]
    for weight_RU in _drawn_weights(groups[0].num_units, rng, num_resamples):
        for group, means in zip(groups, blocks, strict=True):
            num_seeds = group.num_draws
            mean_RS = group.of_samples(weight_RU)
            drawn_RS = rng.integers(0, num_seeds, mean_RS.shape)
            seed_mean_R = np.take_along_axis(mean_RS, drawn_RS, axis=1).mean(axis=1)
            all_R = mean_RS.mean(axis=1)
            widened = quantile * np.sqrt(num_seeds / (num_seeds - 1))
            means.append(all_R + widened * (seed_mean_R - all_R))
    return [np.concatenate(means) for means in blocks]


def _tested(resampled_N: Floats, groups: Sequence[RunGroup], shift: float) -> DifferenceTest:
    observed = _observed(groups) + shift
    return DifferenceTest(
        _around(observed, resampled_N + shift), _p_of_components(observed, groups)
    )


def _around(observed: float, resampled_N: Floats) -> Interval:
    low, high = np.percentile(resampled_N, [2.5, 97.5]).tolist()
    # Rounding may put a score that all units share outside of its own interval.
    return Interval(observed, min(low, observed), max(high, observed))


def _p_of_components(observed: float, groups: Sequence[RunGroup]) -> float:
    """Return the p value of a mean, or a difference of two means, over seeds and units.

    The errors that are due to units and to seeds are estimated separately. The error of units is a
    jackknife estimate (Efron and Stein 1981), which for means is the standard error of the values.
    """
    if abs(observed) <= _ROUNDING:
        return 1.0
    num_units = groups[0].num_units
    unit_error = 0.0
    if num_units > 1:
        unit_error = float(without_each_unit(groups).std() * math.sqrt(num_units - 1))
    seed_error, seed_degrees = _seed_error(groups)
    if max(unit_error, seed_error) <= _ROUNDING:
        # All units of all runs have the same difference: no permutation gives a smaller p.
        return float(2.0 ** (1 - num_units))
    units = (unit_error, max(num_units - 1, 1))
    return _behrens_fisher_p(observed, (seed_error, seed_degrees), units)


def _behrens_fisher_p(
    mean: float, first: tuple[float, float], second: tuple[float, float]
) -> float:
    """Return the two-sided p value of a mean with two independent errors (Fisher 1935).

    It is P(|a T_m + b T_n| >= |mean|), where T_m and T_n are independent and have Student's t with
    m and n degrees of freedom: 2 E[F_n((-a T_m - |mean|) / b)] for the distribution function F_n.
    Each error thus has its own degrees of freedom. Few seeds estimate their error poorly, however
    many units there are, but this matters only as far as seeds contribute to the sum.

    Args:
        mean: the mean, or difference of means.
        first: estimated standard error and its degrees of freedom.
        second: likewise; one of the errors may be 0.
    """
    # The expectation is a sum over quantiles of T_m, equidistant in their logits. F_n has the
    # larger error, so the terms have no steps. p above 1e-15 is exact to 1 %, also for a mean of 60
    # errors.
    (a, m), (b, n) = sorted((first, second))
    logit_Z = np.linspace(-40, 40, 1601)
    quantile_Z = np.copysign(stdtrit(m, expit(-np.abs(logit_Z))), logit_Z)
    weight_Z = expit(logit_Z) * expit(-logit_Z) * (logit_Z[1] - logit_Z[0])
    tail_Z = stdtr(n, (-a * quantile_Z - abs(mean)) / b)
    return float(min(2 * weight_Z @ tail_Z, 1.0))


def without_each_unit(groups: Sequence[RunGroup]) -> Floats:
    """Return the mean of one group, or the difference of two, without each unit (U,).

    It is NaN for a single unit.
    """
    return _difference([group.without_each() for group in groups])


def _seed_error(groups: Sequence[RunGroup]) -> tuple[float, float]:
    """Return the standard error that is due to the seeds of all groups, and its degrees of freedom.

    The degrees of freedom follow Welch (1947).
    """
    variances = [float(group.value_S.var(ddof=1)) / group.num_draws for group in groups]
    return _sum_of_variances(variances, [group.num_draws - 1 for group in groups])


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
    """Return the mean of S >= 2 values, its 95 % interval, and the p value of a mean of 0.

    Interval and p value use Student's t with S - 1 degrees of freedom.

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
        second_S: at least two scores of other runs; their variance may differ.
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
    """Test whether two systems' ratios with the same denominators differ (``swap_test``).

    Args:
        first_Q: numerators of the first system.
        second_Q: numerators of the second system, on the same queries.
        denominator_Q: denominators of both systems.
        rng: draws the permutations.
        num_permutations: number of permutations.

    Raises:
        ValueError: if the arrays do not fit together, or the denominators are all 0.
    """
    first, second = (
        UnitCounts(np.stack(_checked(numerator_Q, denominator_Q), axis=1), RATIO)
        for numerator_Q in (first_Q, second_Q)
    )
    return swap_test(first, second, rng, num_permutations=num_permutations)


def swap_test(
    first: UnitCounts,
    second: UnitCounts,
    rng: np.random.Generator,
    *,
    num_permutations: int = 10_000,
) -> PairedTest:
    """Test whether two systems' scores differ: two-sided paired permutation test.

    Under the null hypothesis the two results of a unit are exchangeable, so a permutation swaps the
    counts of some units. p = (1 + permutations at least as far from 0) / (1 + permutations), which
    is never 0 (Phipson and Smyth, 2010). It cannot fall far below 2^(1 - U).

    Args:
        first: counts of the first system.
        second: counts of the second system, of the same units and the same statistic.
        rng: draws the permutations.
        num_permutations: number of permutations.
    """
    observed = first.value - second.value
    first_QC, second_QC = (
        counts.count_U.reshape(counts.num_units, -1).astype(np.float64)
        for counts in (first, second)
    )
    difference_QC = first_QC - second_QC
    # Means that are mathematically equal may differ in their last bits.
    scale = max(abs(first.value), abs(second.value), np.abs(difference_QC).mean(axis=0).max())
    threshold = abs(observed) - 1e-12 * scale
    # Units with equal counts can be swapped without effect.
    difference_KC = difference_QC[difference_QC.any(axis=1)]
    shape = first.count_U.shape[1:]
    num_as_far = 0
    rows = max(1, _ENTRIES_AT_ONCE // max(len(difference_KC), 1))
    for start in range(0, num_permutations, rows):
        num_rows = min(rows, num_permutations - start)
        is_swapped_RK = rng.integers(0, 2, (num_rows, len(difference_KC)), dtype=np.int8)
        moved_RC = is_swapped_RK @ difference_KC / first.num_units
        first_R = first.of_means((first_QC.mean(axis=0) - moved_RC).reshape(num_rows, *shape))
        second_R = second.of_means((second_QC.mean(axis=0) + moved_RC).reshape(num_rows, *shape))
        num_as_far += int((np.abs(first_R - second_R) >= threshold).sum())
    p = (1 + num_as_far) / (1 + num_permutations)
    return PairedTest(observed, p)


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
