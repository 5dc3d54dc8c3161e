"""Scores of supervised tasks, and what each row adds to them.

Shape letters: N rows, C classes. Every score is the mean of a number a row, so that runs can be compared in pairs.
"""

import numpy as np
from numpy.typing import NDArray

from raybio.core.final_report import UnitScores
from raybio.evaluation.unit_scores import linear_share, sample_units
from raybio.ops.significance import mean_interval

Floats = NDArray[np.float64]


Integers = NDArray[np.integer]  # type: ignore[type-arg]


NOISE_ULPS = 64
"""Predictions that differ by less, in float32 units of their scale, do not differ: a deep network's sums round so."""


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
    """``spearman``, the mean of products of standardised ranks, and ``negative_mse``.

    Predictions come from float32 arithmetic: those that differ by rounding alone share a rank. Where all predictions,
    or all gold numbers, share one rank, Spearman's correlation is undefined: NaN for every row.
    """
    from scipy.stats import rankdata  # half a second to import

    predicted_rank_N = rankdata(_without_rounding_noise(predicted_N, gold_N))
    gold_rank_N = rankdata(gold_N)
    if np.ptp(predicted_rank_N) == 0 or np.ptp(gold_rank_N) == 0:
        products_N = np.full(len(gold_N), np.nan)
    else:
        products_N = _standardised(predicted_rank_N) * _standardised(gold_rank_N)
    return {"spearman": products_N, "negative_mse": -((predicted_N - gold_N) ** 2)}


def _standardised(value_N: Floats) -> Floats:
    return (value_N - value_N.mean()) / value_N.std()


def _without_rounding_noise(predicted_N: Floats, gold_N: Floats) -> Floats:
    """Round predictions to multiples of ``NOISE_ULPS`` float32 units of their scale, counted from their median."""
    offset_N = (
        predicted_N - gold_N.mean()
    )  # the model computes numbers around 0, and adds the mean in float64
    scale = gold_N.std() + np.median(np.abs(offset_N))
    step = NOISE_ULPS * np.finfo(np.float32).eps * scale
    if step == 0:
        return predicted_N
    # From the median, so that the values of a constant predictor fall into the middle of one cell.
    return np.round((predicted_N - np.median(predicted_N)) / step)


def of_tokens(correct_N: Floats, labelled_N: Floats) -> dict[str, Floats]:
    """``accuracy`` over all labelled tokens; rows are proteins."""
    return {"accuracy": linear_share(correct_N, labelled_N)}


def with_intervals(
    value_by_measure: dict[str, Floats], seed: int, *, are_shares: bool = False
) -> dict[str, dict[str, float]]:
    """``{measure: {"value", "low", "high"}}`` with 95 % bootstrap intervals over rows; NaN where undefined.

    Of shares they end at 0 and 1: what the delta method adds up may lie beyond.
    """
    found = {}
    for name, value_N in value_by_measure.items():
        if np.isnan(value_N).any():
            found[name] = {"value": np.nan, "low": np.nan, "high": np.nan}
            continue
        value, low, high = mean_interval(value_N, np.random.default_rng(seed))
        low, high = (max(low, 0.0), min(high, 1.0)) if are_shares else (low, high)
        found[name] = {"value": value, "low": low, "high": high}
    return found


def units(row_N: Integers, value_by_measure: dict[str, Floats]) -> UnitScores:
    """For comparisons in pairs."""
    return sample_units(row_N, value_by_measure)
