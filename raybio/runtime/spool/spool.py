"""The driver's copy of a run in a bucket: made from the bucket, and mirrored to it."""

import contextlib
import fnmatch
import hashlib
import logging
import os
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raybio.core.cache import cache_folder
from raybio.core.errors import (
    ClusterError,
    HeldError,
    RaybioError,
    RecordFormatError,
    StorageError,
    named_by,
)
from raybio.core.files import replace_text
from raybio.core.location import BucketPath
from raybio.core.records import read_recomputable, write_record
from raybio.runtime.run.folder import SHARED_SCORES, WRITTEN_LAST, RunFolder
from raybio.runtime.run.spec import LeaseKey
from raybio.runtime.spool import lease as leases
from raybio.runtime.spool.lease import LEASE, Lease
from raybio.store.bucket import PART_BYTES, BucketFolder, ObjectInfo, ObjectVersion
from raybio.store.object_download import download_object
from raybio.training.checkpoint_files import MANIFEST

MIRROR_SECONDS = 2.0
"""Between two looks for files that have changed."""

QUIET_FACTOR = 20.0
"""Minimum wait before a report file is sent again, as a multiple of its last upload time."""

WARN_SECONDS = 60.0

REFUSED_SECONDS = 300.0
"""A bucket that has refused the mirror for so long is not waited for by those who need a file."""

FILES_PER_INDEX = 20
"""Files that are sent before the index is written: it names all files."""

LOCK_SECONDS = 5.0
"""Wait for another process of this machine that reads or writes the spool."""

NUM_TRIES = 5
"""Tries to write a file that is not as this driver wrote it, although it holds the lease."""

_INDEX = ".mirror.json"
_REFUSAL = ".mirror-refusal"
_CHECKPOINTS = "checkpoints"

_log = logging.getLogger(__name__)


def spool_of(bucket: BucketPath) -> Path:
    """Return the local folder of runs that stands for a bucket's folder of runs."""
    digest = hashlib.sha256(str(bucket).encode()).hexdigest()[:16]
    return cache_folder() / "runs" / digest / "runs"


def announce_copy(kind: str, folder: Path, bucket: BucketPath | None) -> None:
    """Print where the driver's copy of a bucket's runs or sweeps is; nothing without a bucket."""
    if bucket is not None:
        print(f"{kind}: {bucket}; the driver's copy is {folder}", flush=True)


def check(runs: BucketPath, option: str = "--runs") -> None:
    """Refuse a bucket in which runs cannot be written, before anything is created.

    Raises:
        StorageError: naming the option.
    """
    BucketFolder(runs, is_patient=False).check_conditional_writes(option)


@dataclass(frozen=True)
class HeldSpool:
    """A run or a sweep in a bucket that this driver holds.

    Attributes:
        bucket: its folder in the bucket.
        lease: its lease.
        mirror: writes files of the spool to the bucket.
    """

    bucket: BucketPath
    lease: Lease
    mirror: "Mirror"

    @property
    def key(self) -> LeaseKey:
        """The lease as workers know it."""
        return self.lease.key


@contextlib.contextmanager
def held(folder: RunFolder, runs: BucketPath) -> Iterator[HeldSpool]:
    """Hold a run in a bucket: take its lease, make the spool equal to it, then mirror the spool.

    At the end all of the spool is in the bucket. Of a run that was refused before it began, nothing
    stays.

    Args:
        folder: the spool.
        runs: all runs in the bucket.

    Raises:
        ClusterError: if another driver holds the run, with its name and for how long; at the end,
            if another one has taken it over.
        StorageError: if the bucket cannot be read or written.
    """
    bucket = runs / folder.name
    folder.make()
    with _alone(folder, bucket) as lease:
        mirror = None
        try:
            restore(folder, runs)
            mirror = _mirror(folder, bucket, lease)
            yield HeldSpool(bucket, lease, mirror)
        except BaseException:
            # The error that comes out is the run's own.
            with contextlib.suppress(RaybioError, OSError):
                if mirror is not None:
                    mirror.close()
                if not (_read_index(folder) or files_of(folder)):
                    lease.delete()
                    shutil.rmtree(folder.path, ignore_errors=True)
            raise
        mirror.close()


@contextlib.contextmanager
def _alone(folder: RunFolder, bucket: BucketPath) -> Iterator[Lease]:
    """Hold the spool and the lease of a run; as ``held``."""
    objects = BucketFolder(bucket, is_patient=False)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(folder.lock("driver", timeout_seconds=LOCK_SECONDS))
        except ClusterError:
            # The lease says more of the other process.
            with contextlib.suppress(StorageError):
                leases.refuse_if_held(objects)
            raise
        yield stack.enter_context(leases.held(objects))


def _mirror(folder: RunFolder, bucket: BucketPath, lease: Lease) -> "Mirror":
    # A request that is repeated for minutes could arrive when another driver has the run.
    return Mirror(folder, BucketFolder(bucket, is_patient=False), lease)


def publish(folder: RunFolder, runs: BucketPath) -> None:
    """Write to the bucket what was added to the spool of an ended run, such as its table.

    Raises:
        ClusterError: if another driver holds the run.
        StorageError: if the bucket cannot be written.
    """
    bucket = runs / folder.name
    with _alone(folder, bucket) as lease:
        _mirror(folder, bucket, lease).close()


def refresh(folder: RunFolder, runs: BucketPath) -> None:
    """Make a spool equal to the bucket, unless a driver of this machine holds it.

    Raises:
        StorageError: if the bucket cannot be read.
    """
    bucket = BucketFolder(runs / folder.name, is_patient=False)
    if not folder.path.is_dir() and not any(bucket.children()):
        return  # nothing is created for a run that does not exist
    folder.make()
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(folder.lock("driver", timeout_seconds=0))
        except HeldError:
            return
        restore(folder, runs)


def refresh_matching(runs: Path, bucket: BucketPath, patterns: Sequence[str]) -> None:
    """Make the spools of the runs that are named equal to the bucket; as ``refresh``.

    Args:
        runs: the spools.
        bucket: the runs.
        patterns: names of runs or sweeps, or shell patterns of them; of ``mine/trials/*``, the
            first part counts.

    Raises:
        StorageError: if the bucket is missing or refuses, naming ``--runs``.
    """
    with named_by("--runs"):
        _, names = BucketFolder(bucket, is_patient=False).children()
    first_parts = [pattern.split("/")[0] for pattern in patterns]
    for name in sorted(names):
        if name.startswith("."):
            continue  # no run, such as shared scores
        if any(fnmatch.fnmatchcase(name, part) for part in first_parts):
            refresh(RunFolder(runs, name), bucket)


def restore(folder: RunFolder, runs: BucketPath) -> None:
    """Make a spool equal to the bucket; the caller holds the folder's lock.

    Of checkpoints, the spool gets the manifests. Files of shared scores are added.

    Raises:
        StorageError: if the bucket cannot be read.
    """
    bucket = BucketFolder(runs / folder.name, is_patient=False)
    (folder.path / _REFUSAL).unlink(missing_ok=True)  # of an earlier driver
    index = _read_index(folder)
    wanted: dict[str, ObjectInfo] = {}
    for info in bucket.list():
        in_checkpoints = _is_checkpoint(info.name)
        is_hidden = any(part.startswith(".") for part in info.name.split("/"))
        if info.name == LEASE or is_hidden:
            continue
        if not in_checkpoints or info.name.endswith(f"/{MANIFEST}"):
            wanted[info.name] = info
    for path in [*files_of(folder), *folder.path.glob(f"**/{_CHECKPOINTS}/*/*")]:
        if path.relative_to(folder.path).as_posix() not in wanted:
            path.unlink()
    for path in folder.path.glob(f"**/{_CHECKPOINTS}/step-*"):
        if not any(path.iterdir()):
            path.rmdir()
    for name, info in wanted.items():
        path = folder.path / name
        known = index.get(name)
        if not path.exists() or known is None or known[:4] != [*_state(path), info.version.etag]:
            _fetch(bucket, info, path)
            known = [*_state(path), *info.version]
        index[name] = known
    _write_index(folder, {name: index[name] for name in wanted})
    _restore_shared(folder, runs)


def _restore_shared(folder: RunFolder, runs: BucketPath) -> None:
    shared = folder.path.parent / SHARED_SCORES
    bucket = BucketFolder(runs / SHARED_SCORES, is_patient=False)
    for info in bucket.list():
        if not (shared / info.name).exists():
            _fetch(bucket, info, shared / info.name)


class Mirror:
    """Writes the files of a spool to the bucket whenever they change, in a thread."""

    def __init__(self, folder: RunFolder, bucket: BucketFolder, lease: Lease) -> None:
        """Begin to mirror.

        Args:
            folder: the spool.
            bucket: the run's folder in the bucket.
            lease: without it nothing is written.
        """
        self._folder = folder
        self._bucket = bucket
        self._lease = lease
        self._index = _read_index(folder)
        self._not_before: dict[str, float] = {}
        self._writing = threading.Lock()
        self._ended = threading.Event()
        self._warned = -WARN_SECONDS
        self._is_lost = False
        self._refused_since: float | None = None
        self._thread = threading.Thread(target=self._follow, name="mirror", daemon=True)
        self._thread.start()

    def write_all(self) -> None:
        """Make the bucket equal to the spool now.

        Raises:
            ClusterError: if another driver has taken over the run.
            StorageError: if the bucket cannot be written.
        """
        self._write(is_all=True)

    def close(self) -> None:
        """End the thread and make the bucket equal to the spool; as ``write_all``."""
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
                # A full disk keeps nobody from trying again.
                with contextlib.suppress(RaybioError, OSError):
                    self._record_refusal(error)

    def _record_refusal(self, error: Exception | None) -> None:
        """Write for other processes why the bucket has no files for ``REFUSED_SECONDS``."""
        path = self._folder.path / _REFUSAL
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
            # Listed before the other files: these files state that the others are complete.
            last = [name for name in self._names() if _rank(name)]
            names = self._names()
            others = [name for name in names if not _rank(name)]
            absent = self._index.keys() - set(names)
            gone = [name for name in absent if not _is_checkpoint(name)]
            if gone:
                self._lease.check()
                self._lease.confirm()  # deletions know no condition
                # ``result.json`` first: it states that the others are complete.
                for name in sorted(gone, key=_rank, reverse=True):
                    # Each time: the folder may be deleted while files are looked at.
                    self._refuse_lost_copy()
                    self._bucket.delete(name)
                    del self._index[name]
                _write_index(self._folder, self._index)
            num_unrecorded = 0
            try:
                for name in (*others, *sorted(last, key=_rank)):
                    if is_all or time.monotonic() >= self._not_before.get(name, 0.0):
                        num_unrecorded += self._send(name)
                    if num_unrecorded == FILES_PER_INDEX:
                        num_unrecorded = 0
                        self._record_sent()
            finally:
                if num_unrecorded:
                    self._record_sent()
            if is_all:
                self._send_shared()

    def _refuse_lost_copy(self) -> None:
        """Refuse to go on with a spool that was deleted: its files are not gone from the run.

        Raises:
            StorageError: from then on, also if workers fill the folder again.
        """
        path = self._folder.path
        is_opened = self._folder.identity.name in self._index
        missing = [path / _INDEX] if not (path / _INDEX).exists() else []
        if is_opened and not self._folder.identity.exists():
            missing.append(self._folder.identity)
        self._is_lost = self._is_lost or bool(missing)
        if self._is_lost:
            raise StorageError(
                f"{path}: files of the driver's copy were deleted (such as {_INDEX} or run.json) "
                "while it was in use; the bucket keeps its files. The same command resumes from it"
            )

    def _names(self) -> list[str]:
        return [path.relative_to(self._folder.path).as_posix() for path in files_of(self._folder)]

    def _record_sent(self) -> None:
        # The folder may have been deleted meanwhile: an index alone would hide it.
        self._refuse_lost_copy()
        _write_index(self._folder, self._index)

    def _send(self, name: str) -> bool:
        """Send a file if it has changed, and return whether it did."""
        path = self._folder.path / name
        known = self._index.get(name)
        try:
            state = _state(path)
            if known is not None and known[:3] == state:
                return False
            self._lease.check()
            began = time.monotonic()
            version = self._put(path, name, known)
        except FileNotFoundError:
            return False  # replaced or removed meanwhile
        if path.suffix == ".jsonl":
            now = time.monotonic()
            self._not_before[name] = now + QUIET_FACTOR * (now - began)
        self._index[name] = [*state, *version]
        return True

    def _put(self, path: Path, name: str, known: list[Any] | None) -> ObjectVersion:
        """Write a file in place of the version that is known, and return the new version.

        Another driver may have taken over since the lease was looked at, if this process stood
        still: then its version is there, and stays.

        Raises:
            LostLeaseError: if another driver has taken over.
            StorageError: if the bucket refuses.
        """
        if path.stat().st_size > PART_BYTES:
            # Uploads in parts know no condition. Large files are models and logs.
            self._lease.confirm()
            return _upload(self._bucket, path, name)
        # Read at once: a file that grows while it is sent would be torn.
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
            # A write of this driver whose answer was lost, or a late one of the driver before.
            info = self._bucket.info(name)
            version = None if info is None else info.version
        raise StorageError(
            f"{self._bucket.path / name}: another process writes it, although this driver holds "
            "the run. End that process"
        )

    def _send_shared(self) -> None:
        shared = self._folder.path.parent / SHARED_SCORES
        paths = sorted(shared.glob("*.json"))
        if not paths:
            return
        bucket = BucketFolder(self._bucket.path.parent / SHARED_SCORES)
        present = {info.name for info in bucket.list()}
        for path in paths:
            if path.name not in present:
                bucket.upload(path, path.name)


def _upload(bucket: BucketFolder, path: Path, name: str) -> ObjectVersion:
    """Upload a large file, and return the version of the object."""
    snapshot = path.with_name(f".{path.name}.sent")
    # A killed process may have left one.
    snapshot.unlink(missing_ok=True)
    try:
        # Files that grow are copied; others are replaced as a whole, so that a link is enough.
        if path.suffix == ".jsonl":
            shutil.copyfile(path, snapshot)
        else:
            os.link(path, snapshot)
        bucket.upload(snapshot, name)
    finally:
        snapshot.unlink(missing_ok=True)
    info = bucket.info(name)
    return ObjectVersion(None, None) if info is None else info.version


def _fetch(bucket: BucketFolder, info: ObjectInfo, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    arriving = path.with_name(f".{path.name}.fetched")
    if info.num_bytes <= PART_BYTES:
        arriving.write_bytes(bucket.read(info.name))
    else:
        download_object(bucket, info.name, arriving)
    arriving.replace(path)


def files_of(folder: RunFolder) -> list[Path]:
    """Return the files of a run except hidden ones and checkpoints.

    Raises:
        OSError: if a folder cannot be read. That its files are missing would not follow.
    """
    paths = []
    for root, folders, names in os.walk(folder.path, onerror=_raise_unless_gone):
        top = Path(root)
        folders[:] = sorted(
            name for name in folders if not name.startswith(".") and name != _CHECKPOINTS
        )
        paths += [top / name for name in sorted(names) if not name.startswith(".")]
    return paths


def _raise_unless_gone(error: OSError) -> None:
    # A folder may be removed between its listing and that of its files.
    if not isinstance(error, FileNotFoundError):
        raise error


def _is_checkpoint(name: str) -> bool:
    return _CHECKPOINTS in name.split("/")[:-1]


def _rank(name: str) -> int:
    """Return in what order a file is written: 0 for most, more for those of ``WRITTEN_LAST``."""
    file = name.rpartition("/")[2]
    return WRITTEN_LAST.index(file) + 1 if file in WRITTEN_LAST else 0


def is_mirrored(folder: Path, below: str) -> bool:
    """Return whether the bucket has the present files below a path of a spool.

    Args:
        folder: what is mirrored: the run, or its sweep.
        below: path of a folder in it.

    Raises:
        StorageError: if it has not, and has refused the mirror for ``REFUSED_SECONDS``.
    """
    refusal = ""
    with contextlib.suppress(FileNotFoundError):
        refusal = (folder / _REFUSAL).read_text(encoding="utf-8")
    index = _read_index_of(folder)
    paths = [path for path in (folder / below).rglob("*") if path.is_file()]
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            known = index.get(path.relative_to(folder).as_posix())
            if known is None or known[:3] != _state(path):
                if refusal:
                    raise StorageError(refusal)
                return False
    return True


def _state(path: Path) -> list[int]:
    """Return what changes when a file is written: size, time, and inode."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ino]


def _read_index(folder: RunFolder) -> dict[str, list[Any]]:
    return _read_index_of(folder.path)


def _read_index_of(folder: Path) -> dict[str, list[Any]]:
    try:
        content = read_recomputable(folder / _INDEX, "mirror") or {}
    except RecordFormatError:
        content = {}  # of another version of raybio: everything is fetched again
    return dict(content.get("files", {}))


def _write_index(folder: RunFolder, index: dict[str, list[Any]]) -> None:
    write_record(folder.path / _INDEX, "mirror", {"files": index})
