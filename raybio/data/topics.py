"""What sentences are about, by latent Dirichlet allocation (facts §7): lines of text in, a store of topics out."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from pydantic import Field

from raybio.config import BaseConfig
from raybio.data.prepare import demand_files, describe_files
from raybio.data.quarantine import Quarantine
from raybio.data.source_files import read_lines
from raybio.data.store_writer import Draft
from raybio.data.topic_store import NUM_KEPT, TopicStore, commit_topics
from raybio.errors import DataError

SHOWN_WORDS = 8
BATCH_SENTENCES = 1024
ROWS_PER_BLOCK = 1 << 16
FEW_TOLD = "few words that are neither rare nor everywhere"
"""Why a sentence is set aside that is long enough; its number among those read stands for its line."""


class TopicConfig(BaseConfig):
    """How topics are found; the defaults are the paper's where it states them."""

    num_topics: int = Field(100, ge=NUM_KEPT, description="topics")
    max_share: float = Field(0.7, gt=0, le=1, description="words in more than this share of the sentences are left out")
    min_count: int = Field(100, ge=1, description="words in fewer sentences are left out")
    min_words: int = Field(5, ge=1, description="sentences with fewer words, or fewer that count, are left out")
    num_passes: int = Field(5, ge=1, description="times that all sentences are looked at")
    seed: int = Field(1, ge=0, description="of the topics' beginning")


def prepare_topics(
    out: str | Path, files: Sequence[Path], config: TopicConfig | None = None, *, force: bool = False
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
    demand_files(files)
    with Draft(out, force=force) as draft:
        quarantine = Quarantine()
        texts = list(_sentences(files, config.min_words, quarantine))
        if not texts:
            raise DataError(f"{files[0]}: has no sentence of {config.min_words} words or more, want one a line")
        counter = CountVectorizer(max_df=config.max_share, min_df=config.min_count, token_pattern=r"\S+")
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
            raise DataError(f"{len(texts):,} sentences are left for {config.num_topics} topics; want more sentences")
        model = LatentDirichletAllocation(
            config.num_topics, batch_size=BATCH_SENTENCES, total_samples=len(texts), random_state=config.seed
        )
        # Not fit, which in the end looks at all sentences at once: of millions they do not fit into memory.
        for _ in range(config.num_passes):
            for start in range(0, len(texts), BATCH_SENTENCES):
                model.partial_fit(counts[start : start + BATCH_SENTENCES])
        topic_NK, share_NK = _strongest(model, counts)
        words = counter.get_feature_names_out()
        topic_words = [" ".join(words[np.argsort(-weight)[:SHOWN_WORDS]]) for weight in model.components_]
        provenance = {
            "sources": {"sentences": describe_files(list(files))},
            "parameters": config.to_mapping(),
            "quarantine": quarantine.summary(),
        }
        return commit_topics(
            draft, texts=texts, topic_NK=topic_NK, share_NK=share_NK, topic_words=topic_words, provenance=provenance
        )


def _sentences(files: Sequence[Path], min_words: int, quarantine: Quarantine) -> Iterator[str]:
    seen: set[str] = set()
    for path in files:
        for number, line in enumerate(read_lines(Path(path), "a sentence a line"), start=1):
            words = re.sub(r"[^\w\s]|_", "", line.lower()).split()
            text = " ".join(words)
            reason = "few words" if len(words) < min_words else "the same as one before" if text in seen else ""
            if reason:
                quarantine.add("sentence", reason, Path(path).name, number, line.strip(), is_bad=False)
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
