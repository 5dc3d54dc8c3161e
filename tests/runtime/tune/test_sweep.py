"""Sweeps: trials that are stopped, fail, are killed, or go on from others; all of them end, and
nothing is left.
"""

import os
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from mlflow import MlflowClient
from ray.util import placement_group_table

from raybio.core.config import load, override_all
from raybio.core.errors import ClusterError, ConfigError
from raybio.core.records import read_record
from raybio.core.search_space import SearchSpace
from raybio.core.search_space_file import load_search_space
from raybio.methods import METHODS
from raybio.runtime.run.driver import train
from raybio.runtime.run.metrics_log import read_reports
from raybio.runtime.run.spec import Compute, RunSpec
from raybio.runtime.tune.driver import SweepResult, SweepSpec, sweep
from raybio.runtime.tune.trial import FAILED, FINISHED, REPLACED, STOPPED
from raybio.store.store import Store, open_store
from raybio.training.precision import resolve_precision
from raybio.training.settings import TrainingConfig

METRIC = "val/link_mrr"
LAMBDA, RATE = "objective.lambda_spml", "optim.peak_lr"
pytestmark = pytest.mark.usefixtures("ray_cluster")


def space_of(folder: Path, **sections: Any) -> SearchSpace:
    """Six values of lambda on a grid, unless sections say something else; 12 steps, an evaluation
    every fourth.
    """
    import yaml

    budget = {"num_trials": 6, "max_steps": 12, "grace_steps": 4, "max_concurrent_trials": 2}
    given = {
        "method": "sppt_protein",
        "metric": METRIC,
        "mode": "max",
        "scheduler": {"kind": "none"},
        "search": {"kind": "grid"},
        "space": {LAMBDA: {"choice": [0.0, 0.1, 0.3, 0.5, 0.7, 0.9]}},
        **sections,
        "budget": budget | sections.get("budget", {}),
    }
    path = folder / "space.yaml"
    path.write_text(yaml.safe_dump(given))
    return load_search_space(path, {name: entry.config for name, entry in METHODS.items()})


@pytest.fixture
def request_of(
    tmp_path: Path, tiny_store: Store, tiny_training: TrainingConfig, empty_database: Path
) -> Callable[..., SweepSpec]:
    shutil.copy(empty_database, tmp_path)

    def make(name: str = "sweep", setup: Any = None, **sections: Any) -> SweepSpec:
        space = space_of(tmp_path, **sections)
        place = Path(tiny_store.path)
        return SweepSpec(
            space=space,
            run=RunSpec(
                method="sppt_protein",
                store=place,
                name=name,
                setup=setup,
                config=tiny_training,
                runs=tmp_path / "sweeps",
                compute=Compute(cpus_per_worker=1),
            ),
        )

    return make


def statuses(swept: SweepResult, path: str = LAMBDA) -> dict[Any, str]:
    return {one.settings[path]: one.status for one in swept.trials}


def logs_of(swept: SweepResult) -> dict[str, os.stat_result]:
    return {
        one.name: (swept.folder.path / "trials" / one.name / "metrics.jsonl").stat()
        for one in swept.trials
    }


def mlflow_runs(swept: SweepResult) -> tuple[Any, list[Any]]:
    """The parent and its children."""
    client = MlflowClient(swept.uri)
    runs = client.search_runs(
        [experiment.experiment_id for experiment in client.search_experiments()]
    )
    (parent,) = [run for run in runs if run.info.run_id == swept.mlflow_run_id]
    return parent, [
        run for run in runs if run.data.tags.get("mlflow.parentRunId") == swept.mlflow_run_id
    ]


def assert_nothing_is_left() -> None:
    deadline = time.monotonic() + 1500
    while time.monotonic() < deadline:
        left = [group for group in placement_group_table().values() if group["state"] != "REMOVED"]
        if not left and ray.available_resources().get("CPU") == ray.cluster_resources()["CPU"]:
            return
        time.sleep(0.2)
    raise AssertionError((left, ray.available_resources()))


def rate_of(run: Path) -> float:
    return float(read_record(run / "run.json", "run")["config"]["optim"]["peak_lr"])


def some_go_wrong(rank: int, run: Path) -> None:
    """1e-5 raises; 1e-6 is killed every time; 1e-3 once."""
    value, mark = rate_of(run), run / "was killed"
    if value == 1e-5:
        raise ConfigError("this one cannot be trained")
    if value == 1e-6 or (value == 1e-3 and not mark.exists()):
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def nothing_goes(rank: int, run: Path) -> None:
    raise ConfigError("there is nothing to learn")


@pytest.mark.nightly
def test_trials_that_fail_or_stop_early_do_not_keep_others_from_finishing(
    request_of, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setattr("raybio.runtime.tune.driver.MAX_TRIAL_FAILURES", 1)
    asha = {"kind": "asha", "reduction_factor": 2}
    # The first one is good, and at its first rung long before those begin that learn next to
    # nothing.
    rates = {RATE: {"choice": [3e-4, 1e-5, 1e-6, 1e-7, 2e-7, 1e-3]}}
    swept = sweep(request_of(scheduler=asha, space=rates, setup=some_go_wrong))
    expected = {
        3e-4: FINISHED,
        1e-5: FAILED,
        1e-6: FAILED,
        1e-7: STOPPED,
        2e-7: STOPPED,
        1e-3: FINISHED,
    }
    assert statuses(swept, RATE) == expected
    assert "peak_lr 1e-05 | failed: this one cannot be trained\n" in capsys.readouterr().out
    errors = {one.settings[RATE]: one.error for one in swept.trials if one.error}
    assert errors.keys() == {1e-5, 1e-6}
    assert errors[1e-5] == "this one cannot be trained"
    assert "ended" in errors[1e-6]
    assert_nothing_is_left()
    parent, children = mlflow_runs(swept)
    assert parent.info.status == "FINISHED"
    assert (
        sorted(child.info.status for child in children)
        == ["FAILED"] * 2 + ["FINISHED"] * 2 + ["KILLED"] * 2
    )
    # The winner, run again from its file, by the job's own way, gives the same numbers.
    config = load(METHODS["sppt_protein"].config, swept.folder.path / "best.yaml")
    best = swept.ranking[0]
    request = RunSpec(
        method="sppt_protein",
        config=config,
        store=swept.spec.run.store,
        name="again",
        runs=swept.folder.path / "again",
    )
    again = train(replace(request, compute=Compute(cpus_per_worker=1)))
    assert again.step == best.best_step
    assert again.metrics[METRIC] == best.mean


def assert_its_best_settings_are_repeated(swept: SweepResult) -> None:
    """Those that are best with the sweep's own seed, whatever was repeated before."""
    best = next(one for one in swept.trials if "seed" not in one.settings)
    assert best.settings[LAMBDA] in {
        one.settings[LAMBDA] for one in swept.trials if "seed" in one.settings
    }
    assert len(swept.ranking[0].trials) == 2


@pytest.mark.nightly
def test_bad_trials_are_stopped_early_and_finished_sweeps_train_nothing(request_of, capsys) -> None:
    asha = {"kind": "asha", "reduction_factor": 2}
    budget = {"num_trials": 5, "num_repeated": 1, "num_seeds": 2}
    requests = request_of(scheduler=asha, search={"kind": "optuna"}, budget=budget)
    swept = sweep(requests)
    first = [one for one in swept.trials if "seed" not in one.settings]
    assert len({one.settings[LAMBDA] for one in first}) == 5  # five different ones
    assert {one.status for one in first} == {FINISHED, STOPPED}
    assert_its_best_settings_are_repeated(swept)
    assert_nothing_is_left()
    for one in first:
        if one.status == STOPPED:
            assert one.values[-1][0] < 12
            others = [
                dict(other.values).get(one.values[-1][0], 0.0)
                for other in first
                if other is not one
            ]
            assert one.best_value < max(others)
    _, children = mlflow_runs(swept)
    by_name = {
        child.info.run_name: (child.info.status, child.data.tags["ended"]) for child in children
    }
    expected = {FINISHED: "FINISHED", STOPPED: "KILLED"}
    assert by_name == {one.name: (expected[one.status], one.status) for one in swept.trials}
    (counted,) = read_record(swept.folder.inputs, "inputs")["inputs"]
    assert (counted["name"], counted["num_rows"]) == (
        "sequences",
        open_store(requests.run.store).num_rows,
    )
    logs = logs_of(swept)
    capsys.readouterr()
    again = sweep(requests)
    assert "trials at a time" not in capsys.readouterr().out  # Ray was not even asked
    assert again.trials == swept.trials
    assert logs_of(again) == logs


@pytest.mark.nightly
def test_a_sweep_with_a_larger_budget_trains_only_what_is_new(request_of) -> None:
    budget = {"num_trials": 2, "num_repeated": 1, "num_seeds": 2}
    requests = request_of(search={"kind": "optuna"}, budget=budget)
    swept = sweep(requests)
    logs = logs_of(swept)
    more = sweep(replace(requests, space=requests.space.with_budget(["num_trials=3"])))
    assert len([one for one in more.trials if "seed" not in one.settings]) == 3
    assert_its_best_settings_are_repeated(more)
    assert logs_of(swept) == logs
    assert len(mlflow_runs(more)[1]) == len(more.trials)


@pytest.mark.nightly
def test_a_population_exploits_the_weights_of_its_best(request_of) -> None:
    rates = {RATE: {"choice": [1e-7, 1e-5, 3e-4, 1e-3]}}
    swept = sweep(
        request_of(
            scheduler={"kind": "pbt"},
            search={"kind": "grid"},
            space=rates,
            budget={"max_steps": 16},
        )
    )
    heirs = [one for one in swept.trials if one.exploited_from]
    assert heirs
    replaced = [one for one in swept.trials if one.status == REPLACED]
    assert len(replaced) == len(heirs)
    assert sum(one.status == FINISHED for one in swept.trials) == 4
    for successor in heirs:
        run = swept.folder.path / "trials" / successor.name
        reports = read_reports(run / "metrics.jsonl")
        copied = [report for report in reports if "exploited_from" in report]
        donor = read_reports(run.parent / successor.exploited_from / "metrics.jsonl")
        last = copied[-1]["step"]
        assert [one["metrics"] for one in copied] == [
            one["metrics"] for one in donor if one["step"] <= last
        ]
        assert 0 < last < 16
        assert reports[-1]["step"] > last
    winner = swept.ranking[0].trials[0]
    assert (swept.folder.path / "trials" / winner.name / "export" / "README.md").is_file()
    assert_nothing_is_left()


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["hyperband", "median"])
def test_other_rules_of_stopping_stop_too(request_of, kind: str) -> None:
    rates = {RATE: {"choice": [3e-3, 1e-3, 3e-4, 1e-6, 1e-7, 1e-8]}}
    swept = sweep(
        request_of(name=kind, space=rates, scheduler={"kind": kind, "reduction_factor": 2})
    )
    assert len(swept.trials) == 6
    assert set(statuses(swept, RATE).values()) == {FINISHED, STOPPED}
    assert_nothing_is_left()


@pytest.mark.nightly
def test_trials_of_several_workers_report_during_training_and_are_stopped(
    request_of, monkeypatch, capsys
) -> None:
    asha = {"kind": "asha", "reduction_factor": 2}
    two = {RATE: {"choice": [3e-4, 1e-7]}}
    requests = request_of(
        scheduler=asha, space=two, budget={"max_concurrent_trials": 1, "max_steps": 40}
    )
    base = override_all(requests.run.config, {"precision": "auto"})
    own = resolve_precision("auto", "cpu").name
    other = {"fp32": "bf16", "bf16": "fp32"}[own]
    # For the driver alone: trials and workers are other processes.
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": other == "bf16"})
    swept = sweep(
        replace(
            requests,
            run=replace(requests.run, config=base, compute=Compute(workers=2, cpus_per_worker=0.5)),
        )
    )
    assert statuses(swept, RATE) == {3e-4: FINISHED, 1e-7: STOPPED}
    monkeypatch.undo()
    assert capsys.readouterr().out.startswith(f"precision: {other} (this CPU has ")
    assert load(METHODS["sppt_protein"].config, swept.folder.path / "best.yaml").precision == other
    for folder in (swept.folder.path, *(swept.folder.path / "trials").iterdir()):
        assert read_record(folder / "run.json", "run")["precision"] == other
    outcomes = [
        read_record(path, "outcome")
        for path in (swept.folder.path / "trials").glob("*/outcome.json")
    ]
    assert {outcome["precision"] for outcome in outcomes} == {other}
    # The same sweep again, on another kind of machine and with one more trial.
    more = replace(
        requests,
        space=requests.space.with_budget(["num_repeated=1", "num_seeds=2"]),
        run=replace(requests.run, config=base, compute=Compute(cpus_per_worker=1)),
    )
    again = sweep(more)
    assert capsys.readouterr().out.startswith(f"precision: {other} (as the sweep began)")
    assert len(again.trials) == 3
    for folder in (swept.folder.path / "trials").iterdir():
        assert read_record(folder / "run.json", "run")["precision"] == other
    assert all(one.values for one in swept.trials)
    assert_nothing_is_left()
    _, children = mlflow_runs(swept)
    assert {child.info.status for child in children} == {"FINISHED", "KILLED"}


@pytest.mark.nightly
def test_a_sweep_of_which_nothing_came_is_an_error_with_the_reason(request_of) -> None:
    with pytest.raises(
        ClusterError, match=r"none of 2 trials came to an evaluation.*1: there is nothing to learn"
    ):
        sweep(
            request_of(name="nothing", setup=nothing_goes, space={LAMBDA: {"choice": [0.1, 0.9]}})
        )
    request = request_of(
        name="nonsense",
        metric="val/nonsense",
        space={LAMBDA: {"choice": [0.1, 0.3, 0.5, 0.7, 0.9]}},
    )
    with pytest.raises(
        ConfigError, match="'val/nonsense' is not evaluated; want one of .*another --name"
    ):
        sweep(request)
    # One trial has found it out, or two at the same time; the others were not trained for it.
    tried = [*(request.run.runs / "nonsense" / "trials").glob("*/failure.json")]
    assert 1 <= len(tried) <= 2
