"""Tracking in MLflow, from the driver, in a thread of its own: training never waits for it, and nothing is lost.

The driver is the only writer, so the sqlite default is right on any cluster; only when several drivers on several
machines write into one database does it need an ``mlflow server``. Metrics come from ``metrics.jsonl``; how far they
were forwarded is kept in ``tracking.json``, so what a server did not take is sent again, also after a restart.
"""

import contextlib
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from raybio.errors import ConfigError
from raybio.runtime.metrics_log import MetricsTail
from raybio.runtime.run_folder import RunFolder, read_json, write_json

METRICS_PER_BATCH = 1000
PARAMS_PER_BATCH = 100
LONGEST_PARAM = 6000
FORWARD_SECONDS = 2.0
RETRY_SECONDS = (1.0, 2.0, 5.0, 10.0, 30.0)
FINISH_SECONDS = 120.0
KILLED_SECONDS = 20.0

_VERSIONS = ("raybio", "ray", "mlflow", "torch", "transformers", "numpy", "pyarrow")
_log = logging.getLogger(__name__)


def tracking_uri(uri: str | None, runs: Path) -> str:
    """An absolute tracking URI; by default ``mlflow.db`` beside the folder of runs.

    Raises:
        ConfigError: for a file store, which MLflow 3 no longer has.
    """
    if uri is None:
        return f"sqlite:///{runs.expanduser().absolute().parent / 'mlflow.db'}"
    scheme, found, rest = uri.partition("://")
    if not found or scheme == "file":
        raise ConfigError(
            f"--tracking-uri: got {uri!r}, a folder of files, which MLflow 3 no longer writes; want a database such as "
            "sqlite:///mlflow.db, or the address of an `mlflow server`"
        )
    if scheme == "sqlite":
        return f"sqlite:///{Path(rest.removeprefix('/')).expanduser().absolute()}"
    return uri


class Tracker:
    """One MLflow run, kept true to what happens.

    Attributes:
        run_id: the run's id; None as long as MLflow could not be reached.
    """

    def __init__(
        self,
        folder: RunFolder,
        uri: str,
        system: str,
        config: dict[str, Any],
        data_digest: str,
        parent_run_id: str | None = None,
        parent: "Tracker | None" = None,
    ) -> None:
        """Prepare; nothing is sent before ``start`` or ``catch_up``.

        Args:
            folder: the run's.
            uri: of the tracking server or database.
            system: its name, which the experiment has too.
            config: the whole configuration.
            data_digest: of the store.
            parent_run_id: the run that this one belongs to.
            parent: its tracker, if it may not have an id yet; this process then samples the machine for the parent.
        """
        self.parent = parent
        self.folder, self.uri, self.system, self.config = folder, uri, system, config
        self.data_digest, self.parent_run_id = data_digest, parent_run_id
        saved = read_json(folder.tracking) or {}
        self._forwarded = saved.get("forwarded_step", -1)
        self.run_id: str | None = saved.get("run_id") if saved.get("uri") == uri else None
        self._is_described = self.run_id is not None and saved.get("described", False)
        if self.run_id is None:
            self._forwarded = -1
        self._tail = MetricsTail(folder.metrics, after_step=self._forwarded)
        self._unsent: list[dict[str, Any]] = []
        self._client: Any = None
        self._end_status: str | None = None
        self._why = ""
        self._is_killed = False
        self._wake = threading.Event()
        self._deadline: float | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Create the run, or open it again, and forward metrics from now on; returns at once."""
        self._thread = threading.Thread(target=self._run, name="raybio-tracking", daemon=True)
        self._thread.start()

    def kill(self) -> None:
        """Mark the run as killed now, since this process may not have long to live; forwarding goes on."""
        self._is_killed = True
        self._wake.set()

    def finish(self, status: str, why: str = "") -> None:
        """Send what is left, the artifacts and the final status; waits for at most two minutes.

        Args:
            status: ``FINISHED``, ``FAILED`` or ``KILLED``.
            why: in words, as a tag.
        """
        self._why = why
        if self._thread is None:
            return
        seconds = KILLED_SECONDS if status == "KILLED" else FINISH_SECONDS
        self._end_status, self._deadline = status, time.monotonic() + seconds
        self._wake.set()
        self._thread.join(timeout=seconds + 5)
        if self._thread.is_alive() or read_json(self.folder.tracking).get("pending", True):
            _log.warning(
                "MLflow at %s did not take everything; %s keeps it, and the same command sends it again",
                self.uri.split("@")[-1],
                self.folder.metrics,
            )

    def catch_up(self, status: str = "FINISHED", why: str = "") -> None:
        """For a run that has ended: send what MLflow has not taken yet, if anything."""
        if (read_json(self.folder.tracking) or {}).get("pending", True):
            self.start()
            self.finish(status, why)

    def _run(self) -> None:
        self._save(pending=True)
        self._retry(self._open)
        monitor = None if self.parent else _system_metrics(self.uri, self.run_id)
        while self._end_status is None:
            self._wake.wait(FORWARD_SECONDS)
            self._wake.clear()
            if self._is_killed:
                self._retry(lambda: self._client.set_terminated(self.run_id, "KILLED"))
                self._is_killed = False
            self._retry(self._forward)
        with contextlib.suppress(Exception):
            if monitor is not None:
                monitor.finish()
        done = [self._retry(self._forward), self._retry(self._send_artifacts)]
        if self._why:
            self._retry(lambda: self._client.set_tag(self.run_id, "ended", self._why))
        done.append(self._retry(lambda: self._client.set_terminated(self.run_id, self._end_status)))
        self._save(pending=not all(done))

    def _retry(self, action: Callable[[], None]) -> bool:
        """Do it until it works, or until ``finish`` has waited long enough."""
        for attempt in range(10**9):
            try:
                if self._client is not None or action == self._open:
                    action()
                    return True
            except Exception as error:
                if attempt == 0:
                    _log.warning("MLflow: %s; trying again", str(error).splitlines()[0][:200] if str(error) else error)
            pause = RETRY_SECONDS[min(attempt, len(RETRY_SECONDS) - 1)]
            if self._deadline is not None and time.monotonic() + pause > self._deadline:
                break
            time.sleep(pause)
        return False

    def _open(self) -> None:
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
        os.environ.setdefault("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "false")
        os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
        logging.getLogger("alembic").setLevel(logging.WARNING)
        from mlflow import MlflowClient

        client = MlflowClient(tracking_uri=self.uri)
        if self.run_id is not None and not _goes_on(client, self.run_id):
            self.run_id, self._is_described = None, False
            self._forwarded, self._tail = -1, MetricsTail(self.folder.metrics)
        if self.run_id is None:
            self._create(client)
        if not self._is_described:
            self._describe(client)
            self._is_described = True
            self._save(pending=True)
        self._client = client

    def _create(self, client: Any) -> None:
        experiment = client.get_experiment_by_name(self.system)
        if experiment is None:
            place = None
            if self.uri.startswith("sqlite:"):
                place = (Path(self.uri.removeprefix("sqlite:///")).parent / "mlartifacts").as_uri()
            experiment_id = client.create_experiment(self.system, artifact_location=place)
        else:
            experiment_id = experiment.experiment_id
        tags = self._tags()
        self.run_id = client.create_run(experiment_id, run_name=self.folder.name, tags=tags).info.run_id
        self._save(pending=True)

    def _describe(self, client: Any) -> None:
        from mlflow.entities import Dataset, DatasetInput, Param

        items = sorted(flatten(self.config).items())
        for start in range(0, len(items), PARAMS_PER_BATCH):
            part = items[start : start + PARAMS_PER_BATCH]
            client.log_batch(self.run_id, params=[Param(name, str(value)[:LONGEST_PARAM]) for name, value in part])
        client.log_dict(self.run_id, self.config, "config.json")
        dataset = Dataset(name="store", digest=self.data_digest[:36], source_type="raybio", source=self.data_digest)
        client.log_inputs(self.run_id, datasets=[DatasetInput(dataset)])

    def _tags(self) -> dict[str, str]:
        versions = {}
        for package in _VERSIONS:
            with contextlib.suppress(metadata.PackageNotFoundError):
                versions[f"version.{package}"] = metadata.version(package)
        tags = {"system": self.system, "data_digest": self.data_digest, **versions}
        tags["version.python"] = sys.version.split()[0]
        if commit := git_commit():
            tags["mlflow.source.git.commit"] = commit
        if self.parent is not None:
            if self.parent.run_id is None:
                raise RuntimeError("the run that this one belongs to is not there yet")
            self.parent_run_id = self.parent.run_id
        if self.parent_run_id:
            tags["mlflow.parentRunId"] = self.parent_run_id
        return tags

    def _forward(self) -> None:
        from mlflow.entities import Metric

        self._unsent += self._tail.read()
        while self._unsent:
            size = num_reports = 0
            for report in self._unsent:
                if num_reports and size + len(report["metrics"]) > METRICS_PER_BATCH:
                    break
                size, num_reports = size + len(report["metrics"]), num_reports + 1
            # The time at which it was measured, so that what is sent twice after a timeout is stored once.
            metrics = [
                Metric(name, value, report["time_ms"], report["step"])
                for report in self._unsent[:num_reports]
                for name, value in report["metrics"].items()
            ]
            self._client.log_batch(self.run_id, metrics=metrics)
            self._forwarded = self._unsent[num_reports - 1]["step"]
            del self._unsent[:num_reports]
            self._save(pending=True)

    def _send_artifacts(self) -> None:
        folder = self.folder
        written = [path for kind in ("*.md", "*.csv", "*.html", "best.yaml") for path in sorted(folder.path.glob(kind))]
        for path in (folder.config, folder.result, *written):
            if path.exists():
                self._client.log_artifact(self.run_id, str(path))
        for path in (folder.plots, folder.export):
            if path.is_dir():
                self._client.log_artifacts(self.run_id, str(path), artifact_path=path.name)

    def _save(self, pending: bool) -> None:
        content = {"uri": self.uri, "run_id": self.run_id, "described": self._is_described}
        write_json(self.folder.tracking, content | {"forwarded_step": self._forwarded, "pending": pending})


def _goes_on(client: Any, run_id: str) -> bool:
    """Set the run to running again; False if the server says that there is no such run, and only then."""
    from mlflow.exceptions import MlflowException

    try:
        client.update_run(run_id, status="RUNNING")
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise  # an outage, not an answer: the run is there and is tried for again
        return False
    return True


def add_artifacts(folder: RunFolder, paths: list[Path]) -> None:
    """Add files or folders to the finished run of ``folder``; a tracking server that is away is only warned about."""
    saved = read_json(folder.tracking) or {}
    if not saved.get("run_id"):
        return
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=saved["uri"])
    try:
        for path in paths:
            if path.is_dir():
                client.log_artifacts(saved["run_id"], str(path), artifact_path=path.name)
            else:
                client.log_artifact(saved["run_id"], str(path))
    except Exception as error:
        _log.warning("MLflow did not take %s: %s", ", ".join(path.name for path in paths), error)


def flatten(nested: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one with dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat


def git_commit() -> str | None:
    """The commit of raybio's own checkout, None outside of one."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip() or None
    except (OSError, subprocess.SubprocessError):
        return None


def _system_metrics(uri: str, run_id: str | None) -> Any:
    """MLflow's own sampler of this machine's CPU, memory, disk, network and GPUs, every ten seconds."""
    if run_id is None:
        return None
    try:
        from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

        monitor = SystemMetricsMonitor(run_id, sampling_interval=10, resume_logging=True, tracking_uri=uri)
        monitor.start()
        return monitor
    except Exception as error:  # a missing driver library must not end a training
        _log.warning("system metrics are off: %s", error)
        return None
