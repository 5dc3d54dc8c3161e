"""A test of a score between two models of a comparison, and the table of several."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from raybio.core.table_layout import TableLayout
from raybio.evaluation.unit_scores import PairedDifference
from raybio.ops.significance import holm

LEVEL = 0.05
"""Adjusted p values below are called significant."""

MIN_UNITS = 10
"""With fewer units there is no verdict: their bootstrap intervals are too narrow."""

CANNOT_BE_COMPARED = "cannot be compared"
"""Verdict if the difference has no interval. Relations with too few units have it, too."""


@dataclass(frozen=True)
class RunTest:
    """A paired test of one score between two groups of runs.

    Attributes:
        over: what was paired: units or seeds.
        one: label of the first.
        two: label of the second.
        split: split of the final evaluation.
        measure: the score.
        num: number of units, or seeds, that both have.
        difference: one minus two.
        low: lower end of its 95 % interval, of a bootstrap over units, or of Student's t over pairs
            of seeds; NaN if unknown, such as for a single unit.
        high: upper end.
        p: two-sided, as if it were the only test; None: too few seeds to test.
        p_holm: corrected for all tests of its kind in the comparison; None before ``corrected``.
        num_tests: number of those tests.
        dominant_unit: the unit that dominates the difference (``DominantUnit``), if one does.
        without_dominant: the difference without it.
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
    p_holm: float | None = None
    num_tests: int = 1
    dominant_unit: int | None = None
    without_dominant: float | None = None

    @property
    def verdict(self) -> str:
        """The conclusion: which is higher, or whether there was too little data to show it."""
        if not self.has_interval:
            return CANNOT_BE_COMPARED
        if self.has_few_units:
            return "too few units"
        if self.p_holm is None:
            return "too few seeds to test"
        if self.p_holm < LEVEL:
            return f"{self.one if self.difference > 0 else self.two} is higher"
        # Seeds are tested by permutation, whose p is at least this. For tests over units there is
        # no bound.
        smallest_p = 2.0 ** (1 - self.num)
        if self.over == "seeds" and smallest_p * self.num_tests >= LEVEL:
            return "too few seeds to show"
        return "not shown"

    @property
    def has_interval(self) -> bool:
        """Whether the interval of the difference is known."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    @property
    def has_few_units(self) -> bool:
        """Whether it pairs fewer than ``MIN_UNITS`` units."""
        return self.over == "units" and self.num < MIN_UNITS

    def difference_text(self, digits: int, scale: float) -> str:
        """Return "+1.20 [+0.50, +1.90]"; ``scale`` 100 shows percent."""
        difference, low, high = (
            f"{scale * value:+.{digits}f}" for value in (self.difference, self.low, self.high)
        )
        return f"{difference} [{low}, {high}]" if self.has_interval else difference


def unit_test(one: str, two: str, split: str, measure: str, paired: PairedDifference) -> RunTest:
    """Return the test of a difference on the same units; see ``RunTest`` for the arguments."""
    numbers = (paired.num_units, *paired.difference, paired.p)
    test = RunTest("units", one, two, split, measure, *numbers)
    if paired.dominant is None:
        return test
    unit, difference = paired.dominant
    return replace(test, dominant_unit=unit, without_dominant=difference)


def dominant_units(tests: Sequence[RunTest], layout: TableLayout) -> list[str]:
    """Return a remark on each unit that dominates differences of two models on a split."""
    measures_by_unit: dict[tuple[str, str, str, int], list[str]] = {}
    for test in tests:
        if test.dominant_unit is not None and test.without_dominant is not None:
            scale, digits = layout.scale(test.measure)
            text = f"{layout.measures[test.measure]} {scale * test.without_dominant:+.{digits}f}"
            key = (test.one, test.two, test.split, test.dominant_unit)
            measures_by_unit.setdefault(key, []).append(text)
    return [
        f"{one} minus {two} ({split}): unit {unit} moves the difference more than all others "
        f"together; without it {', '.join(texts)}"
        for (one, two, split, unit), texts in measures_by_unit.items()
    ]


def corrected(tests: Sequence[RunTest]) -> list[RunTest]:
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


def tests_table(tests: Sequence[RunTest], layout: TableLayout) -> list[list[str]]:
    """Return a row for each test."""
    rows = []
    for test in tests:
        scale, digits = layout.scale(test.measure)
        rows.append(
            [
                f"{layout.measures[test.measure]}, {layout.splits[test.split]}",
                test.one,
                test.two,
                test.difference_text(digits, scale),
                f"{test.num:,}",
                "–" if test.p is None else f"{test.p:.4f}",
                "–" if test.p_holm is None else f"{test.p_holm:.4f}",
                test.verdict,
            ]
        )
    return [["score", "one", "two", "one minus two", "n", "p", "p (Holm)", "verdict"], *rows]
