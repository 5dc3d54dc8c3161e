"""Which documents an evaluation scores, and those that it refuses before anything is trained."""

from pathlib import Path

import pytest

from raybio.core.errors import ConfigError
from raybio.methods.mtb_mccl.documents.prepare import prepare_documents
from raybio.methods.mtb_mccl.documents.store import DocumentStore
from raybio.methods.mtb_mccl.mccl import system
from raybio.methods.mtb_mccl.mccl.config import LINEAR, KnnSettings
from raybio.methods.mtb_mccl.mccl.evaluate import RelationEvaluator
from raybio.methods.mtb_mccl.mccl.frozen_probe import FrozenProbe
from raybio.methods.mtb_mccl.mccl.predict import read_predictor
from raybio.methods.mtb_mccl.mccl.trained_model import load_relation_model
from raybio.training.collective import SingleProcess
from tests.methods.conformance_cases import tiny_config
from tests.methods.mtb_mccl.documents.test_prepare import pubtator

RELATED = ("g1:Gene:1 and d1:Disease:D1", ["Bind 1 D1"])
UNRELATED = ("g1:Gene:1 and d1:Disease:D1", [])
ALONE = ("g1:Gene:1", [])
OUTSIDE = ("g1:Gene:1 and v1:Variant:rs1", ["Bind 1 rs1"])
"""Training documents relate no variant, so the relation is between no candidate pair."""


def store_of(folder: Path, *, dev: list, test: list) -> DocumentStore:
    folder.mkdir(exist_ok=True)
    paths = []
    number = 0
    for name, documents in (("train", [RELATED] * 4), ("dev", dev), ("test", test)):
        numbered = []
        for words, relations in documents:
            number += 1
            numbered.append((str(number), words, relations))
        paths.append(pubtator(folder / name, *numbered))
    train, dev_path, test_path = paths
    return prepare_documents(folder / "store", [train], [dev_path], [test_path])


def test_a_document_whose_only_relation_is_outside_the_candidate_pairs_is_a_unit(tmp_path) -> None:
    store = store_of(tmp_path, dev=[RELATED, OUTSIDE], test=[OUTSIDE, RELATED])
    config = tiny_config("relation_finetune")
    system.check(config, store)
    wired = system.build(config, store.path)
    report = wired.final_evaluate(wired.model, SingleProcess())
    for by_split in report.unit_scores.values():
        for split, scores in by_split.items():
            assert scores.unit_U.tolist() == store.split_rows(split).tolist()
    # Its relation is missed.
    assert report.scores["trained"]["test"]["recall"]["value"] <= 0.5


def test_evaluations_during_training_may_have_fewer_documents_and_the_table_says_so(
    tmp_path,
) -> None:
    kinds = [RELATED, OUTSIDE, UNRELATED] * 5
    store = store_of(tmp_path, dev=kinds, test=[RELATED])
    settings = {"schedule.evaluate_every_steps": 2, "schedule.keep_best": "val/f1"}

    def evaluator_of(store: DocumentStore, max_documents: int) -> RelationEvaluator:
        more = {"evaluation.max_documents": max_documents}
        config = tiny_config("relation_finetune", **settings, **more)
        system.check(config, store)
        return system.build(config, store.path).final_evaluate.__self__

    sampled = evaluator_of(store, 7)
    assert sampled.remarks() == [
        "the step of the weights was chosen on 7 of 15 validation documents "
        "(evaluation.max_documents)"
    ]
    drawn = sampled.sampled_dev.evaluated_rows.tolist()
    assert drawn == evaluator_of(store, 7).sampled_dev.evaluated_rows.tolist()
    assert len(drawn) == 7
    assert evaluator_of(store, 0).remarks() == evaluator_of(store, 15).remarks() == []

    # The metrics are those of a store whose only validation documents are the drawn ones.
    rows = store.split_rows("dev").tolist()
    kept = [kinds[rows.index(row)] for row in drawn]
    assert RELATED in kept and OUTSIDE in kept and UNRELATED in kept
    alone = evaluator_of(store_of(tmp_path / "alone", dev=kept, test=[RELATED]), 0)
    model = sampled.initial_encoder()
    got = sampled.evaluate_during_training(model, SingleProcess())
    assert got == pytest.approx(alone.evaluate_during_training(model, SingleProcess()), abs=1e-6)
    assert got != evaluator_of(store, 0).evaluate_during_training(model, SingleProcess())
    # The final table has all documents.
    scores = sampled.score(model, SingleProcess(), "trained")
    assert scores.unit_scores["dev"].unit_U.tolist() == rows


def test_drawn_validation_documents_without_a_relation_are_refused(tmp_path) -> None:
    store = store_of(tmp_path, dev=[RELATED, *[UNRELATED] * 30], test=[RELATED])
    settings = {"schedule.evaluate_every_steps": 2}
    few = tiny_config("relation_finetune", **settings, **{"evaluation.max_documents": 1})
    with pytest.raises(
        ConfigError,
        match="no drawn dev pair has a relation; .* or a larger evaluation.max_documents than 1",
    ):
        system.check(few, store)
    system.check(tiny_config("relation_finetune", **settings), store)


@pytest.mark.parametrize(
    ("settings", "knn"),
    [
        ({"objective.kind": "ce"}, LINEAR),
        ({"evaluation.num_neighbors": [5], "evaluation.bias_weights": [1.0]}, KnnSettings(5, 1.0)),
        (
            {"evaluation.num_neighbors": [5], "objective.kind": "supcon"},
            KnnSettings(5, 0.0),
        ),
        ({"evaluation.num_neighbors": [5, 1]}, None),
    ],
)
def test_without_validation_documents_the_only_setting_is_exported(tmp_path, settings, knn) -> None:
    documents = [(str(number), *RELATED) for number in range(4)]
    store = prepare_documents(tmp_path / "store", [pubtator(tmp_path / "train", *documents)])
    config = tiny_config("relation_finetune", **{"schedule.evaluate_every_steps": 0}, **settings)
    system.check(config, store)
    folder = system.build(config, store.path).export(tmp_path / "model", {})
    assert load_relation_model(folder).knn_settings == knn
    if knn is None:
        with pytest.raises(ConfigError, match="no validation documents"):
            read_predictor(folder)
    else:
        read_predictor(folder)


@pytest.mark.parametrize("split", ["dev", "test"])
@pytest.mark.parametrize(
    ("documents", "fault"),
    [
        ([ALONE], "has no {} pair"),
        ([UNRELATED], "no {} pair has a relation"),
        ([ALONE, OUTSIDE, UNRELATED], "no {} pair has a relation"),
    ],
)
def test_evaluated_documents_without_pairs_or_relations_are_refused(
    tmp_path, split, documents, fault
) -> None:
    store = store_of(tmp_path, **{"dev": [RELATED], "test": [RELATED], split: documents})
    with pytest.raises(ConfigError, match=fault.format(split)):
        system.check(tiny_config("relation_finetune"), store)
    with pytest.raises(ConfigError, match=fault.format(split)):
        FrozenProbe("no model is loaded before", store)
