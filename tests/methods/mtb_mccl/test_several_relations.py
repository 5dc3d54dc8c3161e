"""Pairs with several relations, as in DocRED: training, export, and evaluation of the export."""

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from raybio.core.final_report import FinalReport
from raybio.methods import METHODS
from raybio.methods.mtb_mccl.documents.store import DocumentStore
from raybio.methods.mtb_mccl.mccl import system as relation_extraction
from raybio.methods.mtb_mccl.mccl.classifier import GoldPairs, embed_with_frozen, predict_classes
from raybio.methods.mtb_mccl.mccl.config import KnnSettings
from raybio.methods.mtb_mccl.mccl.evaluate_export import evaluate_relations
from raybio.methods.mtb_mccl.mccl.labeled_pairs import LabeledPairs
from raybio.methods.mtb_mccl.mccl.trained_model import load_relation_model
from raybio.runtime.compare.table import ResultTable
from raybio.runtime.predict import predict_file, read_predictor
from raybio.training.collective import SingleProcess
from raybio.training.loop import Report, fit
from tests.methods.conformance_cases import tiny_config
from tests.methods.mtb_mccl.several_relations import labeled_store
from tests.relation_oracles import docred_scores

CHANGES = {
    "schedule.max_steps": 70,
    "optim.peak_lr": 6e-3,
    "plan.global_batch_rows": 24,
    "evaluation.num_neighbors": [5],
    "memory.max_tokens_per_micro_batch": 4096,
}
MEASURES = {"f1", "precision", "recall", "macro_f1", "ign_f1"}


@dataclass(frozen=True)
class Trained:
    """A finished run.

    Attributes:
        kind: of its objective.
        reports: of its steps.
        folder: its export.
        final: its final evaluation.
    """

    kind: str
    reports: list[Report]
    folder: Path
    final: FinalReport

    def value(self, who: str, split: str, measure: str) -> float:
        return self.final.scores[who][split][measure]["value"]


@pytest.fixture(scope="module")
def labeled(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[DocumentStore, dict[str, list[dict]]]:
    return labeled_store(tmp_path_factory.mktemp("labeled"))


@pytest.fixture(
    scope="module",
    params=["mccl", *(pytest.param(kind, marks=pytest.mark.nightly) for kind in ("ce", "supcon"))],
)
def trained(request, labeled, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    config = tiny_config("relation_finetune", **CHANGES, **{"objective.kind": request.param})
    system = relation_extraction.build(config, labeled[0].path)
    reports = list(fit(system, config))
    folder = system.export(tmp_path_factory.mktemp("export") / "model", {})
    return Trained(
        request.param, reports, folder, system.final_evaluate(system.model, SingleProcess())
    )


def facts_of(raw: list[dict]) -> set[tuple]:
    return {
        (one["title"], label["h"], label["t"], label["r"]) for one in raw for label in one["labels"]
    }


def labeled_by_name(raw: list[dict]) -> set[tuple]:
    """(name, name, relation) of the labels of documents, by every name of either end."""
    return {
        (head["name"], tail["name"], label["r"])
        for one in raw
        for label in one["labels"]
        for head in one["vertexSet"][label["h"]]
        for tail in one["vertexSet"][label["t"]]
    }


def facts_in_train(raw: dict[str, list[dict]], split: str) -> set[tuple]:
    """Those of a split's facts of which training documents tell the names."""
    known, found = labeled_by_name(raw["train"]), set()
    for one in raw[split]:
        for label in one["labels"]:
            for head in one["vertexSet"][label["h"]]:
                for tail in one["vertexSet"][label["t"]]:
                    if (head["name"], tail["name"], label["r"]) in known:
                        found.add((one["title"], label["h"], label["t"], label["r"]))
    return found


def found_by(
    folder: Path, store: DocumentStore, split: str, rule: KnnSettings
) -> tuple[GoldPairs, np.ndarray, set[tuple]]:
    """The pairs of a split, their classes as an export tells them, and the facts that these are."""
    model = load_relation_model(folder)
    queries = embed_with_frozen(model.frozen, LabeledPairs(store, split, 1.0, seed=0))
    predicted_PC = predict_classes(model.classifier, rule, queries.pairs.embedding_PD)
    facts = {
        (store.document_id(row), head, tail, store.relation_names[label])
        for pair, label in zip(*np.nonzero(predicted_PC), strict=True)
        for row, head, tail in [tuple(int(part[pair]) for part in queries.pairs[1:])]
    }
    return queries, predicted_PC, facts


@pytest.mark.nightly
def test_an_export_writes_vertices_and_relations_from_head_to_tail(
    trained: Trained, labeled, tmp_path: Path
) -> None:
    store, raw = labeled
    model = load_relation_model(trained.folder)
    _, _, expected = found_by(trained.folder, store, "test", model.knn_settings)
    source = store.path.parent / "test.json"
    predict_file(read_predictor(trained.folder), [source], tmp_path / "relations.tsv")
    with (tmp_path / "relations.tsv").open(newline="", encoding="utf-8") as file:
        found = [*csv.DictReader(file, dialect="excel-tab")]
    assert {
        (one["id"], int(one["head_id"]), int(one["tail_id"]), one["relation"]) for one in found
    } == expected
    assert any(int(one["head_id"]) > int(one["tail_id"]) for one in found)
    document_by_title = {document["title"]: document for document in raw["test"]}
    for one in found:
        assert one["pair"] == "ordered"
        for vertex, name in ((one["head_id"], one["head"]), (one["tail_id"], one["tail"])):
            names = {
                mention["name"]
                for mention in document_by_title[one["id"]]["vertexSet"][int(vertex)]
            }
            assert name in names


def test_the_loss_falls_and_relations_of_documents_never_seen_are_found(trained: Trained) -> None:
    assert trained.reports[-1].metrics["loss"] < 0.4 * trained.reports[0].metrics["loss"]
    f1 = {who: trained.value(who, "test", "f1") for who in ("initial", "trained")}
    # Of a pair with one relation, pairs with both are nearer neighbors than pairs with none:
    # SupCon lays no threshold.
    least = {"mccl": 0.9, "ce": 0.9, "supcon": 0.6}[trained.kind]
    assert f1["trained"] > max(least, f1["initial"]), f1


@pytest.mark.nightly
def test_training_pairs_are_learned_by_heart(trained: Trained, labeled) -> None:
    found = evaluate_relations(trained.folder, labeled[0].path, "train")
    assert found.scores.values["recall"] > 0.9
    if trained.kind != "supcon":
        assert found.scores.values["f1"] > 0.9


def test_the_scores_are_those_of_docreds_evaluation_on_the_facts_that_the_export_finds(
    trained: Trained, labeled
) -> None:
    store, raw = labeled
    rule = KnnSettings(**trained.final.details["knn_settings"]["trained"])
    for split in ("dev", "test"):
        _, _, facts = found_by(trained.folder, store, split, rule)
        in_train = facts_in_train(raw, split)
        gold = facts_of(raw[split])
        assert 0 < len(in_train) < len(gold)
        expected = docred_scores(sorted(facts), sorted(gold), in_train)
        final = trained.final.scores["trained"][split]
        assert final.keys() == MEASURES
        assert trained.final.scores["initial"][split].keys() == MEASURES
        assert {name: final[name]["value"] for name in expected} == pytest.approx(
            expected, abs=1e-9
        )


def test_the_evaluated_export_has_all_scores_of_its_run(trained: Trained, labeled) -> None:
    for split in ("dev", "test"):
        found = evaluate_relations(trained.folder, labeled[0].path, split)
        assert found.knn_settings._asdict() == trained.final.details["knn_settings"]["trained"]
        assert found.scores.values.keys() == MEASURES
        for measure, value in found.scores.values.items():
            assert value == pytest.approx(trained.value("trained", split, measure), abs=1e-6), (
                split,
                measure,
            )
        assert found.confusion_CC is None


def test_a_pair_with_two_relations_is_found_with_both(trained: Trained, labeled) -> None:
    rule = KnnSettings(**trained.final.details["knn_settings"]["trained"])
    queries, predicted_PC, _ = found_by(trained.folder, labeled[0], "test", rule)
    has_both_P = queries.label_PC[:, 1:].all(1)
    assert has_both_P.sum() >= 5
    assert predicted_PC[has_both_P, 1:].all(1).mean() > 0.9
    if trained.kind != "supcon":
        assert predicted_PC[queries.label_PC[:, 1:].sum(1) == 1, 1:].all(1).mean() < 0.2


def test_a_relation_holds_where_its_score_is_above_that_of_none(trained: Trained, labeled) -> None:
    model = load_relation_model(trained.folder)
    queries = embed_with_frozen(model.frozen, LabeledPairs(labeled[0], "test", 1.0, seed=0))
    rule = KnnSettings(**trained.final.details["knn_settings"]["trained"])._replace(
        bias_weight=float(trained.kind == "mccl")
    )
    with torch.no_grad():
        score_PC = model.classifier.scores(queries.pairs.embedding_PD, (rule,))[rule]
        predicted_PC = model.classifier.predicted(score_PC)
        expected = [
            [number > 0 and one > row[0] for number, one in enumerate(row)]
            for row in score_PC.tolist()
        ]
        np.testing.assert_array_equal(predicted_PC, expected)
        assert 0 < predicted_PC.any(1).mean() < 0.6
        if trained.kind == "supcon":
            return  # it has no weight to move
        head = model.classifier.head
        moved_C = head.bias_C if trained.kind == "mccl" else head.classifier.bias
        for shift, holds in ((100.0, False), (-200.0, True)):
            moved_C[0] += shift
            labeled_PC = predict_classes(model.classifier, rule, queries.pairs.embedding_PD)
            assert (labeled_PC[:, 1:] == holds).all()


def test_the_table_of_a_run_has_ign_f1_where_the_store_defines_it(
    trained: Trained, tiny_documents: DocumentStore
) -> None:
    layout = METHODS["relation_finetune"].table
    several = ResultTable(trained.final.scores, layout.shown(trained.final.scores.values()))
    for split in ("dev", "test"):
        header, body = several.cells(split)
        assert header[-1] == "Ign-F1"
        ign_f1 = trained.final.scores["trained"][split]["ign_f1"]["value"]
        assert body[-1][-1].startswith(f"{100 * ign_f1:.2f}")
    config = tiny_config("relation_finetune")
    system = relation_extraction.build(config, tiny_documents.path)
    scores = system.final_evaluate(system.model, SingleProcess()).scores
    one = ResultTable(scores, layout.shown(scores.values()))
    assert one.cells("test")[0][-1] == "macro F1"
