"""Whole sweeps in a bucket: a killed driver with an empty disk, and what the bucket then holds."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from raybio.core.location import BucketPath
from raybio.methods.relation_graphs.demo import WordsConfig, write_words
from raybio.methods.relation_graphs.prepare import prepare_words
from raybio.methods.sppt.synthetic.store import TopicStore
from raybio.store.bucket import BucketFolder
from raybio.store.store import Store
from raybio.training.settings import TrainingConfig
from tests.experiments.test_all_graphs import TINY
from tests.jobs.test_relation_graphs_job import SETTINGS
from tests.jobs.test_relations_job import given
from tests.paths import ROOT
from tests.runtime.spool.bucket_job import first_steps, lose_machine
from tests.runtime.tune.test_sweep_faults import LAMBDAS, SweepJob

pytestmark = [pytest.mark.slow, pytest.mark.nightly]


class InBucket:
    """What a command leaves of its sweep ``mine`` in a bucket, and how its machine is lost."""

    disk: Path
    objects: BucketFolder

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        lose_machine(process, self.disk)

    def etags(self, ending: str) -> dict[str, str | None]:
        """Trial -> tag of its file of a name."""
        return {
            info.name.split("/")[1]: info.version.etag
            for info in self.objects.list("trials")
            if info.name.endswith(f"/{ending}")
        }

    def outcomes(self) -> dict[str, str]:
        """Trial -> sha256 of its last weights."""
        return {
            name: json.loads(self.objects.read(f"trials/{name}/outcome.json"))["weights_sha256"]
            for name in self.etags("outcome.json")
        }


class BucketSweep(InBucket, SweepJob):
    """``jobs/sweep.py`` over four values of lambda, with sweeps in a bucket."""

    def __init__(
        self,
        folder: Path,
        sweeps: BucketPath,
        store: Store,
        config: TrainingConfig,
        **sections: dict[str, Any],
    ) -> None:
        folder.mkdir(exist_ok=True)
        SweepJob.__init__(self, folder, store, config, max_steps=12, **sections)
        self.disk = folder / "disk"
        self.environment = {"RAYBIO_SWEEPS": str(sweeps), "RAYBIO_CACHE": str(self.disk)}
        self.objects = BucketFolder(sweeps / "mine")

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        return super().start(*arguments, **self.environment, **environment)


class BucketCommand(InBucket):
    """Another command that is a sweep."""

    def __init__(self, folder: Path, sweeps: BucketPath, job: str, *arguments: object) -> None:
        self.disk = folder / "disk"
        self.folder = folder
        self.objects = BucketFolder(sweeps / "mine")
        self.command = [sys.executable, "-W", "ignore", str(ROOT / "jobs" / job)]
        self.command += [*map(str, arguments), "--name", "mine"]

    def start(self) -> subprocess.Popen[bytes]:
        self.disk.mkdir(exist_ok=True)
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                self.command,
                stdout=log,
                stderr=log,
                cwd=self.disk,
                env=os.environ | {"RAYBIO_CACHE": str(self.disk)},
                start_new_session=True,
            )

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()[-3000:]

    def finish_after_a_kill(self) -> None:
        """Lose the machine when a trial has ended, and give the command again."""
        process = self.start()
        while not self.etags("ended.json"):
            assert process.poll() is None, self.log
            time.sleep(0.1)
        self.kill(process)
        ended = self.etags("ended.json")
        logs = {name: self.etags("metrics.jsonl")[name] for name in ended}
        assert self.start().wait(timeout=1500) == 0, self.log
        assert len(ended) < len(self.etags("ended.json")), "killed too late"
        assert ended.items() <= self.etags("ended.json").items()
        assert logs.items() <= self.etags("metrics.jsonl").items()


def test_a_killed_driver_with_an_empty_disk_trains_no_finished_trial_again(
    tmp_path: Path, bucket: BucketPath, tiny_store: Store, tiny_training: TrainingConfig
) -> None:
    unbroken = BucketSweep(tmp_path / "a", bucket / "unbroken", tiny_store, tiny_training)
    process = unbroken.start()
    assert process.wait(timeout=1500) == 0, unbroken.log
    job = BucketSweep(tmp_path / "b", bucket / "sweeps", tiny_store, tiny_training)
    process = job.start()
    while not job.etags("ended.json"):
        assert process.poll() is None, job.log
        time.sleep(0.1)
    job.kill(process)
    finished = job.etags("ended.json")
    logs = {name: job.etags("metrics.jsonl")[name] for name in finished}
    assert len(finished) < len(LAMBDAS)
    process = job.start()
    assert process.wait(timeout=1500) == 0, job.log
    assert finished.items() <= job.etags("ended.json").items()
    assert logs.items() <= job.etags("metrics.jsonl").items()
    assert job.outcomes() == unbroken.outcomes()
    assert len(job.outcomes()) == len(LAMBDAS)
    result = json.loads(job.objects.read("result.json"))
    assert {one["status"] for one in result["trials"]} == {"finished"}
    assert job.etags("model.safetensors").keys() == job.outcomes().keys()
    assert json.loads(job.objects.read("lease.json")) == {"is_released": True}
    # Another machine reads the finished sweep, and trains nothing.
    shutil.rmtree(job.disk)
    ended = job.etags("ended.json")
    process = job.start()
    assert process.wait(timeout=1500) == 0, job.log
    assert job.etags("ended.json") == ended
    assert os.environ["AWS_SECRET_ACCESS_KEY"] not in (job.folder / "log").read_text()


def names_in(job: BucketSweep) -> list[str]:
    return [info.name for info in job.objects.list()]


def test_trials_of_several_workers_have_their_files_in_the_bucket(
    tmp_path: Path, bucket: BucketPath, tiny_store: Store, tiny_training: TrainingConfig
) -> None:
    small = {"objective.lambda_spml": {"choice": [0.1]}}
    outcomes = []
    for name in ("two", "killed"):
        job = BucketSweep(tmp_path / name, bucket / name, tiny_store, tiny_training, space=small)
        process = job.start("--workers", "2")
        if name == "killed":
            while not [name for name in names_in(job) if name.endswith("/manifest.json")]:
                assert process.poll() is None, job.log
                time.sleep(0.1)
            job.kill(process)
            process = job.start("--workers", "2")
        assert process.wait(timeout=1500) == 0, job.log
        if name == "killed":
            (notices,) = [name for name in names_in(job) if name.endswith("/notices.jsonl")]
            assert first_steps(job.objects.read(notices))[-1] > 0
        outcomes.append(job.outcomes())
    assert outcomes[0] == outcomes[1]
    assert len(outcomes[0]) == 1


def test_a_cross_validation_whose_machine_is_lost_trains_no_finished_fold_again(
    tmp_path: Path, bucket: BucketPath
) -> None:
    sentences, folds = write_words(
        tmp_path / "raw", WordsConfig(num_sentences=40, num_folds=2, num_drugs=8, num_effects=8)
    )
    store = prepare_words(tmp_path / "words", [sentences], splits=folds).path
    # One training at a time.
    arguments = ["--store", store, "--all-folds", "--last-training"]
    arguments += ["--cpus-per-worker", os.cpu_count()]
    arguments += ["--runs", bucket / "sweeps", *given(SETTINGS)]
    job = BucketCommand(tmp_path, bucket / "sweeps", "relation_graphs.py", *arguments)
    job.finish_after_a_kill()
    scores = json.loads(job.objects.read("folds.json"))["scores"]
    assert sorted(scores["cldr + clner"]) == ["1", "2"]
    assert sorted(scores["cldr + clner, last training"]) == ["1", "2"]
    assert "cldr + clner" in job.objects.read("folds.md").decode()


def test_synthetic_graphs_whose_machine_is_lost_train_no_finished_one_again(
    tmp_path: Path, bucket: BucketPath, tiny_topics: TopicStore
) -> None:
    arguments: list[object] = ["--graph", "cliques", "--store", tiny_topics.path, "--device", "cpu"]
    arguments += ["--cpus-per-worker", os.cpu_count(), "--sweeps", bucket / "sweeps"]
    for setting in TINY:
        arguments += ["--set", setting]
    job = BucketCommand(tmp_path, bucket / "sweeps", "sppt_synthetic.py", *arguments)
    job.finish_after_a_kill()
    assert len(job.outcomes()) == 2
    assert {"graphs.md", "graphs.json", "map-cliques.png"} <= {
        info.name for info in job.objects.list()
    }
