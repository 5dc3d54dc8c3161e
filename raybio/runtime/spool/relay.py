"""The relay between workers and the driver of a run in a bucket: an actor on the driver's machine.

Each worker has its own folder. It fetches the records of the run when it starts. A thread then
sends changes in the folder to the driver's spool, and receives requests to stop.
"""

import contextlib
import fcntl
import logging
import os
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raybio.core.cache import cache_folder
from raybio.core.errors import ClusterError, RaybioError
from raybio.core.files import RUN, locked, put_in_place
from raybio.runtime.run.folder import SHARED_SCORES, WRITTEN_LAST, RunFolder
from raybio.runtime.run.spec import WorkerSpec
from raybio.runtime.spool import lease as leases
from raybio.runtime.spool.index import files_of
from raybio.runtime.spool.mirror import is_mirrored
from raybio.store.bucket import BucketFolder
from raybio.training.checkpoint_files import MANIFEST
from raybio.training.remote_checkpoints import RemoteCheckpoints, last_step_of_log

POLL_SECONDS = 0.2
"""Interval of checks for files that a worker has changed, and for a stop."""

CHUNK_BYTES = 4 << 20

_TO_WORKERS = (
    RUN,
    "launch.json",
    "tracking.json",
    "metrics.jsonl",
    "outcome.json",
    "failure.json",
    "trial.json",
    "ended.json",
    ".start",
    ".stop",
)
_log = logging.getLogger(__name__)


class Change(NamedTuple):
    """A change of one file.

    Attributes:
        name: its path below the folder of runs' parent: ``<run>/metrics.jsonl``.
        content: bytes to append.
        is_begun: whether they begin a new file, which replaces an existing one once it is complete.
        is_complete: whether the file is complete with them.
        is_gone: whether the file has been removed.
    """

    name: str
    content: bytes = b""
    is_begun: bool = False
    is_complete: bool = True
    is_gone: bool = False


class _Relay:
    """The actor that writes workers' files to a driver's spools."""

    def __init__(self, runs: str, sweep: str | None) -> None:
        self._runs = Path(runs)
        self._sweep = None if sweep is None else Path(sweep)
        self._writers: dict[str, str] = {}

    def fetch(self, run: str, start: str, writer: str | None) -> dict[str, bytes]:
        """Return the files that a worker of a run needs, by path below the folder of runs.

        Args:
            run: name of the run.
            start: name of its start.
            writer: id of this process if it writes checkpoints. Earlier writers of the run are
                refused from now on: the process of a lost node may still be alive.
        """
        if writer is not None and RunFolder(self._runs, run).is_newest_start(start):
            self._writers[run] = writer
            # Delete partial files: lines that the worker appends to its log belong to the complete
            # file.
            for torn in (self._runs / run).rglob(_arriving("*")):
                torn.unlink()
        paths = [self._runs / run / name for name in _TO_WORKERS]
        paths += sorted((self._runs / SHARED_SCORES).glob("*.json"))
        contents = {}
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                contents[path.relative_to(self._runs).as_posix()] = path.read_bytes()
        if self._is_sweep_stopped:
            contents[f"{run}/.stop"] = b""
        return contents

    def send(self, run: str, start: str, writer: str | None, changes: list[Change]) -> bool:
        """Apply changes of a worker, and return whether it should stop.

        Raises:
            ClusterError: if the worker belongs to an earlier start, or another process is the
                writer now.
        """
        folder = RunFolder(self._runs, run)
        is_replaced = writer is not None and self._writers.get(run) != writer
        if is_replaced or not folder.is_newest_start(start):
            raise ClusterError(f"{folder.path}: the run has been started again meanwhile")
        for change in changes:
            _apply(self._runs / change.name, change)
        return folder.stop.exists() or self._is_sweep_stopped

    def has_export(self, run: str) -> bool:
        """Return whether the bucket has the model that was sent last.

        Raises:
            StorageError: if the bucket has refused it for minutes.
        """
        if self._sweep is None:
            return is_mirrored(self._runs / run, "export")
        below = (self._runs / run / "export").relative_to(self._sweep)
        return is_mirrored(self._sweep, below.as_posix())

    def checkpoints(
        self, run: str, start: str, writer: str | None, manifests: dict[str, bytes]
    ) -> None:
        """Receive the manifests of the checkpoints in the bucket; errors as in ``send``."""
        self.send(run, start, writer, [])
        folder = RunFolder(self._runs, run).checkpoints
        for name, content in manifests.items():
            if not (folder / name).is_dir():
                writing = folder / f".writing-{name}"
                writing.mkdir(parents=True, exist_ok=True)
                (writing / MANIFEST).write_bytes(content)
                writing.rename(folder / name)
        for path in folder.glob("step-*"):
            if path.name not in manifests:
                shutil.rmtree(path)

    @property
    def _is_sweep_stopped(self) -> bool:
        return self._sweep is not None and (self._sweep / ".stop").exists()


def start_relay(runs: Path, sweep: Path | None = None) -> Any:
    """Start the actor on this machine, for all runs of a folder; it ends with this driver.

    Args:
        runs: folder of the runs.
        sweep: folder of the sweep whose trials they are.
    """
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    actor = ray.remote(_Relay).options(num_cpus=0, scheduling_strategy=here)
    return actor.remote(str(runs), None if sweep is None else str(sweep))


@dataclass(frozen=True)
class WorkerCopy:
    """A worker's view of its run.

    Attributes:
        spec: the start, with the worker's own folder of runs.
        remote: the checkpoints in the bucket; None if driver and workers share a folder.
        flush: returns when everything written has reached the driver.
    """

    spec: WorkerSpec
    remote: RemoteCheckpoints | None
    flush: Callable[[], None] = lambda: None


@contextlib.contextmanager
def worker_copy(spec: WorkerSpec, rank: int) -> Iterator[WorkerCopy]:
    """Yield a worker's folder, whose files have reached the driver when the block ends.

    For a run in a local folder, it is the folder that all processes share.

    Args:
        spec: the start of the run.
        rank: rank of the worker.

    Raises:
        ClusterError: if the driver is gone, or the run has been started again.
    """
    run = spec.run
    if run.bucket is None:
        yield WorkerCopy(spec, None)
        return
    start = cache_folder() / "workers" / spec.start
    with _node_folder(start):
        runs = Path(tempfile.mkdtemp(prefix=f"{run.name}-{rank}-", dir=start))
        own = replace(spec, run=replace(run, runs=runs))
        folder = own.run.folder
        link = _Link(own, rank)
        remote = RemoteCheckpoints(
            BucketFolder(run.bucket / run.name),
            start / run.name,
            keep=run.config.schedule.keep_checkpoints,
            check_lease=link.check_lease,
            # Runs are exported at the end, but a resumed trial of a sweep needs its best model.
            before_commit=link.wait_for_export if spec.goal is not None else lambda: None,
            on_change=link.send_manifests,
            last_reported_step=lambda: last_step_of_log(folder.metrics),
            log=folder.metrics,
        )
        try:
            with link, contextlib.closing(remote):
                yield WorkerCopy(own, remote, link.flush)
        finally:
            shutil.rmtree(runs, ignore_errors=True)


@contextlib.contextmanager
def _node_folder(start: Path) -> Iterator[None]:
    """Create the folder of a start on this machine; the last process to leave deletes it."""
    start.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as held:
        with locked(start.parent / ".lock"):
            _delete_unused(start.parent)
            start.mkdir(exist_ok=True)
            lock = held.enter_context((start / ".lock").open("a"))
            fcntl.flock(lock, fcntl.LOCK_SH)
        try:
            yield
        finally:
            held.close()
            with locked(start.parent / ".lock"):
                _delete_unused(start.parent)


def _delete_unused(workers: Path) -> None:
    """Delete folders of starts that no process of this machine uses, left by killed processes."""
    for start in workers.iterdir():
        with contextlib.suppress(OSError), (start / ".lock").open("r") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(start, ignore_errors=True)


class _Link:
    """The worker's side of the relay: fetches records, then sends changes in a thread."""

    def __init__(self, spec: WorkerSpec, rank: int) -> None:
        self._relay = spec.relay
        self._start = spec.start
        self._lease = spec.lease
        self._run = spec.run
        self._folder = spec.run.folder
        self._is_polling = rank == 0
        self._writer = uuid.uuid4().hex if rank == 0 else None
        self._sent: dict[str, _Sent] = {}
        self._sending = threading.Lock()
        self._ended = threading.Event()
        self._is_closed = False
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._follow, name="relay", daemon=True)

    def __enter__(self) -> None:
        self._folder.make()
        fetched = self._relay.fetch.remote(self._run.name, self._start, self._writer)
        for name, content in self._ask(fetched).items():
            path = self._run.runs / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            self._sent[name] = _state(path.stat())
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        try:
            if self._failure is not None:
                raise self._failure
            self._send(is_final=True)
        finally:
            # An abandoned transfer may still be running. It must not report the files that this
            # process is about to delete as removed.
            with self._sending:
                self._is_closed = True

    def check_lease(self) -> None:
        """Raise if the driver or this process no longer holds the run; call it before a write.

        Raises:
            ClusterError: if another driver or process has taken it over.
            StorageError: if the bucket cannot be read.
        """
        assert self._lease is not None
        leases.check_key(self._lease)
        with self._sending:
            self._check_open()
            self._send_batch([])

    def flush(self) -> None:
        """Return when everything that this worker has written has reached the driver.

        Raises:
            ClusterError: if the driver is gone, or the run has been started again.
        """
        self._send()

    def wait_for_export(self) -> None:
        """Return when the model that this worker has exported is in the bucket.

        Raises:
            ClusterError: as ``flush``.
            StorageError: if the bucket has refused it for minutes.
        """
        self.flush()
        while not self._ask(self._relay.has_export.remote(self._run.name)):
            self._check_open()
            time.sleep(POLL_SECONDS)

    def send_manifests(self, manifests: dict[str, bytes]) -> None:
        """Send the driver the manifests of the checkpoints in the bucket."""
        call = (self._run.name, self._start, self._writer, manifests)
        self._ask(self._relay.checkpoints.remote(*call))

    def _follow(self) -> None:
        while not self._ended.wait(POLL_SECONDS):
            try:
                if self._send():
                    self._folder.stop.touch()
            except Exception as error:
                # The changes are lost for the driver; ``__exit__`` raises the error.
                _log.warning("the driver does not answer: %s", error)
                self._failure = error
                self._folder.make()  # it may have been deleted
                self._folder.stop.touch()
                return

    def _send(self, *, is_final: bool = False) -> bool:
        with self._sending:
            self._check_open()
            # List these files before the others, since they mark the others as complete.
            last = [name for name in WRITTEN_LAST if (self._folder.path / name).exists()]
            shall_stop = False
            batch: list[Change] = []
            num_bytes = 0
            for change in self._changes(last):
                batch.append(change)
                num_bytes += len(change.content)
                if num_bytes >= CHUNK_BYTES:
                    shall_stop = self._send_batch(batch)
                    batch = []
                    num_bytes = 0
            if batch or self._is_polling or is_final:
                shall_stop = self._send_batch(batch)
            return shall_stop

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClusterError(f"{self._run.name}: this worker has ended")

    def _send_batch(self, batch: list[Change]) -> bool:
        call = (self._run.name, self._start, self._writer, batch)
        return bool(self._ask(self._relay.send.remote(*call)))

    def _ask(self, reference: Any) -> Any:
        try:
            return ray.get(reference)
        except ray.exceptions.RayTaskError as error:
            is_ours = isinstance(error.cause, RaybioError | OSError)
            raise (error.cause if is_ours else error) from None
        except ray.exceptions.RayError as error:
            raise ClusterError(f"{self._run.name}: the driver is gone ({error})") from None

    def _changes(self, last: list[str]) -> Iterator[Change]:
        """Yield changes since the last call; those of ``last`` come at the end."""
        ends = [f"{self._run.name}/{name}" for name in last]
        unready = {f"{self._run.name}/{name}" for name in WRITTEN_LAST}
        names = [name for name in self._names() if name not in unready]
        identity = f"{self._run.name}/{self._folder.identity.name}"
        if identity in self._sent and not self._folder.identity.exists():
            # Raise instead of reporting removed files: the driver would delete them, also in the
            # bucket.
            raise ClusterError(f"{self._folder.path}: was deleted while this worker used it")
        for name in [name for name in self._sent if name not in {*names, *unready}]:
            if not name.rpartition("/")[2].startswith("."):
                del self._sent[name]
                yield Change(name, is_gone=True)
        for name in (*names, *ends):
            with contextlib.suppress(FileNotFoundError):
                yield from self._changes_of(name)

    def _names(self) -> list[str]:
        """Return the files that this worker may have written, below its folder of runs."""
        shared = sorted((self._run.runs / SHARED_SCORES).glob("*.json"))
        names = [path.relative_to(self._run.runs).as_posix() for path in shared]
        names += [path.relative_to(self._run.runs).as_posix() for path in files_of(self._folder)]
        return names

    def _changes_of(self, name: str) -> Iterator[Change]:
        path = self._run.runs / name
        sent = self._sent.get(name)
        with path.open("rb") as file:
            now = _state(os.fstat(file.fileno()))
            if sent == now:
                return
            is_notices = path.name.startswith("notices") and _grows(path)
            offset = 0
            if sent is not None and _grows(path) and sent.inode == now.inode:
                # A shorter file is a new one.
                offset = sent.num_bytes if now.num_bytes >= sent.num_bytes else 0
            # Keep notices of an earlier process of this rank.
            is_begun = offset == 0 and not is_notices
            file.seek(offset)
            while True:
                content = file.read(CHUNK_BYTES)
                offset += len(content)
                is_complete = len(content) < CHUNK_BYTES
                yield Change(name, content, is_begun, is_complete)
                is_begun = False
                if is_complete:
                    break
            self._sent[name] = now._replace(num_bytes=offset)


class _Sent(NamedTuple):
    """The state of a file when it was sent.

    Attributes:
        inode: its inode, which differs for a file that replaced it.
        modified: time of its last change, in nanoseconds.
        num_bytes: number of bytes that were sent.
    """

    inode: int
    modified: int
    num_bytes: int


def _state(status: os.stat_result) -> _Sent:
    return _Sent(status.st_ino, status.st_mtime_ns, status.st_size)


def _grows(path: Path) -> bool:
    """Return whether lines are appended to a file; others are replaced as a whole."""
    return path.suffix == ".jsonl"


def _arriving(name: str) -> str:
    """Return the name of a file whose last chunks have not arrived yet."""
    return f".{name}.arriving"


def _apply(path: Path, change: Change) -> None:
    arriving = path.with_name(_arriving(path.name))
    if change.is_gone:
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    if change.is_begun:
        arriving.write_bytes(change.content)
    else:
        target = arriving if arriving.exists() else path
        with target.open("ab") as file:
            file.write(change.content)
    if change.is_complete and arriving.exists():
        put_in_place(arriving, path)
