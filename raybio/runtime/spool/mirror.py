"""Mirroring of a spool: a thread of the driver writes changed files to the bucket."""

import contextlib
import logging
import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any

from raybio.core.errors import RaybioError, StorageError
from raybio.core.files import replace_text
from raybio.runtime.run.folder import SHARED_SCORES, WRITTEN_LAST, RunFolder
from raybio.runtime.spool.index import (
    INDEX,
    files_of,
    is_checkpoint,
    read_index,
    state_of,
    write_index,
)
from raybio.runtime.spool.lease import Lease
from raybio.store.bucket import PART_BYTES, BucketFolder, ObjectVersion

MIRROR_SECONDS = 2.0
"""Interval of checks for changed files."""

QUIET_FACTOR = 20.0
"""Minimum wait before a report file is sent again, as a multiple of its last upload time."""

WARN_SECONDS = 60.0

REFUSED_SECONDS = 300.0
"""Processes that need a file stop waiting if the bucket has refused the mirror for this time."""

FILES_PER_INDEX = 20
"""Number of files that are sent between two writes of the index, which names all files."""

NUM_TRIES = 5
"""Tries to write a file that differs from what this driver wrote, although it holds the lease."""

REFUSAL = ".mirror-refusal"
"""File with the reason if the bucket has refused the mirror for ``REFUSED_SECONDS``."""

_log = logging.getLogger(__name__)


class Mirror:
    """Writes the files of a spool to the bucket whenever they change, in a thread."""

    def __init__(self, folder: RunFolder, bucket: BucketFolder, lease: Lease) -> None:
        """Start to mirror.

        Args:
            folder: the spool.
            bucket: the run's folder in the bucket.
            lease: the lease, without which nothing is written.
        """
        self._folder = folder
        self._bucket = bucket
        self._lease = lease
        self._index = read_index(folder.path)
        self._not_before: dict[str, float] = {}
        self._shared: set[str] = set()
        self._writing = threading.Lock()
        self._ended = threading.Event()
        self._warned = -WARN_SECONDS
        self._is_lost = False
        self._refused_since: float | None = None
        self._thread = threading.Thread(target=self._follow, name="mirror", daemon=True)
        self._thread.start()

    def write_all(self) -> None:
        """Synchronize the bucket with the spool now.

        Raises:
            ClusterError: if another driver has taken over the run.
            StorageError: if the bucket cannot be written.
        """
        self._write(is_all=True)

    def close(self) -> None:
        """End the thread and synchronize the bucket with the spool, like ``write_all``."""
        self._ended.set()
        self._thread.join()
        self._write(is_all=True)

    def _follow(self) -> None:
        while not self._ended.wait(MIRROR_SECONDS):
            try:
                self._write(is_all=False)
                self._record_refusal(None)
            except (RaybioError, OSError) as error:
                self._warn(error)
                # Even with a full disk, mirroring continues.
                with contextlib.suppress(RaybioError, OSError):
                    self._record_refusal(error)

    def _record_refusal(self, error: Exception | None) -> None:
        """Record, for other processes, why the bucket has refused files for ``REFUSED_SECONDS``."""
        path = self._folder.path / REFUSAL
        if error is None:
            self._refused_since = None
            path.unlink(missing_ok=True)
            return
        now = time.monotonic()
        self._refused_since = self._refused_since or now
        if now - self._refused_since >= REFUSED_SECONDS:
            replace_text(path, str(error))

    def _warn(self, error: Exception) -> None:
        now = time.monotonic()
        if now - self._warned >= WARN_SECONDS:
            self._warned = now
            _log.warning("%s; the bucket gets the run's files later", error)

    def _write(self, *, is_all: bool) -> None:
        with self._writing:
            self._refuse_lost_copy()
            # List these files before the others, since they mark the others as complete.
            last = [name for name in self._names() if _rank(name)]
            names = self._names()
            others = [name for name in names if not _rank(name)]
            absent = self._index.keys() - set(names)
            gone = [name for name in absent if not is_checkpoint(name)]
            if gone:
                self._lease.check()
                self._lease.confirm()  # deletions cannot be conditional
                # Delete ``result.json`` first, which marks the others as complete.
                for name in sorted(gone, key=_rank, reverse=True):
                    # Check each time: the folder may be deleted in between.
                    self._refuse_lost_copy()
                    self._bucket.delete(name)
                    del self._index[name]
                write_index(self._folder.path, self._index)
            # A file of ``last`` marks logs as complete, so no file may be postponed before it.
            is_all_due = is_all or any(self._new_state(name) for name in last)
            num_unrecorded = 0
            try:
                for name in (*others, *sorted(last, key=_rank)):
                    if is_all_due or time.monotonic() >= self._not_before.get(name, 0.0):
                        num_unrecorded += self._send(name)
                    if num_unrecorded == FILES_PER_INDEX:
                        num_unrecorded = 0
                        self._record_sent()
            finally:
                if num_unrecorded:
                    self._record_sent()
            self._send_shared(is_patient=is_all)

    def _refuse_lost_copy(self) -> None:
        """Raise if the spool was deleted, which must not delete the run's files in the bucket.

        Raises:
            StorageError: from then on, even if workers fill the folder again.
        """
        path = self._folder.path
        is_opened = self._folder.identity.name in self._index
        missing = [path / INDEX] if not (path / INDEX).exists() else []
        if is_opened and not self._folder.identity.exists():
            missing.append(self._folder.identity)
        self._is_lost = self._is_lost or bool(missing)
        if self._is_lost:
            raise StorageError(
                f"{path}: files of the driver's copy were deleted (such as {INDEX} or run.json) "
                "while it was in use; the bucket keeps its files. The same command resumes from it"
            )

    def _names(self) -> list[str]:
        return [path.relative_to(self._folder.path).as_posix() for path in files_of(self._folder)]

    def _record_sent(self) -> None:
        # The folder may have been deleted meanwhile; writing only the index would hide that.
        self._refuse_lost_copy()
        write_index(self._folder.path, self._index)

    def _new_state(self, name: str) -> list[int] | None:
        """Return the state of a file that the bucket lacks; None if it is mirrored or removed."""
        known = self._index.get(name)
        try:
            state = state_of(self._folder.path / name)
        except FileNotFoundError:
            return None
        return state if known is None or known[:3] != state else None

    def _send(self, name: str) -> bool:
        """Send a file if it has changed, and return whether it did."""
        path = self._folder.path / name
        state = self._new_state(name)
        if state is None:
            return False
        try:
            self._lease.check()
            began = time.monotonic()
            version = self._put(path, name, self._index.get(name))
        except FileNotFoundError:
            return False  # replaced or removed meanwhile
        if path.suffix == ".jsonl":
            now = time.monotonic()
            self._not_before[name] = now + QUIET_FACTOR * (now - began)
        self._index[name] = [*state, *version]
        return True

    def _put(self, path: Path, name: str, known: list[Any] | None) -> ObjectVersion:
        """Write a file if the bucket has its known version, and return the new version.

        If this process was suspended, another driver may have taken over since the lease was
        checked. That driver's version is then kept.

        Raises:
            LostLeaseError: if another driver has taken over.
            StorageError: if the bucket refuses.
        """
        if path.stat().st_size > PART_BYTES:
            # Multipart uploads, used for models and logs, cannot be conditional.
            self._lease.confirm()
            return _upload(self._bucket, path, name)
        # Read it at once: a file that grows while it is sent would be inconsistent.
        content = path.read_bytes()
        version = None if known is None else ObjectVersion(*known[3:])
        for _ in range(NUM_TRIES):
            written = (
                self._bucket.create(name, content)
                if version is None
                else self._bucket.replace(name, content, version)
            )
            if written is not None:
                return written
            self._lease.confirm()
            # The other version is a write of this driver whose response was lost, or a late write
            # of the previous driver.
            info = self._bucket.info(name)
            version = None if info is None else info.version
        raise StorageError(
            f"{self._bucket.path / name}: another process writes it, although this driver holds "
            "the run. End that process"
        )

    def _send_shared(self, *, is_patient: bool) -> None:
        """Send new files of shared scores; a file that is in the bucket never changes there."""
        shared = self._folder.path.parent / SHARED_SCORES
        paths = [path for path in sorted(shared.glob("*.json")) if path.name not in self._shared]
        if not paths:
            return
        bucket = BucketFolder(self._bucket.path.parent / SHARED_SCORES, is_patient=is_patient)
        self._shared.update(info.name for info in bucket.list())
        for path in paths:
            if path.name not in self._shared:
                bucket.upload(path, path.name)
                self._shared.add(path.name)


def _upload(bucket: BucketFolder, path: Path, name: str) -> ObjectVersion:
    """Upload a large file, and return the version of the object."""
    snapshot = path.with_name(f".{path.name}.sent")
    # A killed process may have left a snapshot.
    snapshot.unlink(missing_ok=True)
    try:
        # Copy files that grow; others are replaced as a whole, so a link is enough.
        if path.suffix == ".jsonl":
            shutil.copyfile(path, snapshot)
        else:
            os.link(path, snapshot)
        bucket.upload(snapshot, name)
    finally:
        snapshot.unlink(missing_ok=True)
    info = bucket.info(name)
    return ObjectVersion(None, None) if info is None else info.version


def _rank(name: str) -> int:
    """Return the rank of a file in the order of writes: 0, or more for ``WRITTEN_LAST``."""
    file = name.rpartition("/")[2]
    return WRITTEN_LAST.index(file) + 1 if file in WRITTEN_LAST else 0


def is_mirrored(folder: Path, below: str) -> bool:
    """Return whether the bucket has the current files below a path of a spool.

    Args:
        folder: the mirrored folder of the run or of its sweep.
        below: path of a folder in it.

    Raises:
        StorageError: if files are missing, and the bucket has refused the mirror for
            ``REFUSED_SECONDS``.
    """
    refusal = ""
    with contextlib.suppress(FileNotFoundError):
        refusal = (folder / REFUSAL).read_text(encoding="utf-8")
    index = read_index(folder)
    paths = [path for path in (folder / below).rglob("*") if path.is_file()]
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            known = index.get(path.relative_to(folder).as_posix())
            if known is None or known[:3] != state_of(path):
                if refusal:
                    raise StorageError(refusal)
                return False
    return True
