"""Files of a store, written block by block: equal to those of ``Draft.commit``, in little memory.

A file of a store is an Arrow file with one record batch, in which a column's values lie end to end.
If the numbers of rows and of bytes are known, the position of every value is known, too.
"""

import mmap
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import numpy as np
import pyarrow as pa

from raybio.core.files import sync
from raybio.store.ragged import Ragged

ALIGNMENT = 64
"""Bytes to which Arrow aligns buffers in memory."""


class Numbers(NamedTuple):
    """A column of numbers."""

    dtype: np.dtype


class Binary(NamedTuple):
    """A column of byte strings (large_binary) that have ``num_bytes`` bytes together."""

    num_bytes: int


class Dictionary(NamedTuple):
    """A column of texts, each of which is one of ``values``; blocks are indices (int32)."""

    values: pa.Array


ColumnType = Numbers | Binary | Dictionary


class ColumnFile:
    """An Arrow file of one record batch, written block by block; a context manager.

    Leaving the context without an error flushes the file to disk.

    Args:
        path: the file, which is created.
        num_rows: length of every column.
        columns: name of a column -> its type, in the order of the file.

    Raises:
        ValueError: when the context is left, if a column is not complete.
    """

    def __init__(self, path: Path, num_rows: int, columns: Mapping[str, ColumnType]) -> None:
        """Write everything but the values."""
        self.path = path
        self._columns = dict(columns)
        self._num_rows = num_rows
        self._num_written = dict.fromkeys(columns, 0)
        self._num_bytes_written = dict.fromkeys(columns, 0)
        self._file = path.open("w+b")
        sink = _lay_out(path.parent, num_rows, self._columns)
        for position, content in sink.contents:
            self._file.seek(position)
            self._file.write(content)
        self._positions = sink.positions

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()
        if error is not None:
            return
        for name, num_written in self._num_written.items():
            if num_written != self._num_rows:
                raise ValueError(
                    f"{self.path}: {name} has {num_written:,} values, want {self._num_rows:,}"
                )
        sync(self.path)

    def append(self, name: str, values: np.ndarray | pa.Array) -> None:
        """Append values to a column: numbers or indices as numpy array, else large_binary.

        Raises:
            ValueError: if the column becomes longer than it was declared.
        """
        column = self._columns[name]
        row = self._num_written[name]
        if row + len(values) > self._num_rows:
            raise ValueError(f"{self.path}: {name} has more than {self._num_rows:,} values")
        if isinstance(column, Binary):
            self._append_bytes(name, Ragged.of(values), column.num_bytes)
        else:
            dtype = np.dtype(np.int32) if isinstance(column, Dictionary) else column.dtype
            self._write(name, 0, row * dtype.itemsize, values.astype(dtype, copy=False))
        self._num_written[name] = row + len(values)

    def _append_bytes(self, name: str, strings: Ragged, num_bytes: int) -> None:
        before = self._num_bytes_written[name]
        after = before + len(strings.value_T)
        if after > num_bytes:
            raise ValueError(f"{self.path}: {name} has more than {num_bytes:,} bytes")
        # The first pointer, 0, is part of the file from the beginning.
        first_pointer = (self._num_written[name] + 1) * 8
        self._write(name, 0, first_pointer, strings.indptr_N1[1:] + before)
        self._write(name, 1, before, strings.value_T)
        self._num_bytes_written[name] = after

    def _write(self, name: str, buffer: int, position: int, values: np.ndarray) -> None:
        if len(values):
            self._file.seek(self._positions[name][buffer] + position)
            self._file.write(np.ascontiguousarray(values).data)


class _Sink:
    """A file object that keeps what is written, except column buffers: it records their positions.

    Attributes:
        contents: (position, bytes) of what was written.
        positions: name of a column -> positions of its buffers; -1 for an empty one.
    """

    closed = False

    def __init__(self, addresses: Mapping[str, list[int]]) -> None:
        self.contents: list[tuple[int, bytes]] = []
        self.positions = {name: [-1] * len(buffers) for name, buffers in addresses.items()}
        self._place_by_address = {}
        for name, buffers in addresses.items():
            for number, address in enumerate(buffers):
                self._place_by_address[address] = (name, number)
        self._position = 0

    def write(self, content: bytes | pa.Buffer) -> int:
        """Take a part of the file."""
        slot = None
        if isinstance(content, pa.Buffer):
            slot = self._place_by_address.get(content.address)
        size = memoryview(content).nbytes
        if slot is None:
            self.contents.append((self._position, bytes(content)))
        else:
            name, number = slot
            self.positions[name][number] = self._position
        self._position += size
        return size

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def flush(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


def _lay_out(folder: Path, num_rows: int, columns: Mapping[str, ColumnType]) -> _Sink:
    """Let pyarrow write the file with columns from a mapped file of holes, which is never read."""
    sizes: dict[str, list[int]] = {}
    for name, column in columns.items():
        if isinstance(column, Binary):
            sizes[name] = [(num_rows + 1) * 8, column.num_bytes]
        elif isinstance(column, Dictionary):
            sizes[name] = [num_rows * 4]
        else:
            sizes[name] = [num_rows * column.dtype.itemsize]
    starts: dict[str, list[int]] = {}
    end = 0
    for name, buffer_sizes in sizes.items():
        starts[name] = []
        for size in buffer_sizes:
            starts[name].append(end)
            end += max(1, -(-size // ALIGNMENT)) * ALIGNMENT
    with tempfile.TemporaryFile(dir=folder) as holes:
        holes.truncate(end)
        for name, column in columns.items():
            if isinstance(column, Binary):
                # pyarrow reads the first and the last pointer.
                holes.seek(starts[name][0] + num_rows * 8)
                holes.write(np.int64(column.num_bytes).tobytes())
        holes.flush()
        mapped = mmap.mmap(holes.fileno(), end, access=mmap.ACCESS_READ)
        return _write_layout(pa.py_buffer(mapped), num_rows, columns, starts, sizes)


def _write_layout(
    holes: pa.Buffer,
    num_rows: int,
    columns: Mapping[str, ColumnType],
    starts: Mapping[str, list[int]],
    sizes: Mapping[str, list[int]],
) -> _Sink:
    arrays = []
    addresses = {}
    for name, column in columns.items():
        buffers = [
            holes.slice(start, size) for start, size in zip(starts[name], sizes[name], strict=True)
        ]
        addresses[name] = [holes.address + start for start in starts[name]]
        if isinstance(column, Binary):
            array = pa.LargeBinaryArray.from_buffers(
                pa.large_binary(), num_rows, [None, *buffers], null_count=0
            )
        elif isinstance(column, Dictionary):
            arrow_type = pa.dictionary(pa.int32(), column.values.type)
            array = pa.DictionaryArray.from_buffers(
                arrow_type, num_rows, [None, *buffers], column.values, null_count=0
            )
        else:
            arrow_type = pa.from_numpy_dtype(column.dtype)
            array = pa.Array.from_buffers(arrow_type, num_rows, [None, *buffers], null_count=0)
        arrays.append(array)
    sink = _Sink(addresses)
    batch = pa.record_batch(arrays, names=list(columns))
    options = pa.ipc.IpcWriteOptions(allow_64bit=True)
    with pa.ipc.new_file(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return sink
