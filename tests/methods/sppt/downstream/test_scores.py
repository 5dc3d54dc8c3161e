"""Scores of supervised tasks, against scikit-learn and scipy."""

import numpy as np
import pytest
from scipy.stats import spearmanr
from sklearn.metrics import accuracy_score, f1_score

from raybio.methods.sppt.downstream.scores import (
    class_scores,
    number_scores,
    token_scores,
)
from raybio.methods.sppt.scores import with_intervals


def test_scores_classes_are_those_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    gold_N = rng.integers(5, size=200)
    predicted_N = np.where(rng.random(200) < 0.6, gold_N, rng.integers(4, size=200))
    found = class_scores(predicted_N, gold_N)
    assert found["accuracy"].mean() == pytest.approx(accuracy_score(gold_N, predicted_N))
    assert found["macro_f1"].mean() == pytest.approx(f1_score(gold_N, predicted_N, average="macro"))


@pytest.mark.parametrize("ties", [False, True])
def test_rank_correlation_is_scipys(ties: bool) -> None:
    rng = np.random.default_rng(1)
    gold_N = rng.normal(size=100).round(1 if ties else 9)
    predicted_N = (gold_N + rng.normal(size=100)).round(0 if ties else 9)
    found = number_scores(predicted_N, gold_N)
    assert found["spearman"].mean() == pytest.approx(spearmanr(predicted_N, gold_N).statistic)
    assert found["negative_mse"].mean() == pytest.approx(-((predicted_N - gold_N) ** 2).mean())


@pytest.mark.parametrize(("noise", "ties"), [(0.4, False), (0.4, True), (3.0, False)])
def test_the_interval_of_a_rank_correlation_is_that_of_rows_ranked_anew(
    noise: float, ties: bool
) -> None:
    rng = np.random.default_rng(4)
    gold_N = rng.normal(size=80).round(0 if ties else 9)
    predicted_N = gold_N + noise * rng.normal(size=80)
    interval = with_intervals(number_scores(predicted_N, gold_N), 0)["spearman"]
    resampled = []
    for _ in range(1000):
        drawn = rng.integers(0, 80, 80)
        resampled.append(spearmanr(predicted_N[drawn], gold_N[drawn]).statistic)
    low, high = np.percentile(resampled, [2.5, 97.5])
    assert interval["high"] - interval["low"] == pytest.approx(high - low, rel=0.15)
    assert interval["low"] == pytest.approx(low, abs=0.3 * (high - low))


@pytest.mark.parametrize("value", [0.0, 0.3, -250.0])
def test_rank_correlation_of_a_constant_predictor_is_undefined(value: float) -> None:
    """Rounding noise of float32 sums is no ranking, even where it agrees with the gold ranks."""
    rng = np.random.default_rng(2)
    gold_N = rng.normal(value, 2.0, size=500)
    noise_N = 4 * np.finfo(np.float32).eps * np.argsort(np.argsort(gold_N)) / len(gold_N)
    for predicted_N in (
        np.full(500, value),
        value + noise_N,
        value + 1.0 + rng.permutation(noise_N),
    ):
        found = number_scores(predicted_N, gold_N)
        assert np.isnan(found["spearman"]).all()
        assert found["negative_mse"].mean() == pytest.approx(-((predicted_N - gold_N) ** 2).mean())
        intervals = with_intervals(found, 0)
        assert all(np.isnan(number) for number in intervals["spearman"].values())
        assert np.isfinite(list(intervals["negative_mse"].values())).all()
    assert np.isnan(number_scores(gold_N, np.full(500, value))["spearman"]).all()


@pytest.mark.parametrize("center", [0.0, 1e4])
def test_predictions_that_differ_little_are_still_ranked(center: float) -> None:
    """A collapsed model: predictions span a thousandth of gold deviation, more than rounding."""
    gold_N = np.random.default_rng(3).normal(center, 1.0, size=400)
    predicted_N = center + 1e-3 * (gold_N - center)
    found = number_scores(predicted_N, gold_N)["spearman"].mean()
    assert found == pytest.approx(spearmanr(predicted_N, gold_N).statistic, abs=1e-4)


def test_tokens_count_alike_whatever_protein_they_are_of() -> None:
    found = token_scores(np.array([8.0, 0.0]), np.array([8.0, 2.0]))
    assert found["accuracy"].mean() == pytest.approx(0.8)
    interval = with_intervals(found, 0)["accuracy"]
    assert interval["low"] < interval["value"] < interval["high"]
