"""Queries of files, and the table of their neighbors."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raybio.core.errors import ConfigError, DataError
from raybio.encoders.config import Pooling
from raybio.runtime.embed_parts import model_digest_of
from raybio.runtime.model_folders import model_of_folder
from raybio.runtime.search.embeddings import ROWS_AT_ONCE, read_embeddings
from raybio.runtime.search.index import EmbeddingIndex, check_model
from raybio.runtime.search.index_store import IndexStore
from raybio.store.data_sets import is_table, table_files
from raybio.store.quarantine import Quarantine
from raybio.store.table_rows import parquet_errors
from raybio.training.embedding_model import EmbeddingModel, check_strip_stop
from raybio.training.precision import default_device

SCORE_COLUMN = {"cosine": "cosine", "euclidean": "distance"}
"""Metric -> the column of a table of neighbors with the score."""


class QueryBlock(NamedTuple):
    """Some queries: keys, and embeddings (M, D)."""

    keys: list[str]
    embedding_MD: np.ndarray


class Queries:
    """Queries in a file or in memory, embedded block by block.

    Attributes:
        quarantine: the records of the file that were skipped.
    """

    def __init__(
        self,
        store: IndexStore,
        source: Path | None,
        texts: Sequence[str],
        model: str | Path | None,
        pooling: Pooling | None = None,
        max_bad_share: float = 0.1,
        *,
        strip_stop: bool = False,
    ) -> None:
        """Check that queries and model fit an index; no weights are loaded.

        Args:
            store: the index.
            source: embeddings as ``raybio embed`` writes them, or inputs of the model; None: there
                are only ``texts``.
            texts: inputs of the model; their keys are their numbers, from 1.
            model: folder of the model that embeds; None: ``source`` holds embeddings.
            pooling: pooling for a model that does not state it.
            max_bad_share: maximum fraction of invalid records.
            strip_stop: remove one ``*`` at the end of a protein.

        Raises:
            ConfigError: if a model is needed and there is none, or it cannot be read.
            DataError: if the file is missing.
            StoreError: if the queries come from another model than the index.
        """
        self.quarantine = Quarantine(max_bad_share)
        self._source = source
        self._texts = texts
        self._strip_stop = strip_stop
        self._model: EmbeddingModel | None = None
        if source is not None and not (source.is_file() or (source.is_dir() and is_table(source))):
            raise DataError(f"{source}: there is no such file")
        if source is not None and _has_embeddings(source):
            if model is not None:
                raise ConfigError(
                    f"{source} holds embeddings, which need no model; leave out --model"
                )
            if strip_stop:
                raise ConfigError(f"{source} holds embeddings; leave out --strip-stop")
            if pooling is not None:
                raise ConfigError(f"{source} holds embeddings; leave out --pooling")
            check_model(store, model_digest_of(source), str(source))
        elif model is None:
            raise ConfigError(
                "these queries have to be embedded; give the model of the index as --model, or "
                "a Parquet file of raybio embed as --input"
            )
        else:
            self._model = model_of_folder(model, pooling)
            check_strip_stop(strip_stop, self._model.reads, model)
            check_model(store, self._model.digest(), str(model))

    def blocks(self) -> Iterator[QueryBlock]:
        """Yield the queries in order.

        Raises:
            DataError: if the file is damaged, holds no query, or too many invalid records.
        """
        num_queries = 0
        for block in self._blocks():
            num_queries += len(block.keys)
            yield block
        if num_queries == 0:
            raise DataError(f"{self._source}: holds no query, want at least one")

    def _blocks(self) -> Iterator[QueryBlock]:
        if self._model is None:
            assert self._source is not None
            for keys, embedding_MD in read_embeddings(self._source):
                yield QueryBlock(keys.to_pylist(), embedding_MD)
            return
        model = self._model
        encoder = model.load().to(default_device())
        if self._texts:
            keys = [str(number) for number in range(1, len(self._texts) + 1)]
            texts = self._texts
            if self._strip_stop:
                texts = [text.removesuffix("*") for text in texts]
            yield QueryBlock(keys, model.embed(encoder, model.contents_of(texts)))
        if self._source is None:
            return
        for batch in model.read_file(self._source, self.quarantine, strip_stop=self._strip_stop):
            contents = batch.column("content").to_pylist()
            yield QueryBlock(batch.column("key").to_pylist(), model.embed(encoder, contents))
        self.quarantine.check(model.record_kinds[0])


def _has_embeddings(path: Path) -> bool:
    file = table_files(path)[0]
    if file.is_dir() or file.suffix.lower() != ".parquet":
        return False
    with parquet_errors(file):
        return "embedding" in pq.read_schema(file).names


def neighbor_schema(metric: str) -> pa.Schema:
    """Return the columns of a table of neighbors."""
    return pa.schema(
        [
            ("query", pa.string()),
            ("rank", pa.int32()),
            ("key", pa.string()),
            (SCORE_COLUMN[metric], pa.float32()),
        ]
    )


def neighbor_rows(
    index: EmbeddingIndex, queries: Queries, k: int
) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows of a table of neighbors, K of each query in order, in blocks.

    A block has about ``ROWS_AT_ONCE`` rows, whatever K is.
    """
    score_column = SCORE_COLUMN[index.metric]
    num_queries = max(1, ROWS_AT_ONCE // k)
    for block in queries.blocks():
        for start in range(0, len(block.keys), num_queries):
            some = slice(start, start + num_queries)
            found = index.search(block.embedding_MD[some], k)
            rows = []
            for query, keys, scores in zip(block.keys[some], found.keys, found.scores, strict=True):
                for rank, (key, score) in enumerate(zip(keys, scores, strict=True), start=1):
                    row = {"query": query, "rank": rank, "key": key, score_column: float(score)}
                    rows.append(row)
            yield rows
