"""Scores of the units of a split: stored next to a run, and compared between runs in pairs.

U units (nodes, texts, terms, queries, sentences) of one split. The mean of a measure's values over
all units is the run's score, whether that is micro, macro or over groups.
"""

import os
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raybio.core.errors import DataError
from raybio.core.final_report import UnitScores
from raybio.ops.significance import Interval, hierarchical_test, mean_interval

Floats = NDArray[np.float64]

MAX_UNITS = 10_000
"""Units kept of a split. More would hardly sharpen a test, and a store may have millions."""

_UNIT = "unit"


@dataclass(frozen=True)
class PairedDifference:
    """The difference of two groups of runs on the same units.

    Attributes:
        num_units: U.
        difference: the first group's mean minus the second's, with its 95 % bootstrap interval.
        p: two-sided p-value; None: too few seeds to test.
    """

    num_units: int
    difference: Interval
    p: float | None


MIN_SEEDS = 3
"""With fewer seeds on a side, nothing is known of what another seed would give."""


def sample_units(unit_U: np.ndarray, value_by_measure: Mapping[str, np.ndarray]) -> UnitScores:
    """Return scores of at most ``MAX_UNITS`` units.

    The draw depends on the number of units only: runs over one store keep the same units.
    """
    kept = np.arange(len(unit_U))
    if len(unit_U) > MAX_UNITS:
        kept = np.sort(np.random.default_rng(0).choice(len(unit_U), MAX_UNITS, replace=False))
    return UnitScores(
        np.asarray(unit_U)[kept],
        {name: value_U[kept] for name, value_U in value_by_measure.items()},
    )


def paired_difference(
    first: Sequence[UnitScores], second: Sequence[UnitScores], measure: str, seed: int = 0
) -> PairedDifference:
    """Compare two groups of runs in a measure, on the same units.

    With ``MIN_SEEDS`` runs on both sides, interval and p-value are over seeds and units. With
    fewer, the interval is over units only, of means over the runs, and there is no p-value.

    Args:
        first: one run, or repetitions of one.
        second: likewise.
        measure: the measure.
        seed: of the bootstrap.

    Raises:
        ValueError: if the runs were not evaluated on the same units.
    """
    unit_U = first[0].unit_U
    if not all(np.array_equal(scores.unit_U, unit_U) for scores in (*first, *second)):
        raise ValueError("runs that were evaluated on different units cannot be compared in pairs")
    first_SU = np.stack([scores.value_by_measure[measure] for scores in first])
    second_SU = np.stack([scores.value_by_measure[measure] for scores in second])
    rng = np.random.default_rng(seed)
    if min(len(first), len(second)) >= MIN_SEEDS:
        return PairedDifference(len(unit_U), *hierarchical_test(first_SU, second_SU, rng))
    difference_U = first_SU.mean(axis=0) - second_SU.mean(axis=0)
    return PairedDifference(len(unit_U), mean_interval(difference_U, rng), None)


def write_unit_scores(path: Path, scores_by_split: Mapping[str, UnitScores]) -> None:
    """Write the scores of all splits atomically; write no file if there are none."""
    if not scores_by_split:
        return
    arrays: dict[str, Any] = {}
    for split, scores in scores_by_split.items():
        arrays[f"{split}/{_UNIT}"] = scores.unit_U
        for measure, value_U in scores.value_by_measure.items():
            arrays[f"{split}/{measure}"] = value_U
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.npz")
    with temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def read_unit_scores(path: Path) -> dict[str, UnitScores]:
    """Return the scores by split that ``write_unit_scores`` wrote; empty without a file.

    Raises:
        DataError: if the file is damaged.
    """
    if not path.exists():
        return {}
    arrays_by_split: dict[str, dict[str, np.ndarray]] = {}
    try:
        with path.open("rb") as file, np.load(file) as arrays:
            for key in arrays.files:
                split, name = key.split("/")
                arrays_by_split.setdefault(split, {})[name] = arrays[key]
        return {
            split: UnitScores(named.pop(_UNIT), named) for split, named in arrays_by_split.items()
        }
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(
            f"{path}: cannot be read ({error}). Remove it: runs are then compared without tests"
        ) from None


def share(part: Floats, whole: Floats) -> Floats:
    """Return part / whole of the same shape; a share of nothing is 0."""
    return np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)


def linear_share(part_U: Floats, whole_U: Floats) -> Floats:
    """Linearize mean(part) / mean(whole): return values (U,) whose mean is that ratio.

    A unit's value says how far the unit moves the ratio (the delta method). All values are 0 where
    the whole is 0.
    """
    whole = whole_U.mean()
    if whole == 0:
        return np.zeros_like(part_U)
    ratio = part_U.mean() / whole
    return np.asarray(ratio + (part_U - ratio * whole_U) / whole)
