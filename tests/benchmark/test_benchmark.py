"""A benchmark of tiny encoders: the figures are those of the single commands, and nothing is computed twice."""

import errno
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import pytest
import torch
import yaml
from typer.testing import CliRunner

from raybio.benchmark import work
from raybio.benchmark.models import BenchmarkModel, RandomVectors, base_of_run, read_models
from raybio.benchmark.report import BenchmarkReport, TaskReport, TaskResults
from raybio.benchmark.run import run_benchmark
from raybio.benchmark.statistics import difference_test
from raybio.benchmark.suite import TASKS, Suite, read_suite, task_class
from raybio.benchmark.task import BenchmarkEncoder, BenchmarkTask, TaskFacts, TaskScores
from raybio.benchmark.tasks.labels import LabelsTask
from raybio.benchmark.tasks.links import LinksTask
from raybio.benchmark.tasks.medlama import FactProbeTask
from raybio.benchmark.tasks.zero_shot import ZeroShotTask
from raybio.cli.benchmark import app
from raybio.core.errors import ClusterError, ConfigError, StoreError
from raybio.core.records import write_record
from raybio.methods import METHODS
from raybio.methods.biostransformers.store import ArticleStore
from raybio.methods.biostransformers.zero_shot.evaluate import evaluate_zero_shot
from raybio.methods.contrastive_probe.benchmark.biolama import read_benchmark
from raybio.methods.contrastive_probe.config import ProbeConfig
from raybio.methods.contrastive_probe.probe import probe_models
from raybio.methods.mtb_mccl.documents.store import DocumentStore
from raybio.methods.mtb_mccl.mccl.frozen_probe import FrozenProbe
from raybio.methods.relation_graphs.store import WordStore
from raybio.methods.sppt.downstream.store import TaskStore
from raybio.methods.sppt.model_links import LinkEvaluationOptions, evaluate_model_links
from raybio.runtime.model_folders import model_of_folder
from raybio.runtime.tracking.model_runs import track_models
from raybio.store.store import Store
from raybio.training.collective import SingleProcess
from raybio.training.precision import default_device
from tests.methods.conformance_cases import tiny_config

NUM_KILLS = 5

HEADER = "head_cui,head_name,rel,tail_names,tail_cuis"


class Given(NamedTuple):
    """Models, data and a suite over all kinds of tasks."""

    texts: Path
    proteins: Path
    data: Path
    suite: Path


@pytest.fixture(scope="module")
def given(
    tiny_articles: ArticleStore,
    tiny_store: Store,
    tiny_task: TaskStore,
    tiny_documents: DocumentStore,
    tiny_words: WordStore,
    tmp_path_factory: pytest.TempPathFactory,
) -> Given:
    folder = tmp_path_factory.mktemp("benchmark")
    config = tiny_config("biostransformers", **{"encoder.max_length": 128})
    export = METHODS["biostransformers"].build(config, tiny_articles.path)
    texts = Path(export.export(folder / "texts", {}))
    export = METHODS["sppt_protein"].build(tiny_config("sppt_protein"), tiny_store.path)
    proteins = Path(export.export(folder / "proteins", {}))
    write_data(folder, tiny_articles)
    tasks: list[dict[str, Any]] = [
        {"task": "zero-shot", "name": "pubmedqa-answers", "data": "{data}"},
        {"task": "zero-shot", "name": "pubmedqa-contexts", "data": "{data}"},
        {"task": "zero-shot", "name": "hoc-10", "data": "{data}"},
        {
            "task": "retrieval",
            "name": "own",
            "corpus": "corpus.jsonl",
            "queries": "queries.jsonl",
            "qrels": "test.tsv",
        },
        {"task": "medlama", "name": "facts", "data": "{data}/medlama"},
        {"task": "medlama", "name": "hard", "data": "{data}/medlama", "subset": "hard"},
        {"task": "links", "name": "interactions", "store": str(tiny_store.path)},
        {
            "task": "labels",
            "name": "folds",
            "labels": "remote_homology",
            "store": str(tiny_task.path),
        },
        {"task": "relation-probe", "name": "relations", "store": str(tiny_documents.path)},
        *(
            {
                "task": "entities-relations",
                "name": scored,
                "scored": scored.removeprefix("words: "),
                "store": str(tiny_words.path),
            }
            for scored in ("words: entities", "words: relations")
        ),
    ]
    # mteb, an extra, and homophily, of labels of nodes, have files of their own.
    assert {task["task"] for task in tasks} == TASKS.keys() - {"mteb", "homophily"}
    suite = folder / "suite.yaml"
    suite.write_text(yaml.safe_dump({"title": "Own <tasks>", "tasks": tasks}))
    return Given(texts, proteins, folder, suite)


def write_data(folder: Path, store: ArticleStore) -> None:
    """Write a task in BEIR's layout, PubMedQA's file and a benchmark of facts."""
    texts = {
        "corpus": store.texts("abstract", np.arange(40)),
        "queries": store.texts("title", np.arange(20)),
    }
    for name, rows in texts.items():
        lines = [json.dumps({"_id": f"{row:02d}", "text": text}) for row, text in enumerate(rows)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    relevant = [f"{row:02d}\t{row:02d}\t1" for row in range(18)]
    (folder / "test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *relevant]) + "\n")
    questions = {
        str(row): {
            "QUESTION": texts["queries"][row],
            "CONTEXTS": [texts["corpus"][row]],
            "LONG_ANSWER": f"{texts['corpus'][row]} {row}",
        }
        for row in range(20)
    }
    (folder / "ori_pqal.json").write_text(json.dumps(questions))
    (folder / "medlama").mkdir()
    for relation in ("may_treat", "occurs_after"):
        lines = [
            f"C{row},word{row}a,{relation},word{(row + 1) % 9}a word{(row + 2) % 9}b,C{row + 20}"
            for row in range(15)
        ]
        (folder / "medlama" / f"{relation}_15.csv").write_text("\n".join([HEADER, *lines]) + "\n")
        hard = [HEADER, *lines[:6]]
        (folder / "medlama" / f"{relation}_6_hard.csv").write_text("\n".join(hard) + "\n")


def benchmark(given: Given, out: Path, *models: str, suite: Path | None = None) -> BenchmarkReport:
    return run_benchmark(
        read_models(list(models), out),
        read_suite(str(suite or given.suite), given.data),
        out,
        with_ray=False,
    )


@pytest.fixture(scope="module")
def done(given: Given, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, BenchmarkReport]:
    """The report of both encoders and of TF-IDF, and its folder."""
    out = tmp_path_factory.mktemp("report")
    return out, benchmark(given, out, str(given.texts), str(given.proteins), "tfidf", "random")


def task_of(report: BenchmarkReport, name: str) -> TaskReport:
    return next(task for task in report.tasks if task.name == name)


def values(task: TaskReport) -> dict[str, float | None]:
    return {row.name: row.value for row in task.rows}


@pytest.mark.nightly
def test_zero_shot_has_the_figures_of_its_command(
    given: Given, done: tuple[Path, BenchmarkReport]
) -> None:
    names = ["pubmedqa-answers", "pubmedqa-contexts"]
    for single in evaluate_zero_shot([str(given.texts)], names, given.data):
        task = task_of(done[1], single.task.name)
        assert task.protocol == single.task.protocol
        assert task.chance["R-precision"] == single.chance.micro
        row_by_name = {row.name: row for row in task.rows}
        own, words, bm25 = (each.micro for each in single.scorers)
        for name, micro in (("texts", own), ("tfidf", words), ("BM25", bm25)):
            row = row_by_name[name]
            assert (row.value, row.low, row.high) == pytest.approx(tuple(micro))
        (test,) = [each for each in task.tests if {each.first, each.second} == {"texts", "BM25"}]
        assert single.scorers[2].micro_test is not None
        assert test.p == pytest.approx(single.scorers[2].micro_test.p)
        assert test.difference == pytest.approx(own.value - bm25.value)


def test_ranked_texts_and_names_have_the_quality_of_their_embeddings(given: Given) -> None:
    tasks = {task.name: task for task in read_suite(str(given.suite), given.data).tasks}
    lines = {
        name: [
            json.loads(line)["text"]
            for line in (given.data / f"{name}.jsonl").read_text().splitlines()
        ]
        for name in ("queries", "corpus")
    }
    questions = json.loads((given.data / "ori_pqal.json").read_text()).values()
    answers = [question["LONG_ANSWER"] for question in questions]
    facts = read_benchmark(given.data / "medlama")
    queries = facts.queries("")
    gold = {
        "own": [(lines["queries"][row], lines["corpus"][row]) for row in range(18)],
        "pubmedqa-answers": [(each["QUESTION"], each["LONG_ANSWER"]) for each in questions],
        "facts": [
            (queries[query], facts.names[answer])
            for query in range(len(queries))
            for answer in facts.answers(query)
        ],
    }
    corpora = {"own": lines["corpus"], "pubmedqa-answers": answers, "facts": facts.names}
    random = RandomVectors()
    for name, pairs in gold.items():
        others = tasks[name].score(random).others
        distances = []
        for texts in pairs:
            first, second = (vector / np.linalg.norm(vector) for vector in random.embed(texts))
            distances.append(((first - second) ** 2).sum())
        (found,) = [value for key, value in others.items() if key.startswith("alignment of")]
        assert found == pytest.approx(np.mean(distances), rel=1e-5)
        corpus_ND = random.embed(corpora[name])
        unit_ND = corpus_ND / np.linalg.norm(corpus_ND, axis=1, keepdims=True)
        cosine_NN = (unit_ND @ unit_ND.T)[~np.eye(len(unit_ND), dtype=bool)]
        rows = "names" if name == "facts" else "documents"
        assert others[f"mean cosine of two {rows}"] == pytest.approx(cosine_NN.mean(), abs=1e-6)
        uniformity = math.log(np.exp(-2 * (2 - 2 * cosine_NN)).mean())
        assert others[f"uniformity of {rows} (lower is better)"] == pytest.approx(
            uniformity, rel=1e-4
        )
        assert 1 < others[f"effective rank of {rows}"] < len(corpora[name])


def test_other_tasks_have_the_figures_of_their_commands(
    given: Given,
    done: tuple[Path, BenchmarkReport],
    tiny_store: Store,
    tiny_documents: DocumentStore,
    tmp_path: Path,
) -> None:
    report = done[1]
    facts = read_benchmark(given.data / "medlama")
    hard = read_benchmark(given.data / "medlama", "hard")
    probed = probe_models([str(given.texts)], {"facts": facts, "hard": hard}, ProbeConfig())
    for name, (result,) in probed.items():
        row = next(row for row in task_of(report, name).rows if row.name == "texts")
        assert row.value == pytest.approx(result.outcome.macro(10))
        assert row.others["micro acc@1"] == pytest.approx(result.outcome.micro(1))

    links = evaluate_model_links({"proteins": model_of_folder(given.proteins)}, tiny_store.path)
    found = values(task_of(report, "interactions"))
    for stage, scores in links.scores.items():
        row = {"trained": "proteins"}.get(stage, stage)
        assert found[row] == pytest.approx(scores["val"]["lrap"]["value"])
    assert {"degree", "common neighbors", "random", "chance"} <= found.keys()
    (own,) = [row for row in task_of(report, "interactions").rows if row.name == "proteins"]
    spread = links.spread["trained"]
    assert own.others["effective rank of nodes"] == pytest.approx(spread["spread/effective_rank"])
    assert own.others["mean cosine of two nodes"] == pytest.approx(spread["spread/mean_cosine"])
    for name in ("alignment of held-out links", "uniformity of nodes"):
        value = own.others[f"{name} (lower is better)"]
        assert value is not None and math.isfinite(value)

    found = values(task_of(report, "relations"))
    chance, words, *_, probed_texts = FrozenProbe(str(given.texts), tiny_documents).results()
    # TF-IDF was given as a model.
    assert words.name == "ridge on TF-IDF"
    expected = {chance.name: chance, "tfidf": words, "texts": probed_texts}
    assert found == pytest.approx({row: each.test.values["f1"] for row, each in expected.items()})


def test_entities_and_relations_have_the_figures_of_training(
    given: Given, done: tuple[Path, BenchmarkReport], tiny_words: WordStore
) -> None:
    config = tiny_config(
        "relation_graphs",
        model="clner",
        **{"encoder.source": str(given.texts), "encoder.max_length": 256},
    )
    system = METHODS["relation_graphs"].build(config, tiny_words.path)
    assert system.final_evaluate is not None
    scores = system.final_evaluate(system.model, SingleProcess()).scores
    rows = {"texts": "initial - chosen settings", "look-up": "look-up"}
    rows["character 2-4-grams"] = "character 2-4-grams"
    for name, measure in (("words: entities", "ner_f1"), ("words: relations", "re_f1")):
        task = task_of(done[1], name)
        found = values(task)
        for row, stage in rows.items():
            assert found[row] == pytest.approx(scores[stage]["test"][measure]["value"])
        assert task.chance[task.measure] == pytest.approx(
            scores["chance"]["test"][measure]["value"]
        )
        own = next(row for row in task.rows if row.name == "texts")
        assert own.others[f"{task.measure}, 5 and 7 neighbors"] == pytest.approx(
            scores["initial"]["test"][measure]["value"]
        )
        assert own.low is not None and own.high is not None


def test_retrieval_has_the_figures_of_its_command(
    given: Given, done: tuple[Path, BenchmarkReport], tmp_path: Path
) -> None:
    from raybio.cli.evaluate import app as evaluate

    files = {"--corpus": "corpus.jsonl", "--queries": "queries.jsonl", "--qrels": "test.tsv"}
    words = ["retrieval", "--model", given.texts, "--out", tmp_path]
    words += [part for option, name in files.items() for part in (option, given.data / name)]
    result = CliRunner().invoke(evaluate, list(map(str, words)), catch_exceptions=False)
    assert result.exit_code == 0
    scores = json.loads((tmp_path / "report.json").read_text())["scores"]
    found = values(task_of(done[1], "own"))
    names = {"texts": str(given.texts), "tfidf": "TF-IDF", "BM25": "BM25"}
    for row, stage in names.items():
        assert found[row] == pytest.approx(scores[stage]["queries"]["ndcg_at_10"]["value"])


def test_labels_by_ridge_are_those_of_fine_tuning(
    given: Given, done: tuple[Path, BenchmarkReport], tiny_task: TaskStore
) -> None:
    settings = {"encoder.source": str(given.proteins), "encoder.max_length": 32}
    config = tiny_config("finetune", **settings, **{"encoder.pooling": "auto"})
    system = METHODS["finetune"].build(config, tiny_task.path)
    assert system.final_evaluate is not None
    final = system.final_evaluate(system.model, SingleProcess())
    task = task_of(done[1], "folds")
    found = values(task)
    expected = {name: scores["test"]["score"]["value"] for name, scores in final.scores.items()}
    assert found["ridge on 1-3-mers"] == pytest.approx(expected["ridge on 1-3-mers"])
    assert found["proteins"] == pytest.approx(expected["ridge on frozen encoder"])
    (row,) = [row for row in task.rows if row.name == "proteins"]
    assert row.others["kNN accuracy"] == pytest.approx(expected["kNN on frozen encoder"])
    assert task.chance["accuracy"] == pytest.approx(expected["chance"])


def test_models_are_skipped_where_they_do_not_fit_and_data_where_it_is_missing(
    done: tuple[Path, BenchmarkReport],
) -> None:
    report = done[1]
    assert task_of(report, "own").skipped == {"proteins": "reads proteins, the task has texts"}
    folds = task_of(report, "folds")
    assert folds.skipped["texts"] == "reads texts, the task has proteins"
    assert folds.skipped["tfidf"] == "the task has no such rival"
    assert "holds no HoC: want hallmarks_of_cancer" in task_of(report, "hoc-10").skipped[""]
    assert {row.name for row in folds.rows} >= {"proteins", "random", "kNN on 1-3-mers"}
    model_by_name = {model.name: model for model in report.models}
    assert model_by_name["texts"].num_tasks == 8
    # No task has both encoders, so there is no mean by which rivals could be ranked with them.
    assert model_by_name["tfidf"].num_tasks == 4
    assert model_by_name["tfidf"].mean is model_by_name["random"].mean is None


def test_a_rival_without_a_row_says_why() -> None:
    for scores, skipped, reason in (
        (None, {}, "rivals are read in the tokens of a model, and none fits"),
        ({"degree": TaskScores.of_means([0], [1.0])}, {}, "the task has no such rival"),
        ({}, {}, "the task has no such rival"),
        (None, {"rivals": "the store is damaged"}, None),
    ):
        results = TaskResults(LinksTask(name="links", demo="sppt_protein"))
        results.rivals = scores
        results.skipped.update(skipped)
        results.rows(["random"])
        assert results.skipped.get("random") == reason


def test_the_files_of_a_report(done: tuple[Path, BenchmarkReport]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    out, report = done
    record = json.loads((out / "report.json").read_text())
    schema = json.loads((out / "report.schema.json").read_text())
    jsonschema.validate(record, schema)
    assert (record["format"], record["version"]) == ("benchmark report", 4)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**record, "version": 0}, schema)
    lines = (out / "results.csv").read_text().splitlines()
    assert lines[0].startswith("task,family,row,is_rival,measure,value")
    assert sum(",micro F1," in line for line in lines) == 3
    page = (out / "report.html").read_text()
    assert "Own &lt;tasks&gt;" in page
    assert "<tasks>" not in page
    assert "<script" not in page and "http" not in page.replace("http-equiv", "")
    for task in report.tasks:
        assert task.name in page
    rivals = {row.name for task in report.tasks for row in task.rows if row.is_rival}
    assert not any(test.first in rivals for task in report.tasks for test in task.tests)
    adjusted = [test.p_holm for task in report.tasks for test in task.tests]
    assert (
        all(test.p_holm >= test.p for task in report.tasks for test in task.tests)
        and max(adjusted) <= 1
    )


def test_the_same_command_computes_nothing_and_gives_the_same_report(
    given: Given, done: tuple[Path, BenchmarkReport], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, report = done
    log = (out / "log.txt").read_text()
    corpora = [line.split("] ", 1)[1] for line in log.splitlines() if "embedding " in line]
    # The questions of both tasks are one corpus, the names of both sets another.
    assert "read back: 20 texts (corpus" in log
    monkeypatch.setattr(work.WorkItem, "work", None)
    models = (str(given.texts), str(given.proteins), "tfidf", "random")
    assert benchmark(given, out, *models) == report
    again = (out / "log.txt").read_text()[len(log) :]
    assert "embedding" not in again and "evaluating" not in again
    assert len(corpora) >= 8


def test_other_data_and_damaged_results_are_computed_again(given: Given, tmp_path: Path) -> None:
    suite = tmp_path / "own.yaml"
    names = {"corpus": "corpus.jsonl", "queries": "queries.jsonl", "qrels": "test.tsv"}
    for name in names.values():
        (tmp_path / name).write_bytes((given.data / name).read_bytes())
    suite.write_text(yaml.safe_dump({"tasks": [{"task": "retrieval", "name": "own", **names}]}))
    out = tmp_path / "report"
    first = benchmark(given, out, str(given.texts), suite=suite)
    for path in (out / "scores").glob("*.json"):
        path.write_text(path.read_text()[:-20])
    vectors = sorted((out / "embeddings").rglob("*.npy"))
    vectors[0].write_bytes(b"")
    assert benchmark(given, out, str(given.texts), suite=suite).tasks == first.tasks
    lines = (tmp_path / "test.tsv").read_text().splitlines()
    (tmp_path / "test.tsv").write_text("\n".join(lines[:10]) + "\n")
    changed = benchmark(given, out, str(given.texts), suite=suite)
    assert changed.tasks[0].num_units == 9


def test_costs_count_what_the_encoder_reads(
    given: Given, done: tuple[Path, BenchmarkReport], tiny_words: WordStore
) -> None:
    out, report = done
    records = [json.loads(path.read_text()) for path in (out / "embeddings").glob("*/*.json")]
    (model,) = read_models([str(given.texts)], out)
    assert isinstance(model, BenchmarkModel)
    own = [
        json.loads(path.read_text())
        for path in (out / "embeddings").glob(f"*-{model.digest[:16]}/*.json")
    ]
    words = [record["rows"] for record in records if record["what"].startswith("words of")]
    assert sum(words) == tiny_words.num_rows  # sentences
    probed = [record["rows"] for record in records if record["what"].startswith("probed texts")]
    # Queries and names of the hard set are known from the full one.
    assert sorted(probed)[:2] == [0, 0] and max(probed) > 0
    # The probe's own time, although the rivals of the first model have computed it.
    (seconds,) = [
        json.loads(record["content"])["processor_seconds"]
        for record in (json.loads(path.read_text()) for path in (out / "scores").glob("*.json"))
        if record["identity"]["task"] == "RelationProbeTask"
        and record["identity"]["kind"] == "scores"
    ]
    assert seconds > 1e-3
    cost = report.models[0].cost
    assert cost is not None and cost.other_processor_seconds == seconds
    device = default_device()
    assert cost.rows == {device: sum(record["rows"] for record in own)}
    assert cost.seconds == pytest.approx({device: sum(record["seconds"] for record in own)})
    speed = cost.rows[device] / cost.seconds[device]
    assert cost.rows_per_second == pytest.approx({device: speed})
    assert f"{speed:,.0f} ({device})" in (out / "report.html").read_text()
    peaks = [record["peak_bytes"] for record in records]
    assert all(peak is not None for peak in peaks)
    devices = {record["device"] for record in records}
    assert cost.peak_bytes.keys() == devices
    lines = (out / "results.csv").read_text().splitlines()
    for device in devices:
        assert 0 < cost.peak_bytes[device] <= max(peaks)
        value = cost.peak_bytes[device]
        assert f'embedding,Cost,texts,0,"peak bytes, {device}",{value},,,' in lines
        assert f"{value / 1e6:,.0f} MB ({device})" in (out / "report.html").read_text()


def test_two_commands_do_not_write_one_report(given: Given, tmp_path: Path) -> None:
    import fcntl

    with (tmp_path / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ClusterError, match="another command is writing this report"):
            benchmark(given, tmp_path, str(given.texts))


def test_wrong_suites_say_what_is_wanted(given: Given, tmp_path: Path) -> None:
    suite = tmp_path / "own.yaml"

    def refused(content: Any, match: str, data: Path | None = None) -> None:
        suite.write_text(yaml.safe_dump(content))
        with pytest.raises(ConfigError, match=match):
            read_suite(str(suite), data)

    task = {"task": "zero-shot", "name": "hoc-10", "data": "{data}"}
    refused({"tasks": [task]}, "give it with --data")
    refused({"tasks": [task, dict(task)]}, "two tasks are called hoc-10", tmp_path)
    refused({"tasks": [{**task, "task": "zeroshot"}]}, "Did you mean 'zero-shot'", tmp_path)
    refused({"tasks": [{**task, "dat": 1}]}, "Did you mean 'data'", tmp_path)
    refused({"tasks": [{**task, "xyz": 1}]}, "'xyz' is not a setting. Want some of", tmp_path)
    refused({"tasks": []}, "has no task")
    with pytest.raises(ConfigError, match="want biomedical, demo, proteins, texts"):
        read_suite("biomed", None)
    for name in ("biomedical", "demo", "proteins", "texts"):
        assert read_suite(name, tmp_path).tasks
    with pytest.raises(ConfigError, match="is given twice"):
        read_models(["tfidf", "tfidf"], tmp_path)


@pytest.mark.parametrize("kind", TASKS)
def test_a_misspelt_setting_of_a_task_is_named_with_the_nearest(kind: str, tmp_path: Path) -> None:
    name = next(field for field in task_class(kind).model_fields if field != "name")
    misspelt = f"{name}x"
    suite = tmp_path / "own.yaml"
    suite.write_text(yaml.safe_dump({"tasks": [{"task": kind, "name": "own", misspelt: "x"}]}))
    message = f"'{misspelt}' is not a setting. Did you mean '{name}'"
    with pytest.raises(ConfigError, match=f"task own: .*{re.escape(message)}"):
        read_suite(str(suite), tmp_path)


def test_a_suite_that_is_no_yaml_is_refused_in_one_line_with_its_name(tmp_path: Path) -> None:
    suite = tmp_path / "own.yaml"
    suite.write_text("title: own\ntasks: [\n")
    with pytest.raises(ConfigError, match="not valid YAML: line 3, column 1") as refused:
        read_suite(str(suite), None)
    assert str(refused.value).startswith(f"--suite {suite}: ")
    assert "\n" not in str(refused.value)


def test_the_command_prints_a_card_and_writes_to_mlflow(
    given: Given, done: tuple[Path, BenchmarkReport], tmp_path: Path, empty_database: Path
) -> None:
    from mlflow import MlflowClient

    database = tmp_path / "mlflow.db"
    database.write_bytes(empty_database.read_bytes())
    words = [str(given.texts), str(given.proteins), "tfidf", "random", "--suite", str(given.suite)]
    words += ["--data", str(given.data), "--out", str(done[0]), "--no-ray", "--card"]
    words += ["--tracking-uri", f"sqlite:///{database}"]
    for _ in range(2):  # the second finds its runs
        result = CliRunner().invoke(app, words, catch_exceptions=False)
        assert result.exit_code == 0, result.output
    assert "best without training" in result.output
    # Below the scores, where it is seen.
    assert "hoc-10: did not run: " in result.output.partition("mean of")[2]
    assert "report.html" in result.output
    client = MlflowClient(f"sqlite:///{database}")
    experiment = client.get_experiment_by_name("benchmark")
    runs = client.search_runs([experiment.experiment_id])
    assert len(runs) == 5
    (parent,) = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    run_by_name = {run.info.run_name: run for run in runs if run is not parent}
    assert all(
        run.data.tags["mlflow.parentRunId"] == parent.info.run_id for run in run_by_name.values()
    )
    own = values(task_of(done[1], "own"))["texts"]
    metrics = run_by_name["texts"].data.metrics
    assert metrics["own/nDCG_10"] == own
    assert metrics["mean of common tasks"] == done[1].models[0].mean
    assert (
        run_by_name["tfidf"].data.metrics["own/nDCG_10"] == values(task_of(done[1], "own"))["tfidf"]
    )
    artifacts = {file.path for file in client.list_artifacts(parent.info.run_id)}
    assert artifacts == {"report.html", "report.json", "results.csv"}
    assert {run.info.status for run in runs} == {"FINISHED"}


def test_a_run_comes_with_the_encoder_that_it_began_from(given: Given, tmp_path: Path) -> None:
    run = tmp_path / "first"
    shutil.copytree(given.texts, run / "export")
    hub = tmp_path / "models--owner--base" / "snapshots" / "0a1b"
    shutil.copytree(given.texts, hub)
    # As a folder of save_pretrained, which does not state its pooling.
    (hub / "modules.json").unlink()
    record = {"config": {"encoder": {"source": str(hub)}}}
    write_record(run / "run.json", "run", record)
    after, before = read_models([], tmp_path, after=str(run))
    assert isinstance(after, BenchmarkModel) and isinstance(before, BenchmarkModel)
    assert (after.name, before.name) == ("first", "base")
    assert before.embedding == replace(after.embedding, folder=before.folder)
    assert before.embedding.max_tokens == 128
    # It takes the run's pooling, and no other: nothing takes one that is given.
    other: Literal["cls", "mean"] = "cls" if after.whole_inputs.pooling == "mean" else "mean"
    with pytest.raises(ConfigError, match=f"pooling {other}: .*; leave it out"):
        read_models([], tmp_path, other, after=str(run))
    with pytest.raises(ConfigError, match="pooling"):
        read_models([str(hub)], tmp_path)

    write_record(run / "run.json", "run", {**record, "encoder": {"sha256": "0" * 64}})
    with pytest.raises(ConfigError, match="began from other weights"):
        base_of_run(str(run))
    write_record(run / "run.json", "run", {"config": {"encoder": {"source": "scratch"}}})
    with pytest.raises(ConfigError, match="began from random weights"):
        base_of_run(str(run))
    encoder = {"source": str(hub), "num_layers_kept": 3}
    write_record(run / "run.json", "run", {"config": {"encoder": encoder}})
    with pytest.raises(ConfigError, match="kept 3 layers of its encoder"):
        base_of_run(str(run))
    write_record(run / "run.json", "run", {"config": {"base": {}, "space": {}}})
    with pytest.raises(ConfigError, match="is a sweep; want one of its trials: .*/trials/TRIAL"):
        base_of_run(str(run))
    with pytest.raises(ConfigError, match="is no folder of a run"):
        base_of_run(str(tmp_path))
    result = CliRunner().invoke(app, ["--out", str(tmp_path / "out")])
    assert isinstance(result.exception, ConfigError)


def test_models_of_one_name_have_rows_of_their_own(given: Given, tmp_path: Path) -> None:
    folders = []
    for owner in ("a", "b"):
        folder = tmp_path / f"models--{owner}--bert" / "snapshots" / "0a1b"
        shutil.copytree(given.texts, folder)
        folders.append(str(folder))
    export = tmp_path / "bert" / "export"
    shutil.copytree(given.texts, export)

    def names(*models: str) -> list[str]:
        return [str(getattr(model, "name", model)) for model in read_models(models, tmp_path)]

    assert names(folders[0]) == names(str(export)) == ["bert"]
    assert names(*folders) == ["a/bert", "b/bert"]
    assert names(str(export), folders[1]) == [str(export), "b/bert"]
    (tmp_path / "link").symlink_to(export)
    with pytest.raises(ConfigError, match="is given twice"):
        names(str(export), str(tmp_path / "link"))


def test_hidden_files_change_no_score_of_facts(tmp_path: Path) -> None:
    task = FactProbeTask(name="facts", data=tmp_path / "medlama")
    assert "holds no benchmark" in task.check()
    (tmp_path / "medlama" / ".cache").mkdir(parents=True)
    for name in ("README.md", ".DS_Store", ".cache/lock"):
        (tmp_path / "medlama" / name).touch()
    assert "holds no benchmark" in task.check()
    (tmp_path / "medlama" / "relations.csv").touch()
    assert [path.name for path in task.files().values()] == ["relations.csv"]
    assert task.check() == ""


def test_a_pooling_that_no_model_takes_is_refused(given: Given, tmp_path: Path) -> None:
    (model,) = read_models([str(given.texts)], tmp_path)
    assert isinstance(model, BenchmarkModel)
    stated = model.whole_inputs.pooling
    other: Literal["cls", "mean"] = "cls" if stated == "mean" else "mean"
    with pytest.raises(ConfigError, match=f"pooling {other}: .* states {stated}; leave it out"):
        read_models([str(given.texts)], tmp_path, other)
    with pytest.raises(ConfigError, match=f"pooling {other}: there is no model that takes it"):
        read_models(["tfidf"], tmp_path, other)
    unstated = shutil.copytree(given.texts, tmp_path / "unstated")
    (unstated / "modules.json").unlink()
    models = read_models([str(given.texts), str(unstated)], tmp_path, other)
    assert [each.whole_inputs.pooling for each in models if not isinstance(each, str)] == [
        stated,
        other,
    ]


def test_facts_are_probed_by_the_pooling_of_the_model(given: Given, tmp_path: Path) -> None:
    folder = shutil.copytree(given.texts, tmp_path / "unstated")
    # As a folder of save_pretrained, which does not state its pooling.
    (folder / "modules.json").unlink()
    task = FactProbeTask(name="facts", data=given.data / "medlama")
    benchmarks = {"facts": read_benchmark(given.data / "medlama")}
    scores = {}
    for pooling in ("mean", "cls"):
        (model,) = read_models([str(folder)], tmp_path / pooling, pooling)
        assert isinstance(model, BenchmarkModel)
        scores[pooling] = task.score(model)
        probed = probe_models([str(folder)], benchmarks, ProbeConfig(), pooling=pooling)
        assert scores[pooling].score == pytest.approx(probed["facts"][0].outcome.macro(10))
    assert not np.array_equal(scores["mean"].numerator_U, scores["cls"].numerator_U)


def test_cut_inputs_are_said_as_by_the_single_command(given: Given, tmp_path: Path) -> None:
    texts, proteins = read_models([str(given.texts), str(given.proteins)], tmp_path)
    assert isinstance(texts, BenchmarkModel) and isinstance(proteins, BenchmarkModel)
    texts = replace(texts, embedding=replace(texts.embedding, max_tokens=4))
    proteins = replace(proteins, embedding=replace(proteins.embedding, max_tokens=8))
    task_by_name = {task.name: task for task in read_suite(str(given.suite), given.data).tasks}
    name = "pubmedqa-answers"
    (single,) = evaluate_zero_shot([str(given.texts)], [name], given.data, max_length=4)
    assert single.cuts["texts"]
    assert list(task_by_name[name].score(texts).remarks) == single.cuts["texts"]
    own = task_by_name["own"].score(texts).remarks
    assert [remark.split(":")[0] for remark in own] == ["queries", "documents"]
    (remark,) = task_by_name["folds"].score(proteins).remarks
    assert remark.startswith("rows: ") and "residues" in remark


def test_pairs_without_a_common_word_are_answered_in_random_order(
    given: Given, tmp_path: Path
) -> None:
    """In the order of the file, TF-IDF would answer the first pairs with yes, here the right ones."""
    record = {"QUESTION": "word1a?", "CONTEXTS": ["word2a"], "LONG_ANSWER": "word3b"}
    decisions = ["yes"] * 10 + ["no"] * 10
    questions = {str(row): {**record, "final_decision": one} for row, one in enumerate(decisions)}
    (tmp_path / "ori_pqal.json").write_text(json.dumps(questions))
    name = "pubmedqa-yesno-topk"
    (single,) = evaluate_zero_shot([str(given.texts)], [name], tmp_path)
    rivals = ZeroShotTask(name=name, data=tmp_path).rivals(None)
    for found in single.scorers[1:]:
        assert found.micro.value < 0.9
        assert rivals[found.scorer].score == found.micro.value


class FailingTask(BenchmarkTask):
    """A task of a user, whose model or rivals fail."""

    family: ClassVar[str] = "Own"

    fails: Literal[
        "model", "rivals", "facts", "memory", "bug", "file", "name", "disk", "all", "nothing"
    ]

    @property
    def measure(self) -> str:
        return "score"

    def check(self) -> str:
        return ""

    def files(self) -> dict[str, Path]:
        return {}

    def facts(self) -> TaskFacts:
        if self.fails in ("facts", "all"):
            raise StoreError("the store is damaged")
        return TaskFacts("A protocol.", "2 rows")

    def score(self, model: BenchmarkEncoder) -> TaskScores:
        if self.fails == "all":
            raise StoreError("the store is damaged")
        if self.fails == "memory":
            raise torch.OutOfMemoryError("CUDA out of memory")
        if self.fails == "model":
            raise ValueError("shapes do not fit")
        if self.fails == "file":
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", "labels.csv")
        if self.fails == "name":
            raise OSError(errno.ENAMETOOLONG, "File name too long", "x" * 300)
        if self.fails == "disk":
            raise OSError(errno.ENOSPC, "No space left on device", "scores.json")
        if self.fails == "bug":
            raise KeyError("label")
        return TaskScores.of_means([0, 1], [0.5, 1.0])

    def rivals(self, model: BenchmarkEncoder | None) -> dict[str, TaskScores]:
        if self.fails in ("rivals", "all"):
            raise StoreError("the store is damaged")
        return {"degree": TaskScores.of_means([0, 1], [0.0, 1.0])}


def test_a_full_disk_ends_the_benchmark(given: Given, tmp_path: Path) -> None:
    out = tmp_path / "report"
    models = read_models([str(given.texts)], out)
    tasks = (FailingTask(name="disk", fails="disk"),)
    with pytest.raises(OSError, match="No space left"):
        run_benchmark(models, Suite("own", "Own", tasks), out, with_ray=False)


def test_a_result_that_cannot_be_kept_is_no_result(given: Given, tmp_path: Path) -> None:
    out = tmp_path / "report"
    models = read_models([str(given.texts)], out)
    out.mkdir(exist_ok=True)
    (out / "scores").write_text("a file, where results have their folder")
    suite = Suite("own", "Own", (FailingTask(name="own", fails="nothing"),))
    with pytest.raises(ConfigError, match=r"own: FileExistsError: .*scores"):
        run_benchmark(models, suite, out, with_ray=False)


def test_what_fails_has_its_reason_in_the_report_and_ends_nothing_else(
    given: Given, tmp_path: Path
) -> None:
    (tmp_path / "folds").mkdir()
    tasks = (
        LabelsTask(name="damaged", labels="remote_homology", data=tmp_path / "folds"),
        *(
            FailingTask(name=fails, fails=fails)
            for fails in ("model", "memory", "rivals", "facts", "bug", "file", "name")
        ),
    )
    out = tmp_path / "report"
    models = read_models([str(given.texts)], out)
    report = run_benchmark(models, Suite("own", "Own", tasks), out, with_ray=False)
    assert "holds no known layout" in task_of(report, "damaged").skipped[""]
    assert task_of(report, "model").skipped == {"texts": "shapes do not fit"}
    assert values(task_of(report, "model")) == {"degree": 0.5}
    assert task_of(report, "memory").skipped == {"texts": "OutOfMemoryError: CUDA out of memory"}
    assert "FileNotFoundError" in task_of(report, "file").skipped["texts"]
    assert "File name too long" in task_of(report, "name").skipped["texts"]
    assert task_of(report, "bug").skipped == {"texts": "KeyError: 'label'"}
    assert 'raise KeyError("label")' in (out / "log.txt").read_text()
    assert task_of(report, "rivals").skipped == {"rivals": "the store is damaged"}
    assert values(task_of(report, "rivals")) == {"texts": 0.75}
    assert task_of(report, "rivals").protocol == "A protocol."
    assert task_of(report, "facts").skipped == {"protocol": "the store is damaged"}
    assert values(task_of(report, "facts")) == {"texts": 0.75, "degree": 0.5}
    page = (out / "report.html").read_text()
    assert "rivals have no row: the store is damaged." in page
    assert "protocol is unknown: the store is damaged." in page


def test_a_benchmark_without_a_row_is_refused_and_writes_no_report(
    given: Given, tmp_path: Path, tiny_words: WordStore
) -> None:
    suite = tmp_path / "own.yaml"
    task = {"task": "relation-probe", "name": "own", "store": str(tiny_words.path)}
    suite.write_text(yaml.safe_dump({"tasks": [task]}))
    out = tmp_path / "report"
    words = [str(given.texts), "random", "--suite", str(suite), "--out", str(out), "--no-ray"]
    done = CliRunner().invoke(app, words)
    message = str(done.exception)
    assert isinstance(done.exception, ConfigError)
    assert "own: " in message
    assert "is a store of words, made by `raybio prepare spert`; want one of documents" in message
    # The store is checked before anything is computed.
    assert "evaluating" not in (out / "log.txt").read_text()
    assert not (out / "report.json").exists()


def test_one_reason_for_all_parts_of_a_task_is_reported_once(given: Given, tmp_path: Path) -> None:
    tasks = (FailingTask(name="all", fails="all"), FailingTask(name="none", fails="nothing"))
    models = read_models([str(given.texts)], tmp_path)
    report = run_benchmark(models, Suite("own", "Own", tasks), tmp_path, with_ray=False)
    assert task_of(report, "all").skipped == {"": "the store is damaged"}
    with pytest.raises(ConfigError, match="none of its tasks has a row.*all: the store is damaged"):
        run_benchmark(models, Suite("own", "Own", tasks[:1]), tmp_path / "all", with_ray=False)


class TokensTask(FailingTask):
    """A task whose rivals read the tokens of a model, and fail with some models."""

    rivals_read_the_model: ClassVar[bool] = True

    fails_with: list[str]

    def rivals(self, model: BenchmarkEncoder | None) -> dict[str, TaskScores]:
        assert model is not None
        if model.name in self.fails_with:
            raise ValueError(f"no tokens of {model.name}")
        return {f"words of {model.name}": TaskScores.of_means([0, 1], [0.0, 1.0])}


def test_rivals_that_fail_with_a_model_are_computed_with_the_next_one(
    given: Given, tmp_path: Path
) -> None:
    folders = [shutil.copytree(given.texts, tmp_path / name) for name in "abc"]
    tasks = tuple(
        TokensTask(name=name, fails="nothing", fails_with=list(name.replace("none", "")))
        for name in ("none", "a", "ab", "abc")
    )
    out = tmp_path / "report"
    models = [
        replace(model, digest=model.name)  # as of other weights
        for model in read_models([str(folder) for folder in folders], out)
        if isinstance(model, BenchmarkModel)
    ]
    report = run_benchmark(models, Suite("own", "Own", tasks), out, with_ray=False)
    for task, reader in zip(report.tasks, "abc", strict=False):
        assert task.skipped == {}
        assert {row.name for row in task.rows if row.is_rival} == {f"words of {reader}"}
        assert task.protocol == (
            f"A protocol. Rivals on contents read them in the tokens of {reader}."
        )
    assert report.tasks[3].skipped == {"rivals": "no tokens of c"}
    assert report.tasks[3].protocol == "A protocol."
    assert len(report.tasks[3].rows) == 3
    again = run_benchmark(models, Suite("own", "Own", tasks), out, with_ray=False)
    assert again == report


def test_what_training_changed_is_compared_on_the_same_nodes(
    given: Given, tiny_store: Store, tmp_path: Path, empty_database: Path
) -> None:
    config = tiny_config("sppt_protein", seed=7, **{"evaluation.metric": "cosine"})
    run = tmp_path / "first"
    METHODS["sppt_protein"].build(config, tiny_store.path).export(run / "export", {})
    record = {
        "method": "sppt_protein",
        "data_digest": tiny_store.digest,
        "config": config.to_mapping() | {"encoder": {"source": str(given.proteins)}},
    }
    write_record(run / "run.json", "run", record)
    suite = tmp_path / "own.yaml"
    tasks = [
        {"task": "links", "name": "links", "store": str(tiny_store.path)},
        {"task": "retrieval", "name": "texts", "corpus": "c", "queries": "q", "qrels": "t"},
    ]
    suite.write_text(yaml.safe_dump({"tasks": tasks}))
    words = ["--after", str(run), "--suite", str(suite), "--out", str(tmp_path / "report")]
    database = shutil.copy(empty_database, tmp_path)
    words += ["--no-ray", "--tracking-uri", f"sqlite:///{database}"]
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    record = json.loads((tmp_path / "report" / "report.json").read_text())
    assert (record["after"], record["before"]) == ("first", "proteins")
    found = {row["name"]: row["value"] for row in record["tasks"][0]["rows"]}
    # By the same distance, whatever the run was evaluated by.
    for name, folder in (("first", run / "export"), ("proteins", given.proteins)):
        options = LinkEvaluationOptions(as_in_its_run=False)
        links = evaluate_model_links({name: model_of_folder(folder)}, tiny_store.path, options)
        assert found[name] == pytest.approx(links.scores["trained"]["val"]["lrap"]["value"])
    test = record["tasks"][0]["tests"][0]
    assert (test["first"], test["second"]) == ("first", "proteins")
    assert test["difference"] == pytest.approx(found["first"] - found["proteins"])
    assert test["low"] <= test["difference"] <= test["high"]
    shown = f"{test['difference']:+.3f} [{test['low']:+.3f}, {test['high']:+.3f}]"
    page = (tmp_path / "report" / "report.html").read_text()
    assert "What training changed: first against proteins" in page
    assert shown in page and shown in result.output
    # Rivals of the first model and its scores are of the same embeddings.
    log = (tmp_path / "report" / "log.txt").read_text()
    assert log.count("] embedding ") == 2


def test_the_interval_of_a_difference_is_over_units_that_both_have() -> None:
    rng = np.random.default_rng(0)
    level_U = rng.normal(size=200)
    first = TaskScores.of_means(range(200), level_U + 0.1 + 0.01 * rng.normal(size=200))
    second = TaskScores.of_means(range(200), level_U)
    test = difference_test(first, second, 3)
    assert test is not None
    difference_U = first.numerator_U - second.numerator_U
    draws = np.random.default_rng(3).integers(0, 200, (1000, 200))
    means = [difference_U[draw].mean() for draw in draws]
    assert test.difference == pytest.approx(
        (difference_U.mean(), *np.percentile(means, [2.5, 97.5]))
    )
    # Units vary by 1, their differences by 0.01.
    assert test.difference.high - test.difference.low < 0.01
    # Of a sample of units, the interval is around the difference of all.
    whole = difference_test(replace(first, value=0.9), replace(second, value=0.5), 3)
    assert whole is not None
    assert whole.difference.value == pytest.approx(0.4)
    assert whole.difference.low - 0.4 == pytest.approx(test.difference.low - test.difference.value)
    # p is that of the difference of all, too.
    equal = replace(first, numerator_U=second.numerator_U + 0.01 * np.tile([1, -1], 100))
    assert difference_test(equal, second, 3).p > 0.9
    moved = difference_test(replace(equal, value=0.512), replace(second, value=0.5), 3)
    assert moved.difference.low > 0 and moved.p < 0.001
    same = difference_test(replace(second, value=0.512), replace(second, value=0.5), 3)
    assert same.p == 1  # units that do not differ say nothing of the others
    given = [replace(scores, value=scores.score) for scores in (first, second)]
    assert difference_test(*given, 3) == test
    # Where units can achieve different amounts, the ratio of sums counts.
    other = replace(second, denominator_U=np.linspace(1, 2, 200))
    unequal = difference_test(first, other, 3)
    assert unequal is not None
    assert unequal.difference.value == pytest.approx(first.score - other.score)
    assert unequal.difference.low < unequal.difference.value < unequal.difference.high


def test_tracking_that_is_down_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert track_models("http://127.0.0.1:1", "key", "name", {"a": {}}, []) is None
    assert "did not take the scores" in caplog.text


def counts_of_log(out: Path) -> Counter[str]:
    """Count the lines of what was computed to its end, over all starts."""
    lines = [line.split("] ", 1)[1] for line in (out / "log.txt").read_text().splitlines()]
    return Counter(line for line in lines if line.startswith(("embedded ", "evaluated ")))


@pytest.mark.nightly
def test_a_cluster_evaluates_models_and_rivals_at_the_same_time(
    ray_cluster: None, given: Given, done: tuple[Path, BenchmarkReport], tmp_path: Path
) -> None:
    names = {name: str(given.data / name) for name in ("corpus.jsonl", "queries.jsonl", "test.tsv")}
    corpus, queries, qrels = names.values()
    task = {"task": "retrieval", "name": "own", "corpus": corpus, "queries": queries}
    suite = tmp_path / "own.yaml"
    suite.write_text(yaml.safe_dump({"tasks": [{**task, "qrels": qrels}]}))
    models = read_models([str(given.texts), "tfidf"], tmp_path)
    report = run_benchmark(models, read_suite(str(suite), None), tmp_path, with_ray=True)
    expected = task_of(done[1], "own")
    assert values(report.tasks[0]) == pytest.approx(values(expected))
    assert report.models[1].mean == pytest.approx(values(expected)["tfidf"])
    counts = counts_of_log(tmp_path)
    assert set(counts.values()) == {1}
    assert {"evaluated own of texts", "evaluated own, rivals"} <= counts.keys()
    # Each line has its process: two workers, and not this one.
    log = (tmp_path / "log.txt").read_text().splitlines()
    processes = {line.split("[")[1].split("]")[0] for line in log if "evaluated " in line}
    assert str(os.getpid()) not in processes


@pytest.mark.nightly
def test_a_command_that_is_killed_five_times_at_random_computes_nothing_twice(
    ray_cluster: None,
    given: Given,
    done: tuple[Path, BenchmarkReport],
    tmp_path: Path,
    empty_database: Path,
) -> None:
    import ray
    from mlflow import MlflowClient

    database = tmp_path / "mlflow.db"
    database.write_bytes(empty_database.read_bytes())
    out = tmp_path / "report"
    script = Path(__file__).parents[2] / "jobs" / "benchmark.py"
    words = [sys.executable, script, given.texts, given.proteins, "tfidf", "random"]
    words += ["--suite", given.suite, "--data", given.data, "--out", out]
    command = [str(word) for word in [*words, "--tracking-uri", f"sqlite:///{database}"]]
    environment = {**os.environ, "RAY_ADDRESS": ray.get_runtime_context().gcs_address}
    rng = np.random.default_rng(0)
    num_results = counts_of_log(done[0]).total()
    nums_kept = np.sort(rng.choice(num_results * 3 // 4, NUM_KILLS, replace=False)).tolist()
    for num_kept, seconds in zip(nums_kept, rng.uniform(0, 0.5, NUM_KILLS).tolist(), strict=True):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
        while not (out / "log.txt").exists() or counts_of_log(out).total() < num_kept:
            assert process.poll() is None
            time.sleep(0.02)
        time.sleep(seconds)
        process.kill()
        assert process.wait() == -signal.SIGKILL
        assert not (out / "report.json").exists()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True, env=environment)
    record = json.loads((out / "report.json").read_text())
    for task, expected in zip(record["tasks"], done[1].tasks, strict=True):
        assert {row["name"]: row["value"] for row in task["rows"]} == pytest.approx(
            values(expected)
        )
        assert [test["p_holm"] for test in task["tests"]] == pytest.approx(
            [test.p_holm for test in expected.tests]
        )
    counts = counts_of_log(out)
    assert max(counts.values()) == 1
    # A kill may come between a result and its line.
    num_kept = sum(len(list((out / kind).rglob("*.json"))) for kind in ("embeddings", "scores"))
    assert num_kept - NUM_KILLS <= len(counts) <= num_kept
    client = MlflowClient(f"sqlite:///{database}")
    experiment = client.get_experiment_by_name("benchmark")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    assert len(runs) == 5
    assert {run.info.status for run in runs} == {"FINISHED"}


def test_scores_survive_their_json() -> None:
    scores = TaskScores.of_means([3, 5], [0.1, 1 / 3], {"other": 0.5}, remarks=["cut"])
    again = TaskScores.from_json(json.loads(json.dumps(scores.to_json())))
    assert again.score == scores.score
    assert again.unit_ids == ("3", "5")
    np.testing.assert_array_equal(again.numerator_U, scores.numerator_U)
    assert isinstance(replace(scores, value=0.2).score, float)


def test_equal_inputs_are_embedded_once_and_keep_their_order(given: Given, tmp_path: Path) -> None:
    (model,) = read_models([str(given.texts)], tmp_path)
    assert isinstance(model, BenchmarkModel)
    array = model.embed(["word1a", "word2b", "word1a"])
    np.testing.assert_array_equal(array[0], array[2])
    assert not np.array_equal(array[0], array[1])
    (cost,) = model.costs()
    assert cost.rows == 2
