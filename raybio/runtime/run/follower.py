"""Processing, in the driver, of the files that workers write while they train."""

import time
from typing import Any

from raybio.core.records import read_recomputable, write_record
from raybio.methods import METHODS
from raybio.runtime.cluster.resources import Resources
from raybio.runtime.run.duration import DurationEstimate, RemainingTime, epochs_in_words
from raybio.runtime.run.metrics_log import MetricsTail
from raybio.runtime.run.notices import NoticeTail
from raybio.runtime.run.progress import ProgressView
from raybio.runtime.run.spec import RunSpec


class Follower:
    """Shows warnings, the first step and reports, and estimates how long the run takes.

    Attributes:
        refusal: why the run is stopped because of its length; None if it is not.
        evaluation_seconds: duration of the evaluation before the first step of a start; None: there
            was none.
    """

    def __init__(self, spec: RunSpec, resources: Resources) -> None:
        """Create it before the workers start."""
        self.refusal: str | None = None
        self.evaluation_seconds: float | None = None
        self._start_notice: dict[str, Any] = {}
        self._folder = spec.folder
        self._max_steps = spec.config.schedule.max_steps
        plan = getattr(spec.config, "plan", None)
        self._batch_rows = getattr(plan, "global_batch_rows", None)
        self._rows = METHODS[spec.method].epoch_rows
        num_accepted_steps = spec.folder.read_launch().get("num_accepted_steps", 0)
        self._is_length_settled = bool(
            spec.accepts_long_run
            or resources.gpus_per_worker
            or self._max_steps <= num_accepted_steps
        )
        self._notices = NoticeTail(self._folder.notices)
        self._reports: MetricsTail | None = None
        self._duration = DurationEstimate(self._max_steps)
        self._is_duration_shown = False
        self._epochs = ""

    @property
    def has_started(self) -> bool:
        """Whether a worker has reached the step that it starts from."""
        return self._reports is not None

    @property
    def projection(self) -> RemainingTime | None:
        """Projection of the rest of the run; None before its speed is measured."""
        return self._duration.projection

    def update(self, view: ProgressView) -> None:
        """Show in ``view`` what the workers have written since the last call."""
        progress = []
        for notice in self._notices.read():
            if "warning" in notice:
                view.warn(notice["warning"])
            elif "progress" in notice:
                progress.append(notice["progress"])
            else:
                self._start(view, notice)
        if self._reports is not None:
            reports = self._reports.read()
            view.update(reports)
            self._time_first_evaluation(reports)
            self._follow_length(view, reports)
        # Show progress after the reports of steps, which come first and clear the view's message.
        for message in progress:
            view.say(message)

    def close(self) -> None:
        """Close the run's log."""
        if self._reports is not None:
            self._reports.close()

    def _start(self, view: ProgressView, notice: dict[str, Any]) -> None:
        self._start_notice = notice
        first_step = notice["first_step"]
        self._duration.restart(first_step)
        is_restart = self._reports is not None
        if first_step or is_restart:
            view.say(f"resuming from step {first_step:,}")
        if is_restart:
            return
        # The log holds reports of earlier starts too.
        is_new = notice.get("is_first_step_reported")
        last_known_step = first_step - 1 if is_new else first_step
        self._reports = MetricsTail(self._folder.metrics, after_step=last_known_step)
        self._epochs = epochs_in_words(
            self._max_steps, notice["steps_per_epoch"], self._batch_rows, self._rows
        )
        view.note(self._epochs)

    def _time_first_evaluation(self, reports: list[dict[str, Any]]) -> None:
        start = self._start_notice
        for report in reports:
            if report.get("is_evaluation") and report["step"] == start["first_step"]:
                self.evaluation_seconds = (report["time_ms"] - start["time_ms"]) / 1000

    def _follow_length(self, view: ProgressView, reports: list[dict[str, Any]]) -> None:
        self._duration.update(reports)
        projection = self._duration.projection
        if projection is None or projection.num_steps == 0:
            return
        if not self._is_duration_shown:
            self._is_duration_shown = True
            view.note(f"{projection.described()}, until {projection.ends(time.time())}")
        if self._is_length_settled or not self._duration.is_certain:
            return
        # Settled at the end: what fails on the disk is tried again.
        if not projection.is_long:
            # Record these steps as accepted: a retry on a busier machine must not be refused, but a
            # run with more steps may be.
            launch = read_recomputable(self._folder.launch, "launch")
            # If the record is lost, a new one with only this number would hide its copy in
            # checkpoints.
            if launch is not None:
                launch["num_accepted_steps"] = self._max_steps
                write_record(self._folder.launch, "launch", launch)
            self._is_length_settled = True
            return
        self._folder.stop.touch()
        self._is_length_settled = True
        self.refusal = (
            f"{self._folder.name}: {projection.described()} on CPUs; want a day at most, or --yes. "
            "The run is stopped at a checkpoint, and the same command with --yes resumes it. Or "
            f"lower schedule.max_steps ({self._epochs}), make the encoder smaller, or train on a "
            "GPU"
        )
        view.note(
            "stopping at the next step: this takes more than a day on CPUs, and --yes was not given"
        )
