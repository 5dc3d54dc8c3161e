"""Scores of the units of a split: stored next to a run, and compared between runs in pairs.

U units (nodes, texts, terms, queries, sentences) of one split. The mean of a measure's values over
all units is the run's score, whether that is micro, macro or over groups.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from raybio.core.arrays import Floats, read_npz
from raybio.core.errors import DataError, one_line
from raybio.core.files import replacing
from raybio.core.final_report import Stage, UnitScores
from raybio.core.table_layout import TableLayout
from raybio.ops.significance import (
    Interval,
    hierarchical_mean,
    hierarchical_test,
    mean_interval,
)

ScoresBySplit = Mapping[str, UnitScores]

TRAINED = "trained"

MAX_UNITS = 10_000
"""Units kept of a split. More would hardly sharpen a test, and a store may have millions."""

_UNIT = "unit"


@dataclass(frozen=True)
class PairedDifference:
    """The difference of two groups of runs on the same units.

    Attributes:
        num_units: U.
        difference: the first group's mean minus the second's, with its 95 % bootstrap interval;
            NaN for a single unit, since nothing is known of others.
        p: two-sided p-value; None: a single unit, or too few seeds to test.
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


def same_units(unit_scores: Sequence[UnitScores]) -> bool:
    """Return whether all are scores of the same units, in the same order."""
    first_U = unit_scores[0].unit_U
    return all(np.array_equal(scores.unit_U, first_U) for scores in unit_scores)


def independent_draws(draw_R: Sequence[Hashable]) -> list[list[int]]:
    """Return the indices of the runs of each independent draw.

    A sentence set moves all runs on it: of runs on several sets, the sets are the draws. Of runs on
    one set, or each on its own, every run is a draw.

    Args:
        draw_R: what each run shares with others, such as its sentence set.
    """
    numbers_by_draw: dict[Hashable, list[int]] = {}
    for number, draw in enumerate(draw_R):
        numbers_by_draw.setdefault(draw, []).append(number)
    if len(numbers_by_draw) == 1:
        return [[number] for number in range(len(draw_R))]
    return list(numbers_by_draw.values())


def over_shared_draws(
    unit_scores: Sequence[UnitScores], draw_R: Sequence[Hashable]
) -> list[UnitScores]:
    """Return scores of each independent draw: the mean of its runs, on the same units.

    The mean over the draws is that over the runs: where draws have unequal numbers of runs, their
    deviations from it are weighted by these numbers (the delta method).

    Args:
        unit_scores: of each run.
        draw_R: as of ``independent_draws``.
    """
    draws = independent_draws(draw_R)
    if len(draws) == len(unit_scores):
        return list(unit_scores)
    mean_runs = len(unit_scores) / len(draws)
    value_by_measure_S: list[dict[str, np.ndarray]] = [{} for _ in draws]
    for measure in unit_scores[0].value_by_measure:
        if not all(measure in scores.value_by_measure for scores in unit_scores):
            continue
        value_RU = np.stack([scores.value_by_measure[measure] for scores in unit_scores])
        mean_U = value_RU.mean(axis=0, dtype=np.float64)
        for numbers, value_by_measure in zip(draws, value_by_measure_S, strict=True):
            own_U = value_RU[numbers].mean(axis=0, dtype=np.float64)
            value_by_measure[measure] = mean_U + len(numbers) / mean_runs * (own_U - mean_U)
    unit_U = unit_scores[0].unit_U
    return [UnitScores(unit_U, value_by_measure) for value_by_measure in value_by_measure_S]


def paired_difference(
    first: Sequence[UnitScores],
    second: Sequence[UnitScores],
    measure: str,
    shown: float | None = None,
) -> PairedDifference:
    """Compare two groups of runs in a measure, on the same units.

    With ``MIN_SEEDS`` runs on both sides, interval and p-value are over seeds and units. With
    fewer, the interval is over units only, of means over the runs, and there is no p-value.

    Args:
        first: one run, or repetitions of one, of independent draws (``over_shared_draws``).
        second: likewise.
        measure: the measure.
        shown: the difference in tables, of all units. Where a sample of the units is kept, the
            sample's difference is moved to it, with interval and p-value. None: it stays.

    Raises:
        ValueError: if the runs were not evaluated on the same units.
    """
    if not same_units([*first, *second]):
        raise ValueError("runs that were evaluated on different units cannot be compared in pairs")
    first_SU = np.stack([scores.value_by_measure[measure] for scores in first])
    second_SU = np.stack([scores.value_by_measure[measure] for scores in second])
    num_units = first_SU.shape[1]
    shift = _shift(float(first_SU.mean() - second_SU.mean()), shown, num_units)
    if shift and not any(np.ptp(means) for means in _means(first_SU, second_SU)):
        return _unknown(num_units, shown)
    first_SU = first_SU + shift
    rng = np.random.default_rng(0)
    if _has_seeds(num_units, len(first), len(second)):
        return PairedDifference(num_units, *hierarchical_test(first_SU, second_SU, rng))
    difference_U = first_SU.mean(axis=0) - second_SU.mean(axis=0)
    return PairedDifference(num_units, mean_interval(difference_U, rng), None)


def untrained_difference(
    trained: Sequence[UnitScores],
    untrained: Sequence[UnitScores],
    measure: str,
    shown: float | None = None,
) -> PairedDifference:
    """Compare runs with a model that needs no training, on the same units.

    The untrained model is that of each run, such as a ranking that is the same in all of them, or
    an initial encoder that depends on the seed: the differences are run by run. With ``MIN_SEEDS``
    runs, interval and p-value are over seeds of the runs and units. With fewer, the interval is
    over units only, and there is no p-value.

    Args:
        trained: scores of each run, of independent draws (``over_shared_draws``).
        untrained: scores of the untrained model in the same runs.
        measure: the measure.
        shown: as of ``paired_difference``.

    Raises:
        ValueError: if they were not evaluated on the same units.
    """
    if not same_units([*trained, *untrained]):
        raise ValueError("models that were evaluated on different units cannot be compared")
    # Rounded alike, since those of untrained models are stored in float32: equal ones differ by 0.
    trained_SU = np.stack([np.float32(scores.value_by_measure[measure]) for scores in trained])
    untrained_SU = np.stack([np.float32(scores.value_by_measure[measure]) for scores in untrained])
    difference_SU = trained_SU.astype(np.float64) - untrained_SU
    num_runs, num_units = difference_SU.shape
    shift = _shift(float(difference_SU.mean()), shown, num_units)
    if shift and not np.ptp(difference_SU):
        return _unknown(num_units, shown)
    difference_SU = difference_SU + shift
    rng = np.random.default_rng(0)
    if _has_seeds(num_units, num_runs):
        return PairedDifference(num_units, *hierarchical_mean(difference_SU, rng))
    return PairedDifference(num_units, mean_interval(difference_SU.mean(axis=0), rng), None)


def _shift(difference: float, shown: float | None, num_units: int) -> float:
    """Return what moves the difference of a sample of the units to the one that tables show."""
    return 0.0 if shown is None or num_units < MAX_UNITS else shown - difference


def _means(first_SU: np.ndarray, second_SU: np.ndarray) -> list[np.ndarray]:
    """Return what a difference varies in: its means of units, and the means of each side's runs."""
    difference_U = first_SU.mean(axis=0) - second_SU.mean(axis=0)
    return [difference_U, first_SU.mean(axis=1), second_SU.mean(axis=1)]


def _unknown(num_units: int, shown: float | None) -> PairedDifference:
    """Return a difference that tables show and a sample of units does not vary in."""
    value = float("nan") if shown is None else shown
    return PairedDifference(num_units, Interval(value, math.nan, math.nan), None)


def interval_over_runs(
    score_S: Sequence[float], unit_scores: Sequence[UnitScores], measure: str
) -> Interval:
    """Return the mean score of runs with its 95 % interval.

    The interval is over seeds and units with ``MIN_SEEDS`` runs, over units only with fewer, and
    NaN where a unit's score is undefined, or where there is a single unit. Where a sample of the
    units is kept, the interval is that of the sample, around the mean score.

    Args:
        score_S: score of each run.
        unit_scores: scores of the same units in each run, or of each independent draw
            (``over_shared_draws``).
        measure: the measure.
    """
    value_SU = np.stack([scores.value_by_measure[measure] for scores in unit_scores])
    if not np.isfinite(value_SU).all():
        return Interval(float(np.mean(score_S)), math.nan, math.nan)
    rng = np.random.default_rng(0)
    num_runs, num_units = value_SU.shape
    if _has_seeds(num_units, num_runs):
        unit_interval = hierarchical_mean(value_SU, rng).difference
    else:
        unit_interval = mean_interval(value_SU.mean(axis=0), rng)
    score = float(np.mean(score_S))
    shift = score - unit_interval.value
    return Interval(score, unit_interval.low + shift, unit_interval.high + shift)


def _has_seeds(num_units: int, *num_runs: int) -> bool:
    """Return whether an interval is over seeds too; of a single unit, nothing is known of others.

    Args:
        num_units: units that were evaluated.
        num_runs: runs of each side.
    """
    return num_units > 1 and min(num_runs) >= MIN_SEEDS


def stored_unit_scores(
    by_stage: Mapping[Stage, ScoresBySplit], layout: TableLayout
) -> dict[Stage, ScoresBySplit]:
    """Return what a run keeps: all scores of the trained model, and less of the other stages.

    Of the others these are the measures of tables, on the splits that runs are compared on, in
    float32, if they are of the trained model's units: else they could not be compared in pairs.
    """
    trained = by_stage.get(TRAINED, {})
    stored: dict[Stage, ScoresBySplit] = {}
    for stage, scores_by_split in by_stage.items():
        if stage == TRAINED:
            stored[stage] = scores_by_split
            continue
        kept = {}
        for split, scores in scores_by_split.items():
            is_compared = split in layout.compared and split in trained
            if is_compared and np.array_equal(scores.unit_U, trained[split].unit_U):
                value_by_measure = {
                    name: value_U.astype(np.float32)
                    for name, value_U in scores.value_by_measure.items()
                    if name in layout.measures
                }
                kept[split] = UnitScores(scores.unit_U, value_by_measure)
        if kept:
            stored[stage] = kept
    return stored


def write_unit_scores(path: Path, by_stage: Mapping[Stage, ScoresBySplit]) -> None:
    """Write unit scores atomically; write no file if there are none.

    Other stages have the units of the trained model, which are written once. Arrays are named
    ``split/measure`` of the trained model, and ``stage/split/measure`` of others.
    """
    if not any(by_stage.values()):
        return
    arrays: dict[str, Any] = {}
    for stage, scores_by_split in by_stage.items():
        prefix = "" if stage == TRAINED else f"{stage}/"
        for split, scores in scores_by_split.items():
            if stage == TRAINED:
                arrays[f"{split}/{_UNIT}"] = scores.unit_U
            for measure, value_U in scores.value_by_measure.items():
                arrays[f"{prefix}{split}/{measure}"] = value_U
    with replacing(path) as file:
        np.savez_compressed(file, **arrays)


def read_unit_scores(path: Path) -> dict[Stage, dict[str, UnitScores]]:
    """Return stage -> split -> scores that ``write_unit_scores`` wrote; empty without a file.

    Raises:
        DataError: if the file is damaged.
    """
    if not path.exists():
        return {}
    arrays_by_key: dict[tuple[Stage, str], dict[str, np.ndarray]] = {}
    try:
        with path.open("rb") as file:
            arrays = read_npz(file)
        for key, array in arrays.items():
            *prefix, split, name = key.rsplit("/", 2)
            stage_split = (prefix[0] if prefix else TRAINED, split)
            arrays_by_key.setdefault(stage_split, {})[name] = array
        units = {
            split: named.pop(_UNIT)
            for (stage, split), named in arrays_by_key.items()
            if stage == TRAINED
        }
        by_stage: dict[Stage, dict[str, UnitScores]] = {}
        for (stage, split), named in arrays_by_key.items():
            by_stage.setdefault(stage, {})[split] = UnitScores(units[split], named)
        return by_stage
    except (OSError, ValueError, KeyError) as error:
        raise DataError(
            f"{path}: cannot be read ({one_line(error)}). Remove it: runs are then "
            "compared without tests"
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
