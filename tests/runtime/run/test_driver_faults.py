"""Faults of the driver: the whole command is killed, stopped or interrupted, and given again."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
import yaml

from raybio.core.config import override_all
from raybio.core.records import read_record, write_record
from raybio.runtime.run.driver import train
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.metrics_log import read_reports
from raybio.runtime.run.spec import RunSpec
from raybio.store.store import Store
from raybio.training.settings import TrainingConfig
from tests.paths import ROOT


class Job:
    """``jobs/sppt_protein.py`` with two workers on the tiny store."""

    def __init__(self, folder: Path, store: Store, config: TrainingConfig) -> None:
        self.folder, self.store = folder, store
        (folder / "config.yaml").write_text(yaml.safe_dump(config.to_mapping()))

    def run_folder(self, name: str) -> RunFolder:
        return RunFolder(self.folder / "runs", name)

    def start(self, name: str, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
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
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=os.environ | environment,
                start_new_session=True,
            )

    def finish(self, name: str, *arguments: str, **environment: str) -> dict:
        process = self.start(name, *arguments, **environment)
        assert process.wait(timeout=1500) == 0, (self.folder / f"{name}.log").read_text()[-3000:]
        return json.loads(self.run_folder(name).result.read_text())

    def wait_for_step(self, name: str, step: int, process: subprocess.Popen[bytes]) -> None:
        while not any(
            report["step"] >= step for report in read_reports(self.run_folder(name).metrics)
        ):
            assert process.poll() is None, (self.folder / f"{name}.log").read_text()[-3000:]
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


@pytest.mark.slow
def test_a_driver_killed_at_a_random_step_and_restarted_ends_with_the_weights_of_the_unbroken_run(
    ray_cluster: None, job: Job, request_two: RunSpec
) -> None:
    """With the default precision, which is bf16 on machines that have it."""
    config = override_all(request_two.config, {"precision": "auto"})
    unbroken = train(replace(request_two, config=config, name="unbroken-auto"))
    job = Job(job.folder, job.store, config)
    step = int(np.random.default_rng().integers(1, 23))
    older = job.run_folder("killed").result
    older.parent.mkdir(parents=True)
    write_record(older, "result", {"status": "stopped", "step": 0})
    process = job.start("killed")
    job.wait_for_step("killed", step, process)
    assert not older.exists()  # nothing says of a run at work, or killed, that it was stopped
    family = psutil.Process(process.pid).children(recursive=True)
    workers = [one for one in family if one.name() == "ray::RayTrainWorker"]
    assert len(workers) == 2
    process.kill()
    process.wait()
    resumed = job.finish("killed", PYTHONHASHSEED="2")
    assert resumed["weights_sha256"] == unbroken.weights_sha256, f"killed at step {step}"
    assert resumed["precision"] == unbroken.precision == job.run_folder("killed").precision
    assert resumed["config"]["precision"] == "auto"
    assert steps_of(job.run_folder("killed")) == list(range(25))
    psutil.wait_procs(workers)
    end_of_family(family, seconds=0)  # Ray's own agents live half a minute longer


@pytest.mark.slow
@pytest.mark.parametrize(
    # SIGTERM alone: test_job_submit.py stops a job with it.
    ("number", "code"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.nightly)],
)
def test_a_signal_commits_a_checkpoint_ends_the_tracked_run_as_killed_and_leaves_no_process(
    job: Job, tiny_training: TrainingConfig, number: signal.Signals, code: int
) -> None:
    from mlflow import MlflowClient

    long = override_all(tiny_training, {"schedule.max_steps": 100_000})
    job = Job(job.folder, job.store, long)
    process = job.start("stopped")
    job.wait_for_step("stopped", 3, process)
    family = psutil.Process(process.pid).children(recursive=True)
    # Ctrl-C reaches the whole group of a terminal; a supervisor's SIGTERM the driver alone.
    (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
    assert process.wait(timeout=1500) == code
    folder = job.run_folder("stopped")
    result, tracking = (
        read_record(folder.result, "result"),
        read_record(folder.tracking, "tracking"),
    )
    assert result["status"] == "stopped"
    assert Path(result["checkpoint"]).name == f"step-{result['step']:08d}"
    assert MlflowClient(tracking["uri"]).get_run(tracking["run_id"]).info.status == "KILLED"
    assert end_of_family(family) == []
