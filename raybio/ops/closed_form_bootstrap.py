"""Percentile bootstrap intervals in closed form, for very many units.

A bootstrap draws the units of each stratum with replacement. The sum of a value over the drawn
units is a sum of independent draws, so its cumulants are known exactly: for each stratum, the
cumulants of the units' empirical distribution times the number of units, summed over strata. The
Cornish-Fisher expansion (Cornish and Fisher 1938; Hall, "The Bootstrap and Edgeworth Expansion",
1992, section 2.5) turns them into quantiles of the sum. A ratio of sums N / D is at most t exactly
if N - t D <= 0, and N - t D is such a sum, too. So t is a quantile of the ratio if 0 is the same
quantile of N - t D.

Shape letters: Q units (queries, anchors), in order of their stratum, G strata.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from raybio.core.arrays import Floats

MAX_SKEWNESS = 0.5
MAX_EXCESS_KURTOSIS = 0.5
"""Above these limits, a few units dominate the sum, and the expansion is not trusted."""

_MAX_ITERATIONS = 50


@dataclass(frozen=True)
class _Cumulants:
    """Joint cumulants of the drawn sums V = N - r D and D, where r is the observed ratio.

    ``v3`` is the joint cumulant of (V, V, V), ``vvd`` of (V, V, D), and so on. V has mean 0.

    Attributes:
        total: observed sum of the denominators, the mean of D.
    """

    total: float
    v2: float
    v3: float
    v4: float
    vd: float
    d2: float
    vvd: float

    @property
    def skewness(self) -> float:
        """Skewness of V."""
        return self.v3 / math.pow(self.v2, 1.5)

    @property
    def excess_kurtosis(self) -> float:
        """Excess kurtosis of V."""
        return self.v4 / self.v2**2


def ratio_quantiles(
    numerator_Q: Floats, denominator_Q: Floats, start_G: NDArray[np.integer], normal_score: float
) -> tuple[float, float] | None:
    """Return two quantiles of the bootstrap distribution of a ratio of sums.

    They lie at the normal scores -z and z; z = 1.96 gives a 95 % percentile interval. If scores
    count hits, the exact quantiles are whole counts; the result lies between two of them.

    Args:
        numerator_Q: numerators, in order of stratum.
        denominator_Q: denominators, whose sum is above 0; ones for a mean.
        start_G: first unit of each stratum, ascending from 0.
        normal_score: z.

    Returns:
        The lower and the upper quantile; None if few units dominate the sums, so that resamples are
        needed.
    """
    ratio = float(numerator_Q.sum() / denominator_Q.sum())
    cumulants = _cumulants(numerator_Q - ratio * denominator_Q, denominator_Q, start_G)
    # Rounding errors of equal values do not count as spread.
    size = float(np.abs(numerator_Q).sum()) / math.sqrt(len(numerator_Q))
    if math.sqrt(cumulants.v2) <= 1e-12 * size:
        return ratio, ratio
    relative_spread = math.sqrt(cumulants.d2) / cumulants.total
    is_dominated = (
        abs(cumulants.skewness) > MAX_SKEWNESS
        or abs(cumulants.excess_kurtosis) > MAX_EXCESS_KURTOSIS
        or abs(normal_score) * relative_spread > MAX_SKEWNESS
    )
    if is_dominated:
        return None
    low, high = (_deviation(cumulants, z) for z in (-normal_score, normal_score))
    return ratio + low, ratio + high


def _cumulants(v_Q: Floats, d_Q: Floats, start_G: NDArray[np.integer]) -> _Cumulants:
    size_G = np.diff(np.append(start_G, len(v_Q)))

    def sums(value_Q: Floats) -> Floats:
        return np.asarray(np.add.reduceat(value_Q, start_G))

    total = float(d_Q.sum())
    v_Q = v_Q - np.repeat(sums(v_Q) / size_G, size_G)
    square_Q = v_Q * v_Q
    square_G = sums(square_Q)
    vd = d2 = vvd = 0.0
    # A mean has denominators of 1, which do not vary.
    if d_Q.min() != d_Q.max():
        d_Q = d_Q - np.repeat(sums(d_Q) / size_G, size_G)
        vd = float(v_Q @ d_Q)
        d2 = float(d_Q @ d_Q)
        vvd = float(square_Q @ d_Q)
    return _Cumulants(
        total=total,
        v2=float(square_G.sum()),
        v3=float(square_Q @ v_Q),
        # Of n draws: n (m4 - 3 m2^2) of the central moments m of a stratum.
        v4=float(square_Q @ square_Q) - 3 * float((square_G**2 / size_G).sum()),
        vd=vd,
        d2=d2,
        vvd=vvd,
    )


def _deviation(cumulants: _Cumulants, z: float) -> float:
    """Return the quantile at normal score z, minus the ratio: x with quantile(V - x D) = 0.

    V - x D has the mean -x * total. Its fourth cumulant is evaluated at x = 0: the terms in x are
    of a smaller order than the expansion.
    """
    x = 0.0
    for _ in range(_MAX_ITERATIONS):
        variance = cumulants.v2 - 2 * x * cumulants.vd + x * x * cumulants.d2
        skewness = (cumulants.v3 - 3 * x * cumulants.vvd) / math.pow(variance, 1.5)
        quantile = (
            z
            + (z**2 - 1) * skewness / 6
            + (z**3 - 3 * z) * cumulants.excess_kurtosis / 24
            - (2 * z**3 - 5 * z) * skewness**2 / 36
        )
        next_x = math.sqrt(variance) * quantile / cumulants.total
        if abs(next_x - x) <= 1e-9 * abs(next_x):
            return next_x
        x = next_x
    return x
