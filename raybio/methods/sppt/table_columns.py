"""Columns of a table, read in blocks by Arrow.

Quotes only have a meaning in tables with commas or semicolons as delimiters. Every record counts as
a line, even an empty one or one with line breaks in quotes, so that errors can state its position.
"""

import codecs
import csv
import io
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from raybio.core.errors import DataError
from raybio.store.quarantine import Quarantine
from raybio.store.sources import open_source, read_lines
from raybio.store.table_rows import check_quotes, is_typed_table, read_columns, shown_names

BLOCK_BYTES = 16 << 20
"""Bytes that are read at once; a record must fit into them."""

DELIMITERS = {"\t": "tab", ",": "comma", ";": "semicolon", " ": "blank"}
QUOTED = (",", ";")

# One character for each byte that is no UTF-8, at the end of the code points for private use.
_FIRST_ESCAPE = 0x10FF00
_ESCAPE_BY_SURROGATE = {0xDC00 + byte: _FIRST_ESCAPE + byte for byte in range(0x80, 0x100)}
_SURROGATE_BY_ESCAPE = {escape: mark for mark, escape in _ESCAPE_BY_SURROGATE.items()}
_ESCAPES = f"[{chr(_FIRST_ESCAPE + 0x80)}-{chr(_FIRST_ESCAPE + 0xFF)}]"

# Missing values as spreadsheets and data frames write them. Some would pass as peptides: N-A-N.
NULL_WORDS = ("NaN", "nan", "NULL", "null", "None", "NA", "N/A", "n/a", "<NA>")


def read_table(
    path: Path,
    wanted: str,
    select: Callable[[Sequence[str]], Sequence[str]],
    kinds: tuple[pa.DataType, ...],
    record: str,
    quarantine: Quarantine,
    block_bytes: int = BLOCK_BYTES,
) -> Iterator[tuple[pa.Array, ...]]:
    """Yield some columns of a table with a header, and the line of each record, in blocks.

    Args:
        path: JSON lines, Parquet or a data set's folder, as ``table_rows`` reads them; else a table
            with tabs, commas, semicolons or blanks as delimiters, by its first line.
        wanted: description of the expected table, for messages.
        select: returns the names of the columns to read; it gets all names.
        kinds: types of the columns, as ``read_arrow_columns``; other columns are ignored.
        record: name of a record, for the quarantine.
        quarantine: as ``read_arrow_columns``.
        block_bytes: bytes that are read at once.

    Raises:
        DataError: as ``read_arrow_columns`` and ``select``.
    """
    if is_typed_table(path):
        for rows in read_columns(path, wanted, select):
            texts = [
                trimmed(pa.array(column, kind))
                for column, kind in zip(rows.columns, kinds, strict=False)
            ]
            yield *texts, pa.array(rows.lines, pa.int64())
        return
    header = "".join(islice(read_lines(path, wanted), 1)).rstrip("\r\n")
    if not header:
        raise DataError(f"{path}: is empty, want {wanted}")
    delimiter = find_delimiter(header) or "\t"
    columns = tuple(select(split_fields(header, delimiter, path)))
    kinds = kinds[: len(columns)]
    blocks = read_arrow_columns(
        path,
        columns,
        kinds if delimiter not in QUOTED else (pa.large_string(),) * len(columns),
        record,
        quarantine,
        block_bytes,
        delimiter,
        has_quotes=delimiter in QUOTED,
    )
    for *texts, line in blocks:
        if delimiter in QUOTED:
            # "id, sequence" is common.
            texts = [pc.utf8_trim_whitespace(text) for text in texts]
            texts = [text.cast(kind) for text, kind in zip(texts, kinds, strict=True)]
        elif delimiter != " ":
            texts = [trimmed(text) for text in texts]
        yield *texts, line


def trimmed(column: pa.Array) -> pa.Array:
    """Return ids and sequences without outer white space.

    Longer texts, of the type ``large_string``, stay as they are.
    """
    if column.type == pa.large_string():
        return column
    if column.type == pa.large_binary():
        return pc.utf8_trim_whitespace(column.cast(pa.large_string())).cast(column.type)
    return pc.utf8_trim_whitespace(column)


def find_delimiter(line: str) -> str:
    """Return the delimiter of the first line: tab, else most of comma and semicolon, else blank.

    It is "" if the line has none of them.
    """
    if "\t" in line:
        return "\t"
    most = max(QUOTED, key=line.count)
    if most in line:
        return most
    return " " if " " in line else ""


def split_fields(line: str, delimiter: str, path: Path) -> list[str]:
    """Return the fields of one of the first lines; those of CSV may be quoted.

    Raises:
        DataError: if it is no line of a table, such as one with a carriage return in it.
    """
    if delimiter not in QUOTED:
        return line.split(delimiter)
    try:
        return next(csv.reader([line], delimiter=delimiter))
    except csv.Error as error:
        raise DataError(f"{path}: {line[:40]!r} cannot be divided into columns ({error})") from None


def read_arrow_columns(
    path: str | Path,
    columns: tuple[str, ...],
    kinds: tuple[pa.DataType, ...],
    record: str,
    quarantine: Quarantine,
    block_bytes: int,
    delimiter: str = "\t",
    *,
    names: Sequence[str] | None = None,
    has_quotes: bool = False,
) -> Iterator[tuple[pa.Array, ...]]:
    """Yield the given columns and the line number of each record, a block at a time.

    Args:
        path: the table.
        columns: names of the columns to read.
        kinds: type of each column: ``pa.string()`` for ids, ``pa.large_binary()`` for content.
        record: name of a record, for the quarantine.
        quarantine: takes lines with another number of columns, and ids that are not UTF-8.
        block_bytes: bytes that are read at once.
        delimiter: one character between columns.
        names: names of all columns of a table without a header line; None: line 1 has them.
        has_quotes: fields may stand in double quotes.

    Raises:
        DataError: if the file is missing, torn, lacks a column, or has a line larger than a block;
            after the last block, if a quote within a field has enclosed lines.
    """
    name = Path(path).name
    first_line = 2 if names is None else 1
    skipped_lines: list[int] = []

    def skip(row: pa.csv.InvalidRow) -> str:
        skipped_lines.append(row.number)
        reason = "line with too many or too few columns"
        text = _raw(row.text[:40]).decode(errors="replace")
        detail = f"{row.actual_columns} columns, want {row.expected_columns}: {text!r}"
        quarantine.saw(record, 1)
        quarantine.add(record, reason, name, row.number, detail)
        return "skip"

    num_read = 0
    try:
        options = _options(columns, block_bytes, delimiter, skip, names, has_quotes)
        with (
            open_source(Path(path), f"a table with the columns {shown_names(columns)}") as file,
            _Utf8Stream(file) as stream,
            pa.csv.open_csv(stream, **options) as reader,
        ):
            for batch in reader:
                # Skipped lines before a record shift its line.
                row = np.arange(num_read, num_read + len(batch))
                num_read += len(batch)
                skipped = np.asarray(skipped_lines, dtype=np.int64)
                line = pa.array(_physical_lines(row, skipped, first_line))
                batch = pa.record_batch([*batch.columns, line], names=[*columns, "line"])
                if stream.has_escapes:
                    batch = _only_text(batch, columns, kinds, record, name, quarantine)
                strings = [
                    batch.column(column).cast(kind)
                    for column, kind in zip(columns, kinds, strict=True)
                ]
                yield *strings, batch.column("line")
        num_lines = num_read + len(skipped_lines) + first_line - 1
    # A repeated column raises a KeyError.
    except (pa.ArrowException, KeyError) as error:
        raise DataError(_explain(path, columns, delimiter, block_bytes, error)) from None
    if has_quotes and stream.num_lines > num_lines:
        # Some record spans several lines. Arrow takes any quote at the start of a field for one
        # that encloses the field, and would read the rows up to the next quote as a text.
        check_quotes(path, delimiter)


def _options(
    columns: tuple[str, ...],
    block_bytes: int,
    delimiter: str,
    skip: Callable[[pa.csv.InvalidRow], str],
    names: Sequence[str] | None,
    has_quotes: bool,
) -> dict[str, Any]:
    """Return the options of Arrow's CSV reader: every record counts."""
    return {
        "read_options": pa.csv.ReadOptions(
            use_threads=False, block_size=block_bytes, column_names=names
        ),
        "parse_options": pa.csv.ParseOptions(
            delimiter=delimiter,
            quote_char='"' if has_quotes else False,
            escape_char=False,
            newlines_in_values=has_quotes,
            ignore_empty_lines=False,
            invalid_row_handler=skip,
        ),
        "convert_options": pa.csv.ConvertOptions(
            include_columns=columns,
            column_types=dict.fromkeys(columns, pa.binary()),
            strings_can_be_null=False,
        ),
    }


def _physical_lines(row: np.ndarray, skipped: np.ndarray, first: int) -> np.ndarray:
    """Return the lines of kept records.

    Skipped line s was preceded by ``s - first - (number skipped before it)`` kept records.

    Args:
        row: numbers of the kept records, from 0.
        skipped: skipped lines, from 1, ascending.
        first: line of the first record: 2 below a header.
    """
    kept_before = skipped - first - np.arange(len(skipped))
    return row + first + np.searchsorted(kept_before, row, side="right")


def _only_text(
    batch: pa.RecordBatch,
    columns: tuple[str, ...],
    kinds: tuple[pa.DataType, ...],
    record: str,
    file: str,
    quarantine: Quarantine,
) -> pa.RecordBatch:
    """Return the records whose ids were UTF-8."""
    texts = []
    for column, kind in zip(columns, kinds, strict=True):
        if kind != pa.large_binary():
            texts.append(column)
    is_bad = np.zeros(len(batch), dtype=bool)
    for column in texts:
        text = batch.column(column).cast(pa.large_string())
        is_bad |= np.asarray(pc.match_substring_regex(text, _ESCAPES))
    if not is_bad.any():
        return batch
    quarantine.saw(record, int(is_bad.sum()))
    shown = pa.array([repr(_raw(value.decode())) for value in batch.column(texts[0]).to_pylist()])
    skip_rows(
        is_bad,
        "id that is not UTF-8 text",
        record,
        file,
        batch.column("line"),
        [shown],
        quarantine,
    )
    return batch.filter(pa.array(~is_bad))


class _Utf8Stream(io.RawIOBase):
    """The bytes of a file as UTF-8; each invalid byte becomes a character of ``_ESCAPES``.

    Arrow refuses a whole file for a line that is not UTF-8 and has another number of columns.

    Attributes:
        has_escapes: whether there were such bytes so far.
        num_lines: number of lines so far, including an unfinished one.
    """

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__()
        self.has_escapes = False
        self.num_lines = 0
        self._is_within_line = False
        self._file = file
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._rest = b""

    def readable(self) -> bool:
        """Return True."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Return at most this many bytes, fewer only at the end."""
        if size < 0:
            raise ValueError(f"size is {size}, want at least 0")
        blocks = [self._rest]
        missing = size - len(self._rest)
        while missing > 0:
            raw = self._file.read(missing)
            block = self._as_utf8(self._decoder.decode(raw, final=not raw))
            blocks.append(block)
            missing -= len(block)
            self._count_lines(block)
            if not raw:
                break
        whole = b"".join(blocks)
        self._rest = whole[size:]
        return whole[:size]

    def _count_lines(self, block: bytes) -> None:
        if block:
            is_within_line = not block.endswith(b"\n")
            self.num_lines += block.count(b"\n") + is_within_line - self._is_within_line
            self._is_within_line = is_within_line

    def _as_utf8(self, text: str) -> bytes:
        try:
            return text.encode()
        except UnicodeEncodeError:
            self.has_escapes = True
            return text.translate(_ESCAPE_BY_SURROGATE).encode()


def _raw(text: str) -> bytes:
    """Return the bytes of the file that are this text in ``_Utf8Stream``."""
    return text.translate(_SURROGATE_BY_ESCAPE).encode("utf-8", "surrogateescape")


def skip_rows(
    is_bad: np.ndarray,
    reason: str,
    record: str,
    path: str | Path,
    line: pa.Array,
    shown: list[pa.Array],
    quarantine: Quarantine,
) -> None:
    """Count the bad rows of a block, and keep the first few: lines, and values of ``shown``."""
    first = pa.array(np.flatnonzero(is_bad)[: quarantine.num_examples])
    details = zip(*(column.take(first).to_pylist() for column in shown), strict=True)
    examples = zip(line.take(first).to_pylist(), map(" ".join, details), strict=True)
    quarantine.add_many(record, reason, Path(path).name, int(is_bad.sum()), examples)


def is_missing(column: pa.Array) -> np.ndarray:
    """Return where a column of strings is empty or has a word for a missing value, bool (N,)."""
    is_null_N = np.asarray(pc.is_in(column, value_set=null_words(column.type)))
    return is_null_N | (np.asarray(pc.binary_length(column)) == 0)


def null_words(kind: pa.DataType) -> pa.Array:
    """Return ``NULL_WORDS`` as an array of this type of strings."""
    return pa.array([word.encode() for word in NULL_WORDS], type=pa.binary()).cast(kind)


def _explain(
    path: str | Path,
    columns: tuple[str, ...],
    delimiter: str,
    block_bytes: int,
    error: Exception,
) -> str:
    text = str(error)
    wanted = shown_names(columns)
    if missing := re.search(r"Column '(.+)' in include_columns does not exist", text):
        header = shown_names(_header(path, delimiter)) or "nothing"
        divided = "tab-separated" if delimiter == "\t" else f"divided by {delimiter!r}"
        return (
            f"{path}: has no column {missing[1]!r:.60}; found {header}; want {wanted}, {divided}, "
            "named in the first line"
        )
    if "Empty CSV file" in text:
        return f"{path}: is empty, want a header line with {wanted}"
    if "straddling object" in text:
        quotes = "; or a quote is not closed" if delimiter in QUOTED else ""
        return (
            f"{path}: a line is longer than {block_bytes:,} bytes, want one record a line{quotes}"
        )
    return f"{path}: cannot be read as a table with the columns {wanted} ({text})"


def _header(path: str | Path, delimiter: str) -> list[str]:
    with open_source(Path(path), "a table") as file:
        first = file.read(4096).split(b"\n")[0]
    return [name for name in first.decode(errors="replace").strip().split(delimiter) if name]
