"""The store of a graph of texts: articles that cite each other, for instance.

Texts are stored as text, not as tokens: one store serves every encoder, and tokenising a batch costs a hundredth of a
training step.

Texts as tokens, for the collation of linked texts.

Shape letters: R texts, T tokens of them end to end.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from raybio.encoders.tokenization import Tokenise
from raybio.methods.sppt.graph_store import GraphStore, LinkedRows
from raybio.store.vocabulary_counts import count_words
from raybio.store.writer import Draft

WORDS = "words.arrow"


TEXTS_COUNTED = 200_000


_TEXTS_AT_ONCE = 10_000


class LinkedTextStore(GraphStore):
    """An open store of texts and their links."""

    kind = "linked texts"

    def texts(self, row_R: np.ndarray) -> list[str]:
        """The texts of some rows."""
        return [
            text.decode() for text in self._rows.column("text").take(pa.array(row_R)).to_pylist()
        ]

    @cached_property
    def count_by_word(self) -> dict[str, int]:
        """How often the commonest words occur, for a tokenizer that is made from scratch."""
        words = self._batch(WORDS)
        return dict(
            zip(words.column("word").to_pylist(), words.column("count").to_pylist(), strict=True)
        )


def commit_linked_texts(
    draft: Draft, rows: LinkedRows, provenance: dict[str, Any]
) -> LinkedTextStore:
    """Write and commit a store of texts.

    Args:
        draft: where it is made.
        rows: texts; their content is UTF-8.
        provenance: the manifest's account of the input: ``sources``, ``parameters``, ``quarantine``.

    Raises:
        StoreError: if the store cannot be written.
    """
    text = rows.content.to_arrow()
    count_by_word = count_words(_some(text))
    words = {
        "word": pa.array(list(count_by_word), pa.string()),
        "count": pa.array(list(count_by_word.values()), pa.int64()),
    }
    return draft.commit(
        LinkedTextStore, rows.tables(text=text) | {WORDS: words}, rows.counts("bytes"), provenance
    )


def _some(text: pa.Array) -> Iterator[str]:
    """A part of the texts, evenly spaced."""
    chosen = np.arange(0, len(text), max(1, len(text) // TEXTS_COUNTED))
    for start in range(0, len(chosen), _TEXTS_AT_ONCE):
        yield from (
            one.as_py().decode()
            for one in text.take(pa.array(chosen[start : start + _TEXTS_AT_ONCE]))
        )


class HasTexts(Protocol):
    """A store of texts, or whatever else has a text for each row; picklable."""

    def texts(self, row_R: np.ndarray) -> list[str]:
        """The texts of some rows."""
        ...


@dataclass(frozen=True)
class TextRows:
    """Texts as tokens, cut to their first ones; a ``collate.ReadRows``.

    Attributes:
        linked: has the texts.
        tokenise: makes tokens of them, special ones included.
        mask_id: token id of a masked word.
        special_ids: token ids that are never masked.
        ordinary_ids: token ids of all words.
    """

    linked: HasTexts
    tokenise: Tokenise
    mask_id: int
    special_ids: tuple[int, ...]
    ordinary_ids: np.ndarray

    def __call__(
        self, row_R: np.ndarray, chance_R: object = 0.0
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Tokens, pointers and whether each token is a special one; nothing is left to chance."""
        token_T, indptr_R1 = self.tokenise(self.linked.texts(row_R))
        return token_T, indptr_R1, np.isin(token_T, self.special_ids)
