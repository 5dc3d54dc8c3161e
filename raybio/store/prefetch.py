"""Prefetching of scattered rows of a mapped file that is larger than memory.

If the page of a row is not in memory, the process waits for the disk, one row after another, and
the kernel reads up to megabytes around each row. Pages that are requested beforehand are read in
parallel, without their surroundings. For a file that fits into memory, the kernel's own readahead
is faster, and the file then stays in memory.

Shape letters: R rows.
"""

import ctypes
import functools
import mmap
import os
from pathlib import Path

import numpy as np
import pyarrow as pa

SHARE_OF_MEMORY = 0.25
"""Share of memory above which a file is expected to have missing pages: others need memory too."""

_MEMORY_LIMITS = (
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
)

_madvise = ctypes.CDLL(None).madvise
_madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def take_rows(column: pa.Array, row_R: np.ndarray) -> pa.Array:
    """Return rows of a mapped column of texts or bytes, in the order of ``row_R``."""
    request_rows(column, row_R)
    return column.take(pa.array(row_R))


def request_rows(column: pa.Array, row_R: np.ndarray) -> None:
    """Request pages of rows of a mapped column that are about to be read; return at once."""
    _, _, content = column.buffers()
    if content is not None and is_large(content.size):
        _request(content.address, *_bounds(column, row_R))


def byte_lengths(column: pa.Array, row_R: np.ndarray) -> np.ndarray:
    """Return the sizes (R,) in bytes, int64, of rows of a mapped column; the rows are not read."""
    first_R, end_R = _bounds(column, row_R)
    return (end_R - first_R).astype(np.int64)


def request_slices(array_T: np.ndarray, first_R: np.ndarray, end_R: np.ndarray) -> None:
    """Request pages of slices of a mapped array that are about to be read; return at once.

    Args:
        array_T: one-dimensional and contiguous.
        first_R: first position of each slice.
        end_R: position behind each slice.
    """
    if is_large(array_T.nbytes):
        size = array_T.itemsize
        _request(array_T.ctypes.data, size * first_R, size * end_R)


def release_pages(array_T: np.ndarray) -> None:
    """Release the pages of a mapped array; later reads take them from the page cache.

    The kernel maps 16 pages around each scattered read, so that all of a file soon counts as memory
    of the process.

    Args:
        array_T: a contiguous part of a store's column. Only a file's pages can be read again.

    Raises:
        ValueError: if the array is writable, and so not part of a store.
    """
    if array_T.flags.writeable:
        raise ValueError("release_pages wants an array that is mapped from a store")
    first = array_T.ctypes.data
    # Keep pages that belong to the array only in part.
    page = -(-first // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (first + array_T.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if end > page:
        _madvise(page, end - page, mmap.MADV_DONTNEED)


def is_large(num_bytes: int) -> bool:
    """Return whether a file of this size is too large to stay in memory."""
    return num_bytes > SHARE_OF_MEMORY * memory_bytes()


@functools.cache
def memory_bytes() -> int:
    """Return the memory of this machine, or that of its container if there is a limit."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in _MEMORY_LIMITS:
        try:
            limits.append(int(Path(path).read_text()))
        except (OSError, ValueError):
            # The file does not exist, or contains "max".
            continue
    return min(limits)


def _bounds(column: pa.Array, row_R: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return where the bytes of rows begin and end, (R,) each."""
    is_long = pa.types.is_large_binary(column.type) or pa.types.is_large_string(column.type)
    offset_N = np.frombuffer(column.buffers()[1], dtype=np.int64 if is_long else np.int32)
    stored_R = np.asarray(row_R) + column.offset
    return offset_N[stored_R], offset_N[stored_R + 1]


def _request(address: int, first_R: np.ndarray, end_R: np.ndarray) -> None:
    start_R = address + first_R.astype(np.int64)
    page_R = start_R - start_R % mmap.PAGESIZE
    length_R = address + end_R.astype(np.int64) - page_R
    for page, length in zip(page_R.tolist(), length_R.tolist(), strict=True):
        # The result can be ignored: without the request, reads are only slower.
        _madvise(page, length, mmap.MADV_WILLNEED)
