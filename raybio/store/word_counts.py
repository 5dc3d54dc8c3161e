"""Counting words, for tokenizers that are made from a corpus."""

import re
from collections import Counter
from collections.abc import Iterable

MOST_WORDS = 50_000


def count_words(texts: Iterable[str]) -> dict[str, int]:
    """How often the commonest lower-case words occur, most frequent first and then by the alphabet."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(re.findall(r"[^\W_]+", text.lower()))
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return dict(ordered[:MOST_WORDS])
