"""Sentences to find entities and relations in, as words with their offsets.

A text is divided into runs of letters, digits and underscores, and single other symbols, as in the
sentences of ADE. Sentences of SpERT's JSON keep their tokens; their text is the tokens, joined by
blanks.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from raybio.methods.relation_graphs.formats import NO_WORDS, NOT_OF_THE_FORM, SENTENCE
from raybio.store.json import is_text, stream_records
from raybio.store.quarantine import Quarantine
from raybio.store.text_lines import read_text_lines

_WORD = re.compile(r"\w+|[^\w\s]")


class NewSentence(NamedTuple):
    """A sentence without annotations.

    Attributes:
        key: its id.
        text: the text, whose characters the offsets count.
        words: its words, at least one.
        start_W: offset of each word.
        end_W: end offset of each word (exclusive).
        line: line of the file, or in SpERT's JSON the number of the sentence; from 1.
    """

    key: str
    text: str
    words: tuple[str, ...]
    start_W: tuple[int, ...]
    end_W: tuple[int, ...]
    line: int

    @classmethod
    def of_text(cls, key: str, text: str, line: int) -> "NewSentence":
        """Divide a text into words."""
        matches = [*_WORD.finditer(text)]
        return cls(
            key,
            text,
            tuple(word[0] for word in matches),
            tuple(word.start() for word in matches),
            tuple(word.end() for word in matches),
            line,
        )

    @classmethod
    def of_words(cls, key: str, words: Sequence[str], line: int) -> "NewSentence":
        """Join words by blanks."""
        ends = []
        end = -1
        for word in words:
            end += 1 + len(word)
            ends.append(end)
        starts = [end - len(word) for end, word in zip(ends, words, strict=True)]
        return cls(key, " ".join(words), tuple(words), tuple(starts), tuple(ends), line)


def read_sentences(path: Path, quarantine: Quarantine) -> Iterator[NewSentence]:
    """Yield the good sentences of a file, in order.

    Args:
        path: SpERT's JSON if its name ends in ``.json`` (``.gz`` too), whose annotations are
            ignored; else texts, as ``read_text_lines`` takes them.
        quarantine: takes invalid texts and sentences. The caller counts valid sentences.

    Raises:
        DataError: if the file is missing or damaged.
    """
    if path.name.lower().removesuffix(".gz").endswith(".json"):
        yield from _read_spert(path, quarantine)
        return
    for batch in read_text_lines(path, quarantine):
        for row in batch.to_pylist():
            # A text that is not blank has a word.
            yield NewSentence.of_text(row["key"], row["text"], row["line"])


def _read_spert(path: Path, quarantine: Quarantine) -> Iterator[NewSentence]:
    for number, (_, value) in enumerate(stream_records(path), start=1):
        words: Any = value.get("tokens") if isinstance(value, dict) else None
        reason = ""
        if not isinstance(words, list) or not all(is_text(word) and word.strip() for word in words):
            reason = NOT_OF_THE_FORM
        elif not words:
            reason = NO_WORDS
        if reason:
            quarantine.saw(SENTENCE, 1)
            quarantine.add(SENTENCE, reason, path.name, number, "want a list of tokens")
        else:
            orig_id = value.get("orig_id")
            key = str(number if orig_id in (None, "") else orig_id)
            yield NewSentence.of_words(key, words, number)
