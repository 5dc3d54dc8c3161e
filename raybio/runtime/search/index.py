"""Search in a saved index: ``raybio.open_index(folder)``.

Shape letters: Q queries, K neighbors, D width.
"""

import operator
import os
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from raybio.core.errors import ConfigError, DataError, StoreError
from raybio.encoders.config import Pooling
from raybio.runtime.load import TrainedModel, load
from raybio.runtime.search.embeddings import scaled
from raybio.runtime.search.faiss_package import load_faiss
from raybio.runtime.search.index_store import IndexStore, open_index_store
from raybio.runtime.search.searcher import Approximation, Effort, Searcher


class Neighbors(NamedTuple):
    """The nearest vectors of each query, the nearest first.

    Attributes:
        keys: keys (Q, K).
        scores: cosines (Q, K), or Euclidean distances with the metric "euclidean"; float32.
    """

    keys: list[list[str]]
    scores: np.ndarray


class EmbeddingIndex:
    """A saved index. Opening it trains nothing.

    Attributes:
        store: its files and its manifest.
        model: the model that embeds queries; None: queries are vectors.
    """

    def __init__(self, store: IndexStore, model: TrainedModel | None = None) -> None:
        """Load the vectors into faiss, on a GPU if faiss has one.

        Raises:
            ConfigError: if faiss is not installed.
            StoreError: if the embeddings come from another model.
        """
        if model is not None:
            check_model(store, model.digest(), str(model.folder))
        self.store = store
        self.model = model
        self._keys = store.keys
        self._searcher = Searcher(
            load_faiss(),
            store.vectors,
            self.metric,
            _approximation(store),
            Effort(**store.facts["effort"]),
        )

    @property
    def metric(self) -> Any:
        """``euclidean`` or ``cosine``."""
        return self.store.facts["metric"]

    def __len__(self) -> int:
        """Return the number of vectors."""
        return self.store.num_rows

    def search(self, queries: np.ndarray | Iterable[str], k: int = 10) -> Neighbors:
        """Return the min(k, N) nearest vectors of each query.

        Args:
            queries: embeddings (Q, D), or inputs for the model that the index was opened with.
            k: number of neighbors. The recall of the index is measured for 10.

        Raises:
            ConfigError: for inputs without a model, or k < 1.
            DataError: for embeddings of another width, that are not finite or have no direction, or
                inputs that the model does not read.
        """
        if k < 1:
            raise ConfigError(f"k: got {k}, want at least 1")
        if not isinstance(queries, np.ndarray):
            if self.model is None:
                raise ConfigError(
                    "search: got inputs, and no model that embeds them; want open_index(folder, "
                    "model=...), or embeddings as an array (Q, D)"
                )
            queries = self.model.encode(queries)
        width = self.store.facts["width"]
        if queries.ndim != 2 or queries.shape[1] != width:
            raise DataError(f"queries have the shape {queries.shape}, want (Q, {width})")
        query_QD = scaled(queries, self.metric, "query {}")
        k = min(operator.index(k), len(self))  # faiss takes no integers of numpy
        score_QK, row_QK = self._searcher.search(query_QD, k)
        keys = self._keys.take(pa.array(row_QK.reshape(-1))).to_pylist()
        if self.metric == "euclidean":
            score_QK = np.sqrt(np.maximum(score_QK, 0))
        keys_of_queries = [keys[start : start + k] for start in range(0, len(keys), k)]
        return Neighbors(keys_of_queries, score_QK)


def _approximation(store: IndexStore) -> Approximation | None:
    num_lists = store.facts["lists"]
    if num_lists == 0:
        return None
    return Approximation(
        store.list_sizes,
        store.flat_centroids.reshape(num_lists, -1),
        store.flat_codes.reshape(store.num_rows, -1),
        store.codebook,
    )


def open_index(
    folder: str | os.PathLike[str],
    model: str | os.PathLike[str] | None = None,
    pooling: Pooling | None = None,
) -> EmbeddingIndex:
    """Open an index that ``raybio search index`` saved.

        index = raybio.open_index("index", model="runs/first")
        index.search(["MKTAYIAKQR"], k=10).keys

    Args:
        folder: the index.
        model: the model that made its embeddings, as for ``load``. Without it, queries are
            embeddings.
        pooling: ``cls`` or ``mean``, for a model that does not state it.

    Raises:
        ConfigError: if there is no such model, or faiss is not installed.
        StoreError: if there is no index, it is damaged, or its embeddings come from another model.
    """
    store = open_index_store(folder)
    return EmbeddingIndex(store, None if model is None else load(model, pooling))


def check_model(store: IndexStore, model_digest: str, name: str) -> None:
    """Refuse a model that did not make the embeddings of an index.

    Args:
        store: the index; it is accepted if the model of its embeddings is not recorded.
        model_digest: digest of the model; "" if it is not known.
        name: name of the model or of a file of embeddings, for the error.

    Raises:
        StoreError: if the digests differ.
    """
    wanted = store.facts["model"]
    if wanted and model_digest and wanted != model_digest:
        raise StoreError(
            f"{store.path}: its embeddings come from model {wanted[:16]}, {name} from "
            f"{model_digest[:16]}: their embeddings cannot be compared. Give the model of the "
            'index, or build one of embeddings of this model; "token-" stands for --per token'
        )
