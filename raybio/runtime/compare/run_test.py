"""A test of a score between two models of a comparison, and the table of several."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from raybio.core.table_layout import TableLayout
from raybio.ops.significance import holm

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
        difference, low, high = (
            f"{scale * value:+.{digits}f}" for value in (test.difference, test.low, test.high)
        )
        rows.append(
            [
                f"{layout.measures[test.measure]}, {layout.splits[test.split]}",
                test.one,
                test.two,
                f"{difference} [{low}, {high}]",
                f"{test.num:,}",
                "–" if test.p is None else f"{test.p:.4f}",
                "–" if test.p_holm is None else f"{test.p_holm:.4f}",
                test.verdict,
            ]
        )
    return [["score", "one", "two", "one minus two", "n", "p", "p (Holm)", "verdict"], *rows]
