"""What a sweep's driver notes and tracks, and how it ends: its own part, without a training."""

import re
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from mlflow import MlflowClient

from raybio.core.errors import (
    ClusterError,
    ConfigError,
    InterruptedRunError,
    LongRunError,
    OtherVersionsError,
)
from raybio.core.records import read_record, write_record
from raybio.runtime.run import open_run, run_loop
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.metrics_log import read_reports
from raybio.runtime.run.spec import Compute, RunSpec
from raybio.runtime.tracking.tracker import Tracker
from raybio.runtime.tune.callback import TrialCallback
from raybio.runtime.tune.driver import _compare_versions, sweep
from raybio.runtime.tune.run_trial import run_trial
from raybio.runtime.tune.search import TRIAL
from raybio.runtime.tune.trial import (
    ENDED,
    FAILED,
    FINISHED,
    INTERRUPTED,
    STOPPED,
    TRIAL_RECORD,
    SweepSpec,
    Trial,
    earlier_trials,
    new_trial_record,
    status_of,
)
from raybio.store.store import Store
from raybio.training.settings import TrainingConfig
from tests.runtime.tune.sweep_folder import LAMBDA, METRIC, RATE, leave, of, space_of, spec_of


@pytest.fixture
def database(tmp_path: Path, empty_database: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("raybio.runtime.tracking.tracker.FORWARD_SECONDS", 0.1)
    shutil.copy(empty_database, tmp_path)
    return f"sqlite:///{tmp_path / 'mlflow.db'}"


def callback_of(spec: SweepSpec, uri: str = "http://127.0.0.1:9") -> TrialCallback:
    """A new driver's; nobody answers at the usual address."""
    folder = RunFolder(spec.path.parent, spec.path.name)
    folder.make()
    return TrialCallback(folder, spec, Tracker(folder, uri, "sppt_protein", {}, "d" * 64))


def tuned(trial: Trial, number: int = 0) -> Any:
    """A trial as Ray Tune shows it."""
    return SimpleNamespace(trial_id=str(number), config={TRIAL: asdict(trial)})


def begin(callback: TrialCallback, *trials: Trial) -> None:
    for number, trial in enumerate(trials):
        callback.on_trial_start(0, [], tuned(trial, number))


def runs_of(uri: str) -> list[Any]:
    client = MlflowClient(uri)
    return list(
        client.search_runs([experiment.experiment_id for experiment in client.search_experiments()])
    )


def statuses(uri: str) -> dict[str, str]:
    return {run.info.run_name: run.info.status for run in runs_of(uri)}


def wait_until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # pytest's limit ends a hang
        time.sleep(0.05)


def test_trials_of_earlier_starts_stay_listed_however_often_the_driver_is_killed(
    tmp_path: Path,
) -> None:
    spec = spec_of(tmp_path)
    trials = [of(0.0), of(0.1), of(0.5)]
    for first_ones in (3, 1, 2):  # the later drivers are killed while trials are told of again
        begin(callback_of(spec), *trials[:first_ones])
        assert earlier_trials(spec) == trials
    successor = Trial(trials[1].settings, branch="abc")
    callback = callback_of(spec)
    begin(callback, *trials[:2])
    begin(callback, trials[0], successor)
    assert earlier_trials(spec) == [trials[0], successor, trials[2]]
    folder = spec.folder(trials[1])
    assert status_of(folder) == "continued as another trial"


def test_at_a_signal_all_open_runs_are_marked_as_killed_at_once(
    tmp_path: Path, database: str
) -> None:
    spec = spec_of(tmp_path)
    callback = callback_of(spec, database)
    callback.parent.start()
    begin(callback, of(0.0), of(0.1))
    wait_until(lambda: list(statuses(database).values()) == ["RUNNING"] * 3)
    callback.kill()
    wait_until(lambda: list(statuses(database).values()) == ["KILLED"] * 3)
    callback.close(is_killed=True)
    callback.parent.finish("KILLED")


def test_a_killed_sweep_does_not_wait_long_for_a_tracking_server_that_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raybio.runtime.tracking.tracker.KILLED_SECONDS", 0.5)
    monkeypatch.setattr("raybio.runtime.tracking.tracker.FINISH_SECONDS", 1e6)
    callback = callback_of(spec_of(tmp_path))
    begin(callback, of(0.0), of(0.1))
    callback.close(is_killed=True)  # and does not wait for the end of a sweep that was not killed


def test_mlflow_has_the_best_step_the_checkpoint_and_the_reason_of_a_failure(
    tmp_path: Path, database: str
) -> None:
    spec = spec_of(tmp_path)
    callback = callback_of(spec, database)
    callback.parent.start()
    begin(callback, of(0.0), of(0.1))
    good, bad = leave(spec, of(0.0), {10: 0.2, 20: 0.7, 30: 0.6}), leave(spec, of(0.1), {})
    for folder in (good, bad):
        (folder.path / ENDED).unlink()
    for step in (20, 30):
        (good.checkpoints / f"step-{step:08d}").mkdir(parents=True)
    write_record(good.outcome, "outcome", {"status": "finished"})
    write_record(
        bad.failure, "failure", {"kind": "DivergedError", "message": "the loss is not finite"}
    )
    for number, trial in enumerate((of(0.0), of(0.1))):
        callback.on_trial_complete(0, [], tuned(trial, number))
    callback.close(is_killed=False)
    callback.parent.finish("FINISHED")
    client = MlflowClient(database)
    runs = {
        run.info.run_name: run.data
        for run in client.search_runs([client.get_experiment_by_name("sppt_protein").experiment_id])
    }
    assert runs[good.name].tags["best_step"] == "20"
    assert runs[good.name].tags["checkpoint"] == str(good.checkpoints / "step-00000030")
    assert runs[good.name].metrics[f"best/{METRIC}"] == 0.7
    assert (runs[bad.name].tags["ended"], runs[bad.name].tags["error"]) == (
        FAILED,
        "the loss is not finite",
    )
    assert runs[callback.folder.name].metrics[f"best/{METRIC}"] == 0.7


def test_the_best_value_of_a_resumed_sweep_begins_with_that_of_its_earlier_trials(
    tmp_path: Path,
) -> None:
    spec = spec_of(tmp_path)
    leave(spec, of(0.0), {10: 0.8})
    leave(spec, of(0.1), {10: 0.9}, FAILED)
    callback = callback_of(spec)
    begin(callback, of(0.5))
    folder = leave(spec, of(0.5), {10: 0.3})
    (folder.path / ENDED).unlink()
    callback.on_trial_complete(0, [], tuned(of(0.5)))
    assert [one["metrics"] for one in read_reports(callback.folder.metrics)] == [
        {f"best/{METRIC}": 0.8}
    ]


@pytest.mark.parametrize(
    ("kind", "status", "kept"),
    [("asha", FINISHED, [30]), ("asha", FAILED, [10, 20, 30]), ("pbt", FINISHED, [10, 20, 30])],
)
def test_ended_trials_keep_only_their_newest_checkpoint(
    tmp_path: Path, kind: str, status: str, kept: list[int]
) -> None:
    spec = spec_of(tmp_path, scheduler={"kind": kind}, search={"kind": "random"})
    callback = callback_of(spec)
    begin(callback, of(0.5))
    folder = spec.folder(of(0.5))
    for step in (10, 20, 30):
        (folder.checkpoints / f"step-{step:08d}").mkdir(parents=True)
    if status == FAILED:
        write_record(
            folder.failure,
            "failure",
            {"kind": "ClusterError", "message": "it may go on when it is started again"},
        )
    write_record(folder.outcome, "outcome", {"status": "finished"})
    callback.on_trial_complete(0, [], tuned(of(0.5)))
    assert status_of(folder) == status
    assert sorted(path.name for path in folder.checkpoints.iterdir()) == [
        f"step-{step:08d}" for step in kept
    ]


def test_the_reason_of_a_failed_trial_comes_from_tunes_own_file_and_not_from_its_copy(
    tmp_path: Path, capsys
) -> None:
    spec = spec_of(tmp_path)
    callback, trial = callback_of(spec), tuned(of(0.5))
    (tmp_path / "error.txt").write_text(
        "Failure # 1\nthe node was low on memory: 9 of 10 GB\nFailure # 2\n(pid=7) x\n"
    )
    trial.error_file, trial.num_failures, trial.get_error = (
        str(tmp_path / "error.txt"),
        2,
        lambda: None,
    )
    callback.on_trial_error(0, [], trial)
    assert read_record(spec.folder(of(0.5)).failure, "failure")["message"] == (
        "its process ended 2 times: the node was low on memory: 9 of 10 GB"
    )
    assert "low on memory" in capsys.readouterr().out


@pytest.fixture
def request_to(
    tmp_path: Path, tiny_store: Store, tiny_training: TrainingConfig, database: str
) -> SweepSpec:
    return SweepSpec(
        space=space_of(tmp_path),
        run=RunSpec(
            method="sppt_protein",
            store=Path(tiny_store.path),
            name="mine",
            tracking=database,
            config=tiny_training,
            runs=tmp_path / "sweeps",
        ),
    )


def test_a_sweep_that_breaks_off_ends_its_tracked_runs(
    request_to: SweepSpec, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_off(spec: SweepSpec, callback: TrialCallback, *_: Any) -> None:
        begin(callback, of(0.0))
        raise ClusterError("the cluster is gone")

    monkeypatch.setattr("raybio.runtime.tune.driver._run_tune", break_off)
    with pytest.raises(ClusterError, match="the cluster is gone"):
        sweep(replace(request_to, options={"budget": ["num_trials=8"]}))
    assert sorted(statuses(database).values()) == ["FAILED", "KILLED"]
    launch = read_record(request_to.run.runs / "mine" / "launch.json", "launch")
    # For the next start of the sweep, and for the job that trains its best settings.
    assert launch == {"given": {"budget": ["num_trials=8"]}, "tracking": request_to.run.tracking}


@pytest.mark.parametrize("is_stopped", [True, False])
def test_a_trial_that_a_signal_ends_may_resume_and_one_that_the_scheduler_ends_may_not(
    is_stopped: bool, tmp_path: Path
) -> None:
    spec = spec_of(tmp_path)
    callback = callback_of(spec)
    trial = of(0.0)
    begin(callback, trial)
    if is_stopped:
        spec.stop.touch()
    callback.on_trial_complete(0, [], tuned(trial))
    assert status_of(spec.folder(trial)) == (INTERRUPTED if is_stopped else STOPPED)


@pytest.mark.parametrize("damaged", ["failure.json", "notices.jsonl", "ended.json"])
def test_a_trial_that_cannot_be_concluded_leaves_the_others_to_be_ended(
    damaged: str,
    request_to: SweepSpec,
    database: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def break_off(spec: SweepSpec, callback: TrialCallback, *_: Any) -> None:
        first, second = of(0.0), of(0.1)
        begin(callback, first, second)
        path = spec.folder(first).path / damaged
        if damaged == "notices.jsonl":
            path.mkdir()
        else:
            path.write_text("{")
        raise ClusterError("the cluster is gone")

    monkeypatch.setattr("raybio.runtime.tune.driver._run_tune", break_off)
    with pytest.raises(ClusterError, match="the cluster is gone"):
        sweep(request_to)
    assert sorted(statuses(database).values()) == ["FAILED", "KILLED", "KILLED"]
    assert damaged in caplog.text


def nothing_goes(rank: int, folder: Path) -> None:
    raise ConfigError("there is nothing to learn")


def test_a_sweep_of_which_nothing_came_is_an_error_with_the_reason(
    request_to: SweepSpec, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = [of(0.0), of(0.1)]

    def run_here(spec: SweepSpec, callback: TrialCallback, signals: Any, held: None) -> SweepSpec:
        begin(callback, *trials)
        for number, trial in enumerate(trials):
            run_trial(asdict(trial), spec)
            callback.on_trial_complete(0, [], tuned(trial, number))
        return spec

    monkeypatch.setattr("raybio.runtime.tune.driver._run_tune", run_here)
    monkeypatch.setattr("ray.tune.get_checkpoint", lambda: None)  # these are no processes of Tune
    failing = replace(request_to, run=replace(request_to.run, setup=nothing_goes))
    with pytest.raises(
        ClusterError, match=r"none of 2 trials came to an evaluation.*1: there is nothing to learn"
    ):
        sweep(failing)
    assert sorted(statuses(database).values()) == ["FAILED"] * 3


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, float]]:
    """(step, value) that a trial reports to Tune. Trials run in this process, without Ray."""
    heard: list[tuple[int, float]] = []
    monkeypatch.setattr(
        "ray.tune.report", lambda report, **_: heard.append((report["step"], report[METRIC]))
    )
    monkeypatch.setattr("ray.tune.get_checkpoint", lambda: None)
    task_worker = "raybio.runtime.run.task_worker"
    monkeypatch.setattr(f"{task_worker}.start_preparation", lambda prepare: None)
    monkeypatch.setattr(f"{task_worker}.preemption.notice_of_this_node", lambda: lambda: False)
    return heard


def begin_trial(spec: SweepSpec, trial: Trial) -> RunFolder:
    folder = spec.folder(trial)
    folder.make()
    write_record(folder.path / TRIAL_RECORD, "trial", new_trial_record(trial))
    return folder


class Killed(BaseException):
    """In place of SIGKILL."""


@pytest.mark.parametrize("max_steps", [2, 4])
def test_a_trial_that_is_killed_between_a_checkpoint_and_its_report_reports_that_step(
    request_to: SweepSpec,
    tmp_path: Path,
    heard: list[tuple[int, float]],
    monkeypatch: pytest.MonkeyPatch,
    max_steps: int,
) -> None:
    budget = {"num_trials": 8, "max_steps": max_steps, "grace_steps": 2}
    space = space_of(tmp_path, budget=budget)
    spec = replace(request_to, space=space)
    begin_trial(spec, of(0.5))
    run_trial(asdict(of(0.5)), spec)
    unbroken = heard.copy()
    assert [step for step, _ in unbroken] == list(range(2, max_steps + 1, 2))
    shutil.rmtree(spec.folder(of(0.5)).path)
    heard.clear()

    export = run_loop._export_if_best

    def kill_at_the_end(training: Any, goal: Any, report: Any) -> None:
        if report.step == max_steps:
            raise Killed
        export(training, goal, report)

    folder = begin_trial(spec, of(0.5))
    monkeypatch.setattr(run_loop, "_export_if_best", kill_at_the_end)
    with pytest.raises(Killed):
        run_trial(asdict(of(0.5)), spec)
    assert folder.newest_checkpoint is not None
    assert folder.newest_checkpoint.name == f"step-{max_steps:08d}"
    monkeypatch.setattr(run_loop, "_export_if_best", export)
    heard.clear()  # Tune hears all again
    run_trial(asdict(of(0.5)), spec)
    assert heard == unbroken
    assert not folder.failure.exists()


def test_a_member_of_a_population_begins_with_its_donors_weights_also_after_a_killed_driver(
    request_to: SweepSpec, tmp_path: Path, heard: list[tuple[int, float]]
) -> None:
    def spec_until(max_steps: int) -> SweepSpec:
        budget = {"num_trials": 8, "max_steps": max_steps, "grace_steps": 2}
        rates = {RATE: {"choice": [1e-3, 2e-3]}}
        random = {"scheduler": {"kind": "pbt"}, "search": {"kind": "random"}}
        space = space_of(tmp_path, budget=budget, space=rates, **random)
        return replace(request_to, space=space)

    def train_trial(spec: SweepSpec, trial: Trial) -> RunFolder:
        folder = begin_trial(spec, trial)
        run_trial(asdict(trial), spec)
        return folder

    donor = Trial({RATE: 1e-3})
    name = train_trial(spec_until(4), donor).path.name
    heard.clear()
    folder = train_trial(spec_until(6), Trial({RATE: 2e-3}, branch="abc123", donor=name))
    reports = read_reports(folder.metrics)
    assert [each["step"] for each in reports if each.get("exploited_from") == name][-1] == 4
    assert [each["step"] for each in reports if "exploited_from" not in each][0] == 5
    assert [step for step, _ in heard] == [4, 6]

    # By now the donor may be at the end, and its newest checkpoint leaves nothing to train.
    successor = Trial({RATE: 2e-3}, branch="0a1b2c", donor=name)
    reports = read_reports(train_trial(spec_until(4), successor).metrics)
    assert [each["step"] for each in reports if each.get("exploited_from") == name][-1] == 2
    assert [each["step"] for each in reports if "exploited_from" not in each][0] == 3

    with pytest.raises(ClusterError, match="trial-gone: has no checkpoint to resume from"):
        train_trial(spec_until(6), Trial({RATE: 2e-3}, branch="def456", donor="trial-gone"))


def test_a_metric_that_no_trial_can_have_ends_the_sweep_before_others_train_for_it(
    request_to: SweepSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = "metric: 'val/nonsense' is not evaluated; want one of val/link_mrr"

    def find_it_out(
        spec: SweepSpec, callback: TrialCallback, signals: Any, held: None
    ) -> SweepSpec:
        begin(callback, of(0.0), of(0.1))
        failure = {"kind": "MetricError", "message": reason}
        write_record(spec.folder(of(0.0)).failure, "failure", failure)
        callback.on_trial_complete(0, [], tuned(of(0.0)))
        run_trial(asdict(of(0.1)), spec)
        assert not spec.folder(of(0.1)).identity.exists()  # it has not begun
        return spec

    monkeypatch.setattr("raybio.runtime.tune.driver._run_tune", find_it_out)
    with pytest.raises(ConfigError, match=f"{reason}.*another --name"):
        sweep(request_to)


def trains_here(*trials: Trial, threads: int = 1) -> Callable[..., SweepSpec]:
    """In place of Ray Tune: train trials in this process, one after the other."""

    def run_here(spec: SweepSpec, callback: TrialCallback, *_: Any) -> SweepSpec:
        begin(callback, *trials)
        compute = Compute(cpus_per_worker=threads)
        spec = replace(spec, run=replace(spec.run, compute=compute))
        for number, trial in enumerate(trials):
            run_trial(asdict(trial), spec)
            callback.on_trial_complete(0, [], tuned(trial, number))
        return spec

    return run_here


GRID = {
    "budget": {"num_trials": 2, "max_steps": 4, "grace_steps": 2},
    "space": {LAMBDA: {"choice": [0.0, 0.5]}},
    "scheduler": {"kind": "none"},
    "search": {"kind": "grid"},
}


def files_of(sweep: Path) -> dict[Path, bytes]:
    """Contents of all files but ``run.json``, which each start writes again, and locks."""
    return {
        path: path.read_bytes()
        for path in sweep.rglob("*")
        if path.is_file() and path.name not in ("run.json", "config.yaml", ".driver.lock")
    }


@pytest.mark.usefixtures("heard")
def test_a_sweep_whose_trials_other_versions_have_trained_is_reported_and_refused_by_strict(
    request_to: SweepSpec,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    spec = replace(request_to, space=space_of(tmp_path, **GRID))
    strict = replace(spec, run=replace(spec.run, is_strict=True))
    first, second = Trial({LAMBDA: 0.0}), Trial({LAMBDA: 0.5})
    own = open_run.arithmetic_versions()
    others = own | {"torch": "9.0"}

    def start(spec: SweepSpec, versions: dict[str, str], *trials: Trial) -> str:
        monkeypatch.setattr(open_run, "arithmetic_versions", lambda: versions)
        monkeypatch.setattr("raybio.runtime.tune.driver._run_tune", trains_here(*trials))
        capsys.readouterr()
        sweep(spec)
        return capsys.readouterr().out

    assert "other versions" not in start(strict, own, first)
    assert "other versions" not in start(strict, own, first)
    files = files_of(spec.path)
    change = f"torch: {own['torch']} -> 9.0"
    with pytest.raises(
        OtherVersionsError, match=f"trial-.*{re.escape(change)}.*leave out --strict"
    ):
        start(strict, others, second)
    assert files_of(spec.path) == files
    name = f"{spec.path.name}/trials/{spec.folder(first).path.name}"
    warning = f"warning: other versions have trained 1 trial ({name}): {change}."
    assert warning in start(spec, others, second)
    # All trials have ended, and nothing of the sweep is trained any more.
    for versions in (own, others):
        assert "other versions" not in start(strict, versions)
    # The second trial is finished, too, and one that is repeated would be compared with it.
    (spec.folder(first).path / ENDED).unlink()
    with pytest.raises(OtherVersionsError, match=f"torch: 9.0 -> {re.escape(own['torch'])}"):
        start(strict, own, first)


@pytest.mark.usefixtures("heard")
def test_a_trial_that_failed_for_good_is_not_compared(
    request_to: SweepSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = replace(request_to, space=space_of(tmp_path, **GRID))
    first = Trial({LAMBDA: 0.0})
    monkeypatch.setattr("raybio.runtime.tune.driver._run_tune", trains_here(first))
    sweep(spec)
    others = open_run.arithmetic_versions() | {"torch": "9.0"}
    monkeypatch.setattr(open_run, "arithmetic_versions", lambda: others)
    trial = spec.folder(first).path
    write_record(trial / ENDED, "trial end", {"status": FAILED})
    sweep_folder = RunFolder(spec.path.parent, spec.path.name, option=None)
    for kind, refusal in (
        ("DivergedError", nullcontext()),
        ("ClusterError", pytest.raises(OtherVersionsError)),
    ):
        write_record(trial / "failure.json", "failure", {"kind": kind, "error": "it ended"})
        with refusal:
            _compare_versions(sweep_folder, is_strict=True)


@pytest.mark.usefixtures("heard")
def test_a_trial_that_was_half_trained_with_other_threads_ends_a_strict_sweep(
    request_to: SweepSpec,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    spec = replace(request_to, space=space_of(tmp_path, **GRID))
    trials = Trial({LAMBDA: 0.0}), Trial({LAMBDA: 0.5})
    folder = spec.folder(trials[0])
    export = run_loop._export_if_best

    def kill_at_the_end(training: Any, goal: Any, report: Any) -> None:
        if report.step == 4:
            raise Killed
        export(training, goal, report)

    def start(spec: SweepSpec, threads: int) -> None:
        run_tune = trains_here(*trials, threads=threads)
        monkeypatch.setattr("raybio.runtime.tune.driver._run_tune", run_tune)
        sweep(spec)

    threads = torch.get_num_threads()
    try:
        monkeypatch.setattr(run_loop, "_export_if_best", kill_at_the_end)
        with pytest.raises(Killed):
            start(spec, 2)
        monkeypatch.setattr(run_loop, "_export_if_best", export)
        with pytest.raises(OtherVersionsError, match="threads: 2 -> 1.*leave out --strict"):
            start(replace(spec, run=replace(spec.run, is_strict=True)), 1)
        assert status_of(folder) == FAILED
        # The other trial has not begun, since the sweep ended at once.
        assert not spec.folder(trials[1]).identity.exists()
        capsys.readouterr()
        start(spec, 1)
    finally:
        torch.set_num_threads(threads)
    assert "threads: 2 -> 1" in capsys.readouterr().out
    assert status_of(folder) == FINISHED


def test_two_signals_while_ray_starts_end_a_sweep_in_order(
    request_to: SweepSpec, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("raybio.runtime.tune.driver._run_tune", interrupt)
    with pytest.raises(InterruptedRunError, match="SIGINT: the same command resumes the sweep"):
        sweep(request_to)
    assert statuses(database) == {"mine": "KILLED"}
    assert not (request_to.run.runs / "mine" / ".stop").exists()


def test_a_sigterm_that_rays_own_handler_takes_ends_a_sweep_in_order(
    request_to: SweepSpec, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exit_as_ray(*_: Any) -> None:
        raise SystemExit(signal.SIGTERM)

    monkeypatch.setattr("raybio.runtime.tune.driver._run_tune", exit_as_ray)
    with pytest.raises(InterruptedRunError, match="SIGTERM: the same command resumes the sweep"):
        sweep(request_to)
    assert statuses(database) == {"mine": "KILLED"}


def test_a_stop_file_that_a_user_made_interrupts_a_sweep_and_does_not_finish_it(
    request_to: SweepSpec, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(spec: SweepSpec, *_: Any) -> SweepSpec:
        leave(spec, of(0.0), {10: 0.5})
        spec.stop.touch()
        return spec

    monkeypatch.setattr("raybio.runtime.tune.driver._run_tune", stopped)
    with pytest.raises(InterruptedRunError, match="the same command resumes the sweep"):
        sweep(request_to)
    assert statuses(database)["mine"] == "KILLED"


def test_a_learning_search_that_has_tried_the_whole_space_trains_nothing_more(
    request_to: SweepSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = space_of(
        tmp_path, space={LAMBDA: {"choice": [0.0, 0.1, 0.5]}}, search={"kind": "optuna"}
    )
    trials = [Trial({LAMBDA: value}) for value in (0.0, 0.1, 0.5)]
    starts = []

    def all_settings(spec: SweepSpec, callback: TrialCallback, *_: Any) -> SweepSpec:
        starts.append(spec)
        begin(callback, *trials)
        for trial in trials:
            leave(spec, trial, {10: 0.5})
        return spec

    monkeypatch.setattr("raybio.runtime.tune.driver._run_tune", all_settings)
    for _ in range(2):
        assert len(sweep(replace(request_to, space=space)).trials) == 3 < space.budget.num_trials
    assert len(starts) == 1


def test_a_sweep_that_is_stopped_for_its_length_is_killed_and_did_not_fail(
    request_to: SweepSpec, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def take_too_long(spec: SweepSpec, callback: TrialCallback, *_: Any) -> SweepSpec:
        leave(spec, of(0.0), {10: 0.5})
        callback.too_long = "this takes months"
        spec.stop.touch()
        return spec

    monkeypatch.setattr("raybio.runtime.tune.driver._run_tune", take_too_long)
    with pytest.raises(LongRunError, match="this takes months"):
        sweep(request_to)
    assert statuses(database)["mine"] == "KILLED"


def test_a_plan_without_room_is_refused_before_anything_is_recorded(
    request_to: SweepSpec, database: str
) -> None:
    with pytest.raises(ClusterError, match="a trial takes 1000 CPU, and the cluster has"):
        sweep(
            replace(request_to, run=replace(request_to.run, compute=Compute(cpus_per_worker=1000)))
        )
    assert statuses(database) == {}
