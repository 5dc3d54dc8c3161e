"""Tables of inputs and of predictions, in blocks of rows: TSV, CSV, JSON lines and Parquet.

Folders of the library ``datasets`` are read too, see ``data_sets.py``.
"""

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raybio.core.errors import DataError, one_line
from raybio.store.data_sets import (
    ARROW,
    JSON_LINES,
    PARQUET,
    TSV,
    is_folder,
    suffix_of,
    table_files,
)
from raybio.store.json import is_text
from raybio.store.sources import MAX_LINE_LENGTH, MAX_WHOLE_BYTES, read_lines

ROWS_AT_ONCE = 4096

MAX_UNPACKING = 1000
"""Maximum unpacked bytes per byte in the file, of Parquet columns above ``MAX_WHOLE_BYTES``."""

CELLS_AT_ONCE = 1 << 20
"""Maximum number of cells of a block; with very many columns, a block has fewer rows."""

ID_COLUMNS = ("id", "key", "protein_id")
"""Names of the column with the ids of rows, by priority; without one, rows are numbered from 1.

``protein_id`` is the name in the table of proteins that ``prepare`` reads.
"""

TABLES = "a .tsv, .csv, .jsonl or .parquet table, or a folder of the library datasets"

SkipRow = Callable[[int, str], None]
"""(line, problem) of a row with too many or too few columns -> None."""


class InputRows(NamedTuple):
    """Some rows of a table.

    Attributes:
        keys: ids, or numbers of the rows from 1.
        contents: the wanted column; "" where it is missing.
        lines: line of each row in its file; in Parquet and data sets its number, from 1.
    """

    keys: list[str]
    contents: list[str]
    lines: list[int]


class ColumnRows(NamedTuple):
    """Some rows of a table.

    Attributes:
        columns: values of each column as texts; "" where one is missing.
        lines: line of each row in its file; in Parquet and data sets its number, from 1.
    """

    columns: list[list[str]]
    lines: list[int]


def is_typed_table(path: Path) -> bool:
    """Return whether ``path`` is a folder, or its name says Parquet, Arrow or JSON lines."""
    return is_folder(path) or suffix_of(path) in (JSON_LINES, PARQUET, ARROW)


def column_names(path: Path) -> set[str]:
    """Return the names of a table's columns, in lower case.

    Raises:
        DataError: as ``read_columns``.
    """
    all_names: list[str] = []

    def select(names: Sequence[str]) -> Sequence[str]:
        all_names.extend(names)
        # The values of a column may be no text.
        return []

    next(read_columns(path, "a table", select), None)
    return set(all_names)


def choose_columns(
    path: Path,
    names: Sequence[str],
    required: Sequence[str | tuple[str, ...]],
    optional: Sequence[tuple[str, ...]] = (),
    advice: str = "",
) -> list[str]:
    """Return the columns to read: for each group of alternatives, the first that the table has.

    Args:
        path: the table.
        names: its columns.
        required: names of columns that it must have, or alternatives of one, in lower case.
        optional: alternatives of optional columns, which follow.
        advice: more text for the message.

    Raises:
        DataError: naming what is missing, and what was found.
    """
    by_lower = {name.strip().lower(): name for name in reversed(names)}
    chosen = []
    alternatives = [(each,) if isinstance(each, str) else each for each in required]
    for candidates in (*alternatives, *optional):
        present = [by_lower[name] for name in candidates if name in by_lower]
        if not present and candidates not in optional:
            others = f" (or {', '.join(candidates[1:])})" if len(candidates) > 1 else ""
            raise DataError(
                f"{path}: has no column {candidates[0]!r}{others}{advice}; found "
                f"{shown_names(names) or 'nothing'}; want the columns "
                f"{', '.join(each[0] for each in alternatives)}, named in the first line"
            )
        chosen += present[:1]
    return chosen


def shown_names(names: Sequence[str]) -> str:
    """Return names of columns for an error: at most the first ones, with long ones cut."""
    shown = [name if len(name) <= 40 else f"{name[:40]}…" for name in names[:12]]
    return ", ".join(shown) + (f" and {len(names) - 12:,} more" if len(names) > 12 else "")


def read_input_rows(path: Path, column: str) -> Iterator[InputRows]:
    """Yield the rows of a table with named columns; names are compared in lower case.

    Args:
        path: as ``read_columns`` takes it.
        column: name of the wanted column.

    Raises:
        DataError: if the file is missing or damaged, or has no such column, with the line.
    """

    def with_ids(names: Sequence[str]) -> list[str]:
        if column not in names:
            raise DataError(
                f"{path}: has the columns {shown_names(names)}; want one named {column!r}, and "
                f"perhaps {ID_COLUMNS[0]!r}. Rename it in the first line, or add such a line if "
                "the file has none"
            )
        ids = [name for name in ID_COLUMNS if name in names]
        return [column, *ids[:1]]

    number = 0
    for rows in read_columns(path, f"a column {column!r}", with_ids):
        contents, *ids = rows.columns
        numbers = range(number + 1, number + len(contents) + 1)
        number += len(contents)
        keys = ids[0] if ids else [str(each) for each in numbers]
        yield InputRows(keys, contents, rows.lines)


def read_columns(
    path: Path,
    wanted: str,
    select: Callable[[Sequence[str]], Sequence[str]],
    *,
    separator: str = " ",
    skip: SkipRow | None = None,
) -> Iterator[ColumnRows]:
    """Yield some columns of a table in blocks of rows.

    Args:
        path: ``.jsonl`` (``.gz`` too), ``.parquet``, ``.arrow`` or a folder (``table_files``); else
            delimited with a header, plain or gzip: ``.tsv`` by tabs, others by the most frequent of
            comma, semicolon and tab in the first line. The columns of JSON lines are the names in
            the first object. Class labels of a data set are returned as their names.
        wanted: its columns, for messages.
        select: returns the names of the columns to read; it gets all names, in lower case.
        separator: text between the items of a list, in Parquet, Arrow and JSON lines.
        skip: called for each row of a delimited table with another number of columns; None: the
            first such row is an error.

    Raises:
        DataError: if the file is missing or damaged, with the line.
    """
    files = table_files(path)
    num_rows = 0
    for file in files:
        if suffix_of(file) in (PARQUET, ARROW):
            blocks = _read_typed(file, wanted, select, separator)
        elif suffix_of(file) == JSON_LINES:
            blocks = _read_json_lines(file, wanted, select, separator)
        else:
            blocks = _read_delimited(file, wanted, select, skip)
        if len(files) == 1:
            yield from blocks
            return
        for block in blocks:
            # Rows of a folder are numbered through all of its files.
            lines = list(range(num_rows + 1, num_rows + len(block.lines) + 1))
            num_rows += len(lines)
            yield ColumnRows(block.columns, lines)


def _read_delimited(
    path: Path,
    wanted: str,
    select: Callable[[Sequence[str]], Sequence[str]],
    skip: SkipRow | None,
) -> Iterator[ColumnRows]:
    lines = iter(read_lines(path, f"a table with {wanted}"))
    first = next(lines, "")
    delimiter = "\t" if suffix_of(path) == TSV else max(",;\t", key=first.count)
    rows = csv.reader(chain([first], lines), delimiter=delimiter, strict=True)
    with _csv_errors(path, rows):
        names = next(rows)
        if not any(names):
            begins = "begins with an empty line" if first else "is empty"
            raise DataError(f"{path}: {begins}, want a header line with {wanted}")
        lower = _lower(names)
        indices = [lower.index(name) for name in select(lower)]
        block = ColumnRows([[] for _ in indices], [])
        last_line = rows.line_num
        for row in rows:
            first_line = last_line + 1
            last_line = rows.line_num
            if not row:
                continue
            if delimiter == "\t" and _holds_rows(row, len(names)):
                raise DataError(
                    f"{path}, line {first_line}: a field in quotes goes on to line {last_line} and "
                    "holds whole rows. Write a field that begins with a quote of its own as "
                    '"""Quoted"" text", and give tabs and line ends in fields as CSV or JSON lines'
                )
            if len(row) != len(names):
                if skip is not None:
                    detail = f"{len(row)} columns, want {len(names)}: {delimiter.join(row)}"
                    skip(rows.line_num, detail)
                    continue
                raise DataError(
                    f"{path}, line {rows.line_num}: has {len(row)} columns, want {len(names)}, as "
                    "the header. Quote fields that hold the delimiter"
                )
            for column, index in zip(block.columns, indices, strict=True):
                column.append(row[index])
            block.lines.append(rows.line_num)
            if len(block.lines) == ROWS_AT_ONCE:
                yield block
                block = ColumnRows([[] for _ in indices], [])
    if block.lines:
        yield block


def check_quotes(path: Path | str, delimiter: str) -> None:
    """Refuse a delimited table in which a quote does not enclose a whole field.

    Raises:
        DataError: with the line.
    """
    rows = csv.reader(read_lines(Path(path), "a table"), delimiter=delimiter, strict=True)
    with _csv_errors(path, rows):
        for _ in rows:
            pass


@contextmanager
def _csv_errors(path: Path | str, rows: Any) -> Iterator[None]:
    # This limit is global to the process; the default refuses fields beyond 128 KiB.
    csv.field_size_limit(MAX_LINE_LENGTH)
    try:
        yield
    except csv.Error as error:
        raise DataError(
            f"{path}, line {rows.line_num}: cannot be read as a table ({error}); want quotes only "
            "around whole fields, doubled inside them"
        ) from None


def _holds_rows(row: Sequence[str], num_columns: int) -> bool:
    """Return whether a field holds rows: its quote began a text and enclosed none.

    It has the tabs of whole rows if a quote of the same column ends it. A quote of another column
    leaves another number of fields.
    """
    for cell in row:
        if "\t" not in cell or "\n" not in cell:
            continue
        if len(row) != num_columns or cell.count("\t") == (num_columns - 1) * cell.count("\n"):
            return True
    return False


def _read_json_lines(
    path: Path,
    wanted: str,
    select: Callable[[Sequence[str]], Sequence[str]],
    separator: str,
) -> Iterator[ColumnRows]:
    chosen: Sequence[str] | None = None
    block = ColumnRows([], [])
    for number, line in enumerate(read_lines(path, f"JSON lines with {wanted}"), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}, line {number}: is no JSON ({error})") from None
        if not isinstance(record, dict):
            raise DataError(f"{path}, line {number}: want an object with {wanted}")
        value_by_name = {name.strip().lower(): value for name, value in record.items()}
        if chosen is None:
            chosen = select(list(value_by_name))
            block = ColumnRows([[] for _ in chosen], [])
        for column, name in zip(block.columns, chosen, strict=True):
            text = _as_text(value_by_name.get(name), separator)
            if not is_text(text):
                raise DataError(
                    f"{path}, line {number}: column {name!r} holds half of a character (an "
                    "unpaired surrogate), want a text that UTF-8 can encode. Cut texts between "
                    "characters"
                )
            column.append(text)
        block.lines.append(number)
        if len(block.lines) == ROWS_AT_ONCE:
            yield block
            block = ColumnRows([[] for _ in chosen], [])
    if chosen is None:
        raise DataError(f"{path}: is empty, want JSON lines with {wanted}")
    if block.lines:
        yield block


def _read_typed(
    path: Path,
    wanted: str,
    select: Callable[[Sequence[str]], Sequence[str]],
    separator: str,
) -> Iterator[ColumnRows]:
    """Yield the rows of Parquet, or of an Arrow stream as the library ``datasets`` writes it."""
    kind = "Parquet" if suffix_of(path) == PARQUET else "Arrow"
    if not path.is_file():
        raise DataError(
            f"{path}: cannot be read (there is no such file), want a {kind} file with {wanted}"
        )
    try:
        with pq.ParquetFile(path) if kind == "Parquet" else pa.ipc.open_stream(path) as file:
            schema = file.schema_arrow if kind == "Parquet" else file.schema
            lower = _lower(schema.names)
            chosen = [schema.names[lower.index(name)] for name in select(lower)]
            for name in chosen:
                _check_plain(schema.field(name).type, f"{path}, column {name}")
            classes = [_class_names(schema, name) for name in chosen]
            number = 0
            for batch in _batches(path, file, chosen):
                numbers = range(number + 1, number + len(batch) + 1)
                columns = [
                    _as_texts(batch.column(name), names, separator)
                    for name, names in zip(chosen, classes, strict=True)
                ]
                for name, texts in zip(chosen, columns, strict=True):
                    _check_lengths(texts, f"{path}, column {name}", number)
                number += len(batch)
                yield ColumnRows(columns, list(numbers))
    # A damaged column name may not be valid UTF-8.
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as {kind} ({error}); write it again") from None


def _check_plain(kind: pa.DataType, where: str) -> None:
    """Refuse extension types at any depth: reading one runs its code, and Ray's types unpickle.

    Raises:
        DataError: naming the column.
    """
    if isinstance(kind, pa.BaseExtensionType):
        raise DataError(
            f"{where}: has the extension type {kind.extension_name}, want texts, numbers or lists "
            "of them. Write the column as one of these"
        )
    for number in range(kind.num_fields):
        _check_plain(kind.field(number).type, where)
    if pa.types.is_dictionary(kind):
        _check_plain(kind.value_type, where)


def _check_lengths(texts: Sequence[str], where: str, num_rows: int) -> None:
    """Refuse texts that are longer than a line of a text file may be.

    Args:
        texts: a column of a block of rows.
        where: the column in errors.
        num_rows: rows before the block.

    Raises:
        DataError: naming the first such row.
    """
    for number, text in enumerate(texts, start=num_rows + 1):
        if len(text) > MAX_LINE_LENGTH:
            raise DataError(
                f"{where}, row {number:,}: has {len(text):,} characters, want at most "
                f"{MAX_LINE_LENGTH:,}. Split the text, or remove the row"
            )


def parquet_batches(
    path: Path,
    file: pq.ParquetFile,
    columns: Sequence[str] | None = None,
    rows: int = ROWS_AT_ONCE,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file in blocks, in the memory of one row group.

    Args:
        path: the file.
        file: the same file, opened.
        columns: names of the columns to read; None: all.
        rows: maximum number of rows of a block.

    Raises:
        DataError: if a row group unpacks to far more than it has in the file; it is not unpacked.
        pa.ArrowException: if the file is damaged.
    """
    # One call per row group, since Arrow keeps the pages of all row groups that a call has read.
    for group in range(file.num_row_groups):
        missing = file.metadata.row_group(group).num_rows
        chosen = None if columns is None else list(columns)
        _check_sizes(path, file, group)
        for batch in file.iter_batches(rows, row_groups=[group], columns=chosen):
            missing -= len(batch)
            yield batch
        if missing:
            # A damaged header may end a group early, without an error.
            raise pa.ArrowInvalid(f"row group {group} lacks {missing:,} of its rows")


@contextmanager
def parquet_errors(path: Path) -> Iterator[None]:
    """Context in which errors of reading a Parquet file are ``DataError``s that name it."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path}: cannot be read as Parquet ({one_line(error)})") from None


def _check_sizes(path: Path, file: pq.ParquetFile, group: int) -> None:
    """Refuse a row group with implausible sizes in the file's metadata.

    Raises:
        DataError: naming its first such column.
    """
    # If the metadata of a column is damaged, ``column`` below would crash the process, but reading
    # raises an error. A batch of zero rows unpacks nothing.
    next(file.reader.iter_batches(0, [group], None, False), None)
    row_group = file.metadata.row_group(group)
    for number in range(row_group.num_columns):
        column = row_group.column(number)
        num_bytes = column.total_uncompressed_size
        packed_bytes = column.total_compressed_size
        where = f"{path}, row group {group}, column {column.path_in_schema!r}"
        if num_bytes > max(MAX_WHOLE_BYTES, MAX_UNPACKING * packed_bytes):
            raise DataError(
                f"{where}: {packed_bytes:,} bytes unpack to {num_bytes:,}, want at most "
                f"{MAX_UNPACKING:,} times as many. Is the file damaged or malicious? Fetch it "
                "again, or write it with smaller row groups"
            )
        if num_bytes > MAX_LINE_LENGTH * (column.num_values + 1):
            raise DataError(
                f"{where}: {column.num_values:,} values take {num_bytes:,} bytes, want at most "
                f"{MAX_LINE_LENGTH >> 20} MiB a value. Split such texts, or remove them"
            )


def _batches(path: Path, file: Any, names: list[str]) -> Iterator[pa.RecordBatch]:
    if isinstance(file, pq.ParquetFile):
        yield from parquet_batches(path, file, names)
        return
    for batch in file:
        # Arrow does not validate a stream: damaged offsets would lead to reads out of bounds.
        batch.validate(full=True)
        for start in range(0, len(batch), ROWS_AT_ONCE):
            yield batch.slice(start, ROWS_AT_ONCE).select(names)


def _class_names(schema: pa.Schema, column: str) -> list[str]:
    """Return the class names of a column of classes or of lists of classes; [] for other columns.

    The library ``datasets`` stores classes as numbers, and their names in the schema.
    """
    try:
        about = json.loads((schema.metadata or {})[b"huggingface"])
        feature = about["info"]["features"][column]
        feature = feature.get("feature", feature)
        return list(feature["names"]) if feature["_type"] == "ClassLabel" else []
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError):
        return []


def _lower(names: Sequence[str]) -> list[str]:
    return [name.strip().lower() for name in names]


def _as_texts(column: pa.Array, classes: Sequence[str], separator: str) -> list[str]:
    """Return values as texts, "" for a missing one or NaN; items of a list are joined."""
    if pa.types.is_dictionary(column.type):
        column = _decoded(column)
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        items = _as_texts(column.flatten(), classes, separator)
        end_N = np.cumsum(column.value_lengths().fill_null(0).to_numpy())
        starts = [0, *end_N[:-1].tolist()]
        return [separator.join(items[i:j]) for i, j in zip(starts, end_N.tolist(), strict=False)]
    if classes:
        return [_class_name(value, classes) for value in column.to_pylist()]
    if pa.types.is_boolean(column.type):
        return [_as_text(value, separator) for value in column.to_pylist()]
    if pa.types.is_floating(column.type):
        # numpy writes as many digits as the type needs to tell values apart.
        values = column.to_numpy(zero_copy_only=False)
        is_there = (~np.isnan(values)).tolist()
        return [str(value) if there else "" for value, there in zip(values, is_there, strict=True)]
    return ["" if text is None else text for text in column.cast(pa.string()).to_pylist()]


def _decoded(column: pa.DictionaryArray) -> pa.Array:
    """Return the values of a column with a dictionary.

    Raises:
        pa.ArrowException: if they are larger than what may be read as a whole.
    """
    if pa.types.is_string(column.type.value_type) or pa.types.is_large_string(
        column.type.value_type
    ):
        num_bytes = pc.sum(pc.binary_length(column.dictionary).take(column.indices)).as_py() or 0
        if num_bytes > MAX_WHOLE_BYTES:
            raise pa.ArrowInvalid(
                f"{len(column):,} rows repeat texts of a dictionary up to {num_bytes:,} bytes, "
                f"want at most {MAX_WHOLE_BYTES:,}"
            )
    return column.dictionary_decode()


def _as_text(value: Any, separator: str) -> str:
    """Return a JSON value as a text, "" for null and NaN; items of a list are joined.

    Booleans and floats are written as Python and pandas do, ``True`` and ``2.0``, so that a table
    has the same texts as JSON lines, as Parquet, and as the CSV that pandas writes.
    """
    if isinstance(value, list):
        return separator.join(_as_text(item, separator) for item in value)
    is_missing = value is None or value != value
    return "" if is_missing else str(value)


def _class_name(value: Any, classes: Sequence[str]) -> str:
    if not isinstance(value, int):
        return "" if value is None else str(value)
    # -1 marks a row without a label.
    return classes[value] if 0 <= value < len(classes) else ""


def rows_at_once(num_columns: int) -> int:
    """Return the number of rows of a block."""
    return max(1, min(ROWS_AT_ONCE, CELLS_AT_ONCE // max(1, num_columns)))


def write_rows(
    path: Path, kind: str, schema: pa.Schema, blocks: Iterable[Sequence[Mapping[str, Any]]]
) -> int:
    """Write rows as TSV, JSON lines or Parquet; return their number.

    Numbers of TSV have 9 significant digits, which tell any two float32 apart. A list is written
    as its items, divided by blanks.

    Args:
        path: the file.
        kind: ``TSV``, ``JSON_LINES`` or ``PARQUET``.
        schema: names and types of the columns.
        blocks: blocks of rows; a column that a row lacks is empty.
    """
    if kind != PARQUET:
        with path.open("w", encoding="utf-8", newline="") as file:
            return write_text_rows(file, kind, schema, blocks)
    num_rows = 0
    with pq.ParquetWriter(path, schema) as parquet:
        for block in blocks:
            parquet.write_table(pa.Table.from_pylist([*block], schema=schema))
            num_rows += len(block)
    return num_rows


def write_text_rows(
    file: TextIO, kind: str, schema: pa.Schema, blocks: Iterable[Sequence[Mapping[str, Any]]]
) -> int:
    """Write rows as TSV or JSON lines to an open file, like ``write_rows``; return their number."""
    num_rows = 0
    writer = csv.writer(file, dialect="excel-tab", lineterminator="\n")
    if kind == TSV:
        writer.writerow(schema.names)
    for block in blocks:
        num_rows += len(block)
        for row in block:
            values = {name: row.get(name) for name in schema.names}
            if kind == TSV:
                writer.writerow([_as_cell(value) for value in values.values()])
            else:
                file.write(json.dumps(values, ensure_ascii=False) + "\n")
    return num_rows


def _as_cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.9g}"
    if isinstance(value, list):
        return " ".join(map(str, value))
    return str(value)
