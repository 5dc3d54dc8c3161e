"""A saved index of embeddings on disk.

Shape letters: N vectors, D width, L inverted lists.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from raybio.core.distance import present_word
from raybio.core.errors import StoreError
from raybio.store.columns import ArrowColumn, NumberColumn
from raybio.store.manifest import MANIFEST
from raybio.store.store import Store, open_store


class IndexStore(Store):
    """Keys and vectors of embeddings in the order of their lists, and what a search needs.

    With the metric "cosine" the vectors have length 1. An exact index has vectors alone: one list,
    and neither centroids nor codes.
    """

    kind = "search index"
    make_again = "Build it again with raybio search index (--force replaces it)."

    keys = ArrowColumn("keys.arrow", "key", pa.large_string())

    flat_vectors = NumberColumn("vectors.arrow", "value", np.float32)
    """The vectors (N, D), row after row."""

    list_sizes = NumberColumn("lists.arrow", "num_rows", np.int64)
    """Vectors of each list (L,); the vectors lie list after list."""

    flat_centroids = NumberColumn("centroids.arrow", "value", np.float32)
    """Centroids (L, D) of the lists."""

    flat_codes = NumberColumn("codes.arrow", "value", np.uint8)
    """Product-quantized vectors, row after row."""

    codebook = NumberColumn("codebook.arrow", "value", np.float32)
    """Centroids of the product quantizer."""

    @property
    def facts(self) -> dict[str, Any]:
        """What the manifest says of the index: width, metric, recall, model and versions."""
        facts = dict(self.manifest["index"])
        facts["metric"] = present_word(facts["metric"])
        return facts

    @property
    def vectors(self) -> np.ndarray:
        """The vectors (N, D), mapped."""
        return self.flat_vectors.reshape(-1, self.facts["width"])


def open_index_store(folder: str | os.PathLike[str]) -> IndexStore:
    """Open the files of a saved index; their sha256 is checked if it was not on this machine.

    Raises:
        StoreError: if there is none, or it is damaged.
    """
    folder = Path(folder).expanduser()
    if not (folder / MANIFEST).is_file():
        raise StoreError(
            f"{folder}: holds no index (no {MANIFEST}). Build one with raybio search index"
        )
    return open_store(folder, IndexStore, verify=True)
