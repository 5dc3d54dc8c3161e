"""Faults of a sweep's driver: the whole command is killed or stopped, and given again."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from mlflow import MlflowClient

from raybio.core.location import Location
from raybio.core.records import read_record
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.metrics_log import read_reports
from raybio.store.store import Store
from raybio.training.checkpoint import step_of_checkpoint
from raybio.training.settings import TrainingConfig
from tests.runtime.run.test_driver_faults import ROOT, end_of_family

LAMBDAS = [0.0, 0.1, 0.5, 0.9]
pytestmark = pytest.mark.slow


class SweepJob:
    """``jobs/sweep.py`` over four values of lambda on the tiny store."""

    def __init__(
        self,
        folder: Path,
        store: Store,
        config: TrainingConfig,
        max_steps: int,
        **sections: dict[str, Any],
    ) -> None:
        self.folder = folder
        self.store: Location = store.path
        self.sweep = folder / "sweeps" / "mine"
        (folder / "config.yaml").write_text(yaml.safe_dump(config.to_mapping()))
        space = {
            "method": "sppt_protein",
            "metric": "val/link_mrr",
            "mode": "max",
            "budget": {"max_steps": max_steps, "grace_steps": 4, "max_concurrent_trials": 2},
            "scheduler": {"kind": "none"},
            "search": {"kind": "grid"},
            "space": {"objective.lambda_spml": {"choice": LAMBDAS}},
            **sections,
        }
        (folder / "space.yaml").write_text(yaml.safe_dump(space))

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        command = [
            sys.executable,
            "-W",
            "ignore",
            str(ROOT / "jobs" / "sweep.py"),
            str(self.folder / "space.yaml"),
        ]
        command += [
            "--store",
            str(self.store),
            "--config",
            str(self.folder / "config.yaml"),
            "--name",
            "mine",
            *arguments,
        ]
        with open(self.folder / "log", "ab") as log:
            return subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=os.environ | environment,
                start_new_session=True,
            )

    def finish(self) -> dict:
        process = self.start()
        assert process.wait(timeout=1500) == 0, self.log
        return read_record(self.sweep / "result.json", "result")

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()[-3000:]

    def ended(self) -> list[Path]:
        return [path.parent for path in (self.sweep / "trials").glob("*/ended.json")]

    def wait(self, process: subprocess.Popen[bytes], is_so) -> None:
        while not is_so():
            assert process.poll() is None, self.log
            time.sleep(0.02)

    def tracked(self) -> list[tuple[str, str]]:
        """(name, status) of all MLflow runs."""
        client = MlflowClient(f"sqlite:///{self.folder / 'mlflow.db'}")
        runs = client.search_runs(
            [experiment.experiment_id for experiment in client.search_experiments()]
        )
        return sorted((run.info.run_name, run.info.status) for run in runs)


@pytest.mark.nightly
def test_a_killed_driver_resumes_and_trains_no_finished_trial_again(
    tmp_path: Path, tiny_store: Store, tiny_training: TrainingConfig, empty_database: Path
) -> None:
    shutil.copy(empty_database, tmp_path)
    learning = {"search": {"kind": "optuna"}, "scheduler": {"kind": "asha", "reduction_factor": 2}}
    job = SweepJob(tmp_path, tiny_store, tiny_training, max_steps=12, **learning)
    process = job.start()
    job.wait(process, lambda: len(job.ended()) >= 2)
    family = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    finished = {run: (run / "metrics.jsonl").stat().st_mtime_ns for run in job.ended()}
    assert len(finished) < len(LAMBDAS)
    result = job.finish()
    assert {run: (run / "metrics.jsonl").stat().st_mtime_ns for run in finished} == finished
    assert {one["status"] for one in result["trials"]} <= {"finished", "stopped by the scheduler"}
    assert result["trials"][0]["status"] == "finished"
    assert sorted(one["settings"]["objective.lambda_spml"] for one in result["trials"]) == LAMBDAS
    for one in result["trials"]:
        steps = [
            report["step"]
            for report in read_reports(job.sweep / "trials" / one["name"] / "metrics.jsonl")
        ]
        assert steps == list(range(len(steps)))
        assert len(steps) == 13 or one["status"] != "finished"
    expected = {"finished": "FINISHED", "stopped by the scheduler": "KILLED"}
    children = [(one["name"], expected[one["status"]]) for one in result["trials"]]
    assert job.tracked() == sorted([("mine", "FINISHED"), *children])
    assert end_of_family(family) == []


@pytest.mark.nightly
def test_a_population_whose_driver_was_killed_resumes_its_members(
    tmp_path: Path, tiny_store: Store, tiny_training: TrainingConfig, empty_database: Path
) -> None:
    shutil.copy(empty_database, tmp_path)
    rates = {"optim.peak_lr": {"choice": [1e-7, 3e-4]}}
    job = SweepJob(
        tmp_path, tiny_store, tiny_training, max_steps=32, scheduler={"kind": "pbt"}, space=rates
    )
    process = job.start()

    def standing() -> dict[str, int]:
        """The step at which each member stands that has not ended."""
        members = (RunFolder(path.parent, path.name) for path in (job.sweep / "trials").glob("*"))
        living = [member for member in members if not (member.path / "ended.json").exists()]
        return {
            member.name: step_of_checkpoint(member.newest_checkpoint)
            for member in living
            if member.newest_checkpoint
        }

    # Any of them: on a busy machine one may end before the other stands there.
    job.wait(process, lambda: any(step >= 12 for step in standing().values()))
    process.kill()
    process.wait()
    before = {path.name for path in (job.sweep / "trials").iterdir()}
    stood = standing()
    result = job.finish()
    assert [one["status"] for one in result["trials"]].count("finished") == 2
    for one in result["trials"]:
        reports = read_reports(job.sweep / "trials" / one["name"] / "metrics.jsonl")
        taken_over = [report["step"] for report in reports if "exploited_from" in report]
        if taken_over and one["name"] not in before:
            assert taken_over[-1] >= min(stood.values())
        if one["name"] in stood:
            assert reports[-1]["step"] >= stood[one["name"]]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("number", "code"),
    [pytest.param(signal.SIGINT, 130, marks=pytest.mark.nightly), (signal.SIGTERM, 143)],
)
def test_a_signal_saves_the_trials_ends_their_tracked_runs_and_leaves_no_process(
    tmp_path: Path,
    tiny_store: Store,
    tiny_training: TrainingConfig,
    empty_database: Path,
    number: int,
    code: int,
) -> None:
    shutil.copy(empty_database, tmp_path)
    job = SweepJob(tmp_path, tiny_store, tiny_training, max_steps=100_000)
    process = job.start()

    def steps() -> list[int]:
        logs = (job.sweep / "trials").glob("*/metrics.jsonl")
        return [reports[-1]["step"] for log in logs if (reports := read_reports(log))]

    job.wait(process, lambda: len(steps()) == 2 and min(steps()) > 5)
    family = psutil.Process(process.pid).children(recursive=True)
    # Ctrl-C reaches the whole group of a terminal; a supervisor's SIGTERM the driver alone.
    (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
    assert process.wait(timeout=1500) == code, job.log
    runs = sorted((job.sweep / "trials").iterdir())
    assert len(runs) == 2
    for run in runs:
        outcome = read_record(run / "outcome.json", "outcome")
        assert outcome["status"] == "stopped"
        assert (run / "checkpoints" / f"step-{outcome['step']:08d}").is_dir()
    assert job.tracked() == sorted(
        (name, "KILLED") for name in ["mine", *(run.name for run in runs)]
    )
    assert "the same command resumes the sweep" in job.log
    assert end_of_family(family) == []


@pytest.mark.nightly
def test_trials_that_the_memory_monitor_kills_end_with_the_sizes(
    tmp_path: Path, tiny_store: Store, tiny_training: TrainingConfig, empty_database: Path
) -> None:
    shutil.copy(empty_database, tmp_path)
    job = SweepJob(tmp_path, tiny_store, tiny_training, max_steps=12)
    # A limit that is passed before anything has started.
    process = job.start(RAY_memory_usage_threshold="0.01", RAY_memory_monitor_refresh_ms="100")
    assert process.wait(timeout=1500) == 2
    assert "none of 4 trials came to an evaluation" in job.log
    assert "low on memory" in job.log
    assert "GB limit" in job.log
    assert job.tracked() == sorted(
        (name, "FAILED") for name in ["mine", *(run.name for run in job.ended())]
    )
