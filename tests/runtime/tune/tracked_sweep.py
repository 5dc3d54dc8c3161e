"""What the driver of a sweep does with trackers, without the training, and what MLflow must have in
the end.
"""

import threading
import time
from collections.abc import Callable
from pathlib import Path

from mlflow import MlflowClient

from raybio.core.records import read_record
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.metrics_log import MetricsLog
from raybio.runtime.tracking.tracker import Tracker
from raybio.training.settings import TrainingConfig


class TrackedSweep:
    """A parent and its children, as the driver of a sweep tracks them; each step's loss is 1 /
    step.

    Attributes:
        uri: of MLflow.
        name: of the parent; the children's begin with it.
        trackers: of all runs, by name.
    """

    def __init__(
        self, folder: Path, uri: str, num_children: int, method: str | None = None
    ) -> None:
        """In an experiment of its own, unless ``method`` says which."""
        self.uri, self.name, self.method = uri, folder.name, method or folder.name
        names = [self.name, *(f"{self.name}-{number}" for number in range(num_children))]
        self.folders = {name: RunFolder(folder / "runs", name) for name in names}
        for one in self.folders.values():
            one.open(self.method, TrainingConfig(), Path("/store"), "d" * 64, ())
        self.logs = {name: MetricsLog(one.metrics) for name, one in self.folders.items()}
        self.trackers: dict[str, Tracker] = {}

    @property
    def parent(self) -> Tracker:
        return self.trackers[self.name]

    @property
    def all_are_open(self) -> bool:
        return all(tracker.is_open.is_set() for tracker in self.trackers.values())

    def track(self) -> None:
        """Trackers as a new start of the command makes them; nothing is sent yet."""
        self.trackers = {}
        for name, folder in self.folders.items():
            parent = self.trackers.get(self.name)
            self.trackers[name] = Tracker(
                folder, self.uri, self.method, {"seed": 7}, "d" * 64, parent=parent
            )

    def start(self) -> None:
        self.track()
        # Children first: their parent's run need not be there yet.
        for tracker in reversed(self.trackers.values()):
            tracker.start()

    def report(self, first: int, last: int) -> None:
        """Log steps of all runs."""
        for step in range(first, last + 1):
            for log in self.logs.values():
                log.append(step, {"loss": 1 / step})
            time.sleep(0.02)

    def children_together(self, what: Callable[[Tracker, str, str], None]) -> None:
        """Each in a thread of its own, as the driver ends trials."""
        children = [
            (self.trackers[name], *ending(name)) for name in self.folders if name != self.name
        ]
        threads = [threading.Thread(target=what, args=child) for child in children]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def finish(self) -> None:
        self.children_together(Tracker.finish)
        self.parent.finish(*ending(self.name))

    def catch_up(self) -> None:
        """The same command again, when all trials have ended."""
        self.track()
        self.parent.start()
        self.children_together(Tracker.catch_up)
        self.parent.finish(*ending(self.name))

    def check(self, server: str, last: int) -> None:
        """MLflow has each run once, with all of its steps, its parent, its artifacts and its true
        status.
        """
        client = MlflowClient(server)
        experiment = client.get_experiment_by_name(self.method)
        assert experiment is not None
        found = client.search_runs([experiment.experiment_id])
        runs = {run.info.run_id: run for run in found if run.info.run_name.startswith(self.name)}
        assert sorted(run.info.run_name for run in runs.values()) == sorted(self.folders)
        for run_id, run in runs.items():
            name = run.info.run_name
            history = client.get_metric_history(run_id, "loss")
            assert [(point.step, point.value) for point in history] == [
                (step, 1 / step) for step in range(1, last + 1)
            ]
            assert (run.info.status, run.data.tags["ended"]) == ending(name)
            parent = self.parent.run_id if name != self.name else None
            assert run.data.tags.get("mlflow.parentRunId") == parent
            assert run.data.params == {"seed": "7"}
            assert run.inputs.dataset_inputs
            assert "config.yaml" in {file.path for file in client.list_artifacts(run_id)}
            assert not read_record(self.folders[name].tracking, "tracking")["pending"]


def ending(name: str) -> tuple[str, str]:
    """The status that a run gets, and why."""
    number = sum(name.encode())
    return [("FINISHED", "finished"), ("KILLED", "stopped"), ("FAILED", "failed")][number % 3]
