"""Links as numbers in ascending order; only a part is in memory at a time.

Shape letters: E links.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from raybio.store.sorted_runs import SortedRuns

LINKS_PER_RUN = 1 << 20
"""Links that are sorted at once, in about 70 MB."""

SAMPLE_STEP = 1 << 8
"""Stride: one key in this many is kept in memory."""

_RECORD = np.dtype([("key", "<i8"), ("value", "<i8")])


class LinkRuns:
    """Keys with values, sorted by key; equal keys stay in the order in which they were added.

    Full runs are sorted and appended to a file, of 16 bytes a link. Fewer links than a run never
    reach the disk.
    """

    def __init__(self, path: Path | None) -> None:
        """Start empty.

        Args:
            path: the file; None: all links stay in memory.
        """
        self._runs = None
        if path is not None:
            self._runs = SortedRuns(path, _RECORD, key="key", sample_step=SAMPLE_STEP)
        self._waiting: list[np.ndarray] = []
        self._num_waiting = 0

    def add(self, key_E: np.ndarray, value_E: np.ndarray) -> None:
        """Add links."""
        record_E = np.empty(len(key_E), _RECORD)
        record_E["key"] = key_E
        record_E["value"] = value_E
        self._waiting.append(record_E)
        self._num_waiting += len(record_E)
        if self._runs is not None and self._num_waiting >= LINKS_PER_RUN:
            self._runs.add(self._sorted_waiting())

    def blocks(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield (keys, values), ascending. Equal keys are in one block. Can be read once."""
        if self._runs is None or not self._runs.num_runs:
            record_E = self._sorted_waiting()
            yield record_E["key"], record_E["value"]
            return
        self._runs.add(self._sorted_waiting())
        for record_E, _ in self._runs.ranges(LINKS_PER_RUN):
            # Runs come in the order in which they were added, so a stable sort keeps it.
            record_E = _by_key(record_E)
            yield record_E["key"], record_E["value"]

    def _sorted_waiting(self) -> np.ndarray:
        record_E = np.concatenate([np.empty(0, _RECORD), *self._waiting])
        self._waiting.clear()
        self._num_waiting = 0
        return _by_key(record_E)


def _by_key(record_E: np.ndarray) -> np.ndarray:
    return record_E[np.argsort(record_E["key"], kind="stable")]


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
