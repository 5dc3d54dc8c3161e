"""A run that this driver holds: opening, beginning and concluding it."""

import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

from raybio.core.errors import (
    CheckpointError,
    OtherVersionsError,
    RaybioError,
    RecordError,
    first_line,
)
from raybio.core.final_report import FinalReport
from raybio.core.location import absolute
from raybio.core.records import fields_of, read_recomputable, read_record, write_record
from raybio.core.text import count_of, first_names
from raybio.core.version import (
    arithmetic_versions,
    changed_values,
    have_changed,
    last_values,
    used_values,
)
from raybio.evaluation.run_plots import plot_final, plot_run
from raybio.runtime.run.checks import (
    check_spec,
    input_lengths,
    published_recipe,
    record_cuts,
)
from raybio.runtime.run.encoder_source import encoder_record
from raybio.runtime.run.folder import RunFolder, committed_in
from raybio.runtime.run.metrics_log import read_reports
from raybio.runtime.run.result import Result, finished_result, result_of, summarize
from raybio.runtime.run.spec import Compute, RunSpec, WorkerSpec
from raybio.runtime.spool import spool
from raybio.runtime.tracking.tracker import Tracker, tracking_uri
from raybio.training.checkpoint import step_of_checkpoint
from raybio.training.checkpoint_files import DamagedError, read_extra
from raybio.training.loop import changeable_settings
from raybio.training.progress import Progress, has_stopped_improving
from raybio.training.settings import COMPLETE

_log = logging.getLogger(__name__)

MLFLOW_STATUS = {
    "finished": "FINISHED",
    "early_stopping": "FINISHED",
    "stopped": "KILLED",
    "failed": "FAILED",
}


MOST_NAMED = 6
"""Maximum number of runs that a message names."""

LOCK_SECONDS = 5.0
"""How long a driver waits for another one to leave the folder."""


class OpenRun:
    """A run whose folder this driver holds.

    Attributes:
        spec: the run, in steps.
        folder: its folder.
        tracker: tracker of its MLflow run.
        finished: the result, if the run is already finished.
        spool: the run in its bucket; None: it is in a local folder.
    """

    def __init__(
        self,
        spec: RunSpec,
        tracker: Tracker,
        finished: Result | None,
        held_spool: "spool.HeldSpool | None" = None,
    ) -> None:
        """Take over an opened folder; use ``open`` instead."""
        self.spec = spec
        self.folder = spec.folder
        self.tracker = tracker
        self.finished = finished
        self.spool = held_spool

    @classmethod
    def open(cls, spec: RunSpec, held: contextlib.ExitStack) -> Self:
        """Create the folder or find the run in it, and hold its lock until ``held`` is closed.

        Raises:
            RaybioError: as ``driver.train``.
        """
        folder = spec.folder
        uri = tracking_uri(spec.tracking, spec.runs)
        spec = spec.in_steps()
        held_spool = None
        if spec.bucket is not None:
            held_spool = held.enter_context(spool.held(folder, spec.bucket))
        digest = check_spec(spec)
        if held_spool is None:
            folder.make()
            held.enter_context(folder.lock("driver", LOCK_SECONDS))
        changeable = changeable_settings(spec.config)
        if "schedule.max_steps" in changeable:
            _check_not_past(folder, spec.config.schedule.max_steps)
        is_old = folder.open(spec.method, spec.config, absolute(spec.store), digest, changeable)
        finished = finished_result(folder, spec.config) if is_old else None
        if finished is None:
            folder.record_encoder(encoder_record(spec.config))
            # Done here and not in ``begin``, since a run of ``--seeds`` can be stopped while it
            # waits.
            folder.stop.unlink(missing_ok=True)
        config = spec.config.to_mapping()
        tracker = Tracker(folder, uri, spec.method, config, digest, spec.parent_run_id)
        return cls(spec, tracker, finished, held_spool)

    def begin(self, compute: Compute) -> tuple[str, list[str]]:
        """Record a new start and remove leftovers of the last one.

        All checks must come before: the next start treats what is recorded as the run's own.

        Args:
            compute: compute settings that the next start repeats.

        Returns:
            The name of the start, and remarks on changed versions since the newest checkpoint, on
            an earlier start that left nothing, and on each kind of input that is cut.

        Raises:
            OtherVersionsError: if versions have changed and the run is strict; nothing is written.
        """
        spec = self.spec
        assert spec.precision is not None
        versions, remarks = self._versions()
        launch = {
            "versions": versions,
            "is_strict": spec.is_strict,
            "tracking": spec.tracking,
            "is_length_accepted": spec.accepts_long_run,
            "num_accepted_steps": self.folder.read_launch().get("num_accepted_steps", 0),
            "recipe": spec.recipe,
            "published": published_recipe(spec),
        }
        if self.folder.launch.exists() and not committed_in(self.folder.checkpoints):
            remarks.append("an earlier start saved no checkpoint: this one begins at step 0")
        write_record(self.folder.launch, "launch", compute.to_record() | launch)
        self.folder.record_precision(spec.precision)
        start = self.folder.begin_start()
        # Remove leftovers now, since this start may be killed before it can replace them.
        for path in (
            self.folder.failure,
            self.folder.outcome,
            self.folder.unit_scores,
            self.folder.result,
        ):
            path.unlink(missing_ok=True)
        remarks += record_cuts(input_lengths(spec), self.folder, self.tracker)
        if self.spool is not None:
            # If the driver is killed now, the bucket must not keep the result of an older start.
            self.spool.mirror.write_all()
        return start, remarks

    def _versions(self) -> tuple[dict[str, str], list[str]]:
        """Return the versions that the run has used, including this start, and remarks on changes.

        Versions used after the newest checkpoint are dropped, since none of their results is left.

        Raises:
            OtherVersionsError: if the run is strict, and other versions have ever been used.
        """
        changes = compare_versions(self.folder, is_strict=self.spec.is_strict)
        remarks = []
        if changes:
            remarks = [
                f"warning: other versions than at the newest checkpoint of {self.folder.path}: "
                f"{'; '.join(changes)}. The last bits of its results may be others"
            ]
        return versions_with_this_start(self.folder), remarks

    def worker_spec(self, threads: int | None, start: str, relay: Any) -> WorkerSpec:
        """Return the specification of the start for workers.

        Args:
            threads: compute threads.
            start: name of the start.
            relay: the relay to this driver; None for a run in a local folder.
        """
        lease = None if self.spool is None else self.spool.key
        return WorkerSpec(
            run=self.on_workers(), threads=threads, start=start, relay=relay, lease=lease
        )

    def check_lease(self) -> None:
        """Refuse to go on if another driver has taken over a run in a bucket.

        Raises:
            LostLeaseError: if it has. A bucket that does not respond does not end the run.
        """
        if self.spool is not None:
            self.spool.lease.check_not_lost()

    def on_workers(self) -> RunSpec:
        """Return the run with absolute paths, as it is sent to workers."""
        return replace(self.spec, store=absolute(self.spec.store), runs=self.folder.path.parent)

    def conclude(self, status: str) -> None:
        """Write the result and the plots, and end the MLflow run without waiting for it.

        Raises:
            OSError: if the result of a complete run cannot be written. Its MLflow run then ends as
                failed.
        """
        ending = MLFLOW_STATUS[status]
        if status == "failed" and self.spool is not None and self.spool.lease.is_taken_over():
            self.tracker.abandon()
        try:
            self._write_result(status)
            if status in COMPLETE:
                self._plot()
        except BaseException:
            ending = MLFLOW_STATUS["failed"]
            raise
        finally:
            self.tracker.end(ending)

    def _plot(self) -> None:
        """Write the plots; failures are not fatal."""
        try:
            plot_run(read_reports(self.folder.metrics), self.folder.plots)
            outcome = read_record(self.folder.outcome, "outcome") or {}
            plot_final(FinalReport.from_json(outcome.get("final", {})), self.folder.plots)
        except (OSError, ValueError) as error:
            _log.warning("%s: cannot be plotted (%s)", self.folder.path, first_line(error))

    def settle(self, status: str, seconds: float) -> bool:
        """Wait until MLflow has the whole run, and write the result again; return whether it has.

        Args:
            status: as for ``conclude``, which must be called first.
            seconds: time limit, see ``Tracker.wait``.

        Raises:
            OSError: as ``conclude``.
        """
        is_complete = self.tracker.wait(seconds)
        # A tracking server that was unavailable may have assigned the id only now.
        self._write_result(status)
        return is_complete

    def result(self) -> Result:
        """Return the result of a concluded run."""
        written = read_record(self.folder.result, "result")
        assert written is not None
        return result_of(written, self.folder, was_finished=False)

    @property
    def num_steps_left(self) -> int:
        """The number of steps that are left after the newest checkpoint."""
        newest = self.folder.newest_checkpoint
        step = 0 if newest is None else step_of_checkpoint(newest)
        return max(self.spec.config.schedule.max_steps - step, 0)

    @property
    def is_trained(self) -> bool:
        """Whether the last step is saved, so that only the final evaluation is left.

        It is False for a run in a bucket that stopped early, since its driver has no checkpoint
        state.
        """
        newest = self.folder.newest_checkpoint
        if newest is None:
            return False
        schedule = self.spec.config.schedule
        if step_of_checkpoint(newest) >= schedule.max_steps:
            return True
        try:
            progress = Progress(**fields_of(Progress, read_extra(newest), newest))
        except (DamagedError, RecordError, OSError):
            return False
        return has_stopped_improving(progress, schedule)

    def _write_result(self, status: str) -> None:
        try:
            content = summarize(self.folder, self.spec.config, status, self.tracker.run_id)
            newest = self.folder.newest_checkpoint
            if self.spool is not None and newest is not None:
                content["checkpoint"] = str(self.spool.bucket / "checkpoints" / newest.name)
            write_record(self.folder.result, "result", content)
        except (OSError, RaybioError):
            # Report the error that ended the run, not that its result cannot be written either, or
            # that its records are damaged.
            if status in COMPLETE:
                raise


def compare_versions(folder: RunFolder, *, is_strict: bool, has_ended: bool = False) -> list[str]:
    """Return how the present versions differ from those at a run's newest checkpoint.

    Args:
        folder: the run's folder. A run without a checkpoint has nothing that other versions could
            continue.
        is_strict: whether other versions are refused.
        has_ended: whether the run is finished, so that its results count without a checkpoint.

    Returns:
        Lines ``name: old -> new``.

    Raises:
        OtherVersionsError: if the run is strict, and other versions have ever been used.
        RaybioError: if its records cannot be read, unless it is finished and not strict.
    """
    try:
        used = _used_versions(folder, has_ended=has_ended)
    except RaybioError:
        # The records of a finished run, which may be damaged or of another format, are read here
        # only for a warning.
        if is_strict or not has_ended:
            raise
        return []
    versions = arithmetic_versions()
    changes = changed_values(used, versions)
    if changes and is_strict:
        advice = "Restore them, or leave out --strict"
        if have_changed(used):
            advice = (
                "It was resumed by others without --strict: leave it out, or choose another --name"
            )
        raise OtherVersionsError(
            f"other versions than {folder.path} was trained by: {'; '.join(changes)}. {advice}"
        )
    return changed_values(last_values(used), versions)


def warn_of_other_versions(changes_by_name: Mapping[str, Sequence[str]], noun: str) -> None:
    """Print a warning about runs that other versions have trained, one for all with equal changes.

    Args:
        changes_by_name: results of ``compare_versions``, by name of the run.
        noun: what the runs are, in the singular.
    """
    names_by_changes: dict[str, list[str]] = {}
    for name, changes in changes_by_name.items():
        if changes:
            names_by_changes.setdefault("; ".join(changes), []).append(name)
    for changes_text, names in names_by_changes.items():
        listed = first_names(names, MOST_NAMED)
        print(
            f"warning: other versions have trained {count_of(len(names), noun)} ({listed}): "
            f"{changes_text}. The last bits of their results may be others",
            flush=True,
        )


def versions_with_this_start(folder: RunFolder) -> dict[str, Any]:
    """Return the versions that a run has used, including the present ones, for its record."""
    return used_values(_used_versions(folder, has_ended=False), arithmetic_versions())


def _used_versions(folder: RunFolder, *, has_ended: bool) -> dict[str, Any]:
    if has_ended or committed_in(folder.checkpoints):
        return folder.trained_versions
    return {}


def _check_not_past(folder: RunFolder, max_steps: int) -> None:
    """Refuse a last step that the run has passed: its records would describe other weights.

    Raises:
        CheckpointError: if the newest checkpoint or the result of a complete run has a later step.
    """
    result = read_recomputable(folder.result, "result") or {}
    step = result["step"] if result.get("status") in COMPLETE else 0
    newest = folder.newest_checkpoint
    if newest is not None:
        step = max(step, step_of_checkpoint(newest))
    if step > max_steps:
        raise CheckpointError(
            f"{folder.path}: the run is at step {step:,} already, got schedule.max_steps="
            f"{max_steps}, want at least {step}. Choose another --name to train a shorter run"
        )
