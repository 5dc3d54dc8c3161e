"""An exported relation model is loaded and evaluated, also by the command."""

import gzip
import json
import re
import shutil
from collections import Counter
from pathlib import Path

import pytest
import torch

from raybio.core.config import override_all
from raybio.core.errors import ConfigError
from raybio.core.records import read_record, write_record
from raybio.methods.mtb_mccl.documents.demo import DocumentsConfig, write_documents
from raybio.methods.mtb_mccl.documents.prepare import prepare_documents
from raybio.methods.mtb_mccl.documents.store import DocumentStore
from raybio.methods.mtb_mccl.frozen_encoder import load_frozen, truncation_remarks
from raybio.methods.mtb_mccl.mccl import evaluate
from raybio.methods.mtb_mccl.mccl import system as relation_extraction
from raybio.methods.mtb_mccl.mccl.classifier import choose_knn_settings
from raybio.methods.mtb_mccl.mccl.config import KnnSettings
from raybio.methods.mtb_mccl.mccl.evaluate_export import evaluate_relations
from raybio.methods.mtb_mccl.mccl.scores import RelationScores
from raybio.methods.mtb_mccl.mccl.trained_model import load_relation_model
from raybio.methods.mtb_mccl.mtb import system as mtb_system
from raybio.training.collective import SingleProcess
from raybio.training.loop import fit
from tests.methods.conformance_cases import tiny_config
from tests.methods.mtb_mccl.documents.test_formats import DOCRED

CHANGES = {"schedule.max_steps": 40, "plan.global_batch_rows": 16}
COARSE = {"data.is_coarse": True}
KINDS = {
    "mccl": {},
    "ce": {"objective.kind": "ce"},
    "supcon": {"objective.kind": "supcon"},
    "coarse mccl": COARSE | {"objective.num_proxies": 3, "objective.ce_weight": 0.2},
    "few labels": {
        "data.label_fraction": 0.3,
        "evaluation.num_neighbors": [1, 3, 5, 10, 20],
        "seed": 2,
    },
    "coarse supcon": COARSE | {"objective.kind": "supcon"},
}
FIRST_TIER = {"mccl"}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(kind, marks=() if kind in FIRST_TIER else pytest.mark.nightly)
        for kind in KINDS
    ],
)
def trained(request, tiny_documents: DocumentStore, tmp_path_factory):
    config = tiny_config("relation_finetune", **CHANGES, **KINDS[request.param])
    system = relation_extraction.build(config, tiny_documents.path)
    list(fit(system, config))
    folder = system.export(tmp_path_factory.mktemp("export") / "model", {})
    return folder, system.final_evaluate(system.model, SingleProcess())


@pytest.mark.nightly
def test_an_exported_model_finds_what_the_run_found(trained, tiny_documents: DocumentStore) -> None:
    folder, final = trained
    found = evaluate_relations(folder, tiny_documents.path, "test")
    assert found.knn_settings._asdict() == final.details["knn_settings"]["trained"]
    for measure, value in found.scores.values.items():
        assert value == pytest.approx(final.scores["trained"]["test"][measure]["value"], abs=1e-6)
    gold = sum(
        len(tiny_documents.relations(row)[0]) for row in tiny_documents.split_rows("test").tolist()
    )
    assert found.confusion_CC is not None
    card = (folder / "README.md").read_text()
    assert "raybio predict . --input FILE" in card
    # A linear classifier compares with no labeled pairs.
    has_reference = final.details["knn_settings"]["trained"]["num_neighbors"] > 0
    assert (
        ("reference_set.safetensors" in card)
        == (folder / "reference_set.safetensors").exists()
        == has_reference
    )
    assert found.confusion_CC[1:].sum() == gold


def test_an_export_of_evaluated_weights_has_the_knn_settings_of_the_table(
    tiny_documents: DocumentStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config("relation_finetune", **{"evaluation.num_neighbors": [1, 5]})
    system = relation_extraction.build(config, tiny_documents.path)
    choices = []

    def noted(*arguments) -> tuple[KnnSettings, RelationScores]:
        choices.append(choose_knn_settings(*arguments))
        return choices[-1]

    def exported(name: str) -> KnnSettings | None:
        return load_relation_model(system.export(tmp_path / name, {})).knn_settings

    monkeypatch.setattr(evaluate, "choose_knn_settings", noted)
    assert exported("unevaluated") == choices.pop()[0]
    report = system.final_evaluate(system.model, SingleProcess())
    choices.clear()
    assert exported("evaluated")._asdict() == report.details["knn_settings"]["trained"]
    assert not choices
    with torch.no_grad():
        next(system.model.parameters()).mul_(2)
    assert exported("of_other_weights") == choices.pop()[0]


@pytest.mark.first_tier("mccl")
@pytest.mark.parametrize("kind", ["mccl", "ce"])
def test_chance_is_the_most_frequent_relation_of_training_as_in_the_runs_table(
    kind: str, tmp_path: Path
) -> None:
    """Also where it is rare among the evaluated documents: nobody knows their relations before."""
    config = DocumentsConfig(num_entities=6, num_facts=8, num_train=24, num_dev=1, num_test=1)
    train, dev, _ = write_documents(tmp_path / "raw", config)
    documents = gzip.decompress(train.read_bytes()).decode().strip().split("\n\n")
    number = Counter(name for text in documents for name in _relations(text))
    frequent, others = number.most_common()[0][0], set(number)
    chosen = [text for text in documents if frequent not in _relations(text)]
    assert chosen and others != {frequent}
    test = tmp_path / "test.PubTator"
    test.write_text(re.sub(r"^(?=[0-9])", "9", "\n\n".join(chosen) + "\n\n", flags=re.MULTILINE))
    store = prepare_documents(tmp_path / "store", [train], [dev], [test], min_type_pair_relations=1)
    system = relation_extraction.build(tiny_config("relation_finetune", **KINDS[kind]), store.path)
    export = system.export(tmp_path / "export", {})
    final = system.final_evaluate(system.model, SingleProcess())
    found = evaluate_relations(export, store.path, "test")
    assert found.chance_of == "the training pairs"
    for measure, score in final.scores["chance"]["test"].items():
        assert found.chance.values[measure] == pytest.approx(score["value"], abs=1e-6, nan_ok=True)


def _relations(text: str) -> set[str]:
    """Return the relations of a document in PubTator's format."""
    lines = [line.split("\t") for line in text.splitlines()]
    return {fields[1] for fields in lines if len(fields) in (4, 5) and not fields[1].isdigit()}


def test_documents_are_read_in_windows_as_long_as_in_training(
    tiny_documents: DocumentStore, tmp_path: Path
) -> None:
    """Also where the encoder could read longer ones."""
    first = relation_extraction.build(
        tiny_config("relation_finetune", **{"encoder.max_length": 200}), tiny_documents.path
    )
    longer = first.export(tmp_path / "longer", {})
    more = {"encoder.source": str(longer), "encoder.max_length": 32}
    system = relation_extraction.build(
        tiny_config("relation_finetune", **more), tiny_documents.path
    )
    assert (first.model.text.max_tokens, system.model.text.max_tokens) == (200, 32)
    export = system.export(tmp_path / "export", {})
    assert load_frozen(str(export)).model.text.max_tokens == 32
    final = system.final_evaluate(system.model, SingleProcess()).scores["trained"]["test"]
    found = evaluate_relations(export, tiny_documents.path, "test").scores.values
    assert {name: round(value, 6) for name, value in found.items()} == {
        name: round(messages["value"], 6) for name, messages in final.items()
    }


def test_documents_that_are_not_read_whole_are_counted(
    tiny_documents: DocumentStore, tmp_path: Path
) -> None:
    config = tiny_config("relation_finetune", **{"encoder.max_document_tokens": 20})
    system = relation_extraction.build(config, tiny_documents.path)
    export, said = system.export(tmp_path / "export", {}), list[str]()
    (remark,) = evaluate_relations(export, tiny_documents.path, "test", say=said.append).truncation
    num_test = len(tiny_documents.split_rows("test"))
    assert remark.startswith(f"documents: {num_test} of {num_test} cut at 20 of ")
    assert remark in said
    num_all = tiny_documents.num_rows
    assert truncation_remarks(str(export), tiny_documents)[0].startswith(
        f"documents: {num_all} of {num_all} cut at 20 of "
    )


def test_what_was_only_pretrained_is_refused_with_the_command_that_takes_it(
    tiny_documents, tmp_path: Path
) -> None:
    system = mtb_system.build(tiny_config("mtb_pretrain"), tiny_documents.path)
    export = system.export(tmp_path / "export", {})
    with pytest.raises(
        ConfigError, match="trained by mtb_pretrain and knows no relation yet.*relation-probe"
    ):
        evaluate_relations(export, tiny_documents.path, "test")


def test_the_command_prints_and_writes_the_scores(
    trained, tiny_documents: DocumentStore, tmp_path, capsys
) -> None:
    from raybio.cli.commands.mtb_mccl import relations

    relations(trained[0], tiny_documents.path, "test", out=tmp_path / "scores.json")
    shown, written = capsys.readouterr().out, json.loads((tmp_path / "scores.json").read_text())
    assert "| f1 |" in shown
    assert written["chance"].keys() == written["scores"].keys()
    assert 0 < written["chance"]["f1"] < 1
    assert f"| {written['chance']['f1']:.2%} |" in shown
    assert written["truncation"] == []
    assert f"{written['scores']['f1']['value']:.2%}" in shown
    assert all(name in shown for name in tiny_documents.relation_names)


def test_what_is_no_relation_model_or_has_other_relations_is_refused(
    trained, tiny_documents, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="has no relation.json; want the export/ of a run"):
        evaluate_relations(tmp_path, tiny_documents.path, "test")
    copy = shutil.copytree(trained[0], tmp_path / "copy")
    record = copy / "relation.json"
    settings = read_record(record, "export settings")
    settings["relations"][1] = "Marries"
    write_record(record, "export settings", settings)
    with pytest.raises(
        ConfigError, match="knows the relations Marries, .*Want a store of the same relations"
    ):
        evaluate_relations(copy, tiny_documents.path, "test")
    settings["objective"]["use_proxies"] = True
    write_record(record, "export settings", settings)
    with pytest.raises(
        ConfigError, match="relation.json: cannot be read .*'use_proxies' is not a setting"
    ):
        evaluate_relations(copy, tiny_documents.path, "test")
    del settings["labels"]
    write_record(record, "export settings", settings)
    with pytest.raises(ConfigError, match="relation.json: lacks 'labels'; export the run again"):
        evaluate_relations(copy, tiny_documents.path, "test")


@pytest.mark.nightly
def test_coarse_training_has_two_classes_and_knn_all_relations(
    tiny_documents: DocumentStore,
) -> None:
    config = tiny_config("relation_finetune", **CHANGES, **KINDS["coarse mccl"])
    system = relation_extraction.build(config, tiny_documents.path)
    head = system.model.head
    assert head.proxy_CD.shape == (3 * 2, 32)
    assert head.classifier.out_features == 2
    assert head.bias_C is None
    before = {name: weight.clone() for name, weight in head.named_parameters()}
    reports = list(fit(system, config))
    assert reports[-1].metrics["mccl_loss"] < 0.8 * reports[0].metrics["mccl_loss"]
    assert all((before[name] != weight).any(-1).all() for name, weight in head.named_parameters())
    final = system.final_evaluate(system.model, SingleProcess())
    found = {
        name: messages["f1"]
        for name, messages in final.details["relations"]["trained"]["test"].items()
    }
    assert len(found) == len(tiny_documents.relation_names) - 1 > 1
    assert min(found.values()) > 0


@pytest.mark.parametrize(
    ("kind", "why"),
    [("ce", "has a classifier of the training classes"), ("lazy", "trains nothing")],
)
def test_coarse_training_without_knn_is_refused(kind: str, why: str) -> None:
    changes = {"objective.kind": kind, "schedule.max_steps": 1}
    with pytest.raises(
        ConfigError,
        match=f"objective.kind={kind} {why}; want objective.kind=mccl or supcon",
    ):
        tiny_config("relation_finetune", **changes, **COARSE)


def test_coarse_training_has_one_label_a_pair_also_where_pairs_have_several_relations(
    tmp_path: Path,
) -> None:
    labels = [{"h": 1, "t": 0, "r": "P17"}, {"h": 1, "t": 0, "r": "P6"}]
    (tmp_path / "train.json").write_text(json.dumps([{**DOCRED[0], "labels": labels}]))
    store = prepare_documents(tmp_path / "store", [tmp_path / "train.json"])
    config = tiny_config("relation_finetune", **COARSE, **{"schedule.max_steps": 2})
    system = relation_extraction.build(config, store.path)
    assert store.is_multi_label
    assert not system.objective.is_multi_label
    assert system.collate(0, 0, 1)["label_PC"].sum(1).tolist() == [1] * len(store.candidates(0)[0])
    assert all(report.metrics["loss"] > 0 for report in fit(system, config))


@pytest.mark.nightly
def test_a_lazy_run_scores_a_random_projection_next_to_the_concatenation(
    tiny_documents: DocumentStore,
) -> None:
    """The row "initial" has no projection; the run has W as drawn from its seed."""
    final_by_seed = {}
    for seed in (0, 1):
        changes = {"objective.kind": "lazy", "schedule.max_steps": 1, "seed": seed}
        config = tiny_config("relation_finetune", **changes)
        system = relation_extraction.build(config, tiny_documents.path)
        list(fit(system, config))
        width = system.model.text.width
        assert system.model.projection.weight.shape == (width, 3 * width)
        final_by_seed[seed] = (system, system.final_evaluate(system.model, SingleProcess()))
    (first, scores), (second, _) = final_by_seed.values()
    assert not torch.equal(first.model.projection.weight, second.model.projection.weight)
    assert scores.spread["initial"] != scores.spread["trained"]


def test_lazy_trains_nothing(tiny_documents: DocumentStore) -> None:
    config = tiny_config("relation_finetune", **{"objective.kind": "lazy", "schedule.max_steps": 1})
    system = relation_extraction.build(config, tiny_documents.path)
    before = {name: weight.clone() for name, weight in system.model.state_dict().items()}
    list(fit(system, config))
    assert all((before[name] == weight).all() for name, weight in system.model.state_dict().items())
    with pytest.raises(ConfigError, match="lazy, which trains nothing; set schedule.max_steps=1"):
        override_all(config, {"schedule.max_steps": 2})
