"""Fixed features of graph nodes: the words of a store as an untrained encoder embeds them."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class NodeFeatures:
    """A file of float32 (W, F): features of all words of a store.

    Attributes:
        path: the file, in numpy's format.
        indptr_N1: CSR pointers to the words of each sentence.
        recorded_name: name in the data digests of runs, which changes with any setting of the
            encoder; several names may share one file.
    """

    path: Path
    indptr_N1: np.ndarray
    recorded_name: str

    def of(self, row_K: np.ndarray, word_K: np.ndarray) -> np.ndarray:
        """Return the features (K, F) of words, each numbered from 0 in its sentence."""
        return np.asarray(_mapped(self.path)[self.indptr_N1[row_K] + word_K])


@lru_cache(maxsize=2)
def _mapped(path: Path) -> np.ndarray:
    return np.load(path, mmap_mode="r")


def map_again() -> None:
    """Map files again that were rewritten after they had been mapped."""
    _mapped.cache_clear()
