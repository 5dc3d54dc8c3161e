"""Scores of supervised tasks, and the contribution of each row to them.

Every score is the mean of one number a row, so that runs can be compared in pairs.

Shape letters: N rows, T training rows, C classes.
"""

import numpy as np

from raybio.core.arrays import Bools, Floats, Integers
from raybio.evaluation.unit_scores import linear_share
from raybio.methods.sppt.downstream.config import Labels

NAMES = {"accuracy": "accuracy", "macro_f1": "macro F1", "spearman": "Spearman's ρ"}
"""The measures as tables name them."""

NOISE_ULPS = 64
"""Predictions that differ by less, in float32 units of their scale, count as equal.

The sums of a deep network differ by that much through rounding alone.
"""


def row_scores(labels: Labels, predicted: np.ndarray, gold: np.ndarray) -> dict[str, Floats]:
    """Return the scores of predictions; these and gold have the format of ``TaskStore.targets``."""
    if labels == "class":
        return class_scores(predicted, gold)
    if labels == "class_set":
        return class_set_scores(predicted, gold)
    return number_scores(predicted, gold)


def chance_scores(labels: Labels, train: np.ndarray, gold: np.ndarray) -> dict[str, Floats]:
    """Return the scores of the same prediction for every row, by the targets of training.

    It is the most frequent class, the mean number, or the set of all classes in training, which of
    all constant sets has the highest macro F1 on training rows.
    """
    predicted = np.empty_like(gold)
    if labels == "class":
        predicted[:] = np.bincount(train).argmax()
    elif labels == "class_set":
        predicted[:] = train.any(axis=0)
    else:
        predicted[:] = train.mean()
    return row_scores(labels, predicted, gold)


def class_scores(predicted_N: Integers, gold_N: Integers) -> dict[str, Floats]:
    """Return ``accuracy`` and ``macro_f1``, the mean over classes that occur in either argument.

    A row's contribution to F1 is linearized: how far it moves each class's 2 TP / (2 TP + FP + FN)
    (the delta method).
    """
    correct_N = (predicted_N == gold_N).astype(np.float64)
    f1_of_classes = [
        _f1(predicted_N == label, gold_N == label) for label in np.union1d(predicted_N, gold_N)
    ]
    return {"accuracy": correct_N, "macro_f1": np.mean(f1_of_classes, axis=0)}


def class_set_scores(predicted_NC: Bools, gold_NC: Bools) -> dict[str, Floats]:
    """Return ``macro_f1``, the mean over classes that occur in either argument, and ``micro_f1``.

    Both are linearized as in ``class_scores``, and 0 where no class occurs.
    """
    class_O = np.flatnonzero((predicted_NC | gold_NC).any(axis=0))
    macro_N = np.zeros(len(gold_NC))
    for label in class_O:
        macro_N += _f1(predicted_NC[:, label], gold_NC[:, label]) / len(class_O)
    numerator_N = 2.0 * (predicted_NC & gold_NC).sum(axis=1)
    denominator_N = predicted_NC.sum(axis=1, dtype=np.float64) + gold_NC.sum(axis=1)
    return {"macro_f1": macro_N, "micro_f1": linear_share(numerator_N, denominator_N)}


def _f1(is_predicted_N: Bools, is_gold_N: Bools) -> Floats:
    """Return contributions (N,) to the F1 of one class."""
    is_right_N = (is_predicted_N & is_gold_N).astype(np.float64)
    return linear_share(2 * is_right_N, is_predicted_N.astype(np.float64) + is_gold_N)


def number_scores(predicted_N: Floats, gold_N: Floats) -> dict[str, Floats]:
    """Return ``spearman`` and ``negative_mse``.

    A row's contribution to Spearman's correlation is linearized: how far the row moves it, by its
    own ranks and by those of all other rows, which it raises (the delta method).

    Predictions come from float32 arithmetic, so those that differ by rounding only share a rank. If
    all predictions, or all gold numbers, share one rank, the correlation is undefined: NaN in every
    row.
    """
    from scipy.stats import rankdata  # imported here: it takes half a second

    predicted_rank_N = rankdata(_without_rounding_noise(predicted_N, gold_N))
    gold_rank_N = rankdata(gold_N)
    if np.ptp(predicted_rank_N) == 0 or np.ptp(gold_rank_N) == 0:
        spearman_N = np.full(len(gold_N), np.nan)
    else:
        spearman_N = _linear_correlation(
            predicted_rank_N - predicted_rank_N.mean(), gold_rank_N - gold_rank_N.mean()
        )
    return {"spearman": spearman_N, "negative_mse": -((predicted_N - gold_N) ** 2)}


def token_scores(correct_N: Floats, labeled_N: Floats) -> dict[str, Floats]:
    """Return ``accuracy`` over all labeled tokens.

    Args:
        correct_N: correctly predicted tokens of each protein.
        labeled_N: labeled tokens of each protein.
    """
    return {"accuracy": linear_share(correct_N, labeled_N)}


def _linear_correlation(first_N: Floats, second_N: Floats) -> Floats:
    """Return contributions (N,) to the correlation of centered ranks, whose mean it is."""
    first_square = float(first_N @ first_N)
    second_square = float(second_N @ second_N)
    size = np.sqrt(first_square * second_square)
    correlation = float(first_N @ second_N) / size
    product_N = first_N * second_N + _above(first_N, second_N) + _above(second_N, first_N)
    first_change_N = first_N**2 + 2 * _above(first_N, first_N)
    second_change_N = second_N**2 + 2 * _above(second_N, second_N)
    lost_N = (first_change_N / first_square + second_change_N / second_square) / 2
    return np.asarray(correlation + len(first_N) * (product_N / size - correlation * lost_N))


def _above(rank_N: Floats, value_N: Floats) -> Floats:
    """Return, for each row, the sum of values of rows of a higher rank, and half of an equal one.

    A copy of a row raises the ranks of just these rows, by 1 and by 1/2.
    """
    _, slot_N = np.unique(rank_N, return_inverse=True)
    sum_U = np.bincount(slot_N, value_N)
    return np.asarray((sum_U[::-1].cumsum()[::-1] - sum_U / 2)[slot_N])


def _without_rounding_noise(predicted_N: Floats, gold_N: Floats) -> Floats:
    """Return predictions in multiples of ``NOISE_ULPS`` float32 units of their scale."""
    # The model computes numbers around 0 in float32 and adds the mean in float64.
    offset_N = predicted_N - gold_N.mean()
    scale = gold_N.std() + np.median(np.abs(offset_N))
    step = NOISE_ULPS * np.finfo(np.float32).eps * scale
    if step == 0:
        return predicted_N
    # Counted from the median, so that a constant predictor's values lie in the middle of one cell.
    return np.round((predicted_N - np.median(predicted_N)) / step)
