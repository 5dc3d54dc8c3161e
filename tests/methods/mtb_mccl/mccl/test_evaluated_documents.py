"""Which documents an evaluation scores, and those that it refuses before anything is trained."""

from pathlib import Path

import pytest

from raybio.core.errors import ConfigError
from raybio.methods.mtb_mccl.documents.prepare import prepare_documents
from raybio.methods.mtb_mccl.documents.store import DocumentStore
from raybio.methods.mtb_mccl.mccl import system
from raybio.methods.mtb_mccl.mccl.config import LINEAR, KnnSettings
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
