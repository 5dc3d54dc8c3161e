"""What the driver does while Ray Tune works: it notes how each trial ended, keeps its MLflow run, prints a line."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ray.tune import Callback

from raybio.core.records import read_record, write_record
from raybio.core.search_space import format_value
from raybio.runtime.run.folder import COMPLETE, RunFolder
from raybio.runtime.run.goal import Goal, MetricError
from raybio.runtime.run.metrics_log import MetricsLog, read_reports
from raybio.runtime.run.notices import WarningPrinter
from raybio.runtime.tracking.tracker import FINISH_SECONDS, KILLED_SECONDS, Tracker
from raybio.runtime.tune.leaderboard import records
from raybio.runtime.tune.run_trial import OBJECTIVE
from raybio.runtime.tune.search import TRIAL
from raybio.runtime.tune.trial import (
    ENDED,
    FAILED,
    FINISHED,
    INTERRUPTED,
    NOTE,
    REPLACED,
    STOPPED,
    Trial,
    TrialSpec,
    new_note,
    status_of,
)
from raybio.training.checkpoint import delete_all_but_newest

TRIALS = "trials.json"
"""The sweep's trials in the order of their start; what a sweep that goes on begins with."""


LONGEST_REASON = 300


MLFLOW_STATUS = {
    FINISHED: "FINISHED",
    STOPPED: "KILLED",
    REPLACED: "KILLED",
    FAILED: "FAILED",
    INTERRUPTED: "KILLED",
}


def earlier_trials(sweep: Path) -> list[Trial]:
    """The trials of the sweep's earlier starts, in order; of a population, its members as they stood."""
    return [Trial(**one) for one in (read_record(sweep / TRIALS, "trials") or {}).get("trials", [])]


class TrialCallback(Callback):
    """Ray Tune's callback.

    Attributes:
        trials: all that were started, in the order of their first start.
        refused: what a trial found wrong with the sweep itself; the others then end at once.
    """

    refused: str | None = None

    def __init__(self, folder: RunFolder, spec: TrialSpec, parent: Tracker) -> None:
        """Follow the trials of a sweep.

        Args:
            folder: the sweep's.
            spec: what its trials share.
            parent: tracks the sweep itself.
        """
        self.folder, self.spec, self.parent = folder, spec, parent
        self.trials: list[Trial] = []
        self._member: dict[str, Trial] = {}
        self._listed = earlier_trials(folder.path)
        self._trackers: dict[str, Tracker] = {}
        self._ended: list[Tracker] = []
        self._warnings = WarningPrinter()
        self._log, self._num_told = MetricsLog(folder.metrics), len(read_reports(folder.metrics))
        ended = [one for one in records(spec) if one.status not in (FAILED, INTERRUPTED)]
        self._best = spec.goal.best(
            [(0, one.best_value) for one in ended if one.best_value is not None]
        )

    def catch_up(self) -> None:
        """Send what MLflow has not taken yet of trials that ended before this start."""
        for note in sorted((self.folder.path / "trials").glob(f"*/{ENDED}")):
            trial, status = (
                Trial(**read_record(note.with_name(NOTE), "trial")["trial"]),
                read_record(note, "trial end")["status"],
            )
            tracker = self._tracker(trial)
            if tracker.is_pending:
                tracker.start()
                self._end_run(tracker, status)

    def __getstate__(self) -> dict[str, Any]:
        """Nothing: Tune stores its arguments for a restart, and a sweep goes on from its trials' folders."""
        return {}

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **_: Any) -> None:
        """Note the trial, and open its run."""
        if self.spec.stop.exists():
            return  # it will end at once
        now, before = Trial(**trial.config[TRIAL]), self._member.get(trial.trial_id)
        self._begin(trial.trial_id, now)
        if before is not None and before != now:
            self._end(before, REPLACED)

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **_: Any
    ) -> None:
        """A line for an evaluation."""
        now, metric = Trial(**trial.config[TRIAL]), self.spec.space.metric
        self._show_warnings(now)
        if OBJECTIVE not in result or status_of(self.spec.folder(now)) != INTERRUPTED:
            return
        line = f"{shown(now)} | step {result['step']:,} | {metric} {result[metric]:.4g}"
        print(f"{line}, best {result[OBJECTIVE]:.4g} at step {result['best_step']:,}", flush=True)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **_: Any) -> None:
        """Note how it ended, whoever ended it."""
        now = self._member.get(trial.trial_id)
        if now is None:
            return
        folder = self.spec.folder(now)
        outcome = read_record(folder.outcome, "outcome") or {}
        if folder.failure.exists():
            self._end(now, FAILED)
        elif outcome.get("status") in COMPLETE:
            self._end(now, FINISHED)
        elif not self.spec.stop.exists():
            self._end(now, STOPPED)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **_: Any) -> None:
        """A trial that failed for good, perhaps without a word of its own: its process was killed too often."""
        now = Trial(**trial.config[TRIAL])
        folder = self._begin(trial.trial_id, now)  # perhaps it never started
        if not folder.failure.exists():
            lines = _told_errors(trial).strip().splitlines() or ["no reason given"]
            reason = next((line for line in lines if "memory" in line), lines[-1]).strip()[
                :LONGEST_REASON
            ]
            message = f"its process ended {trial.num_failures} times: {reason}"
            write_record(folder.failure, "failure", {"kind": "ClusterError", "message": message})
        self._end(now, FAILED)

    def kill(self) -> None:
        """Mark all open runs as killed now, since this process may not have long to live."""
        for tracker in (self.parent, *list(self._trackers.values())):
            tracker.kill()

    def close(self, is_killed: bool) -> None:
        """End all runs that are still open, and wait until MLflow has everything.

        Args:
            is_killed: a signal came, and there is less time for it: 20 seconds for all together, and not two minutes
                since the last run of which everything has arrived.
        """
        for trial in self.trials:
            self._end(trial, INTERRUPTED)
        seconds = KILLED_SECONDS if is_killed else FINISH_SECONDS
        until = time.monotonic() + seconds
        for tracker in self._ended:
            if tracker.wait(max(until - time.monotonic(), 0.0)) and not is_killed:
                until = time.monotonic() + seconds

    def _begin(self, trial_id: str, now: Trial) -> RunFolder:
        """Note the trial in its folder and in the list, and open its run; once is as good as twice."""
        folder, before = self.spec.folder(now), self._member.get(trial_id)
        self._member[trial_id] = now
        if now not in self.trials:
            self.trials.append(now)
        if now not in self._listed:
            if before in self._listed:
                self._listed[self._listed.index(before)] = now  # an heir
            else:
                self._listed.append(now)
            write_record(
                self.folder.path / TRIALS,
                "trials",
                {"trials": [asdict(one) for one in self._listed]},
            )
        folder.make()
        self._warnings.follow(folder.notices)
        if not (folder.path / NOTE).exists():
            write_record(folder.path / NOTE, "trial", new_note(now))
        if status_of(folder) == INTERRUPTED:
            write_record(folder.launch, "launch", self.spec.launch)
        if folder.name not in self._trackers and status_of(folder) == INTERRUPTED:
            self._trackers[folder.name] = self._tracker(now)
            self._trackers[folder.name].start()
        return folder

    def _tracker(self, trial: Trial) -> Tracker:
        config = self.spec.config(trial.settings)
        folder, method = self.spec.folder(trial), self.spec.space.method
        return Tracker(
            folder,
            self.parent.uri,
            method,
            config.to_mapping(),
            self.parent.data_digest,
            parent=self.parent,
        )

    def _end(self, trial: Trial, status: str) -> None:
        """Note how a trial ended, once, and end its run; one that was interrupted may go on, and nothing is noted."""
        folder = self.spec.folder(trial)
        self._show_warnings(trial)
        known = status_of(folder)
        if known == INTERRUPTED and status != INTERRUPTED:
            write_record(folder.path / ENDED, "trial end", {"status": status})
            failure = read_record(folder.failure, "failure") or {}
            why = failure.get("message", "")
            print(f"{shown(trial)} | {status}{': ' + why if why else ''}", flush=True)
            if failure.get("kind") == MetricError.__name__:
                self.refused = why
                self.spec.stop.touch()
            if status != FAILED:
                self._note_best(folder)
            if status in (FINISHED, STOPPED) and self.spec.space.scheduler.kind != "pbt":
                delete_all_but_newest(
                    folder.checkpoints
                )  # of a population, others may go on from any of them
        tracker = self._trackers.pop(folder.name, None)
        if tracker is not None:
            self._end_run(tracker, status)

    def _show_warnings(self, trial: Trial) -> None:
        """Print what the trial's workers warn of; once, however many trials do."""
        self._warnings.show(self.spec.folder(trial).notices, shown(trial))

    def _note_best(self, folder: RunFolder) -> None:
        """The best value over all trials that have ended, once more."""
        values = self.spec.goal.own_values(read_reports(folder.metrics))
        self._best = self.spec.goal.best([*([self._best] if self._best else []), *values])
        if self._best is not None:
            self._num_told += 1
            self._log.append(self._num_told, {f"best/{self.spec.space.metric}": self._best[1]})

    def _end_run(self, tracker: Tracker, status: str) -> None:
        """It goes on trying until the sweep ends, however long the server is away: nobody waits for it before."""
        tracker.note(*_facts(self.spec.goal, tracker.folder))
        tracker.end(MLFLOW_STATUS[status], status)
        self._ended.append(tracker)


def _facts(goal: Goal, folder: RunFolder) -> tuple[dict[str, str], dict[str, float]]:
    """A trial's tags and metrics beside those of its log: its best step, its newest checkpoint, why it failed."""
    best, newest = (
        goal.best(goal.own_values(read_reports(folder.metrics))),
        folder.newest_checkpoint,
    )
    tags = {
        "best_step": None if best is None else str(best[0]),
        "checkpoint": None if newest is None else str(newest),
        "error": (read_record(folder.failure, "failure") or {}).get("message"),
    }
    metrics = {} if best is None else {f"best/{goal.metric}": best[1]}
    return {name: value for name, value in tags.items() if value is not None}, metrics


def _told_errors(trial: Any) -> str:
    """What Tune noted of a trial's failures, as it noted it: what ``get_error`` reads is a copy, and may come later."""
    if trial.error_file is None:
        return ""
    try:
        return Path(trial.error_file).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return str(trial.get_error() or "")


def shown(trial: Trial) -> str:
    """A trial's settings, short."""
    return ", ".join(
        f"{path.rsplit('.', 1)[-1]} {format_value(value)}" for path, value in trial.settings.items()
    )
