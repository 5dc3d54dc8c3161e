"""Verdicts of tests between two models."""

import math

import pytest

from raybio.methods import METHODS
from raybio.runtime.compare import run_test
from raybio.runtime.compare.run_test import RunTest, corrected


def example(over: str, num: int, p: float | None, *, low: float = -0.1) -> RunTest:
    return RunTest(over, "a", "b", "val", "lrap", num, 0.1, low, 0.3, p, p)


@pytest.mark.parametrize(
    ("test", "verdict"),
    [
        (example("units", 100, 0.01), "a is higher"),
        (example("units", 100, 0.2), "not shown"),
        (example("units", 10, 0.01), "a is higher"),
        (example("units", 9, 0.01), "too few units"),
        (example("units", 9, None), "too few units"),
        (example("units", 100, None), "too few seeds to test"),
        # Three pairs of seeds have no p below 1/4.
        (example("seeds", 3, 0.25), "too few seeds to show"),
        (example("seeds", 8, 0.25), "not shown"),
        (example("units", 1, None, low=math.nan), "cannot be compared"),
        (example("units", 1, 0.01, low=math.nan), "cannot be compared"),
    ],
)
def test_the_verdict_says_what_was_example(test: RunTest, verdict: str) -> None:
    assert test.verdict == verdict


def test_an_unknown_interval_is_not_printed() -> None:
    layout = METHODS["sppt_protein"].table
    tests = corrected([example("units", 1, None, low=math.nan), example("units", 10, 0.01)])
    _, unknown, known = run_test.tests_table(tests, layout)
    assert unknown[3:] == ["+10.00", "1", "–", "–", "cannot be compared"]
    assert known[3:] == ["+10.00 [-10.00, +30.00]", "10", "0.0100", "0.0100", "a is higher"]
