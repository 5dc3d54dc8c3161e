"""Files of links in any common form: with or without a header, 2 or 3 columns, any delimiter.

    protein_a,protein_b,score          P04637 Q00987 0.9          {"source": "P04637", …}
    P04637,Q00987,0.9                  P04637 P38398 0.4

The suffixes ``.parquet`` and ``.jsonl`` name tables, and folders are data sets. For other files,
the first line decides:

- The delimiter is a tab if it has one, else the more frequent of comma and semicolon, else a blank.
- It is a header if it names two columns of ``ID_COLUMNS``. There may be any other columns; a score
  has a name of ``SCORE_COLUMNS``.
- Else the table has two columns, or three with a score. A first line whose score is no number, or
  which names no protein while others do, is a header with other names.

Shape letters: N proteins, E links of a block.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from raybio.core.errors import DataError
from raybio.methods.sppt.table_columns import (
    DELIMITERS,
    QUOTED,
    find_delimiter,
    is_missing,
    read_arrow_columns,
    split_fields,
    trimmed,
)
from raybio.store.quarantine import Quarantine
from raybio.store.sources import read_lines
from raybio.store.table_rows import is_typed_table, read_columns, shown_names

ID_COLUMNS = (
    ("protein_a", "protein_b"),
    ("protein1", "protein2"),
    ("protein_1", "protein_2"),
    ("interactor_a", "interactor_b"),
    ("stringid_a", "stringid_b"),
    ("id(s) interactor a", "id(s) interactor b"),
    ("source", "target"),
    ("from", "to"),
    ("node1", "node2"),
    ("id1", "id2"),
)
"""Names of the columns of ids, in lower case, by rank; including STRING's and PSI-MITAB's."""

SCORE_COLUMNS = ("combined_score", "score", "weight", "confidence", "label")
"""Names of the column of scores, by rank; ``label`` is 1 for a link and 0 for a pair without."""

TRUE = ("1", "true")
FALSE = ("0", "false")
MAX_LABELS = 16
"""Maximum number of spellings of two labels: 1, 1.0, 1.00 and so on."""

STRING_COLUMNS = ("protein1", "protein2", "combined_score")
"""The columns of STRING's ``protein.links``."""

WANTED = (
    "a table of links: two columns of ids, and perhaps a score, or a header such as "
    f"{', '.join(ID_COLUMNS[0])}, score"
)


class LinkFile(NamedTuple):
    """The layout of a file of links.

    Attributes:
        path: the file.
        delimiter: between columns; "" for Parquet and JSON lines, whose columns have names.
        columns: the two columns of ids, and perhaps one of scores.
        names: all columns of a table without names in its first line, else None.
        is_named: whether the columns were chosen by their names.
        unread: names of a table's other columns.
    """

    path: Path
    delimiter: str
    columns: tuple[str, ...]
    names: tuple[str, ...] | None
    is_named: bool
    unread: tuple[str, ...] = ()

    @property
    def has_scores(self) -> bool:
        """Whether there is a column of scores."""
        return len(self.columns) == 3

    @property
    def has_string_scores(self) -> bool:
        """Whether the columns are those of STRING's ``protein.links``."""
        return self.columns == STRING_COLUMNS

    def __str__(self) -> str:
        """Return how the file is read, for the table of a store."""
        form = f"{DELIMITERS[self.delimiter]}-separated" if self.delimiter else "named columns"
        if self.is_named:
            columns = f"columns {', '.join(self.columns)}"
        else:
            columns = "columns 1 and 2" + (", score in column 3" if self.has_scores else "")
            columns += ", no header" if self.names else ", a header in line 1"
        return f"{form}, {columns}"


def read_layout(path: Path) -> LinkFile:
    """Return the layout of a file of links.

    Raises:
        DataError: if it is missing, empty, or in no such form.
    """
    if is_typed_table(path):
        return _typed_layout(path)
    lines = [line.rstrip("\r\n") for line in islice(read_lines(path, WANTED), 2)]
    if not lines or not lines[0].strip():
        begins = "begins with an empty line" if lines else "is empty"
        raise DataError(f"{path}: {begins}, want {WANTED}")
    if lines[0].startswith(">"):
        raise DataError(f"{path}: is FASTA, as of --proteins; want {WANTED}")
    delimiter = find_delimiter(lines[0])
    if not delimiter:
        raise DataError(
            f"{path}, line 1: {lines[0][:40]!r} has one column, want {WANTED}, divided by tabs, "
            "commas, semicolons or one blank"
        )
    first, *others = [split_fields(line, delimiter, path) for line in lines]
    chosen = link_columns(first)
    if chosen:
        return LinkFile(path, delimiter, chosen, None, True, _unread(first, chosen))
    if len(first) > 3 or "" in first:
        advice = (
            f"Rename the two columns of ids {' and '.join(ID_COLUMNS[0])}; other columns may stay"
        )
        if any(map(is_number, first)):
            advice = (
                f"Give the first line names: {' and '.join(ID_COLUMNS[0])} for the two columns of "
                "ids; or keep these two, and perhaps a score in column 3"
            )
        if "" in first:
            advice = f"Want one {DELIMITERS[delimiter]} between two columns, and no empty name"
        raise DataError(
            f"{path}, line 1: has the columns {', '.join(map(repr, first[:6]))}; want {WANTED}. "
            f"{advice}"
        )
    has_score = len(first) == 3
    if has_score and not is_number(first[2]):
        if not others or len(others[0]) != 3 or not is_number(others[0][2]):
            raise DataError(f"{path}, line 1: the third column is {first[2]!r}, want {WANTED}")
        return LinkFile(path, delimiter, tuple(first), None, False)
    names = tuple(f"column {number}" for number in range(1, len(first) + 1))
    return LinkFile(path, delimiter, names, names, False)


def read_link_columns(
    file: LinkFile, quarantine: Quarantine, *, with_scores: bool, block_bytes: int
) -> Iterator[tuple[pa.Array, ...]]:
    """Yield the two ids of each link, its score if that is wanted, and its line, in blocks.

    Raises:
        DataError: if the file is torn or damaged.
    """
    columns = file.columns if with_scores else file.columns[:2]
    if not file.delimiter:
        for rows in read_columns(file.path, WANTED, lambda _: columns):
            texts = [trimmed(pa.array(column, pa.string())) for column in rows.columns]
            yield *texts, pa.array(rows.lines, pa.int64())
        return
    blocks = read_arrow_columns(
        file.path,
        columns,
        (pa.string(),) * len(columns),
        "link",
        quarantine,
        block_bytes,
        file.delimiter,
        names=file.names,
        has_quotes=file.delimiter in QUOTED,
    )
    for *texts, line in blocks:
        if file.delimiter != " ":
            # "a, b" is common.
            texts = [trimmed(text) for text in texts]
        yield *texts, line


def sample_ids(file: LinkFile, *, block_bytes: int) -> pa.Array:
    """Return the distinct ids of the first block of a file of links."""
    blocks = read_link_columns(file, Quarantine(), with_scores=False, block_bytes=block_bytes)
    for a, b, _ in blocks:
        return pc.unique(pa.concat_arrays([a, b]))
    return pa.array([], pa.string())


def check_labels(file: LinkFile, *, block_bytes: int) -> None:
    """Refuse a file whose scores are labels, if all of its pairs are to be links.

    A file of other scores is read up to its first block with one of them.

    Raises:
        DataError: if the column of scores holds both 0 and 1, and nothing else.
    """
    if not file.has_scores:
        return
    seen: set[str] = set()
    blocks = read_link_columns(file, Quarantine(), with_scores=True, block_bytes=block_bytes)
    for _, _, score, _ in blocks:
        texts = pc.unique(score.filter(pa.array(~is_missing(score)))).to_pylist()
        seen.update(texts if len(texts) > MAX_LABELS else map(_label, texts))
        if not seen <= {*TRUE, *FALSE}:
            return
    if seen.isdisjoint(TRUE) or seen.isdisjoint(FALSE):
        return
    column = f"column {file.columns[2]}" if file.is_named else "column 3"
    pairs = "--min-score 1 keeps the pairs with 1"
    if not seen <= {TRUE[0], FALSE[0]}:
        pairs = "Write 1 and 0, and give --min-score 1 to keep the pairs with 1"
    raise DataError(
        f"{file.path}: {column} holds {' and '.join(sorted(seen))} and nothing else, as labels do, "
        f"and --min-score 0 makes a link of every pair. {pairs}. If all pairs are links, remove "
        "the column"
    )


def _label(text: str) -> str:
    """Return "0" and "1" for numbers that equal them, else the text in lower case."""
    text = text.strip().lower()
    if is_number(text) and float(text) in (0, 1):
        return str(int(float(text)))
    return text


def link_columns(names: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of two ids, and perhaps of the score, among names; () for none."""
    by_lower = {_plain(name): name for name in names}
    for pair in ID_COLUMNS:
        ids = [_plain(name) for name in pair]
        if all(name in by_lower for name in ids):
            scores = [by_lower[name] for name in SCORE_COLUMNS if name in by_lower]
            return (*[by_lower[name] for name in ids], *scores[:1])
    return ()


def _unread(names: Sequence[str], chosen: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for name in names if name and name not in chosen)


def _plain(name: str) -> str:
    """Return a column's name as it is compared: "Protein A" is ``protein_a``."""
    return name.strip().lstrip("#").lower().replace(" ", "_")


def is_number(text: str) -> bool:
    """Return whether a text is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _typed_layout(path: Path) -> LinkFile:
    """Return the layout of Parquet or JSON lines."""
    chosen: list[str] = []
    unread: list[str] = []

    def select(names: Sequence[str]) -> Sequence[str]:
        """Return the columns to read; note these and the unread ones."""
        chosen.extend(link_columns(names))
        unread.extend(_unread(names, chosen))
        if not chosen:
            raise DataError(
                f"{path}: has the columns {shown_names(names)}; want two that are named "
                f"{' and '.join(ID_COLUMNS[0])} (or {' and '.join(ID_COLUMNS[4])}), and perhaps "
                f"{SCORE_COLUMNS[1]}"
            )
        return chosen

    next(read_columns(path, WANTED, select), None)
    return LinkFile(path, "", tuple(chosen), None, True, tuple(unread))
