"""The store of sentences and what they are about: the three strongest topics of each, as SPPT's synthetic graphs need.

Shape letters: N sentences, K = 3 topics of each, the strongest first.
"""

from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from raybio.data.store import Store
from raybio.data.store_writer import Draft

ROWS, WORDS = "rows.arrow", "topic_words.arrow"
NUM_KEPT = 3


class TopicStore(Store):
    """An open store of sentences with topics."""

    kind = "topics"

    def texts(self, row_R: np.ndarray) -> list[str]:
        """Some sentences: lower-case words and blanks."""
        return [str(text) for text in self._rows.column("text").take(pa.array(row_R)).to_pylist()]

    @cached_property
    def topic_NK(self) -> np.ndarray:
        """The three strongest topics of each sentence, int64, the strongest first."""
        return self._rows.column("topics").values.to_numpy(zero_copy_only=True).reshape(-1, NUM_KEPT)

    @cached_property
    def share_NK(self) -> np.ndarray:
        """How much of each sentence each of these is, float64; of all topics the shares of a sentence add up to 1."""
        return self._rows.column("shares").values.to_numpy(zero_copy_only=True).reshape(-1, NUM_KEPT)

    @cached_property
    def topic_words(self) -> list[str]:
        """The strongest words of each topic."""
        return [str(words) for words in self._batch(WORDS).column("words").to_pylist()]

    @property
    def _rows(self) -> pa.RecordBatch:
        return self._batch(ROWS)


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
        StoreError: if it cannot be written.
    """
    tables = {
        ROWS: {
            "text": pa.array(texts, pa.large_string()),
            "topics": pa.FixedSizeListArray.from_arrays(pa.array(topic_NK.astype(np.int64).ravel()), NUM_KEPT),
            "shares": pa.FixedSizeListArray.from_arrays(pa.array(share_NK.astype(np.float64).ravel()), NUM_KEPT),
        },
        WORDS: {"words": pa.array(topic_words, pa.string())},
    }
    counts = {"rows": len(texts), "topics": len(topic_words)}
    return draft.commit(TopicStore, tables, counts, provenance)
