"""Texts of inverted indices, as Microsoft Academic Graph and OpenAlex publish abstracts."""

import re
from typing import Any

MAX_WORDS = 100_000
"""Upper bound of word positions in an inverted index."""


def text_of_index(positions_by_word: Any) -> str:
    """Return the text of an index {word: [positions]}, without a leading word "abstract".

    Raises:
        ValueError: if it is no inverted index.
    """
    try:
        word_by_position: dict[int, str] = {}
        for word, positions in positions_by_word.items():
            for position in positions:
                word_by_position[int(position)] = word
    except (TypeError, AttributeError, OverflowError):
        raise ValueError("is no inverted index") from None
    if word_by_position and not (min(word_by_position) >= 0 and max(word_by_position) < MAX_WORDS):
        raise ValueError(f"has positions outside 0 to {MAX_WORDS:,}")
    words = [word_by_position[position] for position in sorted(word_by_position)]
    return without_heading(" ".join(words))


def without_heading(text: str) -> str:
    """Return a text without surrounding blanks and a leading word "abstract"."""
    return re.sub(r"^abstract\b[\s:.\-]*", "", text.strip(), flags=re.IGNORECASE)
