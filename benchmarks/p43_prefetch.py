"""P43: major page faults of the rows of a step, whose pages are not in memory, with requests and without.

A store that is larger than memory is imitated: before each step the pages of its texts are dropped. The row pointers,
0.6 % of the store, stay in memory, as they do there.
"""

import ctypes
import mmap
import os
import resource
import tempfile
import time
from pathlib import Path
from statistics import mean, median

import numpy as np
from _measure import NUM_PAIRS, not_here, report
from large_store import NUM_ROWS, ROWS, TextStore, large_store

from raybio.core.randomness import derive_seed, keyed_permutation
from raybio.store import prefetch
from raybio.store.prefetch import take_rows

ROWS_PER_STEP = 512
STEPS = 6

_madvise = ctypes.CDLL(None).madvise
_madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def drop_texts(store: TextStore) -> None:
    content = store.text.buffers()[2]
    first = -(-content.address // mmap.PAGESIZE) * mmap.PAGESIZE
    assert _madvise(first, content.size - mmap.PAGESIZE, mmap.MADV_DONTNEED) == 0
    descriptor = os.open(store.path / ROWS, os.O_RDONLY)
    os.posix_fadvise(descriptor, 8 * NUM_ROWS + 2**16, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def disk_bytes() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes:"))


def measure(store: TextStore, first_step: int, *, is_requested: bool) -> tuple[float, float, float]:
    """Faults, seconds and bytes from the disk of a step, the mean of several."""
    faults, seconds, read = [], [], []
    prefetch.SHARE_OF_MEMORY = 0.0 if is_requested else np.inf
    for step in range(first_step, first_step + STEPS):
        drop_texts(store)
        place_R = np.arange(step * ROWS_PER_STEP, (step + 1) * ROWS_PER_STEP) % NUM_ROWS
        row_R = keyed_permutation(place_R, num_rows=NUM_ROWS, key=derive_seed(0, "rows", 0))
        before = (resource.getrusage(resource.RUSAGE_SELF).ru_majflt, disk_bytes())
        start = time.perf_counter()
        texts = take_rows(store.text, row_R)
        seconds.append(time.perf_counter() - start)
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_majflt - before[0])
        read.append(disk_bytes() - before[1])
        assert texts.equals(store.text.take(row_R))
    return mean(faults), mean(seconds), mean(read)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="rb") as folder:
        store = large_store(folder)
        os.sync()
        drop_texts(store)
        np.frombuffer(store.text.buffers()[1], dtype=np.int64).sum()
        rounds = []
        for number in range(NUM_PAIRS):
            # Requests, without, without, requests: on other rows each time.
            of_round = [
                measure(store, (4 * number + place) * STEPS, is_requested=place in (0, 3))
                for place in range(4)
            ]
            rounds.append(of_round)
        ours = np.array([of_round[place] for of_round in rounds for place in (0, 3)])
        without = np.array([of_round[place] for of_round in rounds for place in (1, 2)])
        if without[:, 0].sum() == 0:
            not_here(
                "this file system keeps the pages of files in memory, as tmpfs does; name a disk with TMPDIR"
            )
        # A step without any fault counts as one of a tenth.
        ratio = without[:, 0] / np.maximum(ours[:, 0], 0.1)
        note = (
            f"{ROWS_PER_STEP} texts a step: {without[:, 0].mean():.3g} -> {ours[:, 0].mean():.2g} faults, "
            f"{1e3 * median(without[:, 1]):.3g} -> {1e3 * median(ours[:, 1]):.3g} ms, "
            f"{without[:, 2].mean() / 1e6:.3g} -> {ours[:, 2].mean() / 1e6:.2g} MB from the disk"
        )
        report("P43", "no requests", median(ratio), min(ratio), note)


if __name__ == "__main__":
    main()
