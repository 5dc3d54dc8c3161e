"""Store of a graph of texts, such as articles that cite each other.

The store holds texts, not tokens, so that one store serves every encoder. Tokenising a batch takes
about a hundredth of a training step.
"""

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from raybio.methods.sppt.graph_store import GraphStore, LinkedRows
from raybio.store.word_counts import count_words
from raybio.store.writer import Draft

WORDS = "words.arrow"

MAX_COUNTED_TEXTS = 200_000
"""Words are counted in about this many texts, evenly spaced."""

TEXTS_PER_BLOCK = 10_000


class LinkedTextStore(GraphStore):
    """An open store of texts and their links."""

    kind = "linked texts"

    def texts(self, row_R: np.ndarray) -> list[str]:
        """Return the texts of these rows."""
        column = self._rows.column("text").take(pa.array(row_R))
        return [text.decode() for text in column.to_pylist()]

    @cached_property
    def count_by_word(self) -> dict[str, int]:
        """Counts of the most frequent words, for a tokenizer trained from scratch."""
        words = self._batch(WORDS)
        return dict(
            zip(words.column("word").to_pylist(), words.column("count").to_pylist(), strict=True)
        )


def commit_linked_texts(
    draft: Draft, rows: LinkedRows, provenance: dict[str, Any]
) -> LinkedTextStore:
    """Write and commit a store of texts, and return it open.

    Args:
        draft: the store to be written.
        rows: texts as UTF-8 bytes, and their links.
        provenance: what the manifest records of the input: ``sources``, ``parameters``,
            ``quarantine``.

    Raises:
        StoreError: if the store cannot be written.
    """
    text = rows.content.to_arrow()
    count_by_word = count_words(_evenly_spaced(text))
    words = {
        "word": pa.array(list(count_by_word), pa.string()),
        "count": pa.array(list(count_by_word.values()), pa.int64()),
    }
    tables = rows.tables(text=text) | {WORDS: words}
    return draft.commit(LinkedTextStore, tables, rows.counts("bytes"), provenance)


def _evenly_spaced(text: pa.Array) -> Iterator[str]:
    """Yield about ``MAX_COUNTED_TEXTS`` texts, evenly spaced."""
    chosen = np.arange(0, len(text), max(1, len(text) // MAX_COUNTED_TEXTS))
    for start in range(0, len(chosen), TEXTS_PER_BLOCK):
        block = text.take(pa.array(chosen[start : start + TEXTS_PER_BLOCK]))
        yield from (content.as_py().decode() for content in block)
