"""Classifiers on frozen pair embeddings (Zhou et al., 2023, Table 1), and a rival on words.

Softmax and nearest centroid assume one cluster per relation, classwise kNN many. So their scores
show how many clusters relations have. F1 on the validation documents chooses the strength of the L2
penalty, the number of neighbors, and the settings of the rival.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

from raybio.methods.mtb_mccl.documents.store import DocumentStore
from raybio.methods.mtb_mccl.embed_pairs import EmbeddedPairs
from raybio.methods.mtb_mccl.frozen_encoder import load_frozen
from raybio.methods.mtb_mccl.mccl.classifier import (
    Classifier,
    GoldPairs,
    embed_with_frozen,
    predict_classes,
    score_most_frequent,
    score_predictions,
)
from raybio.methods.mtb_mccl.mccl.config import KnnSettings
from raybio.methods.mtb_mccl.mccl.frozen_classifiers import (
    L2,
    best_on_dev,
    centroid_classifier,
    softmax_classifier,
)
from raybio.methods.mtb_mccl.mccl.labeled_pairs import LabeledPairs, labeled_pairs
from raybio.methods.mtb_mccl.mccl.rivals import drawn_documents, read_words, words_rival
from raybio.methods.mtb_mccl.mccl.scores import RelationScores
from raybio.store.store import SPLITS

KNN_SETTINGS = tuple(KnnSettings(k, 0.0) for k in (1, 3, 5, 10, 20))


class FrozenProbeResult(NamedTuple):
    """Scores of a classifier.

    Attributes:
        name: name of the classifier.
        setting: the setting chosen on the validation pairs; empty if there is none.
        dev: scores on the validation pairs.
        test: scores on the test pairs.
    """

    name: str
    setting: str
    dev: RelationScores
    test: RelationScores


class FrozenProbe:
    """The labeled pairs of a store, embedded by a frozen encoder."""

    def __init__(
        self,
        model: str,
        store: DocumentStore,
        *,
        label_fraction: float = 1.0,
        seed: int = 0,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Embed the pairs of all splits.

        Args:
            model: an export, or any text encoder; see ``load_frozen``.
            store: training, validation and test documents.
            label_fraction: fraction of the training and validation pairs that keep their label, as
                in fine-tuning.
            seed: of that draw.
            say: called with progress messages.

        Raises:
            ConfigError: if the model cannot be loaded, or a split has no pair with a relation.
        """
        self._store = store
        self._say = say
        self._labeled_by_split = {
            split: labeled_pairs(store, split, label_fraction, seed) for split in SPLITS
        }
        for labeled in self._labeled_by_split.values():
            labeled.check()
        self._frozen = load_frozen(model)
        self._train, self._dev, self._test = (
            embed_with_frozen(self._frozen, labeled, say)
            for labeled in self._labeled_by_split.values()
        )

    def results(self) -> list[FrozenProbeResult]:
        """Return the results of rivals, then of classifiers."""
        return [*self.rivals(), *self.classifiers()]

    def rivals(self) -> list[FrozenProbeResult]:
        """Score rivals that read no embedding: chance, and ridge regression on words (``rivals``).

        Chance predicts the most frequent relation of the training pairs for every pair. Words are
        read in the encoder's tokens.
        """
        num_C = self._train.label_PC.sum(axis=0)
        most_frequent = self._store.relation_names[1 + int(num_C[1:].argmax())]
        chance = FrozenProbeResult(
            f"chance: every pair {most_frequent}",
            "",
            score_most_frequent(self._dev, num_C),
            score_most_frequent(self._test, num_C),
        )
        self._say("fitting ridge on TF-IDF")
        read_train = _of_documents(self._train, self._labeled_by_split["train"])
        rival = words_rival(
            {"train": read_train, "dev": self._dev, "test": self._test},
            {
                split: read_words(self._frozen.reader(self._store), labeled, _fitted(labeled))
                for split, labeled in self._labeled_by_split.items()
            },
            self._store.is_multi_label,
        )
        chosen = f"penalty {rival.settings['penalty']:g}, NA - {rival.settings['na_offset']:g}"
        words = FrozenProbeResult(rival.name, chosen, rival.scores["dev"], rival.scores["test"])
        return [chance, words]

    def classifiers(self) -> list[FrozenProbeResult]:
        """Fit three classifiers on the training pairs, and score all test pairs."""
        train = self._train
        is_multi_label = self._store.is_multi_label
        self._say("fitting softmax")
        softmax = {f"L2 {l2:g}": softmax_classifier(train, is_multi_label, l2) for l2 in L2}
        self._say("fitting nearest centroid")
        centroid = {"": centroid_classifier(train, is_multi_label)}
        self._say("fitting classwise kNN")
        knn = {"": Classifier(None, train, is_multi_label)}
        return [
            _best("softmax", softmax, KNN_SETTINGS[:1], self._dev, self._test),
            _best("nearest centroid", centroid, KNN_SETTINGS[:1], self._dev, self._test),
            _best("classwise kNN", knn, KNN_SETTINGS, self._dev, self._test),
        ]


def _fitted(labeled: LabeledPairs) -> np.ndarray:
    """Return the documents whose words are read: a sample if there are many training pairs."""
    if labeled.split == "train":
        return drawn_documents(labeled)
    return np.arange(len(labeled.rows))


def _of_documents(train: GoldPairs, labeled: LabeledPairs) -> GoldPairs:
    """Return the training pairs whose words are read."""
    is_read_P = np.isin(train.pairs.row_P, labeled.rows[_fitted(labeled)])
    pairs = train.pairs
    chosen = EmbeddedPairs(
        pairs.embedding_PD[torch.from_numpy(is_read_P).to(pairs.embedding_PD.device)],
        pairs.row_P[is_read_P],
        pairs.head_P[is_read_P],
        pairs.tail_P[is_read_P],
    )
    return GoldPairs(chosen, train.label_PC[is_read_P])


def _best(
    name: str,
    classifier_by_setting: Mapping[str, Classifier],
    knn_candidates: Sequence[KnnSettings],
    dev: GoldPairs,
    test: GoldPairs,
) -> FrozenProbeResult:
    """Return the scores of the setting with the best validation F1."""
    best = best_on_dev(classifier_by_setting, knn_candidates, dev)
    predicted_PC = predict_classes(best.classifier, best.knn, test.pairs.embedding_PD)
    setting = best.setting
    if len(knn_candidates) > 1:
        setting = f"k = {best.knn.num_neighbors}"
    scores = score_predictions(test, predicted_PC)
    return FrozenProbeResult(name, setting, best.scores, scores)
