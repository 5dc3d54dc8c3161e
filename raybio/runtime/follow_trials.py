"""What a sweep's driver does while Ray Tune works: the order of trials, their runs in MLflow, a line for each."""

import math
import threading
from pathlib import Path
from typing import Any

from ray.tune import Callback

from raybio.runtime.run_folder import RunFolder, read_json, write_json
from raybio.runtime.track import Tracker
from raybio.runtime.trial import OBJECTIVE, TrialOrder, best_of, evaluations

ORDER = "trials.json"
"""Settings of the sweep's trials in the order of their start; what a sweep that goes on begins with."""

FINISHED, STOPPED, FAILED, INTERRUPTED = "finished", "stopped by the scheduler", "failed", "interrupted"
_MLFLOW_STATUS = {FINISHED: "FINISHED", STOPPED: "KILLED", FAILED: "FAILED", INTERRUPTED: "KILLED"}


def status_of(folder: RunFolder, was_interrupted: bool) -> str:
    """How a trial ended that is no longer running."""
    if folder.failure.exists():
        return FAILED
    if folder.outcome.exists():
        return FINISHED
    return INTERRUPTED if was_interrupted else STOPPED


class Followed(Callback):
    """Ray Tune's callback.

    Attributes:
        names: trials' folders, in the order of their first start.
    """

    def __init__(self, folder: RunFolder, order: TrialOrder, parent: Tracker, data_digest: str) -> None:
        """Follow the trials of a sweep.

        Args:
            folder: the sweep's.
            order: what its trials share.
            parent: tracks the sweep itself.
            data_digest: of the store.
        """
        self.folder, self.order, self.parent, self.data_digest = folder, order, parent, data_digest
        self.names: list[str] = []
        self._settings: list[dict[str, Any]] = []
        self._trackers: dict[str, Tracker] = {}
        self._ending: list[threading.Thread] = []

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **_: Any) -> None:
        """Note the trial, and open its run."""
        folder = self.order.folder(trial.config)
        if folder.name not in self.names:
            self.names.append(folder.name)
            self._settings.append(trial.config)
            write_json(self.folder.path / ORDER, self._settings)
        if folder.name in self._trackers:
            return  # it failed and is tried again
        folder.make()
        config, system = self.order.config(trial.config), self.order.space.system
        tracker = Tracker(folder, self.parent.uri, system, config.to_mapping(), self.data_digest, parent=self.parent)
        tracker.start()
        self._trackers[folder.name] = tracker

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **_: Any
    ) -> None:
        """A line for an evaluation."""
        if OBJECTIVE in result:
            shown = ", ".join(f"{path.rsplit('.', 1)[-1]} {_short(value)}" for path, value in trial.config.items())
            metric = self.order.space.metric
            line = f"{shown} | step {result['step']:,} | {metric} {result[metric]:.4g}"
            print(f"{line}, best {result[OBJECTIVE]:.4g} at step {result['best_step']:,}")

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **_: Any) -> None:
        """End its run, whoever ended the trial."""
        self._end(trial)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **_: Any) -> None:
        """A trial that failed for good, perhaps without a word of its own: its process was killed too often."""
        folder = self.order.folder(trial.config)
        if not folder.failure.exists():
            error = f"its process ended {trial.num_failures} times"
            write_json(folder.failure, {"kind": "ClusterError", "message": error})
        self._end(trial)

    def close(self, was_interrupted: bool) -> None:
        """End all runs that are still open, and wait until MLflow has everything."""
        for name in list(self._trackers):
            self._finish(name, was_interrupted)
        for thread in self._ending:
            thread.join()

    def _end(self, trial: Any) -> None:
        name = self.order.folder(trial.config).name
        if name in self._trackers and not self.folder.stop.exists():
            self._finish(name, was_interrupted=False)

    def _finish(self, name: str, was_interrupted: bool) -> None:
        tracker = self._trackers.pop(name)
        status = status_of(tracker.folder, was_interrupted)
        # Waiting for a slow server must not hold up the trials.
        thread = threading.Thread(target=tracker.finish, args=(_MLFLOW_STATUS[status], status), name="raybio-trial-end")
        thread.start()
        self._ending.append(thread)


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
