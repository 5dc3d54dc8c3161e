"""Node features."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class NodeFeatures:
    """What an encoder that is not trained says of the words of a store: a file of float32 (W, F), all sentences.

    Attributes:
        path: of the file, in numpy's format.
        indptr_N1: words of each sentence.
    """

    path: Path
    indptr_N1: np.ndarray

    def of(self, row: int, word_K: Sequence[int]) -> np.ndarray:
        """Features (K, F) of words of a sentence, which count from 0."""
        return np.asarray(
            _mapped(self.path)[self.indptr_N1[row] + np.asarray(word_K, dtype=np.int64)]
        )

    @property
    def width(self) -> int:
        """F."""
        return int(_mapped(self.path).shape[1])


@lru_cache(maxsize=2)
def _mapped(path: Path) -> np.ndarray:
    return np.load(path, mmap_mode="r")
