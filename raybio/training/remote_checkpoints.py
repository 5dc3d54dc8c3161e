"""Checkpoints of a run in a bucket: uploaded in the background, fetched once per node.

    <run>/checkpoints/step-00000100-483920175/
        metrics.jsonl          the run's log up to this step
        model.safetensors      the files of a checkpoint, see ``checkpoint``
        optimizer.safetensors
        state.json
        manifest.json          written last: a checkpoint without it does not exist

The number at the end of the name is random for each upload, so that a process left over from an
earlier start never changes a checkpoint of a later one.
"""

import contextlib
import json
import logging
import os
import random
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from raybio.core.errors import (
    ClusterError,
    DamagedObjectError,
    MissingObjectError,
    RaybioError,
    StorageError,
)
from raybio.core.files import locked, replace_bytes
from raybio.core.records import is_report
from raybio.store.bucket import BucketFolder
from raybio.store.object_download import download_object
from raybio.training.checkpoint_files import (
    FILES,
    FOLDER_NAME,
    MANIFEST,
    RETRY_DELAYS_SECONDS,
    DamagedError,
    PrunedError,
    step_of_name,
)

LOG = "metrics.jsonl"

TAIL_BYTES = 1 << 16
"""Bytes at the end of the log that are searched first for its last step."""

_log = logging.getLogger(__name__)


class Request(NamedTuple):
    """The checkpoints of this process that an upload must bring to the bucket, the newest last."""

    folders: tuple[Path, ...]
    protected_step: int | None


class RemoteCheckpoints:
    """The checkpoints of one run in a bucket, for one process of this run.

    Any number of processes read, and one writes. Its thread uploads the newest checkpoint and the
    best one that it refers to; it skips checkpoints that became old during another upload.
    """

    def __init__(
        self,
        bucket: BucketFolder,
        fetched: Path,
        *,
        keep: int,
        check_lease: Callable[[], None],
        on_change: Callable[[dict[str, bytes]], None],
        last_reported_step: Callable[[], int],
        log: Path,
        before_commit: Callable[[], None] = lambda: None,
        retry_delays_seconds: tuple[float, ...] = RETRY_DELAYS_SECONDS,
    ) -> None:
        """Make no request yet.

        Args:
            bucket: the run's folder in the bucket.
            fetched: local folder of fetched checkpoints, which processes of a node share.
            keep: number of newest checkpoints that are kept.
            check_lease: raises ClusterError if another driver holds the run.
            on_change: called with the manifests of all checkpoints in the bucket, by name, after a
                change.
            last_reported_step: returns the step of the last report in ``log``.
            log: the log of this process.
            before_commit: called when all files of a checkpoint but its manifest are in the bucket;
                returns when everything that must accompany the checkpoint is there.
            retry_delays_seconds: pauses after a failed upload.
        """
        self.bucket = bucket
        self.keep = keep
        self._fetched = fetched
        self._check_lease = check_lease
        self._on_change = on_change
        self._last_reported_step = last_reported_step
        self._log_file = log
        self._before_commit = before_commit
        self._retry_delays_seconds = retry_delays_seconds
        self._manifests: dict[str, bytes] = {}
        self._known_damaged: set[str] = set()
        self._uploaded: dict[Path, str] = {}
        self._changed = threading.Condition()
        self._pending: Request | None = None
        self._current: Request | None = None
        self._failure: RaybioError | None = None
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def names(self) -> list[str]:
        """Return the names of the checkpoints that have a manifest, newest first.

        Raises:
            StorageError: if the bucket cannot be read.
        """
        return [name for name, files in _list_files(self.bucket).items() if MANIFEST in files]

    def fetch(self, name: str) -> Path:
        """Return a local copy of a checkpoint; the caller verifies it.

        Raises:
            DamagedError: if an object of it is missing or damaged.
            OSError: if it cannot be written.
            PrunedError: if it has been deleted since it was listed.
            StorageError: if the bucket cannot be read.
        """
        with self._changed:
            uploaded = dict(self._uploaded)
        for own, its_name in uploaded.items():
            if its_name == name and own.is_dir():
                return own
        folder = self._fetched / name
        self._fetched.mkdir(parents=True, exist_ok=True)
        with locked(self._fetched / f".{name}.lock"):
            if not folder.is_dir():
                try:
                    self._download(name, folder)
                except (DamagedError, MissingObjectError):
                    # Pruning deletes the manifest first.
                    if self.bucket.info(f"checkpoints/{name}/{MANIFEST}") is None:
                        raise PrunedError(name) from None
                    raise
        return folder

    def restore_newest_log(self, log: Path) -> int | None:
        """Write the log of the newest checkpoint, and return its step; None if there is none.

        Raises:
            StorageError: if the bucket cannot be read.
        """
        for name in self.names():
            with contextlib.suppress(MissingObjectError):
                replace_bytes(log, self.bucket.read(f"checkpoints/{name}/{LOG}"))
                return step_of_name(name)
        return None

    def mark_damaged(self, name: str) -> None:
        """Mark a damaged checkpoint for deletion after the next upload."""
        self._known_damaged.add(name)

    def upload(self, folder: Path, protected: Path | None, protected_step: int | None) -> None:
        """Upload a committed checkpoint in the background.

        Args:
            folder: its local folder.
            protected: local folder of the best checkpoint, if this process has written it.
            protected_step: step of a checkpoint that is kept in addition to the newest ones.
        """
        folders = (folder,) if protected in (None, folder) else (protected, folder)
        with self._changed:
            self._pending = Request(folders, protected_step)  # type: ignore[arg-type]
            self._changed.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._work, name="checkpoint-uploader", daemon=True
            )
            self._thread.start()

    @property
    def in_use(self) -> set[Path]:
        """Local checkpoints that must not be deleted yet."""
        with self._changed:
            requests = (self._pending, self._current)
            return {path for request in requests if request for path in request.folders}

    def wait(self) -> None:
        """Return when the newest checkpoint is in the bucket.

        Raises:
            ClusterError: if it could not be uploaded, or another driver has the run; once.
        """
        with self._changed:
            while self._failure is None and (self._pending or self._current):
                self._changed.wait()
        self.raise_failure()

    def wait_for(self, step: int) -> None:
        """Return when the uploads of a step are complete; newer ones may be in progress.

        Raises:
            ClusterError: as ``wait``; once.
        """
        with self._changed:
            while self._failure is None and self._is_due(step):
                self._changed.wait()
        self.raise_failure()

    def _is_due(self, step: int) -> bool:
        requests = [request for request in (self._pending, self._current) if request]
        folders = {folder for request in requests for folder in request.folders}
        return any(step_of_name(folder.name) == step for folder in folders - self._uploaded.keys())

    def close(self) -> None:
        """End the thread; what is not uploaded yet is given up."""
        with self._changed:
            self._is_closed = True
            self._pending = None
            self._changed.notify_all()

    def raise_failure(self) -> None:
        """Raise the error of an upload that failed for good; once."""
        with self._changed:
            failure = self._failure
            self._failure = None
        if failure is not None:
            raise failure

    def _work(self) -> None:
        while True:
            with self._changed:
                self._current = None
                self._changed.notify_all()
                while self._pending is None and not self._is_closed:
                    self._changed.wait()
                if self._is_closed:
                    return
                self._current = self._pending
                self._pending = None
            assert self._current is not None
            try:
                self._bring(self._current)
            except Exception as error:
                failure = self._explained(self._current.folders[-1].name, error)
                with self._changed:
                    self._failure = failure

    def _explained(self, name: str, error: Exception) -> RaybioError:
        """Return the error of an upload that failed; it may succeed when the run is resumed."""
        if isinstance(error, ClusterError) and not isinstance(error, StorageError):
            return error  # another driver or process has the run
        failure = ClusterError(
            f"checkpoint {name} was not uploaded: {error}. Earlier checkpoints are untouched. The "
            "same command resumes from the newest"
        )
        failure.__cause__ = error
        return failure

    def _bring(self, request: Request) -> None:
        """Upload what the bucket lacks, then delete what is old."""
        for folder in request.folders:
            if folder not in self._uploaded:
                self._upload_with_retries(folder)
        try:
            self._prune(request)
        except StorageError as error:
            _log.warning("old checkpoints could not be deleted: %s", error)
        self._on_change(dict(self._manifests))

    def _upload_with_retries(self, folder: Path) -> None:
        for delay_seconds in (*self._retry_delays_seconds, None):
            try:
                self._upload(folder)
                return
            except StorageError as error:
                if delay_seconds is None:
                    raise
                _log.warning("%s; again in %g s", error, delay_seconds)
                time.sleep(delay_seconds)

    def _upload(self, folder: Path) -> None:
        step = step_of_name(folder.name)
        # The generators of training must not be used, and ``secrets`` is not needed.
        name = f"step-{step:08d}-{random.SystemRandom().randrange(10**8, 10**9)}"
        self._wait_for_report(step)
        # Copy the log, since the loop continues to write it. Readers of the copy skip a partial
        # line.
        shutil.copyfile(self._log_file, folder / LOG)
        for file in (LOG, *FILES):
            self.bucket.upload(folder / file, f"checkpoints/{name}/{file}")
        self._before_commit()
        self._check_lease()
        self._check_open()
        manifest = (folder / MANIFEST).read_bytes()
        self.bucket.write(f"checkpoints/{name}/{MANIFEST}", manifest)
        self._manifests[name] = manifest
        with self._changed:
            self._uploaded[folder] = name
            self._changed.notify_all()

    def _wait_for_report(self, step: int) -> None:
        """Return when the log has the step: the loop writes its report after it has saved.

        Raises:
            ClusterError: if the process ends first.
        """
        while self._last_reported_step() < step:
            self._check_open()
            time.sleep(0.1)

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClusterError("the process has ended before")

    def _prune(self, request: Request) -> None:
        """Delete old checkpoints that are not protected, and damaged or partially uploaded ones."""
        files_by_name = _list_files(self.bucket)
        # List first, then check the lease, so that no listed upload is a later driver's.
        self._check_lease()
        sound = [
            name
            for name, files in files_by_name.items()
            if {MANIFEST, *FILES} <= files and name not in self._known_damaged
        ]
        # Prefer this process's own checkpoint, known to be whole, to one of an earlier start.
        own = set(self._uploaded.values())
        name_by_step: dict[int, str] = {}
        for name in sorted(sound, key=lambda name: name in own):
            name_by_step[step_of_name(name)] = name
        newest = sorted(name_by_step, reverse=True)[: self.keep]
        kept = {
            name for step, name in name_by_step.items() if step in (*newest, request.protected_step)
        }
        for name, files in files_by_name.items():
            if name not in kept:
                _delete(self.bucket, name, files)
                self._manifests.pop(name, None)
        self._known_damaged.clear()
        for name in kept - self._manifests.keys():
            self._manifests[name] = self.bucket.read(f"checkpoints/{name}/{MANIFEST}")

    def _download(self, name: str, folder: Path) -> None:
        present = {info.name.rpartition("/")[2] for info in self.bucket.list(f"checkpoints/{name}")}
        missing = {MANIFEST, *FILES} - present
        if missing:
            raise DamagedError(f"{self.bucket.path / name}: {min(missing)} is missing")
        digests = _digests(self.bucket.read(f"checkpoints/{name}/{MANIFEST}"))
        unfinished = folder.with_name(f".fetching-{name}")
        unfinished.mkdir(exist_ok=True)
        for file in (MANIFEST, *FILES, *({LOG} & present)):
            # Skip files that an earlier, interrupted try has downloaded.
            if (unfinished / file).exists():
                continue
            source = f"checkpoints/{name}/{file}"
            try:
                download_object(self.bucket, source, unfinished / file, sha256=digests.get(file))
            except DamagedObjectError as error:
                raise DamagedError(str(error)) from None
        unfinished.rename(folder)


def delete_all_but_newest_in(bucket: BucketFolder) -> None:
    """Delete the checkpoints of a run that has ended, except the newest one.

    Args:
        bucket: the run's folder.

    Raises:
        StorageError: if the bucket cannot be read or written.
    """
    files_by_name = _list_files(bucket)
    whole = [name for name, files in files_by_name.items() if {MANIFEST, *FILES} <= files]
    for name in files_by_name:
        if name not in whole[:1]:
            _delete(bucket, name, files_by_name[name])


def _list_files(bucket: BucketFolder) -> dict[str, set[str]]:
    """Return the files of each checkpoint by its name, newest first, including incomplete ones."""
    files_by_name: dict[str, set[str]] = {}
    for info in bucket.list("checkpoints"):
        name, _, file = info.name.removeprefix("checkpoints/").partition("/")
        if FOLDER_NAME.fullmatch(name):
            files_by_name.setdefault(name, set()).add(file)
    names = sorted(files_by_name, key=lambda name: (step_of_name(name), name), reverse=True)
    return {name: files_by_name[name] for name in names}


def _delete(bucket: BucketFolder, name: str, files: set[str]) -> None:
    # Delete the manifest first: a checkpoint without it does not exist.
    bucket.delete(f"checkpoints/{name}/{MANIFEST}")
    bucket.delete([f"checkpoints/{name}/{file}" for file in sorted(files - {MANIFEST})])


def _digests(manifest: bytes) -> dict[str, str]:
    """Return the sha256 of each file; none if the manifest is damaged, which its reader reports."""
    try:
        files = json.loads(manifest)["files"]
        return {name: record["sha256"] for name, record in files.items()}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}


def restore_log(checkpoint: Path, log: Path) -> None:
    """Replace a worker's log by the one that came with a fetched checkpoint."""
    with contextlib.suppress(FileNotFoundError):
        # Write a new file, so that a reader notices that it has to start over.
        replace_bytes(log, (checkpoint / LOG).read_bytes())


def last_step_of_log(log: Path) -> int:
    """Return the step of the last whole, undamaged line of a log; -1 if there is none.

    Lines of a pending evaluation count: their checkpoints need not wait for it.
    """
    try:
        file = log.open("rb")
    except FileNotFoundError:
        return -1
    with file:
        end = file.seek(0, os.SEEK_END)
        num_bytes = TAIL_BYTES
        while True:
            start = max(0, end - num_bytes)
            file.seek(start)
            lines = file.read(end - start).rpartition(b"\n")[0].splitlines()
            # The first line is partial unless it is the beginning of the log.
            for line in reversed(lines[start > 0 :]):
                # Lines that a power loss has damaged are skipped, as by the readers of the log.
                with contextlib.suppress(ValueError, RecursionError):
                    report = json.loads(line)
                    if is_report(report):
                        return int(report["step"])
            if start == 0:
                return -1
            num_bytes *= 8
