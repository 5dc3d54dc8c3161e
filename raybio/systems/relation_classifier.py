"""Pairs of entities to relations: by a trained classifier, or by the nearest labelled pairs (facts §6).

Shape letters: P pairs, B pairs of the bank, C classes ("none" first), D width.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from raybio.config import Config
from raybio.data.document_collate import DocumentReader
from raybio.data.relation_pairs import LabelledPairs, classes
from raybio.encoders.relation import RelationEncoder
from raybio.evaluation.relation_scores import Facts, RelationScores, score_facts
from raybio.functional.neighbours import nearest_members
from raybio.functional.threshold import above_threshold
from raybio.objectives.relation_labels import RelationHead
from raybio.protocols import Collective
from raybio.systems.embedded_pairs import EmbeddedPairs, embed_pairs
from raybio.systems.known_facts import told_in_training


class Rule(NamedTuple):
    """How neighbours decide.

    Attributes:
        neighbours: how many of each class; 0: a linear classifier decides.
        bias_weight: what the classes' trained biases are multiplied by.
    """

    neighbours: int
    bias_weight: float

    def __str__(self) -> str:
        """In words."""
        if not self.neighbours:
            return "a linear classifier decides"
        return f"{self.neighbours} neighbours of a class decide, biases times {self.bias_weight:g}"


LINEAR = Rule(0, 0.0)


class RelationEvaluationConfig(Config):
    """How pairs are classified in evaluations."""

    neighbours: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        (1, 3, 5, 10, 20),
        min_length=1,
        description="numbers of neighbours of a class to choose from, by F1 on the validation pairs",
    )
    bias_weights: tuple[float, ...] = Field(
        (0.0, 1.0),
        min_length=1,
        description="what mccl's trained biases may be multiplied by for neighbours, chosen likewise. The paper's is "
        "1; but biases learn how frequent classes are, and of a frequent class the neighbours are nearer anyway",
    )

    @property
    def rules(self) -> tuple[Rule, ...]:
        """All to choose from."""
        return tuple(Rule(k, weight) for weight in self.bias_weights for k in self.neighbours)


class KnownPairs(NamedTuple):
    """Pairs with their gold classes.

    Attributes:
        pairs: embedded.
        label_PC: bool.
        is_in_train_F: of each gold fact in the order of the pairs, whether training documents tell it too, bool; None
            where that is not asked: of the training pairs, and where a pair has one relation at most.
    """

    pairs: EmbeddedPairs
    label_PC: np.ndarray
    is_in_train_F: np.ndarray | None = None


def known_pairs(
    model: RelationEncoder, reader: DocumentReader, asked: LabelledPairs, collective: Collective, max_tokens: int
) -> KnownPairs:
    """Embed the pairs of a split that have their label."""
    pairs = {row: asked.pairs(row) for row in asked.rows.tolist()}
    nothing = np.zeros((0, len(asked.store.relation_names)), dtype=bool)
    label_PC = np.concatenate([nothing, *(classes(asked.store, row, pair) for row, pair in pairs.items())])
    embedded = embed_pairs(model, reader, pairs, collective, max_tokens=max_tokens)
    asks_training = asked.store.is_multi_label and asked.split != "train"
    return KnownPairs(embedded, label_PC, told_in_training(asked.store, embedded, label_PC) if asks_training else None)


@dataclass(frozen=True)
class Classifier:
    """How pairs are classified.

    Attributes:
        head: what was trained beside the encoder; None: nothing.
        bank: the labelled pairs.
        is_multi_label: whether a pair may have several relations.
        by_neighbours: whether the nearest labelled pairs decide, or the head's linear classifier.
    """

    head: RelationHead | None
    bank: KnownPairs
    is_multi_label: bool
    by_neighbours: bool

    def scores(self, embedding_PD: Tensor, rules: Sequence[Rule]) -> dict[Rule, Tensor]:
        """Scores (P, C) of all classes by each rule; by ``LINEAR`` alone, where that decides.

        Without trained biases, rules that differ in their weight are one, of weight 0.
        """
        if not self.by_neighbours:
            assert self.head is not None and self.head.classifier is not None
            return {LINEAR: self.head.classifier(embedding_PD)}
        label_BC = torch.from_numpy(self.bank.label_PC).to(embedding_PD.device)
        most = max(rule.neighbours for rule in rules)
        found = nearest_members(embedding_PD, self.bank.pairs.embedding_PD, label_BC, k=most)
        # Neighbours are sorted: those of a smaller number are the first.
        score_by_k = {k: type(found)(found.cosine_QRK[:, :, :k]).mean() for k in {rule.neighbours for rule in rules}}
        bias_C = None if self.head is None else self.head.bias_C
        if bias_C is None:
            return {Rule(k, 0.0): score_PC for k, score_PC in score_by_k.items()}
        return {rule: score_by_k[rule.neighbours] + rule.bias_weight * bias_C for rule in rules}

    def predicted(self, score_PC: Tensor) -> np.ndarray:
        """Classes of each pair, bool (P, C); "none" is no class here."""
        if self.is_multi_label:
            is_PC = above_threshold(score_PC, na_index=0)
        else:
            is_PC = torch.nn.functional.one_hot(score_PC.argmax(1), score_PC.shape[1]).bool()
        predicted_PC: np.ndarray = is_PC.cpu().numpy()
        predicted_PC[:, 0] = False
        return predicted_PC


def judged(asked: KnownPairs, predicted_PC: np.ndarray, rows: np.ndarray) -> RelationScores:
    """Scores of predictions among the gold labels of the pairs that were asked.

    Args:
        asked: the pairs.
        predicted_PC: bool.
        rows: all documents that were asked about, ascending.
    """
    place_P = np.searchsorted(rows, asked.pairs.row_P)
    gold_PC = asked.label_PC.copy()
    gold_PC[:, 0] = False
    predicted, gold = (
        Facts.of_labels(place_P, asked.pairs.head_P, asked.pairs.tail_P, label_PC)
        for label_PC in (predicted_PC, gold_PC)
    )
    return score_facts(
        predicted,
        gold,
        num_documents=max(len(rows), 1),
        num_relations=gold_PC.shape[1],
        na_index=0,
        is_in_train_F=asked.is_in_train_F,
    )


def best_rule(
    classifier: Classifier, asked: KnownPairs, rows: np.ndarray, rules: Sequence[Rule]
) -> tuple[Rule, RelationScores]:
    """The rule with the best F1 and its scores; of equals the one of fewest neighbours, then of the largest weight."""
    with torch.no_grad():
        scores = classifier.scores(asked.pairs.embedding_PD, rules)
    found = {rule: judged(asked, classifier.predicted(score_PC), rows) for rule, score_PC in scores.items()}
    best = max(found, key=lambda rule: (found[rule].values["f1"], -rule.neighbours, rule.bias_weight))
    return best, found[best]


def predicted_by(classifier: Classifier, rule: Rule, embedding_PD: Tensor) -> np.ndarray:
    """Classes (P, C) of pairs by one rule."""
    with torch.no_grad():
        return classifier.predicted(classifier.scores(embedding_PD, (rule,))[rule])
