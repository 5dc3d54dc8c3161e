"""Classify entity pairs by their nearest labeled pairs, or by a linear classifier.

Classwise kNN (Zhou et al., 2023, Section 3.4): the score of a class is the mean cosine to the k
nearest labeled pairs of that class, plus the class bias.

Shape letters: P pairs, B pairs of the reference set, C classes (NA first), D embedding width,
F gold facts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from raybio.core.errors import ConfigError
from raybio.core.interfaces import Collective
from raybio.methods.mtb_mccl.documents.collate import DocumentReader
from raybio.methods.mtb_mccl.embed_pairs import EmbeddedPairs, embed_pairs
from raybio.methods.mtb_mccl.encoder import RelationEncoder
from raybio.methods.mtb_mccl.frozen_encoder import FrozenEncoder
from raybio.methods.mtb_mccl.mccl.adaptive_threshold import above_threshold
from raybio.methods.mtb_mccl.mccl.classwise_knn import classwise_means
from raybio.methods.mtb_mccl.mccl.config import LINEAR, KnnSettings
from raybio.methods.mtb_mccl.mccl.labeled_pairs import LabeledPairs, pair_labels
from raybio.methods.mtb_mccl.mccl.objective import RelationHead
from raybio.methods.mtb_mccl.mccl.scores import Facts, RelationScores, score_facts
from raybio.methods.mtb_mccl.mccl.training_facts import is_in_training_facts
from raybio.training.collective import SingleProcess
from raybio.training.embedding_model import MAX_TOKENS_AT_ONCE


class GoldPairs(NamedTuple):
    """Embedded pairs with their gold classes.

    Attributes:
        pairs: the embedded pairs.
        label_PC: gold classes, bool.
        outside_F4: gold relations between entities that are no candidate pair: (document, head,
            tail, class). None: there are none.
        is_in_train_F: bool, whether each of ``gold_facts`` is also a fact of the training
            documents. None if Ign-F1 is undefined: for training pairs, and if pairs have at most
            one relation.
    """

    pairs: EmbeddedPairs
    label_PC: np.ndarray
    outside_F4: np.ndarray | None = None
    is_in_train_F: np.ndarray | None = None

    @property
    def gold_facts(self) -> Facts:
        """All gold facts, also those that no candidate pair covers; documents are store rows."""
        facts = self.facts(self.label_PC)
        if self.outside_F4 is None:
            return facts
        outside_4F = self.outside_F4.T
        return Facts(
            np.concatenate([facts.document_F, outside_4F[0]]),
            np.concatenate([facts.head_F, outside_4F[1]]),
            np.concatenate([facts.tail_F, outside_4F[2]]),
            np.concatenate([facts.label_F, outside_4F[3]]),
        )

    def facts(self, label_PC: np.ndarray) -> Facts:
        """Return the facts that gold or predicted classes state; documents are store rows."""
        is_fact_PC = label_PC.copy()
        is_fact_PC[:, 0] = False
        return Facts.of_labels(self.pairs.row_P, self.pairs.head_P, self.pairs.tail_P, is_fact_PC)


def embed_gold_pairs(
    model: RelationEncoder,
    reader: DocumentReader,
    labeled: LabeledPairs,
    collective: Collective,
    max_tokens: int,
    *,
    part: slice | np.ndarray = slice(None),
) -> GoldPairs:
    """Embed the labeled pairs of a split.

    Args:
        model: the encoder.
        reader: reads documents for this encoder.
        labeled: the pairs.
        collective: the workers that share the documents.
        max_tokens: padded tokens encoded at once.
        part: the documents to embed, as an index into ``labeled.rows``.
    """
    store = labeled.store
    pairs = {row: labeled.pairs(row) for row in labeled.rows[part].tolist()}
    nothing = np.zeros((0, len(store.relation_names)), dtype=bool)
    labels = [pair_labels(store, row, pair) for row, pair in pairs.items()]
    gold = GoldPairs(
        embed_pairs(model, reader, pairs, collective, max_tokens=max_tokens),
        np.concatenate([nothing, *labels]),
    )
    if labeled.split == "train":
        return gold
    gold = gold._replace(outside_F4=labeled.outside_F4)
    if not store.is_multi_label:
        return gold
    return gold._replace(is_in_train_F=is_in_training_facts(store, gold.gold_facts))


def embed_with_frozen(
    frozen: FrozenEncoder, labeled: LabeledPairs, say: Callable[[str], None] = lambda text: None
) -> GoldPairs:
    """Embed the labeled pairs of a split by an encoder that is no longer trained."""
    say(f"embedding {labeled.num_pairs:,} pairs of {len(labeled.rows):,} {labeled.split} documents")
    reader = frozen.reader(labeled.store)
    return embed_gold_pairs(frozen.model, reader, labeled, SingleProcess(), MAX_TOKENS_AT_ONCE)


@dataclass(frozen=True)
class Classifier:
    """Classifies embedded pairs.

    Attributes:
        head: parameters trained next to the encoder; None: none.
        reference: the reference set of kNN, or this worker's part of it; None: the head's linear
            classifier decides.
        is_multi_label: whether a pair may have several relations.
        collective: the workers with the other parts; None: ``reference`` is complete.
    """

    head: RelationHead | None
    reference: GoldPairs | None
    is_multi_label: bool
    collective: Collective | None = None

    def scores(
        self, embedding_PD: Tensor, candidates: Sequence[KnnSettings]
    ) -> dict[KnnSettings, Tensor]:
        """Return the scores (P, C) for each of ``distinct_settings``."""
        if self.reference is None:
            assert self.head is not None and self.head.classifier is not None
            return {LINEAR: self.head.classifier(embedding_PD)}
        label_BC = torch.from_numpy(self.reference.label_PC).to(embedding_PD.device)
        score_by_k = classwise_means(
            embedding_PD,
            self.reference.pairs.embedding_PD,
            label_BC,
            ks=sorted({knn.num_neighbors for knn in candidates}),
            collective=self.collective,
        )
        settings = self.distinct_settings(candidates)
        if self._bias_C is None:
            return {knn: score_by_k[knn.num_neighbors] for knn in settings}
        return {
            knn: score_by_k[knn.num_neighbors] + knn.bias_weight * self._bias_C for knn in settings
        }

    def distinct_settings(self, candidates: Sequence[KnnSettings]) -> list[KnnSettings]:
        """Return the settings that classify differently, or ``LINEAR`` alone.

        Without trained biases, settings that differ in the bias weight only are merged, with
        weight 0.
        """
        if self.reference is None:
            return [LINEAR]
        if self._bias_C is None:
            return [KnnSettings(k, 0.0) for k in sorted({knn.num_neighbors for knn in candidates})]
        return list(candidates)

    @property
    def _bias_C(self) -> Tensor | None:
        return None if self.head is None else self.head.bias_C

    def predicted(self, score_PC: Tensor) -> np.ndarray:
        """Return the predicted classes of each pair, bool (P, C); NA is always False.

        Raises:
            ConfigError: if a pair may have several relations and the reference set has no NA pair,
                so that there is no threshold.
        """
        if self.is_multi_label:
            if bool(torch.isneginf(score_PC[:, 0]).any()):
                raise ConfigError(
                    "no labeled training pair is without a relation. Where a pair may have "
                    "several relations, such pairs are the threshold; want a larger "
                    "data.label_fraction, or other documents"
                )
            is_predicted_PC = above_threshold(score_PC, na_index=0)
        else:
            num_classes = score_PC.shape[1]
            is_predicted_PC = torch.nn.functional.one_hot(score_PC.argmax(1), num_classes).bool()
        predicted_PC: np.ndarray = is_predicted_PC.cpu().numpy()
        predicted_PC[:, 0] = False
        return predicted_PC


def predict_classes(classifier: Classifier, knn: KnnSettings, embedding_PD: Tensor) -> np.ndarray:
    """Return the predicted classes (P, C) of pairs."""
    with torch.no_grad():
        return classifier.predicted(classifier.scores(embedding_PD, (knn,))[knn])


def score_predictions(gold: GoldPairs, predicted_PC: np.ndarray) -> RelationScores:
    """Score predicted classes (bool) against all gold relations of the documents."""
    predicted_facts = gold.facts(predicted_PC)
    gold_facts = gold.gold_facts
    rows = np.union1d(gold.pairs.row_P, gold_facts.document_F)
    return score_facts(
        _numbered_from_0(predicted_facts, rows),
        _numbered_from_0(gold_facts, rows),
        num_documents=max(len(rows), 1),
        num_relations=predicted_PC.shape[1],
        is_in_train_F=gold.is_in_train_F,
    )


def score_most_frequent(gold: GoldPairs, num_C: np.ndarray) -> RelationScores:
    """Score the constant prediction of the most frequent relation, by counts ``num_C``."""
    predicted_PC = np.zeros_like(gold.label_PC)
    predicted_PC[:, 1 + int(num_C[1:].argmax())] = True
    return score_predictions(gold, predicted_PC)


def choose_knn_settings(
    classifier: Classifier, gold: GoldPairs, candidates: Sequence[KnnSettings]
) -> tuple[KnnSettings, RelationScores]:
    """Return the settings with the best F1, and their scores.

    Ties go to the fewest neighbors, then to the largest bias weight.
    """
    with torch.no_grad():
        scores = classifier.scores(gold.pairs.embedding_PD, candidates)
    result_by_knn = {
        knn: score_predictions(gold, classifier.predicted(score_PC))
        for knn, score_PC in scores.items()
    }
    best = max(
        result_by_knn,
        key=lambda knn: (
            result_by_knn[knn].values["f1"],
            -knn.num_neighbors,
            knn.bias_weight,
        ),
    )
    return best, result_by_knn[best]


def _numbered_from_0(facts: Facts, rows: np.ndarray) -> Facts:
    """Return facts whose documents are positions in ``rows``."""
    return replace(facts, document_F=np.searchsorted(rows, facts.document_F))
