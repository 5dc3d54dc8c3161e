"""Length of a run: its epochs at the start, and a projection after its first steps."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from raybio.training.loop import FIRST_REPORTED_STEPS
from raybio.training.settings import COMPLETE

LONGEST_UNACCEPTED_SECONDS = 24 * 3600.0
"""Longest run on CPUs that needs no acceptance (``--yes``)."""


FAR_TOO_LONG = 10.0
"""A run that is too long by this factor is stopped at once; otherwise ten steps are measured."""


_FIRST_TIMED_STEPS = FIRST_REPORTED_STEPS[1]


FEW_STEPS = 100
"""Runs of at most this many steps are never stopped, however long a step takes."""


_UNITS = (("days", 86_400.0), ("hours", 3600.0), ("minutes", 60.0), ("seconds", 1.0))


@dataclass(frozen=True)
class RemainingTime:
    """The rest of a run, at a measured rate.

    Attributes:
        num_steps: remaining steps.
        seconds_per_step: the measured duration of a step.
    """

    num_steps: int
    seconds_per_step: float

    @property
    def seconds(self) -> float:
        """Remaining seconds, without evaluations."""
        return self.num_steps * self.seconds_per_step

    @property
    def is_long(self) -> bool:
        """Whether a run on CPUs of this length has to be accepted."""
        return self.num_steps > FEW_STEPS and self.seconds > LONGEST_UNACCEPTED_SECONDS

    def described(self) -> str:
        """Return a text such as ``100,000 steps, 78 s a step: about 90 days``."""
        rate = f"{self.seconds_per_step:.2g} s a step"
        return f"{self.num_steps:,} steps, {rate}: about {in_words(self.seconds)}"

    def ends(self, now: float) -> str:
        """Return the local time of the last step; ``now`` is in seconds since 1970."""
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(now + self.seconds))


def in_words(seconds: float) -> str:
    """Return a duration such as ``90 days`` or ``2.5 hours``.

    The unit is the largest of which there are at least one and a half.
    """
    fitting = [(unit, length) for unit, length in _UNITS if seconds >= 1.5 * length]
    unit, length = fitting[0] if fitting else _UNITS[-1]
    number = seconds / length
    return f"{number:,.0f} {unit}" if number >= 10 else f"{number:.2g} {unit}"


def in_a_row(lengths: Sequence[int], num_at_a_time: int) -> int:
    """Return when the last of several trainings ends, if each begins as soon as there is room.

    Args:
        lengths: length of each training in steps or seconds, in their order.
        num_at_a_time: maximum number of trainings at the same time.
    """
    ends = num_at_a_time * [0]
    for length in lengths:
        first = ends.index(min(ends))
        ends[first] += length
    return max(ends)


@dataclass
class Tally:
    """Counts the runs of a command that have ended, and projects how long the others take.

    Attributes:
        num_runs: number of runs.
        num_at_a_time: number of runs that are trained at the same time.
        began: when the first one began, by ``time.monotonic``.
        num_ended: number of runs that have ended.
        num_complete: number of runs that are complete.
    """

    num_runs: int
    num_at_a_time: int
    began: float
    num_ended: int = 0
    num_complete: int = 0

    def count(self, outcome: str) -> None:
        """Count a run that has ended; only one with a status of a complete run has a length."""
        self.num_ended += 1
        self.num_complete += outcome in COMPLETE

    def in_words(self, now: float | None) -> str:
        """Return how many runs have ended, and how long the others take if they take as long.

        Runs are assumed to train in rounds of ``num_at_a_time``. A round counts as over when its
        first run ends, and at least one is left. Without a complete run or ``now``, no time is
        projected.
        """
        ended = f"{self.num_ended} of {self.num_runs} runs"
        if now is None or self.num_ended == self.num_runs or self.num_complete == 0:
            return ended
        seconds_per_round = (now - self.began) / math.ceil(self.num_complete / self.num_at_a_time)
        num_rounds = math.ceil(self.num_runs / self.num_at_a_time)
        num_left = num_rounds - math.ceil(self.num_ended / self.num_at_a_time)
        return f"{ended}, about {in_words(seconds_per_round * max(num_left, 1))} left"


def epochs_in_words(
    num_steps: int, steps_per_epoch: float, batch_rows: int | None, rows: str = "rows"
) -> str:
    """Return a text such as ``100,000 steps of 64 rows = 6,165 epochs of 1,038 rows``.

    Without ``batch_rows`` the epoch is given in steps.

    Args:
        num_steps: steps of the run.
        steps_per_epoch: steps of an epoch.
        batch_rows: rows of a global batch.
        rows: noun for the rows of an epoch, in the plural.
    """
    epochs = num_steps / steps_per_epoch
    number = f"{epochs:,.0f}" if epochs >= 10 else f"{epochs:.2g}"
    if batch_rows is None:
        return f"{num_steps:,} steps = {number} epochs of {steps_per_epoch:,.1f} steps"
    epoch_rows = round(steps_per_epoch * batch_rows)
    return f"{num_steps:,} steps of {batch_rows:,} rows = {number} epochs of {epoch_rows:,} {rows}"


class DurationEstimate:
    """Estimates how long a start of a run takes, from its reports.

    The fastest rate is used, since other programs on the machine only make steps slower.

    Attributes:
        projection: projection of the rest of the run; None before anything is measured.
        is_certain: whether enough steps are measured to act on the projection.
    """

    def __init__(self, max_steps: int, from_step: int = 0) -> None:
        """Estimate from the reports after ``from_step``."""
        self.projection: RemainingTime | None = None
        self.is_certain = False
        self._max_steps = max_steps
        self.restart(from_step)

    def restart(self, from_step: int) -> None:
        """Continue with reports of restarted workers, after ``from_step``."""
        self._from_step = from_step
        self._num_rates = 0

    def update(self, reports: Sequence[dict[str, Any]]) -> None:
        """Process new reports of ``metrics.jsonl``."""
        for report in reports:
            rate = report["metrics"].get("steps_per_second")
            if not rate:
                continue
            self._num_rates += 1
            num_steps = report["step"] - self._from_step
            # Ignore the first rate of a start, which includes the time until the data flows.
            if self._num_rates == 1 or num_steps < _FIRST_TIMED_STEPS:
                continue
            projection = RemainingTime(self._max_steps - report["step"], 1 / rate)
            if (
                self.projection is None
                or projection.seconds_per_step < self.projection.seconds_per_step
            ):
                self.projection = projection
            is_far_too_long = self.projection.seconds > FAR_TOO_LONG * LONGEST_UNACCEPTED_SECONDS
            self.is_certain = is_far_too_long or num_steps >= FIRST_REPORTED_STEPS[-1]
