"""Tables in CSV, for reports."""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from raybio.core.files import replace_text


def write_csv(path: Path, rows: Iterable[Sequence[object]]) -> None:
    """Write a table whose first row is the header, in UTF-8, as a whole; its folder is made.

    Raises:
        OSError: if it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    replace_text(path, text.getvalue())
