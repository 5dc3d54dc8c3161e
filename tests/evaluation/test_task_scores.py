"""Scores of supervised tasks, against scikit-learn and scipy."""

import numpy as np
import pytest
from scipy.stats import spearmanr
from sklearn.metrics import accuracy_score, f1_score

from raybio.evaluation.task_scores import of_classes, of_numbers, of_tokens, with_intervals


def test_scores_of_classes_are_those_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    gold_N = rng.integers(5, size=200)
    predicted_N = np.where(rng.random(200) < 0.6, gold_N, rng.integers(4, size=200))
    found = of_classes(predicted_N, gold_N)
    assert found["accuracy"].mean() == pytest.approx(accuracy_score(gold_N, predicted_N))
    assert found["macro_f1"].mean() == pytest.approx(f1_score(gold_N, predicted_N, average="macro"))


@pytest.mark.parametrize("ties", [False, True])
def test_rank_correlation_is_scipys(ties: bool) -> None:
    rng = np.random.default_rng(1)
    gold_N = rng.normal(size=100).round(1 if ties else 9)
    predicted_N = (gold_N + rng.normal(size=100)).round(0 if ties else 9)
    found = of_numbers(predicted_N, gold_N)
    assert found["spearman"].mean() == pytest.approx(spearmanr(predicted_N, gold_N).statistic)
    assert found["negative_mse"].mean() == pytest.approx(-((predicted_N - gold_N) ** 2).mean())
    assert of_numbers(np.ones(100), gold_N)["spearman"].mean() == 0


def test_tokens_count_alike_whatever_protein_they_are_of() -> None:
    found = of_tokens(np.array([8.0, 0.0]), np.array([8.0, 2.0]))
    assert found["accuracy"].mean() == pytest.approx(0.8)
    interval = with_intervals(found, 0)["accuracy"]
    assert interval["low"] < interval["value"] < interval["high"]
