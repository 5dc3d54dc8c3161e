"""Ragged data: stores whose rows have lists of entries, and sequences on their way to a store."""

import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import ClassVar, NamedTuple, Self

import numpy as np
import pyarrow as pa
from numpy.typing import DTypeLike

from raybio.core.files import named_failure
from raybio.ops.segments import indptr_from_lengths
from raybio.store.columns import compact_int
from raybio.store.store import Store

POINTERS = "pointers.arrow"


class RaggedStore(Store):
    """A store whose rows have lists of entries, such as the words of a sentence.

    A *part* is one kind of entries. Its file holds the entries of all N rows end to end.
    """

    parts: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Name of a part -> the columns of its file; column names are unique over all parts."""

    def _of(self, part: str, column: str, row: int) -> np.ndarray:
        """Return a row's entries in a column of a part, int64."""
        indptr_N1 = self._arrays[part, ""]
        return self._arrays[part, column][indptr_N1[row] : indptr_N1[row + 1]].astype(np.int64)

    @cached_property
    def _arrays(self) -> dict[tuple[str, str], np.ndarray]:
        """Arrays by (part, column); the row pointers of a part by (part, "")."""
        arrays = {}
        for part, columns in self.parts.items():
            arrays[part, ""] = self.column(POINTERS, part).to_numpy(zero_copy_only=True)
            for name in columns:
                column = self.column(_file(part), name)
                arrays[part, name] = column.to_numpy(zero_copy_only=True)
        return arrays


def ragged_tables(
    parts: Mapping[str, tuple[str, ...]],
    indptr_by_part: Mapping[str, np.ndarray],
    columns: Mapping[str, np.ndarray],
) -> dict[str, dict[str, pa.Array]]:
    """Return the files of all parts and of their row pointers, for ``Draft.commit``.

    Args:
        parts: ``RaggedStore.parts`` of the store.
        indptr_by_part: row pointers (N + 1,) of each part.
        columns: integers of each column, of all parts.
    """
    pointers: dict[str, pa.Array] = {}
    tables = {POINTERS: pointers}
    for part, names in parts.items():
        pointers[part] = pa.array(indptr_by_part[part].astype(np.int64, copy=False))
        tables[_file(part)] = {name: pa.array(compact_int(columns[name])) for name in names}
    return tables


def _file(part: str) -> str:
    return f"{part}.arrow"


ROWS_PER_BLOCK = 1 << 16


class Ragged(NamedTuple):
    """N sequences; sequence n is ``value_T[indptr_N1[n] : indptr_N1[n + 1]]``."""

    value_T: np.ndarray
    indptr_N1: np.ndarray

    @classmethod
    def of(cls, array: pa.Array) -> "Ragged":
        """View a large_binary array, without a copy."""
        _, offsets, data = array.buffers()
        bounds = slice(array.offset, array.offset + len(array) + 1)
        indptr_N1 = np.frombuffer(offsets, dtype=np.int64)[bounds]
        if data is None:
            value_T = np.empty(0, dtype=np.uint8)
        else:
            value_T = np.frombuffer(data, dtype=np.uint8)
        return cls(value_T[indptr_N1[0] : indptr_N1[-1]], indptr_N1 - indptr_N1[0])

    def to_arrow(self) -> pa.Array:
        """Return the sequences as a large_binary array."""
        buffers = [
            None,
            pa.py_buffer(np.ascontiguousarray(self.indptr_N1)),
            pa.py_buffer(self.value_T),
        ]
        return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(self.indptr_N1) - 1, buffers)


class Spool:
    """Sequences on disk, appended in one order and read back in another; a context manager."""

    def __init__(self, path: Path) -> None:
        """Start an empty file."""
        self.path = path
        self._file = path.open("wb")
        self._lengths: list[np.ndarray] = []
        self.num_rows = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def append(self, sequence: pa.Array) -> np.ndarray:
        """Append sequences and return their numbers in the spool."""
        ragged = Ragged.of(sequence)
        self._file.write(ragged.value_T.data)
        self._lengths.append(compact_int(np.diff(ragged.indptr_N1)))
        self.num_rows += len(sequence)
        return np.arange(self.num_rows - len(sequence), self.num_rows)

    def in_order(self, spooled_R: np.ndarray, path: Path) -> Ragged:
        """Write sequences ``spooled_R`` end to end to the file ``path``; return them mapped."""
        self._file.close()
        length_S = np.concatenate([np.empty(0, dtype=np.int32), *self._lengths])
        stored = Ragged(_map_bytes(self.path), indptr_from_lengths(length_S)).to_arrow()
        with path.open("wb") as file:
            for start in range(0, len(spooled_R), ROWS_PER_BLOCK):
                block = stored.take(pa.array(spooled_R[start : start + ROWS_PER_BLOCK]))
                file.write(Ragged.of(block).value_T.data)
        return Ragged(_map_bytes(path), indptr_from_lengths(length_S[spooled_R]))


def mapped_array(path: Path, length: int, dtype: DTypeLike) -> np.ndarray:
    """Return a new array (length,) of zeros whose memory is a file.

    Raises:
        OSError: if the disk has no room for it.
    """
    num_bytes = length * np.dtype(dtype).itemsize
    if num_bytes == 0:
        return np.empty(0, dtype)
    with named_failure(path, num_bytes), open(path, "wb") as file:
        file.truncate(num_bytes)
        # Reserve the disk space: writing a page without room would kill the process. macOS cannot.
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, num_bytes)
    return np.memmap(path, dtype=dtype, mode="r+", shape=(length,))


def _map_bytes(path: Path) -> np.ndarray:
    if path.stat().st_size == 0:
        return np.empty(0, dtype=np.uint8)
    return np.memmap(path, dtype=np.uint8, mode="r")
