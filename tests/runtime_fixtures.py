"""Fixtures of tests that train with Ray: a private home, one cluster, a tiny training."""

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from raybio.core.config import override_all
from raybio.methods import METHODS
from raybio.runtime.run.spec import Compute
from raybio.store.store import Store
from raybio.training.settings import TrainingConfig
from tests.paths import ROOT
from tests.training.workers import forkserver

if TYPE_CHECKING:
    from raybio.runtime.run.result import Result
    from raybio.runtime.run.spec import RunSpec
    from tests.runtime.ray_nodes import Nodes
    from tests.s3 import S3

TINY = {
    "encoder.num_layers": 1,
    "encoder.width": 16,
    "encoder.num_heads": 2,
    "encoder.ffn_width": 32,
    "encoder.max_positions": 40,
    "input.max_length": 40,
    "objective.lambda_spml": 0.5,
    "plan.global_batch_rows": 11,
    "schedule.max_steps": 24,
    "schedule.checkpoint_every_steps": 5,
    "schedule.evaluate_every_steps": 12,
    "schedule.keep_best": "val/link_lrap",
    "schedule.log_every_steps": 1,
    "precision": "fp32",
}


@pytest.fixture(scope="session", autouse=True)
def private_home() -> Iterator[Path]:
    """A home and a temporary folder of Ray's own, with a short path: Ray's sockets lie deep below it."""
    from raybio.runtime.preflight.this_machine import RAY_STOPS_AT

    folder = Path(tempfile.mkdtemp(prefix="rb", dir="/tmp"))
    before = dict(os.environ)
    os.environ |= {"HOME": str(folder), "RAY_TMPDIR": str(folder), "OMP_NUM_THREADS": "1"}
    # Reports of workers are fetched at this interval, and each waits for the one before.
    os.environ |= {"RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2"}
    os.environ |= {RAY_STOPS_AT: "1"}  # tests want a few GiB, whatever share of the disk these are
    for name in ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        os.environ.pop(name, None)
    yield folder
    os.environ.clear()
    os.environ |= before
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def ray_cluster(private_home: Path) -> Iterator[None]:
    """One local cluster for all tests; when it ends, no process of ours is left."""
    from raybio.runtime.cluster.connection import started

    forkserver()  # it stays as long as the tests run
    me = psutil.Process()
    before = {child.pid for child in me.children(recursive=True)}
    with started(threads=1, with_dashboard=True):  # sweeps need the dashboard
        yield
    _, alive = psutil.wait_procs(
        [child for child in me.children(recursive=True) if child.pid not in before], 60
    )
    names = [
        process.name() for process in alive if process.is_running() and process.status() != "zombie"
    ]
    assert not [name for name in names if "ray" in name or "gcs" in name], names


@pytest.fixture(scope="module")
def bucket_head(private_home: Path, s3_server: "S3") -> "Iterator[Nodes]":
    """A head without CPUs; the environment of its nodes names the server of buckets."""
    from tests.runtime.ray_nodes import Nodes
    from tests.s3 import ENVIRONMENT

    own = {"PYTHONPATH": str(ROOT), "RAY_health_check_period_ms": "1000"}
    nodes = Nodes(
        head_cpus=0, environment={**own, **ENVIRONMENT, "AWS_ENDPOINT_URL": s3_server.url}
    )
    yield nodes
    nodes.end()


@pytest.fixture
def separate_nodes(bucket_head: "Nodes") -> "Iterator[Nodes]":
    """A head to which a test adds nodes with disks of their own; they end with the test."""
    yield bucket_head
    bucket_head.kill_all_but_head()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 16 MiB that can be filled; skipped where none can be mounted."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def set_read_only(disk: Path, *, is_read_only: bool) -> None:
    """Make a small disk read-only, also for root, or writable again; nothing may write to it now."""
    options = f"remount,{'ro' if is_read_only else 'rw'}"
    subprocess.run(["mount", "-o", options, str(disk)], check=True)


@contextlib.contextmanager
def read_only_from_now(disk: Path) -> Iterator[None]:
    """Make a small disk read-only in a block for all that is opened there, while others write to it.

    Files that are open for writing stay writable, since the kernel refuses to remount their disk.
    """
    subprocess.run(["mount", "--bind", str(disk), str(disk)], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(disk)], check=True)
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def fill(disk: Path) -> Path:
    """Fill a small disk to its last byte; return the file to delete."""
    path = disk / "filler"
    with contextlib.suppress(OSError), path.open("ab", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while file.write(bytes(size)):
                    pass
    return path


@pytest.fixture
def tiny_settings() -> dict[str, object]:
    return dict(TINY)


@pytest.fixture
def tiny_training(tiny_settings: dict[str, object]) -> TrainingConfig:
    return override_all(METHODS["sppt_protein"].config(), tiny_settings)


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory, empty_database: Path) -> Path:
    """A path with a space and letters beyond ASCII."""
    folder = tmp_path_factory.mktemp("läufe ü")
    shutil.copy(empty_database, folder)
    return folder / "meine runs"


@pytest.fixture
def request_two(runs: Path, tiny_store: Store, tiny_training: TrainingConfig) -> "RunSpec":
    """Two workers; each test gives it a name."""
    from raybio.runtime.run.spec import RunSpec

    return RunSpec(
        method="sppt_protein",
        config=tiny_training,
        store=tiny_store.path,
        name="unbroken",
        runs=runs,
        compute=Compute(workers=2),
    )


@pytest.fixture
def unbroken(ray_cluster: None, request_two: "RunSpec") -> "Result":
    """Trained by the first test that asks; the others find it finished."""
    from raybio.runtime.run.driver import train

    return train(request_two)
