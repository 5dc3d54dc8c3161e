"""An exported relation model, read again and judged, and the command that does it."""

import json
import shutil
from pathlib import Path

import pytest

from raybio.config import override_all
from raybio.data.document_store import DocumentStore
from raybio.errors import ConfigError
from raybio.systems import relation_extraction
from raybio.systems.relation_evaluation import evaluate_relations
from raybio.training.gather import SingleProcess
from raybio.training.loop import fit
from tests.systems.conformance_cases import tiny_config

CHANGES = {"schedule.max_steps": 40, "plan.global_batch_rows": 16}


@pytest.fixture(scope="module", params=["mccl", "ce", "supcon"])
def trained(request, tiny_documents: DocumentStore, tmp_path_factory):
    config = tiny_config("relation_extraction", **CHANGES, **{"objective.kind": request.param})
    system = relation_extraction.build(config, tiny_documents.path)
    list(fit(system, config))
    folder = system.export(tmp_path_factory.mktemp("export") / "model", {})
    return folder, system.final_evaluate(system.model, SingleProcess())


def test_an_exported_model_finds_what_the_run_found(trained, tiny_documents: DocumentStore) -> None:
    folder, final = trained
    found = evaluate_relations(folder, tiny_documents.path, "test")
    assert found.neighbours == final["neighbours"]["trained"]
    for measure, value in found.scores.values.items():
        assert value == pytest.approx(final["scores"]["trained"]["test"][measure]["value"], abs=1e-6)
    gold = sum(len(tiny_documents.relations(row)[0]) for row in tiny_documents.split_rows("test").tolist())
    assert found.confusion_CC is not None
    assert found.confusion_CC[1:].sum() == gold


def test_the_command_prints_and_writes_the_scores(trained, tiny_documents: DocumentStore, tmp_path, capsys) -> None:
    from raybio.runtime.judging import relations

    relations(trained[0], tiny_documents.path, "test", tmp_path / "scores.json")
    shown, written = capsys.readouterr().out, json.loads((tmp_path / "scores.json").read_text())
    assert "| f1 |" in shown
    assert f"{written['scores']['f1']['value']:.2%}" in shown
    assert all(name in shown for name in tiny_documents.relation_names)


def test_what_is_no_relation_model_or_has_other_relations_is_refused(trained, tiny_documents, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no exported relation model.*want the export/ of a run"):
        evaluate_relations(tmp_path, tiny_documents.path, "test")
    copy = shutil.copytree(trained[0], tmp_path / "copy")
    settings = json.loads((copy / "relation.json").read_text())
    settings["relations"][1] = "Marries"
    (copy / "relation.json").write_text(json.dumps(settings))
    with pytest.raises(ConfigError, match="knows the relations Marries, .*Want a store of the same relations"):
        evaluate_relations(copy, tiny_documents.path, "test")


def test_lazy_trains_nothing(tiny_documents: DocumentStore) -> None:
    config = tiny_config("relation_extraction", **{"objective.kind": "lazy", "schedule.max_steps": 1})
    system = relation_extraction.build(config, tiny_documents.path)
    before = {name: weight.clone() for name, weight in system.model.state_dict().items()}
    list(fit(system, config))
    assert all((before[name] == weight).all() for name, weight in system.model.state_dict().items())
    with pytest.raises(ConfigError, match="lazy, which trains nothing; set schedule.max_steps=1"):
        override_all(config, {"schedule.max_steps": 2})
