"""A setting or a method with a new name: what was recorded under the former one is read and continued."""

import shutil
from copy import copy
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from mlflow import MlflowClient
from pydantic import create_model
from typer.testing import CliRunner

from raybio.cli.lazy import Entry, LazyGroup, chosen_app, lazy_app
from raybio.cli.train import Trainings
from raybio.cli.training_command import training_app
from raybio.core.config import FORMERLY, BaseConfig, name_digits
from raybio.core.interfaces import System
from raybio.core.records import read_record
from raybio.methods import METHODS
from raybio.methods.sppt.config import ObjectiveConfig
from raybio.methods.sppt.proteins.config import Config
from raybio.runtime.compare.compare import compare_runs
from raybio.runtime.compare.runs import given_runs
from raybio.runtime.compare.variations import Variation, variants_of
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.options import RunOptions, resolve
from raybio.training.method import Method
from tests import golden_records
from tests.golden_records import FOLDERS, PROTEIN_METHOD
from tests.runtime.tune.sweep_folder import space_of

FORMER = "objective.lambda_spml"
PRESENT = "objective.graph_weight"

every_version = pytest.mark.parametrize("golden", FOLDERS, ids=lambda golden: golden.name)


class ReadByFormerName(BaseConfig):
    """The losses read the setting by its former name."""

    @property
    def lambda_spml(self) -> float:
        """The setting."""
        return float(self.graph_weight)  # type: ignore[attr-defined]

    def multi_similarity(self) -> dict[str, float]:
        """Return what the objective returns."""
        return ObjectiveConfig.multi_similarity(self)  # type: ignore[arg-type]


def renamed_config() -> type[Config]:
    """Return the settings of proteins with another name of one."""
    settings: dict[str, Any] = {}
    for name, info in ObjectiveConfig.model_fields.items():
        settings[name] = (info.annotation, copy(info))
    annotation, info = settings.pop("lambda_spml")
    info.json_schema_extra = {FORMERLY: ["lambda_spml"]}
    settings["graph_weight"] = (annotation, info)
    objective = create_model("Objective", __base__=ReadByFormerName, **settings)
    return create_model("RenamedConfig", __base__=Config, objective=(objective, objective()))


@dataclass(frozen=True, kw_only=True)
class RenamedMethod(Method):
    """A method whose system is named as it is."""

    def build(self, config: Any, store: Any) -> System:
        """Wire the method over the store at a path."""
        return replace(super().build(config, store), name=self.name)


@pytest.fixture
def renamed_method(monkeypatch: pytest.MonkeyPatch) -> str:
    """Give the method of proteins another name; return it."""
    method = METHODS[PROTEIN_METHOD]
    values = {field.name: getattr(method, field.name) for field in fields(method)}
    values |= {"name": "graph_protein", "formerly": (PROTEIN_METHOD, "protein_graph")}
    monkeypatch.delitem(METHODS, PROTEIN_METHOD)
    monkeypatch.setitem(METHODS, "graph_protein", RenamedMethod(**values))
    return "graph_protein"


@pytest.fixture
def renamed(monkeypatch: pytest.MonkeyPatch) -> type[Config]:
    """Give a setting of the method of proteins another name; return the class of its settings."""
    model = renamed_config()
    method = METHODS[PROTEIN_METHOD]
    demo = model.from_mapping(method.demo.to_mapping())
    monkeypatch.setitem(METHODS, PROTEIN_METHOD, replace(method, config=model, demo=demo))
    return model


def spec(golden: Path, tmp_path: Path, method: str = PROTEIN_METHOD, **given: Any) -> Any:
    """Return the run that options describe, over the recorded store."""
    store = golden_records.store_of(PROTEIN_METHOD, golden)
    return resolve(method, RunOptions(store=store, runs=tmp_path, **given))


@every_version
def test_a_run_of_the_former_name_is_finished_and_a_half_trained_one_is_trained_to_its_end(
    golden: Path, renamed: type[Config], tmp_path: Path
) -> None:
    golden_records.check_finished(PROTEIN_METHOD, golden)
    golden_records.check_half(PROTEIN_METHOD, tmp_path, golden)
    identity = read_record(tmp_path / PROTEIN_METHOD / "run.json", "run") or {}
    assert identity["config"]["objective"]["graph_weight"] == 0.5
    assert "lambda_spml" not in identity["config"]["objective"]


@every_version
def test_a_sweep_of_the_former_name_is_resumed_and_none_of_its_trials_trains_again(
    golden: Path, renamed: type[Config], empty_database: Path, tmp_path: Path
) -> None:
    shutil.copy(empty_database, tmp_path)
    # The search space has the former name, and so have the records of the trials.
    golden_records.check_sweep(tmp_path, golden)
    table = (tmp_path / "sweeps" / "sweep" / "leaderboard.csv").read_text()
    assert PRESENT in table and FORMER not in table


@every_version
def test_runs_of_the_former_and_the_present_name_are_compared(
    golden: Path, renamed: type[Config], tmp_path: Path
) -> None:
    for name in ("former", "present"):
        shutil.copytree(golden / "finished" / PROTEIN_METHOD, tmp_path / name)
    folder = RunFolder(tmp_path, "present")
    assert (folder.read_identity() or {})["config"]["objective"]["graph_weight"] == 0.5
    # Writes the record anew.
    folder.record_precision("fp32")
    runs = given_runs(["former", "present"], tmp_path)
    assert runs[0].settings == runs[1].settings
    assert runs[0].settings[PRESENT] == 0.5
    assert compare_runs(runs).rows


@every_version
def test_options_and_files_of_the_former_name_make_the_run_that_they_made_before(
    golden: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump({"objective": {"lambda_spml": 0.25}}))
    given: list[dict[str, Any]] = [
        {"settings": (f"{FORMER}=0.25",)},
        {"values": {FORMER: 0.25}},
        {"config": file},
    ]
    before = [spec(golden, tmp_path, **options) for options in given]
    compared = Variation.parse(f"{FORMER}=0,0.25")
    names = [variant.spec.name for variant in variants_of(before[0], [compared])]
    request.getfixturevalue("renamed")
    given.append({"settings": (f"{PRESENT}=0.25",)})
    after = [spec(golden, tmp_path, **options) for options in given]
    assert {run.name for run in after} == {run.name for run in before}
    assert {run.config.objective.graph_weight for run in after} == {0.25}
    assert after[0].explicit == after[1].explicit == {PRESENT}
    assert name_digits(after[0].config) == name_digits(before[0].config)
    for path in (FORMER, PRESENT):
        variants = variants_of(after[0], [Variation.parse(f"{path}=0,0.25")])
        assert [variant.spec.name for variant in variants] == names
        assert [variant.label for variant in variants] == [
            "graph_weight = 0.25",
            "graph_weight = 0",
        ]


def test_every_name_of_a_method_is_that_of_one() -> None:
    names = [name for method in METHODS.values() for name in (method.name, *method.formerly)]
    assert sorted(names) == sorted(set(names))
    assert list(METHODS) == [method.name for method in METHODS.values()]
    former = replace(METHODS[PROTEIN_METHOD], name="graph_protein", formerly=(PROTEIN_METHOD,))
    assert former.has_name("graph_protein") and former.has_name(PROTEIN_METHOD)
    assert not former.has_name("sppt_mag") and not former.has_name(None)


@every_version
def test_a_run_of_a_former_method_is_finished_compared_and_trained_to_its_end(
    golden: Path, renamed_method: str, tmp_path: Path
) -> None:
    golden_records.check_finished(PROTEIN_METHOD, golden)
    golden_records.check_half(PROTEIN_METHOD, tmp_path, golden)
    identity = read_record(tmp_path / PROTEIN_METHOD / "run.json", "run") or {}
    assert identity["method"] == renamed_method
    shutil.copytree(golden / "finished" / PROTEIN_METHOD, tmp_path / "former")
    assert compare_runs(given_runs(["former", PROTEIN_METHOD], tmp_path)).rows


def tracked(folder: Path) -> set[str]:
    """Return the ids of all runs in MLflow's database in a folder."""
    client = MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    return {run.info.run_id for run in client.search_runs(experiments)}


@every_version
def test_a_sweep_of_a_former_method_is_resumed_and_its_mlflow_run_is_found(
    golden: Path,
    empty_database: Path,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    shutil.copy(empty_database, tmp_path)
    golden_records.check_sweep(tmp_path, golden)
    before = tracked(tmp_path)
    assert len(before) == 3
    name = request.getfixturevalue("renamed_method")
    sweep = tmp_path / "sweeps" / "sweep"
    # The recorded sweep does not know the ids of its runs in MLflow.
    shutil.rmtree(sweep)
    golden_records.check_sweep(tmp_path, golden)
    assert tracked(tmp_path) == before
    identity = read_record(sweep / "run.json", "run") or {}
    assert identity["method"] == identity["config"]["space"]["method"] == name


def test_a_method_is_given_by_a_former_name(
    renamed_method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (PROTEIN_METHOD, "protein_graph", renamed_method):
        run = spec(FOLDERS[-1], tmp_path, method=name)
        assert run.method == renamed_method
        # The same command finds the run that it made before.
        assert run.name.startswith(f"{PROTEIN_METHOD}-")
        assert space_of(tmp_path, method=name).method == renamed_method


def test_a_command_of_a_former_name_is_that_of_the_method_and_is_not_shown() -> None:
    class Renamed(LazyGroup):
        entries = {"new": Entry("a command", partial(training_app, PROTEIN_METHOD))}
        former_names = {"old": "new"}

    app = lazy_app(Renamed, "Commands.")
    shown = CliRunner().invoke(app, ["--help"])
    assert "new" in shown.output and "old" not in shown.output
    runs = [CliRunner().invoke(app, [name, "--help"]) for name in ("new", "old")]
    assert [run.exit_code for run in runs] == [0, 0]
    assert chosen_app(app, ["old", "--help"])[1] == ["--help"]
    assert CliRunner().invoke(app, ["other"]).exit_code == 2
    assert Trainings.former_names == {
        former: name for name, method in METHODS.items() for former in method.formerly
    }
