"""Rivals of relation extraction: classifiers that need no training of an encoder.

A fine-tuned encoder has learned something about the relations only if it beats all of these and the
row "initial", which is classwise kNN on the encoder before training.

- ``softmax on frozen encoder``: a linear classifier of the pairs' embeddings by the encoder before
  training; where pairs may have several relations, with adaptive thresholds.
- ``ridge on TF-IDF``: ridge regression of each class on the words and types of a pair. NA is far
  the most frequent class, so its score is lowered by an offset.

Penalty and offset are those with the best F1 on the validation pairs. Training pairs keep the same
share of labels as in fine-tuning. All workers compute the same.

Shape letters: P pairs, C classes (NA first), D embedding width, F features.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.linear_model import Ridge

from raybio.core.randomness import derive_seed, keyed_permutation
from raybio.methods.mtb_mccl.documents.collate import DocumentReader
from raybio.methods.mtb_mccl.mccl.classifier import (
    Classifier,
    GoldPairs,
    predict_classes,
    score_predictions,
)
from raybio.methods.mtb_mccl.mccl.config import LINEAR
from raybio.methods.mtb_mccl.mccl.frozen_classifiers import (
    L2,
    best_on_dev,
    softmax_classifier,
)
from raybio.methods.mtb_mccl.mccl.labeled_pairs import LabeledPairs
from raybio.methods.mtb_mccl.mccl.scores import RelationScores
from raybio.methods.mtb_mccl.pair_words import PairTfidf, PairWords

PENALTIES = (0.1, 1.0, 10.0, 100.0)
"""Candidate weights of the squared coefficients of ridge regression; vectors have length 1."""

NA_OFFSETS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
"""Candidate offsets by which NA's score is lowered; scores estimate probabilities."""

MAX_PAIRS = 50_000
"""Maximum number of training pairs for classifiers; if there are more, documents are drawn."""


class RelationRival(NamedTuple):
    """Scores of a classifier.

    Attributes:
        name: name of its row in tables.
        scores: by split.
        settings: what the validation pairs chose, and the number of training pairs; plain JSON.
    """

    name: str
    scores: Mapping[str, RelationScores]
    settings: Mapping[str, Any]


def relation_rivals(
    gold_by_split: Mapping[str, GoldPairs],
    words_by_split: Mapping[str, PairWords],
    is_multi_label: bool,
) -> Iterator[RelationRival]:
    """Yield the rivals.

    Args:
        gold_by_split: pairs of "train", "dev" and perhaps "test", embedded by the encoder before
            training.
        words_by_split: words of the same pairs.
        is_multi_label: whether a pair may have several relations.
    """
    yield softmax_rival(gold_by_split, is_multi_label)
    yield words_rival(gold_by_split, words_by_split, is_multi_label)


def softmax_rival(gold_by_split: Mapping[str, GoldPairs], is_multi_label: bool) -> RelationRival:
    """Return the linear classifier of embeddings."""
    train = gold_by_split["train"]
    classifiers = {f"{l2:g}": softmax_classifier(train, is_multi_label, l2) for l2 in L2}
    best = best_on_dev(classifiers, (LINEAR,), gold_by_split["dev"])
    scores = {}
    for split in _evaluated(gold_by_split):
        gold = gold_by_split[split]
        predicted_PC = predict_classes(best.classifier, best.knn, gold.pairs.embedding_PD)
        scores[split] = score_predictions(gold, predicted_PC)
    settings = {"l2": float(best.setting), "training_pairs": len(train.label_PC)}
    return RelationRival("softmax on frozen encoder", scores, settings)


def words_rival(
    gold_by_split: Mapping[str, GoldPairs],
    words_by_split: Mapping[str, PairWords],
    is_multi_label: bool,
) -> RelationRival:
    """Return ridge regression on words; relations without a training pair are never predicted."""
    label_PC = gold_by_split["train"].label_PC
    tfidf = PairTfidf.fit(words_by_split["train"])
    vectors = {split: tfidf.vectors(words) for split, words in words_by_split.items()}
    is_absent_C = np.append(False, ~label_PC[:, 1:].any(axis=0))
    decide = Classifier(None, None, is_multi_label)

    def scored(fitted: Ridge, offset: float, split: str) -> RelationScores:
        score_PC = fitted.predict(vectors[split])
        score_PC[:, is_absent_C] = -np.inf
        score_PC[:, 0] -= offset
        return score_predictions(gold_by_split[split], decide.predicted(torch.from_numpy(score_PC)))

    fits = {
        penalty: Ridge(penalty, tol=1e-6).fit(vectors["train"], label_PC.astype(np.float64))
        for penalty in PENALTIES
    }
    f1_by_setting = {
        (penalty, offset): scored(fitted, offset, "dev").values["f1"]
        for penalty, fitted in fits.items()
        for offset in NA_OFFSETS
    }
    penalty, offset = max(f1_by_setting, key=lambda setting: f1_by_setting[setting])
    settings = {"penalty": penalty, "na_offset": offset, "training_pairs": len(label_PC)}
    scores = {split: scored(fits[penalty], offset, split) for split in _evaluated(gold_by_split)}
    return RelationRival("ridge on TF-IDF", scores, settings)


def read_words(reader: DocumentReader, labeled: LabeledPairs, part: np.ndarray) -> PairWords:
    """Read the words of the labeled pairs of some documents (indices of ``labeled.rows``)."""
    pairs = {row: labeled.pairs(row) for row in labeled.rows[part].tolist()}
    return PairWords.read(reader, pairs)


def drawn_documents(labeled: LabeledPairs, max_pairs: int = MAX_PAIRS) -> np.ndarray:
    """Return the documents for fitting classifiers, as ascending indices of ``labeled.rows``.

    These are all documents. If they have more than ``max_pairs`` pairs, documents are taken in
    random order until the next one would exceed the limit, but at least one. The draw is the same
    in all runs.
    """
    num_documents = len(labeled.rows)
    key = derive_seed(0, "documents of rivals")
    order = keyed_permutation(np.arange(num_documents), num_rows=num_documents, key=key)
    sizes = [len(labeled.pairs(row)[0]) for row in labeled.rows[order].tolist()]
    num_kept = int(np.searchsorted(np.cumsum(sizes), max_pairs, side="right"))
    return np.sort(order[: max(num_kept, 1)])


def _evaluated(gold_by_split: Mapping[str, GoldPairs]) -> list[str]:
    return [split for split in gold_by_split if split != "train"]
