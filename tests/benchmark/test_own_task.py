"""A task of a user's own: the example of docs/benchmark.md as it stands there, errors, workers."""

import json
import pickle
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from raybio.benchmark.models import BenchmarkModel, read_models
from raybio.benchmark.report import BenchmarkReport
from raybio.benchmark.run import run_benchmark
from raybio.benchmark.suite import Suite, read_suite
from raybio.cli.main import app
from raybio.core.errors import ConfigError
from raybio.methods import METHODS
from raybio.store.store import Store
from tests.documentation import SHOWN, write_shown_files
from tests.methods.conformance_cases import tiny_config
from tests.paths import ROOT

PAGE = (ROOT / "docs" / "benchmark.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("### Scored in a way of your own")[2].partition("\n## ")[0]


@pytest.fixture(scope="module")
def proteins(tiny_store: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The export of a tiny encoder of proteins."""
    built = METHODS["sppt_protein"].build(tiny_config("sppt_protein"), tiny_store.path)
    return Path(built.export(tmp_path_factory.mktemp("model") / "first", {}))


@pytest.fixture
def example(tmp_path: Path) -> Path:
    """The folder with the files of the page."""
    write_shown_files(tmp_path, SECTION)
    return tmp_path


def test_every_suite_of_the_page_is_read_and_says_what_data_it_wants(
    example: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(example)
    suites = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert len(suites) >= 4
    for content in suites:
        Path("suite.yaml").write_text(content)
        suite = read_suite("suite.yaml", None)
        assert len(suite.tasks) == content.count("{task: ")
        for task in suite.tasks:
            is_shown_whole = "optima" in task.name
            # What mteb downloads is no file.
            assert is_shown_whole or "mteb: " in content or task.check(), task.name


def test_the_example_of_the_page_runs_as_it_stands_there(
    example: Path, proteins: Path, empty_database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(example)
    shutil.copytree(proteins, "runs/first")
    shutil.copy(empty_database, example)
    (command,) = re.findall(r"^```sh\nraybio (.*?)\n```$", SECTION, re.MULTILINE | re.DOTALL)
    result = CliRunner().invoke(app, [*shlex.split(command), "--no-ray"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    report = json.loads((example / "report" / "report.json").read_text())
    assert report["title"] == "Optima of our enzymes"
    (model, _) = read_models([str(proteins), "random"], example)
    assert isinstance(model, BenchmarkModel)
    lines = (example / "optima.csv").read_text().splitlines()[1:]
    rows = [line.split(",") for line in lines]
    train = [(name, float(celsius)) for name, celsius, split in rows if split == "train"]
    test = [(name, float(celsius)) for name, celsius, split in rows if split == "test"]
    for task, degrees in zip(report["tasks"], (5, 2), strict=True):
        right = []
        for sequence, celsius in test:
            own_D = model.embed([sequence])[0]
            distances = [np.linalg.norm(model.embed([name])[0] - own_D) for name, _ in train]
            right.append(abs(train[int(np.argmin(distances))][1] - celsius) <= degrees)
        value_by_row = {row["name"]: row["value"] for row in task["rows"]}
        assert value_by_row.keys() == {"first", "random", "mean optimum"}
        assert value_by_row["first"] == pytest.approx(np.mean(right))
        # The mean of training is 57.5 °C, and one protein has 55 °C.
        assert value_by_row["mean optimum"] == pytest.approx(1 / 3 if degrees == 5 else 0)
        assert task["measure"] == f"share within {degrees} °C"
        assert (task["family"], task["reads"]) == ("Own tasks", "proteins")


def test_a_task_travels_to_workers_that_lack_its_file(example: Path, proteins: Path) -> None:
    (task, _) = read_suite(str(example / "optima.yaml"), None).tasks
    sent = pickle.dumps(task)
    (example / "optima.py").unlink()
    # As in another process, where the file was never run.
    del sys.modules[type(task).__module__]
    received = pickle.loads(sent)
    assert type(received) is not type(task)
    assert received.to_mapping() == task.to_mapping()
    assert received.identity() == task.identity()
    (model,) = read_models([str(proteins)], example)
    np.testing.assert_array_equal(received.score(model).numerator_U, task.score(model).numerator_U)
    # Once more in this process: the same class.
    assert type(pickle.loads(sent)) is type(received)


@pytest.mark.nightly
def test_workers_of_a_cluster_score_a_task_whose_file_they_lack(
    ray_cluster: None, example: Path, proteins: Path
) -> None:
    suite = read_suite(str(example / "optima.yaml"), None)
    (example / "optima.py").unlink()
    models = read_models([str(proteins)], example / "report")
    report = run_benchmark(models, suite, example / "report", with_ray=True)
    for task in report.tasks:
        assert not task.skipped
        assert {row.name for row in task.rows} == {"first", "random", "mean optimum"}


def write_suite(folder: Path, **settings: Any) -> str:
    path = folder / "own.yaml"
    path.write_text(yaml.safe_dump({"tasks": [{"name": "own", **settings}]}))
    return str(path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"task": "optimum.py:Optima"}, r"optimum\.py: cannot be read \(No such file"),
        ({"task": "optima.py:Optimum"}, "no class 'Optimum'; its classes: Optima. Did you mean"),
        ({"task": "optima.py"}, "or a class of your own as PYTHON_FILE:CLASS"),
        ({"task": "optima.py:"}, "no class ''; its classes: Optima"),
        ({"task": "optima.py:Path"}, "Path is no subclass of BenchmarkTask that this file defines"),
        ({"task": "optima.py:BenchmarkTask"}, "is no subclass of BenchmarkTask that this file"),
        ({"task": "optima.py:Optima", "tabel": "x"}, "task own: .*Did you mean 'table'"),
        ({"task": "optima.py:Optima"}, "task own: .*table"),
        ({"task": "optima.py:Optima", "table": "t", "degrees": "x"}, "task own: .*degrees"),
    ],
)
def test_errors_say_what_is_wrong_with_a_task(
    example: Path, settings: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        read_suite(write_suite(example, **settings), None)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("import csv", "import csvv", r"optima\.py, line 3: ModuleNotFoundError: .*csvv"),
        ("    def facts(self):", "    def facts(self)", r"line 25: SyntaxError: expected ':'$"),
        ("    table: Path", "    table: Path = 1 / 0", r"line 14: ZeroDivisionError"),
        ("def rivals", "def rival", "Optima has to define rivals"),
    ],
)
def test_errors_in_a_file_name_its_line(example: Path, old: str, new: str, message: str) -> None:
    file = example / "optima.py"
    content = file.read_text(encoding="utf-8")
    assert old in content
    file.write_text(content.replace(old, new), encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        read_suite(str(example / "optima.yaml"), None)


def test_missing_data_skips_a_task_and_says_which(example: Path, proteins: Path) -> None:
    (example / "optima.csv").rename(example / "moved.csv")
    out = example / "report"
    with pytest.raises(ConfigError, match=r"optima\.csv does not exist: want the data of optima"):
        run_benchmark(
            read_models([str(proteins)], out),
            read_suite(str(example / "optima.yaml"), None),
            out,
            with_ray=False,
        )


def test_a_subclass_of_a_shipped_task_inherits_its_settings(tmp_path: Path, proteins: Path) -> None:
    (tmp_path / "own.py").write_text(
        "from raybio.benchmark.tasks.labels import LabelsTask\n\n\n"
        "class Folds(LabelsTask):\n"
        "    @property\n"
        "    def title(self):\n"
        "        return f'Our {self.name}'\n"
    )
    suite = read_suite(
        write_suite(tmp_path, task="own.py:Folds", labels="remote_homology", demo=True), None
    )
    (task,) = suite.tasks
    assert task.title == "Our own"
    assert set(task.path_fields()) == {"data", "store"}
    other = read_suite(
        write_suite(tmp_path, task="labels", labels="text_classification", demo=True), None
    )
    with pytest.raises(ConfigError, match="simulated folds of proteins, want labels: remote_hom"):
        other.tasks[0].check()
    with pytest.raises(ConfigError, match="LabelsTask is no subclass .* that this file defines"):
        read_suite(write_suite(tmp_path, task="own.py:LabelsTask", labels="x"), None)
    assert isinstance(suite, Suite)


OWN = """
from pathlib import Path

import numpy as np

from raybio.benchmark.task import BenchmarkTask, TaskFacts, TaskScores


class Own(BenchmarkTask):
    data: Path
    scored: str

    @property
    def measure(self):
        return "share"

    def facts(self):
        return TaskFacts("protocol", "size", chance={"share": float("nan"), "x": np.float32(0.5)})

    def score(self, model):
        right = np.array([1, 0, self.name == "first"])
        if self.scored == "further":
            return TaskScores(
                tuple(np.arange(3)), [1, 0, 1], [1, 1, 1], others={"a": None, "b": np.float32(0.5)}
            )
        return TaskScores.of_means(range(2 if self.scored == "sentences" else 3), right)

    def rivals(self, model):
        return {"random": self.score(None)}
"""


def own_report(folder: Path, tasks: list[dict[str, str]]) -> BenchmarkReport:
    """Write and run a suite of the class ``Own``."""
    (folder / "own.py").write_text(OWN)
    (folder / "data").mkdir(exist_ok=True)
    entries = [{"task": "own.py:Own", "data": "data", **each} for each in tasks]
    suite = folder / "own.yaml"
    suite.write_text(yaml.safe_dump({"tasks": entries}))
    out = folder / "report"
    models = read_models(["random"], out)
    return run_benchmark(models, read_suite(str(suite), None), out, with_ray=False)


def test_tasks_of_one_class_that_reads_its_name_have_results_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    report = own_report(
        tmp_path, [{"name": name, "scored": "name"} for name in ("first", "second")]
    )
    assert [task.rows[0].value for task in report.tasks] == pytest.approx([2 / 3, 1 / 3])


def test_scores_that_fit_no_units_are_a_reason_and_end_nothing(tmp_path: Path) -> None:
    tasks = [{"name": name, "scored": name} for name in ("sentences", "further")]
    for _ in range(2):  # also where the results are read back
        wrong, further = own_report(tmp_path, tasks).tasks
        (reason,) = {*wrong.skipped.values()}
        assert "TaskScores of 2 unit_ids: got numerators (3,) and denominators (3,)" in reason
        assert further.chance == {"x": 0.5}
        (row,) = further.rows
        assert row.value == pytest.approx(2 / 3)
        assert row.others == {"a": None, "b": 0.5}


def test_a_folder_is_digested_with_all_files_and_several_paths_are_refused(tmp_path: Path) -> None:
    inner = tmp_path / "data" / "inner"
    inner.mkdir(parents=True)
    (inner / "a.txt").write_text("a")
    task = [{"name": "own", "scored": "name"}]
    assert own_report(tmp_path, task).tasks[0].skipped == {}
    (own,) = read_suite(str(tmp_path / "own.yaml"), None).tasks
    assert own.files() == {"data/inner/a.txt": inner / "a.txt"}
    before = own.identity()
    (inner / "a.txt").write_text("b")
    assert own.identity() != before
    # What file managers add, and what reading a store leaves in it.
    before = own.identity()
    for name in ("inner/.DS_Store", ".cache/a.txt", "store/derived/features.lock"):
        (inner.parent / name).parent.mkdir(parents=True, exist_ok=True)
        (inner.parent / name).write_text("x")
    (inner.parent / "store" / "manifest.json").write_text("{}")
    before = own.identity()
    (inner / ".DS_Store").write_text("y")
    (inner.parent / "store/derived/features.lock").write_text("y")
    assert own.identity() == before
    assert own.files() == {
        "data/inner/a.txt": inner / "a.txt",
        "data/store/manifest.json": inner.parent / "store" / "manifest.json",
    }
    (tmp_path / "own.py").write_text(OWN.replace("data: Path", "data: list[Path]"))
    with pytest.raises(
        ConfigError, match=r"Own\.data has several paths; want a field of type Path"
    ):
        read_suite(str(tmp_path / "own.yaml"), None)


def test_a_suite_that_is_no_utf_8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_bytes("title: Protéines".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"--suite .*own\.yaml: is no UTF-8"):
        read_suite(str(path), None)
    path.write_text("tasks: []\n1: x\nx: y\n")
    with pytest.raises(ConfigError, match="unknown key 1; want title and tasks"):
        read_suite(str(path), None)


def test_an_edited_task_is_scored_again_and_a_moved_one_is_not(
    example: Path, proteins: Path, tmp_path: Path
) -> None:
    out = tmp_path / "report"

    def value_of(folder: Path) -> float | None:
        models = read_models([str(proteins)], out)
        suite = read_suite(str(folder / "optima.yaml"), None)
        report = run_benchmark(models, suite, out, with_ray=False)
        return next(row.value for row in report.tasks[0].rows if row.name == "mean optimum")

    assert value_of(example) == pytest.approx(1 / 3)
    moved = tmp_path / "moved"
    moved.mkdir()
    for name, _ in SHOWN.findall(SECTION):
        shutil.copy(example / name, moved)
    log = (out / "log.txt").read_text()
    assert value_of(moved) == pytest.approx(1 / 3)
    assert "evaluating" not in (out / "log.txt").read_text()[len(log) :]
    file = moved / "optima.py"
    content = file.read_text(encoding="utf-8")
    file.write_text(content.replace("<= self.degrees", ">= 0"), encoding="utf-8")
    assert value_of(moved) == 1
