"""Store and run in a bucket, on nodes that share no folder: homes, caches and temporary folders of their own."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml

from raybio.core.config import override_all
from raybio.core.location import BucketPath
from raybio.runtime.run.result import Result
from raybio.store.remote_store import upload_store
from raybio.store.store import Store
from raybio.training.settings import TrainingConfig
from tests.paths import ROOT
from tests.runtime.ray_nodes import RAY, Nodes
from tests.runtime.spool.bucket_job import BucketJob
from tests.s3 import S3

pytestmark = [pytest.mark.slow, pytest.mark.nightly]


@pytest.fixture
def nodes(private_home: Path, s3: S3) -> Iterator[Nodes]:
    """A head without CPUs; the environment of its nodes names the bucket's server."""
    own = {"PYTHONPATH": str(ROOT), "RAY_health_check_period_ms": "1000"}
    nodes = Nodes(head_cpus=0, environment=own)
    yield nodes
    nodes.end()


def add(nodes: Nodes, disk: Path) -> subprocess.Popen[bytes]:
    """Add a node whose home, cache and temporary files are ``disk``."""
    disk.mkdir()
    token = str(nodes.folder / ".ray" / "auth_token")
    own = {"HOME": str(disk), "RAYBIO_CACHE": str(disk / "cache"), "TMPDIR": str(disk)}
    return nodes.add(1, (str(RAY), "start", "--block"), RAY_AUTH_TOKEN_PATH=token, **own)


def test_lost_nodes_and_a_lost_driver_cost_nothing_but_time(
    unbroken: Result,
    nodes: Nodes,
    bucket: BucketPath,
    tiny_store: Store,
    tiny_training: TrainingConfig,
    tmp_path: Path,
) -> None:
    """Two workers on two nodes; a node is lost, then the driver, each with its disk.

    What nodes need of the store, each fetches from the bucket.
    """
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

    first = add(nodes, tmp_path / "first")
    second = add(nodes, tmp_path / "second")
    process = drive()
    wait_for_newer_checkpoint(process)
    for node in ("first", "second"):
        assert list((tmp_path / node).glob("cache/workers/*/*"))
        assert (tmp_path / node / copy / "manifest.json").is_file()
    time.sleep(np.random.default_rng(25).uniform(0, 3))  # at any moment of a step or an upload
    nodes.kill(first)
    shutil.rmtree(tmp_path / "first", ignore_errors=True)
    third = add(nodes, tmp_path / "third")
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
    for node in (second, third):
        nodes.kill(node)
    assert os.environ["AWS_SECRET_ACCESS_KEY"] not in job.log.read_text()
