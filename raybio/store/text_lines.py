"""Texts in files: one a line, or an id, a tab and the text; or a column of a table."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa

from raybio.core.errors import DataError
from raybio.store.data_sets import is_table
from raybio.store.quarantine import Quarantine
from raybio.store.sources import read_lines
from raybio.store.table_rows import choose_columns, read_columns, read_input_rows

LINES_AT_ONCE = 4096

TEXT_SCHEMA = pa.schema([("key", pa.string()), ("text", pa.large_string()), ("line", pa.int64())])


def read_text_lines(path: str | Path, quarantine: Quarantine) -> Iterator[pa.RecordBatch]:
    """Read the texts of a file, in blocks.

    A table (``is_table``) has a column "text", and perhaps "id". Of other files the first line
    decides the format. If it has a tab, each line is an id and a text. If not, each line is a text,
    and its number, from 1, is its id.

    Args:
        path: UTF-8; gzip is recognized by its content.
        quarantine: collects lines without text, without id, or with an unexpected tab. Empty lines
            are counted, but not as invalid.

    Yields:
        Valid lines in ``TEXT_SCHEMA``.

    Raises:
        DataError: if the file is missing, a truncated gzip, not UTF-8, or FASTA.
    """
    if is_table(Path(path)):
        yield from _read_table(Path(path), quarantine)
        return
    name = Path(path).name
    has_ids: bool | None = None
    keys: list[str] = []
    texts: list[str] = []
    lines: list[int] = []
    for number, line in enumerate(read_lines(Path(path), "a file of texts"), start=1):
        content = line.rstrip("\r\n")
        quarantine.saw("text", 1)
        if not content.strip():
            quarantine.add("text", "empty line", name, number, is_bad=False)
            continue
        if has_ids is None:
            if content.startswith(">"):
                raise DataError(
                    f"{path}, line {number}: begins with '>' like a FASTA file, but the model "
                    "reads texts. Give one text a line or ID<TAB>TEXT, or a model of proteins"
                )
            has_ids = "\t" in content
        key, tab, text = content.partition("\t") if has_ids else (str(number), "", content)
        if reason := _problem(key, tab, text, has_ids):
            quarantine.add("text", reason, name, number, content)
            continue
        keys.append(key)
        texts.append(text)
        lines.append(number)
        if len(keys) == LINES_AT_ONCE:
            yield _batch(keys, texts, lines)
            keys = []
            texts = []
            lines = []
    if keys:
        yield _batch(keys, texts, lines)


def read_values(path: Path, wanted: str, columns: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """Yield the number and text of each line; of a table (``is_table``) those of each row.

    Args:
        path: the file.
        wanted: what a line should be, for messages.
        columns: names of the table's column, by priority.

    Raises:
        DataError: if the file is missing, damaged, or a table without such a column.
    """
    if not is_table(path):
        yield from enumerate(read_lines(path, f"{wanted}, one a line"), start=1)
        return
    select = partial(choose_columns, path, required=(columns,))
    for rows in read_columns(path, f"a column {columns[0]!r}", select):
        yield from zip(rows.lines, rows.columns[0], strict=True)


def _read_table(path: Path, quarantine: Quarantine) -> Iterator[pa.RecordBatch]:
    """Yield the valid rows of a table."""
    for rows in read_input_rows(path, "text"):
        quarantine.saw("text", len(rows.keys))
        keys = []
        texts = []
        lines = []
        for key, text, line in zip(rows.keys, rows.contents, rows.lines, strict=True):
            if text.strip() and key.strip():
                keys.append(key)
                texts.append(text)
                lines.append(line)
            else:
                reason = "row without an id" if text.strip() else "row without a text"
                quarantine.add("text", reason, path.name, line, key)
        yield _batch(keys, texts, lines)


def _problem(key: str, tab: str, text: str, has_ids: bool) -> str | None:
    """Return what is wrong with a line, None if nothing is."""
    if not has_ids:
        return "tab in a file whose first line has none" if "\t" in text else None
    if not tab:
        return "no tab between id and text"
    if not key.strip():
        return "no id before the tab"
    return None if text.strip() else "no text after the tab"


def _batch(keys: list[str], texts: list[str], lines: list[int]) -> pa.RecordBatch:
    columns = [
        pa.array(keys, pa.string()),
        pa.array(texts, pa.large_string()),
        pa.array(lines, pa.int64()),
    ]
    return pa.record_batch(columns, schema=TEXT_SCHEMA)
