"""``--precision`` of commands that embed: one meaning, fp32 by default, and it reaches the encoder."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.main import get_command
from typer.testing import CliRunner

from raybio.benchmark.models import BenchmarkModel, read_models
from raybio.benchmark.run import run_benchmark
from raybio.benchmark.suite import Suite
from raybio.benchmark.task import BenchmarkTask
from raybio.benchmark.tasks.links import LinksTask
from raybio.benchmark.tasks.retrieval import BeirRetrievalTask
from raybio.cli import benchmark, embed, evaluate, explore, predict
from raybio.core.errors import ConfigError
from raybio.core.records import read_record
from raybio.methods.biostransformers.store import ArticleStore
from raybio.methods.mtb_mccl.documents.store import DocumentStore
from raybio.methods.relation_graphs.store import WordStore
from raybio.methods.sppt.articles.evaluate import evaluate_link_samples
from raybio.methods.sppt.articles.store import LinkedTextStore
from raybio.methods.sppt.downstream.store import TaskStore
from raybio.methods.sppt.model_links import LinkEvaluationOptions, evaluate_model_links
from raybio.methods.sppt.proteins.store import ProteinStore
from raybio.runtime.model_folders import model_of_folder
from raybio.store.store import Store
from raybio.training.precision import Precision, embedding_precision
from tests.cli.test_evaluate_models import trained_system, write_task
from tests.methods.conformance_cases import tiny_config
from tests.runtime.explore.test_explore import Page, write
from tests.runtime.search.test_queries import export as export_proteins

EVALUATE = {
    "retrieval",
    "links",
    "link-samples",
    "zero-shot",
    "relations",
    "relation-probe",
    "relation-map",
    "entities-relations",
    "sentence-graphs",
    "word-maps",
    "probe",
}
NOT_EMBEDDING = {"task-fit", "sheet", "curves"}
IN_FP32 = {"ask", "baselines"}
"""A saved index is that of one precision; language models decode."""


def commands() -> dict[str, Any]:
    """Return the commands that embed, by name."""
    group: Any = get_command(evaluate.app)
    found = {name: group.get_command(None, name) for name in group.list_commands(None)}
    assert set(found) == EVALUATE | NOT_EMBEDDING | IN_FP32
    found = {name: found[name] for name in EVALUATE}
    for module in (predict, explore, benchmark, embed):
        found[module.__name__] = get_command(module.app)
    return found


def test_all_commands_that_embed_have_the_same_option() -> None:
    helps = set()
    for name, command in commands().items():
        (option,) = [each for each in command.params if each.name == "precision"]
        assert option.default == (None if name == "links" else "fp32"), name
        helps.add(option.help.removesuffix("; default: as the run, else fp32"))
    assert len(helps) == 1


def run(app: Any, *arguments: object) -> str:
    done = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def export(name: str, store: Store, folder: Path, **settings: object) -> Path:
    system = trained_system(name, tiny_config(name, **settings), store)
    return Path(system.export(folder, {}))


def differ_by_precision(out: Path, call: Callable[..., object]) -> dict[str, Any]:
    """Return the report in bf16, of which more than the setting differs from the default."""
    call(out / "default.json")
    call(out / "bf16.json", "--precision", "bf16")
    default = (out / "default.json").read_text()
    in_bf16 = (out / "bf16.json").read_text()
    assert default.count('"precision": "fp32"') == in_bf16.count('"precision": "bf16"') == 1
    assert default != in_bf16.replace("bf16", "fp32")
    return dict(json.loads(in_bf16))


def test_samples_of_test_graphs_are_embedded_in_the_precision(
    tiny_citations: LinkedTextStore, tmp_path: Path
) -> None:
    model = export("sppt_mag", tiny_citations, tmp_path / "model")
    sizes = {"trials": 2, "samples": 3, "nodes": 5}
    options = [part for name, value in sizes.items() for part in (f"--{name}", value)]
    command = ["link-samples", "--model", model, "--store", tiny_citations.path, *options]
    found = differ_by_precision(
        tmp_path, lambda out, *more: run(evaluate.app, *command, "--out", out, *more)
    )
    with embedding_precision(Precision("bf16", "cpu")):
        (scores,) = [
            scores
            for name, scores in evaluate_link_samples(
                [str(model)], tiny_citations.path, **sizes
            ).items()
            if name == str(model)
        ]
    assert found["scores"][str(model)]["lrap"]["mean"] == scores["lrap"].mean


@pytest.mark.parametrize(
    ("method", "command"),
    [("relation_finetune", ["relations"]), ("mtb_pretrain", ["relation-probe"])],
)
def test_pairs_of_documents_are_embedded_in_the_precision(
    method: str, command: list[str], tiny_documents: DocumentStore, tmp_path: Path
) -> None:
    model = export(method, tiny_documents, tmp_path / "model")
    command = [*command, "--model", str(model), "--store", str(tiny_documents.path)]
    differ_by_precision(
        tmp_path, lambda out, *more: run(evaluate.app, *command, "--out", out, *more)
    )


def test_words_are_embedded_in_the_precision(tiny_words: WordStore, tmp_path: Path) -> None:
    model = export("relation_graphs", tiny_words, tmp_path / "model")
    command = ["entities-relations", "--relations", model, "--entities", model]
    command += ["--store", tiny_words.path]
    differ_by_precision(
        tmp_path, lambda out, *more: run(evaluate.app, *command, "--out", out, *more)
    )


def test_predictions_are_computed_in_the_precision(tiny_task: TaskStore, tmp_path: Path) -> None:
    model = export("finetune", tiny_task, tmp_path / "model")
    (tmp_path / "in.fasta").write_text(">a\nMKVLAAGIT\n>b\nMSTNPKPQRKTKRN\n")
    files = ["--input", tmp_path / "in.fasta", "--out"]
    run(predict.app, model, *files, tmp_path / "default.jsonl")
    run(predict.app, model, *files, tmp_path / "bf16.jsonl", "--precision", "bf16")
    assert (tmp_path / "default.jsonl").read_text() != (tmp_path / "bf16.jsonl").read_text()


def test_a_map_is_embedded_in_the_precision_and_a_file_of_embeddings_has_its_own(
    tmp_path: Path,
) -> None:
    model = export_proteins(tmp_path / "model", 0)
    rows = "ACDEFGHIKLMNPQRSTVWY"
    (tmp_path / "in.fasta").write_text(
        "".join(f">{row}\n{rows[row:] + rows[:row] + rows[row]}\n" for row in range(12))
    )
    inputs = ["--input", tmp_path / "in.fasta", "--out"]
    pages = {}
    for name, more in (("default", []), ("bf16", ["--precision", "bf16"])):
        run(explore.app, model, *inputs, tmp_path / f"{name}.html", *more)
        pages[name] = Page(tmp_path / f"{name}.html").data
    assert pages["default"] != pages["bf16"]
    embeddings = tmp_path / "vectors.parquet"
    write(embeddings, list("abcde"), np.eye(5, dtype=np.float32))
    run(explore.app, embeddings, "--out", tmp_path / "of_file.html")
    with pytest.raises(ConfigError, match="holds embeddings; leave out --pooling, --precision"):
        run(explore.app, embeddings, "--out", tmp_path / "of_file.html", "--precision", "bf16")


def test_benchmarks_keep_embeddings_and_scores_of_each_precision_apart(
    tiny_store: ProteinStore, tiny_articles: ArticleStore, tmp_path: Path
) -> None:
    proteins = export("sppt_protein", tiny_store, tmp_path / "proteins")
    texts = export("biostransformers", tiny_articles, tmp_path / "texts")
    options = write_task(tmp_path, tiny_articles)
    files = {
        str(option)[2:]: path for option, path in zip(options[::2], options[1::2], strict=True)
    }
    tasks: list[BenchmarkTask] = [
        LinksTask(name="links", store=tiny_store.path),
        BeirRetrievalTask(name="ranked", **files),
    ]
    values = {}
    for precision in ("fp32", "bf16"):
        models = read_models([str(proteins), str(texts)], tmp_path / "out", precision=precision)
        report = run_benchmark(
            models, Suite("own", "Own", tuple(tasks)), tmp_path / "out", with_ray=False
        )
        assert [model.precision for model in report.models] == [precision, precision]
        for model, task in zip(models, report.tasks, strict=True):
            assert isinstance(model, BenchmarkModel)
            (row,) = [each for each in task.rows if each.name == model.name]
            values[precision, task.name] = row.value
    out = tmp_path / "single"
    command = ["retrieval", "--model", texts, *options, "--out", out]
    for precision in ("fp32", "bf16"):
        option = LinkEvaluationOptions(precision=precision, as_in_its_run=False)
        single = evaluate_model_links({"own": model_of_folder(proteins)}, tiny_store.path, option)
        lrap = single.scores["trained"]["val"]["lrap"]["value"]
        assert values[precision, "links"] == pytest.approx(lrap, rel=1e-12)
        run(evaluate.app, *command, "--precision", precision)
        scores = (read_record(out / "report.json", "report") or {})["scores"][str(texts)]
        ndcg = scores["queries"]["ndcg_at_10"]["value"]
        assert values[precision, "ranked"] == pytest.approx(ndcg, rel=1e-12)
    # Few inputs may be ranked equally.
    by_corpus: dict[str, list[np.ndarray]] = {}
    for path in (tmp_path / "out" / "embeddings").rglob("*.npy"):
        by_corpus.setdefault(path.name, []).append(np.load(path))
    assert len(by_corpus) == 3
    for in_one, in_other in by_corpus.values():
        assert not np.array_equal(in_one, in_other)
        np.testing.assert_allclose(in_one, in_other, atol=0.1)


def test_a_precision_that_the_machine_lacks_is_refused(
    tiny_citations: LinkedTextStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    model = export("sppt_mag", tiny_citations, tmp_path / "model")
    command = ["link-samples", "--model", model, "--store", tiny_citations.path]
    with pytest.raises(ConfigError, match="got tf32, and .* TF32"):
        run(evaluate.app, *command, "--precision", "tf32")
