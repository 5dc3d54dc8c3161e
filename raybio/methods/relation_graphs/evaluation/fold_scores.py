"""Evaluation of the sentences of a fold: by a run, by exported models, and by rivals."""

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from raybio.methods.relation_graphs.annotations.folds import FoldRows
from raybio.methods.relation_graphs.annotations.gold import EmbeddedSentences, read_gold
from raybio.methods.relation_graphs.config import KnnConfig
from raybio.methods.relation_graphs.evaluation.sentence_scores import (
    VectorScores,
    choose_settings,
    score_each,
    score_sentences,
)
from raybio.methods.relation_graphs.store import WordStore


class EmbedsWords(Protocol):
    """A model of words, or any other source of word vectors."""

    @property
    def store(self) -> WordStore:
        """The sentences."""
        ...

    def embed(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return the words (W, D) of sentences, for pairs and for tags."""
        ...


def evaluate_fold(
    pair_model: EmbedsWords,
    tag_model: EmbedsWords,
    fold: FoldRows,
    config: KnnConfig,
    *,
    has_dev_scores: bool,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, VectorScores]:
    """Choose settings on the validation sentences of a fold, and return the scores by split.

    Training sentences predict validation sentences; both together predict test sentences.

    Args:
        pair_model: predicts relations.
        tag_model: predicts entities; may be the same model.
        fold: rows of the splits.
        config: candidates to choose among.
        has_dev_scores: whether validation sentences are scored, too.
        say: called with progress messages.
    """
    store = pair_model.store
    settings = config.first_settings
    scores_by_split = {}
    if has_dev_scores or config.has_choice:
        train = embed_sentences(pair_model, tag_model, fold.train, say)
        dev = embed_sentences(pair_model, tag_model, fold.dev, say)
        settings = choose_settings(train, dev, store, config)
        if has_dev_scores:
            scores_by_split["dev"] = score_sentences(train, dev, store, config, settings)
    reference = embed_sentences(pair_model, tag_model, fold.train_and_dev, say)
    test = embed_sentences(pair_model, tag_model, fold.test, say)
    scores_by_split["test"] = score_sentences(reference, test, store, config, settings)
    return scores_by_split


def chosen_and_fixed(
    pair_model: EmbedsWords,
    tag_model: EmbedsWords,
    fold: FoldRows,
    config: KnnConfig,
    *,
    has_dev: bool,
) -> tuple[VectorScores, VectorScores | None]:
    """Score test sentences with settings chosen on validation sentences, and with fixed ones.

    - If ``config`` has several numbers of neighbors, settings are chosen among its candidates, and
      the second result is None.
    - Otherwise they are chosen among the candidates of rivals, and the second result has the scores
      with the numbers of ``config``; if it has several weights of the probe, that is chosen, too.
    - Without validation sentences nothing is chosen: the first result has the scores with the
      settings of ``config``.

    Args:
        pair_model: predicts relations.
        tag_model: predicts entities; may be the same model.
        fold: rows of the splits.
        config: settings of the evaluation.
        has_dev: whether there are validation sentences that no model was trained on.
    """
    if config.chooses_neighbors or not has_dev:
        scores = evaluate_fold(pair_model, tag_model, fold, config, has_dev_scores=False)
        return scores["test"], None
    store = pair_model.store
    rows = fold.train_and_dev
    # Words are embedded once, and one search finds the neighbors of both readings.
    reference = embed_sentences(pair_model, tag_model, rows)
    train = part_of(reference, rows, fold.train, store)
    dev = part_of(reference, rows, fold.dev, store)
    settings = [
        choose_settings(train, dev, store, candidates)
        for candidates in (config.with_candidates, config)
    ]
    test = embed_sentences(pair_model, tag_model, fold.test)
    chosen, fixed = score_each(reference, test, store, config, settings)
    return chosen, fixed


def part_of(
    embedded: EmbeddedSentences, rows: np.ndarray, part: np.ndarray, store: WordStore
) -> EmbeddedSentences:
    """Return the embedded sentences of some of the rows; both are ascending."""
    is_kept_W = np.repeat(np.isin(rows, part), np.diff(embedded.gold.indptr_S1))
    kept_W = torch.from_numpy(is_kept_W).to(embedded.pair_WD.device)
    pair_WD = embedded.pair_WD[kept_W]
    tag_WD = embedded.tag_WD[kept_W]
    return EmbeddedSentences(pair_WD, tag_WD, read_gold(store, part))


def embed_sentences(
    pair_model: EmbedsWords,
    tag_model: EmbedsWords,
    rows: np.ndarray,
    say: Callable[[str], None] = lambda text: None,
) -> EmbeddedSentences:
    """Embed sentences for pairs by one model, and for tags by the same or another one."""
    say(f"embedding {len(rows):,} sentences")
    pair_WD, tag_WD = pair_model.embed(rows)
    if tag_model is not pair_model:
        _, tag_WD = tag_model.embed(rows)
    return EmbeddedSentences(pair_WD, tag_WD, read_gold(pair_model.store, rows))
