"""What sentences are about, by latent Dirichlet allocation (facts §7): lines of text in, a store of topics out.

The store of sentences and what they are about: the three strongest topics of each, as SPPT's synthetic graphs need.

Shape letters: N sentences, K = 3 topics of each, the strongest first.
"""

import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from raybio.core.errors import DataError
from raybio.methods.sppt.synthetic.config import NUM_KEPT, TopicConfig
from raybio.store.columns import ArrowColumn, TextColumn, column_tables
from raybio.store.quarantine import Quarantine
from raybio.store.sources import check_readable_files, describe_files, read_lines
from raybio.store.store import Store
from raybio.store.writer import Draft

SHOWN_WORDS = 8


BATCH_SENTENCES = 1024


ROWS_PER_BLOCK = 1 << 16


FEW_TOLD = "few words that are neither rare nor everywhere"
"""Why a sentence is set aside that is long enough; its number among those read stands for its line."""


ROWS = "rows.arrow"
WORDS = "topic_words.arrow"


class TopicStore(Store):
    """An open store of sentences with topics."""

    kind = "topics"

    text = ArrowColumn(ROWS, "text", pa.large_string())
    """Sentences: lower-case words and blanks."""

    topics = ArrowColumn(ROWS, "topics")
    shares = ArrowColumn(ROWS, "shares")

    topic_words = TextColumn(WORDS, "words")
    """The strongest words of each topic."""

    def texts(self, row_R: np.ndarray) -> list[str]:
        """Some sentences: lower-case words and blanks."""
        return [str(text) for text in self.text.take(pa.array(row_R)).to_pylist()]

    @cached_property
    def topic_NK(self) -> np.ndarray:
        """The three strongest topics of each sentence, int64, the strongest first."""
        return self.topics.values.to_numpy(zero_copy_only=True).reshape(-1, NUM_KEPT)

    @cached_property
    def share_NK(self) -> np.ndarray:
        """How much of each sentence each of these is, float64; of all topics the shares of a sentence add up to 1."""
        return self.shares.values.to_numpy(zero_copy_only=True).reshape(-1, NUM_KEPT)


def prepare_topics(
    out: str | Path,
    files: Sequence[Path],
    config: TopicConfig | None = None,
    *,
    force: bool = False,
) -> TopicStore:
    """Find the topics of sentences, one a line, and keep those sentences with their three strongest.

    Sentences are lower-cased, and what is neither a letter nor a digit goes; of equal ones the first is kept. The same
    files and settings give the same topics on the same machine.

    Raises:
        DataError: if a file is missing, torn or not UTF-8, or too few sentences or words are left.
        StoreError: if the store cannot be written.
    """
    # Only now: this takes two seconds.
    from sklearn.decomposition import LatentDirichletAllocation
    from sklearn.feature_extraction.text import CountVectorizer

    config = config or TopicConfig()
    check_readable_files(files)
    with Draft(out, force=force) as draft:
        quarantine = Quarantine()
        texts = list(_sentences(files, config.min_words, quarantine))
        if not texts:
            raise DataError(
                f"{files[0]}: has no sentence of {config.min_words} words or more, want one a line"
            )
        counter = CountVectorizer(
            max_df=config.max_share, min_df=config.min_count, token_pattern=r"\S+"
        )
        try:
            counts = counter.fit_transform(texts)
        except ValueError:
            raise DataError(
                f"{files[0]}: of {len(texts):,} sentences no word is in {config.min_count:,} or more (--min-count) and "
                f"in at most {config.max_share:.0%} of them (--max-share); want more sentences, or a lower --min-count"
            ) from None
        is_kept_N = np.asarray(counts.sum(axis=1)).ravel() >= config.min_words
        few = np.flatnonzero(~is_kept_N)
        shown = [(int(row) + 1, texts[row]) for row in few[:5]]
        quarantine.add_many("sentence", FEW_TOLD, "sentences", len(few), shown, is_bad=False)
        counts, texts = counts[is_kept_N], [texts[row] for row in np.flatnonzero(is_kept_N)]
        if len(texts) < config.num_topics:
            raise DataError(
                f"{len(texts):,} sentences are left for {config.num_topics} topics; want more sentences"
            )
        model = LatentDirichletAllocation(
            config.num_topics,
            batch_size=BATCH_SENTENCES,
            total_samples=len(texts),
            random_state=config.seed,
        )
        # Not fit, which in the end looks at all sentences at once: of millions they do not fit into memory.
        for _ in range(config.num_passes):
            for start in range(0, len(texts), BATCH_SENTENCES):
                model.partial_fit(counts[start : start + BATCH_SENTENCES])
        topic_NK, share_NK = _strongest(model, counts)
        words = counter.get_feature_names_out()
        topic_words = [
            " ".join(words[np.argsort(-weight)[:SHOWN_WORDS]]) for weight in model.components_
        ]
        provenance = {
            "sources": {"sentences": describe_files(list(files))},
            "parameters": config.to_mapping(),
            "quarantine": quarantine.summary(),
        }
        return commit_topics(
            draft,
            texts=texts,
            topic_NK=topic_NK,
            share_NK=share_NK,
            topic_words=topic_words,
            provenance=provenance,
        )


def _sentences(files: Sequence[Path], min_words: int, quarantine: Quarantine) -> Iterator[str]:
    seen: set[str] = set()
    for path in files:
        for number, line in enumerate(read_lines(Path(path), "a sentence a line"), start=1):
            words = re.sub(r"[^\w\s]|_", "", line.lower()).split()
            text = " ".join(words)
            reason = (
                "few words"
                if len(words) < min_words
                else "the same as one before"
                if text in seen
                else ""
            )
            if reason:
                quarantine.add(
                    "sentence", reason, Path(path).name, number, line.strip(), is_bad=False
                )
                continue
            seen.add(text)
            yield text


def _strongest(model: object, counts: object) -> tuple[np.ndarray, np.ndarray]:
    """Topics and shares (N, K), block by block: all topics of millions of sentences would fill the memory."""
    topics, shares = [], []
    for start in range(0, counts.shape[0], ROWS_PER_BLOCK):  # type: ignore[attr-defined]
        share_NT = model.transform(counts[start : start + ROWS_PER_BLOCK])  # type: ignore[attr-defined,index]
        topic_NK = np.argsort(-share_NT, axis=1, kind="stable")[:, :NUM_KEPT]
        topics.append(topic_NK)
        shares.append(np.take_along_axis(share_NT, topic_NK, axis=1))
    return np.concatenate(topics), np.concatenate(shares)


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
