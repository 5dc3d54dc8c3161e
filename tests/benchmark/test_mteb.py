"""Tasks of mteb over local copies of their data sets. What needs mteb is skipped where it is not installed."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raybio.benchmark.models import RandomVectors, read_models
from raybio.benchmark.report import BenchmarkReport
from raybio.benchmark.run import run_benchmark
from raybio.benchmark.suite import Suite
from raybio.benchmark.tasks.mteb import MtebTask, scores_of_units
from raybio.core.errors import ConfigError, DataError
from raybio.methods import METHODS
from raybio.methods.biostransformers.store import ArticleStore
from tests.methods.conformance_cases import tiny_config

INSTALL = "mteb is not installed: pip install 'raybio[mteb]' runs these tests (CI does not)"

CONFIGS = """---
configs:
- {config_name: corpus, data_files: [{split: corpus, path: corpus.jsonl}]}
- {config_name: queries, data_files: [{split: queries, path: queries.jsonl}]}
- {config_name: default, data_files: [{split: test, path: test.jsonl}]}
---
"""


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(scope="module")
def data(tiny_articles: ArticleStore, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small data sets in the layouts of mteb's NFCorpus, Banking77Classification and BIOSSES."""
    folder = tmp_path_factory.mktemp("mteb")
    for name in ("retrieval", "classes", "pairs"):
        (folder / name).mkdir()
    titles = tiny_articles.texts("title", np.arange(60))
    abstracts = tiny_articles.texts("abstract", np.arange(60))
    (folder / "retrieval" / "README.md").write_text(CONFIGS)
    (folder / "retrieval" / ".cache").mkdir()
    (folder / "retrieval" / ".cache" / "when").write_text("now")
    rows = [{"_id": f"d{row}", "title": "", "text": text} for row, text in enumerate(abstracts)]
    write_lines(folder / "retrieval" / "corpus.jsonl", rows)
    rows = [{"_id": f"q{row}", "text": text} for row, text in enumerate(titles[:20])]
    write_lines(folder / "retrieval" / "queries.jsonl", rows)
    rows = [
        {"query-id": f"q{row}", "corpus-id": f"d{row + other}", "score": 2 - other}
        for row in range(18)
        for other in range(2)
    ]
    write_lines(folder / "retrieval" / "test.jsonl", rows)
    labeled = [{"text": text, "label": row % 3} for row, text in enumerate(abstracts)]
    write_lines(folder / "classes" / "train.jsonl", labeled[:30])
    write_lines(folder / "classes" / "test.jsonl", labeled[30:])
    rows = [
        {"sentence1": title, "sentence2": abstract, "score": row % 5}
        for row, (title, abstract) in enumerate(zip(titles[1:], abstracts[:-1], strict=True))
    ]
    write_lines(folder / "pairs" / "test.jsonl", rows)
    return folder


def tasks(data: Path) -> tuple[MtebTask, ...]:
    return (
        MtebTask(name="nfcorpus", mteb="NFCorpus", data=data / "retrieval"),
        MtebTask(name="banking", mteb="Banking77Classification", data=data / "classes"),
        MtebTask(name="biosses", mteb="BIOSSES", data=data / "pairs"),
    )


@pytest.fixture(scope="module")
def export(tiny_articles: ArticleStore, tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = tiny_config("biostransformers", **{"encoder.max_length": 128})
    built = METHODS["biostransformers"].build(config, tiny_articles.path)
    return Path(built.export(tmp_path_factory.mktemp("model") / "texts", {}))


@pytest.fixture(scope="module")
def report(data: Path, export: Path, tmp_path_factory: pytest.TempPathFactory) -> BenchmarkReport:
    pytest.importorskip("mteb", reason=INSTALL)
    out = tmp_path_factory.mktemp("report")
    models = read_models([str(export), "tfidf"], out)
    return run_benchmark(models, Suite("own", "Own", tasks(data)), out, with_ray=False)


# 2026-11: mteb 2.26 warns of superseded tasks and of its own deprecated calls.
@pytest.mark.filterwarnings("ignore")
def test_scores_are_those_of_mteb_on_sentence_transformers(
    report: BenchmarkReport, data: Path, export: Path
) -> None:
    mteb = pytest.importorskip("mteb", reason=INSTALL)
    sentence_transformers = pytest.importorskip("sentence_transformers")
    model = sentence_transformers.SentenceTransformer(str(export), device="cpu")
    for own, shown in zip(tasks(data), report.tasks, strict=True):
        task = mteb.get_task(own.mteb)
        copied = {**task.metadata.dataset, "path": str(own.data)}
        task.metadata = task.metadata.model_copy(update={"dataset": copied})
        (found,) = mteb.evaluate(model, task, cache=None).task_results
        row = next(row for row in shown.rows if row.name == "texts")
        assert row.value == pytest.approx(
            found.scores["test"][0]["main_score"], abs=2e-5
        )  # mteb rounds


def test_queries_and_rows_are_units_and_a_correlation_has_none(
    report: BenchmarkReport, data: Path
) -> None:
    assert [task.skipped for task in report.tasks] == [{}, {}, {}]
    retrieval, classes, pairs = report.tasks
    assert [task.num_units for task in report.tasks] == [18, 30, 0]
    assert [task.measure for task in report.tasks] == ["ndcg_at_10", "accuracy", "cosine_spearman"]
    assert retrieval.size == "18 queries, 60 documents"
    for task in report.tasks:
        assert {row.name for row in task.rows} == {"texts", "random", "tfidf"}
    for task in (retrieval, classes):
        compared = {(pair.first, pair.second) for pair in task.tests}
        assert compared == {("texts", "tfidf"), ("texts", "random")}
        for row in task.rows:
            assert row.low is not None and row.high is not None and row.value is not None
            assert row.low <= row.value <= row.high
    limits = [task.limits for task in tasks(data)]
    assert limits == [(0, 1), (0, 1), (-np.inf, np.inf)]
    assert not pairs.tests
    for row in pairs.rows:
        assert row.low is row.high is None
        assert "mteb gives no value of each unit" in row.remarks[-1]


def test_words_in_common_are_found_by_the_lexical_rival(report: BenchmarkReport) -> None:
    value = {row.name: row.value for row in report.tasks[0].rows}
    assert value["tfidf"] is not None and value["random"] is not None
    assert value["tfidf"] > value["random"] + 0.2


def test_other_data_and_other_tasks_are_other_results(data: Path) -> None:
    pytest.importorskip("mteb", reason=INSTALL)
    assert tasks(data)[0].files().keys() == {
        "data/README.md",
        "data/corpus.jsonl",
        "data/queries.jsonl",
        "data/test.jsonl",
    }
    fetched = MtebTask(name="own", mteb="NFCorpus")
    other = MtebTask(name="own", mteb="SciFact")
    assert len(fetched.identity()["fetched"]["revision"]) == 40
    identities = [fetched.identity(), other.identity(), tasks(data)[0].identity()]
    assert all(identities.count(identity) == 1 for identity in identities)


def test_wrong_names_and_missing_data_say_what_is_wanted(data: Path, tmp_path: Path) -> None:
    pytest.importorskip("mteb", reason=INSTALL)

    def refused(match: str, **fields: Any) -> None:
        with pytest.raises(ConfigError, match=match):
            MtebTask(name="own", **fields).check()

    refused("Did you mean: 'NFCorpus'", mteb="NFCorpu")
    refused("split dev, want one of test", mteb="NFCorpus", split="dev")
    refused("subset is missing, want one of .*english", mteb="PublicHealthQA")
    refused("no single task on texts", mteb="CQADupstackRetrieval")
    missing = MtebTask(name="own", mteb="NFCorpus", data=tmp_path / "none")
    assert "want a copy of mteb/nfcorpus" in missing.check()
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="mteb cannot load .*empty.*hf download mteb/nfcorpus"):
        MtebTask(name="own", mteb="NFCorpus", data=tmp_path / "empty").score(RandomVectors())


def test_without_mteb_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mteb", None)
    with pytest.raises(ConfigError, match=r"pip install 'raybio\[mteb\]'"):
        MtebTask(name="own", mteb="a task that was never read").check()


def test_values_whose_mean_is_another_score_are_no_units() -> None:
    found = scores_of_units(0.5, {"b": 0.25, "a": 0.75}, {"f1": 0.1}, ["queries: cut"])
    assert (found.unit_ids, found.numerator_U.tolist()) == (("a", "b"), [0.75, 0.25])
    assert (found.score, found.others, found.remarks) == (0.5, {"f1": 0.1}, ("queries: cut",))
    for values in ({"a": 0.25, "b": 0.7}, {}):
        found = scores_of_units(0.5, values, {}, [])
        assert (found.score, found.unit_ids) == (0.5, ())
        assert "no interval" in found.remarks[0]
