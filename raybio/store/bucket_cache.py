"""Copies of bucket contents in the cache of this machine (``RAYBIO_CACHE``).

A copy appears whole, made by one process while the others wait. Each process that uses a copy holds
a shared lock on it until the process ends. Copies that nobody uses are removed, the least recently
used first, when the disk has no room for another one or ``RAYBIO_CACHE_SIZE`` is exceeded.

A copy has two locks, so that a removed copy can be made again while processes still use it. The
process that makes it holds ``.NAME.making``; its users share ``.NAME.lock``. A process that makes
room for another copy holds both; one that has found the copy damaged holds the first.
"""

import contextlib
import fcntl
import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from raybio.core.cache import VARIABLE, cache_folder
from raybio.core.errors import ConfigError, StorageError
from raybio.core.files import flock, nearest_existing
from raybio.core.text import size_text

_log = logging.getLogger(__name__)

SIZE_VARIABLE = "RAYBIO_CACHE_SIZE"

SPARE_BYTES = 256 << 20
"""Bytes of disk that stay free after a new copy."""

SILENT_SECONDS = 10.0
"""Seconds of waiting for the maker of a copy before a warning."""

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kMGT]?)(i?)B?", re.IGNORECASE)


class _Held(NamedTuple):
    """Descriptors of a copy that this process uses; the system closes them when it ends.

    Attributes:
        lock: descriptor of its lock.
        folder: descriptor of its folder, to tell it from a later copy of the same name.
    """

    lock: int
    folder: int


_HELD: dict[Path, _Held] = {}


def copies_folder() -> Path:
    """Return the folder of all copies, which may not exist yet."""
    return cache_folder() / "buckets"


def cached_copy(name: str, num_bytes: int, fetch: Callable[[Path], None]) -> Path:
    """Return the folder of a copy, fetched if there is none; nobody removes it while this runs.

    Args:
        name: name of the copy, which identifies everything that its content depends on.
        num_bytes: its size.
        fetch: writes the files into a folder. What an interrupted call left there is in it.

    Raises:
        StorageError: if the cache cannot be written or has no room, and as ``fetch``.
    """
    folder = copies_folder() / name
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        # Twice if another process removes the copy before this one holds it.
        while (held := held_copy(name)) is None:
            with _making(folder):
                if not folder.is_dir():
                    _fetch(folder, num_bytes, fetch)
    except OSError as error:
        raise StorageError(
            f"{folder}: cannot be written ({error}). Free some space, or set {VARIABLE} to a "
            "folder on a local disk; what has arrived is kept"
        ) from None
    return held


def held_copy(name: str) -> Path | None:
    """Return the folder of a copy and keep it until this process ends; None if there is no copy."""
    folder = copies_folder() / name
    if _holds(folder):
        return folder
    # The copy that this process held was removed, and perhaps made again by another process.
    _release(folder)
    if not folder.is_dir():
        return None
    try:
        lock = _shared_lock(folder)
    except OSError:
        # The cache is read-only, as in a container image, so nobody removes the copy.
        return folder
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        os.close(lock)
        return None
    # Record the time of its last use, which only the owner of the file can set.
    with contextlib.suppress(PermissionError):
        os.utime(lock)
    _HELD[folder] = _Held(lock, descriptor)
    return folder


def check_room(num_bytes: int) -> None:
    """Refuse a copy that would not fit even if all others were removed; change nothing.

    Raises:
        ConfigError: if ``RAYBIO_CACHE_SIZE`` is no size.
        StorageError: if it does not fit.
    """
    folder = copies_folder()
    limit = _limit()
    if limit is not None and num_bytes > limit:
        raise StorageError(
            f"{folder}: {size_text(num_bytes)} exceed {SIZE_VARIABLE}="
            f"{os.environ[SIZE_VARIABLE]}. Raise it"
        )
    num_free = shutil.disk_usage(nearest_existing(folder)).free
    num_usable = num_free + _num_bytes(folder) - SPARE_BYTES
    if num_bytes > num_usable:
        raise StorageError(
            f"{folder}: needs {size_text(num_bytes)}, and {size_text(max(num_usable, 0))} can be "
            f"used. Free some space, or set {VARIABLE} to a folder on a larger disk"
        )


def remove_copy(folder: Path) -> None:
    """Remove a damaged copy that this process uses. Others that have mapped its files keep them.

    A copy that another process has made in its place stays.
    """
    aside = folder.with_name(f".{folder.name}.damaged-{os.getpid()}")
    with _making(folder), contextlib.suppress(FileNotFoundError):
        if folder not in _HELD or _holds(folder):
            folder.rename(aside)
    _release(folder)
    shutil.rmtree(aside, ignore_errors=True)


def _holds(folder: Path) -> bool:
    """Return whether this process uses the copy that is there now, not a former one."""
    held = _HELD.get(folder)
    if held is None:
        return False
    try:
        return os.path.samestat(os.fstat(held.folder), folder.stat())
    except FileNotFoundError:
        return False


def _release(folder: Path) -> None:
    """Release this process's lock of a copy, if it has one."""
    held = _HELD.pop(folder, None)
    if held is not None:
        os.close(held.lock)
        os.close(held.folder)


def _fetch(folder: Path, num_bytes: int, fetch: Callable[[Path], None]) -> None:
    partial = _partial(folder)
    partial.mkdir(exist_ok=True)
    # ``_remove_oldest`` finds the leftovers of an interrupted call by these locks.
    os.close(_open_lock(_lock_path(folder)))
    _make_room(num_bytes - _num_bytes(partial), folder)
    fetch(partial)
    partial.rename(folder)


def _make_room(num_bytes: int, folder: Path) -> None:
    """Remove copies that nobody uses until ``num_bytes`` fit.

    Raises:
        ConfigError: if ``RAYBIO_CACHE_SIZE`` is no size.
        StorageError: if they do not fit.
    """
    if num_bytes <= 0:
        return
    limit = _limit()
    while True:
        num_missing = num_bytes + SPARE_BYTES - shutil.disk_usage(folder.parent).free
        total = _num_bytes(folder.parent)
        num_over = total + num_bytes - limit if limit is not None else 0
        if num_missing <= 0 and num_over <= 0:
            return
        if not _remove_oldest(folder):
            break
    if num_missing > 0:
        raise StorageError(
            f"{folder.parent}: needs {size_text(num_bytes)} more, and "
            f"{size_text(max(num_bytes - num_missing, 0))} can be used. Free some space, or set "
            f"{VARIABLE} to a folder on a larger disk"
        )
    raise StorageError(
        f"{folder.parent}: {size_text(num_bytes)} more exceed {SIZE_VARIABLE}="
        f"{os.environ[SIZE_VARIABLE]} by {size_text(num_over)}, and all other copies are in use. "
        "Raise it"
    )


def check_size_limit() -> None:
    """Refuse a ``RAYBIO_CACHE_SIZE`` that is not a size.

    Raises:
        ConfigError: if it is not a size.
    """
    _limit()


def _limit() -> int | None:
    """Return the limit of all copies in bytes, None for none."""
    text = os.environ.get(SIZE_VARIABLE, "")
    if not text:
        return None
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ConfigError(f"{SIZE_VARIABLE}: got {text!r}, want a size such as 200GB")
    factor = (1024 if match[3] else 1000) ** ["", "k", "m", "g", "t"].index(match[2].lower())
    return int(float(match[1]) * factor)


def _remove_oldest(new: Path) -> bool:
    """Remove the least recently used copy that nobody uses, and return whether there was one."""
    locks = sorted(new.parent.glob(".*.lock"), key=lambda path: path.stat().st_mtime_ns)
    for path in locks:
        folder = path.with_name(path.name.removeprefix(".").removesuffix(".lock"))
        if folder == new or not (folder.is_dir() or _partial(folder).is_dir()):
            continue
        with (
            # It is in use, or its locks are of another user, whose files cannot be removed.
            contextlib.suppress(BlockingIOError, PermissionError),
            _lock(_making_path(folder), fcntl.LOCK_EX | fcntl.LOCK_NB),
            _lock(path, fcntl.LOCK_EX | fcntl.LOCK_NB),
        ):
            shutil.rmtree(folder, ignore_errors=True)
            shutil.rmtree(_partial(folder), ignore_errors=True)
            if not (folder.exists() or _partial(folder).exists()):
                return True
    return False


def _lock_path(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.lock")


def _making_path(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.making")


def _open_lock(path: Path) -> int:
    return os.open(path, os.O_CREAT | os.O_RDWR, 0o666)


def _shared_lock(folder: Path) -> int:
    """Return the descriptor of a copy's lock, which this process shares from now on."""
    try:
        descriptor = _open_lock(_lock_path(folder))
    except PermissionError:
        # Another user of this machine made it. A shared lock does not require write access.
        descriptor = os.open(_lock_path(folder), os.O_RDONLY)
    try:
        flock(descriptor, fcntl.LOCK_SH, _lock_path(folder))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


@contextlib.contextmanager
def _lock(path: Path, operation: int) -> Iterator[None]:
    """Hold a lock for a ``with`` block; ``BlockingIOError`` if another process has it."""
    descriptor = _open_lock(path)
    try:
        flock(descriptor, operation, path)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _making(folder: Path) -> Iterator[None]:
    """Hold the lock of a copy's maker for a ``with`` block; a long wait for it is logged."""
    descriptor = _open_lock(_making_path(folder))
    try:
        start = time.monotonic()
        while True:
            try:
                flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, _making_path(folder))
                break
            except BlockingIOError:
                if time.monotonic() - start > SILENT_SECONDS:
                    _log.warning("%s: another process makes this copy; waiting for it", folder)
                    flock(descriptor, fcntl.LOCK_EX, _making_path(folder))
                    break
                time.sleep(0.05)
        yield
    finally:
        os.close(descriptor)


def _partial(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.partial")


def _num_bytes(folder: Path) -> int:
    """Return the disk that the files below a folder take; other processes may remove some."""
    total = 0
    for path in _walk(folder):
        with contextlib.suppress(OSError):
            # Count blocks, since files of running downloads are sparse.
            total += path.stat().st_blocks * 512
    return total


def _walk(folder: Path) -> Iterator[Path]:
    for parent, _, names in os.walk(folder):
        for name in names:
            yield Path(parent) / name


@contextlib.contextmanager
def working_folder(name: str, busy: str) -> Iterator[Path]:
    """Yield a folder of the cache for one process at a time, removed at the end of a success.

    After a failure or a kill it stays, for the next call.

    Args:
        name: its name.
        busy: the error if another process has it.

    Raises:
        StorageError: with ``busy``, or if it cannot be made.
    """
    folder = cache_folder() / "work" / name
    with contextlib.ExitStack() as held:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            held.enter_context(_lock(_lock_path(folder), fcntl.LOCK_EX | fcntl.LOCK_NB))
        except BlockingIOError:
            raise StorageError(busy) from None
        except OSError as error:
            raise StorageError(
                f"{folder}: cannot be made ({error.strerror}). Set {VARIABLE} to a folder that can "
                "be written"
            ) from None
        yield folder
        shutil.rmtree(folder, ignore_errors=True)
