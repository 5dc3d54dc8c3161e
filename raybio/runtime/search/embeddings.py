"""Embeddings in a Parquet file or a folder of them, in the form that an index needs.

Shape letters: M rows of a block, D width.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raybio.core.distance import Distance
from raybio.core.errors import DataError
from raybio.store.data_sets import table_files
from raybio.store.table_rows import parquet_batches, parquet_errors, shown_names

ROWS_AT_ONCE = 65_536


def read_embeddings(path: Path) -> Iterator[tuple[pa.Array, np.ndarray]]:
    """Yield keys (M,) as texts and embeddings (M, D) as float32, in blocks of rows.

    Args:
        path: a Parquet file, or a folder of them.

    Raises:
        DataError: if a file is missing, damaged, lacks the columns ``key`` and ``embedding``, or
            holds embeddings of different widths.
    """
    width = None
    for file in table_files(path):
        for key_M, embedding_MD in _read_file(file):
            width = width or embedding_MD.shape[1]
            if embedding_MD.shape[1] != width:
                raise DataError(f"{file}: has embeddings of different widths, want one width")
            yield key_M, embedding_MD


def num_embeddings(path: Path) -> int:
    """Return the number of rows of a readable Parquet file, or of a folder of them."""
    return sum(pq.read_metadata(file).num_rows for file in table_files(path))


def _read_file(path: Path) -> Iterator[tuple[pa.Array, np.ndarray]]:
    with parquet_errors(path), pq.ParquetFile(path) as file:
        names = file.schema_arrow.names
        if not {"key", "embedding"} <= set(names):
            raise DataError(
                f"{path}: has the columns {shown_names(names)}; want 'key' and 'embedding', as "
                "raybio embed writes them"
            )
        for batch in parquet_batches(path, file, ["key", "embedding"], ROWS_AT_ONCE):
            if batch.column("key").null_count:
                raise DataError(f"{path}: has rows without a key, want one in each row")
            yield (
                batch.column("key").cast(pa.large_string()),
                _matrix(batch.column("embedding"), path),
            )


def _matrix(column: pa.Array, path: Path) -> np.ndarray:
    """Return a column of lists of equal length as float32 (M, D)."""
    has_lengths = pa.types.is_list(column.type) or pa.types.is_large_list(column.type)
    is_list = pa.types.is_fixed_size_list(column.type) or has_lengths
    if not is_list or not pa.types.is_floating(column.type.value_type):
        raise DataError(f"{path}: embedding has the type {column.type}, want lists of floats")
    value = column.flatten()
    num_rows = len(column)
    if has_lengths:
        is_even = len(set(column.value_lengths().to_pylist())) == 1
    else:
        is_even = len(value) == num_rows * column.type.list_size
    if column.null_count or value.null_count or not is_even or len(value) == 0:
        raise DataError(f"{path}: has missing values or embeddings of different widths")
    return value.to_numpy(zero_copy_only=False).reshape(num_rows, -1).astype(np.float32)


def scaled(vector_MD: np.ndarray, metric: Distance, name: str, start: int = 0) -> np.ndarray:
    """Return vectors for an index, contiguous float32; for "cosine", scale them to length 1.

    Args:
        vector_MD: the vectors, float32.
        metric: metric of the index.
        name: name of a row in errors, with ``{}`` for its number.
        start: number of the first row.

    Raises:
        DataError: for a vector that is not finite or has no direction.
    """
    vector_MD = np.ascontiguousarray(vector_MD, np.float32)
    length_M = np.linalg.norm(vector_MD.astype(np.float64), axis=1)
    wrong = np.flatnonzero(~np.isfinite(length_M))
    if len(wrong):
        raise DataError(f"{name.format(start + wrong[0])}: has a value that is not finite")
    if metric == "euclidean":
        return vector_MD
    wrong = np.flatnonzero(length_M == 0)
    if len(wrong):
        raise DataError(
            f"{name.format(start + wrong[0])}: is zero, which has no cosine; remove it, or take "
            "the metric euclidean"
        )
    return (vector_MD / length_M[:, None]).astype(np.float32)
