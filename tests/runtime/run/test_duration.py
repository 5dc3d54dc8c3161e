"""How long a run takes, by numbers alone: no clock is read here."""

import re

import pytest

from raybio.runtime.run.duration import (
    FEW_STEPS,
    DurationEstimate,
    RemainingTime,
    epochs_in_words,
    in_words,
)
from raybio.training.loop import FIRST_REPORTED_STEPS


def report(step: int, rate: float | None) -> dict:
    return {
        "step": step,
        "metrics": {"loss": 1.0} | ({} if rate is None else {"steps_per_second": rate}),
    }


@pytest.mark.parametrize(
    ("num_steps", "seconds_per_step", "is_long"),
    [
        (100_000, 78.0, True),  # a 12-layer encoder on two cores
        (100_000, 0.864, False),
        (100_000, 0.865, True),
        (10**9, 1e-3, True),
        (FEW_STEPS, 1e9, False),
        (FEW_STEPS + 1, 864.0, True),
    ],
)
def test_a_run_of_more_than_a_day_is_long_unless_it_has_few_steps(
    num_steps: int, seconds_per_step: float, is_long: bool
) -> None:
    assert RemainingTime(num_steps, seconds_per_step).is_long == is_long


def test_a_projection_says_how_long_and_until_when() -> None:
    projection = RemainingTime(100_000, 78.0)
    assert projection.described() == "100,000 steps, 78 s a step: about 90 days"
    assert projection.seconds == 7.8e6
    assert re.fullmatch(r"1970-04-0[12] \d\d:\d\d", projection.ends(0.0))


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.2, "0.2 seconds"),
        (89, "89 seconds"),
        (90, "1.5 minutes"),
        (5400, "1.5 hours"),
        (3 * 86_400, "3 days"),
    ],
)
def test_a_duration_is_reported_in_its_largest_unit(seconds: float, words: str) -> None:
    assert in_words(seconds) == words


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((100_000, 1038 / 64, 64), "100,000 steps of 64 rows = 6,166 epochs of 1,038 rows"),
        (
            (40, 18.74, 100, "proteins with training links"),
            "40 steps of 100 rows = 2.1 epochs of 1,874 proteins with training links",
        ),
        ((100, 1000.0, 8), "100 steps of 8 rows = 0.1 epochs of 8,000 rows"),
        ((30, 12.5, None), "30 steps = 2.4 epochs of 12.5 steps"),
    ],
)
def test_epochs_are_counted_by_the_rows_of_the_store(arguments: tuple, words: str) -> None:
    assert epochs_in_words(*arguments) == words


def test_the_first_rate_of_a_start_is_left_out_and_the_fastest_of_the_others_counts() -> None:
    first, timed, certain = FIRST_REPORTED_STEPS
    estimate = DurationEstimate(1003, from_step=0)
    estimate.update([report(0, None), report(first, 0.01)])
    assert estimate.projection is None
    estimate.update([report(timed, 2.0)])
    assert (estimate.projection, estimate.is_certain) == (RemainingTime(1000, 0.5), False)
    estimate.update([report(certain, 4.0)])
    assert (estimate.projection, estimate.is_certain) == (RemainingTime(1003 - certain, 0.25), True)
    estimate.update([report(20, 1.0)])  # another program began
    assert estimate.projection == RemainingTime(1003 - certain, 0.25)


def test_a_run_that_is_resumed_has_no_reports_of_its_first_steps() -> None:
    estimate = DurationEstimate(1000, from_step=500)
    estimate.update([report(510, 0.01)])
    assert estimate.projection is None
    estimate.update([report(520, 4.0)])
    assert (estimate.projection, estimate.is_certain) == (RemainingTime(480, 0.25), True)


def test_workers_that_are_started_again_do_not_make_a_run_long() -> None:
    estimate = DurationEstimate(100_000, from_step=0)
    estimate.update([report(1, 0.01)])
    estimate.restart(0)
    estimate.update([report(3, 1 / 60)])  # with the time until the data flows once more
    assert estimate.projection is None
    estimate.update([report(10, 10.0)])
    assert estimate.projection == RemainingTime(99_990, 0.1)


def test_ten_times_too_long_is_certain_at_once() -> None:
    estimate = DurationEstimate(100_000, from_step=0)
    estimate.update([report(1, 0.1), report(3, 1 / 78)])
    assert estimate.is_certain
    estimate = DurationEstimate(100_000, from_step=0)
    estimate.update([report(1, 0.1), report(3, 1.0)])
    assert estimate.projection is not None
    assert estimate.projection.is_long and not estimate.is_certain
