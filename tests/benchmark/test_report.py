"""What a benchmark makes of given scores and files: names of rows, tests, rivals, identities."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from raybio.benchmark import report as report_module
from raybio.benchmark.models import BenchmarkModel, read_models, seed_groups
from raybio.benchmark.page import write_page
from raybio.benchmark.report import (
    BenchmarkReport,
    CostReport,
    ModelReport,
    PairReport,
    RowReport,
    TaskReport,
    TaskResults,
    benchmark_report,
    best_rival,
    card_table,
    changes,
    write_report,
)
from raybio.benchmark.statistics import interval_of_seeds, mean_of_tasks, score_interval
from raybio.benchmark.task import BenchmarkTask, TaskFacts, TaskScores
from raybio.benchmark.tasks.entities_relations import EntitiesRelationsTask
from raybio.benchmark.tasks.labels import LabelsTask
from raybio.benchmark.tasks.links import LinksTask
from raybio.benchmark.tasks.medlama import FactProbeTask
from raybio.benchmark.tasks.relation_probe import RelationProbeTask
from raybio.benchmark.tasks.retrieval import BeirRetrievalTask
from raybio.core.errors import ConfigError
from raybio.core.records import write_record
from raybio.core.unit_counts import UnitCounts
from raybio.methods.mtb_mccl.documents.store import DocumentStore
from raybio.methods.relation_graphs.demo import WordsConfig, write_words
from raybio.methods.relation_graphs.inference.embedding_model import WordEmbedder
from raybio.methods.relation_graphs.store import WordStore
from raybio.methods.sppt.articles.store import LinkedTextStore
from raybio.methods.sppt.downstream.scores import class_scores
from raybio.methods.sppt.downstream.store import TaskStore
from raybio.ops.significance import Interval, RunGroup, hierarchical_mean
from raybio.runtime.cluster.resources import Node, fit_trials
from raybio.runtime.run.tasks import reservation
from tests.paths import ROOT


def retrieval(name: str) -> BeirRetrievalTask:
    return BeirRetrievalTask(name=name, corpus=Path("c"), queries=Path("q"), qrels=Path("t"))


def scores(level: float, seed: int = 0) -> TaskScores:
    noise_U = np.random.default_rng(seed).normal(size=50)
    return TaskScores.of_means(range(50), level + 0.01 * noise_U)


def results(
    task: BenchmarkTask, models: dict[str, TaskScores], rivals: dict[str, TaskScores]
) -> TaskResults:
    found = TaskResults(task)
    found.by_model.update(models)
    found.rivals = rivals
    return found


def report_of(of_tasks: list[TaskResults], names: list[str]) -> BenchmarkReport:
    return benchmark_report("suite", "Suite", of_tasks, names, 0)


def test_holm_adjusts_within_each_task() -> None:
    """Over all tests of a page with many models, the least p of 10,000 draws is significant nowhere."""
    tasks = []
    for number in range(3):
        models = {"first": scores(0.5), "second": scores(0.5, seed=1), "third": scores(0.6)}
        tasks.append(results(retrieval(f"task {number}"), models, {}))
    for task in report_of(tasks, ["first", "second", "third"]).tasks:
        p_by_rank = sorted(test.p for test in task.tests)
        assert len(p_by_rank) == 3
        assert min(test.p_holm for test in task.tests) == pytest.approx(3 * p_by_rank[0])


def test_a_rival_that_is_named_on_the_command_line_still_counts_as_one(tmp_path: Path) -> None:
    rivals = {"TF-IDF": scores(0.8), "BM25": scores(0.2)}
    report = report_of(
        [results(retrieval("own"), {"encoder": scores(0.5)}, rivals)], ["encoder", "tfidf"]
    )
    task = report.tasks[0]
    assert {row.name: row.is_rival for row in task.rows} == {
        "tfidf": True,
        "encoder": False,
        "BM25": True,
    }
    assert report.models[0].num_rival_higher == 1
    assert "| tfidf 0.8" in card_table(report, "encoder")
    write_page(tmp_path / "report.html", report)
    page = (tmp_path / "report.html").read_text()
    assert "tfidf, without training, is higher than encoder" in page


@pytest.mark.parametrize(
    ("before", "after", "word"),
    [
        (0.2, 0.5, "gained, below TF-IDF"),
        (0.2, 0.9, "gained"),
        (0.5, 0.2, "lost"),
        (0.5, 0.5, "no significant change"),
    ],
)
def test_a_gain_below_a_rival_says_so(before: float, after: float, word: str) -> None:
    models = {"run": scores(after), "initial": scores(before, seed=1)}
    rivals = {"TF-IDF": scores(0.8, seed=2), "BM25": scores(0.3, seed=3)}
    of_task = results(retrieval("own"), models, rivals)
    report = benchmark_report("suite", "Suite", [of_task], ["run", "initial"], 0, with_before=True)
    (change,) = changes(report)
    assert change.word == word


def test_a_rival_that_reads_gold_answers_is_none_to_beat() -> None:
    task = FactProbeTask(name="facts", data=Path("medlama"))
    rivals = {"oracle prior": scores(0.9), "character 2-4-grams": scores(0.1)}
    report = report_of([results(task, {"encoder": scores(0.5)}, rivals)], ["encoder"])
    best = best_rival(report.tasks[0])
    assert best is not None
    assert best.name == "character 2-4-grams"
    assert report.models[0].num_rival_higher == 0


def test_a_number_just_below_zero_has_no_sign() -> None:
    words = [report_module.number(value) for value in (-1e-17, -0.1, None)]
    assert words == ["0.000", "-0.100", "undefined"]


def test_the_mean_of_tasks_is_no_surer_than_they_are() -> None:
    """The same queries twice are no more data."""
    interval = Interval(0.5, 0.4, 0.7)
    assert mean_of_tasks([interval, interval]) == pytest.approx(interval)


def test_the_mean_of_tasks_has_no_interval_where_a_task_has_none() -> None:
    """As tasks of mteb whose measure is of no single units."""
    known = results(retrieval("known"), {"encoder": scores(0.5)}, {})
    unknown = results(retrieval("unknown"), {"encoder": TaskScores.of_means([], [], value=0.7)}, {})
    for tasks, mean in (([unknown], 0.7), ([known, unknown], 0.6)):
        (model,) = report_of(tasks, ["encoder"]).models
        assert model.mean == pytest.approx(mean, abs=0.01)
        assert (model.low, model.high) == (None, None)
    assert report_of([known], ["encoder"]).models[0].low is not None


def test_a_model_without_any_row_takes_no_task_from_the_others(tmp_path: Path) -> None:
    models = [
        BenchmarkModel(name, WordEmbedder(str(tmp_path)), name, tmp_path)
        for name in ("good", "diverged")
    ]
    rivals = {"TF-IDF": scores(0.2)}
    tasks = [results(retrieval(name), {"good": scores(0.5)}, rivals) for name in ("a", "b")]
    report = benchmark_report("suite", "Suite", tasks, [*models, "tfidf"], 0)
    found = {model.name: (model.mean, model.num_common_tasks) for model in report.models}
    assert found["good"] == (pytest.approx(0.5, abs=0.01), 2)
    assert found["tfidf"] == (pytest.approx(0.2, abs=0.01), 2)
    assert found["diverged"] == (None, 0)


def test_rivals_alone_have_means_of_the_same_tasks() -> None:
    tasks = [
        results(retrieval("a"), {}, {"TF-IDF": scores(0.2), "random": scores(0.1)}),
        results(retrieval("b"), {}, {"TF-IDF": scores(0.9)}),
    ]
    for model in report_of(tasks, ["tfidf", "random"]).models:
        assert model.num_common_tasks == 1
        assert model.mean is not None
        assert model.mean < 0.3


def test_models_without_a_mean_are_last_on_the_page(tmp_path: Path) -> None:
    mean_by_name = {"bad": -0.2, "none": None, "good": 0.9}
    found = results(retrieval("own"), {name: scores(0.5) for name in mean_by_name}, {})
    report = report_of([found], list(mean_by_name))
    models = [
        model.model_copy(update={"mean": mean_by_name[model.name]}) for model in report.models
    ]
    report = report.model_copy(update={"models": models})
    write_page(tmp_path / "report.html", report)
    leaderboard = (tmp_path / "report.html").read_text().partition("<h2>Models</h2>")[2]
    places = [leaderboard.index(f"<b>{name}</b>") for name in ("good", "bad", "none")]
    assert places == sorted(places)


def test_a_model_with_the_name_of_a_rivals_row_is_refused(tmp_path: Path) -> None:
    for name in ("degree", "BM25", "random", "chance", "rivals"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        with pytest.raises(ConfigError, match=f"{name} is the name of another row"):
            read_models([str(folder)], tmp_path)
    found = results(retrieval("own"), {"look-up": scores(0.5)}, {"look-up": scores(0.6)})
    with pytest.raises(ConfigError, match="MODEL look-up: is the name of another row of own"):
        found.rows(["look-up"])


def test_scores_depend_on_what_each_file_is_to_a_task(tmp_path: Path) -> None:
    first, second, third = (tmp_path / name for name in "abc")
    for path in (first, second, third):
        path.write_text(path.name)

    def probe(train: Path, dev: Path, test: Path) -> BenchmarkTask:
        return RelationProbeTask(name="own", train=train, dev=dev, test=test)

    def words(**files: Path) -> BenchmarkTask:
        return EntitiesRelationsTask(name="own", sentences=first, **files)

    identities = [
        probe(first, second, third).identity(),
        probe(first, third, second).identity(),
        words(dev=second, test=third).identity(),
        words(dev=third, test=second).identity(),
        words(dev=second).identity(),
        words(test=second).identity(),
    ]
    for number, identity in enumerate(identities):
        assert identity not in identities[:number]
    # Not on where they lie.
    moved = tmp_path / "moved"
    moved.mkdir()
    copies = [Path(shutil.copy(path, moved)) for path in (first, second, third)]
    assert probe(*copies).identity() == identities[0]
    data = tmp_path / "data"
    (data / "below").mkdir(parents=True)
    for name, text in (("x.csv", "1"), ("below/y.csv", "2")):
        (data / name).write_text(text)
    before = FactProbeTask(name="own", data=data).identity()
    (data / "x.csv").write_text("2")
    (data / "below" / "y.csv").write_text("1")
    assert FactProbeTask(name="own", data=data).identity() != before


def test_files_that_change_roles_are_prepared_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYBIO_STORES", str(tmp_path / "stores"))
    paths = []
    for number in (20, 10, 14):
        config = WordsConfig(num_sentences=number, num_drugs=6, num_effects=6)
        sentences, _ = write_words(tmp_path / str(number), config)
        paths.append(Path(shutil.copy(sentences, tmp_path / f"{number}.json.gz")))
    train, dev, test = paths

    def num_of_splits(dev: Path, test: Path) -> tuple[int, int]:
        task = EntitiesRelationsTask(name="own", sentences=train, dev=dev, test=test)
        return len(task._fold.dev), len(task._fold.test)

    expected = num_of_splits(dev, test)
    assert expected[0] != expected[1]
    assert num_of_splits(test, dev) == expected[::-1]


def test_links_say_how_many_can_be_looked_up(tiny_citations: LinkedTextStore) -> None:
    counts = tiny_citations.manifest["leakage"]
    leakage = LinksTask(name="links", store=Path(str(tiny_citations.path))).facts().leakage
    assert leakage.startswith(f"Of {counts['links']:,} held-out links, {counts['with_twin']:,} ")
    assert f"of {counts['c1']:,} (C1)" in leakage


def test_each_task_says_what_its_manifest_says_of_leakage(
    tiny_documents: DocumentStore, tiny_words: WordStore, tiny_task: TaskStore, tmp_path: Path
) -> None:
    documents = RelationProbeTask(name="own", store=tiny_documents.path).facts().leakage
    counts = tiny_documents.manifest["leakage"]
    assert documents == (
        f"{counts['test_documents_in_training']:,} test documents are training documents too. "
        f"{counts['test_relations_in_training']:,} test relations are of entities that are related "
        "in training, by any relation."
    )
    words = EntitiesRelationsTask(name="own", store=tiny_words.path).facts().leakage
    counts = tiny_words.manifest["leakage"]
    assert f"{counts['test_sentences_in_training']:,} test sentences are training" in words
    assert f"{counts['dev_sentences_in_test']:,} validation sentences are test" in words
    labels = LabelsTask(name="own", labels=tiny_task.task, store=tiny_task.path).facts().leakage
    num_test = len(tiny_task.split_rows("test"))
    num_known = tiny_task.manifest["leakage"]["test_rows_in_training"]
    assert labels == f"{num_known:,} of {num_test:,} test rows are training rows too."


def test_a_task_without_known_leakage_says_so(tmp_path: Path) -> None:
    found = results(retrieval("own"), {"encoder": scores(0.5)}, {})
    found.facts = TaskFacts("A protocol.", "2 rows")
    report = report_of([found], ["encoder"])
    assert report.tasks[0].leakage == "Not measured."
    write_page(tmp_path / "report.html", report)
    assert "<b>Leakage.</b> Not measured." in (tmp_path / "report.html").read_text()


def test_rivals_without_an_encoder_leave_the_gpu_to_others() -> None:
    reserved = fit_trials([Node(8, 2)], workers=1, at_most=6, least_cpus=1.0)
    assert reservation(reserved, needs_gpu=True)["num_gpus"] == 1
    assert reservation(reserved, needs_gpu=False) == {"num_cpus": 1, "num_gpus": 0}
    without = fit_trials([Node(8)], workers=1, at_most=4, least_cpus=1.0)
    assert reservation(without, needs_gpu=False) == reservation(without, needs_gpu=True)


def test_the_scale_of_dots_has_the_chance_of_the_score(tmp_path: Path) -> None:
    """That of a further measure may be far away."""
    found = results(retrieval("own"), {"encoder": scores(0.5)}, {})
    found.facts = TaskFacts("", "", chance={"further": 50.0, found.task.measure: 0.25})
    write_page(tmp_path / "report.html", report_of([found], ["encoder"]))
    page = (tmp_path / "report.html").read_text()
    (dot,) = re.findall(r'class="dot" style="left:([\d.]+)%', page)
    (chance,) = re.findall(r'class="chance" style="left:([\d.]+)%', page)
    assert float(dot) > 95
    assert float(chance) == pytest.approx(float(dot) / 2, rel=0.02)


def test_intervals_of_linearized_scores_end_at_the_limits_of_the_measure() -> None:
    gold_N = np.repeat([0, 1, 2], [20, 20, 2])
    predicted_N = gold_N.copy()
    predicted_N[-1] = 0
    nearly = TaskScores.of_means(range(42), class_scores(predicted_N, gold_N)["macro_f1"])
    wrong = TaskScores.of_means(range(42), class_scores((gold_N + 1) % 3, gold_N)["macro_f1"])
    assert score_interval(nearly, 0).high > 1
    task = LabelsTask(name="own", labels="text_classification", data=Path("d"))
    report = report_of([results(task, {"nearly": nearly, "wrong": wrong}, {})], ["nearly", "wrong"])
    (row, other) = report.tasks[0].rows
    assert row.value is not None and row.low is not None
    assert row.low < row.value < 1 == row.high
    assert other.low == 0
    (test,) = report.tasks[0].tests
    assert 0 < test.low < test.difference < test.high <= 1
    numbers = LabelsTask(name="own", labels="text_regression", data=Path("d"))
    assert numbers.limits == (-1, 1)
    # Of a measure without known limits, nothing is cut.
    assert BenchmarkTask.limits.fget(numbers) == (-np.inf, np.inf)


def test_runs_that_differ_in_their_seed_have_a_row_with_an_interval_over_seeds() -> None:
    levels = {"a": 0.4, "b": 0.5, "c": 0.9}
    models = {name: scores(level, seed=1) for name, level in levels.items()}
    found = results(retrieval("own"), {**models, "other": scores(0.5)}, {})
    groups = {"3 seeds of a": ["a", "b", "c"], "3 seeds of d": ["d", "e", "f"]}
    names = [*levels, "other"]
    models_in_order = [*names, *groups["3 seeds of d"]]
    report = benchmark_report("suite", "Suite", [found], models_in_order, 0, seed_groups=groups)
    row_by_name = {row.name: row for row in report.tasks[0].rows}
    assert row_by_name.keys() == {*names, "3 seeds of a"}
    row = row_by_name["3 seeds of a"]
    runs = [UnitCounts(models[name].numerator_U) for name in levels]
    expected = hierarchical_mean(RunGroup(runs), np.random.default_rng(0)).difference
    assert expected.high > 1  # Student's t passes the limits of the measure
    assert (row.value, row.low, row.high) == pytest.approx((expected.value, expected.low, 1))
    assert row.low is not None and row.high is not None
    # Runs differ far more than units of one run.
    own = row_by_name["b"]
    assert own.low is not None and own.high is not None
    assert row.high - row.low > 10 * (own.high - own.low)
    assert row.remarks == ["mean of a, b, c; interval over seeds and units"]
    tested = {name for test in report.tasks[0].tests for name in (test.first, test.second)}
    assert tested == set(names)
    # A group without any row stands among the models, as a model without one does.
    *of_models, group, without = report.models
    assert [model.name for model in of_models] == models_in_order
    assert (group.name, group.seeds, group.num_tasks) == ("3 seeds of a", ["a", "b", "c"], 1)
    assert (group.mean, group.low, group.high) == (row.value, row.low, row.high)
    assert (without.name, without.mean, without.num_tasks) == ("3 seeds of d", None, 0)


@pytest.mark.parametrize(
    "task", [FactProbeTask(name="own", data=Path("medlama")), retrieval("own")]
)
def test_intervals_over_seeds_end_at_the_limits_of_shares(task: BenchmarkTask) -> None:
    hits_U = np.arange(240) % 5 == 0
    for of_runs in ((0.025, 0.196, 0.042), (0.988, 0.775, 0.963)):
        models = {
            name: TaskScores.of_means(range(240), level + 0.02 * (hits_U - 0.2))
            for name, level in zip("abc", of_runs, strict=True)
        }
        groups = {"3 seeds of a": ["a", "b", "c"]}
        found = [results(task, models, {})]
        report = benchmark_report("suite", "Suite", found, list(models), 0, seed_groups=groups)
        (row,) = [row for row in report.tasks[0].rows if row.name == "3 seeds of a"]
        assert row.low is not None and row.value is not None and row.high is not None
        assert 0 <= row.low < row.value < row.high <= 1
        assert {row.low, row.high} & {0, 1}
        assert (report.models[-1].low, report.models[-1].high) == (row.low, row.high)


def test_an_interval_over_seeds_is_of_ratios_and_samples_too() -> None:
    rng = np.random.default_rng(0)
    runs = [
        TaskScores(tuple("abcd"), rng.random(4), rng.uniform(1, 2, 4), value=0.5 + 0.1 * number)
        for number in range(3)
    ]
    interval = interval_of_seeds(runs, (0.0, 0.7))
    assert interval.value == pytest.approx(0.6)
    assert interval.low < 0.6 < interval.high <= 0.7
    other = TaskScores.of_means("abce", [0.5] * 4)
    assert np.isnan(interval_of_seeds([*runs, other]).low)


def test_runs_of_other_settings_or_of_one_seed_are_no_group(tmp_path: Path) -> None:
    models = []
    for name, config in (
        ("a", {"seed": 0, "size": 1}),
        ("b", {"seed": 1, "size": 1}),
        ("c", {"seed": 2, "size": 1}),
        ("again", {"seed": 2, "size": 1}),
        ("larger", {"seed": 3, "size": 2}),
        *(
            (f"epochs-{seed}", {"seed": seed, "schedule": {"max_epochs": 2, "max_steps": steps}})
            for seed, steps in enumerate((127, 127, 123))
        ),
        *((f"set-{each}", {"seed": each, "plan": {"sentence_set": each}}) for each in range(3)),
        ("none", None),
    ):
        folder = tmp_path / name / "export"
        folder.mkdir(parents=True)
        if config is not None:
            record = {"method": "m", "data_digest": "d", "config": config}
            write_record(tmp_path / name / "run.json", "run", record)
        models.append(BenchmarkModel(name, WordEmbedder(str(folder)), name, tmp_path))
    assert seed_groups([*models, "random"]) == {
        "3 seeds of a": ["a", "b", "c"],
        # Each seed draws its own rows, so an epoch has its own number of steps.
        "3 seeds of epochs-0": ["epochs-0", "epochs-1", "epochs-2"],
    }
    assert seed_groups(models[1:4]) == {}


def test_runs_that_name_a_distance_by_its_former_word_are_of_the_same_group(tmp_path: Path) -> None:
    models = []
    for seed, metric in enumerate(("l2", "l2", "euclidean", "cosine")):
        name = f"{metric}-{seed}"
        folder = tmp_path / name / "export"
        folder.mkdir(parents=True)
        config = {"seed": seed, "evaluation": {"metric": metric}}
        record = {"method": "contrastive_probe", "data_digest": "d", "config": config}
        write_record(tmp_path / name / "run.json", "run", record)
        models.append(BenchmarkModel(name, WordEmbedder(str(folder)), name, tmp_path))
    assert seed_groups(models) == {"3 seeds of l2-0": ["l2-0", "l2-1", "euclidean-2"]}


def test_the_interval_of_a_sample_of_units_ends_at_the_limits(tmp_path: Path) -> None:
    sample = TaskScores.of_means(range(4), [1.0, 1.0, 0.0, 0.0], value=0.9)
    assert score_interval(sample, 0).high > 1
    assert score_interval(sample, 0, (0.0, 1.0)).high == 1
    undefined = TaskScores.of_means(range(4), [np.nan] * 4)
    assert np.isnan(score_interval(undefined, 0, (0.0, 1.0))[1:]).all()


def test_the_page_of_the_docs_names_every_key_of_the_report(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "benchmark.md").read_text(encoding="utf-8")
    section = page.partition("### Keys of report.json")[2].partition("\n## ")[0]
    for part in (BenchmarkReport, ModelReport, CostReport, TaskReport, RowReport, PairReport):
        for key in part.model_fields:
            assert f"`{key}`" in section, (part, key)
    report = report_of([results(retrieval("own"), {"encoder": scores(0.5)}, {})], ["encoder"])
    write_report(report, tmp_path)
    record = json.loads((tmp_path / "report.json").read_text())
    assert {"format", "version", "checksum"} == record.keys() - BenchmarkReport.model_fields.keys()
    header = (tmp_path / "results.csv").read_text().splitlines()[0]
    assert f"`{header.replace(',', ', ')}`" in page
