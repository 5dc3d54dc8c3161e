"""What runs took, from their files, and what the runs of a command will take."""

import contextlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raybio.core.config import override_all
from raybio.core.records import write_record
from raybio.runtime.compare.cost import RunCost, cost_in_words, cost_of, describe_plan
from raybio.runtime.compare.variations import Variation, plan_of
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.open_run import OpenRun
from raybio.runtime.run.spec import Compute, RunSpec
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


def finish(spec: RunSpec, seconds: int, *, device: str = "cpu") -> None:
    """Leave the files of a finished run of this many seconds."""
    with contextlib.ExitStack() as held:
        run = OpenRun.open(replace(spec, precision="fp32"), held)
        run.begin(run.spec.compute)
        num_reports = spec.config.schedule.max_steps // 10
        train_as_if(run.folder, [(0, [1] * num_reports)], seconds, device=device)
        run._write_result("finished")


def test_a_run_took_the_time_of_its_starts_and_not_that_between_them(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "run")
    assert cost_of(folder) is None
    # Killed after its report at 40, and started again an hour later; the end is evaluated.
    train_as_if(folder, [(10, [20, 40]), (3600, [3605, 3610])], 3650)
    assert cost_of(folder) == RunCost("run", steps=40, seconds=30 + 50, workers=1, device="cpu")
    # A start that was killed before its first report took nothing that is known.
    train_as_if(folder, [(10, [20, 40]), (100, []), (3600, [3605])], None, device="cuda")
    assert cost_of(folder) == RunCost("run", steps=30, seconds=30 + 5, workers=1, device="cuda")


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
    spec: RunSpec,
) -> None:
    variations = [Variation("objective.lambda_spml", (0, 0.25)), Variation("seed", (0, 1, 2, 3))]
    lines = plan_of([(spec, variations)])
    assert lines[0] == "   1  table: 100 steps"
    assert len(lines) == 12 + 3
    assert lines[12] == "12 runs, 12 of them not finished"
    assert "runs at a time: each takes" in lines[13]
    assert "12 of them are like no finished run" in lines[14]

    # Wider: its steps take longer, so it says nothing about these.
    wide = override_all(spec.config, {"encoder.width": 32})
    finish(replace(spec, config=wide, name="wide"), seconds=10**6)
    assert "12 of them are like no finished run" in plan_of([(spec, variations)])[14]
    # Half as many steps and other seeds and rates do.
    short = override_all(spec.config, {"schedule.max_steps": 50, "optim.peak_lr": 0.5, "seed": 9})
    finish(replace(spec, config=short, name="short"), seconds=1800, device="cuda")
    *_, time = plan_of([(spec, variations)])
    # On a machine with 2 CPUs: 12 hours, two at a time.
    assert time.startswith("12 of them take about ")
    assert ", 12 hours one after the other, at the rate of short (cuda)" in time

    finish(spec, seconds=7200)
    lines = plan_of([(spec, variations)])
    assert lines[0] == "   1  table: finished"
    assert lines[12] == "12 runs, 11 of them not finished"
    # Its own first run is more similar than the other one.
    assert ", 22 hours one after the other, at the rate of table (cpu)" in lines[14]


def test_a_plan_whose_runs_are_finished_needs_no_time(spec: RunSpec) -> None:
    finish(spec, seconds=60)
    assert describe_plan([spec]) == ["   1  table: finished", "1 runs, 0 of them not finished"]


def test_runs_of_several_workers_are_trained_one_after_the_other(spec: RunSpec) -> None:
    specs = [
        replace(spec, name=f"run-{number}", compute=Compute(workers=2, device="cpu"))
        for number in range(3)
    ]
    assert describe_plan(specs)[4] == "1 run at a time"
