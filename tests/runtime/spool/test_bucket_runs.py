"""Runs in a bucket: killed drivers with empty disks, and what the bucket then holds."""

import contextlib
import itertools
import json
import shutil
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from raybio.core.location import BucketPath
from raybio.runtime.run.driver import train
from raybio.runtime.run.result import Result
from raybio.runtime.run.spec import Compute, RunSpec
from raybio.store.bucket import BucketFolder
from raybio.store.store import Store
from raybio.training.settings import TrainingConfig
from tests.runtime.spool.bucket_job import BucketJob
from tests.runtime_fixtures import fill
from tests.s3 import ENVIRONMENT, S3

pytestmark = pytest.mark.slow

NETWORK_FAULTS = {"busy", "reset", "lost", "cut"}


@pytest.fixture
def one_worker(ray_cluster: None, request_two: RunSpec) -> Result:
    """The unbroken run of one worker in a local folder."""
    return train(replace(request_two, name="one-worker", compute=Compute(workers=1)))


@pytest.fixture
def job(
    tmp_path: Path, bucket: BucketPath, tiny_store: Store, tiny_training: TrainingConfig
) -> BucketJob:
    return BucketJob(tmp_path, bucket, tiny_store, tiny_training)


@pytest.mark.nightly
def test_a_driver_killed_with_its_disk_ends_with_the_weights_of_the_unbroken_local_run(
    one_worker: Result, job: BucketJob
) -> None:
    process = job.start("mine")
    job.wait_for_checkpoint("mine", process)
    job.kill(process)
    saved = job.checkpoints("mine")[-1]
    resumed = job.finish("mine")
    assert job.first_steps("mine")[-1] >= saved > 0
    assert resumed["weights_sha256"] == one_worker.weights_sha256, job.output
    assert job.steps("mine") == list(range(25))
    names = {info.name for info in job.of("mine").list()}
    assert {"run.json", "launch.json", "outcome.json", "unit_scores.npz"} <= names
    assert any(name.startswith("export/") for name in names)
    assert json.loads(job.of("mine").read("lease.json")) == {"is_released": True}
    assert not [name for name in names if "/." in name]
    assert not (job.disk / "cache" / "workers").is_dir() or not [
        path for path in (job.disk / "cache" / "workers").iterdir() if path.is_dir()
    ]
    # No secret is in the bucket, nor in the driver's copy with its database.
    contents = {name: job.of("mine").read(name) for name in names}
    for path in job.disk.rglob("*"):
        if path.is_file():
            contents[path.name] = path.read_bytes()
    assert {"run.json", "mlflow.db", "metrics.jsonl"} <= contents.keys()
    for name, content in contents.items():
        assert ENVIRONMENT["AWS_SECRET_ACCESS_KEY"].encode() not in content, name
        assert ENVIRONMENT["AWS_ACCESS_KEY_ID"].encode() not in content, name
    # A finished run is read, and not trained again.
    shutil.rmtree(job.disk)
    assert job.finish("mine")["weights_sha256"] == one_worker.weights_sha256
    assert "was finished already" in job.log.read_text()
    assert "never-shown-secret" not in job.log.read_text()


@pytest.mark.nightly
def test_a_second_driver_is_refused_while_the_first_lives_and_both_see_one_run(
    one_worker: Result, job: BucketJob, tmp_path: Path
) -> None:
    process = job.start("mine")
    while not [info for info in job.of("mine").list() if info.name == "lease.json"]:
        assert process.poll() is None, job.output
    other = BucketJob(tmp_path / "other", job.runs.parent, job.store, job.config)
    second = other.start("mine")
    assert second.wait(timeout=1500) == 2
    assert f"process {process.pid} on " in other.output
    assert process.wait(timeout=1500) == 0, job.output
    # Its own folders are made from the bucket: the finished run is read there.
    assert other.finish("mine")["weights_sha256"] == one_worker.weights_sha256
    assert "was finished already" in other.log.read_text()


@pytest.mark.nightly
@pytest.mark.parametrize("workers", [1, 2])
def test_a_driver_killed_at_random_moments_ends_with_the_weights_of_the_unbroken_run(
    one_worker: Result, unbroken: Result, job: BucketJob, workers: int
) -> None:
    random = np.random.default_rng()
    seconds = []
    for _ in range(4):
        process = job.start("mine", "--workers", str(workers))
        seconds.append(float(random.uniform(5, 60)))
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=seconds[-1])
            break
        job.kill(process)
    result = job.finish("mine", "--workers", str(workers))
    expected = one_worker if workers == 1 else unbroken
    assert result["weights_sha256"] == expected.weights_sha256, f"killed after {seconds} s"
    assert job.steps("mine") == list(range(25))


@pytest.mark.nightly
def test_runs_of_one_command_train_at_the_same_time_in_a_bucket(
    ray_cluster: None, job: BucketJob, request_two: RunSpec
) -> None:
    process = job.start("mine", "--seeds", "2")
    job.wait_for_checkpoint("mine", process)
    job.kill(process)
    saved = job.checkpoints("mine")[-1]
    process = job.start("mine", "--seeds", "2")
    assert process.wait(timeout=1500) == 0, job.output
    assert job.first_steps("mine")[-1] >= saved > 0
    names = {info.name.split("/")[0] for info in BucketFolder(job.runs).list()}
    others = [name for name in names if name != "mine" and not name.startswith(".")]
    assert len(others) == 1
    assert job.result(others[0])["status"] == "finished"
    assert {"table.md", "table.json"} <= {info.name for info in job.of("mine").list()}
    threads = json.loads(job.of("mine").read("launch.json"))["threads_per_worker"]
    compute = Compute(workers=1, threads_per_worker=threads)
    alone = train(replace(request_two, name="alone", compute=compute))
    assert job.result("mine")["weights_sha256"] == alone.weights_sha256


def cause_faults(s3: S3, ended: threading.Event) -> None:
    """Cause faults of all kinds, one after the other, at random moments until the event is set."""
    random = np.random.default_rng(25)
    for kind in itertools.cycle([*sorted(NETWORK_FAULTS), "held"]):
        # One at a time: faults that wait would fall on all tries of one request.
        while s3.has_faults:
            if ended.wait(0.02):
                return
        if ended.wait(random.uniform(0.02, 0.3)):
            return
        if kind == "held":
            s3.hold("/")
            ended.wait(random.uniform(0.1, 1.0))
            s3.release()
        else:
            s3.fail(kind)


@pytest.mark.nightly
def test_two_workers_over_a_network_of_faults_end_with_the_weights_of_the_unbroken_run(
    unbroken: Result, job: BucketJob, s3: S3
) -> None:
    ended = threading.Event()
    thread = threading.Thread(target=cause_faults, args=(s3, ended))
    process = job.start("mine", "--workers", "2")
    # The check before a start gives up after seconds.
    job.wait_for_checkpoint("mine", process)
    thread.start()
    try:
        assert process.wait(timeout=1500) == 0, job.output
    finally:
        ended.set()
        thread.join()
        s3.heal()
    assert {request.fault for request in s3.requests} >= NETWORK_FAULTS
    assert job.result("mine")["weights_sha256"] == unbroken.weights_sha256, job.output
    assert job.steps("mine") == list(range(25))


@pytest.mark.nightly
@pytest.mark.parametrize("held", ["/state.json", "/export/"])
def test_a_driver_killed_during_an_upload_ends_with_the_weights_of_the_unbroken_run(
    one_worker: Result, job: BucketJob, s3: S3, held: str
) -> None:
    """A checkpoint that is half in the bucket, or the model at the run's end."""
    process = job.start("mine")
    job.wait_for_checkpoint("mine", process)
    s3.requests.clear()
    s3.hold(held)
    while not [one for one in s3.requests if one.method == "PUT" and held in one.path]:
        assert process.poll() is None, job.output
        time.sleep(0.05)
    saved = job.checkpoints("mine")
    job.kill(process)
    s3.release()  # what was on its way arrives late
    assert job.checkpoints("mine") == saved
    resumed = job.finish("mine")
    assert job.first_steps("mine")[-1] >= saved[-1]
    assert resumed["weights_sha256"] == one_worker.weights_sha256, job.output
    assert job.steps("mine") == list(range(25))
    assert {"export/model.safetensors", "export/config.json"} <= {
        info.name for info in job.of("mine").list("export")
    }


@pytest.mark.nightly
def test_a_run_whose_permission_is_lost_for_a_while_ends_with_the_weights_of_the_unbroken_run(
    one_worker: Result, job: BucketJob, s3: S3
) -> None:
    process = job.start("mine")
    job.wait_for_checkpoint("mine", process)
    saved = job.checkpoints("mine")
    s3.requests.clear()
    s3.fail("denied", times=10_000)
    while not [one for one in s3.requests if "/checkpoints/" in one.path]:
        assert process.poll() is None, job.output
        time.sleep(0.05)
    s3.heal()
    if process.wait(timeout=1500):
        assert "no permission to" in job.output
    assert max(job.checkpoints("mine")) >= saved[-1]
    assert job.finish("mine")["weights_sha256"] == one_worker.weights_sha256, job.output
    assert job.steps("mine") == list(range(25))


@pytest.mark.nightly
def test_a_full_disk_of_the_drivers_cache_is_one_message_and_the_run_goes_on_when_there_is_room(
    one_worker: Result, job: BucketJob, small_disk: Path
) -> None:
    cache = {"RAYBIO_CACHE": str(small_disk / "cache")}
    process = job.start("mine", **cache)
    job.wait_for_checkpoint("mine", process)
    filler = fill(small_disk)
    assert process.wait(timeout=1500) == 2, job.output
    shown = job.log.read_text()
    assert "Traceback" not in shown
    errors = [line for line in shown.splitlines() if "Error: " in line]
    assert len(errors) == 1 and str(small_disk) in errors[0], errors
    saved = job.checkpoints("mine")[-1]
    filler.unlink()
    resumed = job.finish("mine", **cache)
    assert job.first_steps("mine")[-1] >= saved > 0
    assert resumed["weights_sha256"] == one_worker.weights_sha256, job.output
    assert job.steps("mine") == list(range(25))
