"""Demo corpora: a store that is prepared on first use, and invented words for simulated texts."""

import fcntl
from collections.abc import Callable
from pathlib import Path

import numpy as np

from raybio.core.errors import StoreError
from raybio.store.store import S, open_store


def cached_store(home: Path, kind: type[S], make: Callable[[Path, Path], S]) -> S:
    """Open the store ``home / "store"``; if it does not exist, prepare it first.

    Several processes may call this at once: one prepares, the others wait.

    Args:
        home: a folder whose name depends on everything that the corpus depends on.
        kind: class of the store.
        make: (folder of source files, folder of the store) -> the prepared store.

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
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (home / "store").exists():
            return open_store(home / "store", kind)
        return make(home / "raw", home / "store")


_CONSONANTS = "bcdfglmnprstv"
_RHYMES = ("a", "e", "i", "o", "u", "an", "er", "ol")
_SYLLABLES = [consonant + rhyme for consonant in _CONSONANTS for rhyme in _RHYMES]


class InventedWords:
    """Distinct invented words of two to four syllables."""

    def __init__(self, rng: np.random.Generator) -> None:
        """Draw from ``rng``."""
        self.rng = rng
        self.seen = set[str]()

    def new(self) -> str:
        """Return a word that was not returned before."""
        while True:
            word = "".join(self.rng.choice(_SYLLABLES, int(self.rng.integers(2, 5))))
            if word not in self.seen:
                self.seen.add(word)
                return word
