"""Tests between runs: over seeds and units of a final evaluation, and in pairs of seeds."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import mean

import numpy as np

from raybio.core.final_report import UnitScores
from raybio.core.table_layout import TableLayout
from raybio.evaluation.unit_scores import (
    independent_draws,
    paired_difference,
    same_units,
)
from raybio.ops.significance import paired_test, t_mean
from raybio.runtime.compare.run_test import RunTest, corrected, dominant_units, unit_test
from raybio.runtime.compare.runs import GivenRun, Group
from raybio.runtime.compare.setting_names import shared_draw

MIN_PAIRED_SEEDS = 6
"""With fewer seeds, the smallest possible p, 2 / 2^n, exceeds the level even for a single test."""


def unit_tests(groups: Sequence[Group], layout: TableLayout) -> tuple[list[RunTest], list[str]]:
    """Test every pair of groups on the units of every split, for every score of the layout.

    Returns the tests, and notes on why some pairs are not tested.
    """
    notes = untested([run for group in groups for run in group.runs])
    tests = []
    for one, two in combinations(groups, 2):
        new_tests, notes_of_pair = pair_tests(one, two, layout)
        tests += new_tests
        notes += notes_of_pair
    notes += dominant_units(tests, layout)
    return corrected(tests), list(dict.fromkeys(notes))


def pair_tests(one: Group, two: Group, layout: TableLayout) -> tuple[list[RunTest], list[str]]:
    """Test two groups on the units of every split, for every score, without a correction.

    Returns the tests, and notes on why some scores are not tested.
    """
    if not _have_same_queries(one, two):
        return [], [f"{one.label} and {two.label} were evaluated with different queries: no test"]
    notes = []
    tests = []
    for split in layout.compared:
        if not all(split in run.unit_scores for run in (*one.runs, *two.runs)):
            continue
        sides = [[run.unit_scores[split] for run in group.runs] for group in (one, two)]
        if not same_units([*sides[0], *sides[1]]):
            notes.append(
                f"{one.label} and {two.label} were evaluated on different units ({split}): no test"
            )
            continue
        defined = [measure for measure in layout.measures if _is_defined(sides, measure)]
        undefined = [name for measure, name in layout.measures.items() if measure not in defined]
        if undefined:
            notes.append(
                f"{', '.join(undefined)} ({split}) of {one.label} or {two.label} is undefined: "
                "no test"
            )
        mixed = [name for measure, name in layout.measures.items() if _is_mixed(sides, measure)]
        if mixed:
            notes.append(
                f"{', '.join(mixed)} ({split}): some runs of {one.label} and {two.label} were "
                "written by an older raybio, which stored linearized contributions of units"
            )
        draws = (one.draws, two.draws)
        for measure in defined:
            first, second = (
                mean(run.scores[split][measure]["value"] for run in group.runs)
                for group in (one, two)
            )
            paired = paired_difference(sides[0], sides[1], measure, first - second, draws=draws)
            tests.append(unit_test(one.label, two.label, split, measure, paired))
    return tests, notes


def seed_tests(groups: Sequence[Group], layout: TableLayout) -> list[RunTest]:
    """Test every pair of groups with enough common seeds by the runs' final scores.

    For runs on several sentence sets, the means of the sets are paired.
    """
    tests = []
    for one, two in combinations(groups, 2):
        if not _have_same_queries(one, two):
            continue
        by_draw = [{run.draw: run for run in group.runs if run.scores} for group in (one, two)]
        draws = sorted(by_draw[0].keys() & by_draw[1].keys(), key=str)
        shared = [shared_draw(by_draw[0][draw].settings) for draw in draws]
        if len(independent_draws(shared)) < MIN_PAIRED_SEEDS:
            continue
        for split in layout.compared:
            if not all(
                split in run_by_draw[draw].scores for run_by_draw in by_draw for draw in draws
            ):
                continue
            sides = []
            for run_by_draw in by_draw:
                scores = [run_by_draw[draw].scores[split] for draw in draws]
                sides.append([_over_seeds(scores, layout, independent_draws(shared))])
            for measure in layout.measures:
                if _is_defined(sides, measure):
                    numbers = _paired_seeds(sides, measure)
                    tests.append(RunTest("seeds", one.label, two.label, split, measure, *numbers))
    return corrected(tests)


def _over_seeds(
    scores_by_seed: Sequence[Mapping[str, Mapping[str, float]]],
    layout: TableLayout,
    draws: Sequence[Sequence[int]],
) -> UnitScores:
    """Return the scores of runs with seeds as units, or the independent draws of several sets."""
    values = {}
    for name in layout.measures:
        value_R = np.array([scores[name]["value"] for scores in scores_by_seed])
        values[name] = np.array([value_R[numbers].mean() for numbers in draws])
    return UnitScores(np.arange(len(draws)), values)


def _paired_seeds(
    sides: Sequence[Sequence[UnitScores]], measure: str
) -> tuple[int, float, float, float, float]:
    """Return number of seeds, difference, its interval (Student's t), and p of permutations."""
    first_S, second_S = (side[0].value_by_measure[measure] for side in sides)
    # A bootstrap of six seeds covers 86 % instead of 95 %.
    interval = t_mean(first_S - second_S).difference
    test = paired_test(first_S, second_S, np.ones(len(first_S)), np.random.default_rng(0))
    return len(first_S), *interval, test.p


def _is_defined(sides: Sequence[Sequence[UnitScores]], measure: str) -> bool:
    return not any(
        np.isnan(scores.value_by_measure[measure]).any() for side in sides for scores in side
    )


def _is_mixed(sides: Sequence[Sequence[UnitScores]], measure: str) -> bool:
    """Return whether runs have different statistics, since older versions linearized ratios."""
    return len({scores.counts(measure).statistic for side in sides for scores in side}) > 1


def _have_same_queries(one: Group, two: Group) -> bool:
    """Return whether all final evaluations have the same queries, such as titles or abstracts."""
    queries = [
        None if run.final_report is None else run.final_report.details.get("queries")
        for run in (*one.runs, *two.runs)
    ]
    return all(each == queries[0] for each in queries)


def untested(runs: Sequence[GivenRun]) -> list[str]:
    """Return a note for each reason why runs are in no test over units."""
    labels_by_reason: dict[str, list[str]] = {}
    for run in runs:
        if not run.scores:
            reason = (
                "they have no final evaluation (unfinished runs and trials of sweeps have none)"
            )
        elif not run.unit_scores:
            reason = "they have no scores of single units (unit_scores.npz)"
        else:
            continue
        labels_by_reason.setdefault(reason, []).append(run.label)
    return [
        f"Not tested in pairs: {', '.join(labels)}; {reason}"
        for reason, labels in sorted(labels_by_reason.items())
    ]
