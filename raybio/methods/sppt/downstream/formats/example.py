"""One row of a task, as every reader of this folder yields it, and what the readers share."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from raybio.core.errors import DataError, one_line
from raybio.store.sources import plain_or_gzip

UNKNOWN = "?"
"""Label of a residue that a reader does not know. Such rows are skipped."""

SS3 = {0: "H", 1: "E", 2: "C"} | {letter: letter for letter in "HEC"}
"""The three states of secondary structure by TAPE's number, and by letter."""


class Example(NamedTuple):
    """One row of a source.

    Attributes:
        content: residues or text.
        split: one of ``SPLITS``.
        label: class, number, names of a set of classes, or the class of each residue, "" for an
            unlabeled one.
        file: name of the source file.
        line: line or record in it, from 1.
    """

    content: str
    split: str
    label: str | float | Sequence[str]
    file: str
    line: int


class TaskFiles(NamedTuple):
    """The files of a task, and the examples in them."""

    files: list[Path]
    examples: Iterator[Example]


@contextmanager
def named_errors(path: Path, position: str, wanted: str) -> Iterator[None]:
    """Turn an error about one record into a ``DataError`` that names file, position and layout."""
    try:
        yield
    except (KeyError, ValueError, TypeError, IndexError, AttributeError) as error:
        raise DataError(
            f"{path}, {position}: cannot be read ({one_line(error)}), want {wanted}"
        ) from None


def existing(path: Path) -> Path | None:
    """Return the path, or that of its ``.gz``, if it is a file or an LMDB folder, else None."""
    path = plain_or_gzip(path)
    return path if data_file(path).is_file() else None


def data_file(path: Path) -> Path:
    """Return the file with the data: for an LMDB folder, the file inside it."""
    return path / "data.mdb" if path.is_dir() else path
