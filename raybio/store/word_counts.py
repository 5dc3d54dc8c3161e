"""Word counts of a corpus, for tokenizers that are trained from scratch."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping

import pyarrow as pa

from raybio.store.columns import Column
from raybio.store.store import Store

MAX_WORDS = 50_000


class WordCounts(Column[dict[str, int]]):
    """The counts of the most frequent words: a file with the columns "word" and "count"."""

    def __init__(self, file: str) -> None:
        """Declare the file."""
        super().__init__(file, "word")

    def read(self, store: Store) -> dict[str, int]:
        """Return count by word."""
        words = store.column(self.file, "word").to_pylist()
        counts = store.column(self.file, "count").to_pylist()
        return dict(zip(words, counts, strict=True))

    def arrays(self, value: Mapping[str, int]) -> dict[str, pa.Array]:
        """Return words and counts as Arrow arrays."""
        return {
            "word": pa.array(list(value), pa.string()),
            "count": pa.array(list(value.values()), pa.int64()),
        }


class WordCounter:
    """Counts lower-case words in a stream of texts."""

    def __init__(self) -> None:
        """Start without words."""
        self._count_by_word: Counter[str] = Counter()

    def add(self, texts: Iterable[str]) -> None:
        """Count the words of more texts."""
        for text in texts:
            self._count_by_word.update(re.findall(r"[^\W_]+", text.lower()))

    def most_frequent(self) -> dict[str, int]:
        """Return the ``MAX_WORDS`` most frequent words, ties alphabetically."""
        ordered = sorted(self._count_by_word.items(), key=lambda item: (-item[1], item[0]))
        return dict(ordered[:MAX_WORDS])


def count_words(texts: Iterable[str]) -> dict[str, int]:
    """Count lower-case words; return the ``MAX_WORDS`` most frequent, ties alphabetically."""
    counter = WordCounter()
    counter.add(texts)
    return counter.most_frequent()
