"""A store whose rows have several of some things each: words of a sentence, mentions of a document."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import ClassVar, NamedTuple, Self

import numpy as np
import pyarrow as pa

from raybio.ops.segments import indptr_from_lengths
from raybio.store.columns import compact_int
from raybio.store.store import Store

POINTERS = "pointers.arrow"


class RaggedStore(Store):
    """An open store of parts: each is a file of columns, for all N rows end to end."""

    parts: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """What a row has several of -> the columns of its file, in all parts of different names."""

    def _of(self, part: str, column: str, row: int) -> np.ndarray:
        """A row's entries in a column, int64."""
        indptr_N1 = self._arrays[part, ""]
        return self._arrays[part, column][indptr_N1[row] : indptr_N1[row + 1]].astype(np.int64)

    @cached_property
    def _arrays(self) -> dict[tuple[str, str], np.ndarray]:
        """Every array by its part and column; its pointers, by its part and ""."""
        pointers = self._batch(POINTERS)
        arrays = {
            (part, ""): pointers.column(part).to_numpy(zero_copy_only=True) for part in self.parts
        }
        for part, columns in self.parts.items():
            batch = self._batch(_file(part))
            arrays |= {
                (part, name): batch.column(name).to_numpy(zero_copy_only=True) for name in columns
            }
        return arrays


def ragged_tables(
    parts: Mapping[str, tuple[str, ...]],
    indptr_by_part: Mapping[str, np.ndarray],
    columns: Mapping[str, np.ndarray],
) -> dict[str, dict[str, pa.Array]]:
    """The files of all parts, and that of the pointers, for ``Draft.commit``.

    Args:
        parts: as the store's.
        indptr_by_part: which entries are whose (N + 1,), for each part.
        columns: integers, of all parts.
    """
    tables = {
        POINTERS: {
            part: pa.array(indptr_by_part[part].astype(np.int64, copy=False)) for part in parts
        }
    }
    for part, names in parts.items():
        tables[_file(part)] = {name: pa.array(compact_int(columns[name])) for name in names}
    return tables


def _file(part: str) -> str:
    return f"{part}.arrow"


ROWS_PER_BLOCK = 1 << 16


class Ragged(NamedTuple):
    """N sequences: number n is ``value_T[indptr_N1[n] : indptr_N1[n + 1]]``."""

    value_T: np.ndarray
    indptr_N1: np.ndarray

    @classmethod
    def of(cls, array: pa.Array) -> "Ragged":
        """A large_binary array, without copying."""
        _, offsets, data = array.buffers()
        indptr_N1 = np.frombuffer(offsets, dtype=np.int64)[
            array.offset : array.offset + len(array) + 1
        ]
        value_T = (
            np.frombuffer(data, dtype=np.uint8) if data is not None else np.empty(0, dtype=np.uint8)
        )
        return cls(value_T[indptr_N1[0] : indptr_N1[-1]], indptr_N1 - indptr_N1[0])

    def to_arrow(self) -> pa.Array:
        """As a large_binary array."""
        buffers = [
            None,
            pa.py_buffer(np.ascontiguousarray(self.indptr_N1)),
            pa.py_buffer(self.value_T),
        ]
        return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(self.indptr_N1) - 1, buffers)


class Spool:
    """Sequences on their way to a store: appended to a file, read back in any order; a context that closes it."""

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
        """Add sequences; their numbers in the spool."""
        ragged = Ragged.of(sequence)
        self._file.write(ragged.value_T.data)
        self._lengths.append(np.diff(ragged.indptr_N1))
        self.num_rows += len(sequence)
        return np.arange(self.num_rows - len(sequence), self.num_rows)

    def in_order(self, spooled_R: np.ndarray, path: Path) -> Ragged:
        """Sequences ``spooled_R`` written end to end to the file ``path``, mapped."""
        self._file.close()
        length_S = np.concatenate([np.empty(0, dtype=np.int64), *self._lengths])
        stored = Ragged(_map_bytes(self.path), indptr_from_lengths(length_S)).to_arrow()
        with path.open("wb") as file:
            for start in range(0, len(spooled_R), ROWS_PER_BLOCK):
                file.write(
                    Ragged.of(
                        stored.take(pa.array(spooled_R[start : start + ROWS_PER_BLOCK]))
                    ).value_T.data
                )
        return Ragged(_map_bytes(path), indptr_from_lengths(length_S[spooled_R]))


def _map_bytes(path: Path) -> np.ndarray:
    if path.stat().st_size == 0:
        return np.empty(0, dtype=np.uint8)
    return np.memmap(path, dtype=np.uint8, mode="r")
