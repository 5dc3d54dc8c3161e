"""Preparation of topics: sentences, one a line -> latent Dirichlet allocation -> a store of topics.

The settings are those of the synthetic experiments of McDermott et al. where the paper states them.

Shape letters: N sentences, W counted words, T topics, K = 3 strongest topics of each sentence.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from raybio.core.errors import DataError
from raybio.methods.sppt.synthetic.config import NUM_KEPT, TopicConfig
from raybio.methods.sppt.synthetic.store import TopicStore, commit_topics
from raybio.store.preparation import preparing
from raybio.store.quarantine import Quarantine
from raybio.store.text_lines import read_values

NUM_SHOWN_WORDS = 8
"""Strongest words that the store keeps of each topic."""

SENTENCES_PER_BATCH = 1024
SENTENCES_PER_BLOCK = 1 << 16

FEW_COUNTED_WORDS = "few words that are neither rare nor everywhere"
"""Reason to skip a long enough sentence, whose number among those read is given as its line."""


def prepare_topics(
    out: str | Path,
    files: Sequence[Path],
    config: TopicConfig | None = None,
    *,
    force: bool = False,
) -> TopicStore:
    """Fit a topic model to sentences, and store each with its three strongest topics.

    Sentences are lower-cased and stripped of everything but letters and digits. Of equal sentences
    the first is kept. Equal files and settings give equal topics on the same machine.

    Args:
        out: folder of the store.
        files: one sentence a line, plain or ``.gz``.
        config: settings; None for the defaults.
        force: replace an existing store.

    Raises:
        DataError: if a file is missing, torn or not UTF-8, or too few sentences or words remain.
        StoreError: if the store cannot be written.
    """
    config = config or TopicConfig()
    with preparing(out, {"sentences": files}, config.to_mapping(), force=force) as new:
        texts = list(_sentences(files, config.min_words, new.quarantine))
        if not texts:
            raise DataError(
                f"{files[0]}: has no sentence of {config.min_words} words or more, want one a line"
            )
        words, count_NW = _count_words(texts, config, files[0])
        texts, count_NW = _without_sparse(texts, count_NW, config.min_words, new.quarantine)
        if len(texts) < config.num_topics:
            raise DataError(
                f"{len(texts):,} sentences remain for {config.num_topics} topics; want more "
                "sentences"
            )
        model = _fit(count_NW, config)
        topic_NK, share_NK = _strongest_topics(model, count_NW)
        return commit_topics(
            new.draft,
            texts=texts,
            topic_NK=topic_NK,
            share_NK=share_NK,
            topic_words=_topic_words(model, words),
            provenance=new.provenance(),
        )


def _sentences(files: Sequence[Path], min_words: int, quarantine: Quarantine) -> Iterator[str]:
    """Yield distinct sentences of at least ``min_words`` words."""
    seen: set[str] = set()
    for path in files:
        for number, line in read_values(Path(path), "sentences", ("text", "sentence")):
            words = re.sub(r"[^\w\s]|_", "", line.lower()).split()
            text = " ".join(words)
            reason = ""
            if len(words) < min_words:
                reason = "few words"
            elif text in seen:
                reason = "the same as one before"
            if reason:
                name = Path(path).name
                quarantine.add("sentence", reason, name, number, line.strip(), is_bad=False)
                continue
            seen.add(text)
            yield text


def _count_words(
    texts: Sequence[str], config: TopicConfig, path: str | Path
) -> tuple[np.ndarray, Any]:
    """Return the words (W,) that are neither rare nor everywhere, and their counts (N, W), sparse.

    Raises:
        DataError: if there is no such word; it names ``path``.
    """
    # Imported here: it takes two seconds.
    from sklearn.feature_extraction.text import CountVectorizer

    counter = CountVectorizer(
        max_df=config.max_share, min_df=config.min_count, token_pattern=r"\S+"
    )
    try:
        count_NW = counter.fit_transform(texts)
    except ValueError:
        raise DataError(
            f"{path}: no word is in {config.min_count:,} or more (--min-count) and in at "
            f"most {config.max_share:.0%} (--max-share) of {len(texts):,} sentences; want more "
            "sentences, or a lower --min-count"
        ) from None
    return counter.get_feature_names_out(), count_NW


def _without_sparse(
    texts: list[str], count_NW: Any, min_words: int, quarantine: Quarantine
) -> tuple[list[str], Any]:
    """Return the sentences of at least ``min_words`` counted words, and their counts."""
    is_kept_N = np.asarray(count_NW.sum(axis=1)).ravel() >= min_words
    skipped = np.flatnonzero(~is_kept_N)
    shown = [(int(row) + 1, texts[row]) for row in skipped[:5]]
    quarantine.add_many(
        "sentence", FEW_COUNTED_WORDS, "sentences", len(skipped), shown, is_bad=False
    )
    return [texts[row] for row in np.flatnonzero(is_kept_N)], count_NW[is_kept_N]


def _fit(count_NW: Any, config: TopicConfig) -> Any:
    """Return scikit-learn's ``LatentDirichletAllocation``, fitted in batches."""
    from sklearn.decomposition import LatentDirichletAllocation

    num_sentences = count_NW.shape[0]
    model = LatentDirichletAllocation(
        config.num_topics,
        batch_size=SENTENCES_PER_BATCH,
        total_samples=num_sentences,
        random_state=config.seed,
    )
    # Not model.fit: it transforms all sentences at once, which needs too much memory for
    # millions of them.
    for _ in range(config.num_passes):
        for start in range(0, num_sentences, SENTENCES_PER_BATCH):
            model.partial_fit(count_NW[start : start + SENTENCES_PER_BATCH])
    return model


def _topic_words(model: Any, words: np.ndarray) -> list[str]:
    """Return the strongest words of each topic, joined by blanks."""
    return [" ".join(words[np.argsort(-weight)[:NUM_SHOWN_WORDS]]) for weight in model.components_]


def _strongest_topics(model: Any, count_NW: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return topics and shares (N, K).

    Sentences are transformed in blocks, since (N, T) shares may not fit into memory.
    """
    topic_blocks = []
    share_blocks = []
    for start in range(0, count_NW.shape[0], SENTENCES_PER_BLOCK):
        share_NT = model.transform(count_NW[start : start + SENTENCES_PER_BLOCK])
        topic_NK = np.argsort(-share_NT, axis=1, kind="stable")[:, :NUM_KEPT]
        topic_blocks.append(topic_NK)
        share_blocks.append(np.take_along_axis(share_NT, topic_NK, axis=1))
    return np.concatenate(topic_blocks), np.concatenate(share_blocks)
