"""Links as numbers in ascending order, of which memory holds a part at a time.

Shape letters: E links, S sampled keys, L limits of ranges.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np

LINKS_PER_RUN = 1 << 20
"""Links that are sorted at once, in about 70 MB."""

SAMPLE_STEP = 1 << 8
"""Stride: one key in this many is kept in memory. These keys divide all runs into ranges."""

_RECORD = np.dtype([("key", "<i8"), ("value", "<i8")])


class LinkRuns:
    """Keys with values, sorted by key; equal keys stay in the order in which they were added.

    Full runs are sorted and appended to a file, of 16 bytes a link. Then a range of keys is read
    at a time, from all runs. Fewer links than a run never reach the disk.
    """

    def __init__(self, path: Path | None) -> None:
        """Start empty.

        Args:
            path: the file; None: all links stay in memory.
        """
        self._path = path
        self._waiting: list[np.ndarray] = []
        self._num_waiting = 0
        self._ends = [0]
        self._samples: list[np.ndarray] = []

    def add(self, key_E: np.ndarray, value_E: np.ndarray) -> None:
        """Add links."""
        record_E = np.empty(len(key_E), _RECORD)
        record_E["key"] = key_E
        record_E["value"] = value_E
        self._waiting.append(record_E)
        self._num_waiting += len(record_E)
        if self._path is not None and self._num_waiting >= LINKS_PER_RUN:
            self._write_run(self._path)

    def blocks(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield (keys, values), ascending. Equal keys are in one block. Can be read once."""
        if len(self._ends) == 1 or self._path is None:
            record_E = self._sorted_waiting()
            yield record_E["key"], record_E["value"]
            return
        self._write_run(self._path)
        num_ranges = -(-self._ends[-1] // LINKS_PER_RUN)
        sampled_S = np.sort(np.concatenate(self._samples))
        limit_L = np.unique(sampled_S[np.arange(1, num_ranges) * len(sampled_S) // num_ranges])
        with self._path.open("rb") as file:
            starts = []
            for first, end in zip(self._ends[:-1], self._ends[1:], strict=True):
                key_E = _read(file, first, end)["key"]
                starts.append([first, *(first + np.searchsorted(key_E, limit_L)).tolist(), end])
            for column in range(len(limit_L) + 1):
                parts = [_read(file, *run[column : column + 2]) for run in starts]
                record_E = np.concatenate(parts)
                # Runs come in the order in which they were added, so a stable sort keeps it.
                record_E = record_E[np.argsort(record_E["key"], kind="stable")]
                yield record_E["key"], record_E["value"]
        self._path.unlink()

    def _sorted_waiting(self) -> np.ndarray:
        record_E = np.concatenate([np.empty(0, _RECORD), *self._waiting])
        self._waiting.clear()
        self._num_waiting = 0
        return record_E[np.argsort(record_E["key"], kind="stable")]

    def _write_run(self, path: Path) -> None:
        record_E = self._sorted_waiting()
        with path.open("ab") as file:
            file.write(record_E.data)
        self._ends.append(self._ends[-1] + len(record_E))
        self._samples.append(record_E["key"][::SAMPLE_STEP].copy())


def _read(file: IO[bytes], first: int, end: int) -> np.ndarray:
    file.seek(first * _RECORD.itemsize)
    return np.frombuffer(file.read((end - first) * _RECORD.itemsize), _RECORD)


def divide(key_E: np.ndarray, num_rows: int) -> np.ndarray:
    """Return the links (E, 2), int64, of the keys u * (number of rows) + v."""
    edge_E2 = np.empty((len(key_E), 2), dtype=np.int64)
    np.floor_divide(key_E, max(num_rows, 1), out=edge_E2[:, 0])
    np.remainder(key_E, max(num_rows, 1), out=edge_E2[:, 1])
    return edge_E2


def map_array(path: Path, dtype: np.dtype | type, *, width: int = 1) -> np.ndarray:
    """Return the numbers of a file as a mapped array (E, width), or (E,) for a width of 1."""
    shape = (-1,) if width == 1 else (-1, width)
    if path.stat().st_size == 0:
        return np.empty(0, dtype).reshape(shape)
    return np.memmap(path, dtype, mode="r").reshape(shape)


def id_type(num_rows: int) -> type:
    """Return the smallest integer type that numbers ``num_rows`` rows."""
    return np.int32 if num_rows <= np.iinfo(np.int32).max else np.int64
