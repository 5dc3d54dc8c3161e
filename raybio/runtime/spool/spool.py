"""The driver's copy of a run in a bucket: made from the bucket, and mirrored (``mirror.py``)."""

import contextlib
import fnmatch
import hashlib
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from raybio.core.cache import cache_folder
from raybio.core.errors import (
    ClusterError,
    HeldError,
    RaybioError,
    StorageError,
    named_by,
)
from raybio.core.files import put_in_place
from raybio.core.location import BucketPath
from raybio.runtime.run.folder import SHARED_SCORES, RunFolder
from raybio.runtime.run.spec import LeaseKey
from raybio.runtime.spool import lease as leases
from raybio.runtime.spool.index import (
    CHECKPOINTS,
    files_of,
    is_checkpoint,
    read_index,
    state_of,
    write_index,
)
from raybio.runtime.spool.lease import LEASE, Lease
from raybio.runtime.spool.mirror import REFUSAL, Mirror
from raybio.store.bucket import PART_BYTES, BucketFolder, ObjectInfo
from raybio.store.object_download import download_object
from raybio.training.checkpoint_files import MANIFEST

LOCK_SECONDS = 5.0
"""Maximum wait for another process of this machine that reads or writes the spool."""


def spool_of(bucket: BucketPath) -> Path:
    """Return the local folder of runs that mirrors a bucket's folder of runs."""
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
    mirror: Mirror

    @property
    def key(self) -> LeaseKey:
        """The lease as workers know it."""
        return self.lease.key


@contextlib.contextmanager
def held(folder: RunFolder, runs: BucketPath) -> Iterator[HeldSpool]:
    """Hold a run in a bucket: take its lease, make the spool equal to it, then mirror the spool.

    At the end, the whole spool is in the bucket. A run that was refused before it began leaves
    nothing.

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
            # Raise only the run's own error.
            with contextlib.suppress(RaybioError, OSError):
                if mirror is not None:
                    mirror.close()
                if not (read_index(folder.path) or files_of(folder)):
                    lease.delete()
                    shutil.rmtree(folder.path, ignore_errors=True)
            raise
        mirror.close()


@contextlib.contextmanager
def _alone(folder: RunFolder, bucket: BucketPath) -> Iterator[Lease]:
    """Hold the spool and the lease of a run, like ``held``."""
    objects = BucketFolder(bucket, is_patient=False)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(folder.lock("driver", timeout_seconds=LOCK_SECONDS))
        except ClusterError:
            # The error about the lease says more about the other process.
            with contextlib.suppress(StorageError):
                leases.refuse_if_held(objects)
            raise
        yield stack.enter_context(leases.held(objects))


def _mirror(folder: RunFolder, bucket: BucketPath, lease: Lease) -> Mirror:
    # Use an impatient client: a request that is retried for minutes could arrive when another
    # driver holds the run.
    return Mirror(folder, BucketFolder(bucket, is_patient=False), lease)


def publish(folder: RunFolder, runs: BucketPath) -> None:
    """Write additions to the spool of an ended run, such as its table, to the bucket.

    Raises:
        ClusterError: if another driver holds the run.
        StorageError: if the bucket cannot be written.
    """
    bucket = runs / folder.name
    with _alone(folder, bucket) as lease:
        _mirror(folder, bucket, lease).close()


def refresh(folder: RunFolder, runs: BucketPath) -> None:
    """Update a spool from the bucket, unless a driver of this machine holds it.

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


def refresh_matching(runs: Path, bucket: BucketPath, patterns: Sequence[str]) -> set[str]:
    """Update the spools of the named runs from the bucket, like ``refresh``.

    Args:
        runs: the spools.
        bucket: the runs.
        patterns: names of runs or sweeps, or shell patterns of them; only the first part of
            ``mine/trials/*`` is used.

    Returns:
        The names of all runs and sweeps in the bucket. A spool with another name is the copy of a
        deleted one.

    Raises:
        StorageError: if the bucket is missing or refuses, naming ``--runs``.
    """
    with named_by("--runs"):
        _, folders = BucketFolder(bucket, is_patient=False).children()
    names = {name for name in folders if not name.startswith(".")}  # others are shared scores
    first_parts = [pattern.split("/")[0] for pattern in patterns]
    for name in sorted(names):
        if any(fnmatch.fnmatchcase(name, part) for part in first_parts):
            refresh(RunFolder(runs, name), bucket)
    return names


def restore(folder: RunFolder, runs: BucketPath) -> None:
    """Update a spool from the bucket; the caller holds the folder's lock.

    For checkpoints, the spool gets only the manifests. Files of shared scores are added.

    Raises:
        StorageError: if the bucket cannot be read.
    """
    bucket = BucketFolder(runs / folder.name, is_patient=False)
    (folder.path / REFUSAL).unlink(missing_ok=True)  # of an earlier driver
    index = read_index(folder.path)
    wanted: dict[str, ObjectInfo] = {}
    for info in bucket.list():
        in_checkpoints = is_checkpoint(info.name)
        is_hidden = any(part.startswith(".") for part in info.name.split("/"))
        if info.name == LEASE or is_hidden:
            continue
        if not in_checkpoints or info.name.endswith(f"/{MANIFEST}"):
            wanted[info.name] = info
    for path in [*files_of(folder), *folder.path.glob(f"**/{CHECKPOINTS}/*/*")]:
        if path.relative_to(folder.path).as_posix() not in wanted:
            path.unlink()
    for path in folder.path.glob(f"**/{CHECKPOINTS}/step-*"):
        if not any(path.iterdir()):
            path.rmdir()
    for name, info in wanted.items():
        path = folder.path / name
        known = index.get(name)
        if not path.exists() or known is None or known[:4] != [*state_of(path), info.version.etag]:
            _fetch(bucket, info, path)
            known = [*state_of(path), *info.version]
        index[name] = known
    write_index(folder.path, {name: index[name] for name in wanted})
    _restore_shared(folder, runs)


def _restore_shared(folder: RunFolder, runs: BucketPath) -> None:
    shared = folder.path.parent / SHARED_SCORES
    bucket = BucketFolder(runs / SHARED_SCORES, is_patient=False)
    for info in bucket.list():
        if not (shared / info.name).exists():
            _fetch(bucket, info, shared / info.name)


def _fetch(bucket: BucketFolder, info: ObjectInfo, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    arriving = path.with_name(f".{path.name}.fetched")
    if info.num_bytes <= PART_BYTES:
        arriving.write_bytes(bucket.read(info.name))
    else:
        download_object(bucket, info.name, arriving)
    put_in_place(arriving, path)
