"""Where an embedded corpus is kept: made the first time, opened afterwards, by however many processes.

Words for simulated corpora.
"""

import fcntl
from collections.abc import Callable
from pathlib import Path

import numpy as np

from raybio.core.errors import StoreError
from raybio.store.store import S, open_store


def cached_store(home: Path, kind: type[S], make: Callable[[Path, Path], S]) -> S:
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
        raise StoreError(
            f"{home}: cannot be written ({error.strerror}); the embedded corpus is kept there"
        ) from None
    with lock:
        # Processes that start together wait for the one that prepares.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (home / "store").exists():
            return open_store(home / "store", kind)
        return make(home / "raw", home / "store")


_SYLLABLES = [
    first + second
    for first in "bcdfglmnprstv"
    for second in ("a", "e", "i", "o", "u", "an", "er", "ol")
]


class InventedWords:
    """Words of two to four syllables, never one twice."""

    def __init__(self, rng: np.random.Generator) -> None:
        """Draw from ``rng``."""
        self.rng, self.seen = rng, set[str]()

    def new(self) -> str:
        """The next word."""
        while True:
            word = "".join(self.rng.choice(_SYLLABLES, int(self.rng.integers(2, 5))))
            if word not in self.seen:
                self.seen.add(word)
                return word
