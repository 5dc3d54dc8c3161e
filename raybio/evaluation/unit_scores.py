"""Scores of the units of a split: stored next to a run, and compared between runs in pairs.

U units (nodes, texts, terms, queries, sentences) of one split. The mean of a unit's values over all units is the run's
score, whether that is micro, macro or over groups.
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
from raybio.ops.significance import Interval, paired_test, ratio_interval

Floats = NDArray[np.float64]

MAX_UNITS = 10_000
"""Units kept of a split. More would hardly sharpen a test, and a store may have millions."""

_UNIT = "unit"


@dataclass(frozen=True)
class PairedDifference:
    """How one side differs from another on the same units.

    Attributes:
        num_units: U.
        difference: one minus two, with its 95 % bootstrap interval over units.
        p: of the two-sided paired permutation test.
    """

    num_units: int
    difference: Interval
    p: float


def sample_units(unit_U: np.ndarray, value_by_measure: Mapping[str, np.ndarray]) -> UnitScores:
    """At most ``MAX_UNITS`` of the units, drawn by their number alone: runs over one store keep the same ones."""
    kept = np.arange(len(unit_U))
    if len(unit_U) > MAX_UNITS:
        kept = np.sort(np.random.default_rng(0).choice(len(unit_U), MAX_UNITS, replace=False))
    return UnitScores(
        np.asarray(unit_U)[kept],
        {name: value_U[kept] for name, value_U in value_by_measure.items()},
    )


def paired_difference(
    one: Sequence[UnitScores], two: Sequence[UnitScores], measure: str, seed: int = 0
) -> PairedDifference:
    """Whether two sides differ in a measure; a side is a run, or repetitions of one, of which each unit's mean counts.

    Raises:
        ValueError: if the runs were not asked the same units.
    """
    if not all(np.array_equal(each.unit_U, one[0].unit_U) for each in (*one, *two)):
        raise ValueError("runs that were asked different units cannot be compared in pairs")
    one_U, two_U = (
        np.mean([each.value_by_measure[measure] for each in side], axis=0) for side in (one, two)
    )
    weight_U = np.ones(len(one_U))
    interval = ratio_interval(one_U - two_U, weight_U, np.random.default_rng(seed))
    return PairedDifference(
        len(one_U), interval, paired_test(one_U, two_U, weight_U, np.random.default_rng(seed)).p
    )


def write_unit_scores(path: Path, scores_by_split: Mapping[str, UnitScores]) -> None:
    """Write the scores of all splits, the whole file or none; nothing if there are none."""
    if not scores_by_split:
        return
    arrays: dict[str, Any] = {}
    for split, scores in scores_by_split.items():
        named = {_UNIT: scores.unit_U, **scores.value_by_measure}
        arrays |= {f"{split}/{name}": array for name, array in named.items()}
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.npz")
    with temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def read_unit_scores(path: Path) -> dict[str, UnitScores]:
    """By split what ``write_unit_scores`` wrote; nothing if there is no such file.

    Raises:
        DataError: if the file is damaged.
    """
    if not path.exists():
        return {}
    found: dict[str, dict[str, np.ndarray]] = {}
    try:
        with path.open("rb") as file, np.load(file) as arrays:
            for key in arrays.files:
                split, name = key.split("/")
                found.setdefault(split, {})[name] = arrays[key]
        return {split: UnitScores(named.pop(_UNIT), named) for split, named in found.items()}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(
            f"{path}: cannot be read ({error}). Remove it: runs are compared without it, untested"
        ) from None


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
