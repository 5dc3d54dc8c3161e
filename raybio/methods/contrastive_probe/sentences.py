"""Sentence files: plain text or gzip, UTF-8, one sentence a line (as the Contrastive-Probe authors' corpora).

And files of names, one a line.
"""

from pathlib import Path

from raybio.core.errors import DataError
from raybio.store.quarantine import Quarantine
from raybio.store.sources import read_lines

TOO_SHORT = "sentence of fewer than two words"


def read_sentences(path: Path, quarantine: Quarantine) -> list[str]:
    """The sentences of a file, without their stops, single blanks between words, in order; empty lines do not count.

    Args:
        path: the file.
        quarantine: takes sentences that are too short to be divided into a query and an answer.

    Raises:
        DataError: if the file is torn, not UTF-8, or holds no sentence of two words.
    """
    sentences: list[str] = []
    num_seen = 0
    for number, line in enumerate(read_lines(path, "sentences, one a line"), start=1):
        if not line.strip():
            continue
        num_seen += 1
        # The stop is no part of the last word, which would be an answer that no benchmark's name is like.
        words = line.strip().rstrip(" .!?").split()
        if len(words) < 2:
            quarantine.add(
                "sentence", TOO_SHORT, path.name, number, line.strip()[:60], is_bad=False
            )
            continue
        sentences.append(" ".join(words))
    quarantine.saw("sentence", num_seen)
    if not sentences:
        raise DataError(
            f"{path}: holds no sentence of two words or more among {num_seen:,} lines; want one a line"
        )
    return sentences


def read_names(path: Path) -> list[str]:
    """The names of a file, without blanks around them, each once, in order; empty lines do not count.

    Raises:
        DataError: if the file is not there, torn, not UTF-8, or holds no name.
    """
    names = list(
        dict.fromkeys(
            name for line in read_lines(path, "names, one a line") if (name := line.strip())
        )
    )
    if not names:
        raise DataError(f"{path}: holds no name; want one a line")
    return names
