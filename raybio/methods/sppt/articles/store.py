"""Store of a graph of texts, such as articles that cite each other.

The store holds texts, not tokens, so that one store serves every encoder. A machine keeps the
tokens of long runs in its cache (``raybio.store.token_cache``).
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raybio.methods.sppt.graph_store import ROWS, GraphStore, LinkedRows
from raybio.store.columns import ArrowColumn, column_tables
from raybio.store.prefetch import byte_lengths, take_rows
from raybio.store.text_keys import text_keys
from raybio.store.word_counts import WordCounts, count_words
from raybio.store.writer import Draft

WORDS = "words.arrow"

MAX_COUNTED_TEXTS = 200_000
"""Words are counted in about this many texts, evenly spaced."""

TEXTS_PER_BLOCK = 10_000
"""Texts in memory at once."""


class LinkedTextStore(GraphStore):
    """An open store of texts and their links."""

    kind = "linked texts"

    input_fields = ("text",)

    text = ArrowColumn(ROWS, "text")
    """Text of each row, UTF-8."""

    count_by_word = WordCounts(WORDS)
    """Counts of the most frequent words, for a tokenizer trained from scratch."""

    def inputs(self, field: str, start: int, end: int) -> tuple[pa.Array, pa.Array]:
        """Return ids and texts of some rows."""
        num = end - start
        keys = self.keys.slice(start, num).cast(pa.string())
        return keys, self.text.slice(start, num).cast(pa.large_binary())

    def texts(self, row_R: np.ndarray) -> list[str]:
        """Return the texts of these rows."""
        return [text.decode() for text in take_rows(self.text, row_R).to_pylist()]

    def text_lengths(self, row_R: np.ndarray) -> np.ndarray:
        """Return the bytes of these rows' texts (R,)."""
        return byte_lengths(self.text, row_R)


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
    tables = column_tables(
        LinkedTextStore, rows.columns() | {"text": text, "count_by_word": count_by_word}
    )
    return draft.commit(LinkedTextStore, tables, rows.counts("bytes"), provenance)


def text_copies(text: pa.Array) -> NDArray[np.int64]:
    """Return the number of each text (N,): equal for copies, see ``text_keys``.

    Texts without a letter or digit are copies of no other.

    Args:
        text: UTF-8 bytes.
    """
    keys = text_keys(content.as_py().decode() for content in text)
    number_N: NDArray[np.int64] = np.unique(keys, return_inverse=True)[1].astype(np.int64)
    empty = np.flatnonzero(keys == 0)
    number_N[empty] = len(keys) + np.arange(len(empty))
    return number_N


def _evenly_spaced(text: pa.Array) -> Iterator[str]:
    """Yield about ``MAX_COUNTED_TEXTS`` texts, evenly spaced."""
    chosen = np.arange(0, len(text), max(1, len(text) // MAX_COUNTED_TEXTS))
    for start in range(0, len(chosen), TEXTS_PER_BLOCK):
        block = text.take(pa.array(chosen[start : start + TEXTS_PER_BLOCK]))
        yield from (content.as_py().decode() for content in block)
