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
    """Keys and vectors of embeddings in list order, and the data that a search needs.

    With the metric "cosine", vectors have length 1. An exact index has a single list, and neither
    centroids nor codes.
    """

    kind = "search index"
    make_again = "Build it again with raybio search index (--force replaces it)."

    keys = ArrowColumn("keys.arrow", "key", pa.large_string())

    flat_vectors = NumberColumn("vectors.arrow", "value", np.float32)
    """The vectors (N, D), flattened in row-major order."""

    list_sizes = NumberColumn("lists.arrow", "num_rows", np.int64)
    """Number of vectors of each list (L,); vectors are stored list after list."""

    flat_centroids = NumberColumn("centroids.arrow", "value", np.float32)
    """Centroids (L, D) of the lists."""

    flat_codes = NumberColumn("codes.arrow", "value", np.uint8)
    """Product-quantized vectors, flattened in row-major order."""

    codebook = NumberColumn("codebook.arrow", "value", np.float32)
    """Centroids of the product quantizer."""

    @property
    def facts(self) -> dict[str, Any]:
        """Facts about the index in the manifest: width, metric, recall, model and versions."""
        facts = dict(self.manifest["index"])
        facts["metric"] = present_word(facts["metric"])
        return facts

    @property
    def vectors(self) -> np.ndarray:
        """The vectors (N, D), mapped."""
        return self.flat_vectors.reshape(-1, self.facts["width"])


def open_index_store(folder: str | os.PathLike[str]) -> IndexStore:
    """Open a saved index; check the sha256 of files that this machine has not verified yet.

    Raises:
        StoreError: if there is none, or it is damaged.
    """
    folder = Path(folder).expanduser()
    if not (folder / MANIFEST).is_file():
        raise StoreError(
            f"{folder}: holds no index (no {MANIFEST}). Build one with raybio search index"
        )
    return open_store(folder, IndexStore, verify=True)
