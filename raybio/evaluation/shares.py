"""Shares of counts, and what each unit adds to them. U units (sentences, documents)."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def exact_scores(value_by_measure: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Return ``{measure: {"value"}}``: scores that are computed, not estimated, and so have no interval."""
    return {name: {"value": float(value)} for name, value in value_by_measure.items()}


def share(part: Floats, whole: Floats) -> Floats:
    """Part over whole, of the same shape; a share of nothing is 0."""
    return np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)


def linear_share(part_U: Floats, whole_U: Floats) -> Floats:
    """Linearised mean(part) / mean(whole): numbers (U,) whose mean it is, and zeros if the whole is nothing.

    A unit's number says how far the unit moves the share (the delta method).
    """
    whole = whole_U.mean()
    if whole == 0:
        return np.zeros_like(part_U)
    ratio = part_U.mean() / whole
    return np.asarray(ratio + (part_U - ratio * whole_U) / whole)
