"""Scores as statistics of the counts of units.

A score is a function of the mean counts of its units. With one value per unit it is their mean;
with correct and possible counts it is a ratio, such as a micro F1. So the score of a sample of
units is computed exactly from its own counts. A linearization would be wrong where one unit holds a
large share of the counts.

Shape letters: U units, X samples of units, A classes. ``...`` stands for the counts of a unit.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raybio.core.arrays import Floats


def share(part: Floats, whole: Floats) -> Floats:
    """Return ``part / whole``, elementwise, and 0 where ``whole`` is 0."""
    return np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)


def _mean(mean_X: Floats) -> Floats:
    return mean_X


def _ratio(mean_X2: Floats) -> Floats:
    return share(mean_X2[..., 0], mean_X2[..., 1])


def _mean_of_ratios(mean_XA3: Floats) -> Floats:
    part_XA, whole_XA, present_XA = np.moveaxis(mean_XA3, -1, 0)
    is_present_XA = (present_XA > 0).astype(np.float64)
    sum_X = (share(part_XA, whole_XA) * is_present_XA).sum(axis=-1)
    return share(sum_X, is_present_XA.sum(axis=-1))


def _harmonic_mean_of_ratios(mean_X22: Floats) -> Floats:
    ratio_X2 = _ratio(mean_X22)
    return share(2 * ratio_X2[..., 0] * ratio_X2[..., 1], ratio_X2.sum(axis=-1))


MEAN = "mean"
RATIO = "ratio"
MEAN_OF_RATIOS = "mean_of_ratios"
HARMONIC_MEAN_OF_RATIOS = "harmonic_mean_of_ratios"

STATISTICS: Mapping[str, Callable[[Floats], Floats]] = {
    MEAN: _mean,
    RATIO: _ratio,
    MEAN_OF_RATIOS: _mean_of_ratios,
    HARMONIC_MEAN_OF_RATIOS: _harmonic_mean_of_ratios,
}
"""Statistics by name, as functions of mean counts.

Counts of a unit: ``mean`` takes one value; ``ratio`` takes part and whole (2); ``mean_of_ratios``
takes part, whole and presence of each class (A, 3) and averages over the classes that are present;
``harmonic_mean_of_ratios`` takes part and whole of two ratios (2, 2).
"""


@dataclass(frozen=True, eq=False)
class UnitCounts:
    """The counts of the units of a score.

    Attributes:
        count_U: (U, ...) counts of each unit.
        statistic: a name in ``STATISTICS``.
    """

    count_U: NDArray[Any]
    statistic: str = MEAN

    @property
    def num_units(self) -> int:
        """U."""
        return len(self.count_U)

    @property
    def value(self) -> float:
        """The score of all units."""
        return float(self.of_means(self.count_U.mean(axis=0, dtype=np.float64)[None])[0])

    def of_means(self, mean_X: Floats) -> Floats:
        """Return the scores (X,) of mean counts (X, ...)."""
        return STATISTICS[self.statistic](mean_X)

    def of_samples(self, weight_XU: Floats) -> Floats:
        """Return the scores (X,) of samples, given as weights of the units that sum to 1."""
        flat_UC = self.count_U.reshape(self.num_units, -1).astype(np.float64)
        mean_XC = weight_XU @ flat_UC
        return self.of_means(mean_XC.reshape(len(weight_XU), *self.count_U.shape[1:]))

    def without_each(self) -> Floats:
        """Return the scores (U,) without each unit in turn; NaN if there is only one unit."""
        if self.num_units == 1:
            return np.full(1, np.nan)
        count_U = self.count_U.astype(np.float64)
        return self.of_means((count_U.sum(axis=0) - count_U) / (self.num_units - 1))
