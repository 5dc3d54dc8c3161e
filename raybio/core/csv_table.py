"""Tables in CSV, for reports."""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path


def write_csv(path: Path, rows: Iterable[Sequence[object]]) -> None:
    """Write a table whose first row is the header, in UTF-8; its folder is made.

    Raises:
        OSError: if it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
