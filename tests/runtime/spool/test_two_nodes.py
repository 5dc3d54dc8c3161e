"""Runs and sweeps in a bucket, with their store, on nodes that share no folder.

Homes, caches and temporary folders are their own.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from raybio.core.config import override_all
from raybio.core.location import BucketPath
from raybio.core.records import read_record
from raybio.methods import METHODS
from raybio.runtime.run.result import Result
from raybio.store.remote_store import upload_store
from raybio.store.store import Store
from raybio.training.settings import TrainingConfig
from tests.paths import ROOT
from tests.runtime.ray_nodes import Nodes
from tests.runtime.spool.bucket_job import BucketJob, first_steps, remove
from tests.runtime.spool.test_bucket_sweeps import BucketSweep
from tests.runtime.tune.test_sweep_faults import SweepJob
from tests.runtime_fixtures import TINY
from tests.s3 import S3

pytestmark = [pytest.mark.slow, pytest.mark.nightly]


LAMBDAS = [0.0, 0.1, 0.5]
MAX_STEPS = 12
WRITTEN_BY_TRIALS = ("metrics.jsonl", "outcome.json", "export/model.safetensors")


def test_lost_nodes_and_a_lost_driver_cost_nothing_but_time(
    unbroken: Result,
    separate_nodes: Nodes,
    bucket: BucketPath,
    tiny_store: Store,
    tiny_training: TrainingConfig,
    tmp_path: Path,
) -> None:
    """Two workers on two nodes; a node is lost, then the driver, each with its disk.

    What nodes need of the store, each fetches from the bucket.
    """
    nodes = separate_nodes
    store = bucket / "stores" / "tiny"
    upload_store(tiny_store.path, store, force=False)
    copy = f"cache/buckets/store-{tiny_store.digest}"
    config = override_all(tiny_training, {"schedule.checkpoint_every_steps": 2})
    job = BucketJob(tmp_path, bucket, tiny_store, config)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config.to_mapping()))

    def drive() -> subprocess.Popen[bytes]:
        job.disk.mkdir()
        command = [sys.executable, "-W", "ignore", str(ROOT / "tests/runtime/run/slow_driver.py")]
        own = {"RAY_ADDRESS": nodes.address, "RAYBIO_RUNS": str(job.runs)}
        own |= {"RAYBIO_CACHE": str(job.disk / "cache")}
        with job.log.open("ab") as log:
            return subprocess.Popen(
                [*command, "run", str(store), str(tmp_path)],
                stdout=log,
                stderr=log,
                cwd=job.disk,
                env=nodes.environment | own,
                start_new_session=True,
            )

    def wait_for_newer_checkpoint(process: subprocess.Popen[bytes]) -> int:
        newest = max(job.checkpoints("mine"), default=0)
        while max(job.checkpoints("mine"), default=0) <= newest:
            assert process.poll() is None, job.output
            time.sleep(0.2)
        return max(job.checkpoints("mine"))

    first = nodes.add_with_disk(tmp_path / "first")
    nodes.add_with_disk(tmp_path / "second")
    process = drive()
    wait_for_newer_checkpoint(process)
    for node in ("first", "second"):
        assert list((tmp_path / node).glob("cache/workers/*/*"))
        assert (tmp_path / node / copy / "manifest.json").is_file()
    time.sleep(np.random.default_rng(25).uniform(0, 3))  # at any moment of a step or an upload
    nodes.kill(first)
    shutil.rmtree(tmp_path / "first", ignore_errors=True)
    nodes.add_with_disk(tmp_path / "third")
    assert wait_for_newer_checkpoint(process) < 24
    assert list((tmp_path / "third").glob("cache/workers/*/*"))
    assert (tmp_path / "third" / copy / "manifest.json").is_file()
    job.kill(process)
    for node in ("second", "third"):
        shutil.rmtree(tmp_path / node / "cache", ignore_errors=True)
    process = drive()
    assert process.wait(timeout=1500) == 0, job.output
    result = job.result("mine")
    assert result["weights_sha256"] == unbroken.weights_sha256, job.output
    assert job.steps("mine") == list(range(25))
    written = {path.name for path in job.disk.rglob("*") if path.is_file()}
    assert not written & {"model.safetensors.part", "optimizer.safetensors"}
    assert os.environ["AWS_SECRET_ACCESS_KEY"] not in job.log.read_text()


@pytest.fixture(scope="module")
def unbroken_sweep(
    tmp_path_factory: pytest.TempPathFactory, tiny_store: Store, empty_database: Path
) -> SweepJob:
    """A sweep of a local folder that has ended."""
    folder = tmp_path_factory.mktemp("unbroken")
    shutil.copy(empty_database, folder)
    config = override_all(METHODS["sppt_protein"].config(), TINY)
    space = {"objective.lambda_spml": {"choice": LAMBDAS}}
    job = SweepJob(folder, tiny_store, config, max_steps=MAX_STEPS, space=space)
    job.finish()
    return job


def outcomes_in(job: SweepJob) -> dict[str, str]:
    """Trial -> sha256 of its last weights."""
    return {
        trial.name: read_record(trial / "outcome.json", "outcome")["weights_sha256"]
        for trial in job.ended()
    }


def without_seconds(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the trials of a result, the best first, without the time that they took."""
    return [{**trial, "worker_seconds": None} for trial in result["trials"]]


def has_trial(disk: Path, name: str) -> bool:
    """Return whether a trial is at work on the node of a disk."""
    return any(disk.glob(f"cache/workers/*/{name}-0-*"))


def starts_of(job: BucketSweep, trial: str) -> list[int]:
    """Return the step that each start of a trial's training began from."""
    return first_steps(job.objects.read(f"trials/{trial}/notices.jsonl"))


@pytest.mark.parametrize("lost", ["driver", "node"])
def test_a_sweep_that_loses_its_driver_or_a_node_trains_no_finished_trial_again(
    lost: str,
    unbroken_sweep: SweepJob,
    separate_nodes: Nodes,
    s3: S3,
    bucket: BucketPath,
    tiny_store: Store,
    tiny_training: TrainingConfig,
    tmp_path: Path,
) -> None:
    """It is lost when one trial has ended and another one uploads its last checkpoint."""
    expected = read_record(unbroken_sweep.sweep / "result.json", "result")
    (interrupted,) = (
        trial["name"]
        for trial in expected["trials"]
        if trial["settings"] == {"objective.lambda_spml": LAMBDAS[1]}
    )
    space = {"objective.lambda_spml": {"choice": LAMBDAS}}
    job = BucketSweep(
        tmp_path / "driver", bucket / "sweeps", tiny_store, tiny_training, space=space
    )
    job.store = bucket / "stores" / "tiny"
    upload_store(tiny_store.path, job.store, force=False)
    environment = separate_nodes.environment | {"RAY_ADDRESS": separate_nodes.address}
    last_checkpoint = f"/trials/{interrupted}/checkpoints/step-{MAX_STEPS:08d}"
    s3.hold(last_checkpoint)
    nodes = {name: separate_nodes.add_with_disk(tmp_path / name) for name in ("first", "second")}
    process = job.start(**environment)
    while not (job.etags("ended.json") and s3.paths_with(last_checkpoint)):
        assert process.poll() is None, job.log
        time.sleep(0.1)

    if lost == "driver":
        job.kill(process)
        s3.release()
        for name in nodes:
            remove(tmp_path / name)
            (tmp_path / name).mkdir()
    ended = job.etags("ended.json")
    before = {file: job.etags(file) for file in WRITTEN_BY_TRIALS}
    assert interrupted not in ended
    if lost == "driver":
        process = job.start(**environment)
    else:
        (name,) = (name for name in nodes if has_trial(tmp_path / name, interrupted))
        separate_nodes.kill(nodes[name])
        s3.release()
        remove(tmp_path / name)
        separate_nodes.add_with_disk(tmp_path / "third")
    assert process.wait(timeout=1500) == 0, job.log
    for trial in ended:
        assert job.etags("ended.json")[trial] == ended[trial]
        for file, etags in before.items():
            assert job.etags(file)[trial] == etags[trial]
        assert starts_of(job, trial) == [0]
    assert starts_of(job, interrupted)[-1] > 0
    assert job.outcomes() == outcomes_in(unbroken_sweep)
    result = json.loads(job.objects.read("result.json"))
    assert without_seconds(result) == without_seconds(expected)
    assert os.environ["AWS_SECRET_ACCESS_KEY"] not in (job.folder / "log").read_text()
