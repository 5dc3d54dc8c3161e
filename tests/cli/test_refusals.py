"""Refusals of ``train`` before a cluster starts or anything is recorded; the status of runs."""

import errno
import io
import logging
import os
import re
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from raybio.core.config import override
from raybio.core.errors import (
    CheckpointError,
    ClusterError,
    ConfigError,
    DiskError,
    InterruptedRunError,
    LongRunError,
    StoreError,
)
from raybio.core.records import read_record, write_record
from raybio.runtime.cluster.resources import Resources
from raybio.runtime.compare.variations import Variation, compare
from raybio.runtime.run import driver as runtime_train
from raybio.runtime.run import open_run
from raybio.runtime.run.checks import check_spec
from raybio.runtime.run.driver import train
from raybio.runtime.run.folder import RunFolder, record_failure
from raybio.runtime.run.follower import Follower
from raybio.runtime.run.metrics_log import MetricsLog
from raybio.runtime.run.notices import report_start, warnings_to
from raybio.runtime.run.open_run import OpenRun
from raybio.runtime.run.progress import ProgressView
from raybio.runtime.run.result import status_of_run, summarize
from raybio.runtime.run.spec import Compute, RunSpec
from raybio.runtime.run.worker_group import Work, explained
from raybio.runtime.tracking.tracker import Tracker
from raybio.store.store import Store
from raybio.training.loop import changeable_settings
from raybio.training.settings import TrainingConfig
from tests.runtime_fixtures import fill
from tests.training.small_checkpoints import new_state, open_store


@pytest.fixture
def request_one(tmp_path: Path, tiny_store: Store, tiny_training: TrainingConfig) -> RunSpec:
    return RunSpec(
        method="sppt_protein",
        config=tiny_training,
        store=tiny_store.path,
        name="first",
        runs=tmp_path / "runs",
    )


def assert_nothing_recorded(request: RunSpec) -> None:
    runs = Path(request.runs)
    assert not (runs.parent / "mlflow.db").exists()
    assert not RunFolder(runs, request.name).result.exists()
    assert not RunFolder(runs, request.name).tracking.exists()


def test_a_plan_that_cannot_run_is_refused_before_ray_starts_and_leaves_no_trace(
    request_one: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = replace(request_one, compute=replace(request_one.compute, workers=99, device="cpu"))
    monkeypatch.setattr(
        "raybio.runtime.cluster.connection.started", lambda **_: pytest.fail("Ray was started")
    )
    with pytest.raises(ClusterError, match="fewer workers than 99"):
        train(request)
    assert_nothing_recorded(request)
    # The next start would take it for the run's own number of workers.
    assert not RunFolder(request.runs, request.name).launch.exists()


def damaged_store(request_one: RunSpec, tmp_path: Path) -> tuple[Path, str]:
    """A copy of the store with one byte changed, and the file that has it."""
    store = tmp_path / "store"
    shutil.copytree(request_one.store, store)
    path = max(
        (path for path in store.iterdir() if path.suffix != ".json"),
        key=lambda path: path.stat().st_size,
    )
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(content)
    return store, path.name


def test_a_damaged_store_is_refused_with_the_name_of_the_file(
    request_one: RunSpec, tmp_path: Path
) -> None:
    store, name = damaged_store(request_one, tmp_path)
    request = replace(request_one, store=store, compute=replace(request_one.compute, device="cpu"))
    with pytest.raises(StoreError, match=name):
        train(request)
    assert_nothing_recorded(request)


def test_the_driver_warns_once_of_bf16_on_a_cpu_without_it_before_anything_starts(
    request_one: RunSpec,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)
    store, _ = damaged_store(request_one, tmp_path)  # so nothing is started after the warning
    config = override(request_one.config, "precision", "bf16")
    with pytest.raises(StoreError):
        compare(
            replace(
                request_one,
                config=config,
                store=store,
                compute=replace(request_one.compute, device="cpu"),
            )
        )
    assert caplog.text.count("this CPU has no bf16 instructions: slower than fp32") == 1


def test_a_run_in_other_hands_keeps_its_files(
    request_one: RunSpec, tiny_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second command with another setting must not replace what the first one runs with."""
    monkeypatch.setattr("raybio.runtime.run.open_run.LOCK_SECONDS", 0.1)
    config, folder = request_one.config, RunFolder(request_one.runs, request_one.name)
    folder.open("sppt_protein", config, tiny_store.path, tiny_store.digest, ())
    assert "schedule.max_steps" in changeable_settings(config)
    longer = override(config, "schedule.max_steps", config.schedule.max_steps + 1)
    with folder.lock("driver", 1), pytest.raises(ClusterError, match="another process is at work"):
        train(replace(request_one, config=longer))
    assert read_record(folder.identity, "run")["config"] == config.to_mapping()
    folder.export.mkdir()
    with pytest.raises(CheckpointError, match="seed"):
        train(replace(request_one, config=override(config, "seed", 5)))


@pytest.mark.parametrize("is_finished", [False, True])
def test_a_last_step_that_the_run_is_past_is_refused_and_its_records_stay(
    request_one: RunSpec, tiny_store: Store, is_finished: bool
) -> None:
    config = override(request_one.config, "schedule.max_steps", 200)
    folder = RunFolder(request_one.runs, request_one.name)
    folder.open("sppt_protein", config, tiny_store.path, tiny_store.digest, ())
    if is_finished:
        result = summarize(folder, config, "finished", None) | {"step": 150}
        write_record(folder.result, "result", result)
    else:
        (folder.checkpoints / "step-00000150").mkdir(parents=True)
    shorter = override(config, "schedule.max_steps", 149)
    with pytest.raises(CheckpointError, match="is at step 150 already, got .*=149"):
        train(replace(request_one, config=shorter))
    assert read_record(folder.identity, "run")["config"] == config.to_mapping()
    reached = override(config, "schedule.max_steps", 150)
    if not is_finished:
        with ExitStack() as held:
            OpenRun.open(replace(request_one, config=reached), held)
        assert folder.max_steps == 150


def test_a_failed_start_without_a_checkpoint_may_become_shorter(
    request_one: RunSpec, tiny_store: Store
) -> None:
    folder = RunFolder(request_one.runs, request_one.name)
    config = override(request_one.config, "schedule.max_steps", 200)
    folder.open("sppt_protein", config, tiny_store.path, tiny_store.digest, ())
    write_record(folder.result, "result", {"status": "failed", "step": 150})
    shorter = override(config, "schedule.max_steps", 100)
    with ExitStack() as held:
        OpenRun.open(replace(request_one, config=shorter), held)
    assert folder.max_steps == 100


@pytest.mark.parametrize(
    ("outcome", "has_failure", "caught", "error", "status"),
    [
        ("finished", False, [15], None, "finished"),
        ("stopped", False, [15], None, "stopped"),
        ("stopped", False, [15], RuntimeError("while shutting down"), "stopped"),
        (None, False, [15, 15], None, "stopped"),
        (None, True, [15], None, "failed"),
        (None, False, [15], RuntimeError("no worker could be started"), "failed"),
        (None, False, [], RuntimeError("worker died"), "failed"),
        ("stopped", False, [], None, "stopped"),  # the user made the stop file
        (None, False, [], None, "failed"),
    ],
)
def test_a_signal_excuses_no_failure(
    tmp_path: Path,
    outcome: str | None,
    has_failure: bool,
    caught: list[int],
    error: Exception | None,
    status: str,
) -> None:
    folder = RunFolder(tmp_path, "first")
    folder.make()
    if outcome is not None:
        write_record(folder.outcome, "outcome", {"status": outcome, "step": 3})
    if has_failure:
        write_record(folder.failure, "failure", {"kind": "DivergedError", "message": "no number"})
    assert status_of_run(folder, caught, error) == status


def test_a_run_that_waited_for_cpus_when_its_stop_file_was_made_is_stopped(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "first")
    folder.make()
    folder.stop.touch()
    assert status_of_run(folder, [], None) == "stopped"
    # The workers could not start: the file excuses that no more than a signal does.
    assert status_of_run(folder, [], RuntimeError("no worker could be started")) == "failed"


class CountingTracker(Tracker):
    """Counts how often it hears that the run is being killed."""

    num_kills = 0

    def kill(self) -> None:
        self.num_kills += 1
        super().kill()


def test_a_signal_is_passed_on_to_mlflow_once(request_one: RunSpec) -> None:
    folder = RunFolder(request_one.runs, request_one.name)
    folder.make()
    tracker = CountingTracker(folder, "sqlite:///none.db", request_one.method, {}, "d" * 64)
    thread = threading.Thread(target=time.sleep, args=(1.0,))
    thread.start()
    follower = Follower(request_one, Resources(1, 1.0, 0, 1))
    run = OpenRun(request_one, tracker, None)
    runtime_train._follow(Work(thread, []), follower, run, [signal.SIGINT])
    assert tracker.num_kills == 1


class SlowDisk(Follower):
    """Reads a log that cannot be read for a moment."""

    num_reads = 0

    def update(self, view: ProgressView) -> None:
        self.num_reads += 1
        if self.num_reads < 3:
            raise OSError(errno.ESTALE, "Stale file handle", "metrics.jsonl")


def test_a_log_that_cannot_be_read_for_a_moment_does_not_end_the_run(request_one: RunSpec) -> None:
    folder = RunFolder(request_one.runs, request_one.name)
    folder.make()
    tracker = Tracker(folder, "sqlite:///none.db", request_one.method, {}, "d" * 64)
    follower = SlowDisk(request_one, Resources(1, 1.0, 0, 1))

    def wait_for_reads() -> None:
        while follower.num_reads < 3:
            time.sleep(0.01)

    thread = threading.Thread(target=wait_for_reads, daemon=True)
    thread.start()
    run = OpenRun(request_one, tracker, None)
    runtime_train._follow(Work(thread, []), follower, run, [])
    assert follower.num_reads >= 3


def test_a_store_of_another_kind_is_refused_before_a_run_is_made(
    request_one: RunSpec, tiny_articles: Store
) -> None:
    request = replace(request_one, store=tiny_articles.path, name="other-kind")
    with pytest.raises(
        StoreError, match="is a store of articles, made by .*; want one of proteins"
    ):
        train(request)
    assert not RunFolder(request.runs, "other-kind").path.exists()


def test_an_encoder_that_is_not_there_is_refused_before_a_run_is_made(
    request_one: RunSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    request = replace(request_one, config=override(request_one.config, "encoder.source", "empty"))
    with pytest.raises(
        ConfigError, match="encoder.source 'empty' cannot be loaded: it has no weights"
    ):
        train(request)
    with pytest.raises(ConfigError, match="encoder.source 'empty'"):
        compare(request_one, [Variation("encoder.source", ("empty",))])
    assert not Path(request.runs).exists()


def test_a_finished_run_needs_its_encoder_no_more(request_one: RunSpec, tiny_store: Store) -> None:
    request = replace(request_one, config=override(request_one.config, "encoder.source", "./gone"))
    folder = RunFolder(request.runs, request.name)
    folder.make()
    result = dict.fromkeys(("precision", "checkpoint", "weights_sha256", "mlflow_run_id"))
    result |= {"metrics": {}, "final": {}, "config": {}, "step": request.config.schedule.max_steps}
    write_record(folder.result, "result", result | {"status": "failed"})
    with pytest.raises(ConfigError, match="'./gone': no such folder"):
        check_spec(request)
    write_record(folder.result, "result", result | {"status": "finished"})
    assert check_spec(request) == tiny_store.digest


def test_a_stop_while_ray_is_starting_is_a_stop_and_no_failure(
    request_one: RunSpec, tmp_path: Path, empty_database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``ray.init`` puts a handler of its own on SIGTERM, which exits."""

    @contextmanager
    def starting(*_: object, **__: object) -> Iterator[None]:
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)
        yield

    shutil.copy(empty_database, tmp_path)
    monkeypatch.setattr(runtime_train, "connected", starting)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(
        InterruptedRunError, match="SIGTERM: stopped at step 0; the same command resumes"
    ) as caught:
        train(replace(request_one, compute=replace(request_one.compute, device="cpu")))
    assert caught.value.exit_code == 143
    assert signal.getsignal(signal.SIGTERM) == before
    folder = RunFolder(request_one.runs, request_one.name)
    assert read_record(folder.result, "result")["status"] == "stopped"


@pytest.mark.parametrize(
    ("is_accepted", "gpus", "from_step", "max_steps", "is_refused"),
    [
        (False, 0, 0, 10**6, True),
        (True, 0, 0, 10**6, False),
        (False, 1, 0, 10**6, False),
        (False, 0, 500, 10**6, True),  # stopped before its length was known
        (False, 0, 0, 10**5, False),
    ],
)
def test_a_run_of_more_than_a_day_on_cpus_is_stopped_unless_it_is_accepted(
    request_one: RunSpec,
    is_accepted: bool,
    gpus: int,
    from_step: int,
    max_steps: int,
    is_refused: bool,
) -> None:
    config = override(request_one.config, "schedule.max_steps", max_steps)
    request = replace(request_one, config=config, accepts_long_run=is_accepted)
    folder, shown = RunFolder(request.runs, request.name), io.StringIO()
    folder.make()
    write_record(folder.launch, "launch", {"workers": 1, "is_length_accepted": is_accepted})
    follower = Follower(request, Resources(1, 1.0, gpus, 1))
    log = MetricsLog(folder.metrics)
    with ProgressView(
        "first", max_steps, Console(file=shown, force_terminal=False, width=200)
    ) as view:
        follower.update(view)
        report_start(folder.notices, from_step, 4.0)
        for step in (1, 3, 10, 20):
            log.append(from_step + step, {"steps_per_second": 2.0}, is_evaluation=False)
            follower.update(view)
        with warnings_to(folder.notices):
            logging.getLogger("raybio").info("final evaluation: evaluating")
        follower.update(view)
        assert view.message == "final evaluation: evaluating"
    assert (
        shown.getvalue().count(
            f"first: {max_steps:,} steps of 11 rows = {max_steps // 4:,} epochs of 44 proteins "
            "with training links"
        )
        == 1
    )
    assert shown.getvalue().count(" steps, 0.5 s a step: about ") == 1
    assert folder.stop.exists() == is_refused == (follower.refusal is not None)
    if is_refused:
        assert "about 5.8 days on CPUs; want a day at most, or --yes" in str(follower.refusal)
    # What was measured as short enough is not measured again, on a machine that may be busier.
    launch = read_record(folder.launch, "launch")
    is_measured = not (is_accepted or is_refused or gpus)
    assert launch["is_length_accepted"] == is_accepted
    assert launch.get("num_accepted_steps", 0) == (max_steps if is_measured else 0)
    if is_measured:
        assert Follower(request, Resources(1, 1.0, gpus, 1))._is_length_settled
        longer = override(request.config, "schedule.max_steps", max_steps + 1)
        longer_run = replace(request, config=longer)
        assert not Follower(longer_run, Resources(1, 1.0, gpus, 1))._is_length_settled


def test_a_record_that_is_lost_meanwhile_is_not_replaced_by_the_accepted_length(
    request_one: RunSpec,
) -> None:
    # Its copy in a checkpoint has the workers and threads of the run.
    request_one.folder.make()
    follower = Follower(request_one, Resources(1, 1.0, 0.0, 1))
    log = MetricsLog(request_one.folder.metrics)
    with ProgressView("one", 24, Console(file=io.StringIO(), force_terminal=False)) as view:
        report_start(request_one.folder.notices, 0, 4.0)
        for step in (1, 3, 10):
            log.append(step, {"steps_per_second": 2.0}, is_evaluation=False)
            follower.update(view)
        follower.update(view)
    assert follower._is_length_settled
    assert not request_one.folder.launch.exists()


def test_a_run_that_nobody_accepted_is_stopped_and_kept(
    request_one: RunSpec, tmp_path: Path, empty_database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def starting(*_: object, **__: object) -> Iterator[None]:
        raise LongRunError("takes months")
        yield

    shutil.copy(empty_database, tmp_path)
    monkeypatch.setattr(runtime_train, "connected", starting)
    folder = RunFolder(request_one.runs, request_one.name)
    folder.make()
    (folder.path / "mine.txt").write_text("of the user")
    with pytest.raises(LongRunError, match="takes months"):
        train(replace(request_one, compute=replace(request_one.compute, device="cpu")))
    assert read_record(folder.result, "result")["status"] == "stopped"
    assert (folder.path / "mine.txt").exists()


def test_a_damaged_outcome_hides_no_error_and_leaves_no_tracked_run_open(
    request_one: RunSpec, tmp_path: Path, empty_database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def starting(*_: object, **__: object) -> Iterator[None]:
        request_one.folder.outcome.write_text("{torn")
        raise LongRunError("takes months")
        yield

    shutil.copy(empty_database, tmp_path)
    monkeypatch.setattr(runtime_train, "connected", starting)
    with pytest.raises(LongRunError, match="takes months"):
        train(replace(request_one, compute=replace(request_one.compute, device="cpu")))
    assert tracked_status(request_one.folder) == "KILLED"


def test_a_complete_run_whose_result_cannot_be_written_is_tracked_to_its_end(
    request_one: RunSpec, tmp_path: Path, empty_database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = request_one.folder

    @contextmanager
    def starting(*_: object, **__: object) -> Iterator[None]:
        write_record(folder.outcome, "outcome", {"status": "finished", "step": 3})
        # A file cannot take its place, as on a full disk.
        folder.result.mkdir()
        os.kill(os.getpid(), signal.SIGINT)  # nothing is trained any more
        yield

    shutil.copy(empty_database, tmp_path)
    monkeypatch.setattr(runtime_train, "connected", starting)
    with pytest.raises(OSError, match=folder.result.name):
        train(replace(request_one, compute=replace(request_one.compute, device="cpu")))
    assert tracked_status(folder) == "FAILED"


def tracked_status(folder: RunFolder) -> str:
    from mlflow import MlflowClient

    tracking = read_record(folder.tracking, "tracking")
    return MlflowClient(tracking["uri"]).get_run(tracking["run_id"]).info.status


def test_a_metric_that_has_become_undefined_has_no_newest_value(request_one: RunSpec) -> None:
    folder = RunFolder(request_one.runs, request_one.name)
    folder.make()
    log = MetricsLog(folder.metrics)
    log.append(10, {"val/score": 0.31, "loss": 2.0}, is_evaluation=True)
    log.append(20, {"val/score": float("nan"), "loss": 1.0}, is_evaluation=True)
    assert summarize(folder, request_one.config, "stopped", None)["metrics"] == {"loss": 1.0}


def test_a_resume_by_other_versions_is_reported_and_refused_by_strict(
    request_one: RunSpec, tiny_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = replace(request_one, precision="fp32", tracking="sqlite:///none.db")

    def begin(**changes: object) -> list[str]:
        with ExitStack() as held:
            return OpenRun.open(replace(spec, **changes), held).begin(Compute())[1]

    assert begin() == []
    anew = ["an earlier start saved no checkpoint: this one begins at step 0"]
    assert begin() == anew
    launch = spec.folder.launch
    recorded = read_record(launch, "launch")["versions"]
    assert {"raybio", "torch", "transformers", "python"} <= recorded.keys()
    monkeypatch.setattr(open_run, "arithmetic_versions", lambda: recorded | {"torch": "9.0"})
    assert begin() == anew  # there is nothing yet that other versions would go on with
    monkeypatch.setattr(open_run, "arithmetic_versions", lambda: recorded)
    begin()
    (spec.folder.checkpoints / "step-00000001").mkdir(parents=True)
    assert begin() == begin(is_strict=True) == []
    monkeypatch.setattr(open_run, "arithmetic_versions", lambda: recorded | {"torch": "9.0"})
    content = launch.read_bytes()
    change = f"torch: {recorded['torch']} -> 9.0"
    with pytest.raises(CheckpointError, match=f"{re.escape(change)}. .*--strict"):
        begin(is_strict=True)
    assert launch.read_bytes() == content
    (remark,) = begin()
    assert change in remark
    assert begin() == []  # reported once
    # Part of it was trained by others, whichever versions are here now.
    with pytest.raises(CheckpointError, match="torch: .* then 9.0 -> 9.0. .*leave it out"):
        begin(is_strict=True)
    monkeypatch.setattr(open_run, "arithmetic_versions", lambda: recorded)
    with pytest.raises(CheckpointError, match="resumed by others without --strict"):
        begin(is_strict=True)
    (remark,) = begin()
    assert f"torch: 9.0 -> {recorded['torch']}" in remark


def test_versions_of_a_start_that_saved_no_checkpoint_are_forgotten(
    request_one: RunSpec, tiny_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = replace(request_one, precision="fp32", tracking="sqlite:///none.db")
    folder = spec.folder
    own = open_run.arithmetic_versions()
    others = own | {"torch": "9.0"}

    def begin(versions: dict[str, str], **changes: object) -> list[str]:
        monkeypatch.setattr(open_run, "arithmetic_versions", lambda: versions)
        with ExitStack() as held:
            return OpenRun.open(replace(spec, **changes), held).begin(Compute())[1]

    def save(step: int) -> None:
        """Save a checkpoint as a worker of the last start."""
        checkpoints = open_store(folder.checkpoints, run=folder.records())
        checkpoints.save(new_state(), step)
        checkpoints.close()

    assert begin(own) == []
    save(1)
    change = f"torch: {own['torch']} -> 9.0"
    for _ in range(2):
        (remark,) = begin(others)  # and it is killed at once
        assert change in remark
    assert begin(own, is_strict=True) == []
    begin(others)
    save(2)
    with pytest.raises(CheckpointError, match="resumed by others without --strict"):
        begin(own, is_strict=True)


def test_a_full_disk_is_reported_where_no_record_of_it_can_be_written(
    small_disk: Path, tmp_path: Path
) -> None:
    folder = RunFolder(small_disk, "first")
    folder.make()
    full = OSError(errno.ENOSPC, "No space left on device", str(folder.metrics))
    fill(small_disk)
    with pytest.raises(DiskError, match=f"{folder.metrics}: No space left on device; 0 bytes"):
        record_failure(folder, full)
    (small_disk / "filler").unlink()
    record_failure(folder, OSError(errno.ESTALE, "Stale file handle"))
    assert not folder.failure.exists()  # it may pass: the workers are started again
    record_failure(folder, full)
    assert read_record(folder.failure, "failure")["kind"] == "DiskError"
    folder.failure.unlink()
    of_ray = (
        f"Training failed:\nTraceback ...\nraybio.core.errors.DiskError: {folder.metrics}: full"
    )
    message = str(explained(folder, RuntimeError(of_ray)))
    assert f"the last time with: DiskError: {folder.metrics}: full. The same command" in message
    assert "the last time with: no error and no outcome. The" in str(explained(folder, None))
