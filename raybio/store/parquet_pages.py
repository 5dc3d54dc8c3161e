"""Sizes of the pages of a Parquet file, read from their headers before Arrow unpacks a page.

The footer of a file names sizes too, but Arrow does not compare them with the pages. A page of a
few bytes may hold one text of gigabytes, and a dictionary one long text that each row repeats.

Page headers have Thrift's compact protocol; their fields are those of ``parquet.thrift`` (Apache
Parquet format 2).
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from raybio.core.errors import DataError
from raybio.store.sources import MAX_LINE_LENGTH, MAX_WHOLE_BYTES

MAX_UNPACKING = 4096
"""Maximum decoded bytes of a column of lists a byte in the file, beyond ``MAX_WHOLE_BYTES``.

The items of constant lists take few bits each: a row may have any number of them.
"""

_MIN_VALUE_BYTES = 8

_MAX_HEADER_BYTES = 1 << 24
"""As in Arrow."""

_MAX_DEPTH = 16
"""Of structs in a header, which has 3 at most."""

_BY_DICTIONARY = (2, 8)
_DELTA_BYTE_ARRAY = 7
"""Encodings of ``parquet.thrift``."""


class Page(NamedTuple):
    """A page, as its header describes it.

    Attributes:
        is_dictionary: whether it holds the dictionary of the column.
        num_bytes: its size after unpacking.
        num_values: its values, with nulls.
        encoding: number of the encoding of its values.
        offset: of its content in the file.
        num_packed: its size in the file.
    """

    is_dictionary: bool
    num_bytes: int
    num_values: int
    encoding: int
    offset: int
    num_packed: int


def rows_in_bounds(
    path: Path, file: pq.ParquetFile, group: int, columns: Sequence[str] | None, max_rows: int
) -> int:
    """Return how many rows of a row group can be read at once in some ``MAX_WHOLE_BYTES``.

    Args:
        path: the file.
        file: the same, opened.
        group: number of the row group.
        columns: names of the columns to read; None: all.
        max_rows: the result at most.

    Raises:
        DataError: if a page, a value or a list is too large; nothing is unpacked before.
        pa.ArrowException: if the header of a page is damaged.
    """
    row_group = file.metadata.row_group(group)
    bytes_per_row = 1
    with path.open("rb") as raw:
        for number in range(row_group.num_columns):
            column = row_group.column(number)
            name = column.path_in_schema
            if columns is not None and not any(f"{name}.".startswith(f"{c}.") for c in columns):
                continue
            where = f"{path}, row group {group}, column {name!r}"
            is_list = file.schema.column(number).max_repetition_level > 0
            bytes_per_row += _bytes_per_row(raw, column, where, row_group.num_rows, is_list)
    return max(1, min(max_rows, MAX_WHOLE_BYTES // bytes_per_row))


def _bytes_per_row(raw: IO[bytes], column: Any, where: str, num_rows: int, is_list: bool) -> int:
    """Return the maximum decoded bytes of a row, of lists their mean.

    Pages that lie in a block of rows as a whole have at most that many bytes a row.
    """
    longest = 0
    largest = _MIN_VALUE_BYTES
    num_decoded = 0
    num_packed = 0
    for page in read_pages(raw, column):
        _check_page(page, where)
        num_packed += page.num_packed
        if page.is_dictionary:
            longest = max(longest, _longest_value(raw, page, column))
            continue
        if page.encoding in _BY_DICTIONARY:
            value_bytes = longest
        elif page.encoding == _DELTA_BYTE_ARRAY:
            # Each value may repeat the whole of the one before it.
            value_bytes = page.num_bytes
        else:
            value_bytes = page.num_bytes // max(1, page.num_values)
        value_bytes = max(value_bytes, _MIN_VALUE_BYTES)
        largest = max(largest, value_bytes)
        num_decoded += page.num_values * value_bytes
    if not is_list:
        return largest
    if num_decoded > max(MAX_WHOLE_BYTES, MAX_UNPACKING * num_packed):
        raise DataError(
            f"{where}: {num_packed:,} bytes unpack to lists of up to {num_decoded:,} bytes, want "
            f"at most {MAX_UNPACKING:,} times as many. Is the file damaged or malicious? Fetch it "
            "again, or write it with smaller row groups"
        )
    return num_decoded // max(1, num_rows)


def _check_page(page: Page, where: str) -> None:
    if page.num_bytes > MAX_WHOLE_BYTES:
        raise DataError(
            f"{where}: a page unpacks to {page.num_bytes:,} bytes, want at most "
            f"{MAX_WHOLE_BYTES:,}. Write the file again with smaller pages, and split texts of "
            f"more than {MAX_LINE_LENGTH >> 20} MiB or remove them"
        )
    if page.num_bytes > MAX_LINE_LENGTH * (page.num_values + 1):
        raise DataError(
            f"{where}: {page.num_values:,} values take {page.num_bytes:,} bytes, want at most "
            f"{MAX_LINE_LENGTH >> 20} MiB a value. Split such texts, or remove them"
        )


def _longest_value(raw: IO[bytes], page: Page, column: Any) -> int:
    """Return the bytes of a dictionary's longest value, or more."""
    if column.physical_type != "BYTE_ARRAY":
        return page.num_bytes // max(1, page.num_values)
    if page.num_bytes > MAX_LINE_LENGTH:
        return page.num_bytes
    raw.seek(page.offset)
    content = raw.read(page.num_packed)
    try:
        if column.compression != "UNCOMPRESSED":
            name = {"LZ4": "lz4_raw"}.get(column.compression, column.compression.lower())
            content = pa.Codec(name).decompress(content, page.num_bytes, asbytes=True)
    except (pa.ArrowException, OSError, ValueError):
        # Arrow says what is wrong with the page, or knows more codecs.
        return page.num_bytes
    longest = 0
    position = 0
    while position < len(content):
        length = int.from_bytes(content[position : position + 4], "little")
        longest = max(longest, length)
        position += 4 + length
    return min(longest, page.num_bytes)


def read_pages(raw: IO[bytes], column: Any) -> Iterator[Page]:
    """Yield the pages of a column in a row group.

    Args:
        raw: the file.
        column: metadata of the column.

    Raises:
        pa.ArrowException: if a header is damaged.
    """
    # A column without values has no data page.
    offsets = (column.dictionary_page_offset or 0, column.data_page_offset)
    offset = min((each for each in offsets if each > 0), default=0)
    end = offset + column.total_compressed_size
    while offset < end:
        header, num_header = _read_header(raw, offset)
        # Headers of data pages of both versions, and of a dictionary.
        about = header.get(5) or header.get(8) or header.get(7) or {}
        try:
            num_bytes = header[2]
            num_packed = header[3]
            num_values = about.get(1, 0)
            encoding = about.get(4 if 8 in header else 2, 0)
            is_damaged = min(num_bytes, num_packed, num_values, encoding) < 0
        except (KeyError, TypeError, AttributeError):
            is_damaged = True
        if is_damaged:
            raise pa.ArrowInvalid(f"the page header at byte {offset:,} is damaged")
        offset += num_header
        yield Page(7 in header, num_bytes, num_values, encoding, offset, num_packed)
        offset += num_packed


def _read_header(raw: IO[bytes], offset: int) -> tuple[dict[int, Any], int]:
    """Return the fields of a page header by their number, and the header's length."""
    num_bytes = 1 << 10
    while True:
        raw.seek(offset)
        reader = _Compact(raw.read(num_bytes))
        try:
            return reader.struct(), reader.position
        except (IndexError, RecursionError):
            if num_bytes >= _MAX_HEADER_BYTES or num_bytes > len(reader.content):
                raise pa.ArrowInvalid(f"the page header at byte {offset:,} is damaged") from None
        num_bytes *= 16


class _Compact:
    """A reader of Thrift's compact protocol; it raises IndexError where the content ends."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.position = 0
        self._read_by_kind: dict[int, Callable[[], object]] = {
            1: lambda: 1,
            2: lambda: 0,
            3: self._byte,
            4: self._number,
            5: self._number,
            6: self._number,
            7: lambda: self._skip(8),
            8: lambda: self._skip(self._varint()),
            9: self._skip_items,
            10: self._skip_items,
            12: self.struct,
        }
        self._depth = 0

    def struct(self) -> dict[int, Any]:
        """Return the fields of a struct by their number; only numbers and structs have values."""
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise RecursionError
        fields: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._number()
            fields[number] = self._value(head & 15)
        self._depth -= 1
        return fields

    def _value(self, kind: int) -> object:
        # Maps occur in no header.
        if kind not in self._read_by_kind:
            raise IndexError
        return self._read_by_kind[kind]()

    def _byte(self) -> int:
        self.position += 1
        return self.content[self.position - 1]

    def _varint(self) -> int:
        value = 0
        shift = 0
        while (byte := self._byte()) & 128:
            value |= (byte & 127) << shift
            shift += 7
            if shift > 63:
                raise IndexError
        return value | byte << shift

    def _number(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def _skip(self, num_bytes: int) -> None:
        self.position += num_bytes
        if self.position > len(self.content):
            raise IndexError

    def _skip_items(self) -> None:
        head = self._byte()
        num_items = head >> 4 if head >> 4 < 15 else self._varint()
        for _ in range(num_items):
            # A boolean of a list takes a byte.
            self._value(3 if head & 15 in (1, 2) else head & 15)
