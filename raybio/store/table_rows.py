"""Tables of inputs and of predictions, in blocks of rows: TSV, CSV, JSON lines and Parquet."""

import csv
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import pyarrow as pa
import pyarrow.parquet as pq

from raybio.core.errors import DataError
from raybio.store.sources import read_lines

ROWS_AT_ONCE = 4096

ID_COLUMNS = ("id", "key", "protein_id")
"""Names of the column with the ids of rows, by rank; without one, rows are numbered from 1.

``protein_id`` is that of the table of proteins that ``prepare`` reads.
"""

_DELIMITERS = {".tsv": "\t", ".csv": ","}
PARQUET = ".parquet"
TSV = ".tsv"
JSON_LINES = ".jsonl"


class InputRows(NamedTuple):
    """Some rows of a table.

    Attributes:
        keys: ids, or numbers of the rows from 1.
        contents: the wanted column; "" where it is missing.
        lines: line of each row in its file; in Parquet its number, from 1.
    """

    keys: list[str]
    contents: list[str]
    lines: list[int]


class ColumnRows(NamedTuple):
    """Some rows of a table.

    Attributes:
        columns: values of each column as texts; "" where one is missing.
        lines: line of each row in its file; in Parquet its number, from 1.
    """

    columns: list[list[str]]
    lines: list[int]


def is_table(path: Path) -> bool:
    """Return whether a file's name says that it is a table with named columns."""
    return _suffix(path) in (*_DELIMITERS, JSON_LINES, PARQUET)


def is_parquet_or_json(path: Path) -> bool:
    """Return whether a file's name says Parquet or JSON lines: each value has a named column."""
    return _suffix(path) in (JSON_LINES, PARQUET)


def read_input_rows(path: Path, column: str) -> Iterator[InputRows]:
    """Yield the rows of a table with named columns; names are compared in lower case.

    Args:
        path: ``.tsv`` or ``.csv`` with a header, ``.jsonl`` (each ``.gz`` too), or ``.parquet``.
        column: name of the wanted column.

    Raises:
        DataError: if the file is missing or damaged, or has no such column, with the line.
    """

    def with_ids(names: Sequence[str]) -> list[str]:
        if column not in names:
            raise DataError(
                f"{path}: has the columns {', '.join(names)}; want one named {column!r}, and "
                f"perhaps {ID_COLUMNS[0]!r}. Rename it in the first line"
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
    path: Path, wanted: str, select: Callable[[Sequence[str]], Sequence[str]]
) -> Iterator[ColumnRows]:
    """Yield some columns of a table in blocks of rows.

    Args:
        path: ``.tsv`` or ``.csv`` with a header, ``.jsonl`` (each ``.gz`` too), or ``.parquet``.
            The columns of JSON lines are the names in the first object.
        wanted: its columns, for messages.
        select: returns the names of the columns to read; it gets all names, in lower case.

    Raises:
        DataError: if the file is missing or damaged, with the line.
    """
    if _suffix(path) == PARQUET:
        return _read_parquet(path, wanted, select)
    if _suffix(path) == JSON_LINES:
        return _read_json_lines(path, wanted, select)
    return _read_delimited(path, wanted, select, _DELIMITERS[_suffix(path)])


def _read_delimited(
    path: Path, wanted: str, select: Callable[[Sequence[str]], Sequence[str]], delimiter: str
) -> Iterator[ColumnRows]:
    rows = csv.reader(read_lines(path, f"a table with {wanted}"), delimiter=delimiter, strict=True)
    try:
        names = next(rows, None)
        if names is None:
            raise DataError(f"{path}: is empty, want a header line with {wanted}")
        lower = _lower(names)
        indices = [lower.index(name) for name in select(lower)]
        block = ColumnRows([[] for _ in indices], [])
        for row in rows:
            if not row:
                continue
            if len(row) != len(names):
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
    except csv.Error as error:
        raise DataError(
            f"{path}, line {rows.line_num}: cannot be read as a table ({error}); want quotes only "
            "around whole fields, doubled inside them"
        ) from None
    if block.lines:
        yield block


def _read_json_lines(
    path: Path, wanted: str, select: Callable[[Sequence[str]], Sequence[str]]
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
        if not block.columns:
            block = ColumnRows([[] for _ in chosen], [])
        for column, name in zip(block.columns, chosen, strict=True):
            column.append(_as_text(value_by_name.get(name)))
        block.lines.append(number)
        if len(block.lines) == ROWS_AT_ONCE:
            yield block
            block = ColumnRows([], [])
    if chosen is None:
        raise DataError(f"{path}: is empty, want JSON lines with {wanted}")
    if block.lines:
        yield block


def _read_parquet(
    path: Path, wanted: str, select: Callable[[Sequence[str]], Sequence[str]]
) -> Iterator[ColumnRows]:
    if not path.is_file():
        raise DataError(
            f"{path}: cannot be read (there is no such file), want a Parquet file with {wanted}"
        )
    try:
        with pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
            lower = _lower(names)
            chosen = [names[lower.index(name)] for name in select(lower)]
            number = 0
            for batch in file.iter_batches(batch_size=ROWS_AT_ONCE, columns=chosen):
                numbers = range(number + 1, number + len(batch) + 1)
                number += len(batch)
                yield ColumnRows([_as_texts(batch.column(name)) for name in chosen], list(numbers))
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: cannot be read as Parquet ({error}); write it again") from None


def _lower(names: Sequence[str]) -> list[str]:
    return [name.strip().lower() for name in names]


def _as_texts(column: pa.Array) -> list[str]:
    """Return values as texts, "" where one is missing; the items of a list divided by blanks."""
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        return list(map(_as_text, column.to_pylist()))
    return ["" if text is None else text for text in column.cast(pa.string()).to_pylist()]


def _suffix(path: Path) -> str:
    return Path(path.name.lower().removesuffix(".gz")).suffix


def _as_text(value: Any) -> str:
    if value is None:
        return ""
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


@contextmanager
def replaced_file(path: Path) -> Iterator[Path]:
    """Yield a path next to ``path``, whose file replaces it if the block succeeds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield partial
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


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
    """Write rows as TSV or JSON lines to an open file; return their number. As ``write_rows``."""
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
