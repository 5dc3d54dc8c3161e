"""External merge sort: runs of sorted records on disk, read back a range of keys at a time.

Shape letters: E records, R runs, S sampled keys, L limits of ranges.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np


class SortedRuns:
    """Runs of records in a file; a sample of their keys in memory divides them into ranges."""

    def __init__(self, path: Path, dtype: np.dtype, *, key: str, sample_step: int) -> None:
        """Start without runs.

        Args:
            path: the file, which the first run creates.
            dtype: structured dtype of the records.
            key: name of the field by which runs are sorted.
            sample_step: every ``sample_step``-th key stays in memory.
        """
        self._path = path
        self._dtype = dtype
        self._key = key
        self._sample_step = sample_step
        self._ends = [0]
        self._samples: list[np.ndarray] = []

    @property
    def num_runs(self) -> int:
        """Number of added runs."""
        return len(self._ends) - 1

    def add(self, record_E: np.ndarray) -> None:
        """Append a run of records, ascending by key."""
        # The first run overwrites a file that another process left behind.
        with self._path.open("ab" if self.num_runs else "wb") as file:
            file.write(record_E.data)
        self._ends.append(self._ends[-1] + len(record_E))
        self._samples.append(record_E[self._key][:: self._sample_step].copy())

    def ranges(self, records_per_range: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the records of a range of keys, run after run, and their number (R,) in each run.

        Ranges ascend. Records with equal keys are in one range. The last range deletes the file:
        runs can be read once.

        Args:
            records_per_range: wanted size; as samples divide the keys, some ranges have more.
        """
        if not self.num_runs:
            return
        limit_L = self._limits(max(1, -(-self._ends[-1] // records_per_range)))
        start_RL = np.empty((self.num_runs, len(limit_L) + 2), np.int64)
        with self._path.open("rb") as file:
            for run in range(self.num_runs):
                first, end = self._ends[run : run + 2]
                key_E = self._read(file, first, end)[self._key]
                start_RL[run] = [first, *(first + np.searchsorted(key_E, limit_L)), end]
            for column in range(len(limit_L) + 1):
                yield self._read_range(file, start_RL[:, column : column + 2])
        self._path.unlink()

    def _limits(self, num_ranges: int) -> np.ndarray:
        sampled_S = np.sort(np.concatenate(self._samples))
        self._samples.clear()
        return np.unique(sampled_S[np.arange(1, num_ranges) * len(sampled_S) // num_ranges])

    def _read_range(self, file: IO[bytes], bound_R2: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        length_R = bound_R2[:, 1] - bound_R2[:, 0]
        record_E = np.empty(length_R.sum(), self._dtype)
        position = 0
        for first, end in bound_R2.tolist():
            record_E[position : position + end - first] = self._read(file, first, end)
            position += end - first
        return record_E, length_R

    def _read(self, file: IO[bytes], first: int, end: int) -> np.ndarray:
        file.seek(first * self._dtype.itemsize)
        return np.frombuffer(file.read((end - first) * self._dtype.itemsize), self._dtype)
