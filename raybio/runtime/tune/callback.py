"""Ray Tune's callback in the driver: records how trials end, tracks and prints them."""

import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ray.tune import Callback

from raybio.core.errors import (
    ClusterError,
    MetricError,
    OtherVersionsError,
    RaybioError,
    first_line,
)
from raybio.core.records import read_record, write_record
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.metrics_log import MetricsLog, read_reports
from raybio.runtime.run.notices import WarningPrinter
from raybio.runtime.run.open_run import versions_with_this_start
from raybio.runtime.spool.lease import check_key
from raybio.runtime.tracking.tracker import ERROR, Tracker, wait_for_all
from raybio.runtime.tune.leaderboard import records
from raybio.runtime.tune.run_trial import BEST_VALUE
from raybio.runtime.tune.search import TRIAL
from raybio.runtime.tune.trial import (
    ENDED,
    FAILED,
    FINISHED,
    INTERRUPTED,
    REPLACED,
    STOPPED,
    TRIAL_RECORD,
    TRIALS,
    SweepSpec,
    Trial,
    earlier_trials,
    has_ended,
    new_trial_record,
    recorded_trial,
    settings_text,
    status_of,
)
from raybio.store.bucket import BucketFolder
from raybio.training.checkpoint import delete_all_but_newest
from raybio.training.remote_checkpoints import delete_all_but_newest_in
from raybio.training.settings import COMPLETE

MAX_REASON_LETTERS = 300

_log = logging.getLogger(__name__)

MLFLOW_STATUS = {
    FINISHED: "FINISHED",
    STOPPED: "KILLED",
    REPLACED: "KILLED",
    FAILED: "FAILED",
    INTERRUPTED: "KILLED",
}


class TrialCallback(Callback):
    """Follows the trials of a sweep.

    Attributes:
        trials: all started trials, in the order of their first start.
        refused: the failure record of a trial because of which the others end at once; None if
            there is none.
        too_long: why the sweep is stopped because of its length; None if it is not.
    """

    refused: dict[str, Any] | None = None
    too_long: str | None = None

    def __init__(self, folder: RunFolder, spec: SweepSpec, parent: Tracker) -> None:
        """Follow the trials of a sweep.

        Args:
            folder: the sweep's folder.
            spec: specification that its trials share.
            parent: tracker of the sweep itself.
        """
        self.folder = folder
        self.spec = spec
        self.parent = parent
        self.trials: list[Trial] = []
        self._trial_by_id: dict[str, Trial] = {}
        self._recorded = earlier_trials(spec)
        self._trackers: dict[str, Tracker] = {}
        self._ended: list[Tracker] = []
        self._warnings = WarningPrinter()
        self._log = MetricsLog(folder.metrics)
        self._num_logged = len(read_reports(folder.metrics))
        values = [
            (0, record.best_value)
            for record in records(spec)
            if record.status not in (FAILED, INTERRUPTED) and record.best_value is not None
        ]
        self._best = spec.goal.best(values)

    def catch_up(self) -> None:
        """Send missing data of trials that ended before this start to MLflow."""
        for path in sorted((self.folder.path / "trials").glob(f"*/{ENDED}")):
            record = path.with_name(TRIAL_RECORD)
            content = read_record(record, "trial")
            if content is None:
                continue  # the trial has neither a record nor a log to send
            tracker = self._tracker(recorded_trial(self.spec, content.get("trial"), record))
            if tracker.is_pending:
                tracker.start()
                self._end_run(tracker, status_of(tracker.folder))

    def __getstate__(self) -> dict[str, Any]:
        """Return no state: Tune pickles callbacks, but a sweep resumes from trials' folders."""
        return {}

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **_: Any) -> None:
        """Record the trial, and open its MLflow run."""
        if self.spec.stop.exists():
            # The trial will end at once.
            return
        started = Trial(**trial.config[TRIAL])
        before = self._trial_by_id.get(trial.trial_id)
        self._begin(trial.trial_id, started)
        if before is not None and before != started:
            self._end(before, REPLACED)

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **_: Any
    ) -> None:
        """Print a line for an evaluation."""
        running = Trial(**trial.config[TRIAL])
        metric = self.spec.space.metric
        self._show_warnings(running)
        if BEST_VALUE not in result or status_of(self.spec.folder(running)) != INTERRUPTED:
            return
        name = settings_text(running.settings)
        line = f"{name} | step {result['step']:,} | {metric} {result[metric]:.4g}"
        print(f"{line}, best {result[BEST_VALUE]:.4g} at step {result['best_step']:,}", flush=True)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **_: Any) -> None:
        """Record how the trial ended, whether by itself or by the scheduler."""
        ended = self._trial_by_id.get(trial.trial_id)
        if ended is None:
            return
        folder = self.spec.folder(ended)
        outcome = read_record(folder.outcome, "outcome") or {}
        if folder.failure.exists():
            self._end(ended, FAILED)
        elif outcome.get("status") in COMPLETE:
            self._end(ended, FINISHED)
        elif not self.spec.stop.exists():
            self._end(ended, STOPPED)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **_: Any) -> None:
        """Record a trial that failed for good, also if its process was killed without a record."""
        failed = Trial(**trial.config[TRIAL])
        # The trial may never have started.
        folder = self._begin(trial.trial_id, failed)
        if not folder.failure.exists():
            reason = _reason(_error_text(trial))
            message = f"its process ended {trial.num_failures} times: {reason}"
            write_record(folder.failure, "failure", {"kind": "ClusterError", "message": message})
        self._end(failed, FAILED)

    def kill(self) -> None:
        """Mark all open runs as killed now, since this process may not have long to live."""
        for tracker in (self.parent, *list(self._trackers.values())):
            tracker.kill()

    def abandon(self) -> None:
        """Leave all open runs as they are, since another driver continues them."""
        for tracker in (self.parent, *list(self._trackers.values())):
            tracker.abandon()

    def close(self, is_killed: bool) -> None:
        """End all runs that are still open, and wait until MLflow has everything.

        Errors of a trial become warnings, since the others have to end too.

        Args:
            is_killed: whether a signal came; see ``wait_for_all``.
        """
        for trial in self.trials:
            try:
                self._end(trial, INTERRUPTED)
            except (OSError, RaybioError) as error:  # such as a damaged record, or a full disk
                _log.warning("%s: %s", settings_text(trial.settings), first_line(error))
        wait_for_all([tracker.wait for tracker in self._ended], is_killed=is_killed)

    def _begin(self, trial_id: str, trial: Trial) -> RunFolder:
        """Record the trial in its folder and in the list, and open its run. Idempotent."""
        folder = self.spec.folder(trial)
        before = self._trial_by_id.get(trial_id)
        self._trial_by_id[trial_id] = trial
        if trial not in self.trials:
            self.trials.append(trial)
        if trial not in self._recorded:
            self._record(trial, before)
        folder.make()
        self._warnings.follow(folder.notices)
        if not (folder.path / TRIAL_RECORD).exists():
            write_record(folder.path / TRIAL_RECORD, "trial", new_trial_record(trial))
        if self.spec.start and self.spec.run.compute.num_workers == 1:
            # With several workers, the trial's process begins a start of its workers instead.
            write_record(folder.start, "start", {"start": self.spec.start})
        if status_of(folder) == INTERRUPTED:
            versions = versions_with_this_start(folder)
            launch = {"versions": versions, "is_strict": self.spec.run.is_strict}
            write_record(folder.launch, "launch", self.spec.launch | launch)
            if folder.name not in self._trackers:
                self._trackers[folder.name] = self._tracker(trial)
                self._trackers[folder.name].start()
        return folder

    def _record(self, trial: Trial, before: Trial | None) -> None:
        """Write the trial into ``trials.json``, in the slot of the member that it replaces."""
        if before in self._recorded:
            self._recorded[self._recorded.index(before)] = trial
        else:
            self._recorded.append(trial)
        content = {"trials": [asdict(recorded) for recorded in self._recorded]}
        write_record(self.folder.path / TRIALS, "trials", content)

    def _tracker(self, trial: Trial) -> Tracker:
        return Tracker(
            self.spec.folder(trial),
            self.parent.uri,
            self.spec.space.method,
            self.spec.config(trial.settings).to_mapping(),
            self.parent.data_digest,
            parent=self.parent,
        )

    def _end(self, trial: Trial, status: str) -> None:
        """Record how a trial ended, once, and end its run.

        Nothing is recorded for an interrupted trial, which may resume.
        """
        folder = self.spec.folder(trial)
        try:
            self._record_end(trial, folder, status)
        except BaseException:
            if not has_ended(folder):
                status = INTERRUPTED
            raise
        finally:
            tracker = self._trackers.pop(folder.name, None)
            if tracker is not None:
                self._end_run(tracker, status)

    def _record_end(self, trial: Trial, folder: RunFolder, status: str) -> None:
        self._show_warnings(trial)
        if status_of(folder) == INTERRUPTED and status != INTERRUPTED:
            write_record(folder.path / ENDED, "trial end", {"status": status})
            failure = read_record(folder.failure, "failure") or {}
            reason = failure.get("message", "")
            ending = f"{status}: {reason}" if reason else status
            print(f"{settings_text(trial.settings)} | {ending}", flush=True)
            if failure.get("kind") in (MetricError.__name__, OtherVersionsError.__name__):
                self.refused = failure
                self.spec.stop.touch()
            if status != FAILED:
                self._log_best(folder)
            # Members of a population may exploit any checkpoint of another member, so all are kept.
            if status in (FINISHED, STOPPED) and self.spec.space.scheduler.kind != "pbt":
                self._delete_old_checkpoints(folder)

    def _delete_old_checkpoints(self, folder: RunFolder) -> None:
        delete_all_but_newest(folder.checkpoints)
        bucket = self.spec.bucket_of(folder)
        if bucket is not None:
            try:
                if self.spec.lease is not None:
                    check_key(self.spec.lease, is_patient=False)
                delete_all_but_newest_in(BucketFolder(bucket, is_patient=False))
            except ClusterError as error:
                _log.warning("old checkpoints could not be deleted: %s", error)

    def _show_warnings(self, trial: Trial) -> None:
        """Print the warnings of the trial's workers, each only once for all trials."""
        self._warnings.show(self.spec.folder(trial).notices, settings_text(trial.settings))

    def _log_best(self, folder: RunFolder) -> None:
        """Log the best value of all ended trials; ``folder`` is the newest of them."""
        values = self.spec.goal.own_values(read_reports(folder.metrics))
        if self._best is not None:
            values = [self._best, *values]
        self._best = self.spec.goal.best(values)
        if self._best is not None:
            self._num_logged += 1
            self._log.append(self._num_logged, {f"best/{self.spec.space.metric}": self._best[1]})

    def _end_run(self, tracker: Tracker, status: str) -> None:
        """End a trial's MLflow run; sending is retried until the sweep ends."""
        try:
            tracker.note(*_tags_and_metrics(self.spec, tracker.folder))
        except (OSError, RaybioError) as error:
            _log.warning("%s: MLflow lacks its tags (%s)", tracker.folder.path, first_line(error))
        tracker.end(MLFLOW_STATUS[status], status)
        self._ended.append(tracker)


def _tags_and_metrics(
    spec: SweepSpec, folder: RunFolder
) -> tuple[dict[str, str], dict[str, float]]:
    """Return a trial's tags and metrics that are not in its log."""
    goal = spec.goal
    bucket = spec.bucket_of(folder)
    tags: dict[str, str] = {}
    metrics: dict[str, float] = {}
    best = goal.best(goal.own_values(read_reports(folder.metrics)))
    if best is not None:
        tags["best_step"] = str(best[0])
        metrics[f"best/{goal.metric}"] = best[1]
    newest = folder.newest_checkpoint
    if newest is not None:
        tags["checkpoint"] = str(newest if bucket is None else bucket / "checkpoints" / newest.name)
    failure = read_record(folder.failure, "failure")
    if failure is not None:
        tags[ERROR] = failure["message"]
    return tags, metrics


def _reason(text: str) -> str:
    """Return the most informative line of an error text: about memory, or else the last one."""
    lines = text.strip().splitlines() or ["no reason given"]
    line = next((line for line in lines if "memory" in line), lines[-1])
    return line.strip()[:MAX_REASON_LETTERS]


def _error_text(trial: Any) -> str:
    """Return the text of a trial's failures from Tune's own file.

    ``get_error`` reads a copy, which may be written later.
    """
    if trial.error_file is None:
        return ""
    try:
        return Path(trial.error_file).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return str(trial.get_error() or "")
