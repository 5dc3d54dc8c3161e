"""Sentences and names: one a line of a text file, or a column of a table (``read_values``)."""

from pathlib import Path

from raybio.core.errors import DataError
from raybio.store.quarantine import Quarantine
from raybio.store.text_lines import read_values

TOO_SHORT = "sentence of fewer than two words"


def read_sentences(path: Path, quarantine: Quarantine) -> list[str]:
    """Return the sentences of a file in order, with single spaces and without final stops.

    Empty lines are ignored.

    Args:
        path: the file.
        quarantine: records sentences that are too short for a query and an answer.

    Raises:
        DataError: if the file is truncated, not UTF-8, or holds no sentence of two words.
    """
    sentences: list[str] = []
    num_seen = 0
    for line_number, line in read_values(path, "sentences", ("text", "sentence")):
        if not line.strip():
            continue
        num_seen += 1
        # Names of a benchmark have no final stop, so answers should have none.
        words = line.strip().rstrip(" .!?").split()
        if len(words) < 2:
            detail = line.strip()[:60]
            quarantine.add("sentence", TOO_SHORT, path.name, line_number, detail, is_bad=False)
            continue
        sentences.append(" ".join(words))
    quarantine.saw("sentence", num_seen)
    if not sentences:
        raise DataError(
            f"{path}: holds no sentence of two words or more among {num_seen:,} lines; "
            "want one a line"
        )
    return sentences


def read_names(path: Path) -> list[str]:
    """Return the distinct names of a file in order, without surrounding spaces and empty lines.

    Raises:
        DataError: if the file is missing, truncated, not UTF-8, or holds no name.
    """
    stripped = (line.strip() for _, line in read_values(path, "names", ("name", "text")))
    names = list(dict.fromkeys(name for name in stripped if name))
    if not names:
        raise DataError(f"{path}: holds no name; want one a line")
    return names
