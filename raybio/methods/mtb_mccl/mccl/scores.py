"""Scores of extracted relations: micro F1, macro F1 and Ign-F1 (Zhou et al., 2023, Section 4.1).

A fact is (document, head, tail, relation). Facts of all documents are pooled.

Shape letters: F facts, G distinct facts, P entity pairs, U documents, R relations (NA first); the
axis of length 4 holds the counts correct, predicted, gold, and correct facts that the training
documents already state.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from raybio.core.arrays import Floats, Integers
from raybio.core.final_report import UnitScores
from raybio.core.unit_counts import (
    HARMONIC_MEAN_OF_RATIOS,
    MEAN_OF_RATIOS,
    RATIO,
    UnitCounts,
    share,
)
from raybio.evaluation.unit_scores import sample_counts
from raybio.ops.significance import Interval, percentile_intervals

NA_COLUMN = 0
"""Number of NA among the relations."""

MEASURES = ("f1", "precision", "recall", "macro_f1", "ign_f1")


BOOTSTRAP_SEED = 0
"""Seed of the resamples of documents: the same for all models, so that their scores are paired."""

IGN_EPSILON = 1e-5
"""Added to the denominator of Ign-F1's precision, as in the DocRED evaluation."""


@dataclass(frozen=True)
class Facts:
    """Predicted or gold facts; duplicates count once.

    Documents are numbered from 0. For undirected relations, predicted and gold facts must order
    head and tail in the same way.

    Raises:
        ValueError: if the arrays are not integers of one length.
    """

    document_F: Integers
    head_F: Integers
    tail_F: Integers
    label_F: Integers

    def __post_init__(self) -> None:
        """Check that the columns are integers of one length."""
        columns = (self.document_F, self.head_F, self.tail_F, self.label_F)
        shape = (len(self.label_F),)
        if any(column.shape != shape or column.dtype.kind not in "iu" for column in columns):
            got = ", ".join(f"{column.dtype} {column.shape}" for column in columns)
            raise ValueError(
                f"documents, heads, tails and labels are {got}; want integers, one of each per fact"
            )

    @classmethod
    def of_labels(
        cls, document_P: Integers, head_P: Integers, tail_P: Integers, label_PR: NDArray[np.bool_]
    ) -> "Facts":
        """Return the facts of pairs with any number of labels each."""
        pair_F, label_F = np.nonzero(label_PR)
        return cls(document_P[pair_F], head_P[pair_F], tail_P[pair_F], label_F)


def score_facts(
    predicted: Facts,
    gold: Facts,
    *,
    num_documents: int,
    num_relations: int,
    is_in_train_F: NDArray[np.bool_] | None = None,
) -> "RelationScores":
    """Count correct, predicted and gold facts by document and relation; NA facts are ignored.

    Args:
        predicted: predicted facts.
        gold: all gold facts, also those between entities that are no candidate pair.
        num_documents: U, all evaluated documents, with or without facts.
        num_relations: R, NA included.
        is_in_train_F: bool, whether a training document states each gold fact between the same
            names; None: no Ign-F1.

    Raises:
        ValueError: without documents, for documents or relations out of range, or flags of another
            shape than the gold facts.
    """
    if is_in_train_F is not None and (
        is_in_train_F.shape != gold.label_F.shape or is_in_train_F.dtype != np.bool_
    ):
        raise ValueError(
            f"is_in_train_F is {is_in_train_F.dtype} {is_in_train_F.shape}, want bool "
            f"{gold.label_F.shape}: of gold"
        )
    if num_documents < 1:
        raise ValueError(f"num_documents is {num_documents}, want at least 1")
    predicted_F4 = _table(predicted, num_documents, num_relations)
    gold_F4 = _table(gold, num_documents, num_relations)
    fact_G4, number_F = np.unique(
        np.concatenate([predicted_F4, gold_F4]).astype(np.int64), axis=0, return_inverse=True
    )
    number_F = number_F.reshape(-1)
    is_predicted_G, is_gold_G, is_known_G = np.zeros((3, len(fact_G4)), dtype=bool)
    is_predicted_G[number_F[: len(predicted_F4)]] = True
    gold_number_F = number_F[len(predicted_F4) :]
    is_gold_G[gold_number_F] = True
    if is_in_train_F is not None:
        is_known_G[gold_number_F[is_in_train_F]] = True
    is_correct_G = is_predicted_G & is_gold_G
    cell_G = fact_G4[:, 0] * num_relations + fact_G4[:, 1]
    is_relation_G = fact_G4[:, 1] != NA_COLUMN
    counts = [
        np.bincount(cell_G[chosen_G & is_relation_G], minlength=num_documents * num_relations)
        for chosen_G in (is_correct_G, is_predicted_G, is_gold_G, is_correct_G & is_known_G)
    ]
    count_UR4 = np.stack(counts, axis=-1).reshape(num_documents, num_relations, 4)
    return RelationScores(count_UR4, has_ign=is_in_train_F is not None)


def _table(facts: Facts, num_documents: int, num_relations: int) -> Integers:
    """Return facts as rows (document, relation, head, tail), after checking their ranges."""
    fact_F4 = np.stack([facts.document_F, facts.label_F, facts.head_F, facts.tail_F], axis=1)
    for column, limit, name in ((0, num_documents, "documents"), (1, num_relations, "relations")):
        if not len(fact_F4):
            continue
        low = fact_F4[:, column].min()
        high = fact_F4[:, column].max()
        if not 0 <= low <= high < limit:
            raise ValueError(f"{name} of facts span [{low}, {high}], want [0, {limit})")
    return fact_F4


@dataclass(frozen=True)
class RelationScores:
    """Counts of facts by document and relation, and scores computed from them; 0 / 0 is 0.

    Attributes:
        count_UR4: correct, predicted, gold, and correct facts stated in training.
        has_ign: whether the last count is known.
    """

    count_UR4: Integers
    has_ign: bool

    @property
    def measures(self) -> tuple[str, ...]:
        """Names of the scores; ``ign_f1`` only if ``has_ign``."""
        return MEASURES if self.has_ign else MEASURES[:-1]

    @cached_property
    def counts(self) -> dict[str, UnitCounts]:
        """The counts of documents of each score.

        ``f1``, ``precision`` and ``recall`` are micro averages. ``macro_f1`` is the mean over
        relations with gold facts. ``ign_f1`` combines the recall with a precision without facts
        known from training: (correct - known) / (predicted - known + 1e-5).
        """
        correct_UR, predicted_UR, gold_UR, _ = np.moveaxis(self.count_UR4, -1, 0)
        correct_U, predicted_U, gold_U, known_U = self.count_UR4.sum(axis=1).T
        new_U2 = np.stack(
            [correct_U - known_U, predicted_U - known_U + IGN_EPSILON / len(known_U)], axis=-1
        )
        recall_U2 = np.stack([correct_U, gold_U], axis=-1)
        f1_UR3 = np.stack([2 * correct_UR, predicted_UR + gold_UR, gold_UR], axis=-1)
        counts = {
            "f1": UnitCounts(np.stack([2 * correct_U, predicted_U + gold_U], axis=-1), RATIO),
            "precision": UnitCounts(np.stack([correct_U, predicted_U], axis=-1), RATIO),
            "recall": UnitCounts(recall_U2, RATIO),
            "macro_f1": UnitCounts(f1_UR3, MEAN_OF_RATIOS),
            "ign_f1": UnitCounts(np.stack([new_U2, recall_U2], axis=1), HARMONIC_MEAN_OF_RATIOS),
        }
        return {name: counts[name] for name in self.measures}

    @cached_property
    def values(self) -> dict[str, float]:
        """The scores of all documents."""
        return {name: counts.value for name, counts in self.counts.items()}

    def by_relation(self) -> dict[str, Floats]:
        """Return ``precision``, ``recall``, ``f1``, ``predicted`` and ``gold`` (R,).

        Scores are NaN for relations without predicted and gold facts.
        """
        correct_R, predicted_R, gold_R, _ = self.count_UR4.sum(axis=0).T.astype(np.float64)
        occurs_R = predicted_R + gold_R > 0
        scores = {
            "precision": share(correct_R, predicted_R),
            "recall": share(correct_R, gold_R),
            "f1": share(2 * correct_R, predicted_R + gold_R),
        }
        return {
            **{name: np.where(occurs_R, score_R, np.nan) for name, score_R in scores.items()},
            "predicted": predicted_R,
            "gold": gold_R,
        }

    def intervals(
        self, rng: np.random.Generator, *, num_resamples: int = 1000
    ) -> dict[str, Interval]:
        """Return the values with 95 % percentile bootstrap intervals over documents (Efron, 1979).

        They reflect the sample of documents, not training seeds. With very few documents they are
        too narrow, and with a single one unknown: NaN.
        """
        return percentile_intervals(self.counts, rng, num_resamples=num_resamples)

    def unit_scores(self) -> UnitScores:
        """Return the counts of documents, for paired tests between runs."""
        return sample_counts(self.counts)


def confusion_matrix(
    gold_P: Integers, predicted_P: Integers, num_relations: int
) -> NDArray[np.int64]:
    """Return the number of pairs by gold (rows) and predicted relation (columns), (R, R).

    Raises:
        ValueError: if labels differ in shape or are out of range.
    """
    if gold_P.shape != predicted_P.shape or gold_P.ndim != 1:
        raise ValueError(
            f"labels have shapes {gold_P.shape} and {predicted_P.shape}, want one each a pair"
        )
    for label_P in (gold_P, predicted_P):
        if len(label_P) and not 0 <= label_P.min() <= label_P.max() < num_relations:
            raise ValueError(
                f"labels span [{label_P.min()}, {label_P.max()}], want [0, {num_relations})"
            )
    cell_P = gold_P.astype(np.int64) * num_relations + predicted_P
    return np.bincount(cell_P, minlength=num_relations**2).reshape(num_relations, num_relations)
