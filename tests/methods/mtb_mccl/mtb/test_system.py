"""The forms of L_rel that the paper compares, in the system and on real processes."""

from functools import partial
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from raybio.core.config import override_all
from raybio.core.errors import ConfigError
from raybio.core.interfaces import Collective, System
from raybio.methods.mtb_mccl.documents.store import DocumentStore
from raybio.methods.mtb_mccl.mtb import plan, queries
from raybio.methods.mtb_mccl.mtb.config import EntityPairConfig
from raybio.methods.mtb_mccl.mtb.plan import DocumentPairPlan
from raybio.methods.mtb_mccl.mtb.recurring_pairs import RecurringPairs, recurring_pairs
from raybio.methods.mtb_mccl.mtb.system import build, check, steps_per_epoch
from raybio.store.store import open_store
from raybio.training.collective import SingleProcess
from raybio.training.loop import fit
from tests import relation_oracles
from tests.device_operations import DeviceOperations
from tests.methods.conformance_cases import tiny_config
from tests.methods.mtb_mccl.several_relations import labeled_store
from tests.methods.test_conformance import assert_equal_gradients, gradients
from tests.training.workers import run_workers

CENTER_TEMPERATURES = (0.01, 0.03)
"""τ₁ and τ₂ of MCCL in place of L_rel; not the defaults."""

FORMS = pytest.mark.parametrize("form", ["contrastive", "binary", "multi_center"])


def system_of(form: str, store: str | Path, **more: object) -> System:
    settings = {"objective.relation_loss": form, "plan.global_batch_rows": 12}
    return build(tiny_config("mtb_pretrain", **settings | more), store)


@FORMS
@pytest.mark.parametrize("type_filter", [True, False])
def test_the_loss_of_a_step_is_the_formula_over_the_pairs_of_the_batch(
    form, type_filter, tiny_documents
) -> None:
    parts = {
        "objective.self_weight": 0.0,
        "objective.mlm_weight": 0.0,
        "objective.type_filter": type_filter,
        "objective.weight_temperature": CENTER_TEMPERATURES[0],
        "objective.logit_temperature": CENTER_TEMPERATURES[1],
    }
    system = system_of(form, tiny_documents.path, **parts)
    batch = system.batch_type.from_arrays(system.collate(2, 0, 1))
    generator = torch.Generator().manual_seed(0)
    embedding = torch.randn(batch.num_embeddings, 5, generator=generator, dtype=torch.float64)
    pair, name, kind = embedding[: len(batch.id_N)], batch.id_N.tolist(), batch.type_N.tolist()

    def is_positive(i: int, j: int) -> bool:
        return name[i] == name[j]

    def is_negative(i: int, j: int) -> bool:
        return name[i] != name[j] and (not type_filter or kind[i] != kind[j])

    with DeviceOperations() as operations:
        report = system.objective.embedding_loss(
            embedding.clone().requires_grad_(), batch, SingleProcess()
        )
        report.loss.backward()
    assert not operations.synchronizing
    if form == "binary":
        sides = relation_oracles.pair_equality(pair, is_positive, is_negative)
        expected = sum(total / number for total, number in sides) / 2
        assert report.terms["positive_pairs"] == sides[0][1] > 0
    elif form == "contrastive":
        temperature = system.objective.config.temperature
        total, number = relation_oracles.contrast(
            pair, is_positive, is_negative, temperature, by_anchor=False
        )
        expected = total / number
        assert report.terms["positive_pairs"] == number > 0
    else:
        total, number = relation_oracles.multi_center_contrast(
            pair, name.__getitem__, is_positive, is_negative, *CENTER_TEMPERATURES
        )
        expected = total / number
        assert report.terms["positive_anchors"] == number > 0
    assert report.loss.item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("excludes_positives", [False, True])
def test_the_own_twin_is_distinguished_from_those_of_the_other_pairs(
    excludes_positives, tiny_documents
) -> None:
    parts = {"objective.relation_weight": 0.0, "objective.mlm_weight": 0.0}
    more = {"objective.self_exclude_positives": excludes_positives, "objective.temperature": 0.5}
    system = system_of("contrastive", tiny_documents.path, **parts, **more)
    batch = system.batch_type.from_arrays(system.collate(2, 0, 1))
    embedding = torch.randn(
        batch.num_embeddings, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    pair, twin = embedding.split(len(batch.id_N))
    expected = relation_oracles.self_contrast(
        pair, twin, batch.id_N.tolist(), 0.5, excludes_positives=excludes_positives
    )
    with DeviceOperations() as operations:
        report = system.objective.embedding_loss(
            embedding.clone().requires_grad_(), batch, SingleProcess()
        )
        report.loss.backward()
    assert not operations.synchronizing
    assert (
        report.loss.item() == float(report.terms["self_loss"]) == pytest.approx(expected, rel=1e-9)
    )


@pytest.mark.nightly
@FORMS
def test_training_lowers_it(form: str, tiny_documents: DocumentStore) -> None:
    more = {
        "schedule.max_steps": 60,
        "objective.self_weight": 0.0,
        "objective.mlm_weight": 0.0,
        "blanks.blank_rate": 0,
    }
    config = tiny_config("mtb_pretrain", **{"objective.relation_loss": form} | more)
    losses = [
        report.metrics["relation_loss"]
        for report in fit(build(config, tiny_documents.path), config)
    ]
    assert sum(losses[-10:]) < 0.8 * sum(losses[:10])


def save_gradients(rank: int, collective: Collective, folder: Path, form: str, store: str) -> None:
    system = system_of(form, store)
    found = gradients(system, collective, 3, gradient_caching=True, max_tokens=100)
    save_file(found, folder / f"{rank}.safetensors")


@pytest.mark.nightly
@FORMS
def test_two_workers_give_the_gradient_of_one_worker_with_the_whole_batch(
    form, tiny_documents, tmp_path
) -> None:
    alone = gradients(system_of(form, tiny_documents.path), SingleProcess(), 3)
    run_workers(partial(save_gradients, form=form, store=str(tiny_documents.path)), 2, tmp_path)
    for rank in range(2):
        assert_equal_gradients(load_file(tmp_path / f"{rank}.safetensors"), alone)


def test_half_a_pair_is_refused() -> None:
    with pytest.raises(
        ConfigError,
        match="plan.global_batch_rows: got 11, want a whole number >= 2, a multiple of 2",
    ):
        tiny_config("mtb_pretrain", **{"plan.global_batch_rows": 11})


@pytest.mark.parametrize("share", [0.0, 0.001])
@pytest.mark.parametrize(
    "every",
    [
        {"schedule.evaluate_every_steps": 2},
        {"schedule.evaluate_every_steps": 0, "schedule.evaluate_every_epochs": 1},
    ],
)
def test_evaluations_without_a_held_out_pair_are_refused(share, every, tiny_documents) -> None:
    settings = {"pairs.held_out_share": share, **every}
    with pytest.raises(
        ConfigError,
        match=r"0 are held out \(pairs.held_out_share=.*schedule.evaluate_every_steps=0",
    ):
        check(tiny_config("mtb_pretrain", **settings), tiny_documents)
    never = {"pairs.held_out_share": share, "schedule.evaluate_every_steps": 0}
    check(tiny_config("mtb_pretrain", **never), tiny_documents)
    check(tiny_config("mtb_pretrain", **settings | {"pairs.held_out_share": 0.4}), tiny_documents)


def test_held_out_pairs_that_no_other_document_has_are_refused(tiny_documents, monkeypatch) -> None:
    config = tiny_config("mtb_pretrain", **{"schedule.evaluate_every_steps": 2})
    # All documents are query documents.
    monkeypatch.setattr(queries, "hash_uniform", lambda seed, row_O: np.zeros(len(row_O)))
    with pytest.raises(ConfigError, match="none of these can be retrieved"):
        check(config, tiny_documents)


def test_a_share_that_leaves_no_pair_to_train_on_is_refused(tmp_path) -> None:
    store, _ = labeled_store(tmp_path)
    settings = {"pairs.num_pairs": 2, "pairs.held_out_share": 0.9}
    with pytest.raises(ConfigError, match="2 are held out .*none is left to train on"):
        check(tiny_config("mtb_pretrain", **settings), store)


def test_recurring_pairs_are_counted_once_for_the_check_the_length_and_the_batches(
    tiny_documents, monkeypatch
) -> None:
    counted = []

    def count(store: DocumentStore, config: EntityPairConfig) -> RecurringPairs:
        counted.append((config.min_documents, config.num_pairs))
        return recurring_pairs(store, config)

    monkeypatch.setattr(plan, "recurring_pairs", count)
    monkeypatch.setattr(plan, "_recurring_by_key", {})
    settings = ({}, {"pairs.num_pairs": 7}, {"pairs.num_pairs": 7, "pairs.min_documents": 3})
    for changes in settings:
        config = tiny_config("mtb_pretrain", **changes)
        # Each start opens the store.
        check(config, open_store(tiny_documents.path, DocumentStore))
        steps_per_epoch(config, open_store(tiny_documents.path, DocumentStore))
        evaluator = build(config, tiny_documents.path).final_evaluate.__self__
        expected = recurring_pairs(tiny_documents, config.pairs)
        np.testing.assert_array_equal(evaluator.plan.recurring.key_K2, expected.key_K2)
    assert counted == [(2, 5000), (2, 7), (3, 7)]


def test_the_final_table_says_how_many_pairs_are_retrieved(tiny_documents) -> None:
    def remarks(num_pairs: int) -> list[str]:
        config = tiny_config("mtb_pretrain", **{"evaluation.num_pairs": num_pairs})
        system = build(config, tiny_documents.path)
        found = system.final_evaluate.__self__
        numbers.update(trained=len(found.plan.trained), held_out=len(found.plan.held_out))
        return list(system.final_evaluate(system.model, SingleProcess()).remarks)

    numbers: dict[str, int] = {}
    assert remarks(1000) == []
    trained, held_out = numbers["trained"], numbers["held_out"]
    assert held_out > 1
    assert remarks(1) == [
        f"1 of {trained} trained pairs and 1 of {held_out} held-out pairs were retrieved: those "
        "with the highest mutual information (evaluation.num_pairs)"
    ]
    assert remarks(held_out)[0].startswith(f"{held_out} of {trained} trained pairs were retrieved")


def test_another_form_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ConfigError, match="relation_loss.*contrastive.*binary.*multi_center"):
        tiny_config("mtb_pretrain", **{"objective.relation_loss": "binry"})


def test_an_epoch_has_the_document_pairs_of_the_trained_entity_pairs_up_to_a_cap(
    tiny_documents: DocumentStore,
) -> None:
    config = tiny_config("mtb_pretrain")
    for cap in (1, 2, 1000):
        capped = override_all(config, {"plan.max_document_pairs_per_entity_pair": cap})
        plan = DocumentPairPlan(tiny_documents, capped.pairs, capped.plan, capped.seed)
        expected = 0
        for pair in plan.trained.tolist():
            num_documents = len(plan.recurring.documents(pair))
            document_pairs = list(combinations(range(num_documents), 2))
            expected += min(len(document_pairs), cap)
        assert plan.steps_per_epoch == expected / (capped.plan.global_batch_rows / 2)
