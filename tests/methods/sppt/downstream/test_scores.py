"""Scores of supervised tasks, against scikit-learn and scipy."""

import itertools

import numpy as np
import pytest
from scipy.stats import spearmanr
from sklearn.metrics import accuracy_score, f1_score

from raybio.methods.sppt.downstream.scores import (
    chance_scores,
    class_scores,
    class_set_scores,
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


def test_scores_of_sets_are_those_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    gold_NC = rng.random((200, 9)) < [0.5, 0.3, 0.1, 0.02, 0, 0, 0.9, 0.2, 0.01]
    predicted_NC = np.where(rng.random((200, 9)) < 0.8, gold_NC, rng.random((200, 9)) < 0.3)
    # One class occurs nowhere, one in predictions only, one in gold only.
    predicted_NC[:, 4] = False
    predicted_NC[:, 8] = False
    occurs_C = (gold_NC | predicted_NC).any(axis=0)
    assert occurs_C.tolist() == [True] * 4 + [False] + [True] * 4
    found = class_set_scores(predicted_NC, gold_NC)
    # Of a class that occurs nowhere scikit-learn would count 0.
    macro = f1_score(gold_NC[:, occurs_C], predicted_NC[:, occurs_C], average="macro")
    assert found["macro_f1"].mean() == pytest.approx(macro, rel=0, abs=1e-9)
    micro = f1_score(gold_NC, predicted_NC, average="micro")
    assert found["micro_f1"].mean() == pytest.approx(micro, rel=0, abs=1e-9)
    assert {name: value_N.shape for name, value_N in found.items()} == {
        "macro_f1": (200,),
        "micro_f1": (200,),
    }
    nothing = class_set_scores(np.zeros((3, 2), bool), np.zeros((3, 2), bool))
    assert [value_N.tolist() for value_N in nothing.values()] == [[0.0] * 3] * 2


def test_sets_of_one_class_each_have_the_scores_of_classes() -> None:
    rng = np.random.default_rng(1)
    gold_N, predicted_N = rng.integers(4, size=(2, 50))
    single = class_scores(predicted_N, gold_N)
    sets = class_set_scores(np.eye(4, dtype=bool)[predicted_N], np.eye(4, dtype=bool)[gold_N])
    np.testing.assert_allclose(sets["macro_f1"], single["macro_f1"], rtol=0, atol=1e-12)
    np.testing.assert_allclose(sets["micro_f1"], single["accuracy"], rtol=0, atol=1e-12)


@pytest.mark.parametrize("measure", ["macro_f1", "micro_f1"])
def test_the_interval_of_f1_of_sets_is_that_of_rows_drawn_anew(measure: str) -> None:
    rng = np.random.default_rng(2)
    gold_NC = rng.random((150, 4)) < [0.5, 0.3, 0.2, 0.4]
    predicted_NC = gold_NC ^ (rng.random((150, 4)) < 0.15)
    interval = with_intervals(class_set_scores(predicted_NC, gold_NC), 0)[measure]
    average = measure.removesuffix("_f1")
    resampled = []
    for _ in range(500):
        drawn = rng.integers(0, 150, 150)
        resampled.append(f1_score(gold_NC[drawn], predicted_NC[drawn], average=average))
    low, high = np.percentile(resampled, [2.5, 97.5])
    assert interval["high"] - interval["low"] == pytest.approx(high - low, rel=0.15)
    assert interval["low"] == pytest.approx(low, abs=0.3 * (high - low))


def test_chance_of_sets_is_the_constant_set_with_the_best_macro_f1_on_training() -> None:
    rng = np.random.default_rng(3)
    train_TC = rng.random((60, 4)) < [0.6, 0.2, 0.05, 0]
    gold_NC = rng.random((40, 4)) < [0.5, 0.3, 0.1, 0.1]
    constants = [np.array(bits) for bits in itertools.product([False, True], repeat=4)]
    on_training = [
        f1_score(train_TC, np.tile(constant, (60, 1)), average="macro", zero_division=np.nan)
        for constant in constants
    ]
    best = constants[int(np.nanargmax(on_training))]
    assert best.tolist() == [True, True, True, False]
    found = chance_scores("class_set", train_TC, gold_NC)
    for name in ("macro", "micro"):
        expected = f1_score(gold_NC, np.tile(best, (40, 1)), average=name)
        assert found[f"{name}_f1"].mean() == pytest.approx(expected)


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
