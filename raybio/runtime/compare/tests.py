"""Tests between runs: over seeds and units of a final evaluation, and in pairs of seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from raybio.core.final_report import UnitScores
from raybio.core.table_layout import TableLayout
from raybio.evaluation.unit_scores import paired_difference
from raybio.ops.significance import holm, mean_interval, paired_test
from raybio.runtime.compare.runs import GivenRun, Group

MIN_SEEDS = 6
"""With fewer seeds the smallest p, 2 / 2^n, exceeds the level even of a single test."""

LEVEL = 0.05


@dataclass(frozen=True)
class RunTest:
    """A paired test of one score between two groups of runs.

    Attributes:
        over: what was paired: units or seeds.
        one: label of the first.
        two: label of the second.
        split: of the final evaluation.
        measure: the score.
        num: units, or seeds, that both have.
        difference: one minus two.
        low: lower end of its 95 % bootstrap interval.
        high: upper end.
        p: two-sided, as if it were the only test; None: too few seeds to test.
        p_holm: corrected for all tests of its kind in the comparison.
        num_tests: number of those tests.
    """

    over: str
    one: str
    two: str
    split: str
    measure: str
    num: int
    difference: float
    low: float
    high: float
    p: float | None
    p_holm: float | None
    num_tests: int = 1

    @property
    def verdict(self) -> str:
        """The conclusion: which is higher, or whether there was too little data to show it."""
        if self.p_holm is None:
            return "too few seeds to test"
        if self.p_holm < LEVEL:
            return f"{self.one if self.difference > 0 else self.two} is higher"
        # p in pairs where all differences have one sign.
        smallest_p = 2.0 ** (1 - self.num)
        if smallest_p * self.num_tests >= LEVEL:
            return f"too few {self.over} to show"
        return "not shown"


def unit_tests(groups: Sequence[Group], layout: TableLayout) -> tuple[list[RunTest], list[str]]:
    """Test every pair of groups on the units of every split, for every score of the layout.

    Returns the tests, and notes on why some pairs are not tested.
    """
    notes = _untested([run for group in groups for run in group.runs])
    tests = []
    for one, two in combinations(groups, 2):
        for split in layout.compared:
            if not all(split in run.unit_scores for run in (*one.runs, *two.runs)):
                continue
            sides = [[run.unit_scores[split] for run in group.runs] for group in (one, two)]
            if not _same_units(sides):
                notes.append(
                    f"{one.label} and {two.label} were evaluated on different units ({split}): no "
                    "test"
                )
                continue
            defined = [measure for measure in layout.measures if _is_defined(sides, measure)]
            undefined = [
                name for measure, name in layout.measures.items() if measure not in defined
            ]
            if undefined:
                notes.append(
                    f"{', '.join(undefined)} ({split}) of {one.label} or {two.label} is undefined: "
                    "no test"
                )
            for measure in defined:
                paired = paired_difference(sides[0], sides[1], measure)
                found = (paired.num_units, *paired.difference, paired.p, paired.p)
                tests.append(RunTest("units", one.label, two.label, split, measure, *found))
    return _corrected(tests), list(dict.fromkeys(notes))


def seed_tests(groups: Sequence[Group], layout: TableLayout) -> list[RunTest]:
    """Test every pair of groups with ``MIN_SEEDS`` common seeds by the runs' final scores."""
    tests = []
    for one, two in combinations(groups, 2):
        by_draw = [{run.draw: run for run in group.runs if run.scores} for group in (one, two)]
        draws = sorted(by_draw[0].keys() & by_draw[1].keys(), key=str)
        if len(draws) < MIN_SEEDS:
            continue
        for split in layout.compared:
            if not all(split in of_group[draw].scores for of_group in by_draw for draw in draws):
                continue
            sides = []
            for of_group in by_draw:
                scores = [of_group[draw].scores[split] for draw in draws]
                sides.append([_over_seeds(scores, layout)])
            for measure in layout.measures:
                if _is_defined(sides, measure):
                    found = _paired_seeds(sides, measure)
                    tests.append(RunTest("seeds", one.label, two.label, split, measure, *found))
    return _corrected(tests)


def _over_seeds(
    of_seeds: Sequence[Mapping[str, Mapping[str, float]]], layout: TableLayout
) -> UnitScores:
    """Return the scores of runs with seeds as units."""
    values = {
        name: np.array([scores[name]["value"] for scores in of_seeds]) for name in layout.measures
    }
    return UnitScores(np.arange(len(of_seeds)), values)


def _paired_seeds(
    sides: Sequence[Sequence[UnitScores]], measure: str
) -> tuple[int, float, float, float, float, float]:
    """Return number of seeds, difference, its interval, and p twice."""
    first_S, second_S = (side[0].value_by_measure[measure] for side in sides)
    interval = mean_interval(first_S - second_S, np.random.default_rng(0))
    test = paired_test(first_S, second_S, np.ones(len(first_S)), np.random.default_rng(0))
    return len(first_S), *interval, test.p, test.p


def _is_defined(sides: Sequence[Sequence[UnitScores]], measure: str) -> bool:
    return not any(
        np.isnan(scores.value_by_measure[measure]).any() for side in sides for scores in side
    )


def _corrected(tests: Sequence[RunTest]) -> list[RunTest]:
    """Return the tests with Holm's correction for those that have a p-value."""
    tested = [test.p for test in tests if test.p is not None]
    raised = iter(holm(tested))
    return [
        replace(
            test,
            p_holm=None if test.p is None else float(next(raised)),
            num_tests=len(tested),
        )
        for test in tests
    ]


def _same_units(sides: Sequence[Sequence[UnitScores]]) -> bool:
    first = sides[0][0].unit_U
    return all(np.array_equal(scores.unit_U, first) for side in sides for scores in side)


def _untested(runs: Sequence[GivenRun]) -> list[str]:
    """Return a note for each reason for which runs are in no test over units."""
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
