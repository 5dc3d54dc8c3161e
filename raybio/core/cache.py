"""A cache of what can be made again: ``RAYBIO_CACHE``, or ``~/.cache/raybio``.

Each machine has its own. A folder appears whole or not at all, and one process makes it while the
others wait.
"""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

from raybio.core.errors import ConfigError

VARIABLE = "RAYBIO_CACHE"


def cache_folder() -> Path:
    """Return the folder of the cache, which may not exist yet."""
    return Path(os.environ.get(VARIABLE) or Path.home() / ".cache" / "raybio").expanduser()


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
        with folder.with_name(f".{folder.name}.lock").open("a") as lock:
            # The system releases it when the process ends, in whatever way.
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.is_dir():
                make(folder)
    except OSError as error:
        raise ConfigError(
            f"{folder}: cannot be written ({error}). Free some space, or set {VARIABLE} to a "
            "folder on a local disk"
        ) from None
    return folder
