"""Texts, colors and links of the points of a map, found by their ids.

Shape letter: S points.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raybio.core.errors import DataError
from raybio.runtime.embed_inputs import ROWS_AT_ONCE
from raybio.store.data_sets import is_table
from raybio.store.quarantine import Quarantine
from raybio.store.sources import begins_with
from raybio.store.store import Store
from raybio.store.table_rows import ID_COLUMNS, read_columns, shown_names
from raybio.store.text_lines import read_text_lines

Value = TypeVar("Value")

CONTENT_COLUMNS = ("sequence", "text")
"""Columns with the inputs of a table, which are not labels."""

ReadFasta = Callable[[Path, Quarantine], Iterator[pa.RecordBatch]]
"""A reader of FASTA: yields columns ``key`` and ``sequence``."""

ChooseForm = Callable[[pa.Array, pa.Array], Callable[[pa.Array], pa.Array]]
"""(ids of embeddings, ids of a store) -> a function that brings both into a common form."""


def ids_of_store(store: Store, field: str) -> pa.Array:
    """Return the ids of all rows (N,)."""
    blocks = []
    for start in range(0, store.num_rows, ROWS_AT_ONCE):
        key_N, _ = store.inputs(field, start, min(start + ROWS_AT_ONCE, store.num_rows))
        blocks.append(key_N.cast(pa.large_string()))
    return pa.concat_arrays(blocks)


def rows_of_store(
    store: Store, id_N: pa.Array, keys: Sequence[str], choose_form: ChooseForm
) -> np.ndarray:
    """Return the row of each id (S,), -1 for an id that the store does not have.

    Args:
        store: the store, for the message.
        id_N: its ids.
        keys: ids of embeddings.
        choose_form: makes ids of both comparable, such as headers of UniProt and accessions.

    Raises:
        DataError: if the store has none of them.
    """
    wanted_S = pa.array(keys, pa.large_string())
    form = choose_form(wanted_S, id_N)
    index_S = pc.index_in(form(wanted_S), value_set=form(id_N))
    row_S = np.asarray(pc.fill_null(index_S, -1)).astype(np.int64)
    if (row_S < 0).all():
        raise _nothing_known(
            str(store.location),
            keys,
            str(id_N[0]),
            f"the store itself: raybio embed --input {store.location}. Or leave out --store, and "
            "give the file that was embedded: --input FILE",
        )
    return row_S


def texts_of_store(store: Store, field: str, row_S: np.ndarray) -> list[str]:
    """Return the field of each row, "" for row -1."""
    texts = []
    for row in row_S.tolist():
        content = store.inputs(field, row, row + 1)[1][0].as_py() if row >= 0 else b""
        texts.append(content.decode(errors="replace"))
    return texts


def texts_of_file(path: Path, keys: Sequence[str], read_fasta: ReadFasta) -> list[str]:
    """Return the protein or text of each id in a file of inputs, "" for a missing id.

    Args:
        path: FASTA, texts or a table, as ``raybio embed`` reads them.
        keys: ids, or numbers of rows.
        read_fasta: reads FASTA.

    Raises:
        DataError: if the file is missing or damaged, or has none of the ids.
    """
    text_by_key = _by_key(path, keys, _inputs(path, read_fasta))
    return [text_by_key.get(key, "") for key in keys]


def labels_of_table(path: Path, keys: Sequence[str]) -> dict[str, list[str]]:
    """Return the columns of a table with labels: name -> label of each id, "" for none.

    Args:
        path: a table with a column ``id``; its columns of proteins or texts are ignored.
        keys: the ids.

    Raises:
        DataError: if the file is missing, damaged or not a table, has no column of ids or no
            labels, or contains none of the ids.
    """
    wanted = "the columns 'id' and 'label'"
    if not is_table(path):
        raise DataError(f"{path}: want a table (.tsv, .csv, .jsonl, .parquet) with {wanted}")
    names: list[str] = []

    def select(columns: Sequence[str]) -> Sequence[str]:
        ids = [name for name in ID_COLUMNS if name in columns][:1]
        names[:] = [name for name in columns if name not in (*ids, *CONTENT_COLUMNS)]
        if not ids or not names:
            raise DataError(f"{path}: has the columns {shown_names(columns)}; want {wanted}")
        return [*ids, *names]

    def rows() -> Iterator[tuple[str, list[str]]]:
        for block in read_columns(path, wanted, select):
            for key, *labels in zip(*block.columns, strict=True):
                yield key, labels

    labels_by_key = _by_key(path, keys, rows())
    no_labels = [""] * len(names)
    labels_S = [labels_by_key.get(key, no_labels) for key in keys]
    return {name: [labels[number] for labels in labels_S] for number, name in enumerate(names)}


def _inputs(path: Path, read_fasta: ReadFasta) -> Iterator[tuple[str, str]]:
    """Yield ids and contents; invalid records were reported when they were embedded."""
    if is_table(path):
        with_content = functools.partial(_with_content, path)
        number = 0
        for rows in read_columns(path, "a column 'sequence' or 'text'", with_content):
            contents, *ids = rows.columns
            numbers = map(str, range(number + 1, number + len(contents) + 1))
            number += len(contents)
            yield from zip(ids[0] if ids else numbers, contents, strict=True)
        return
    is_fasta = begins_with(path, b">", "FASTA, texts or a table")
    batches = (read_fasta if is_fasta else read_text_lines)(path, Quarantine(1.0))
    for batch in batches:
        contents = batch.column("sequence" if is_fasta else "text").cast(pa.large_binary())
        texts = [content.decode(errors="replace") for content in contents.to_pylist()]
        yield from zip(batch.column("key").to_pylist(), texts, strict=True)


def _with_content(path: Path, columns: Sequence[str]) -> Sequence[str]:
    """Return the columns of contents and, if there is one, of ids."""
    contents = [name for name in CONTENT_COLUMNS if name in columns]
    if not contents:
        raise DataError(
            f"{path}: has the columns {shown_names(columns)}; want 'sequence' or 'text', and 'id'"
        )
    return [*contents[:1], *[name for name in ID_COLUMNS if name in columns][:1]]


def _by_key(
    source: Path, keys: Sequence[str], rows: Iterable[tuple[str, Value]]
) -> dict[str, Value]:
    """Return the first value of each id among ``keys``.

    Raises:
        DataError: if none of them has one.
    """
    wanted = set(keys)
    value_by_key: dict[str, Value] = {}
    example = "no id"
    for key, value in rows:
        example = key
        if key in wanted:
            value_by_key.setdefault(key, value)
    if not value_by_key:
        raise _nothing_known(str(source), keys, example, "this file")
    return value_by_key


def _nothing_known(source: str, keys: Sequence[str], example: str, wanted: str) -> DataError:
    return DataError(
        f"{source}: has none of the {len(keys):,} ids of the embeddings ({keys[0]}, ...), but "
        f"such as {example}; want embeddings of {wanted}"
    )
