"""Demo corpora: stores that are prepared on first use, and invented words for simulated texts."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np

from raybio.core.config import BaseConfig, fingerprint
from raybio.core.errors import StoreError
from raybio.core.files import locked
from raybio.store.manifest import SCHEMA_VERSION
from raybio.store.store import S, open_store

C = TypeVar("C", bound=BaseConfig)


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
    with contextlib.ExitStack() as stack:
        try:
            home.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(home / "lock"))
        except OSError as error:
            raise StoreError(
                f"{home}: cannot be written ({error.strerror}); the built-in corpus is kept there"
            ) from None
        if (home / "store").exists():
            return open_store(home / "store", kind)
        return make(home / "raw", home / "store")


@dataclass(frozen=True, kw_only=True)
class DemoCorpus(Generic[C, S]):
    """A simulated corpus, which is written and prepared like a real one.

    Attributes:
        name: first part of the name of its folder.
        version: increases whenever the same settings give another corpus or another store.
        config: class of the settings of the simulation; the defaults are the demo's.
        kind: class of the store.
        prepare_files: (folder of source files, folder of the store, settings) -> the prepared
            store.
    """

    name: str
    version: int
    config: type[C]
    kind: type[S]
    prepare_files: Callable[[Path, Path, C], S]

    def prepare(self, directory: str | Path, config: C | None = None) -> S:
        """Return the store; the first call simulates and prepares it.

        Args:
            directory: parent of the corpus's folder, whose name depends on every setting.
            config: settings; None for the demo's.

        Raises:
            StoreError: if the directory cannot be written.
        """
        settings = config or self.config()
        version = f"{self.version}.{SCHEMA_VERSION}"
        home = Path(directory) / f"{self.name}-{version}-{fingerprint(settings)}"

        def make(raw: Path, store: Path) -> S:
            return self.prepare_files(raw, store, settings)

        return cached_store(home, self.kind, make)


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
