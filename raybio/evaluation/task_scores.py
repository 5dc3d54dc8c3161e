"""Scores of supervised tasks, and what each row adds to them.

Shape letters: N rows, C classes. Every score is the mean of a number a row, so that runs can be compared in pairs.
"""

import numpy as np
from numpy.typing import NDArray

from raybio.evaluation.shares import linear_share
from raybio.evaluation.unit_scores import UnitScores, sampled
from raybio.functional.significance import mean_interval

Floats = NDArray[np.float64]
Integers = NDArray[np.integer]  # type: ignore[type-arg]


def of_classes(predicted_N: Integers, gold_N: Integers) -> dict[str, Floats]:
    """``accuracy``, and ``macro_f1`` over the classes that gold or prediction has.

    A row's number for F1 says how far it moves each class' ratio 2 TP / (2 TP + FP + FN) (the delta method).
    """
    correct_N = (predicted_N == gold_N).astype(np.float64)
    classes = np.union1d(predicted_N, gold_N)
    each = [
        linear_share(
            2.0 * ((predicted_N == one) & (gold_N == one)),
            (predicted_N == one).astype(np.float64) + (gold_N == one),
        )
        for one in classes
    ]
    return {"accuracy": correct_N, "macro_f1": np.mean(each, axis=0)}


def of_numbers(predicted_N: Floats, gold_N: Floats) -> dict[str, Floats]:
    """``spearman``: the mean of products of standardised ranks; 0 where all are equal. ``negative_mse`` beside it."""
    from scipy.stats import rankdata  # half a second to import

    ranks = [rankdata(values) for values in (predicted_N, gold_N)]
    one_N, two_N = ((rank - rank.mean()) / (rank.std() or 1.0) for rank in ranks)
    return {"spearman": one_N * two_N, "negative_mse": -((predicted_N - gold_N) ** 2)}


def of_tokens(correct_N: Floats, labelled_N: Floats) -> dict[str, Floats]:
    """``accuracy`` over all labelled tokens; rows are proteins."""
    return {"accuracy": linear_share(correct_N, labelled_N)}


def with_intervals(
    value_by_measure: dict[str, Floats], seed: int, *, are_shares: bool = False
) -> dict[str, dict[str, float]]:
    """``{measure: {"value", "low", "high"}}`` with 95 % bootstrap intervals over rows.

    Of shares they end at 0 and 1: what the delta method adds up may lie beyond.
    """
    found = {}
    for name, value_N in value_by_measure.items():
        value, low, high = mean_interval(value_N, np.random.default_rng(seed))
        low, high = (max(low, 0.0), min(high, 1.0)) if are_shares else (low, high)
        found[name] = {"value": value, "low": low, "high": high}
    return found


def units(row_N: Integers, value_by_measure: dict[str, Floats]) -> UnitScores:
    """For comparisons in pairs."""
    return sampled(row_N, value_by_measure)
