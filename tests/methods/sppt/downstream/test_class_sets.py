"""Several labels a row: the loss, its gradient and the rivals against loops."""

import math
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from sklearn.metrics import f1_score
from torch import nn

from raybio.core.errors import ConfigError
from raybio.core.records import write_record
from raybio.methods import METHODS
from raybio.methods.sppt.batches import TaskBatch
from raybio.methods.sppt.downstream import rivals
from raybio.methods.sppt.downstream.export import HEAD_SETTINGS, TaskHead
from raybio.methods.sppt.downstream.loss import TaskLoss
from raybio.methods.sppt.downstream.scores import class_set_scores
from raybio.methods.sppt.downstream.store import TaskStore
from raybio.training.collective import SingleProcess
from tests.methods.conformance_cases import tiny_config
from tests.methods.sppt.downstream.test_own_tables import prepared, rows_of, write_csv
from tests.methods.test_conformance import assert_equal_gradients, gradients
from tests.ops.threads import in_threads

NAME = "finetune"


@pytest.fixture(params=["protein_multilabel", "text_multilabel"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> TaskStore:
    name = request.param
    return prepared(name, write_csv(tmp_path / "a.csv", rows_of(name)), tmp_path / "store")


def test_the_loss_of_a_set_sums_what_each_class_costs() -> None:
    rng = np.random.default_rng(0)
    scores_RC = rng.normal(scale=4, size=(5, 3))
    has_class_RC = rng.random((5, 3)) < 0.4
    expected = []
    for row in range(5):
        likelihood = 1.0
        for label in range(3):
            probability = 1 / (1 + math.exp(-scores_RC[row, label]))
            likelihood *= probability if has_class_RC[row, label] else 1 - probability
        expected.append(-math.log(likelihood))
    loss = TaskLoss(nn.Identity(), "class_set")
    for target in (has_class_RC, has_class_RC.astype(np.float64).ravel()):
        found_R = loss.losses(torch.from_numpy(scores_RC), torch.from_numpy(target))
        np.testing.assert_allclose(found_R, expected, rtol=1e-9)


def test_shares_of_two_workers_add_up_to_the_mean_over_all_rows(store: TaskStore) -> None:
    system = METHODS[NAME].build(tiny_config(NAME, **{"plan.global_batch_rows": 11}), store.path)
    loss = system.objective
    width = system.model.width

    def share(collective) -> tuple[float, float, int]:
        arrays = system.collate(0, collective.rank, collective.world)
        batch = TaskBatch.from_arrays(arrays)
        num_rows = len(arrays["indptr_R1"]) - 1
        assert arrays["target_X"].shape == (num_rows * len(store.class_names),)
        # The embedding of a row depends on its tokens alone.
        first_R = batch.token_T[batch.indptr_R1[:-1] + 1]
        embedding_RD = torch.outer(first_R, torch.linspace(-1, 1, width)).float()
        report = loss.embedding_loss(embedding_RD, batch, collective)
        return float(report.loss.detach()), float(report.terms["task_chance"]), num_rows

    whole, chance, num_rows = share(SingleProcess())
    shares = in_threads(2, share)
    assert num_rows == 11 == sum(rows for _, _, rows in shares)
    assert all(0 < rows < 11 for _, _, rows in shares)
    assert sum(part for part, _, _ in shares) == pytest.approx(whole, rel=1e-5)
    assert sum(part for _, part, _ in shares) == pytest.approx(chance, rel=1e-5)
    # The classes are independent, so the chance level is that of each one's share.
    share_C = store.targets(store.split_rows("train")).mean(axis=0)
    has_class_RC = system.collate(0, 0, 1)["target_X"].reshape(11, -1)
    likelihood_RC = np.where(has_class_RC == 1, share_C, 1 - share_C)
    assert chance == pytest.approx(-np.log(likelihood_RC).sum() / 11, rel=1e-5)


def test_gradients_of_sets_do_not_depend_on_micro_batches(store: TaskStore) -> None:
    system = METHODS[NAME].build(tiny_config(NAME), store.path)
    small = gradients(system, SingleProcess(), 2, max_tokens=80, gradient_caching=True)
    system.model.zero_grad(set_to_none=True)
    assert_equal_gradients(small, gradients(system, SingleProcess(), 2, max_tokens=100_000))


def test_exports_from_before_there_were_sets_are_read(tmp_path: Path) -> None:
    head = TaskHead("scicite", "class", "linear", ("a", "b"), 0.0, 1.0, True, 16)
    content = head._asdict()
    del content["threshold"]
    write_record(tmp_path / HEAD_SETTINGS, "task head", content)
    assert TaskHead.read(tmp_path) == head
    write_record(tmp_path / HEAD_SETTINGS, "task head", content | {"labels": "several"})
    with pytest.raises(
        ConfigError, match=r"got labels 'several', want one of class, class_set, number, residues"
    ):
        TaskHead.read(tmp_path)


def macro_f1(gold_NC: np.ndarray, predicted_NC: np.ndarray) -> float:
    occurs_C = (gold_NC | predicted_NC).any(axis=0)
    return f1_score(gold_NC[:, occurs_C], predicted_NC[:, occurs_C], average="macro")


def vectors(store: TaskStore) -> rivals.Features:
    """Vectors that say something of the classes."""
    rng = np.random.default_rng(1)
    has_class_NC = store.targets(np.arange(store.num_rows))
    vector_ND = rng.standard_normal((store.num_rows, 5))
    vector_ND[:, : has_class_NC.shape[1]] += 1.5 * has_class_NC
    return rivals.Features("vectors", vector_ND, vector_ND)


def assert_best_on_dev(
    rival: rivals.TaskRival, store: TaskStore, share_by_setting: dict[float, np.ndarray], name: str
) -> None:
    """The pair of setting and threshold with the best score on dev is scored on test."""
    dev, test = store.split_rows("dev"), store.split_rows("test")
    on_dev = {
        (setting, threshold): macro_f1(store.targets(dev), share_NC[dev] >= threshold)
        for setting, share_NC in share_by_setting.items()
        for threshold in rivals.THRESHOLDS
    }
    best = max(on_dev, key=lambda pair: on_dev[pair])
    assert (rival.settings[name], rival.settings["threshold"]) == best
    assert len(set(on_dev.values())) > 3
    predicted_QC = share_by_setting[best[0]][test] >= best[1]
    expected = class_set_scores(predicted_QC, store.targets(test))
    found = rival.values(test)
    assert found.keys() == expected.keys()
    for measure, value_Q in found.items():
        np.testing.assert_allclose(value_Q, expected[measure], atol=1e-9)


def test_neighbors_share_their_classes_and_dev_chooses_number_and_threshold(
    store: TaskStore,
) -> None:
    features = vectors(store)
    train = store.split_rows("train")
    has_class_TC = store.targets(train)
    share_by_setting = {}
    for k in rivals.NUM_NEIGHBORS:
        share_NC = np.zeros((store.num_rows, has_class_TC.shape[1]))
        for row in range(store.num_rows):
            distance_T = np.linalg.norm(
                features.neighbor_NF[train] - features.neighbor_NF[row], axis=1
            )
            nearest = np.argsort(distance_T)[:k]
            for label in range(has_class_TC.shape[1]):
                share_NC[row, label] = sum(has_class_TC[near, label] for near in nearest) / k
        share_by_setting[k] = share_NC
    rival = rivals.neighbor_rival(store, features)
    assert_best_on_dev(rival, store, share_by_setting, "neighbors")


@pytest.mark.parametrize("is_dual", [False, True])
def test_ridge_regression_of_each_class_and_dev_chooses_penalty_and_threshold(
    store: TaskStore, is_dual: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_dual:
        monkeypatch.setattr(rivals, "MANY_CLASSES", 1)
        monkeypatch.setattr(rivals, "MAX_DUAL_ROWS", 30)
    train = rivals.drawn_rows(store.split_rows("train"), 30 if is_dual else 1000)
    for features in (vectors(store), rivals.tfidf(store)):
        row_NF = features.ridge_NF
        row_NF = row_NF.toarray() if hasattr(row_NF, "toarray") else row_NF
        share_by_setting = {}
        for penalty in rivals.PENALTIES:
            columns = []
            for label in range(len(store.class_names)):
                model = Ridge(penalty, fit_intercept=not is_dual)
                model.fit(row_NF[train], store.targets(train)[:, label].astype(float))
                columns.append(model.predict(row_NF))
            share_by_setting[penalty] = np.stack(columns, axis=1)
        rival = rivals.ridge_rival(store, features)
        assert rival.settings["training_rows"] == len(train)
        assert_best_on_dev(rival, store, share_by_setting, "penalty")


def test_few_candidates_of_a_rival_are_kept_at_a_time(store: TaskStore) -> None:
    """The coefficients of thousands of classes take gigabytes."""

    class Constant:
        def __call__(self, row_Q: np.ndarray) -> np.ndarray:
            return np.zeros((len(row_Q), len(store.class_names)))

    alive: weakref.WeakSet[Constant] = weakref.WeakSet()
    num_alive = []

    def candidates() -> Iterator[tuple[dict[str, Any], Constant]]:
        for number in range(6):
            candidate = Constant()
            alive.add(candidate)
            num_alive.append(len(alive))
            yield {"number": number}, candidate

    rival = rivals._best_on_dev(store, "constant", candidates())
    assert rival.settings == {"number": 0, "threshold": rivals.THRESHOLDS[0]}
    assert max(num_alive) <= 3
