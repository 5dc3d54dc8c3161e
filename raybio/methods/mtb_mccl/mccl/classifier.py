"""Pairs of entities to relations: by a trained classifier, or by the nearest labelled pairs (facts §6).

Shape letters: P pairs, B pairs of the reference, C classes ("none" first), D width.
"""

from collections.abc import Sequence
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
from raybio.methods.mtb_mccl.mccl.adaptive_threshold import above_threshold
from raybio.methods.mtb_mccl.mccl.classwise_knn import classwise_means
from raybio.methods.mtb_mccl.mccl.config import LINEAR, KnnSettings
from raybio.methods.mtb_mccl.mccl.labelled_pairs import LabelledPairs, pair_labels
from raybio.methods.mtb_mccl.mccl.objective import RelationHead
from raybio.methods.mtb_mccl.mccl.scores import Facts, RelationScores, score_facts
from raybio.methods.mtb_mccl.mccl.training_facts import is_in_training_facts


class GoldPairs(NamedTuple):
    """Pairs with their gold classes.

    Attributes:
        pairs: embedded.
        label_PC: bool.
        outside_F4: gold relations of entities that are no candidate pair, which nothing can find: (document, head,
            tail, class); None: there are none.
        is_in_train_F: of each of ``gold``, whether training documents tell it too, bool; None where that is not asked:
            of the training pairs, and where a pair has one relation at most.
    """

    pairs: EmbeddedPairs
    label_PC: np.ndarray
    outside_F4: np.ndarray | None = None
    is_in_train_F: np.ndarray | None = None

    @property
    def gold(self) -> Facts:
        """All that there is to find; documents are rows of the store."""
        found = self.facts(self.label_PC)
        if self.outside_F4 is None:
            return found
        columns = (found.document_F, found.head_F, found.tail_F, found.label_F)
        return Facts(
            *(np.concatenate(both) for both in zip(columns, self.outside_F4.T, strict=True))
        )

    def facts(self, label_PC: np.ndarray) -> Facts:
        """What classes of the pairs mean, gold or predicted ones; documents are rows of the store."""
        is_fact_PC = label_PC.copy()
        is_fact_PC[:, 0] = False
        return Facts.of_labels(self.pairs.row_P, self.pairs.head_P, self.pairs.tail_P, is_fact_PC)


def embed_gold_pairs(
    model: RelationEncoder,
    reader: DocumentReader,
    asked: LabelledPairs,
    collective: Collective,
    max_tokens: int,
    *,
    part: slice = slice(None),
) -> GoldPairs:
    """Embed the pairs of a split that have their label; of some of its documents, if a part is wanted."""
    pairs = {row: asked.pairs(row) for row in asked.rows[part].tolist()}
    nothing = np.zeros((0, len(asked.store.relation_names)), dtype=bool)
    label_PC = np.concatenate(
        [nothing, *(pair_labels(asked.store, row, pair) for row, pair in pairs.items())]
    )
    known = GoldPairs(
        embed_pairs(model, reader, pairs, collective, max_tokens=max_tokens), label_PC
    )
    if asked.split == "train":
        return known
    known = known._replace(outside_F4=asked.outside_F4)
    if not asked.store.is_multi_label:
        return known
    return known._replace(is_in_train_F=is_in_training_facts(asked.store, known.gold))


@dataclass(frozen=True)
class Classifier:
    """How pairs are classified.

    Attributes:
        head: what was trained beside the encoder; None: nothing.
        reference: the labelled pairs whose neighbours decide, or a part of them; None: the head's linear classifier decides.
        is_multi_label: whether a pair may have several relations.
        collective: the workers that have the other parts; None: ``reference`` is all of it.
    """

    head: RelationHead | None
    reference: GoldPairs | None
    is_multi_label: bool
    collective: Collective | None = None

    def scores(
        self, embedding_PD: Tensor, rules: Sequence[KnnSettings]
    ) -> dict[KnnSettings, Tensor]:
        """Scores (P, C) of all classes by each rule; by ``LINEAR`` alone, where that decides.

        Without trained biases, rules that differ in their weight are one, of weight 0.
        """
        if self.reference is None:
            assert self.head is not None and self.head.classifier is not None
            return {LINEAR: self.head.classifier(embedding_PD)}
        label_BC = torch.from_numpy(self.reference.label_PC).to(embedding_PD.device)
        ks = sorted({rule.num_neighbors for rule in rules})
        score_by_k = classwise_means(
            embedding_PD,
            self.reference.pairs.embedding_PD,
            label_BC,
            ks=ks,
            collective=self.collective,
        )
        bias_C = None if self.head is None else self.head.bias_C
        if bias_C is None:
            return {KnnSettings(k, 0.0): score_PC for k, score_PC in score_by_k.items()}
        return {rule: score_by_k[rule.num_neighbors] + rule.bias_weight * bias_C for rule in rules}

    def predicted(self, score_PC: Tensor) -> np.ndarray:
        """Classes of each pair, bool (P, C); "none" is no class here.

        Raises:
            ConfigError: if a pair may have several relations and no labelled pair has none: nothing tells then how
                near is near enough.
        """
        if self.is_multi_label:
            if bool(torch.isneginf(score_PC[:, 0]).any()):
                raise ConfigError(
                    "no labelled training pair is without a relation, and the nearest of those decide which relations "
                    "a pair has where it may have several; want a larger data.label_fraction, or other documents"
                )
            is_PC = above_threshold(score_PC, na_index=0)
        else:
            is_PC = torch.nn.functional.one_hot(score_PC.argmax(1), score_PC.shape[1]).bool()
        predicted_PC: np.ndarray = is_PC.cpu().numpy()
        predicted_PC[:, 0] = False
        return predicted_PC


def score_predictions(asked: GoldPairs, predicted_PC: np.ndarray) -> RelationScores:
    """Scores of predictions among all gold relations of the documents that were asked about.

    Args:
        asked: the pairs.
        predicted_PC: bool.
    """
    predicted, gold = asked.facts(predicted_PC), asked.gold
    rows = np.union1d(asked.pairs.row_P, gold.document_F)
    predicted, gold = (
        replace(one, document_F=np.searchsorted(rows, one.document_F)) for one in (predicted, gold)
    )
    return score_facts(
        predicted,
        gold,
        num_documents=max(len(rows), 1),
        num_relations=predicted_PC.shape[1],
        na_index=0,
        is_in_train_F=asked.is_in_train_F,
    )


def score_most_frequent(asked: GoldPairs, num_C: np.ndarray) -> RelationScores:
    """Return the scores of giving every pair the relation that is most frequent, by counts ``num_C`` of all classes."""
    predicted_PC = np.zeros_like(asked.label_PC)
    predicted_PC[:, 1 + int(num_C[1:].argmax())] = True
    return score_predictions(asked, predicted_PC)


def choose_knn_settings(
    classifier: Classifier, asked: GoldPairs, rules: Sequence[KnnSettings]
) -> tuple[KnnSettings, RelationScores]:
    """The rule with the best F1 and its scores; of equals the one of fewest neighbours, then of the largest weight."""
    with torch.no_grad():
        scores = classifier.scores(asked.pairs.embedding_PD, rules)
    found = {
        rule: score_predictions(asked, classifier.predicted(score_PC))
        for rule, score_PC in scores.items()
    }
    best = max(
        found, key=lambda rule: (found[rule].values["f1"], -rule.num_neighbors, rule.bias_weight)
    )
    return best, found[best]


def predict_classes(classifier: Classifier, rule: KnnSettings, embedding_PD: Tensor) -> np.ndarray:
    """Classes (P, C) of pairs by one rule."""
    with torch.no_grad():
        return classifier.predicted(classifier.scores(embedding_PD, (rule,))[rule])
