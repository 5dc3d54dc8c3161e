"""Encoders of words and of pairs of entities in a benchmark: exports of three methods."""

from pathlib import Path

import pytest

from raybio.benchmark.models import BenchmarkModel, read_models
from raybio.benchmark.report import BenchmarkReport, TaskReport
from raybio.benchmark.run import run_benchmark
from raybio.benchmark.suite import Suite
from raybio.benchmark.tasks.entities_relations import EntitiesRelationsTask
from raybio.benchmark.tasks.relation_probe import RelationProbeTask
from raybio.benchmark.tasks.retrieval import BeirRetrievalTask
from raybio.core.errors import ConfigError
from raybio.methods import METHODS
from raybio.methods.mtb_mccl.documents.store import DocumentStore
from raybio.methods.mtb_mccl.mccl.frozen_probe import FrozenProbe
from raybio.methods.relation_graphs.demo import WordsConfig, write_words
from raybio.methods.relation_graphs.evaluation.evaluate_export import (
    evaluate_exports,
    evaluate_exports_twice,
)
from raybio.methods.relation_graphs.prepare import prepare_words
from raybio.methods.relation_graphs.store import WordStore
from tests.methods.conformance_cases import tiny_config


def export(name: str, store: Path, folder: Path, **settings: object) -> str:
    system = METHODS[name].build(tiny_config(name, **settings), store)
    return str(system.export(folder, {}))


def task_of(report: BenchmarkReport, name: str) -> TaskReport:
    return next(task for task in report.tasks if task.name == name)


@pytest.mark.nightly
def test_exports_of_parts_have_the_figures_of_their_commands_and_are_skipped_elsewhere(
    tiny_documents: DocumentStore, tiny_words: WordStore, tmp_path: Path
) -> None:
    folders = {
        "mtb": export("mtb_pretrain", tiny_documents.path, tmp_path / "mtb"),
        "mccl": export("relation_finetune", tiny_documents.path, tmp_path / "mccl"),
        "joint": export("relation_graphs", tiny_words.path, tmp_path / "joint"),
    }
    files = {"corpus": "corpus.jsonl", "queries": "queries.jsonl", "qrels": "test.tsv"}
    contents = ('{"_id": "1", "text": "a b"}\n', '{"_id": "1", "text": "a"}\n')
    for name, content in zip(
        files.values(), (*contents, "query-id\tcorpus-id\tscore\n1\t1\t1\n"), strict=True
    ):
        (tmp_path / name).write_text(content)
    suite = Suite(
        "own",
        "Own",
        (
            RelationProbeTask(name="relations", store=tiny_documents.path),
            EntitiesRelationsTask(name="entities", scored="entities", store=tiny_words.path),
            EntitiesRelationsTask(name="words", scored="relations", store=tiny_words.path),
            BeirRetrievalTask(name="ranked", **{key: tmp_path / files[key] for key in files}),
        ),
    )
    out = tmp_path / "report"
    report = run_benchmark(read_models([*folders.values()], out), suite, out, with_ray=False)

    rows = {row.name: row for row in task_of(report, "relations").rows}
    for name in ("mtb", "mccl"):
        *_, probed = FrozenProbe(folders[name], tiny_documents).results()
        assert rows[name].value == pytest.approx(probed.test.values["f1"])
    pairs = "embeds pairs of entities of documents, the task has texts"
    words = "embeds words of sentences, the task has texts"
    assert task_of(report, "relations").skipped == {"joint": words}
    assert task_of(report, "ranked").skipped == {"mtb": pairs, "mccl": pairs, "joint": words}

    chosen, fixed = evaluate_exports_twice(folders["joint"], folders["joint"], tiny_words.path)
    single = evaluate_exports(folders["joint"], folders["joint"], tiny_words.path)
    assert fixed is not None
    for name, measure in (("entities", "ner_f1"), ("words", "re_f1")):
        task = task_of(report, name)
        assert task.skipped == {"mtb": pairs, "mccl": pairs}
        (row,) = [row for row in task.rows if row.name == "joint"]
        assert row.value == pytest.approx(chosen.values[measure])
        assert row.remarks == []
        assert row.others[f"{task.measure}, 5 and 7 neighbors"] == pytest.approx(
            single.values[measure]
        )
        assert single.values[measure] == fixed.values[measure]
    assert {model.name: model.reads for model in report.models} == {
        "mtb": "documents",
        "mccl": "documents",
        "joint": "sentences",
    }


def test_an_export_is_not_scored_on_sentences_that_it_was_trained_on(tmp_path: Path) -> None:
    config = WordsConfig(num_sentences=60, num_drugs=6, num_effects=6)
    sentences, splits = write_words(tmp_path / "raw", config)
    store = prepare_words(tmp_path / "store", [sentences], splits=splits)
    folder = export("relation_graphs", store.path, tmp_path / "joint", **{"data.fold": 2})
    (model,) = read_models([folder], tmp_path / "report")
    assert isinstance(model, BenchmarkModel)
    own = EntitiesRelationsTask(name="own", store=store.path, fold=2, scored="entities")
    chosen, _ = evaluate_exports_twice(folder, folder, store.path)
    assert own.score(model).score == pytest.approx(chosen.values["ner_f1"])
    other = EntitiesRelationsTask(name="own", store=store.path, fold=1)
    with pytest.raises(ConfigError, match=r"joint: was trained on \d+ test sentences of fold 1"):
        other.score(model)
    # Of another store, nobody knows.
    few = WordsConfig(num_sentences=40, num_drugs=6, num_effects=6)
    sentences, splits = write_words(tmp_path / "other", few)
    with pytest.raises(ConfigError, match="task own: splits is ignored with a store; leave it out"):
        EntitiesRelationsTask(name="own", store=store.path, splits=splits).check()
    scores = EntitiesRelationsTask(name="own", sentences=sentences, splits=splits).score(model)
    assert scores.remarks == ("trained on another store, which may have sentences of this one",)
