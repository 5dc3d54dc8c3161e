"""Faults of the driver: the whole command is killed, stopped or interrupted, and given again."""

import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
import yaml
from safetensors.torch import load_file

from raybio.core.config import override_all
from raybio.core.interfaces import Collective
from raybio.core.records import read_record, write_record
from raybio.methods import METHODS
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.metrics_log import read_reports
from raybio.runtime.run.notices import read_starts
from raybio.store.store import Store
from raybio.training.checkpoint import CheckpointStore
from raybio.training.collective import STALL_SECONDS
from raybio.training.loop import fit
from raybio.training.settings import TrainingConfig
from tests.paths import ROOT
from tests.runtime_fixtures import fill, read_only_from_now, set_read_only
from tests.training.workers import run_workers


class Job:
    """``jobs/sppt_protein.py`` with two workers on the tiny store."""

    def __init__(self, folder: Path, store: Store, config: TrainingConfig) -> None:
        self.folder, self.store = folder, store
        (folder / "config.yaml").write_text(yaml.safe_dump(config.to_mapping()))

    def run_folder(self, name: str) -> RunFolder:
        return RunFolder(self.folder / "runs", name)

    def start(
        self, name: str, *arguments: str, output: int | None = None, **environment: str
    ) -> subprocess.Popen[bytes]:
        command = [
            sys.executable,
            "-W",
            "ignore",
            str(ROOT / "jobs" / "sppt_protein.py"),
            "--no-baseline",
        ]
        command += [
            "--workers",
            "2",
            "--store",
            str(self.store.path),
            "--config",
            str(self.folder / "config.yaml"),
        ]
        command += ["--runs", str(self.folder / "runs"), "--name", name, *arguments]
        with open(self.folder / f"{name}.log", "ab") as log:
            return subprocess.Popen(
                command,
                stdout=output or log,
                stderr=log if output is None else subprocess.STDOUT,
                cwd=self.folder,
                env=os.environ | environment,
                start_new_session=True,
            )

    def finish(self, name: str, *arguments: str, **environment: str) -> dict:
        process = self.start(name, *arguments, **environment)
        assert process.wait(timeout=1500) == 0, self.log(name)[-3000:]
        return json.loads(self.run_folder(name).result.read_text())

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def wait_for_step(self, name: str, step: int, process: subprocess.Popen[bytes]) -> None:
        while not any(
            report["step"] >= step for report in read_reports(self.run_folder(name).metrics)
        ):
            assert process.poll() is None, self.log(name)[-3000:]
            time.sleep(0.02)


@pytest.fixture
def job(
    tmp_path: Path, tiny_store: Store, tiny_training: TrainingConfig, empty_database: Path
) -> Job:
    shutil.copy(empty_database, tmp_path)
    return Job(tmp_path, tiny_store, tiny_training)


def end_of_family(family: list[psutil.Process], seconds: float = 1500) -> list[str]:
    """Return the names of processes that are left after ``seconds``, and end them."""
    _, alive = psutil.wait_procs(family, timeout=seconds)
    names = []
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            names.append(process.name())
            process.kill()
    return names


def steps_of(folder: RunFolder) -> list[int]:
    return [report["step"] for report in read_reports(folder.metrics)]


def reported_steps(stopped: int, config: TrainingConfig) -> list[int]:
    """Steps in the log of a run that was stopped at one.

    Where an evaluation is due, the next start reports that step.
    """
    is_evaluated_later = stopped % config.schedule.evaluate_every_steps == 0
    return list(range(stopped if is_evaluated_later else stopped + 1))


def train_without_ray(
    rank: int,
    collective: Collective,
    folder: Path,
    config: TrainingConfig,
    store: Path,
    threads: int,
    num_steps: int,
) -> None:
    """Train the run of a job in processes of the tests, to a checkpoint of a step."""
    torch.set_num_threads(threads)
    system = METHODS["sppt_protein"].build(config, store)
    checkpoints = CheckpointStore(folder / "checkpoints")
    steps = itertools.count()  # it is asked at the start and after each step
    *_, last = fit(
        system,
        config,
        collective=collective,
        checkpoints=checkpoints,
        should_stop=lambda: next(steps) >= num_steps,
    )
    if rank == 0:
        checkpoints.close()
        record = {"step": last.step, "precision": last.precision}
        (folder / "unbroken.json").write_text(json.dumps(record))


@pytest.mark.slow
def test_a_killed_command_resumes_and_ctrl_c_leaves_the_weights_of_an_unbroken_run_and_no_process(
    job: Job, tiny_training: TrainingConfig, tiny_store: Store, tmp_path: Path
) -> None:
    """With the default precision, which is bf16 on machines that have it."""
    from mlflow import MlflowClient

    config = override_all(tiny_training, {"precision": "auto", "schedule.max_steps": 100_000})
    job = Job(job.folder, job.store, config)
    folder = job.run_folder("killed")
    folder.path.mkdir(parents=True)
    write_record(folder.result, "result", {"status": "stopped", "step": 0})
    process = job.start("killed")
    # Two checkpoints later than the first, which then is on the disk.
    job.wait_for_step("killed", int(np.random.default_rng().integers(15, 60)), process)
    # Nothing says of a run at work, or killed, that it was stopped.
    assert not folder.result.exists()
    family = psutil.Process(process.pid).children(recursive=True)
    workers = [one for one in family if one.name() == "ray::RayTrainWorker"]
    assert len(workers) == 2
    process.kill()
    process.wait()

    # While workers of the killed command may still write.
    process = job.start("killed", PYTHONHASHSEED="2")
    while not (resumed := re.search(r"resuming from step ([\d,]+)", job.log("killed"))):
        assert process.poll() is None, job.log("killed")
        time.sleep(0.02)
    first_step = int(resumed[1].replace(",", ""))
    job.wait_for_step("killed", first_step + 3, process)
    own_family = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGINT)  # Ctrl-C reaches the whole group of a terminal
    assert process.wait(timeout=1500) == 130
    result = read_record(folder.result, "result")
    assert result["status"] == "stopped"
    assert result["config"]["precision"] == "auto"
    checkpoint = Path(result["checkpoint"])
    assert checkpoint.name == f"step-{result['step']:08d}"
    assert steps_of(folder) == reported_steps(result["step"], config)
    tracking = read_record(folder.tracking, "tracking")
    assert MlflowClient(tracking["uri"]).get_run(tracking["run_id"]).info.status == "KILLED"
    assert end_of_family(own_family) == []
    psutil.wait_procs(workers)
    end_of_family(family, seconds=0)  # Ray's own agents live half a minute longer

    threads = read_record(folder.launch, "launch")["threads_per_worker"]
    work = partial(
        train_without_ray,
        config=config,
        store=tiny_store.path,
        threads=threads,
        num_steps=result["step"],
    )
    run_workers(work, 2, tmp_path)
    unbroken = json.loads((tmp_path / "unbroken.json").read_text())
    assert unbroken == {"step": result["step"], "precision": folder.precision}
    expected = load_file(tmp_path / "checkpoints" / checkpoint.name / "model.safetensors")
    weights = load_file(checkpoint / "model.safetensors")
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], expected[name]) for name in expected)


@pytest.mark.nightly
def test_a_driver_killed_at_a_random_step_and_restarted_ends_with_the_weights_of_the_unbroken_run(
    job: Job,
) -> None:
    unbroken = job.finish("unbroken")
    step = int(np.random.default_rng().integers(1, 23))
    process = job.start("killed")
    job.wait_for_step("killed", step, process)
    process.kill()
    process.wait()
    resumed = job.finish("killed", PYTHONHASHSEED="2")
    assert resumed["weights_sha256"] == unbroken["weights_sha256"], f"killed at step {step}"
    assert steps_of(job.run_folder("killed")) == list(range(25))


@contextlib.contextmanager
def hanging_worker(
    job: Job, name: str, process: subprocess.Popen[bytes]
) -> Iterator[psutil.Process]:
    """Stop one of the two training workers that a command has started, at whatever it does."""
    job.wait_for_step(name, 1, process)
    family = psutil.Process(process.pid).children(recursive=True)
    workers = [one for one in family if one.name() == "ray::RayTrainWorker"]
    assert len(workers) == 2
    random = np.random.default_rng()
    worker = workers[int(random.integers(2))]
    job.wait_for_step(name, int(random.integers(2, 15)), process)
    worker.suspend()
    try:
        yield worker
    finally:
        end_of_family([worker], seconds=0)


def wait_for_message(job: Job, name: str, pattern: str, process: subprocess.Popen[bytes]) -> str:
    """Return the first group of what the output of a command matches, once it does."""
    while not (found := re.search(pattern, job.log(name))):
        assert process.poll() is None, job.log(name)[-3000:]
        time.sleep(0.1)
    return found[1]


WAITS = (
    rf"warning: rank [01] of 2 has waited {STALL_SECONDS:.0f} s for another worker in the "
    r"collective operation '[\w ()]+'"
)


@pytest.mark.nightly
def test_a_worker_that_hangs_is_reported_with_its_step_and_the_run_goes_on_when_it_does(
    job: Job, tiny_training: TrainingConfig
) -> None:
    job = Job(job.folder, job.store, override_all(tiny_training, {"schedule.max_steps": 60}))
    unbroken = job.finish("unbroken")
    process = job.start("hanging")
    folder = job.run_folder("hanging")
    with hanging_worker(job, "hanging", process) as worker:
        step = int(wait_for_message(job, "hanging", f"{WAITS} after step (\\d+) ", process))
        # The report of that step may be what the worker was stopped at.
        assert steps_of(folder)[-1] in (step - 1, step)
        worker.resume()
        assert process.wait(timeout=1500) == 0, job.log("hanging")[-3000:]
    result = read_record(folder.result, "result")
    assert result["weights_sha256"] == unbroken["weights_sha256"]
    assert steps_of(folder) == list(range(61))
    assert [start["first_step"] for start in read_starts(folder.notices)] == [0]


@pytest.mark.nightly
def test_a_worker_that_hangs_for_too_long_is_replaced_and_the_weights_are_those_of_the_unbroken_run(
    job: Job, tiny_training: TrainingConfig
) -> None:
    """A checkpoint each step, so that most of the time the workers wait for each other's report."""
    settings = {"schedule.max_steps": 60, "schedule.checkpoint_every_steps": 1}
    job = Job(job.folder, job.store, override_all(tiny_training, settings))
    unbroken = job.finish("unbroken")
    process = job.start("hanging", RAYBIO_COLLECTIVE_TIMEOUT_SECONDS="90")
    folder = job.run_folder("hanging")
    with hanging_worker(job, "hanging", process):
        step = int(wait_for_message(job, "hanging", f"{WAITS} after step (\\d+) ", process))
        failed = (
            rf"collective '[\w ()]+' after step {step} failed: .*([Tt]imed out).*TIMEOUT_SECONDS"
        )
        wait_for_message(job, "hanging", failed, process)
        assert process.wait(timeout=1500) == 0, job.log("hanging")[-3000:]
    result = read_record(folder.result, "result")
    assert result["weights_sha256"] == unbroken["weights_sha256"]
    assert steps_of(folder) == list(range(61))
    # A worker that hangs may have had two checkpoints to write.
    assert step - 2 <= read_starts(folder.notices)[-1]["first_step"] <= step


@pytest.mark.nightly
def test_sigterm_commits_a_checkpoint_ends_the_tracked_run_as_killed_and_leaves_no_process(
    job: Job, tiny_training: TrainingConfig
) -> None:
    """A supervisor's SIGTERM reaches the driver alone."""
    from mlflow import MlflowClient

    long = override_all(tiny_training, {"schedule.max_steps": 100_000})
    job = Job(job.folder, job.store, long)
    process = job.start("stopped")
    job.wait_for_step("stopped", 3, process)
    family = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(timeout=1500) == 143
    folder = job.run_folder("stopped")
    result = read_record(folder.result, "result")
    tracking = read_record(folder.tracking, "tracking")
    assert result["status"] == "stopped"
    assert Path(result["checkpoint"]).name == f"step-{result['step']:08d}"
    assert MlflowClient(tracking["uri"]).get_run(tracking["run_id"]).info.status == "KILLED"
    assert end_of_family(family) == []


@pytest.mark.nightly
@pytest.mark.usefixtures("answered_hangup")
@pytest.mark.parametrize("fault", ["terminal", "pipe", "stop file"])
def test_a_closed_terminal_or_pipe_and_a_stop_file_commit_a_checkpoint_of_the_last_step(
    job: Job, tiny_training: TrainingConfig, fault: str
) -> None:
    from mlflow import MlflowClient

    long = override_all(tiny_training, {"schedule.max_steps": 100_000})
    job = Job(job.folder, job.store, long)
    process = job.start("lost", output=subprocess.PIPE if fault == "pipe" else None)
    folder = job.run_folder("lost")
    while not any(report["step"] >= 3 for report in read_reports(folder.metrics)):
        assert process.poll() is None, job.log("lost")[-3000:]
        time.sleep(0.02)
    family = psutil.Process(process.pid).children(recursive=True)
    if fault == "terminal":
        os.killpg(process.pid, signal.SIGHUP)  # as the kernel does it
        os.kill(process.pid, signal.SIGHUP)  # and the shell, too
    elif fault == "pipe":
        process.stdout.close()
    else:
        folder.stop.touch()
    assert process.wait(timeout=1500) == (130 if fault == "stop file" else 129)
    result = read_record(folder.result, "result")
    assert result["status"] == "stopped"
    assert Path(result["checkpoint"]).name == f"step-{result['step']:08d}"
    assert steps_of(folder) == reported_steps(result["step"], long)
    tracking = read_record(folder.tracking, "tracking")
    assert MlflowClient(tracking["uri"]).get_run(tracking["run_id"]).info.status == "KILLED"
    assert "Traceback" not in job.log("lost")
    assert end_of_family(family) == []


def move_runs(job: Job, disk: Path) -> None:
    """Move the runs of a job, and their database, to another disk."""
    shutil.move(job.folder / "mlflow.db", disk)
    (disk / "runs").mkdir()
    (job.folder / "runs").symlink_to(disk / "runs")


def only_error(job: Job, name: str) -> str:
    """Return the only line in the output of a command that is an error."""
    shown = job.log(name)
    assert "Traceback" not in shown
    (error,) = [line for line in shown.splitlines() if "Error: " in line]
    return error


@pytest.mark.nightly
def test_a_full_disk_is_one_message_and_the_command_goes_on_when_there_is_room(
    job: Job, tiny_training: TrainingConfig, small_disk: Path
) -> None:
    long = override_all(tiny_training, {"schedule.max_steps": 200})
    job = Job(job.folder, job.store, long)
    move_runs(job, small_disk)
    process = job.start("full")
    job.wait_for_step("full", 7, process)
    filler = fill(small_disk)
    assert process.wait(timeout=1500) == 2
    folder = job.run_folder("full")
    error = only_error(job, "full")
    assert str(folder.path.resolve()) in error or str(folder.path) in error
    assert re.search(r"[\d,]+ bytes", error)
    assert CheckpointStore(folder.checkpoints).latest().step >= 5
    filler.unlink()
    assert job.finish("full")["status"] == "finished"
    assert "resuming from step" in job.log("full")
    assert steps_of(folder) == list(range(201))


@pytest.mark.slow
def test_a_read_only_disk_is_refused_before_anything_starts(job: Job, small_disk: Path) -> None:
    move_runs(job, small_disk)
    files = sorted(small_disk.rglob("*"))
    set_read_only(small_disk, is_read_only=True)
    process = job.start("first")
    assert process.wait(timeout=1500) == 2
    error = only_error(job, "first")
    assert f"--runs {job.folder / 'runs'}: " in error
    assert "cannot be written (Read-only file system); choose another folder" in error
    assert "Ray" not in job.log("first")
    assert sorted(small_disk.rglob("*")) == files
    set_read_only(small_disk, is_read_only=False)


@pytest.mark.nightly
def test_a_disk_that_becomes_read_only_is_one_message_and_the_command_goes_on_when_it_is_writable(
    job: Job, tiny_training: TrainingConfig, small_disk: Path
) -> None:
    long = override_all(tiny_training, {"schedule.max_steps": 200})
    job = Job(job.folder, job.store, long)
    move_runs(job, small_disk)
    unbroken = job.finish("unbroken")
    process = job.start("broken")
    folder = job.run_folder("broken")
    job.wait_for_step("broken", 7, process)
    family = psutil.Process(process.pid).children(recursive=True)
    with read_only_from_now(small_disk):
        assert process.wait(timeout=1500) == 2, job.log("broken")[-3000:]
        error = only_error(job, "broken")
        assert str(folder.path.resolve()) in error or str(folder.path) in error
        assert "Read-only file system" in error
        assert CheckpointStore(folder.checkpoints).latest().step >= 5
        assert end_of_family(family) == []
    resumed = job.finish("broken")
    assert "resuming from step" in job.log("broken")
    assert resumed["weights_sha256"] == unbroken["weights_sha256"]
    assert steps_of(folder) == list(range(201))
