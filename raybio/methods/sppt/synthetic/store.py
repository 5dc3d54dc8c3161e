"""Store of sentences with their three strongest topics.

Shape letters: N sentences, K = 3 topics of each, the strongest first.
"""

from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from raybio.methods.sppt.synthetic.config import NUM_KEPT
from raybio.store.columns import ArrowColumn, TextColumn, column_tables, numbered_texts
from raybio.store.store import Store
from raybio.store.writer import Draft

ROWS = "rows.arrow"
TOPIC_WORDS = "topic_words.arrow"


class TopicStore(Store):
    """An open store of sentences with topics."""

    kind = "topics"

    input_fields = ("text",)

    text = ArrowColumn(ROWS, "text", pa.large_string())
    """Sentences: lower-case words joined by blanks."""

    topics = ArrowColumn(ROWS, "topics")
    shares = ArrowColumn(ROWS, "shares")

    topic_words = TextColumn(TOPIC_WORDS, "words")
    """The strongest words of each topic."""

    def inputs(self, field: str, start: int, end: int) -> tuple[pa.Array, pa.Array]:
        """Return numbers, from 1, and texts of some sentences."""
        return numbered_texts(self.text, start, end)

    def texts(self, row_R: np.ndarray) -> list[str]:
        """Return these sentences."""
        return [str(text) for text in self.text.take(pa.array(row_R)).to_pylist()]

    @cached_property
    def topic_NK(self) -> np.ndarray:
        """The strongest topics of each sentence, int64."""
        return self.topics.values.to_numpy(zero_copy_only=True).reshape(-1, NUM_KEPT)

    @cached_property
    def share_NK(self) -> np.ndarray:
        """The shares of these topics, float64. A sentence's shares over all topics sum to 1."""
        return self.shares.values.to_numpy(zero_copy_only=True).reshape(-1, NUM_KEPT)


def commit_topics(
    draft: Draft,
    *,
    texts: list[str],
    topic_NK: np.ndarray,
    share_NK: np.ndarray,
    topic_words: list[str],
    provenance: dict[str, Any],
) -> TopicStore:
    """Write and commit a store of sentences; arguments as the attributes of ``TopicStore``.

    Raises:
        StoreError: if the store cannot be written.
    """
    topics = pa.array(topic_NK.astype(np.int64).ravel())
    shares = pa.array(share_NK.astype(np.float64).ravel())
    tables = column_tables(
        TopicStore,
        {
            "text": texts,
            "topics": pa.FixedSizeListArray.from_arrays(topics, NUM_KEPT),
            "shares": pa.FixedSizeListArray.from_arrays(shares, NUM_KEPT),
            "topic_words": topic_words,
        },
    )
    counts = {"rows": len(texts), "topics": len(topic_words)}
    return draft.commit(TopicStore, tables, counts, provenance)
