"""Leave-one-out neighbors, against scikit-learn one node at a time."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import KNeighborsClassifier

from raybio.methods.sppt.synthetic.leave_one_out import leave_one_out


def votes_one_by_one(embedding_ND: np.ndarray, label_N: np.ndarray) -> np.ndarray:
    vote_NC = np.zeros((len(label_N), label_N.max() + 1))
    for node in range(len(label_N)):
        rest = np.delete(np.arange(len(label_N)), node)
        fitted = KNeighborsClassifier(3, weights="distance").fit(embedding_ND[rest], label_N[rest])
        vote_NC[node, fitted.classes_] = fitted.predict_proba(embedding_ND[[node]])[0]
    return vote_NC


@pytest.mark.parametrize("signal", [0.0, 1.0])
def test_scores_are_those_of_a_classifier_fitted_without_each_node(signal: float) -> None:
    rng = np.random.default_rng(0)
    label_N = np.sort(rng.permutation(np.repeat(np.arange(5), [3, 7, 20, 30, 40])))
    embedding_ND = rng.normal(size=(100, 6)) + signal * rng.normal(size=(5, 6))[label_N]
    embedding_ND[1] = embedding_ND[0]  # at no distance
    vote_NC, found = votes_one_by_one(embedding_ND, label_N), leave_one_out(embedding_ND, label_N)
    each = [roc_auc_score(label_N == label, vote_NC[:, label]) for label in range(5)]
    assert found.auroc_N.mean() == pytest.approx(np.mean(each))
    assert found.accuracy_N.mean() == pytest.approx((vote_NC.argmax(axis=1) == label_N).mean())
    interval = found.scores()["auroc"]
    assert interval["value"] == pytest.approx(np.mean(each))
    assert interval["low"] < interval["value"] < interval["high"]


@pytest.mark.parametrize("signal", [0.0, 1.0])
def test_the_interval_of_the_area_is_that_of_resampled_nodes_with_their_votes(
    signal: float,
) -> None:
    rng = np.random.default_rng(1)
    label_N = np.repeat(np.arange(3), [15, 25, 40])
    embedding_ND = rng.normal(size=(80, 6)) + signal * rng.normal(size=(3, 6))[label_N]
    vote_NC = votes_one_by_one(embedding_ND, label_N)
    interval = leave_one_out(embedding_ND, label_N).scores()["auroc"]
    resampled = []
    for _ in range(1000):
        drawn = rng.integers(0, 80, 80)
        areas = []
        for label in range(3):
            has_label = label_N[drawn] == label
            above = vote_NC[drawn[has_label], label][:, None]
            below = vote_NC[drawn[~has_label], label]
            areas.append(((above > below) + 0.5 * (above == below)).mean())
        resampled.append(np.mean(areas))
    low, high = np.percentile(resampled, [2.5, 97.5])
    assert interval["high"] - interval["low"] == pytest.approx(high - low, rel=0.15)
    assert interval["low"] == pytest.approx(low, abs=0.3 * (high - low))


def test_equal_embeddings_tell_nothing() -> None:
    # All neighbors are those that come first, whatever the node.
    label_N = np.arange(60) % 3
    assert leave_one_out(np.ones((60, 4)), label_N).auroc_N.mean() == pytest.approx(0.5, abs=0.05)


def test_the_rounding_noise_of_a_collapsed_encoder_states_nothing() -> None:
    """Nodes of a class share their noise, as texts of one length do."""
    label_N = np.arange(60) % 3
    noise_ND = np.random.default_rng(0).normal(size=(3, 4))[label_N]
    embedding_ND = (np.array([0.3, -1.7, 0.8, 2.5]) + 2e-7 * noise_ND).astype(np.float32)
    assert leave_one_out(embedding_ND, label_N).auroc_N.mean() == pytest.approx(0.5, abs=0.05)
    apart = (np.array([0.3, -1.7, 0.8, 2.5]) + 1e-3 * noise_ND).astype(np.float32)
    assert leave_one_out(apart, label_N).auroc_N.mean() == pytest.approx(1.0)


def test_one_class_is_refused() -> None:
    with pytest.raises(ValueError, match="all nodes have one class"):
        leave_one_out(np.ones((4, 2)), np.zeros(4, int))
