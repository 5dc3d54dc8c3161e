"""Rows of a mapped file whose pages are not in memory."""

import ctypes
import mmap
import os
import resource
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from raybio.store import prefetch
from raybio.store.prefetch import memory_bytes, release_pages, request_slices, take_rows

NUM_ROWS = 20_000


def set_memory(monkeypatch: pytest.MonkeyPatch, num_bytes: int) -> None:
    monkeypatch.setattr(prefetch, "memory_bytes", lambda: num_bytes)


def num_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt


def mapped_texts(path: Path) -> tuple[pa.Array, Callable[[], None]]:
    """Write 24 MB of texts; return them mapped, and a function that drops their pages."""
    rng = np.random.default_rng(0)
    length_N = rng.integers(0, 2400, NUM_ROWS)
    indptr_N1 = np.concatenate([[0], np.cumsum(length_N)])
    letter_T = rng.integers(97, 123, indptr_N1[-1], dtype=np.uint8)
    buffers = [None, pa.py_buffer(indptr_N1), pa.py_buffer(letter_T)]
    texts = pa.LargeBinaryArray.from_buffers(pa.large_binary(), NUM_ROWS, buffers)
    with pa.ipc.new_file(str(path), pa.schema([("text", texts.type)])) as writer:
        writer.write_batch(pa.record_batch([texts], names=["text"]))
    with pa.memory_map(str(path)) as file, pa.ipc.open_file(file) as reader:
        mapped = reader.get_batch(0).column(0)

    def drop() -> None:
        content = mapped.buffers()[2]
        first = content.address // mmap.PAGESIZE * mmap.PAGESIZE
        libc = ctypes.CDLL(None)
        libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        assert libc.madvise(first, content.size, mmap.MADV_DONTNEED) == 0
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        # Not the row pointers before the texts, which stay in memory in a large store, too.
        start = 8 * NUM_ROWS + 2**16
        os.posix_fadvise(descriptor, start, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)

    return mapped, drop


def test_rows_of_a_file_that_is_larger_than_memory_are_read_without_waiting_for_each(
    tmp_path, monkeypatch
):
    column, drop = mapped_texts(tmp_path / "texts.arrow")
    rng = np.random.default_rng(1)
    faults = {}
    for memory in (2**40, 2**20):
        set_memory(monkeypatch, memory)
        faults[memory] = 0
        for _ in range(3):
            drop()
            row_R = rng.integers(0, NUM_ROWS, 300)
            before = num_faults()
            taken = take_rows(column, row_R)
            faults[memory] += num_faults() - before
            assert taken.to_pylist() == [column[int(row)].as_py() for row in row_R]
    if faults[2**40] == 0:
        pytest.skip("this file system keeps the pages of a file that are dropped, as tmpfs does")
    assert faults[2**20] <= faults[2**40] / 20


def test_pages_are_requested_only_of_arrays_that_are_larger_than_a_share_of_memory(monkeypatch):
    requested = []
    monkeypatch.setattr(
        prefetch, "_madvise", lambda page, length, advice: requested.append((page, length))
    )
    array_T = np.zeros(40_000, dtype=np.uint8)
    first_R = np.array([5, 39_990])
    set_memory(monkeypatch, 4 * 40_000)
    request_slices(array_T, first_R, first_R + 10)
    assert requested == []
    set_memory(monkeypatch, 4 * 40_000 - 4)
    request_slices(array_T, first_R, first_R + 10)
    start = array_T.ctypes.data
    for (page, length), first in zip(requested, first_R, strict=True):
        assert page % mmap.PAGESIZE == 0
        assert start + first - mmap.PAGESIZE < page <= start + first
        assert page + length == start + first + 10


def test_memory_is_that_of_the_machine_or_of_the_container(tmp_path, monkeypatch):
    machine = memory_bytes.__wrapped__()
    assert 2**28 < machine < 2**50
    (tmp_path / "limit").write_text("1234567\n")
    (tmp_path / "none").write_text("max\n")
    for names, expected in ((("limit",), 1_234_567), (("none", "missing"), None)):
        paths = [str(tmp_path / name) for name in names]
        monkeypatch.setattr(prefetch, "_MEMORY_LIMITS", paths)
        found = memory_bytes.__wrapped__()
        assert found == (expected or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
@pytest.mark.parametrize("memory", [1, 2**40])
def test_rows_are_those_of_arrow_in_every_kind_of_column_and_in_slices(kind, memory, monkeypatch):
    set_memory(monkeypatch, memory)
    texts = ["", "a", None, "ééé", "x" * 9000, "", "last"]
    column = pa.array(texts, kind)
    for array in (column, column[2:6], column[3:3], pa.array([], kind), pa.array([""], kind)):
        row_R = np.arange(len(array))[::-1]
        assert take_rows(array, row_R).equals(array.take(pa.array(row_R)))


def resident_bytes(path: Path) -> int:
    """Return how much of a file is mapped into this process and counts as its memory."""
    is_of_file = False
    total = 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, _, value = line.partition(":")
        if "-" in name.split()[0]:
            is_of_file = line.endswith(str(path))
        elif is_of_file and name == "Rss":
            total += 1024 * int(value.split()[0])
    return total


def test_released_pages_are_no_memory_of_the_process_and_can_be_read_again(tmp_path):
    path = tmp_path / "texts.arrow"
    column, _ = mapped_texts(path)
    letter_T = np.frombuffer(column.buffers()[2], np.uint8)
    total = int(letter_T.sum())
    assert resident_bytes(path) > 0.9 * letter_T.nbytes
    release_pages(letter_T)
    assert resident_bytes(path) < 0.1 * letter_T.nbytes
    assert int(letter_T.sum()) == total
    release_pages(letter_T[:10])  # no whole page


def test_memory_that_is_no_files_is_not_released():
    with pytest.raises(ValueError, match="mapped from a store"):
        release_pages(np.ones(10_000))
