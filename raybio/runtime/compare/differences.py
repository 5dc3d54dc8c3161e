"""Differences below a table: between this run and the compared settings or untrained models.

With three seeds on both sides, a difference has an interval and a p-value over seeds and units. An
untrained model, such as a rival, has no seeds: it is compared with each run of the trained side, so
three seeds on that side are enough. With fewer seeds, intervals are over units only and there is no
p-value, since the effect of another seed is unknown. For runs on several sentence sets, the sets
take the place of the seeds.

The best untrained model is chosen by the same scores, so its score is biased upwards, if at all. A
run that is shown to be better than the best one is therefore better than all. The converse is
weaker: with many untrained models, the p-value overstates the evidence that one of them is better.
"""

from collections.abc import Sequence
from statistics import mean

import numpy as np

from raybio.core.final_report import Stage, UnitScores
from raybio.core.table_layout import TableLayout
from raybio.evaluation.unit_scores import (
    MIN_SEEDS,
    PairedDifference,
    independent_draws,
    same_units,
    untrained_difference,
)
from raybio.runtime.compare.group_tests import pair_tests, untested
from raybio.runtime.compare.relations import CANNOT_BE_COMPARED, Relation, word_of
from raybio.runtime.compare.run_test import (
    MIN_UNITS,
    RunTest,
    corrected,
    dominant_units,
    unit_test,
)
from raybio.runtime.compare.runs import GivenRun, Group
from raybio.runtime.compare.table import over_repetitions, untrained_label


def differences(
    own: Group, others: Sequence[Group], layout: TableLayout
) -> tuple[list[RunTest], list[Relation], list[str]]:
    """Return the tests of a table with their p-values corrected, its relations, and its remarks.

    This run is tested against each compared setting, and against the best untrained model of each
    split, in all scores of the table. Holm's correction covers all of these tests.

    Args:
        own: this run, with its repetitions.
        others: the compared settings, each with its repetitions.
        layout: layout of the table.
    """
    notes = untested([run for group in (own, *others) for run in group.runs])
    tests: list[RunTest] = []
    for other in others:
        new_tests, notes_of_pair = pair_tests(own, other, layout)
        tests += new_tests
        notes += notes_of_pair
    tests += _tests_of_best_untrained(own, layout)
    tests = corrected(tests)
    labels = {other.label for other in others}
    relations = relations_to_rivals(own, layout, tests)
    relations += relations_to_groups(own, [test for test in tests if test.two in labels])
    remarks = list(dict.fromkeys(notes))
    remarks += dominant_units(tests, layout)
    remarks += few_units([own, *others], layout)
    if any(test.p is None and test.has_interval for test in tests):
        groups = (own, *others)
        num_draws = [len(independent_draws(group.draws)) for group in groups]
        are_seeds = num_draws == [len(group.runs) for group in groups]
        few = f"fewer than {MIN_SEEDS} {'seeds' if are_seeds else 'sets'} on a side"
        if max(num_draws) == 1:
            few = "one seed"
        remarks.append(f"{few}: no test over seeds")
    return tests, relations, remarks


def few_units(groups: Sequence[Group], layout: TableLayout) -> list[str]:
    """Return a remark, without a full stop, on each split with too few units for a verdict."""
    remarks = []
    for split, title in layout.splits.items():
        nums = [_num_units(group, split) for group in groups]
        known = [num for num in nums if num is not None]
        if known and min(known) < MIN_UNITS:
            units = "1 unit" if min(known) == 1 else f"{min(known)} units"
            remarks.append(f"{title}: {units} only, too few for a verdict")
    return remarks


def _num_units(group: Group, split: str) -> int | None:
    """Return the smallest number of units that a run has scores of; None without such scores."""
    units = [run.unit_scores[split].unit_U for run in group.runs if split in run.unit_scores]
    return min(map(len, units), default=None)


def relations_to_rivals(
    group: Group, layout: TableLayout, tests: Sequence[RunTest] = ()
) -> list[Relation]:
    """Return how each untrained model compares with a group, in each score.

    A model is higher than the group if the 95 % interval of the paired difference is entirely in
    its favor. If the interval includes 0, the difference is unclear. Without an interval, and with
    fewer than ``MIN_UNITS`` units, the two cannot be compared. Models without unit scores, such as
    chance, are compared by whether their interval overlaps that of the group.

    Args:
        group: a run, or repetitions of one.
        layout: layout of the table.
        tests: corrected tests, whose p-values the relations take.
    """
    relations = []
    for split in layout.compared:
        for stage in _untrained_stages(group, split):
            row = _row_of(group, stage)
            for measure in layout.measures:
                word = _word(group, stage, split, measure)
                if word is not None:
                    p_holm = _p_of(tests, group.label, row, split, measure)
                    relations.append(Relation(row, group.label, split, measure, word, p_holm))
    return relations


def relations_to_groups(group: Group, tests: Sequence[RunTest]) -> list[Relation]:
    """Return how other trained models compare with a group, by their tests with it."""
    relations = []
    for test in tests:
        if test.over != "units" or group.label not in (test.one, test.two):
            continue
        is_first = test.one == group.label
        row = test.two if is_first else test.one
        low, high = (test.low, test.high) if is_first else (-test.high, -test.low)
        word = CANNOT_BE_COMPARED if test.has_few_units else word_of(low, high)
        score = (row, group.label, test.split, test.measure)
        relations.append(Relation(*score, word, test.p_holm, is_trained=True))
    return relations


def _p_of(tests: Sequence[RunTest], model: str, row: str, split: str, measure: str) -> float | None:
    for test in tests:
        if (test.one, test.two, test.split, test.measure) == (model, row, split, measure):
            return test.p_holm
    return None


def _row_of(group: Group, stage: Stage) -> str:
    """Return the label of the row of an untrained model in the runs of a group."""
    return untrained_label(stage, [run.untrained[stage] for run in group.runs])


def _untrained_stages(group: Group, split: str) -> list[Stage]:
    """Return the untrained models that all runs have scores of, on a split."""
    first = group.runs[0]
    if not all(split in run.scores for run in group.runs):
        return []
    return [
        stage
        for stage in first.untrained
        if all(split in run.untrained.get(stage, {}) for run in group.runs)
    ]


def _tests_of_best_untrained(own: Group, layout: TableLayout) -> list[RunTest]:
    """Test a group against the untrained model that is best in the first score of a split.

    Oracles are excluded: the test would be against gold answers.
    """
    tests = []
    leading = next(iter(layout.measures))
    for split in layout.compared:
        value_by_stage = {}
        for stage in _untrained_stages(own, split):
            if stage in layout.oracles:
                continue
            value = _mean_score(own, stage, split, leading)
            is_paired = _paired(own, stage, split, leading) is not None
            if is_paired and not np.isnan(value):
                value_by_stage[stage] = value
        if not value_by_stage:
            continue
        best = max(value_by_stage, key=value_by_stage.__getitem__)
        for measure in layout.measures:
            paired = _paired(own, best, split, measure)
            if paired is not None:
                row = _row_of(own, best)
                tests.append(unit_test(own.label, row, split, measure, paired))
    return tests


def _word(group: Group, stage: Stage, split: str, measure: str) -> str | None:
    """Return the relation of an untrained model to a group; None if the score is undefined."""
    if np.isnan(_mean_score(group, stage, split, measure)):
        return None
    num_units = _num_units(group, split)
    if num_units is not None and num_units < MIN_UNITS:
        return CANNOT_BE_COMPARED
    paired = _paired(group, stage, split, measure)
    if paired is not None:
        low = paired.difference.low
        high = paired.difference.high
    else:
        scores = group.runs[0].scores
        if len(group.runs) > 1:
            units = [run.unit_scores for run in group.runs]
            of_runs = [run.scores for run in group.runs]
            scores = over_repetitions(of_runs, units, [measure], group.draws)
        trained = scores[split][measure]
        if "num_runs" in trained and "deviation" not in trained:
            # The runs have different units, and a deviation is not an interval.
            return CANNOT_BE_COMPARED
        untrained = [run.untrained[stage][split][measure] for run in group.runs]
        low = trained["low"] - mean(score.get("high", score["value"]) for score in untrained)
        high = trained["high"] - mean(score.get("low", score["value"]) for score in untrained)
    return word_of(low, high)


def _mean_score(group: Group, stage: Stage, split: str, measure: str) -> float:
    return mean(_value(run, stage, split, measure) for run in group.runs)


def _value(run: GivenRun, stage: Stage, split: str, measure: str) -> float:
    return run.untrained[stage][split].get(measure, {"value": float("nan")})["value"]


def _paired(group: Group, stage: Stage, split: str, measure: str) -> PairedDifference | None:
    """Return the difference of a group and an untrained model; None without their unit scores."""
    trained: list[UnitScores] = []
    untrained: list[UnitScores] = []
    for run in group.runs:
        for scores, stage_or_trained in ((trained, "trained"), (untrained, stage)):
            unit_scores = run.unit_scores_by_stage.get(stage_or_trained, {}).get(split)
            value_U = None if unit_scores is None else unit_scores.value_by_measure.get(measure)
            if unit_scores is None or value_U is None or not np.isfinite(value_U).all():
                return None
            scores.append(unit_scores)
    if not same_units([*trained, *untrained]):
        return None
    score = mean(run.scores[split][measure]["value"] for run in group.runs)
    difference = score - _mean_score(group, stage, split, measure)
    return untrained_difference(trained, untrained, measure, difference, draw_R=group.draws)
