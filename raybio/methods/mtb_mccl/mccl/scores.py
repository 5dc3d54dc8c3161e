"""Scores."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raybio.core.final_report import UnitScores
from raybio.evaluation.unit_scores import linear_share, sample_units, share
from raybio.ops.significance import Interval

Integers = NDArray[np.integer[Any]]


Floats = NDArray[np.float64]


MEASURES = ("f1", "precision", "recall", "macro_f1", "ign_f1")


BOOTSTRAP_SEED = 0
"""Of the bootstrap."""


IGN_EPSILON = 1e-5
"""Added to what Ign-F1's precision is divided by, as in the DocRED evaluation."""


_GOLD = 2  # of the four counts


@dataclass(frozen=True)
class Facts:
    """Facts that were predicted, or gold ones; what comes twice counts once.

    A document's number is in [0, documents). Where relations have no direction, give head and tail of both sides in the
    same order.

    Raises:
        ValueError: if the arrays are not integers of one length.
    """

    document_F: Integers
    head_F: Integers
    tail_F: Integers
    label_F: Integers

    def __post_init__(self) -> None:
        """Check that the columns are those of one table."""
        columns = (self.document_F, self.head_F, self.tail_F, self.label_F)
        if any(
            column.shape != (len(self.label_F),) or column.dtype.kind not in "iu"
            for column in columns
        ):
            found = ", ".join(f"{column.dtype} {column.shape}" for column in columns)
            raise ValueError(
                f"documents, heads, tails and labels are {found}; want integers, one each a fact"
            )

    @classmethod
    def of_labels(
        cls, document_P: Integers, head_P: Integers, tail_P: Integers, label_PR: NDArray[np.bool_]
    ) -> "Facts":
        """The facts of pairs with any number of labels each."""
        pair_F, label_F = np.nonzero(label_PR)
        return cls(document_P[pair_F], head_P[pair_F], tail_P[pair_F], label_F)


def score_facts(
    predicted: Facts,
    gold: Facts,
    *,
    num_documents: int,
    num_relations: int,
    na_index: int,
    is_in_train_F: NDArray[np.bool_] | None = None,
) -> "RelationScores":
    """Compare facts. Those labelled NA are none, on either side.

    Args:
        predicted: by a model. With one label a pair (BioRED), simply the labels of all pairs.
        gold: all that there is to find, in pairs that the model was not asked about too.
        num_documents: U, all documents that were asked, with facts or without.
        num_relations: R, NA included.
        na_index: NA's number.
        is_in_train_F: of each gold fact, whether training has a fact of the same relation between the same names: of
            any mention of its head and any of its tail; None: no Ign-F1.

    Raises:
        ValueError: without documents, for documents or relations out of range, or flags that are not one a gold fact.
    """
    if is_in_train_F is not None and (
        is_in_train_F.shape != gold.label_F.shape or is_in_train_F.dtype != np.bool_
    ):
        raise ValueError(
            f"is_in_train_F is {is_in_train_F.dtype} {is_in_train_F.shape}, want bool {gold.label_F.shape}: of gold"
        )
    if num_documents < 1:
        raise ValueError(f"num_documents is {num_documents}, want at least 1")
    fact_FC = [
        np.stack([each.document_F, each.label_F, each.head_F, each.tail_F], axis=1)
        for each in (predicted, gold)
    ]
    for fact_F in fact_FC:
        for column, limit, what in (
            (0, num_documents, "documents"),
            (1, num_relations, "relations"),
        ):
            if len(fact_F) and not 0 <= fact_F[:, column].min() <= fact_F[:, column].max() < limit:
                low, high = fact_F[:, column].min(), fact_F[:, column].max()
                raise ValueError(f"{what} of facts span [{low}, {high}], want [0, {limit})")
    every_G, number_F = np.unique(
        np.concatenate(fact_FC).astype(np.int64), axis=0, return_inverse=True
    )
    is_found_G, is_gold_G, is_known_G = np.zeros((3, len(every_G)), dtype=bool)
    number_F = number_F.reshape(-1)
    is_found_G[number_F[: len(fact_FC[0])]] = True
    gold_F = number_F[len(fact_FC[0]) :]
    is_gold_G[gold_F] = True
    if is_in_train_F is not None:
        is_known_G[gold_F[is_in_train_F]] = True
    is_right_G = is_found_G & is_gold_G
    cell_G = every_G[:, 0] * num_relations + every_G[:, 1]
    count_UR4 = np.stack(
        [
            np.bincount(
                cell_G[chosen_G & (every_G[:, 1] != na_index)],
                minlength=num_documents * num_relations,
            )
            for chosen_G in (is_right_G, is_found_G, is_gold_G, is_right_G & is_known_G)
        ],
        axis=-1,
    ).reshape(num_documents, num_relations, 4)
    return RelationScores(count_UR4, has_ign=is_in_train_F is not None)


@dataclass(frozen=True)
class RelationScores:
    """Counts of facts by document and relation, and what they say. A share of nothing is 0.

    Attributes:
        count_UR4: right, found, gold, and right and known from training.
        has_ign: whether it was said what is known from training.
    """

    count_UR4: Integers
    has_ign: bool

    @property
    def measures(self) -> tuple[str, ...]:
        """Those that can be told: ``ign_f1`` only where it was said what training knows."""
        return MEASURES if self.has_ign else MEASURES[:-1]

    @cached_property
    def values(self) -> dict[str, float]:
        """Micro ``f1``, ``precision`` and ``recall`` of all facts; ``macro_f1``; ``ign_f1``.

        ``macro_f1``: the mean over the relations that have gold facts. ``ign_f1``: with the precision of what is found
        beyond training, (right - known) / (found - known + 1e-5), and the recall of all.
        """
        sums = _statistics(self.count_UR4.sum(axis=0)[None].astype(np.float64))
        return {name: float(sums[name][0]) for name in self.measures}

    def by_relation(self) -> dict[str, Floats]:
        """``precision``, ``recall``, ``f1``, ``found`` and ``gold`` (R,); NaN for the scores of what has neither."""
        right_R, found_R, gold_R, _ = self.count_UR4.sum(axis=0).T.astype(np.float64)
        is_there_R = found_R + gold_R > 0
        shares = {
            "precision": share(right_R, found_R),
            "recall": share(right_R, gold_R),
            "f1": share(2 * right_R, found_R + gold_R),
        }
        told = {name: np.where(is_there_R, share_R, np.nan) for name, share_R in shares.items()}
        return told | {"found": found_R, "gold": gold_R}

    def intervals(
        self, rng: np.random.Generator, *, num_resamples: int = 1000
    ) -> dict[str, Interval]:
        """The values with 95 % percentile intervals of the bootstrap over documents (Efron, 1979).

        They speak of the choice of documents alone, not of training seeds; with very few documents they are too narrow.
        """
        num_documents, num_relations, _ = self.count_UR4.shape
        count_UC = self.count_UR4.reshape(num_documents, -1).astype(np.float64)
        chance_U = np.full(num_documents, 1 / num_documents)
        # One resample at a time: memory must not grow with documents times resamples.
        sums = [rng.multinomial(num_documents, chance_U) @ count_UC for _ in range(num_resamples)]
        resampled = _statistics(np.reshape(sums, (num_resamples, num_relations, 4)))
        bounds = {name: np.percentile(resampled[name], [2.5, 97.5]) for name in self.measures}
        return {
            name: Interval(self.values[name], float(low), float(high))
            for name, (low, high) in bounds.items()
        }

    def unit_scores(self) -> UnitScores:
        """What each document adds to each value, by which finished runs are tested in pairs.

        An F1 is no mean over documents. Taken instead is its linearisation at the run's counts (the delta method): a
        document's right facts lift it and its wrong and missing ones lower it, by as much as they move the F1, and the
        mean over documents is the F1.
        """
        num_documents = len(self.count_UR4)
        scaled_UR4 = self.count_UR4 * float(num_documents)
        right_U, found_U, gold_U, known_U = scaled_UR4.sum(axis=1).T
        precision_U, recall_U = linear_share(right_U, found_U), linear_share(right_U, gold_U)
        beyond_U = linear_share(right_U - known_U, found_U - known_U + IGN_EPSILON)
        has_gold_R = self.count_UR4[..., _GOLD].any(axis=0)
        by_relation = [
            linear_share(2 * right_UR, found_UR + gold_UR)
            for right_UR, found_UR, gold_UR, _ in scaled_UR4[:, has_gold_R].transpose(1, 2, 0)
        ]
        value_by_measure = {
            "f1": linear_share(2 * right_U, found_U + gold_U),
            "precision": precision_U,
            "recall": recall_U,
            "macro_f1": np.mean(by_relation, axis=0) if by_relation else np.zeros(num_documents),
            "ign_f1": _linear_f1(beyond_U, recall_U),
        }
        return sample_units(
            np.arange(num_documents), {name: value_by_measure[name] for name in self.measures}
        )


def confusion_matrix(
    gold_P: Integers, predicted_P: Integers, num_relations: int
) -> NDArray[np.int64]:
    """Pairs of one label each by gold relation (rows) and predicted relation (columns), (R, R), NA included.

    Raises:
        ValueError: if the labels do not fit together, or into the table.
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
    """Every measure (X,) of each sample's counts."""
    right_X, found_X, gold_X, known_X = sum_XR4.sum(axis=1).T
    right_XR, found_XR, gold_XR, _ = np.moveaxis(sum_XR4, -1, 0)
    f1_XR = np.where(gold_XR > 0, share(2 * right_XR, found_XR + gold_XR), 0.0)
    recall_X = share(right_X, gold_X)
    beyond_X = (right_X - known_X) / (found_X - known_X + IGN_EPSILON)
    return {
        "f1": share(2 * right_X, found_X + gold_X),
        "precision": share(right_X, found_X),
        "recall": recall_X,
        "macro_f1": share(f1_XR.sum(axis=1), (gold_XR > 0).sum(axis=1).astype(np.float64)),
        "ign_f1": share(2 * beyond_X * recall_X, beyond_X + recall_X),
    }


def _linear_f1(precision_U: Floats, recall_U: Floats) -> Floats:
    """Linearised harmonic mean of two linearised shares."""
    precision, recall = precision_U.mean(), recall_U.mean()
    total = precision + recall
    if total <= 0:
        return np.zeros_like(precision_U)
    f1 = 2 * precision * recall / total
    moved_U = recall**2 * (precision_U - precision) + precision**2 * (recall_U - recall)
    return f1 + 2 * moved_U / total**2
