"""Scattered rows of a mapped file that is larger than memory: their pages are requested together.

Where the page of a row is not in memory, the process waits for the disk, one row after another, and
the kernel reads up to megabytes around each row. Pages that are requested beforehand are read in
parallel, and nothing around them. A file that fits into memory is read sooner as the kernel does
it, and then stays there.

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
"""Of a file that is larger, some pages are expected to be missing: others need memory, too."""

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
    """Let the disk read rows of a mapped column that are about to be read; return at once."""
    _, _, content = column.buffers()
    if content is not None and is_large(content.size):
        _request(content.address, *_bounds(column, row_R))


def byte_lengths(column: pa.Array, row_R: np.ndarray) -> np.ndarray:
    """Return the bytes of rows (R,), int64, of a mapped column of texts or bytes; reads no row."""
    first_R, end_R = _bounds(column, row_R)
    return (end_R - first_R).astype(np.int64)


def request_slices(array_T: np.ndarray, first_R: np.ndarray, end_R: np.ndarray) -> None:
    """Let the disk read slices of a mapped array that is about to be read; return at once.

    Args:
        array_T: one-dimensional and contiguous.
        first_R: first position of each slice.
        end_R: position behind each slice.
    """
    if is_large(array_T.nbytes):
        size = array_T.itemsize
        _request(array_T.ctypes.data, size * first_R, size * end_R)


def release_pages(array_T: np.ndarray) -> None:
    """Give back the pages of a mapped array; those that are read again come from the disk's cache.

    The kernel maps 16 pages around each scattered read, so that all of a file soon counts as memory
    of the process.

    Args:
        array_T: a contiguous part of a store's column. Only a file's pages can be read again.

    Raises:
        ValueError: if the array can be written, and so is no store's.
    """
    if array_T.flags.writeable:
        raise ValueError("release_pages wants an array that is mapped from a store")
    first = array_T.ctypes.data
    # Pages that are only in part the array's stay.
    page = -(-first // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (first + array_T.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if end > page:
        _madvise(page, end - page, mmap.MADV_DONTNEED)


def is_large(num_bytes: int) -> bool:
    """Return whether a file of this size is larger than what memory keeps of it."""
    return num_bytes > SHARE_OF_MEMORY * memory_bytes()


@functools.cache
def memory_bytes() -> int:
    """Return the memory of this machine, or that of its container if there is a limit."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in _MEMORY_LIMITS:
        try:
            limits.append(int(Path(path).read_text()))
        except (OSError, ValueError):
            # There is no such file, or it says "max".
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
        # A refused request changes nothing but the time that the read takes.
        _madvise(page, length, mmap.MADV_WILLNEED)
