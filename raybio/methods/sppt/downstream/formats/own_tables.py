"""Reader of users' own labeled tables: a sequence or text, a label, and perhaps a split.

FLIP's tables (``sequence, target, set, validation``) are among them.
"""

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from raybio.core.errors import DataError
from raybio.methods.sppt.downstream.config import DownstreamTask
from raybio.methods.sppt.downstream.formats.example import Example, TaskFiles
from raybio.methods.sppt.table_columns import NULL_WORDS
from raybio.store.data_sets import STATE, check_shards, is_table
from raybio.store.table_rows import TABLES, read_columns, shown_names

LABEL_COLUMNS = ("label", "target")
SPLIT_COLUMNS = ("split", "set")
VALIDATION = "validation"
"""Column of FLIP's tables: True marks the training rows that are dev."""

SPLIT_BY_NAME = {
    "train": "train",
    "training": "train",
    "dev": "dev",
    "development": "dev",
    "val": "dev",
    "valid": "dev",
    "validation": "dev",
    "eval": "dev",
    "test": "test",
    "testing": "test",
}
"""Names of splits in tables and of files, in lower case."""

NO_CLASS = ("nan", "NaN")
"""Words for a missing class in data frames. Other ``NULL_WORDS``, such as None, may be names."""

NO_LABEL = "-"
"""Tag of a residue without a label."""

LABEL_SEPARATOR = ";"
"""Separates the labels of a row that may have several."""


def read_own_tables(task: DownstreamTask, source: Path) -> TaskFiles:
    """Return the examples of a table, or of a folder with a table for each split.

    Examples of a table without a split have the split "": they are drawn when the store is
    prepared.

    Args:
        task: a user's own task.
        source: a table with the columns ``sequence`` or ``text``, ``label`` (or ``target``) and
            perhaps ``split`` (or ``set``): train, dev or test. Or a folder of such tables, whose
            names begin with these words, as data sets of the hub and ``save_to_disk`` have them.

    Raises:
        DataError: if there is no table. Iterating raises it for columns that are missing and for
            damaged records.
    """
    split_by_path = _tables(source)
    examples = (
        example
        for path, split in split_by_path.items()
        for example in read_labeled_rows(task, path, split)
    )
    return TaskFiles(list(split_by_path), examples)


def _tables(source: Path) -> dict[Path, str]:
    """Return the split of each table; "" if a column or a draw decides."""
    if not source.is_dir() or (source / STATE).is_file():
        if not is_table(source):
            raise DataError(f"{source}: want {TABLES}, or a folder of tables")
        return {source: ""}
    split_by_path = {}
    for path in sorted([*source.iterdir(), *source.glob("data/*")]):
        # train.csv, or train-00000-of-00002.parquet as the hub's data sets have it.
        word = re.split(r"[^a-z]", path.name.lower(), maxsplit=1)[0]
        split = SPLIT_BY_NAME.get(word)
        if split is not None and is_table(path):
            split_by_path[path] = split
    if not split_by_path:
        raise DataError(
            f"{source}: want tables of its splits, such as train.csv, dev.csv and test.csv (.tsv, "
            ".parquet)"
        )
    for split in set(split_by_path.values()):
        check_shards(source, [path for path, own in split_by_path.items() if own == split])
    return split_by_path


def read_labeled_rows(task: DownstreamTask, path: Path, split: str = "") -> Iterator[Example]:
    """Yield the rows of a table.

    Args:
        task: decides what a label is, and the column of contents.
        path: the table.
        split: of all rows; "": the column of splits decides, if there is one.

    Raises:
        DataError: as ``read_own_tables``.
    """
    content_column = "text" if task.on_texts else "sequence"
    wanted = f"the columns {content_column!r} and {LABEL_COLUMNS[0]!r}"

    def select(names: Sequence[str]) -> list[str]:
        """Return the columns to be read, and refuse a table without a content or a label."""
        labels = [name for name in LABEL_COLUMNS if name in names]
        if content_column not in names or not labels:
            raise DataError(
                f"{path}: has the columns {shown_names(names)}; want {wanted}, and perhaps "
                f"{SPLIT_COLUMNS[0]!r}. Rename them in the first line"
            )
        splits = [name for name in SPLIT_COLUMNS if name in names]
        if split or not splits:
            return [content_column, labels[0]]
        validation = [VALIDATION] if VALIDATION in names else []
        return [content_column, labels[0], splits[0], *validation]

    separator = LABEL_SEPARATOR if task.labels == "class_set" else " "
    for rows in read_columns(path, wanted, select, separator=separator):
        for line, content, label, *where in zip(rows.lines, *rows.columns, strict=True):
            yield Example(
                content.strip() if task.on_texts else _residues(content.strip()),
                split or (_split(where, path, line) if where else ""),
                _label(task, label.strip()),
                path.name,
                line,
            )


def _split(where: Sequence[str], path: Path, line: int) -> str:
    """Return the split from the column of splits and perhaps FLIP's column of validation."""
    name, *validation = where
    split = SPLIT_BY_NAME.get(name.strip().lower())
    if split is None:
        raise DataError(
            f"{path}, line {line}: the split is {name!r:.60}, want train, dev (or val, "
            "validation) or test"
        )
    is_dev = split == "train" and validation and validation[0].strip().lower() == "true"
    return "dev" if is_dev else split


def _residues(text: str) -> str:
    """Return a sequence in capital letters; "" for a word that means a missing one."""
    # "NA" and "nan" would be peptides.
    return "" if text in NULL_WORDS else text.upper()


def _label(task: DownstreamTask, label: str) -> str | float | list[str]:
    """Return a class, a set of classes, a number (NaN for a text that is none), or residues' tags.

    Names of a set are separated by ``LABEL_SEPARATOR``; blank names are skipped, and repeated names
    count once. Tags of several letters are separated by blanks.
    """
    if label in NO_CLASS and task.labels in ("class", "class_set"):
        label = ""
    if task.labels == "class":
        return label
    if task.labels == "class_set":
        names = {name.strip() for name in label.split(LABEL_SEPARATOR)}
        return sorted(names - {""})
    if task.labels == "residues":
        tags = label.split() if " " in label else list(label)
        return ["" if tag == NO_LABEL else tag for tag in tags]
    try:
        return float(label)
    except ValueError:
        return math.nan
