"""The cache of files that can be recomputed: ``RAYBIO_CACHE``, or ``~/.cache/raybio``.

Each machine has its own cache. Folders and files appear atomically: one process makes them while
the others wait.
"""

import contextlib
import functools
import hashlib
import io
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np

from raybio.core.errors import ConfigError
from raybio.core.files import check_local, locked, replacing

_log = logging.getLogger(__name__)

VARIABLE = "RAYBIO_CACHE"

KEPT_ARRAYS = 4
"""Number of arrays that are kept per series, the newest ones; see ``shared_array``."""

KEPT_SERIES = 32
"""Number of series that are kept, the most recently used ones."""


def cache_folder() -> Path:
    """Return the folder of the cache, which may not exist yet.

    Raises:
        ConfigError: if ``RAYBIO_CACHE`` is a URI.
    """
    given = os.environ.get(VARIABLE)
    if not given:
        return Path.home() / ".cache" / "raybio"
    check_local(given, VARIABLE)
    return Path(given).expanduser()


def cached_folder(key: str, make: Callable[[Path], object]) -> Path:
    """Return a folder of the cache, made on the first call.

    Args:
        key: relative path of the folder; it names everything that the content depends on.
        make: writes the folder at the path that it gets, whole or not at all.

    Raises:
        ConfigError: if the cache cannot be written.
    """
    folder = cache_folder() / key
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with locked(folder.with_name(f".{folder.name}.lock")):
            if not folder.is_dir():
                make(folder)
    except OSError as error:
        raise ConfigError(
            f"{folder}: cannot be written ({error}). Free some space, or set {VARIABLE} to a "
            "folder on a local disk"
        ) from None
    return folder


def shared_array(series: str, number: int, make: Callable[[], np.ndarray]) -> np.ndarray:
    """Return an array that the processes of this machine make once, mapped from a file.

    The newest ``KEPT_ARRAYS`` arrays of each series are kept; older ones are recomputed when
    needed. If the cache cannot be written, each process computes its own arrays. A file that does
    not end with the sha256 of the rest is recomputed.

    Args:
        series: a file name that identifies everything the arrays depend on.
        number: number of the array in the series.
        make: returns the array, the same in each process.
    """
    return _made_once(series, f"{number}.npy", make)


def shared_beginning(series: str, min_length: int, make: Callable[[], np.ndarray]) -> np.ndarray:
    """Return a beginning of an endless array that the processes of this machine extend.

    The longest beginning so far is in one file of the cache. As with ``shared_array``, one process
    extends it while the others wait, and without a cache each process extends its own.

    Args:
        series: a file name that identifies everything the array depends on.
        min_length: elements that are wanted; a longer beginning is returned if there is one.
        make: returns a beginning of at least this length, for when there is none.
    """
    return _made_once(series, "beginning.npy", make, min_length)


def _made_once(
    series: str, name: str, make: Callable[[], np.ndarray], min_length: int = 0
) -> np.ndarray:
    folder = cache_folder() / "shared" / series
    path = folder / name
    array = _mapped(path, min_length)
    if array is not None:
        return array
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / ".lock"):
            array = _mapped(path, min_length)
            if array is None:
                array = make()
                content = io.BytesIO()
                np.save(content, array, allow_pickle=False)
                with replacing(path) as file:
                    file.write(content.getbuffer())
                    file.write(hashlib.sha256(content.getbuffer()).digest())
                _remove_old(folder)
    except OSError as error:
        if array is None:
            array = make()
        warn_once(
            _log, f"{folder}: cannot be written ({error}); each process plans its own batches"
        )
    return array


def _mapped(path: Path, min_length: int) -> np.ndarray | None:
    try:
        content = memoryview(path.read_bytes())
        num_bytes = len(content) - hashlib.sha256().digest_size
        if hashlib.sha256(content[: max(0, num_bytes)]).digest() != content[max(0, num_bytes) :]:
            return None
        array = np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
        return array if array.size >= min_length else None
    except (OSError, ValueError):
        # The file is missing or damaged.
        return None


def _remove_old(folder: Path) -> None:
    """Remove old arrays of a series, and old series; processes keep the arrays they have mapped."""
    for path in _oldest(list(folder.glob("*.npy")), KEPT_ARRAYS):
        path.unlink(missing_ok=True)
    for path in _oldest(list(folder.parent.iterdir()), KEPT_SERIES):
        shutil.rmtree(path, ignore_errors=True)


def _oldest(paths: list[Path], num_kept: int) -> list[Path]:
    time_by_path = {}
    for path in paths:
        with contextlib.suppress(OSError):
            time_by_path[path] = path.stat().st_mtime_ns
    return sorted(time_by_path, key=lambda path: time_by_path[path])[:-num_kept]


@functools.cache
def warn_once(logger: logging.Logger, message: str) -> None:
    """Log a warning once per process."""
    logger.warning(message)
