"""``raybio evaluate retrieval`` and ``links``: any model on data of one's own."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from raybio.cli.evaluate import app
from raybio.core.errors import ConfigError, RaybioError, StoreError
from raybio.core.final_report import FinalReport
from raybio.core.interfaces import System
from raybio.core.records import read_record, write_record
from raybio.evaluation.retrieval import CUTOFFS
from raybio.evaluation.unit_scores import read_unit_scores
from raybio.methods import METHODS
from raybio.methods.biostransformers.store import ArticleStore
from raybio.methods.sppt.articles.store import LinkedTextStore
from raybio.methods.sppt.model_links import LinkEvaluationOptions, evaluate_model_links
from raybio.runtime.model_folders import model_of_folder
from raybio.store.store import Store
from raybio.training.collective import SingleProcess
from raybio.training.precision import Precision, embedding_precision
from raybio.training.settings import TrainingConfig
from tests.methods.conformance_cases import tiny_config


def evaluate(*arguments: object) -> str:
    done = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def trained_system(name: str, config: TrainingConfig, store: Store) -> System:
    """Return a system whose weights are no longer the initial ones."""
    system = METHODS[name].build(config, store.path)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in system.model.parameters():
            weight.add_(0.05 * torch.randn(weight.shape, generator=generator))
    return system


def write_run(folder: Path, name: str, config: TrainingConfig, store: Store) -> tuple[Path, Any]:
    """Write the export and the record of a run; return its folder and its final evaluation."""
    system = trained_system(name, config, store)
    system.export(folder / "export", {})
    record = {"method": name, "config": config.to_mapping(), "data_digest": system.data_digest}
    write_record(folder / "run.json", "run", record | {"store": str(store.path)})
    assert system.final_evaluate is not None
    return folder, system.final_evaluate(system.model, SingleProcess())


def plain(report: FinalReport) -> Any:
    return json.loads(json.dumps(report.scores, default=float))


@pytest.mark.parametrize(
    ("name", "fixture", "rivals", "settings"),
    [
        (
            "sppt_protein",
            "tiny_store",
            ["degree", "common neighbors", "3-mers", "look-up", "composition"],
            {"seed": 3},
        ),
        pytest.param(
            "sppt_mag",
            "tiny_citations",
            ["degree", "common neighbors", "TF-IDF", "look-up"],
            {
                "evaluation.metric": "cosine",
                "evaluation.test_graphs": 2,
                "evaluation.samples": 2,
                "evaluation.nodes_per_sample": 5,
            },
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_links_of_an_export_on_its_own_store_are_those_of_the_run(
    name: str,
    fixture: str,
    rivals: list[str],
    settings: dict[str, Any],
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    store = request.getfixturevalue(fixture)
    run, final = write_run(tmp_path / "own", name, tiny_config(name, **settings), store)
    out = tmp_path / "report"
    shown = evaluate("links", "--model", run, "--store", store.path, "--out", out)
    report = json.loads((out / "report.json").read_text())
    expected = plain(final)
    assert list(expected) == ["chance", "random", *rivals, "initial", "trained"]
    expected[str(run)] = expected.pop("trained")
    assert report["scores"] == expected
    assert report["sizes"] == dict(final.sizes)
    units = read_unit_scores(out / "unit_scores.npz")
    for stage, of_stage in final.unit_scores.items():
        for split, of_split in of_stage.items():
            np.testing.assert_array_equal(units[stage][split].unit_U, of_split.unit_U)
            lrap_U = of_split.value_by_measure["lrap"]
            np.testing.assert_array_equal(units[stage][split].value_by_measure["lrap"], lrap_U)
    assert "held-out links" in shown
    assert "training links" in shown
    table = (out / "table.md").read_text()
    assert f"Rivals of {run}" in table
    assert {"common neighbors", str(run)} <= json.loads((out / "table.json").read_text())[
        "scores"
    ].keys()
    assert (out / "plots" / "comparison.png").is_file()


def test_other_models_are_rows_of_the_same_table_and_chosen_splits_are_shown(
    tiny_store: Store, tmp_path: Path
) -> None:
    config = tiny_config("sppt_protein")
    run, final = write_run(tmp_path / "own", "sppt_protein", config, tiny_store)
    other = METHODS["sppt_protein"].build(config, tiny_store.path).export(tmp_path / "other", {})
    out = tmp_path / "report"
    models = ["--model", other, "--model", run]
    shown = evaluate("links", *models, "--store", tiny_store.path, "--out", out, "--split", "val")
    scores = json.loads((out / "report.json").read_text())["scores"]
    # Nothing tells from which weights the first model was trained: it has no row initial.
    assert list(scores)[-2:] == [str(run), str(other)]
    assert "initial" not in scores
    expected = plain(final)
    assert scores[str(other)] == expected["initial"]
    assert scores[str(run)] == expected["trained"]
    assert {"train", "val"} <= scores[str(run)].keys()
    assert "held-out links" in shown
    assert "training links" not in shown
    fewer = ["--nodes", 2, "--metric", "cosine", "--seed", 5, "--split", "val"]
    shown = evaluate("links", *models, "--store", tiny_store.path, "--out", out, *fewer)
    assert "nodes were evaluated: 2 drawn nodes of each group" in " ".join(shown.split())
    report = json.loads((out / "report.json").read_text())
    assert report["settings"]["metric"] == "cosine"
    assert report["scores"][str(other)] != scores[str(other)]


@pytest.mark.nightly
def test_a_graph_network_reads_the_frozen_embeddings_of_any_model(
    tiny_store: Store, tmp_path: Path
) -> None:
    config = tiny_config("sppt_protein")
    run, _ = write_run(tmp_path / "own", "sppt_protein", config, tiny_store)
    other = METHODS["sppt_protein"].build(config, tiny_store.path).export(tmp_path / "other", {})
    row_by_model = {run: "GCN on initial", other: "GCN on model"}
    scores = {}
    for model, row in row_by_model.items():
        out = ["--out", tmp_path / "report"]
        shown = evaluate("links", "--model", model, "--store", tiny_store.path, *out, "--gnn")
        assert row in shown
        scores[row] = json.loads((tmp_path / "report" / "report.json").read_text())["scores"][row]
    # The other model has the weights with which the run began.
    assert scores["GCN on initial"] == scores["GCN on model"]


@pytest.mark.nightly
def test_a_run_in_bf16_is_evaluated_in_bf16(tiny_store: Store, tmp_path: Path) -> None:
    config = tiny_config("sppt_protein")
    run, in_fp32 = write_run(tmp_path / "own", "sppt_protein", config, tiny_store)
    record = read_record(run / "run.json", "run") or {}
    write_record(run / "run.json", "run", {**record, "precision": "bf16"})
    system = trained_system("sppt_protein", config, tiny_store)
    assert system.final_evaluate is not None
    with embedding_precision(Precision("bf16", "cpu")):
        final = system.final_evaluate(system.model, SingleProcess())
    out = tmp_path / "report"
    command = ["links", "--model", run, "--store", tiny_store.path, "--out", out]
    evaluate(*command)
    scores = json.loads((out / "report.json").read_text())["scores"]
    assert scores[str(run)] == plain(final)["trained"] != plain(in_fp32)["trained"]
    evaluate(*command, "--precision", "fp32")
    scores = json.loads((out / "report.json").read_text())["scores"]
    assert scores[str(run)] == plain(in_fp32)["trained"]


def test_a_source_that_is_gone_costs_the_row_initial_only(
    tiny_store: Store, tmp_path: Path
) -> None:
    start = METHODS["sppt_protein"].build(tiny_config("sppt_protein"), tiny_store.path)
    start.export(tmp_path / "start", {})
    config = tiny_config("sppt_protein", **{"encoder.source": str(tmp_path / "start")})
    run, final = write_run(tmp_path / "own", "sppt_protein", config, tiny_store)
    (tmp_path / "start").rename(tmp_path / "elsewhere")
    report = evaluate_model_links(
        {"own": model_of_folder(run / "export")}, tiny_store.path, LinkEvaluationOptions()
    )
    assert any(remark.startswith("no row initial: ") for remark in report.remarks)
    assert "initial" not in report.scores
    assert report.scores["trained"] == final.scores["trained"]


def write_task(folder: Path, store: ArticleStore) -> list[object]:
    """Write a task: titles of articles are queries, abstracts the documents."""
    rows = np.arange(60)
    documents = {f"d{row}": text for row, text in enumerate(store.texts("abstract", rows))}
    queries = {f"q{row}": text for row, text in enumerate(store.texts("title", rows[:20]))}
    for name, texts in (("corpus", documents), ("queries", queries)):
        lines = [json.dumps({"_id": key, "text": text}) for key, text in texts.items()]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    pairs = [(row, (row * step) % 60) for row in range(18) for step in range(1, 2 + row % 3)]
    lines = [f"q{row}\td{document}\t1" for row, document in dict.fromkeys(pairs)]
    (folder / "test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *lines]) + "\n")
    files = {"--corpus": "corpus.jsonl", "--queries": "queries.jsonl", "--qrels": "test.tsv"}
    return [part for option, name in files.items() for part in (option, folder / name)]


def test_retrieval_by_an_export_is_that_of_sentence_transformers(
    tiny_articles: ArticleStore, tmp_path: Path
) -> None:
    config = tiny_config("biostransformers")
    system = trained_system("biostransformers", config, tiny_articles)
    folder = system.export(tmp_path / "run" / "export", {})
    other = METHODS["biostransformers"].build(config, tiny_articles.path)
    other.export(tmp_path / "initial", {})
    task = write_task(tmp_path, tiny_articles)
    out = tmp_path / "report"
    models = ["--model", folder, "--model", tmp_path / "initial"]
    shown = evaluate("retrieval", *models, *task, "--out", out)
    report = json.loads((out / "report.json").read_text())
    names = ["chance", "TF-IDF", "BM25", str(tmp_path / "initial"), str(folder)]
    assert list(report["scores"]) == names
    assert "2 of 20 queries have no relevant document and are left out" in " ".join(shown.split())
    scores = report["scores"][str(folder)]["queries"]
    units = read_unit_scores(out / "unit_scores.npz")
    for measure, score in scores.items():
        value_U = units["trained"]["queries"].value_by_measure[measure]
        assert len(value_U) == 18
        assert score["low"] <= score["value"] <= score["high"]
        assert score["value"] == pytest.approx(value_U.mean())
    assert units.keys() == {"TF-IDF", "BM25", str(tmp_path / "initial"), "trained"}
    relations = json.loads((out / "table.json").read_text())["relations"]
    assert {each["row"] for each in relations} == set(names[:-1])

    evaluate("retrieval", *models, *task, "--out", tmp_path / "bf16", "--precision", "bf16")
    in_bf16 = json.loads((tmp_path / "bf16" / "report.json").read_text())
    assert in_bf16["settings"]["precision"] == "bf16"
    assert in_bf16["scores"]["BM25"] == report["scores"]["BM25"]
    assert in_bf16["scores"][str(folder)] != report["scores"][str(folder)]

    evaluation = pytest.importorskip("sentence_transformers.sentence_transformer.evaluation")
    from sentence_transformers import SentenceTransformer

    texts = {
        name: {
            each["_id"]: each["text"]
            for each in map(json.loads, (tmp_path / f"{name}.jsonl").read_text().splitlines())
        }
        for name in ("corpus", "queries")
    }
    relevant: dict[str, set[str]] = {}
    for line in (tmp_path / "test.tsv").read_text().splitlines()[1:]:
        query, document, _ = line.split("\t")
        relevant.setdefault(query, set()).add(document)
    evaluator = evaluation.InformationRetrievalEvaluator(
        texts["queries"],
        texts["corpus"],
        relevant,
        accuracy_at_k=list(CUTOFFS),
        precision_recall_at_k=list(CUTOFFS),
        write_csv=False,
    )
    theirs = evaluator(SentenceTransformer(str(folder), device="cpu"))
    for measure, score in scores.items():
        expected = theirs[f"cosine_{measure.replace('_at_', '@')}"]
        assert score["value"] == pytest.approx(expected, abs=1e-6), measure


def test_a_pooling_that_no_model_takes_is_refused(
    tiny_articles: ArticleStore, tmp_path: Path
) -> None:
    """It was ignored, and the report recorded it as used."""
    system = trained_system("biostransformers", tiny_config("biostransformers"), tiny_articles)
    folder = system.export(tmp_path / "export", {})
    pooling = model_of_folder(folder).pooling
    other = {"cls": "mean", "mean": "cls"}[pooling]
    task = write_task(tmp_path, tiny_articles)
    retrieval = ["retrieval", "--model", folder, *task, "--out", tmp_path / "report", "--pooling"]
    with pytest.raises(ConfigError, match=f"pooling {other}: .* states {pooling}; leave it out"):
        evaluate(*retrieval, other)
    assert not (tmp_path / "report").exists()
    unstated = shutil.copytree(folder, tmp_path / "unstated")
    # As a folder of save_pretrained, which does not state its pooling.
    (unstated / "modules.json").unlink()
    evaluate(*retrieval, other, "--model", unstated)
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    assert report["settings"]["pooling"] == {str(folder): pooling, str(unstated): other}


def test_the_folder_of_a_run_takes_no_report(tiny_articles: ArticleStore, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    write_record(run / "run.json", "run", {})
    (run / "unit_scores.npz").write_text("mine")
    with pytest.raises(ConfigError, match="run: holds a run or a sweep, whose files would be lost"):
        evaluate("links", "--model", run, "--store", tiny_articles.path, "--out", run)
    assert (run / "unit_scores.npz").read_text() == "mine"


def test_a_model_without_numbers_is_refused(tiny_articles: ArticleStore, tmp_path: Path) -> None:
    system = trained_system("biostransformers", tiny_config("biostransformers"), tiny_articles)
    with torch.no_grad():
        for weight in system.model.parameters():
            weight.fill_(float("nan"))
    folder = system.export(tmp_path / "export", {})
    task = write_task(tmp_path, tiny_articles)
    with pytest.raises(ConfigError, match="its embeddings are not finite"):
        evaluate("retrieval", "--model", folder, *task, "--out", tmp_path / "report")


def test_what_does_not_fit_is_refused(
    tiny_store: Store, tiny_articles: ArticleStore, tiny_citations: LinkedTextStore, tmp_path: Path
) -> None:
    protein = METHODS["sppt_protein"].build(tiny_config("sppt_protein"), tiny_store.path)
    model = protein.export(tmp_path / "protein", {})
    task = write_task(tmp_path, tiny_articles)
    out = ["--out", tmp_path / "report"]
    links = ["links", "--model", model, *out, "--store"]
    nowhere = ["--model", tmp_path / "nothing"]
    refused: list[tuple[type[RaybioError], str, list[object]]] = [
        (ConfigError, "reads proteins, want an encoder of texts",
         ["retrieval", "--model", model, *task, *out]),
        (ConfigError, "there is no nothing in", ["retrieval", *nowhere, *task, *out]),
        (ConfigError, "reads proteins, and .* is a store of texts", [*links, tiny_citations.path]),
        (StoreError, "is a store of articles, made by .*; want proteins or articles with their links", [*links, tiny_articles.path]),
        (ConfigError, "--split heldout: want train, no_twins, val",
         [*links, tiny_store.path, "--split", "train,heldout"]),
        (ConfigError, "--split: nothing of it is in the store, which has train, val",
         [*links, tiny_store.path, "--split", "samples", "--nodes", 2]),
    ]  # fmt: skip
    for error, message, arguments in refused:
        with pytest.raises(error, match=message):
            evaluate(*arguments)
    assert not (tmp_path / "report").exists()
