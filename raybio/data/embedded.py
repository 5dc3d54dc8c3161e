"""Where an embedded corpus is kept: made the first time, opened afterwards, by however many processes."""

import fcntl
from collections.abc import Callable
from pathlib import Path

from raybio.data.store import S, open_store
from raybio.errors import StoreError


def kept_store(home: Path, kind: type[S], make: Callable[[Path, Path], S]) -> S:
    """The store ``home / "store"``, made by ``make(folder of source files, folder of the store)`` if it is not there.

    Args:
        home: a folder whose name depends on everything that the corpus depends on.
        kind: what the store holds.
        make: writes the source files and prepares the store.

    Raises:
        StoreError: if the folder cannot be written.
    """
    try:
        home.mkdir(parents=True, exist_ok=True)
        lock = (home / "lock").open("w")
    except OSError as error:
        raise StoreError(f"{home}: cannot be written ({error.strerror}); the embedded corpus is kept there") from None
    with lock:
        # Processes that start together wait for the one that prepares.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (home / "store").exists():
            return open_store(home / "store", kind)
        return make(home / "raw", home / "store")
