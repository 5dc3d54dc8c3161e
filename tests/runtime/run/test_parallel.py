"""Runs of one command that are trained at the same time: each is the run that is trained alone."""

import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from rich.console import Console

from raybio.core.config import override_all
from raybio.core.digest import json_digest, weights_digest
from raybio.core.errors import (
    CheckpointError,
    ClusterError,
    ConfigError,
    DivergedError,
    InterruptedRunError,
    LongRunError,
    OtherVersionsError,
    RecordError,
    StopFileError,
)
from raybio.core.location import BucketPath
from raybio.core.records import read_record, write_record
from raybio.methods import METHODS
from raybio.runtime.cluster.resources import Node, Resources
from raybio.runtime.compare.variations import Variation, compare
from raybio.runtime.run import driver, open_run
from raybio.runtime.run.driver import train
from raybio.runtime.run.duration import Tally
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.metrics_log import MetricsLog, read_reports
from raybio.runtime.run.notices import read_starts, report_start
from raybio.runtime.run.open_run import OpenRun, warn_of_other_versions
from raybio.runtime.run.parallel import _interrupted, train_runs
from raybio.runtime.run.result import Result
from raybio.runtime.run.run_queue import RunQueue, _show_length, _wait_for_ends, train_queue
from raybio.runtime.run.run_task import RunTask
from raybio.runtime.run.shares import share_of, threads_of
from raybio.runtime.run.spec import Compute, RunSpec, WorkerSpec
from raybio.runtime.run.task_worker import train_in_task
from raybio.runtime.spool import lease as leases
from raybio.runtime.spool.lease import TakenOverError
from raybio.runtime.spool.spool import spool_of
from raybio.runtime.tracking.tracker import Tracker, wait_for_all
from raybio.store.bucket import BucketFolder
from raybio.store.store import Store
from raybio.training.checkpoint import CheckpointStore
from raybio.training.loop import FIRST_REPORTED_STEPS, fit
from raybio.training.settings import TrainingConfig
from tests.paths import ROOT
from tests.runtime.spool.taken_lease import taken_from
from tests.whole_runs import train_here


@pytest.fixture
def request_one(
    tmp_path: Path, tiny_store: Store, tiny_training: TrainingConfig, empty_database: Path
) -> RunSpec:
    shutil.copy(empty_database, tmp_path)
    return RunSpec(
        method="sppt_protein",
        config=tiny_training,
        store=tiny_store.path,
        name="one",
        runs=tmp_path / "runs",
        precision="fp32",
        compute=Compute(device="cpu"),
    )


def with_seed(spec: RunSpec, seed: int, **changes: object) -> RunSpec:
    config = override_all(spec.config, {"seed": seed})
    return replace(spec, config=config, name=f"seed-{seed}", **changes)


def steps_of(folder: RunFolder) -> list[int]:
    return [report["step"] for report in read_reports(folder.metrics)]


def mlflow_run(folder: RunFolder) -> object:
    from mlflow import MlflowClient

    tracking = read_record(folder.tracking, "tracking")
    return MlflowClient(tracking["uri"]).get_run(tracking["run_id"])


@pytest.mark.parametrize(
    ("compute", "num_runs", "cpus", "threads", "at_a_time"),
    [
        (Compute(), 2, 4.0, 4, 2),
        (Compute(), 3, 2.0, 2, 3),
        (Compute(), 20, 1.0, 1, 8),
        (Compute(cpus_per_worker=3), 2, 3.0, 3, 2),
        (Compute(cpus_per_worker=0.5), 20, 0.5, 1, 16),
        # As the runs began, on this machine or a larger one.
        (Compute(threads_per_worker=2), 20, 2.0, 2, 4),
        (Compute(threads_per_worker=16), 2, 8.0, 16, 1),
        (Compute(cpus_per_worker=2, threads_per_worker=1), 20, 2.0, 1, 4),
    ],
)
def test_runs_have_equal_parts_of_a_machine_unless_their_share_is_given_or_recorded(
    compute: Compute, num_runs: int, cpus: float, threads: int, at_a_time: int
) -> None:
    share = share_of(compute, [Node(8)], num_runs)
    assert (share.cpus_per_worker, share.gpus_per_worker) == (cpus, 0)
    assert share.num_trials == at_a_time
    runs = "run" if at_a_time == 1 else "runs"
    assert share.explanation.startswith(f"{at_a_time} {runs} at a time: each takes {cpus:g} CPU")
    assert threads_of(compute, share) == threads


def test_each_run_has_a_gpu_of_its_own_unless_the_device_is_the_cpu() -> None:
    nodes = [Node(16, 2), Node(16, 2)]
    share = share_of(Compute(), nodes, 3)
    assert (share.gpus_per_worker, share.num_trials, share.cpus_per_worker) == (1, 3, 8)
    assert share_of(Compute(device="cpu"), nodes, 4).gpus_per_worker == 0
    with pytest.raises(ClusterError, match="a run takes 1 CPU and 1 GPU, .* no run could ever"):
        share_of(Compute(device="gpu"), [Node(16)], 2)


@pytest.mark.parametrize(
    ("statuses", "num_runs", "message"),
    [
        (["stopped", "finished", "early_stopping"], 3, "1 of 3 runs is not finished (seed-0); "),
        (["stopped", "finished", "failed"], 3, "2 of 3 runs are not finished (seed-0, seed-2); "),
        # Two runs of the command were finished before it started.
        (["stopped", "stopped"], 4, "2 of 4 runs are not finished (seed-0, seed-1); "),
        # The signal came while the cluster was starting: no task was begun.
        ([None, None], 2, "2 of 2 runs are not finished (seed-0, seed-1); "),
        # It came when the last run had just ended.
        (["finished", "early_stopping"], 2, "all 2 runs are finished; the same command shows"),
        (["stopped"] * 8, 8, "8 of 8 runs are not finished (seed-0, seed-1, seed-2, seed-3, seed-"),
    ],
)
def test_after_a_signal_the_unfinished_runs_are_counted_and_named(
    request_one: RunSpec, statuses: list[str | None], num_runs: int, message: str
) -> None:
    runs = []
    tasks = []
    for seed, status in enumerate(statuses):
        spec = with_seed(request_one, seed)
        run = OpenRun(spec, Tracker(spec.folder, "sqlite://", spec.method, {}, "d", None), None)
        runs.append(run)
        if status is not None:
            task = RunTask(run, Resources(1, 1.0, 0.0, 1), "start", None, Console(), set())
            task.status = status
            tasks.append(task)
    error = _interrupted(tasks, runs, num_runs, signal.SIGINT)
    assert str(error).startswith(f"SIGINT: {message}")
    assert error.exit_code == 130


def test_a_run_that_cannot_be_plotted_is_complete_and_says_so(
    request_one: RunSpec, caplog: pytest.LogCaptureFixture
) -> None:
    folder = request_one.folder
    folder.make()
    folder.plots.write_text("a file where the folder of plots should be", encoding="utf-8")
    MetricsLog(folder.metrics).append(1, {"train/loss": 1.0})
    run = OpenRun(
        request_one, Tracker(folder, "sqlite://", request_one.method, {}, "d", None), None
    )
    run._plot()
    assert "cannot be plotted" in caplog.text


@pytest.mark.parametrize(
    ("evaluation_minutes", "expected"),
    [
        # Six rounds of 24 steps, 10 s each.
        (None, "12 runs, 2 at a time: about 24 minutes, without evaluations"),
        # And in each round an evaluation every 12 steps.
        (
            10,
            "12 runs, 2 at a time: about 2.4 hours, with evaluations during training, without "
            "final ones",
        ),
    ],
)
def test_a_run_is_begun_when_few_others_wait_for_cpus_and_all_are_projected_from_the_first(
    request_one: RunSpec,
    capsys: pytest.CaptureFixture[str],
    evaluation_minutes: int | None,
    expected: str,
) -> None:
    with contextlib.ExitStack() as held:
        runs = [OpenRun.open(with_seed(request_one, seed), held) for seed in range(12)]
        queue = RunQueue(runs, [Node(2)], len(runs))
        tasks: list[RunTask] = []

        def begin() -> list[bool]:
            while queue.is_due(tasks):
                tasks.append(queue.begin())
            return [run.folder.start.exists() for run in runs]

        # Two are trained at a time, and one waits.
        assert begin() == [True] * 3 + [False] * 9
        report_start(runs[1].folder.notices, 0, 5.0, is_first_step_reported=True)
        if evaluation_minutes is not None:
            (start,) = read_starts(runs[1].folder.notices)
            time_ms = start["time_ms"] + evaluation_minutes * 60_000
            first = {"step": 0, "time_ms": time_ms, "metrics": {}, "is_evaluation": True}
            runs[1].folder.metrics.write_text(json.dumps(first) + "\n")
        tasks[1].follow()
        assert begin() == [True] * 4 + [False] * 8
        assert queue.num_left == 8
        assert not _show_length(tasks, 12, queue)
        log = MetricsLog(runs[1].folder.metrics)
        for step in FIRST_REPORTED_STEPS:
            log.append(step, {"steps_per_second": 0.1})
        tasks[1].follow()
        assert _show_length(tasks, 12, queue)
        assert expected in " ".join(capsys.readouterr().err.split())
        tracked = [bool(run.tracker._thread) for run in runs]
        assert tracked == [False, True] + [False] * 10
        tasks[1].end([], None)
        assert tasks[1].status == "failed"
        assert tasks[1].run.settle("failed", 60)


def test_a_run_that_cannot_be_concluded_fails_and_leaves_the_others_alone(
    request_one: RunSpec,
) -> None:
    with contextlib.ExitStack() as held:
        runs = [OpenRun.open(with_seed(request_one, seed), held) for seed in range(3)]
        queue = RunQueue(runs, [Node(3)], len(runs))
        tasks = [queue.begin() for _ in runs]
        for run in runs:
            report_start(run.folder.notices, 0, 5.0)
        runs[0].folder.outcome.write_text("{torn")
        for run in runs[1:]:
            write_record(run.folder.outcome, "outcome", {"status": "finished", "step": 3})
        # A file cannot take its place, as on a full disk.
        runs[1].folder.result.mkdir()
        for task in tasks:
            task.end([], None)
            task.end([], None)
        wait_for_all([task.settle for task in tasks], is_killed=False)
    assert [task.status for task in tasks] == ["failed", "failed", "finished"]
    assert "outcome.json: damaged" in str(tasks[0].error)
    assert "result.json" in str(tasks[1].error)
    assert tasks[2].error is None
    statuses = [mlflow_run(run.folder).info.status for run in runs]
    assert statuses == ["FAILED", "FAILED", "FINISHED"]
    assert read_record(runs[2].folder.result, "result")["status"] == "finished"


@pytest.mark.parametrize(
    ("num_ended", "num_runs", "num_at_a_time", "minutes"),
    [
        (1, 6, 1, 50),
        (1, 6, 2, 20),
        (2, 6, 2, 20),
        (3, 6, 2, 5),
        (1, 4, 2, 10),
        (5, 6, 2, 3.3),
        (8, 9, 8, 10),
        (8, 17, 8, 20),
    ],
)
def test_the_time_left_counts_the_runs_that_are_trained_at_the_same_time(
    num_ended: int, num_runs: int, num_at_a_time: int, minutes: float
) -> None:
    tally = Tally(num_runs, num_at_a_time, began=0.0)
    for _ in range(num_ended):
        tally.count("finished")
    ended = f"{num_ended} of {num_runs} runs"
    assert tally.in_words(now=600.0) == f"{ended}, about {minutes} minutes left"
    assert tally.in_words(now=None) == ended
    for _ in range(num_runs - num_ended):
        tally.count("finished")
    assert tally.in_words(now=600.0) == f"{num_runs} of {num_runs} runs"


def test_failed_runs_do_not_count_as_lengths() -> None:
    """The first of twelve failed after 5 s, so that the others seemed to take 55 s."""
    tally = Tally(12, 1, began=0.0)
    tally.count("failed")
    assert tally.in_words(now=5.0) == "1 of 12 runs"
    tally.count("early_stopping")
    assert tally.in_words(now=3605.0) == "2 of 12 runs, about 10 hours left"


def test_runs_of_several_workers_are_trained_although_those_before_them_fail(
    request_one: RunSpec, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parents = {}
    errors = {
        "seed-0": DivergedError("step 3: loss nan"),
        "seed-1": StopFileError(".stop: stopped at step 3"),
        "seed-2": OSError("no space left"),
        "seed-3": LongRunError("more than a day"),
    }

    def train_the_third(run: OpenRun, compute: Compute) -> Result:
        parents[run.spec.name] = (run.tracker.parent_run_id, run.tracker.parent)
        run.tracker.run_id = f"run of {run.spec.name}"
        run.conclude("failed" if run.spec.name in errors else "finished")
        if run.spec.name in errors:
            raise errors[run.spec.name]
        return run.result()

    monkeypatch.setattr("raybio.runtime.run.parallel.train_opened", train_the_third)
    monkeypatch.setattr("raybio.runtime.run.parallel.planned", lambda run: run.spec.compute)
    compute = replace(request_one.compute, workers=2)
    runs = [with_seed(request_one, seed, compute=compute) for seed in range(5)]
    with pytest.raises(DivergedError, match="step 3: loss nan"):
        train_runs([runs])
    # The first run has failed, and is the parent of the others all the same.
    parent = ("run of seed-0", None)
    assert parents == {"seed-0": (None, None)} | dict.fromkeys(
        ("seed-1", "seed-2", "seed-3", "seed-4"), parent
    )
    printed = capsys.readouterr().out
    assert printed.splitlines() == [
        "seed-0: failed: step 3: loss nan; 1 of 5 runs",
        "seed-1: stopped: .stop: stopped at step 3; 2 of 5 runs",
        "seed-2: failed: no space left; 3 of 5 runs",
        "seed-3: stopped: more than a day; 4 of 5 runs",
        "seed-4: finished; 5 of 5 runs",
    ]

    parents.clear()
    errors["seed-0"] = InterruptedRunError(signal.SIGINT, "stopped at step 3")
    with pytest.raises(InterruptedRunError):
        train_runs([runs])
    assert parents.keys() == {"seed-0"}


def finish(spec: RunSpec) -> None:
    """Train a run to its end in this process."""
    with contextlib.ExitStack() as held:
        run = OpenRun.open(spec, held)
        run.begin(Compute(device="cpu"))
        train_here(spec)
        run.conclude("finished")


def test_a_comparison_with_a_finished_run_of_other_versions_is_reported_and_refused_by_strict(
    request_one: RunSpec, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    short = replace(request_one, config=override_all(request_one.config, {"schedule.max_steps": 2}))
    runs = [with_seed(short, seed) for seed in (0, 1)]
    strict = [replace(run, is_strict=True) for run in runs]
    own = open_run.arithmetic_versions()
    others = own | {"numpy": "9.0"}
    finish(runs[0])

    monkeypatch.setattr("raybio.runtime.run.parallel._train_together", no_room_for_any)
    monkeypatch.setattr(open_run, "arithmetic_versions", lambda: others)
    change = f"numpy: {own['numpy']} -> 9.0"
    with pytest.raises(OtherVersionsError, match=f"seed-0 was trained by: {change}"):
        train_runs([strict])
    assert not runs[1].folder.launch.exists()
    with pytest.raises(ClusterError, match="nothing fits"):
        train_runs([runs])
    out = capsys.readouterr().out
    assert out.startswith(f"warning: other versions have trained 1 finished run (seed-0): {change}")
    # A finished run is only shown, whichever versions are here now.
    assert train_runs([strict[:1]])[0][0].status == "finished"
    assert capsys.readouterr().out == ""


def test_finished_runs_of_other_versions_are_reported_in_one_line_for_all_with_equal_changes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    changes = {f"seed-{seed}": ["numpy: 1 -> 2", "torch: 1 -> 2"] for seed in range(8)}
    warn_of_other_versions(changes | {"equal": [], "other": ["numpy: 0 -> 2"]}, "finished run")
    ending = ". The last bits of their results may be others"
    assert capsys.readouterr().out.splitlines() == [
        "warning: other versions have trained 8 finished runs (seed-0, seed-1, seed-2, seed-3, "
        f"seed-4, seed-5, …): numpy: 1 -> 2; torch: 1 -> 2{ending}",
        f"warning: other versions have trained 1 finished run (other): numpy: 0 -> 2{ending}",
    ]


@pytest.mark.parametrize("damage", ["another format", "torn launch"])
def test_a_finished_run_whose_versions_cannot_be_read_blocks_only_a_strict_comparison(
    request_one: RunSpec, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    short = replace(request_one, config=override_all(request_one.config, {"schedule.max_steps": 2}))
    runs = [with_seed(short, seed) for seed in (0, 1)]
    finish(runs[0])
    folder = runs[0].folder
    (path,) = folder.checkpoints.glob("step-*/manifest.json")
    manifest = json.loads(path.read_text())
    if damage == "another format":
        manifest["format_version"] = 1
    else:
        del manifest["run"]["launch.json"]
        folder.launch.write_text(folder.launch.read_text()[:20])
    del manifest["checksum"]
    path.write_text(json.dumps(manifest | {"checksum": json_digest(manifest)}))
    monkeypatch.setattr("raybio.runtime.run.parallel._train_together", no_room_for_any)
    with pytest.raises(ClusterError, match="nothing fits"):
        train_runs([runs])
    with pytest.raises((CheckpointError, RecordError)):
        train_runs([[replace(run, is_strict=True) for run in runs]])


def no_room_for_any(runs: list[OpenRun], num_runs: int) -> None:
    raise ClusterError("nothing fits")


def test_what_a_single_run_or_all_runs_are_refused_for_is_said_once(
    request_one: RunSpec, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_room(run: OpenRun) -> Compute:
        raise ClusterError("8 workers do not fit")

    def diverge(run: OpenRun, compute: Compute) -> None:
        raise DivergedError("step 3: loss nan")

    monkeypatch.setattr("raybio.runtime.run.parallel.planned", no_room)
    compute = replace(request_one.compute, workers=8)
    with pytest.raises(ClusterError, match="do not fit"):
        train_runs([[with_seed(request_one, seed, compute=compute) for seed in range(3)]])
    monkeypatch.setattr("raybio.runtime.run.parallel.planned", lambda run: run.spec.compute)
    monkeypatch.setattr("raybio.runtime.run.parallel.train_opened", diverge)
    with pytest.raises(DivergedError):
        train_runs([[request_one]])
    assert capsys.readouterr().out == ""


def test_a_signal_does_not_wait_for_the_final_evaluation_of_a_run_that_stopped_early(
    request_one: RunSpec, tiny_store: Store
) -> None:
    early = {
        "schedule.max_steps": 40,
        "schedule.evaluate_every_steps": 1,
        "schedule.early_stopping_metric": "val/link_mrr",
        "schedule.early_stopping_patience": 2,
        "optim.peak_lr": 1e-12,
    }
    spec = replace(request_one, config=override_all(request_one.config, early))
    with contextlib.ExitStack() as held:
        run = OpenRun.open(spec, held)
        assert not run.is_trained
        before_it = str(driver._interrupted(run, [signal.SIGTERM]))
        assert before_it == "SIGTERM: stopped at step 0; the same command resumes the run"
        system = METHODS[spec.method].build(spec.config, spec.store)
        checkpoints = CheckpointStore(run.folder.checkpoints)
        *before, last = fit(system, spec.config, checkpoints=checkpoints)
        assert last.reason == "early_stopping" and last.step < 40
        assert run.is_trained
        after_it = str(driver._interrupted(run, [signal.SIGTERM]))
        assert after_it.endswith("the same command continues the final evaluation")
        state = run.folder.newest_checkpoint / "state.json"
        state.write_text(state.read_text()[:50])
        assert not run.is_trained


def test_a_stop_file_counts_from_the_command_on_and_not_from_the_beginning_of_the_run(
    request_one: RunSpec,
) -> None:
    folder = request_one.folder
    folder.make()
    folder.stop.touch()
    with contextlib.ExitStack() as held:
        run = OpenRun.open(request_one, held)
        assert not folder.stop.exists(), "a run that was stopped goes on with the same command"
        folder.stop.touch()
        run.begin(run.spec.compute)
        assert folder.stop.exists(), "a run is stopped while it waits for its turn"


def test_a_run_that_another_driver_has_taken_over_ends_alone_and_its_tracked_run_goes_on(
    request_one: RunSpec, bucket: BucketPath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    monkeypatch.setenv("RAYBIO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(leases, "HEARTBEAT_SECONDS", 0.1)
    monkeypatch.setattr("raybio.runtime.run.run_queue.relay_of", lambda runs: None)
    # In place of Ray, which trains nothing here: a task is the name of its run.
    cancelled: list[str] = []
    others: list[leases.Lease] = []
    lost = threading.Event()
    monkeypatch.setattr(RunTask, "submit", lambda self: self.run.spec.name)
    monkeypatch.setattr(ray, "cancel", lambda name, force: cancelled.append(name))
    monkeypatch.setattr(ray, "get", lambda name: None)

    def wait(names: list[str], timeout: float) -> tuple[list[str], list[str]]:
        if len(names) == 3 and not others:
            others.append(taken_from(BucketFolder(bucket / "seed-1", is_patient=False)))
        time.sleep(0.05)
        return ([] if not cancelled else names), []

    monkeypatch.setattr(ray, "wait", wait)
    place = {"bucket": bucket, "runs": spool_of(bucket)}
    place["tracking"] = f"sqlite:///{tmp_path / 'mlflow.db'}"
    tasks: list[RunTask] = []
    with pytest.raises(TakenOverError), contextlib.ExitStack() as held:
        specs = [replace(with_seed(request_one, seed), **place) for seed in range(3)]
        runs = [OpenRun.open(spec, held) for spec in specs]
        queue = RunQueue(runs, [Node(2)], 3)
        runs[1].tracker.start()
        assert runs[1].tracker.is_open.wait(60)
        train_queue(queue, tasks, [], SimpleNamespace(caught=[]))  # type: ignore[arg-type]
        lost.set()
        others[0].release()
    assert lost.is_set()
    assert cancelled == ["seed-1"]
    assert len(tasks) == 3
    errors = {task.run.spec.name: type(task.error) for task in tasks}
    assert [name for name, kind in errors.items() if kind is TakenOverError] == ["seed-1"]
    for task in tasks:
        task.run.settle(str(task.status), 60)
    status = [mlflow_run(task.run.folder).info.status for task in tasks]
    assert status == ["FAILED", "RUNNING", "FAILED"]


def wait_to_be_stopped(rank: int, folder: Path) -> None:
    """The run waits before its eleventh step until a signal stops it."""
    from raybio.runtime.run.run_loop import STOP_POLL_SECONDS
    from raybio.training.step import TrainStep

    original = TrainStep.launch

    def step(self, number, batch):
        if number == 10:
            # Ray may give this process to the task of another run.
            TrainStep.launch = original
            while not RunFolder(folder.parent, folder.name).stop.exists():
                time.sleep(0.02)
            time.sleep(STOP_POLL_SECONDS)  # the run looks again after this step
        return original(self, number, batch)

    TrainStep.launch = step


@pytest.mark.nightly
@pytest.mark.slow
def test_runs_at_the_same_time_that_a_signal_stopped_end_with_the_weights_of_runs_alone(
    ray_cluster: None, request_one: RunSpec, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Three runs on two CPUs: one thread each, as recorded."""
    specs = [with_seed(request_one, seed) for seed in range(3)]
    reached = threading.Event()

    def interrupt() -> None:
        deadline = time.monotonic() + 1500
        while time.monotonic() < deadline:
            if sum(10 in steps_of(spec.folder) for spec in specs) == 2:
                reached.set()
                break
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    watcher = threading.Thread(target=interrupt)
    watcher.start()
    with pytest.raises(InterruptedRunError, match="SIGINT: 3 of 3 runs are not finished") as error:
        train_runs([[replace(spec, setup=wait_to_be_stopped) for spec in specs]])
    watcher.join()
    assert reached.is_set()
    assert error.value.exit_code == 130
    # Two had all CPUs, so the third had not begun.
    assert sorted(steps_of(spec.folder) for spec in specs) == [[], [*range(12)], [*range(12)]]
    for spec in specs:
        stopped = read_record(spec.folder.result, "result")
        assert (stopped["status"], stopped["step"]) == ("stopped", len(steps_of(spec.folder)[1:]))
        assert not spec.folder.failure.exists()
        assert not spec.folder.stop.exists()
    capfd.readouterr()
    (results,) = train_runs([specs])
    shown = capfd.readouterr()
    assert "2 runs at a time: each takes 1 CPU; 2 fit the cluster's 2 CPU" in shown.out
    for spec, result in zip(specs, results, strict=True):
        assert f"{spec.name}: finished; " in shown.err
        assert result.status == "finished" and result.config["seed"] == spec.config.seed
        assert steps_of(result.folder) == list(range(25))
        assert read_record(result.folder.launch, "launch")["threads_per_worker"] == 1
        for path in (result.folder.plots, result.folder.export, result.folder.unit_scores):
            assert path.exists(), path
        assert mlflow_run(result.folder).info.status == "FINISHED"
        assert mlflow_run(result.folder).data.metrics["final/val/lrap"] > 0
    # By its own command, without options: a run that was stopped.
    alone = replace(specs[0], runs=specs[0].runs.parent / "alone")
    by_itself = train(replace(alone, compute=Compute(cpus_per_worker=1)))
    assert by_itself.weights_sha256 == results[0].weights_sha256
    assert by_itself.final.scores == results[0].final.scores
    # Without Ray: the run that waited for CPUs.
    system = METHODS["sppt_protein"].build(specs[2].config, specs[2].store)
    assert list(fit(system, specs[2].config, checkpoints=CheckpointStore(tmp_path / "here")))
    assert weights_digest(system.model.state_dict().items()) == results[2].weights_sha256
    first, *others = [mlflow_run(result.folder) for result in results]
    assert {run.data.tags["mlflow.parentRunId"] for run in others} == {first.info.run_id}
    assert "mlflow.parentRunId" not in first.data.tags
    assert len({run.info.run_id for run in (first, *others)}) == 3
    assert len({result.weights_sha256 for result in results}) == 3
    (again,) = train_runs([specs])
    assert all(result.was_finished for result in again)


@pytest.mark.nightly
def test_what_is_the_same_in_all_runs_of_a_comparison_is_scored_once(
    ray_cluster: None, request_one: RunSpec
) -> None:
    variation = Variation("objective.lambda_spml", (0, 0.25))
    result, table = compare(request_one, [variation])
    assert table.remarks[-1].startswith("cost: 3 runs, ")
    paths = [*(request_one.runs / ".untrained").glob("*.json")]
    content = {}
    for path in paths:
        record = json.loads(path.read_text())
        assert record["identity"]["method"] == "sppt_protein"
        content |= json.loads(record["content"])
    assert len(content) == len(paths)
    rows = [row[0] for row in table.cells("val")[1]]
    assert rows[:2] == ["chance", "random"] and rows[-1] == "lambda_spml = 0.5 (this run)"
    for name in ("one", "one.lambda_spml-0", "one.lambda_spml-0.25"):
        outcome = read_record(RunFolder(request_one.runs, name).outcome, "outcome")
        for stage, scores in content.items():
            assert outcome["final"]["scores"][stage] == scores["scores"]
        assert outcome["final"]["scores"]["trained"] != content["initial"]["scores"]
    # The run as it was before there was anything to share.
    fresh = train(
        replace(
            request_one, runs=request_one.runs.parent / "alone", compute=Compute(cpus_per_worker=1)
        )
    )
    assert fresh.final.scores == result.final.scores
    assert fresh.weights_sha256 == result.weights_sha256


def diverge(rank: int, folder: Path) -> None:
    """The second run has a loss that is not finite, at its tenth step."""
    if folder.name == "seed-1":
        from raybio.training.step import TrainStep

        original = TrainStep.launch

        def step(self, number, batch):
            if number == 10:
                # Ray may give this process to the task of the next run.
                TrainStep.launch = original
                raise DivergedError("step 10: the loss is nan")
            return original(self, number, batch)

        TrainStep.launch = step


@pytest.mark.nightly
def test_a_run_that_fails_leaves_the_others_alone_and_is_all_that_the_next_command_trains(
    ray_cluster: None, request_one: RunSpec, capfd: pytest.CaptureFixture[str]
) -> None:
    specs = [with_seed(request_one, seed, setup=diverge) for seed in range(3)]
    with pytest.raises(DivergedError, match="step 10: the loss is nan"):
        train_runs([specs])
    assert "seed-1: failed: step 10: the loss is nan" in capfd.readouterr().err
    status = {spec.name: read_record(spec.folder.result, "result")["status"] for spec in specs}
    assert status == {"seed-0": "finished", "seed-1": "failed", "seed-2": "finished"}
    (results,) = train_runs([[replace(spec, setup=None) for spec in specs]])
    assert [result.was_finished for result in results] == [True, False, True]
    assert steps_of(results[1].folder) == list(range(25))
    assert mlflow_run(results[1].folder).info.status == "FINISHED"
    alone = replace(with_seed(request_one, 1), runs=request_one.runs.parent / "alone")
    by_itself = train(replace(alone, compute=Compute(cpus_per_worker=1)))
    assert by_itself.weights_sha256 == results[1].weights_sha256


@pytest.mark.slow
@pytest.mark.parametrize("is_parent", [True, False])
def test_runs_are_trained_although_one_of_them_cannot_begin(
    is_parent: bool,
    ray_cluster: None,
    request_one: RunSpec,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In MLflow, the others belong to the first run, which may be the one that is refused."""
    specs = [with_seed(request_one, seed) for seed in range(2)]
    refused, trained = specs if is_parent else specs[::-1]
    begin = OpenRun.begin

    def begin_the_other(run: OpenRun, compute: Compute) -> tuple[str, list[str]]:
        if run.spec.name == refused.name:
            raise CheckpointError("other versions")
        return begin(run, compute)

    monkeypatch.setattr(OpenRun, "begin", begin_the_other)
    with pytest.raises(CheckpointError, match="other versions"):
        train_runs([specs])
    assert read_record(trained.folder.result, "result")["status"] == "finished"
    assert mlflow_run(trained.folder).info.status == "FINISHED"
    assert read_record(refused.folder.result, "result") is None
    assert f"{refused.name}: given up: other versions" in capsys.readouterr().out


def test_a_run_whose_files_cannot_be_read_for_a_while_leaves_the_others_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An OSError of one run ended the tasks of all."""

    class Unreadable:
        run = SimpleNamespace(check_lease=lambda: None)

        def follow(self) -> None:
            raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr("ray.wait", lambda references, timeout: ([], references))
    assert _wait_for_ends({"reference": Unreadable()}) == {}


def begin_again(rank: int, folder: Path) -> None:
    """Another driver starts the run while this task of an older start is on its way."""
    RunFolder(folder.parent, folder.name).begin_start()


def begin_again_and_fail(rank: int, folder: Path) -> None:
    """As ``begin_again``; then this task fails for good."""
    begin_again(rank, folder)
    raise ConfigError("of the older start")


@pytest.mark.slow
@pytest.mark.parametrize("setup", [begin_again, begin_again_and_fail])
def test_a_task_of_an_older_start_leaves_the_folder_alone(
    ray_cluster: None, request_one: RunSpec, setup: object
) -> None:
    with contextlib.ExitStack() as held:
        run = OpenRun.open(replace(request_one, setup=setup), held)
        start, _ = run.begin(run.spec.compute)
        train_in_task(WorkerSpec(run=run.on_workers(), threads=1, start=start), use_gpu=False)
        folder = run.folder
        assert not folder.is_newest_start(start)
        assert steps_of(folder) == [] and folder.newest_checkpoint is None
        for path in (folder.outcome, folder.failure, folder.export):
            assert not path.exists(), path


class Job:
    """``jobs/sppt_protein.py --seeds 2`` on the tiny store."""

    def __init__(self, folder: Path, store: Store, config: TrainingConfig) -> None:
        self.folder = folder
        self.store = store
        (folder / "config.yaml").write_text(yaml.safe_dump(config.to_mapping()))

    def start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-W", "ignore", str(ROOT / "jobs" / "sppt_protein.py")]
        command += ["--store", str(self.store.path), "--config", str(self.folder / "config.yaml")]
        command += ["--runs", str(self.folder / "runs"), "--name", name, "--no-baseline"]
        with open(self.folder / "log", "ab") as log:
            return subprocess.Popen(
                [*command, *arguments],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=dict(os.environ),
                start_new_session=True,
            )

    def finish(self, name: str, *arguments: str) -> None:
        process = self.start(name, *arguments)
        assert process.wait(timeout=1500) == 0, (self.folder / "log").read_text()[-3000:]

    def folders(self, name: str) -> list[RunFolder]:
        return [RunFolder(self.folder / "runs", run) for run in (name, f"{name}.seed-1")]

    def wait_for_step(self, name: str, step: int, process: subprocess.Popen[bytes]) -> None:
        """Wait until both runs have reached a step."""
        for folder in self.folders(name):
            while not any(number >= step for number in steps_of(folder)):
                assert process.poll() is None, (self.folder / "log").read_text()[-3000:]
                time.sleep(0.02)


def weights_of(folder: RunFolder) -> str:
    return read_record(folder.result, "result")["weights_sha256"]


@pytest.mark.nightly
def test_a_killed_or_stopped_command_given_again_ends_with_the_weights_of_an_unbroken_one(
    tmp_path: Path, tiny_store: Store, tiny_training: TrainingConfig, empty_database: Path
) -> None:
    """Killed; stopped by Ctrl-C; then one run by its own command, and the other by the whole."""
    shutil.copy(empty_database, tmp_path)
    config = override_all(
        tiny_training, {"schedule.max_steps": 1000, "schedule.evaluate_every_steps": 250}
    )
    job = Job(tmp_path, tiny_store, config)
    job.finish("unbroken", "--seeds", "2")

    process = job.start("killed", "--seeds", "2")
    job.wait_for_step("killed", int(np.random.default_rng().integers(1, 60)), process)
    process.kill()
    process.wait()
    reached = 0
    for folder in job.folders("killed"):
        # Tasks outlive their driver for about two seconds, and write hundreds of steps meanwhile.
        with folder.lock("writer", timeout_seconds=60):
            reached = max(reached, *steps_of(folder))
        assert read_record(folder.result, "result") is None

    process = job.start("killed", "--seeds", "2")
    job.wait_for_step("killed", reached + 20, process)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(timeout=1500) == 130
    log = (tmp_path / "log").read_text()
    assert "SIGINT: 2 of 2 runs are not finished (killed, killed.seed-1); the same command" in log
    for folder in job.folders("killed"):
        result = read_record(folder.result, "result")
        assert result["status"] == "stopped"
        assert Path(result["checkpoint"]).name == f"step-{result['step']:08d}"
        assert not folder.stop.exists()

    job.finish("killed.seed-1", "--set", "seed=1")
    assert json.loads(job.folders("killed")[1].launch.read_text())["threads_per_worker"] == 1
    job.finish("killed", "--seeds", "2")
    for ours, unbroken in zip(job.folders("killed"), job.folders("unbroken"), strict=True):
        assert weights_of(ours) == weights_of(unbroken)
        assert steps_of(ours) == list(range(1001))
