"""Length of a sweep, projected from the first steps of its trials, before days have passed."""

import math
import time

from raybio.core.records import read_recomputable, read_record, write_record
from raybio.runtime.run.duration import DurationEstimate
from raybio.runtime.run.folder import LAUNCH
from raybio.runtime.run.metrics_log import MetricsTail
from raybio.runtime.tune.plan import planned
from raybio.runtime.tune.trial import ENDED, SweepSpec


def num_trainings(spec: SweepSpec) -> int:
    """Return the number of trials of a sweep, including those that repeat the best settings."""
    space = spec.space
    num_trials = len(planned(space, spec.check))
    num_repeated = min(space.budget.num_repeated, num_trials)
    return num_trials + num_repeated * (space.budget.num_seeds - 1)


class SweepLength:
    """Estimates how long a sweep takes, and refuses one of more than a day on CPUs.

    The estimate assumes that no trial is stopped early.

    Attributes:
        refusal: why the sweep is stopped because of its length; None if it is not.
    """

    def __init__(self, spec: SweepSpec, num_at_a_time: int) -> None:
        """Create it before any trial of this start.

        Args:
            spec: the sweep, with the compute settings of its trials.
            num_at_a_time: trials that are trained at the same time.
        """
        self.refusal: str | None = None
        self._spec = spec
        self._num_at_a_time = min(num_at_a_time, num_trainings(spec))
        max_steps = spec.space.budget.max_steps
        self._num_steps = math.ceil(num_trainings(spec) / num_at_a_time) * max_steps
        # Sum over all trials, so that a resume with fewer trials at a time does not count as
        # longer.
        self._num_all_steps = num_trainings(spec) * max_steps
        launch = read_record(spec.path / LAUNCH, "launch") or {}
        self._is_settled = bool(
            spec.run.accepts_long_run
            or spec.run.compute.gpus_per_worker
            or self._num_all_steps <= launch.get("num_accepted_steps", 0)
        )
        self._followed: dict[str, tuple[MetricsTail, DurationEstimate]] = {}
        self._is_shown = False
        trials = (path.name for path in (spec.path / "trials").glob("*/"))
        self._seen = {name for name in trials if self._has_ended(name)}
        self._follow_new_trials()
        for tail, estimate in self._followed.values():
            # For trials of an earlier start, measure only new reports.
            tail.read()
            estimate.restart(max(tail.last[0], 0))

    def update(self) -> None:
        """Read new reports; stop all trials if the sweep is too long."""
        if self._is_settled and self._is_shown:
            self._followed.clear()
            return
        self._follow_new_trials()
        # Before their last reports are read.
        ended = [name for name in self._followed if self._has_ended(name)]
        for tail, estimate in self._followed.values():
            estimate.update(tail.read())
            projection = estimate.projection
            if projection is None:
                continue
            words = projection.described()
            if not self._is_shown:
                self._is_shown = True
                until = projection.ends(time.time())
                at_a_time = f"{self._num_at_a_time} at a time"
                print(f"all trials, {at_a_time}: {words} at most, until {until}", flush=True)
            if estimate.is_certain and not self._is_settled:
                self._settle(projection.is_long, words)
                return
        for name in ended:
            # Each has an open file.
            del self._followed[name]

    def _follow_new_trials(self) -> None:
        for path in sorted((self._spec.path / "trials").glob("*/metrics.jsonl")):
            name = path.parent.name
            if name not in self._seen:
                self._seen.add(name)
                self._followed[name] = (MetricsTail(path), DurationEstimate(self._num_steps))

    def _has_ended(self, name: str) -> bool:
        return (self._spec.path / "trials" / name / ENDED).exists()

    def _settle(self, is_long: bool, words: str) -> None:
        self._is_settled = True
        if not is_long:
            # Record these steps as accepted: a resume on a busier machine must not be refused, but
            # a sweep with more trials may be.
            path = self._spec.path / LAUNCH
            launch = read_recomputable(path, "launch")
            if launch is not None:
                write_record(path, "launch", launch | {"num_accepted_steps": self._num_all_steps})
            return
        self.refusal = (
            f"{self._spec.path.name}: {words} on CPUs; want a day at most, or --yes. The sweep is "
            "stopped at checkpoints, and the same command with --yes resumes it. Or lower --budget "
            "max_steps= under another --name, make the encoder smaller (--recipe small), or train "
            "on GPUs"
        )
        print("stopping: this takes more than a day on CPUs, and --yes was not given", flush=True)
        self._spec.stop.touch()
