"""Scores of the units of a split: stored next to a run, and compared between runs in pairs.

Shape letters: U units (nodes, texts, terms, queries, sentences) of one split.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from raybio.core.arrays import Floats, read_npz
from raybio.core.errors import DataError, one_line
from raybio.core.files import replacing
from raybio.core.final_report import Stage, UnitScores
from raybio.core.table_layout import TableLayout
from raybio.core.unit_counts import UnitCounts
from raybio.ops.significance import (
    Interval,
    RunGroup,
    hierarchical_mean,
    hierarchical_test,
    interval_over_units,
    without_each_unit,
)

ScoresBySplit = Mapping[str, UnitScores]

TRAINED = "trained"

MAX_UNITS = 10_000
"""Units kept of a split. More would hardly sharpen a test, and a store may have millions."""

_UNIT = "unit"

MIN_DOMINATED_UNITS = 20
"""Minimum number of units for a remark that one of them dominates a difference. Among few units,
one often has half of the variance by chance: in 13 % of samples of 10 Gaussian differences, and in
1 % of samples of 20."""

_ROUNDING = 1e-12
"""Differences that deviate by less than this are equal up to rounding."""


class DominantUnit(NamedTuple):
    """A unit that contributes more to the variance of a difference than all others together.

    Attributes:
        unit: its name in ``UnitScores.unit_U``.
        difference: the difference without it.
    """

    unit: int
    difference: float


@dataclass(frozen=True)
class PairedDifference:
    """The difference of two groups of runs on the same units.

    Attributes:
        num_units: U.
        difference: the first group's mean minus the second's, with its 95 % bootstrap interval;
            NaN for a single unit, which says nothing about others.
        p: two-sided p-value; None: a single unit, or too few seeds to test.
        dominant: the unit that dominates the difference, if there are at least
            ``MIN_DOMINATED_UNITS`` units; None: no unit does.
    """

    num_units: int
    difference: Interval
    p: float | None
    dominant: DominantUnit | None = None


MIN_SEEDS = 3
"""With fewer seeds on a side, results say nothing about other seeds."""


def sample_units(unit_U: np.ndarray, value_by_measure: Mapping[str, np.ndarray]) -> UnitScores:
    """Return scores of at most ``MAX_UNITS`` units, for scores that are means of unit values.

    The draw depends on the number of units only: runs over one store keep the same units.
    """
    return _sampled(UnitScores(np.asarray(unit_U), value_by_measure))


def sample_counts(counts_by_measure: Mapping[str, UnitCounts]) -> UnitScores:
    """Return counts of at most ``MAX_UNITS`` units, numbered from 0, drawn as ``sample_units``."""
    num_units = next(iter(counts_by_measure.values())).num_units
    return _sampled(
        UnitScores(
            np.arange(num_units),
            {name: counts.count_U for name, counts in counts_by_measure.items()},
            {name: counts.statistic for name, counts in counts_by_measure.items()},
        )
    )


def _sampled(scores: UnitScores) -> UnitScores:
    num_units = len(scores.unit_U)
    if num_units <= MAX_UNITS:
        return scores
    kept = np.sort(np.random.default_rng(0).choice(num_units, MAX_UNITS, replace=False))
    value_by_measure = {name: value_U[kept] for name, value_U in scores.value_by_measure.items()}
    return replace(scores, unit_U=scores.unit_U[kept], value_by_measure=value_by_measure)


def same_units(unit_scores: Sequence[UnitScores]) -> bool:
    """Return whether all are scores of the same units, in the same order."""
    first_U = unit_scores[0].unit_U
    return all(np.array_equal(scores.unit_U, first_U) for scores in unit_scores)


def independent_draws(draw_R: Sequence[Hashable]) -> list[list[int]]:
    """Return the indices of the runs of each independent draw.

    A sentence set affects all runs on it. If runs are on several sets, each set is a draw. If all
    runs are on one set, or each is on its own, every run is a draw.

    Args:
        draw_R: what each run shares with others, such as its sentence set.
    """
    numbers_by_draw: dict[Hashable, list[int]] = {}
    for number, draw in enumerate(draw_R):
        numbers_by_draw.setdefault(draw, []).append(number)
    if len(numbers_by_draw) == 1:
        return [[number] for number in range(len(draw_R))]
    return list(numbers_by_draw.values())


def paired_difference(
    first: Sequence[UnitScores],
    second: Sequence[UnitScores],
    measure: str,
    shown: float | None = None,
    *,
    draws: tuple[Sequence[Hashable], Sequence[Hashable]] = ((), ()),
) -> PairedDifference:
    """Compare two groups of runs in a measure, on the same units.

    With ``MIN_SEEDS`` independent draws on both sides, interval and p-value are over seeds and
    units. With fewer, the interval is over units only, of means over the runs, and there is no
    p-value.

    Args:
        first: one run, or repetitions of one.
        second: likewise.
        measure: the measure.
        shown: the difference over all units, as in tables. If only a sample of the units is kept,
            the sample's difference is shifted to it, with interval and p-value. None: no shift.
        draws: what the runs of each side share (see ``independent_draws``); empty: nothing.

    Raises:
        ValueError: if the runs were not evaluated on the same units.
    """
    if not same_units([*first, *second]):
        raise ValueError("runs that were evaluated on different units cannot be compared in pairs")
    groups = [
        _group(side, measure, draw_R) for side, draw_R in zip((first, second), draws, strict=True)
    ]
    return _difference(groups, first[0].unit_U, shown)


def untrained_difference(
    trained: Sequence[UnitScores],
    untrained: Sequence[UnitScores],
    measure: str,
    shown: float | None = None,
    *,
    draw_R: Sequence[Hashable] = (),
) -> PairedDifference:
    """Compare runs with a model that needs no training, on the same units.

    Each run has its own untrained model, such as a ranking that is the same in all runs, or an
    initial encoder that depends on the seed. Differences are taken run by run. With ``MIN_SEEDS``
    independent draws, interval and p-value are over seeds and units. With fewer, the interval is
    over units only, and there is no p-value.

    Args:
        trained: scores of each run.
        untrained: scores of the untrained model in the same runs.
        measure: the measure.
        shown: see ``paired_difference``.
        draw_R: what runs share (see ``independent_draws``); empty: nothing.

    Raises:
        ValueError: if they were not evaluated on the same units.
    """
    if not same_units([*trained, *untrained]):
        raise ValueError("models that were evaluated on different units cannot be compared")
    # Round both sides: untrained scores are stored in float32, and equal ones must differ by 0.
    own = [_rounded(scores.counts(measure)) for scores in trained]
    minus = [_rounded(scores.counts(measure)) for scores in untrained]
    group = RunGroup(own, minus, independent_draws(draw_R) if draw_R else None)
    return _difference([group], trained[0].unit_U, shown)


def _difference(
    groups: Sequence[RunGroup], unit_U: np.ndarray, shown: float | None
) -> PairedDifference:
    """Return the difference of two groups, or the mean of one whose scores are differences."""
    num_units = len(unit_U)
    rng = np.random.default_rng(0)
    all_1U = np.full((1, num_units), 1 / num_units)
    means = [float(group.of_samples(all_1U).mean()) for group in groups]
    value = means[0] - sum(means[1:])
    shift = 0.0 if shown is None or num_units < MAX_UNITS else shown - value
    without_U = without_each_unit(groups)
    if shift and not _varies(groups, without_U):
        # The whole split differs from its sample, and the sample does not vary: no interval.
        return PairedDifference(num_units, Interval(value + shift, math.nan, math.nan), None)
    dominant = _dominant(unit_U, without_U + shift)
    if not _has_seeds(num_units, *(group.num_draws for group in groups)):
        interval = interval_over_units(groups, rng, shift=shift)
        return PairedDifference(num_units, interval, None, dominant)
    if len(groups) > 1:
        test = hierarchical_test(groups[0], groups[1], rng, shift=shift)
    else:
        test = hierarchical_mean(groups[0], rng, shift=shift)
    return PairedDifference(num_units, test.difference, test.p, dominant)


def _varies(groups: Sequence[RunGroup], without_U: np.ndarray) -> bool:
    """Return whether a difference varies over units or over seeds."""
    return np.ptp(without_U) > _ROUNDING or any(np.ptp(group.value_S) for group in groups)


def _dominant(unit_U: np.ndarray, without_U: np.ndarray) -> DominantUnit | None:
    """Return the unit that moves a difference more than all others together, if one does.

    Args:
        unit_U: names of the units.
        without_U: the difference without each unit.
    """
    if len(unit_U) < MIN_DOMINATED_UNITS or np.ptp(without_U) <= _ROUNDING:
        return None
    square_U = (without_U - without_U.mean()) ** 2
    largest = int(square_U.argmax())
    if square_U[largest] <= square_U.sum() / 2:
        return None
    return DominantUnit(int(unit_U[largest]), float(without_U[largest]))


def _group(runs: Sequence[UnitScores], measure: str, draw_R: Sequence[Hashable] = ()) -> RunGroup:
    draws = independent_draws(draw_R) if draw_R else None
    return RunGroup([scores.counts(measure) for scores in runs], draws=draws)


def _rounded(counts: UnitCounts) -> UnitCounts:
    return replace(counts, count_U=counts.count_U.astype(np.float32))


def interval_over_runs(
    score_S: Sequence[float],
    unit_scores: Sequence[UnitScores],
    measure: str,
    *,
    draw_R: Sequence[Hashable] = (),
) -> Interval:
    """Return the mean score of runs with its 95 % interval.

    The interval is over seeds and units with ``MIN_SEEDS`` independent draws, over units only with
    fewer, and NaN where a unit's score is undefined, or where there is a single unit. Where a
    sample of the units is kept, the interval is that of the sample, around the mean score.

    Args:
        score_S: score of each run.
        unit_scores: scores of the same units in each run.
        measure: the measure.
        draw_R: what runs share, as of ``independent_draws``; empty: nothing.
    """
    score = float(np.mean(score_S))
    if not all(np.isfinite(scores.value_by_measure[measure]).all() for scores in unit_scores):
        return Interval(score, math.nan, math.nan)
    rng = np.random.default_rng(0)
    group = _group(unit_scores, measure, draw_R)
    if _has_seeds(group.num_units, group.num_draws):
        interval = hierarchical_mean(group, rng).difference
    else:
        interval = interval_over_units([group], rng)
    shift = score - interval.value
    return Interval(score, interval.low + shift, interval.high + shift)


def _has_seeds(num_units: int, *num_runs: int) -> bool:
    """Return whether an interval covers seeds too; a single unit says nothing about others.

    Args:
        num_units: units that were evaluated.
        num_runs: runs of each side.
    """
    return num_units > 1 and min(num_runs) >= MIN_SEEDS


def stored_unit_scores(
    by_stage: Mapping[Stage, ScoresBySplit], layout: TableLayout
) -> dict[Stage, ScoresBySplit]:
    """Return the unit scores that a run keeps: all of the trained model, fewer of other stages.

    Of other stages, it keeps the measures of tables on the splits where runs are compared, in
    float32. It keeps them only for the trained model's units, since others cannot be paired.
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
                kept[split] = replace(scores, value_by_measure=value_by_measure)
        if kept:
            stored[stage] = kept
    return stored


def write_unit_scores(path: Path, by_stage: Mapping[Stage, ScoresBySplit]) -> None:
    """Write unit scores atomically; write no file if there are none.

    All stages have the units of the trained model, which are written once. Arrays are named
    ``split/measure`` for the trained model, and ``stage/split/measure`` for other stages, with the
    measures of ``UnitScores.arrays``.
    """
    if not any(by_stage.values()):
        return
    arrays: dict[str, Any] = {}
    for stage, scores_by_split in by_stage.items():
        prefix = "" if stage == TRAINED else f"{stage}/"
        for split, scores in scores_by_split.items():
            if stage == TRAINED:
                arrays[f"{split}/{_UNIT}"] = scores.unit_U
            for name, value_U in scores.arrays().items():
                arrays[f"{prefix}{split}/{name}"] = value_U
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
            by_stage.setdefault(stage, {})[split] = UnitScores.from_arrays(units[split], named)
        return by_stage
    except (OSError, ValueError, KeyError) as error:
        raise DataError(
            f"{path}: cannot be read ({one_line(error)}). Update raybio if a newer version wrote "
            "it; else remove it: runs are then compared without tests"
        ) from None


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
