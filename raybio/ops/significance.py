"""How sure a share is: intervals over the queries asked, and whether two systems differ on the same queries.

Q queries (or other units that are drawn or swapped), R resamples at once. Every number here is a ratio of sums,
``numerator_Q.sum() / denominator_Q.sum()``: a micro average with the counts of each query, a macro mean with its own
value over 1.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_ENTRIES_AT_ONCE = 1 << 22


Numbers = NDArray[np.integer[Any]] | NDArray[np.float64]


class PairedTest(NamedTuple):
    """What one system has more than the other, and how often chance alone gives at least that much either way."""

    difference: float
    p: float


class SeedMean(NamedTuple):
    """Mean over repetitions that differ in their seed, and their standard deviation (n - 1); NaN for one alone."""

    mean: float
    deviation: float
    num: int

    def text(self, *, digits: int = 1, scale: float = 100.0) -> str:
        """Such as "61.5 ± 0.4", in percent unless ``scale`` says otherwise; the mean alone where there is one."""
        mean = f"{scale * self.mean:.{digits}f}"
        return mean if self.num == 1 else f"{mean} ± {scale * self.deviation:.{digits}f}"


def mean_over_seeds(value_S: Sequence[float]) -> SeedMean:
    """Mean and standard deviation of one number over repetitions.

    Raises:
        ValueError: without any.
    """
    values = np.asarray(value_S, np.float64)
    if len(values) == 0:
        raise ValueError("there are no repetitions to take a mean of")
    deviation = float(values.std(ddof=1)) if len(values) > 1 else float("nan")
    return SeedMean(float(values.mean()), deviation, len(values))


class Interval(NamedTuple):
    """A value with the bounds that 95 % of the resamples fall between."""

    value: float
    low: float
    high: float


def ratio_interval(
    numerator_Q: Numbers,
    denominator_Q: Numbers,
    rng: np.random.Generator,
    *,
    num_resamples: int = 1000,
) -> Interval:
    """The ratio of sums, with the 95 % percentile interval of the bootstrap over queries (Efron, 1979).

    Candidates are held fixed, and so are the queries' own numbers: the interval speaks of the choice of queries alone.
    With very few queries it is too narrow. A resample whose denominators are all 0 is left out.

    Args:
        numerator_Q: what each query has achieved.
        denominator_Q: what it could have achieved, >= 0.
        rng: draws the resamples.
        num_resamples: how many.

    Raises:
        ValueError: if the arrays do not fit together, or there is nothing to divide by.
    """
    numerator, denominator = _checked(numerator_Q, denominator_Q)
    num_queries = len(numerator)
    ratios = np.full(num_resamples, np.nan)
    rows = max(1, _ENTRIES_AT_ONCE // num_queries)
    for start in range(0, num_resamples, rows):
        drawn_RQ = rng.integers(0, num_queries, (min(rows, num_resamples - start), num_queries))
        total_R = denominator[drawn_RQ].sum(axis=1)
        here = slice(start, start + len(drawn_RQ))
        np.divide(numerator[drawn_RQ].sum(axis=1), total_R, out=ratios[here], where=total_R > 0)
    low, high = np.nanpercentile(ratios, [2.5, 97.5])
    return Interval(float(numerator.sum() / denominator.sum()), float(low), float(high))


def mean_interval(
    value_Q: Numbers, rng: np.random.Generator, *, num_resamples: int = 1000
) -> Interval:
    """The mean, with its interval; otherwise as ``ratio_interval``."""
    return ratio_interval(value_Q, np.ones(len(value_Q)), rng, num_resamples=num_resamples)


def paired_test(
    one_Q: Numbers,
    two_Q: Numbers,
    denominator_Q: Numbers,
    rng: np.random.Generator,
    *,
    num_permutations: int = 10_000,
) -> PairedTest:
    """Whether two systems' ratios differ: two-sided paired permutation test (sign flips of each query's difference).

    Under the null hypothesis a query's two numbers may be swapped. p = (1 + permutations at least as far from 0) /
    (1 + permutations), which is never 0 (Phipson and Smyth, 2010). It cannot fall far below 2^(1 - Q).

    Args:
        one_Q: numerators of the first system.
        two_Q: numerators of the second, on the same queries.
        denominator_Q: denominators, which both share.
        rng: draws the permutations.
        num_permutations: how many.

    Raises:
        ValueError: if the arrays do not fit together, or there is nothing to divide by.
    """
    one, denominator = _checked(one_Q, denominator_Q)
    two, _ = _checked(two_Q, denominator_Q)
    difference_Q = one - two
    observed = difference_Q.sum()
    # Sums that are equal on paper differ in their last bits.
    reach = abs(observed) - 1e-12 * np.abs(difference_Q).sum()
    moving_Q = difference_Q[difference_Q != 0]
    num_reaching, rows = 0, max(1, _ENTRIES_AT_ONCE // max(len(moving_Q), 1))
    for start in range(0, num_permutations, rows):
        is_swapped_RQ = rng.integers(
            0, 2, (min(rows, num_permutations - start), len(moving_Q)), dtype=np.int8
        )
        sum_R = moving_Q.sum() - 2 * (is_swapped_RQ @ moving_Q)
        num_reaching += int((np.abs(sum_R) >= reach).sum())
    return PairedTest(
        float(observed / denominator.sum()), (1 + num_reaching) / (1 + num_permutations)
    )


def holm(p_T: Sequence[float]) -> NDArray[np.float64]:
    """The p of T tests, raised so far that one of them below a level is no likelier than that by chance (Holm, 1979).

    The smallest is multiplied by T, the next by T - 1, and so on; none falls below one before it, or goes beyond 1.
    """
    p = np.asarray(p_T, np.float64)
    order = np.argsort(p, kind="stable")
    raised = np.empty_like(p)
    raised[order] = np.minimum(1, np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)))
    return raised


def _checked(
    numerator_Q: Numbers, denominator_Q: Numbers
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    numerator, denominator = (
        np.asarray(numerator_Q, np.float64),
        np.asarray(denominator_Q, np.float64),
    )
    if numerator.shape != denominator.shape or numerator.ndim != 1:
        raise ValueError(
            f"numerators {numerator.shape} and denominators {denominator.shape}: want one of each a query"
        )
    if not (np.isfinite(numerator).all() and (denominator >= 0).all() and denominator.sum() > 0):
        raise ValueError(
            "want finite numerators, and denominators >= 0 that are not all 0; leave empty queries out"
        )
    return numerator, denominator
