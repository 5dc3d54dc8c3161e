"""Tracking in MLflow from a thread of the driver: training never waits for it.

Metrics come from ``metrics.jsonl``. ``tracking.json`` records how far they were forwarded and which
files were sent, so that, also after a restart, only missing data is sent.

The driver is the only writer. The sqlite default is therefore safe for one driver at a time on any
cluster, and for several on one machine, which wait for each other's lock. Drivers on several
machines need an ``mlflow server`` on PostgreSQL, since locks of a network file system do not work
between machines. A driver does not know about the others, so sqlite on a network file system is a
warning and not an error.
"""

import itertools
import logging
import math
import re
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from raybio.core.errors import ConfigError
from raybio.core.records import read_recomputable, read_record, write_record
from raybio.methods import METHODS
from raybio.runtime.cluster.machine import MachineLoad, warn_of_network
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.metrics_log import MetricsTail, position_of
from raybio.runtime.tracking import mlflow as mlflow_run

METRICS_PER_BATCH = 1000
FORWARD_SECONDS = 2.0
RETRY_SECONDS = (1.0, 2.0, 5.0, 10.0, 30.0)

LAST_RETRY_SECONDS = 5.0
"""Maximum pause between retries after the run has ended, when a user may be waiting."""

FINISH_SECONDS = 120.0
KILLED_SECONDS = 20.0

SLOWEST_BYTES_PER_SECOND = 100_000
"""A file that is sent more slowly counts as stuck; stalled requests end earlier."""

WARN_SECONDS = 60.0
MAX_TAG_LETTERS = 5000

ERROR = "error"
"""Tag of a trial that failed: why."""

_DATABASE_ERROR = re.compile(r"\((?:sqlite3|psycopg2?\.errors)\.\w+\) ")

_log = logging.getLogger(__name__)
_warned: dict[str, float] = {}
_warning = threading.Lock()


def shown_uri(uri: str) -> str:
    """Return a tracking URI without the part before "@", which may be a password.

    In the path of a sqlite file, "@" is an ordinary character.
    """
    return uri if uri.startswith("sqlite:") else uri.split("@")[-1]


def how_to_show(run_id: str | None, uri: str) -> str:
    """Return a text with an MLflow run and the command that shows it."""
    return f"run {run_id}, mlflow ui --backend-store-uri {shown_uri(uri)}"


def tracking_uri(uri: str | None, runs: Path) -> str:
    """Return an absolute tracking URI; by default ``mlflow.db`` next to the folder of runs.

    Raises:
        ConfigError: for anything but a sqlite file and the address of a server, and for a password
            in that address.
    """
    if uri is None:
        return f"sqlite:///{runs.expanduser().absolute().parent / 'mlflow.db'}"
    scheme, _, rest = uri.partition("://")
    if scheme == "sqlite":
        return f"sqlite:///{Path(rest.removeprefix('/')).expanduser().absolute()}"
    login, _, address = rest.rpartition("@")
    if scheme not in ("http", "https") or not address:
        # Leave out the rest, which may hold a password.
        got = f"{scheme}://..." if rest else scheme.rpartition("@")[2]
        raise ConfigError(
            f"--tracking-uri: got {got!r}; want sqlite:///mlflow.db or another file, or the "
            "http(s) address of an `mlflow server`, which is what writes to any other database. "
            "MLflow 3 no longer writes folders of files"
        )
    if ":" in login:
        raise ConfigError(
            f"--tracking-uri: got {scheme}://...@{address} with a password in it, which lists of "
            "processes and the run's files would show; want it without. Set "
            "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
        )
    return uri


class Tracker:
    """Keeps one MLflow run up to date.

    Attributes:
        run_id: id of the MLflow run; None until MLflow is reached.
        key: the tag that identifies the MLflow run if its id is lost.
        is_open: set once MLflow has the run, so that its children may refer to it.
    """

    def __init__(
        self,
        folder: RunFolder,
        uri: str,
        method: str,
        config: dict[str, Any],
        data_digest: str,
        parent_run_id: str | None = None,
        parent: "Tracker | None" = None,
    ) -> None:
        """Read ``tracking.json``; nothing is sent before ``start`` or ``catch_up``.

        Args:
            folder: the run's folder.
            uri: URI of the tracking server or database.
            method: key in ``METHODS``; its first name is that of the experiment.
            config: the whole configuration.
            data_digest: digest of the store.
            parent_run_id: MLflow run that this one belongs to.
            parent: its tracker, if it may not have an id yet; this process then samples the machine
                for the parent.
        """
        self.folder = folder
        self.uri = uri
        self.method = method
        self.config = config
        self.data_digest = data_digest
        self.parent_run_id = parent_run_id
        self.parent = parent
        saved = read_recomputable(folder.tracking, "tracking") or {}
        if saved.get("uri") != uri:
            saved = {}
        self.run_id: str | None = saved.get("run_id")
        self.key: str = saved.get("key") or self._own_key()
        self._is_pending: bool = saved.get("pending", True)
        self._is_described = bool(saved.get("described"))
        self._forwarded: int = saved.get("forwarded_step", -1)
        self._was_evaluated: bool = saved.get("was_forwarded_step_evaluated", True)
        self._tail = MetricsTail(
            folder.metrics, after_step=self._forwarded, was_evaluated=self._was_evaluated
        )
        self._unsent: list[dict[str, Any]] = []
        self._sent: dict[str, list[int]] = saved.get("sent", {})
        self._num_samples: int = saved.get("num_samples", 0)
        self._client: Any = None
        self.is_open = threading.Event()
        self._wake = threading.Event()
        self._end_status = ""
        self._reason = ""
        self._tags: dict[str, str] = {}
        self._last_reports: list[dict[str, Any]] = []
        self._is_killed = False
        self._is_hurried = False
        self._is_abandoned = False
        self._is_done = False
        self._patience = math.inf
        self._waiting_since = 0.0
        self._moved_at = 0.0
        self._seconds_of_file = 0.0
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Create or reopen the run and start to forward metrics; return at once."""
        if self.parent is None and self.uri.startswith("sqlite:"):
            warn_of_network(Path(self.uri.removeprefix("sqlite:///")))
        self._thread = threading.Thread(target=self._run, name="raybio-tracking", daemon=True)
        self._thread.start()

    def kill(self) -> None:
        """Mark the run as killed now, since this process may not have long to live.

        Forwarding continues.
        """
        self._is_killed = True
        self._is_hurried = True
        self._wake.set()

    def abandon(self) -> None:
        """Stop sending and leave the run open, since another driver continues it."""
        self._is_abandoned = True
        self.end("RUNNING")

    def note(self, tags: dict[str, str], metrics: dict[str, float]) -> None:
        """Add tags and metrics that are not in the log, which ``end`` sends."""
        self._tags = tags
        time_ms = int(time.time() * 1000)
        self._last_reports = [{"step": 0, "time_ms": time_ms, "metrics": metrics}]

    def end(self, status: str, reason: str = "") -> None:
        """End the run once MLflow has all of it; return at once.

        Sending is retried until ``wait`` gives up.

        Args:
            status: ``FINISHED``, ``FAILED`` or ``KILLED``.
            reason: for the tag ``ended``.
        """
        self._end_status = status
        self._reason = reason
        # Interrupt pauses after failures, since the server may be back.
        self._wake.set()
        if self.parent is not None:
            self.parent._wake.set()

    def wait(self, seconds: float) -> bool:
        """Wait until MLflow has the whole run, or give up with a warning; return whether it has.

        Args:
            seconds: time without progress after which to give up; the total time if ``kill`` was
                called for this run or its parent.
        """
        if self._thread is None:
            return False
        self._waiting_since = time.monotonic()
        self._patience = seconds
        while self._thread.is_alive():
            left = self._deadline - time.monotonic()
            if left <= 0:
                break
            self._thread.join(timeout=min(left, 0.5))
        # If the parent's run is missing, the parent warns.
        is_own = self.parent is None or self.parent.is_open.is_set()
        if not self._is_done and is_own and not self._is_abandoned:
            _log.warning(
                "MLflow at %s did not take everything; %s keeps it, and the same command sends it "
                "again",
                shown_uri(self.uri),
                self.folder.metrics,
            )
        return self._is_done

    def finish(self, status: str, reason: str = "") -> None:
        """Send the remaining metrics, the artifacts and the final status.

        Gives up when nothing has arrived for two minutes.

        Args:
            status: ``FINISHED``, ``FAILED`` or ``KILLED``.
            reason: for the tag ``ended``.
        """
        self.end(status, reason)
        self.wait(KILLED_SECONDS if status == "KILLED" else FINISH_SECONDS)

    def catch_up(self, status: str = "FINISHED", reason: str = "") -> None:
        """Send missing data of an ended run to MLflow, if any."""
        if self.is_pending:
            self.start()
            self.finish(status, reason)

    @property
    def is_pending(self) -> bool:
        """Whether MLflow lacks data, as far as this and earlier starts know."""
        return self._is_pending

    def _own_key(self) -> str:
        """Return the key of a run or trial, the same at each start.

        A trial has no ``run.json`` before it starts.
        """
        if self.parent is not None:
            return f"{self.parent.key}-{self.folder.name}"
        identity = read_record(self.folder.identity, "run") or {}
        return identity.get("key") or uuid.uuid4().hex

    @property
    def _deadline(self) -> float:
        """The time at which waiting ends.

        It is extended while data arrives, unless the process is being killed.
        """
        until = self._waiting_since + self._patience
        if self._is_hurried or (self.parent is not None and self.parent._is_hurried):
            return until
        return max(until, self._moved_at + self._patience) + self._seconds_of_file

    def _run(self) -> None:
        try:
            self._save()
            if self._has_parent() and self._retry(self._open):
                self._follow()
                # Try each one, even after another has failed.
                sent = [
                    self._retry(send) for send in (self._forward, self._send_artifacts, self._close)
                ]
                self._is_done = all(sent)
                self._save(pending=not self._is_done)
        except OSError as error:
            _log.warning(
                "%s: %s; MLflow gets the rest when the same command is given again",
                self.folder.path,
                error,
            )
        finally:
            # Close the file: a command of hundreds of runs has as many trackers.
            self._tail.close()

    def _has_parent(self) -> bool:
        """Wait silently until the parent's run exists; the parent's tracker reports problems."""
        while self.parent is not None and not self.parent.is_open.wait(timeout=0.2):
            if time.monotonic() > self._deadline:
                return False
        return True

    def _follow(self) -> None:
        load = None if self.parent else MachineLoad.of_this_one(self.uri)
        while not self._end_status:
            self._wake.wait(FORWARD_SECONDS)
            self._wake.clear()
            if self._is_killed:
                self._retry(lambda: self._client.set_terminated(self.run_id, "KILLED"))
                self._is_killed = False
            self._retry(self._forward)
            if load is not None and (sample := load.sample()):
                self._retry(partial(self._send_load, sample, int(time.time() * 1000)))

    def _retry(self, action: Callable[[], None]) -> bool:
        """Repeat an action until success or the deadline; return whether it succeeded."""
        for attempt in itertools.count():
            if self._is_abandoned:
                return False
            try:
                action()
                return True
            except Exception as error:
                _warn(self.uri, error)
            pause = RETRY_SECONDS[min(attempt, len(RETRY_SECONDS) - 1)]
            if self._end_status:
                pause = min(pause, LAST_RETRY_SECONDS)
            if time.monotonic() + pause > self._deadline:
                return False
            self._wake.wait(pause)
            self._wake.clear()
        raise AssertionError

    def _open(self) -> None:
        self._client = mlflow_run.open_client(self.uri)
        if self.run_id is not None and not mlflow_run.reopen(self._client, self.run_id):
            # The run was deleted, so everything goes to a new one.
            self.run_id = None
            self._is_described = False
            self._forwarded = -1
            self._tail = MetricsTail(self.folder.metrics)
            self._sent = {}
        if self.run_id is None:
            self.run_id = next(iter(self._find_runs()), None) or self._create_run()
            self._save()
        if not self._is_described:
            mlflow_run.describe(self._client, self.run_id, self.config, self.data_digest)
            self._is_described = True
            self._save()
        self.is_open.set()

    def _find_runs(self) -> list[str]:
        return mlflow_run.find_runs(self._client, self._experiment, self.key)

    def _create_run(self) -> str:
        tags = mlflow_run.tags_of(self.method, self.data_digest, self.folder.encoder)
        parent_run_id = self.parent.run_id if self.parent else self.parent_run_id
        if parent_run_id is not None:
            tags["mlflow.parentRunId"] = parent_run_id
        tags[mlflow_run.KEY] = self.key
        name = self.folder.name
        return mlflow_run.create_run(self._client, self.uri, self._experiment, name, tags)

    @property
    def _experiment(self) -> str:
        method = METHODS.get(self.method)
        # Data may be left to send of a run whose method is not installed here.
        return self.method if method is None else method.first_name

    def _forward(self) -> None:
        self._unsent += self._tail.read()
        while self._unsent:
            num_metrics = 0
            num_reports = 0
            for report in self._unsent:
                if num_reports and num_metrics + len(report["metrics"]) > METRICS_PER_BATCH:
                    break
                num_metrics += len(report["metrics"])
                num_reports += 1
            mlflow_run.log_reports(self._client, str(self.run_id), self._unsent[:num_reports])
            self._forwarded, self._was_evaluated = position_of(self._unsent[num_reports - 1])
            del self._unsent[:num_reports]
            self._save()
            self._moved_at = time.monotonic()

    def _send_load(self, sample: dict[str, float], time_ms: int) -> None:
        report = {"step": self._num_samples, "time_ms": time_ms, "metrics": sample}
        mlflow_run.log_reports(self._client, str(self.run_id), [report])
        self._num_samples += 1

    def _send_artifacts(self) -> None:
        """Send the files that MLflow does not have in their current state.

        The state is size and modification time: files of a run are replaced, never changed in
        place, and digests of gigabytes of weights would take too long.
        """
        for path in mlflow_run.artifacts(self.folder):
            name = path.relative_to(self.folder.path).as_posix()
            status = path.stat()
            state = [status.st_size, status.st_mtime_ns]
            if self._sent.get(name) == state:
                continue
            self._seconds_of_file = status.st_size / SLOWEST_BYTES_PER_SECOND
            try:
                mlflow_run.log_artifact(self._client, str(self.run_id), path, self.folder)
                # Set this before the file's own time limit ends, so that the deadline does not come
                # in between.
                self._moved_at = time.monotonic()
            finally:
                self._seconds_of_file = 0.0
            self._sent[name] = state
            self._save()

    def _close(self) -> None:
        tags = dict(self._tags)
        if self._reason:
            tags["ended"] = self._reason
        for name, text in tags.items():
            self._client.set_tag(self.run_id, name, text[:MAX_TAG_LETTERS])
        if ERROR not in tags and ERROR in self._client.get_run(self.run_id).data.tags:
            # An earlier attempt failed, and this one did not.
            self._client.delete_tag(self.run_id, ERROR)
        mlflow_run.log_reports(
            self._client,
            str(self.run_id),
            [*self._last_reports, *mlflow_run.final_scores(self.folder, self.method)],
        )
        for run_id in self._find_runs():
            # A slow server may have created a run for a request that was given up.
            if run_id != self.run_id:
                self._client.delete_run(run_id)
        self._client.set_terminated(self.run_id, self._end_status)

    def _save(self, pending: bool = True) -> None:
        self._is_pending = pending
        content = {
            "uri": self.uri,
            "run_id": self.run_id,
            "key": self.key,
            "described": self._is_described,
            "forwarded_step": self._forwarded,
            "was_forwarded_step_evaluated": self._was_evaluated,
            "sent": self._sent,
            "num_samples": self._num_samples,
            "pending": pending,
        }
        write_record(self.folder.tracking, "tracking", content)


def _warn(uri: str, error: Exception) -> None:
    """Warn once a minute for each server, however many runs wait for it."""
    with _warning:
        now = time.monotonic()
        if now - _warned.get(uri, -math.inf) < WARN_SECONDS:
            return
        _warned[uri] = now
    lines = str(error).splitlines() or [type(error).__name__]
    # SQLAlchemy's text begins with the place of the error and ends with a link.
    reasons = [line for line in lines if _DATABASE_ERROR.match(line)]
    reason = _DATABASE_ERROR.sub("", reasons[0]) if reasons else lines[0]
    _log.warning("MLflow at %s: %s; trying again", shown_uri(uri), reason[:200])


def wait_for_all(waits: Sequence[Callable[[float], bool]], *, is_killed: bool) -> None:
    """Wait until MLflow has several runs that have ended.

    Args:
        waits: ``Tracker.wait`` of each run, or an equivalent function.
        is_killed: whether a signal came. All runs together then have 20 seconds; otherwise each has
            two minutes after the last completed one.
    """
    seconds = KILLED_SECONDS if is_killed else FINISH_SECONDS
    until = time.monotonic() + seconds
    for wait in waits:
        is_complete = wait(max(until - time.monotonic(), 0.0))
        if is_complete and not is_killed:
            until = time.monotonic() + seconds


def add_artifacts(folder: RunFolder, paths: list[Path]) -> None:
    """Add files or folders to the finished MLflow run; an unavailable server is a warning."""
    saved = read_recomputable(folder.tracking, "tracking") or {}
    if not saved.get("run_id"):
        return
    try:
        mlflow_run.add(mlflow_run.open_client(saved["uri"]), saved["run_id"], paths)
    except Exception as error:
        _log.warning("MLflow did not take %s: %s", ", ".join(path.name for path in paths), error)
