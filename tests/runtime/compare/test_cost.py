"""What runs took, from their files, and what the runs of a command will take."""

import contextlib
import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from raybio.core.config import override_all
from raybio.core.location import BucketPath
from raybio.core.records import read_record, write_record
from raybio.core.search_space import Budget, Distribution, Scheduler, Search, SearchSpace
from raybio.runtime.cluster.resources import Node
from raybio.runtime.compare import cost
from raybio.runtime.compare.cost import (
    cost_in_words,
    describe_plan,
    describe_sweep,
    describe_sweep_time,
    describe_time,
)
from raybio.runtime.compare.variations import Variation, compare, plan_of
from raybio.runtime.run import shares
from raybio.runtime.run.cost import RunCost, cost_of
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.metrics_log import MetricsLog
from raybio.runtime.run.open_run import OpenRun
from raybio.runtime.run.parallel import train_runs
from raybio.runtime.run.result import Result
from raybio.runtime.run.shares import Concurrency, concurrency
from raybio.runtime.run.spec import Compute, RunSpec
from raybio.runtime.spool.spool import spool_of
from raybio.runtime.tune.plan import planned
from raybio.runtime.tune.trial import (
    ENDED,
    FINISHED,
    TRIAL_RECORD,
    TRIALS,
    SweepSpec,
    Trial,
    new_trial_record,
)
from raybio.store.store import Store
from raybio.training.settings import TrainingConfig

FEW = {"schedule.max_steps": 100, "schedule.evaluate_every_steps": 0, "schedule.keep_best": None}


@pytest.fixture
def spec(tmp_path: Path, tiny_store: Store, tiny_training: TrainingConfig) -> RunSpec:
    return RunSpec(
        method="sppt_protein",
        config=override_all(tiny_training, FEW),
        store=tiny_store.path,
        name="table",
        runs=tmp_path / "runs",
        compute=Compute(device="cpu"),
    )


def write_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def train_as_if(
    folder: RunFolder,
    seconds_by_start: list[tuple[int, list[int]]],
    end: int | None,
    *,
    device: str = "cpu",
) -> None:
    """Write the files of a run: (second of a start, seconds of its reports), second of the end."""
    starts = [
        {"time_ms": 1000 * start, "first_step": 0, "steps_per_epoch": 5.0, "device": device}
        for start, _ in seconds_by_start
    ]
    times = [time for _, of_start in seconds_by_start for time in of_start]
    reports = [
        {"step": 10 * number, "time_ms": 1000 * time, "metrics": {"loss": 1.0}}
        for number, time in enumerate(times, start=1)
    ]
    write_lines(folder.notices, [{"time_ms": 0, "rank": 0, "warning": "none"}, *starts])
    write_lines(folder.metrics, reports)
    folder.outcome.unlink(missing_ok=True)
    if end is not None:
        outcome = {
            "status": "finished",
            "time_ms": 1000 * end,
            "step": 10 * len(times),
            "final": {},
            "metrics": {},
        }
        write_record(folder.outcome, "outcome", outcome)


def with_seed(spec: RunSpec, seed: int) -> RunSpec:
    config = override_all(spec.config, {"seed": seed})
    return replace(spec, config=config, name=f"seed-{seed}")


def finish(
    spec: RunSpec, *, training: int, final: int = 0, device: str = "cpu", threads: int = 1
) -> None:
    """Leave the files of a finished run of this many seconds."""
    with contextlib.ExitStack() as held:
        run = OpenRun.open(replace(spec, precision="fp32"), held)
        run.begin(replace(run.spec.compute, threads_per_worker=threads))
        num_reports = spec.config.schedule.max_steps // 10
        times = [training] * num_reports
        train_as_if(run.folder, [(0, times)], training + final, device=device)
        run._write_result("finished")


def test_a_run_took_the_time_of_its_starts_and_not_that_between_them(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "run")
    assert cost_of(folder) is None
    # Killed after its report at 40, and started again an hour later; the end is evaluated.
    train_as_if(folder, [(10, [20, 40]), (3600, [3605, 3610])], 3650)
    cost = RunCost("run", steps=40, seconds=30 + 50, workers=1, device="cpu", final_seconds=40)
    assert cost_of(folder) == cost
    assert cost.seconds_of(400) == 10 * 40 + 40
    # Killed in its final evaluation, which the second start repeats.
    train_as_if(folder, [(10, [20, 40]), (3600, [])], 3650)
    assert cost_of(folder) == replace(cost, steps=20, final_seconds=50)
    # A start that was killed before its first report took nothing that is known.
    train_as_if(folder, [(10, [20, 40]), (100, []), (3600, [3605])], None, device="cuda")
    assert cost_of(folder) == RunCost("run", steps=30, seconds=30 + 5, workers=1, device="cuda")


def test_a_table_of_many_runs_is_estimated_before_and_its_cost_reported_after(
    spec: RunSpec,
    empty_database: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copy(empty_database, spec.runs.parent)
    variations = [Variation("seed", (0, 1, 2))]
    finish(spec, training=3600)
    estimates = []

    def train(groups: list[list[RunSpec]]) -> list[list[Result]]:
        estimates.append(capsys.readouterr().out.splitlines()[-1])
        for run in groups[0]:
            finish(run, training=3600)
        return train_runs(groups)

    monkeypatch.setattr(shares, "local_node", lambda: Node(1))
    monkeypatch.setattr("raybio.runtime.compare.variations.train_runs", train)
    _, table = compare(spec, variations)
    assert estimates == [
        "2 of them take about 2 hours, 2 CPU-worker-hours at most, at the rate of table (cpu)"
    ]
    cost = "cost: 3 runs, 3 CPU-worker-hours of training and evaluation"
    assert table.remarks[-1] == cost
    # With nothing left to train, there is nothing to estimate.
    compare(spec, variations)
    assert "at the rate of" not in capsys.readouterr().out


def test_before_training_nothing_is_said_of_unknown_times_and_no_cluster_is_joined_for_them(
    spec: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds = [with_seed(spec, seed) for seed in range(3)]
    joined = []

    def counted(*args: Any) -> Concurrency:
        joined.append(args)
        return concurrency(*args)

    monkeypatch.setattr(cost, "concurrency", counted)
    monkeypatch.setattr(shares, "local_node", lambda: Node(1))
    assert describe_time(seeds) == []
    assert not joined
    finish(seeds[0], training=3600)
    (line,) = describe_time(seeds)
    assert line.startswith("2 of them take about 2 hours, 2 CPU-worker-hours at most")
    assert len(joined) == 1
    # A run whose time is not known is no line of its own.
    wide = override_all(spec.config, {"encoder.width": 32})
    assert describe_time([*seeds, replace(spec, config=wide, name="wide")]) == [line]


def test_the_metrics_of_a_finished_run_are_read_once_for_many_runs(
    spec: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were read for every pair of runs: minutes for a table of 200."""
    specs = [with_seed(spec, seed) for seed in range(8)]
    for done in specs[:3]:
        finish(done, training=60)
    read = []

    def counted(folder: RunFolder) -> RunCost | None:
        read.append(folder.name)
        return cost_of(folder)

    monkeypatch.setattr(cost, "cost_of", counted)
    monkeypatch.setattr(shares, "local_node", lambda: Node(1))
    assert describe_plan(specs)[-1].startswith("5 of them take about 5 minutes")
    assert len(read) == len(set(read)) <= 3


def test_costs_are_hours_of_gpus_or_of_workers_on_cpus() -> None:
    def cost(hours: float, workers: int, device: str) -> RunCost:
        return RunCost("run", 100, 3600 * hours, workers, device)

    assert cost_in_words([]) == "" == cost_in_words([None])
    assert cost_in_words([cost(0.5, 1, "cpu")]) == (
        "1 run, 0.5 CPU-worker-hours of training and evaluation"
    )
    several = [cost(1.5, 8, "cuda"), cost(0.25, 1, "cpu"), None, cost(100, 1, "cuda")]
    assert cost_in_words(several) == (
        "3 runs, 112 GPU-hours and 0.25 CPU-worker-hours of training and evaluation"
    )


def test_a_plan_lists_runs_and_their_time_by_the_most_similar_finished_run(
    spec: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shares, "local_node", lambda: Node(2))
    variations = [Variation("objective.lambda_spml", (0, 0.25)), Variation("seed", (0, 1, 2, 3))]
    lines = plan_of([(spec, variations)])
    assert lines[0] == "   1  table: 100 steps"
    assert len(lines) == 12 + 3
    assert lines[12] == "12 runs, 12 not finished"
    assert "runs at a time: each takes" in lines[13]
    assert lines[14] == (
        f"no finished run in {spec.runs} is similar to 12 of them, so their time is unknown "
        "until the first ones train"
    )

    # Wider: its steps take longer, so it says nothing about these.
    wide = override_all(spec.config, {"encoder.width": 32})
    wider = override_all(spec.config, {"encoder.width": 48})
    finish(replace(spec, config=wide, name="wide"), training=10**6)
    # So do runs on a GPU, with other threads, or with other evaluations.
    short = override_all(spec.config, {"schedule.max_steps": 50, "optim.peak_lr": 0.5, "seed": 9})
    finish(replace(spec, config=short, name="gpu"), training=1800, device="cuda")
    finish(replace(spec, config=short, name="threads"), training=1800, threads=2)
    often = override_all(short, {"schedule.evaluate_every_steps": 5})
    finish(replace(spec, config=often, name="often"), training=1800)
    # The most similar one is named.
    unknown = plan_of([(spec, variations)])[14]
    assert (
        "is similar to 12 of them (the nearest, wide (cpu), differs in encoder.width), so"
        in unknown
    )
    # So do runs of another encoder, which may be of another size.
    other = replace(spec, config=short, name="other")
    finish(other, training=1800)
    identity = read_record(other.folder.identity, "run")
    identity["config"]["encoder"]["source"] = "owner/model"
    write_record(other.folder.identity, "run", identity)
    assert "is similar to 12 of them" in plan_of([(spec, variations)])[14]
    # Half as many steps and other seeds and rates do, and other reports and checkpoints. The final evaluation takes as long.
    short = override_all(short, {"schedule.log_every_steps": 5, "schedule.keep_checkpoints": 1})
    fewer = override_all(short, {"evaluation.num_nodes_per_group_at_the_end": 3, "seed": 0})
    finish(replace(spec, config=fewer, name="fewer"), training=1200, final=60)
    *_, time = plan_of([(spec, variations)])
    assert time.endswith(
        "hours, at the rate of fewer (cpu), which differs in "
        "evaluation.num_nodes_per_group_at_the_end, objective.lambda_spml"
    )
    # It is the more similar one otherwise, but says less about the time of evaluations.
    finish(replace(spec, config=short, name="short"), training=1200, final=1200)
    *_, time = plan_of([(spec, variations)])
    assert time == (
        "12 of them take about 6 hours, 12 CPU-worker-hours, at the rate of short (cpu), which "
        "differs in objective.lambda_spml"
    )

    finish(spec, training=7200)
    lines = plan_of([(spec, variations)])
    assert lines[0] == "   1  table: finished"
    assert lines[12] == "12 runs, 11 not finished"
    # Its own first run is more similar than the other one.
    assert ", 22 CPU-worker-hours, at the rate of table (cpu), which differs in" in lines[14]
    # A run of another width has no similar one; the others have.
    lines = plan_of([(spec, variations), (replace(spec, config=wider, name="wider"), [])])
    # Two at a time: the eleventh run has a round of its own.
    assert "11 of them take about 12 hours, 22 CPU-worker-hours" in lines[15]
    assert "is similar to 1 of them" in lines[16]


def sweep_over(spec: RunSpec, path: str, values: tuple[Any, ...], **budget: Any) -> SweepSpec:
    space = SearchSpace(
        method="sppt_protein",
        metric="val/lrap",
        mode="max",
        budget=Budget(max_steps=100, grace_steps=100, max_concurrent_trials=None, **budget),
        scheduler=Scheduler(kind="none"),
        search=Search(kind="grid"),
        space={path: Distribution("choice", values)},
    )
    run = replace(spec, name="sweep", runs=spec.runs.parent / "sweeps", precision="fp32")
    return SweepSpec(space=space, run=run)


def end(sweep: SweepSpec, trials: list[Trial]) -> None:
    """Leave the records of trials that have begun and ended."""
    sweep.path.mkdir(parents=True, exist_ok=True)
    write_record(sweep.path / TRIALS, "trials", {"trials": [asdict(trial) for trial in trials]})
    for trial in trials:
        folder = sweep.folder(trial).path
        folder.mkdir(parents=True, exist_ok=True)
        write_record(folder / TRIAL_RECORD, "trial", new_trial_record(trial))
        write_record(folder / ENDED, "trial end", {"status": FINISHED})


def test_the_time_of_a_sweep_is_that_of_all_of_its_trials(spec: RunSpec) -> None:
    # A sweep evaluates at least every grace_steps, and once before training.
    config = override_all(spec.config, {"schedule.evaluate_every_steps": 100})
    finish(replace(spec, config=config), training=3600, final=360)
    seeds = sweep_over(spec, "seed", (0, 1), num_trials=2)
    assert describe_sweep_time(seeds, spec.runs) == [
        "a trial takes about 66 minutes, 2 trials 2.2 CPU-worker-hours at most, at the rate of "
        "table (cpu)"
    ]
    # A sweep over the number of steps, whose best trial is repeated twice.
    repeated = {"num_trials": 2, "num_repeated": 1, "num_seeds": 3}
    lengths = sweep_over(spec, "schedule.max_steps", (100, 300), **repeated)
    (line,) = describe_sweep_time(lengths, spec.runs)
    assert line.startswith("the longest trial takes about 3.1 hours, 4 trials 10 CPU-worker-hours ")


def test_a_sweep_knows_its_own_trials_and_those_of_other_sweeps(spec: RunSpec) -> None:
    sweep = sweep_over(spec, "encoder.width", (32, 48), num_trials=2)
    (unknown,) = describe_sweep_time(sweep, spec.runs, names_unknown=True)
    assert unknown.startswith(
        f"no finished run in {spec.runs} and {sweep.run.runs} is similar to 2 of them, so "
    )
    first, second = [Trial(settings) for settings in sweep.space.grid()]
    trial = sweep.worker_spec(second).run
    finish(trial, training=3600)
    trial.folder.result.unlink()  # a trial has none
    lines = describe_sweep_time(sweep, spec.runs, names_unknown=True)
    assert lines[0].startswith("a trial takes about 60 minutes, 1 trial 1 CPU-worker-hours")
    assert "is similar to 1 of them" in lines[1]
    assert "(the nearest, trial-" in lines[1] and "differs in encoder.width)" in lines[1]
    # Before training, only known times are described.
    assert describe_sweep_time(sweep, spec.runs) == lines[:1]
    # It has ended, so only the first one is left, which has another width.
    end(sweep, [second])
    (line,) = describe_sweep_time(sweep, spec.runs, names_unknown=True)
    assert "is similar to 1 of them" in line
    other = replace(sweep, run=replace(sweep.run, name="other"))
    assert describe_sweep_time(other, spec.runs, names_unknown=True) == lines
    end(sweep, [second, first])
    assert describe_sweep_time(sweep, spec.runs, names_unknown=True) == []


def test_trials_have_the_rate_of_their_device_and_threads(spec: RunSpec) -> None:
    """Trials on CPUs had the rate of a GPU."""
    config = override_all(spec.config, {"schedule.evaluate_every_steps": 100})
    finish(replace(spec, config=config), training=60, device="cuda")
    sweep = sweep_over(spec, "seed", (0, 1), num_trials=2)

    def lines_of(**compute: float) -> list[str]:
        run = replace(sweep.run, compute=Compute(**compute))
        return describe_sweep_time(replace(sweep, run=run), spec.runs, names_unknown=True)

    assert lines_of()[0].startswith("a trial takes about 60 seconds, 2 trials")
    assert lines_of(gpus_per_worker=1)[0].startswith("a trial takes about 60 seconds, 2 trials")
    (unknown,) = lines_of(gpus_per_worker=0)
    assert "(the nearest, table (cuda), differs in device)" in unknown
    # Without a number of CPUs, the threads are not known before the sweep starts.
    finish(replace(spec, config=config, name="cpu"), training=3600, threads=2)
    assert lines_of(gpus_per_worker=0)[0].startswith("a trial takes about 60 minutes")
    assert lines_of(gpus_per_worker=0, cpus_per_worker=2)[0].startswith("a trial takes about 60 m")
    (unknown,) = lines_of(gpus_per_worker=0, cpus_per_worker=1)
    assert "(the nearest, cpu (cpu), differs in threads)" in unknown


def test_the_trials_of_a_grid_are_listed_with_the_status_of_those_that_have_ended(
    spec: RunSpec,
) -> None:
    sweep = sweep_over(spec, "seed", (0, 1), num_trials=2)
    assert describe_sweep(sweep, spec.runs)[:2] == ["   1  seed=0", "   2  seed=1"]
    end(sweep, [Trial({"seed": 1})])
    lines = describe_sweep(sweep, spec.runs)
    assert lines[:3] == [
        "   1  seed=0",
        "   2  seed=1: finished",
        "2 trials of 100 steps at most",
    ]
    assert "is similar to 1 of them" in lines[3]


def test_a_resumed_sweep_that_learns_takes_the_time_of_its_own_trials(spec: RunSpec) -> None:
    """Its trials were searched among those planned without learning, and repetitions lost."""
    config = override_all(spec.config, {"schedule.evaluate_every_steps": 100})
    finish(replace(spec, config=config), training=3600)
    budget = {"num_trials": 6, "num_repeated": 1, "num_seeds": 3}
    sweep = sweep_over(spec, "optim.peak_lr", tuple(1e-4 * n for n in range(1, 40)), **budget)
    sweep = replace(sweep, space=sweep.space.model_copy(update={"search": Search(kind="optuna")}))
    drawn = planned(sweep.space, sweep.check)
    learned = [settings for settings in sweep.space.grid() if settings not in drawn][:6]
    trials = [Trial(settings) for settings in learned]
    end(sweep, trials[:4])
    (line,) = describe_sweep_time(sweep, spec.runs)
    assert line.startswith("a trial takes about 60 minutes, 4 trials 4 CPU-worker-hours")
    # With only repetitions left, their time is described.
    end(sweep, trials)
    for number, trial in enumerate(trials):
        MetricsLog(sweep.folder(trial).metrics).append(100, {"val/lrap": number / 10})
    repeated = [Trial({**learned[-1], "seed": seed}) for seed in (1, 2)]
    (line,) = describe_sweep_time(sweep, spec.runs)
    assert line.startswith("a trial takes about 60 minutes, 2 trials 2 CPU-worker-hours")
    end(sweep, [*trials, repeated[0]])
    (line,) = describe_sweep_time(sweep, spec.runs)
    assert line.startswith("a trial takes about 60 minutes, 1 trial 1 CPU-worker-hours")


def test_the_runs_of_a_papers_table_are_one_plan_with_its_cost(
    spec: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shares, "local_node", lambda: Node(16, gpus=8))
    table = replace(spec, compute=replace(spec.compute, device="gpu"))
    variations = [
        Variation("objective.lambda_spml", (0, 0.1, 0.2, 0.3, 0.4, 0.5)),
        Variation("optim.peak_lr", (1e-4, 2e-4, 3e-4, 4e-4)),
        Variation("seed", (0, 1, 2, 3, 4)),
    ]
    assert "120 runs, 120 not finished" in plan_of([(table, variations)])
    finish(table, training=3600, device="cuda")
    _, counts, arithmetic, time = plan_of([(table, variations)])[-4:]
    assert counts == "120 runs, 119 not finished"
    assert "8 runs at a time" in arithmetic
    assert time == (
        "119 of them take about 15 hours, 119 GPU-hours, at the rate of table (cuda), which "
        "differs in objective.lambda_spml"
    )


def test_a_plan_whose_runs_are_finished_needs_no_time(spec: RunSpec) -> None:
    finish(spec, training=60)
    assert describe_plan([spec]) == ["   1  table: finished", "1 run, none not finished"]


def test_runs_of_several_workers_are_trained_one_after_the_other(spec: RunSpec) -> None:
    specs = [
        replace(spec, name=f"run-{number}", compute=Compute(workers=2, device="cpu"))
        for number in range(3)
    ]
    assert describe_plan(specs)[4] == "1 run at a time"


def test_with_an_empty_disk_a_plan_knows_the_finished_runs_of_a_bucket(
    spec: RunSpec, bucket: BucketPath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYBIO_CACHE", str(tmp_path / "disk"))
    runs = bucket / "runs"
    there = replace(spec, runs=spool_of(runs), bucket=runs)
    finish(there, training=60)
    shutil.rmtree(tmp_path / "disk")
    assert plan_of([(there, [])]) == ["   1  table: finished", "1 run, none not finished"]
