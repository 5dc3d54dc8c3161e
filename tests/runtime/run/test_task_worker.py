"""Which errors of a run's own process are kept as its failure, and which Ray tries again."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from raybio.core.errors import ClusterError, ConfigError, DamagedObjectError, StorageError
from raybio.core.location import BucketPath, Location
from raybio.core.records import read_record
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.spec import RunSpec, WorkerSpec
from raybio.runtime.run.task_worker import _train
from raybio.runtime.run.worker import _work
from raybio.store.bucket import BucketFolder
from raybio.store.remote_store import upload_store
from raybio.store.store import Store
from raybio.training.settings import TrainingConfig
from tests.s3 import S3
from tests.store.test_store import parts, write_store


def opened(store: Location, digest: str, runs: Path, config: TrainingConfig) -> WorkerSpec:
    """Return a run of one worker, as its driver opened it over a store of this digest."""
    run = RunSpec(
        method="sppt_protein",
        config=config,
        store=store,
        name="mine",
        runs=runs,
        precision="fp32",
    )
    folder = run.folder
    folder.make()
    folder.open(run.method, run.config, run.store, digest, ())
    return WorkerSpec(run=run, threads=1, start=folder.begin_start(), relay=None, lease=None)


@pytest.mark.parametrize("in_bucket", [False, True])
def test_a_run_never_trains_on_a_store_that_was_prepared_again(
    in_bucket: bool,
    tmp_path: Path,
    bucket: BucketPath,
    tiny_store: Store,
    tiny_training: TrainingConfig,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RAYBIO_CACHE", str(tmp_path / "cache"))
    other = write_store(tmp_path / "store", **parts())
    place: Location = other.path
    if in_bucket:
        place = bucket / "store"
        upload_store(other.path, place, force=False)
    spec = opened(place, tiny_store.digest, tmp_path / "runs", tiny_training)
    folder = spec.run.folder
    _train(spec, None, use_gpu=False)
    failure = read_record(folder.failure, "failure") or {}
    assert failure["kind"] == "StoreError"
    assert "it was prepared again since" in failure["message"]


def test_a_bucket_that_refuses_is_no_failure_of_the_run_and_a_damaged_store_is(
    tmp_path: Path,
    bucket: BucketPath,
    s3: S3,
    tiny_store: Store,
    tiny_training: TrainingConfig,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RAYBIO_CACHE", str(tmp_path / "cache"))
    upload_store(tiny_store.path, bucket / "store", force=False)
    spec = opened(bucket / "store", tiny_store.digest, tmp_path / "runs", tiny_training)
    folder = spec.run.folder
    s3.fail("denied", method="GET", times=99)
    with pytest.raises(ClusterError, match="no permission to read"):
        _train(spec, None, use_gpu=False)
    assert not folder.failure.exists()
    s3.heal()
    store = BucketFolder(bucket / "store")
    largest = max(store.list(), key=lambda info: info.num_bytes)
    store.write(largest.name, b"\0" * largest.num_bytes)
    _train(spec, None, use_gpu=False)
    failure = read_record(folder.failure, "failure") or {}
    assert failure["kind"] == DamagedObjectError.__name__
    assert not issubclass(DamagedObjectError, StorageError)


def fail(rank: int, folder: Path) -> None:
    raise ConfigError("of this start")


def begin_again_and_fail(rank: int, folder: Path) -> None:
    """Another driver starts the run before this worker fails for good."""
    RunFolder(folder.parent, folder.name).begin_start()
    fail(rank, folder)


@pytest.mark.parametrize("setup", [fail, begin_again_and_fail])
def test_a_worker_of_an_older_start_does_not_end_the_newer_one(
    setup: Callable[[int, Path], None],
    tmp_path: Path,
    tiny_store: Store,
    tiny_training: TrainingConfig,
) -> None:
    """A worker of Ray Train that a killed driver had left wrote failure.json for the new start."""
    spec = opened(tiny_store.path, tiny_store.digest, tmp_path / "runs", tiny_training)
    spec = replace(spec, run=replace(spec.run, setup=setup))
    with pytest.raises(ConfigError, match="of this start"):
        _work(spec, 0, None)  # type: ignore[arg-type]
    assert spec.run.folder.failure.exists() == (setup is fail)
