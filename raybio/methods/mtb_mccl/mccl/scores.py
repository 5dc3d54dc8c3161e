"""Scores of extracted relations: micro F1, macro F1 and Ign-F1 (Zhou et al., 2023, Section 4.1).

A fact is (document, head, tail, relation). Facts of all documents are pooled.

Shape letters: F facts, G distinct facts, P entity pairs, U documents, R relations (NA first),
X bootstrap samples; the axis of length 4 holds the counts correct, predicted, gold, and correct
facts that the training documents already state.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from raybio.core.arrays import Floats, Integers
from raybio.core.final_report import UnitScores
from raybio.evaluation.unit_scores import linear_share, sample_units, share
from raybio.ops.significance import Interval, percentile_intervals, resampled_sums

NA_COLUMN = 0
"""Number of NA among the relations."""

MEASURES = ("f1", "precision", "recall", "macro_f1", "ign_f1")


BOOTSTRAP_SEED = 0
"""Seed of the resamples of documents: the same for all models, so that their scores are paired."""

IGN_EPSILON = 1e-5
"""Added to the denominator of Ign-F1's precision, as in the DocRED evaluation."""

_GOLD = 2  # index of the gold counts


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
        is_in_train_F: bool, which gold facts some training document states between the same names;
            None: no Ign-F1.

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
    def values(self) -> dict[str, float]:
        """Micro-averaged ``f1``, ``precision`` and ``recall``; ``macro_f1``; ``ign_f1``.

        ``macro_f1`` is the mean over relations with gold facts. ``ign_f1`` combines the recall with
        a precision without facts known from training:
        (correct - known) / (predicted - known + 1e-5).
        """
        sums = _statistics(self.count_UR4.sum(axis=0)[None].astype(np.float64))
        return {name: float(sums[name][0]) for name in self.measures}

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
        num_documents = len(self.count_UR4)
        sum_XC = resampled_sums(self.count_UR4.reshape(num_documents, -1), rng, num_resamples)
        resampled = _statistics(sum_XC.reshape(num_resamples, *self.count_UR4.shape[1:]))
        return percentile_intervals(self.values, resampled, num_documents)

    def unit_scores(self) -> UnitScores:
        """Return each document's contribution to each value, for paired tests between runs.

        An F1 is no mean over documents. So it is linearized at the run's counts (the delta method):
        a document's correct facts raise it and its wrong and missing ones lower it, by as much as
        they change the F1. The mean over documents is the F1.
        """
        num_documents = len(self.count_UR4)
        scaled_UR4 = self.count_UR4 * float(num_documents)
        correct_U, predicted_U, gold_U, known_U = scaled_UR4.sum(axis=1).T
        precision_U = linear_share(correct_U, predicted_U)
        recall_U = linear_share(correct_U, gold_U)
        new_precision_U = linear_share(correct_U - known_U, predicted_U - known_U + IGN_EPSILON)
        has_gold_R = self.count_UR4[..., _GOLD].any(axis=0)
        f1_by_relation = [
            linear_share(2 * count_4U[0], count_4U[1] + count_4U[2])
            for count_4U in scaled_UR4[:, has_gold_R].transpose(1, 2, 0)
        ]
        macro_f1_U = np.mean(f1_by_relation, axis=0) if f1_by_relation else np.zeros(num_documents)
        value_by_measure = {
            "f1": linear_share(2 * correct_U, predicted_U + gold_U),
            "precision": precision_U,
            "recall": recall_U,
            "macro_f1": macro_f1_U,
            "ign_f1": _linear_f1(new_precision_U, recall_U),
        }
        return sample_units(
            np.arange(num_documents), {name: value_by_measure[name] for name in self.measures}
        )

    def f1_counts(self) -> UnitScores:
        """Return ``achieved`` and ``achievable`` of each document.

        They are 2 x its correct facts, and its predicted and gold facts: the ratio of their sums is
        the micro F1.
        """
        correct_U, predicted_U, gold_U, _ = self.count_UR4.sum(axis=1).T.astype(np.float64)
        counts = {"achieved": 2 * correct_U, "achievable": predicted_U + gold_U}
        return sample_units(np.arange(len(self.count_UR4)), counts)


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


def _statistics(sum_XR4: Floats) -> dict[str, Floats]:
    """Return every measure (X,) of each sample's counts."""
    correct_X, predicted_X, gold_X, known_X = sum_XR4.sum(axis=1).T
    correct_XR, predicted_XR, gold_XR, _ = np.moveaxis(sum_XR4, -1, 0)
    f1_XR = np.where(gold_XR > 0, share(2 * correct_XR, predicted_XR + gold_XR), 0.0)
    recall_X = share(correct_X, gold_X)
    new_precision_X = (correct_X - known_X) / (predicted_X - known_X + IGN_EPSILON)
    return {
        "f1": share(2 * correct_X, predicted_X + gold_X),
        "precision": share(correct_X, predicted_X),
        "recall": recall_X,
        "macro_f1": share(f1_XR.sum(axis=1), (gold_XR > 0).sum(axis=1).astype(np.float64)),
        "ign_f1": share(2 * new_precision_X * recall_X, new_precision_X + recall_X),
    }


def _linear_f1(precision_U: Floats, recall_U: Floats) -> Floats:
    """Return the linearized harmonic mean of two linearized shares."""
    precision = precision_U.mean()
    recall = recall_U.mean()
    total = precision + recall
    if total <= 0:
        return np.zeros_like(precision_U)
    f1 = 2 * precision * recall / total
    change_U = recall**2 * (precision_U - precision) + precision**2 * (recall_U - recall)
    return f1 + 2 * change_U / total**2
