"""The driver's copy of a run in a bucket, and what its loss does to the bucket."""

import os
import shutil
import time
from pathlib import Path

import pytest

from raybio.core.errors import ClusterError, ConfigError, RaybioError, StorageError
from raybio.core.location import BucketPath
from raybio.runtime.run.folder import SHARED_SCORES, RunFolder
from raybio.runtime.spool import mirror, spool
from raybio.runtime.spool.index import files_of
from raybio.runtime.spool.lease import LEASE, LostLeaseError
from raybio.store.bucket import BucketFolder
from raybio.store.remote_model import model_path
from tests.azure import Azure
from tests.s3 import S3

FILES = ("run.json", "metrics.jsonl", "plots/loss.png", "result.json")


@pytest.fixture
def folder(bucket: BucketPath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """The spool of an empty run."""
    monkeypatch.setattr(mirror, "MIRROR_SECONDS", 0.02)
    monkeypatch.setenv("RAYBIO_CACHE", str(tmp_path / "disk"))
    folder = RunFolder(spool.spool_of(bucket / "runs"), "mine")
    folder.make()
    return folder


def write(folder: RunFolder, *names: str) -> None:
    for name in names:
        path = folder.path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(name)


def names_in(bucket: BucketPath) -> set[str]:
    return {info.name for info in BucketFolder(bucket / "runs" / "mine").list()} - {"lease.json"}


def test_a_file_that_is_removed_is_removed_from_the_bucket(
    folder: RunFolder, bucket: BucketPath
) -> None:
    with spool.held(folder, bucket / "runs") as held:
        write(folder, *FILES)
        held.mirror.write_all()
        assert names_in(bucket) == set(FILES)
        (folder.path / "result.json").unlink()
    assert names_in(bucket) == set(FILES) - {"result.json"}


def test_the_index_is_not_written_for_each_file(
    folder: RunFolder, bucket: BucketPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"plots/{number}.png" for number in range(45)]
    written = []
    write_index = mirror.write_index

    def counted(folder: Path, index: dict) -> None:
        written.append(len(index))
        write_index(folder, index)

    with spool.held(folder, bucket / "runs") as held:
        monkeypatch.setattr(mirror, "write_index", counted)
        with held.mirror._writing:  # so that one pass sends all
            write(folder, *names)
        held.mirror.write_all()
        assert names_in(bucket) == set(names)
        assert written == [20, 40, 45]
        assert mirror.is_mirrored(folder.path, "plots")
        held.mirror.write_all()
        assert written == [20, 40, 45]


def test_a_row_of_shared_scores_is_in_the_bucket_before_the_run_ends(
    folder: RunFolder, bucket: BucketPath, s3: S3
) -> None:
    """The disk of the driver may be lost meanwhile."""
    shared = folder.path.parent / SHARED_SCORES
    shared.mkdir()
    rows = BucketFolder(bucket / "runs" / SHARED_SCORES)
    with spool.held(folder, bucket / "runs") as held:
        for name in ("a.json", "b.json"):
            (shared / name).write_text(name)
            held.mirror._write(is_all=False)
            assert rows.read(name) == name.encode()
        # A row never changes, so nothing asks for it again.
        s3.requests.clear()
        held.mirror._write(is_all=False)
        assert not [request for request in s3.requests if SHARED_SCORES in request.path]
    shutil.rmtree(folder.path.parent)
    spool.refresh(folder, bucket / "runs")
    assert {path.name for path in shared.iterdir()} == {"a.json", "b.json"}


def test_a_result_waits_for_the_log_that_it_vouches_for(
    folder: RunFolder, bucket: BucketPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    # After its first upload, a log is not due again while this test runs.
    monkeypatch.setattr(mirror, "QUIET_FACTOR", 1e9)
    mine = BucketFolder(bucket / "runs" / "mine")
    with spool.held(folder, bucket / "runs"):
        (folder.path / "metrics.jsonl").write_text("first")
        while "metrics.jsonl" not in names_in(bucket):
            time.sleep(0.02)
        (folder.path / "metrics.jsonl").write_text("complete")
        write(folder, "result.json")
        while "result.json" not in names_in(bucket):
            time.sleep(0.02)
        assert mine.read("metrics.jsonl") == b"complete"


@pytest.mark.parametrize("deleted", ["folder", "files"])
def test_a_copy_that_is_deleted_while_a_run_is_held_takes_nothing_from_the_bucket(
    folder: RunFolder, bucket: BucketPath, deleted: str
) -> None:
    with (
        pytest.raises(RaybioError, match="driver's copy were deleted.*same command resumes"),
        spool.held(folder, bucket / "runs") as held,
    ):
        write(folder, *FILES)
        held.mirror.write_all()
        if deleted == "folder":
            shutil.rmtree(folder.path)
        else:
            for name in FILES:
                (folder.path / name).unlink()
        with pytest.raises(RaybioError, match="driver's copy were deleted"):
            held.mirror.write_all()
        # A worker's next lines make the file again, without what it held before.
        write(folder, "run.json", "metrics.jsonl", ".mirror.json")
    assert names_in(bucket) == set(FILES)
    assert BucketFolder(bucket / "runs" / "mine").read("metrics.jsonl") == b"metrics.jsonl"
    # The copy is made again from the bucket.
    shutil.rmtree(folder.path)
    folder.make()
    with spool.held(folder, bucket / "runs"):
        assert {path.name for path in files_of(folder)} >= {"run.json", "result.json"}


def test_a_driver_that_stood_still_writes_nothing_over_the_files_of_the_next_one(
    folder: RunFolder, bucket: BucketPath, tmp_path: Path
) -> None:
    mine = BucketFolder(bucket / "runs" / "mine")
    with (
        pytest.raises(LostLeaseError, match="started again by another driver, which has ended"),
        spool.held(folder, bucket / "runs") as first,
    ):
        write(folder, *FILES)
        first.mirror.write_all()
        # It does not learn that its lease is lost before it writes.
        first.lease._ended.set()
        first.lease._thread.join()
        mine.delete(LEASE)
        other = RunFolder(tmp_path / "other" / "runs", "mine")
        with spool.held(other, bucket / "runs") as second:
            (other.path / "metrics.jsonl").write_text("of the next driver")
            second.mirror.write_all()
            (folder.path / "metrics.jsonl").write_text("of the old one")
            with pytest.raises(LostLeaseError, match="started again by another driver"):
                first.mirror.write_all()
            (folder.path / "metrics.jsonl").write_bytes(bytes(mirror.PART_BYTES + 1))
            with pytest.raises(LostLeaseError, match="started again by another driver"):
                first.mirror.write_all()
            (folder.path / "metrics.jsonl").unlink()
            with pytest.raises(LostLeaseError, match="started again by another driver"):
                first.mirror.write_all()
            assert mine.read("metrics.jsonl") == b"of the next driver"
    assert mine.read("metrics.jsonl") == b"of the next driver"


def test_a_late_write_of_an_earlier_driver_is_replaced(
    folder: RunFolder, bucket: BucketPath
) -> None:
    mine = BucketFolder(bucket / "runs" / "mine")
    with spool.held(folder, bucket / "runs") as held:
        write(folder, *FILES)
        held.mirror.write_all()
        mine.write("metrics.jsonl", b"of an earlier driver")
        mine.write("notices.jsonl", b"of an earlier driver")
        mine.delete("plots/loss.png")
        for name in ("metrics.jsonl", "notices.jsonl", "plots/loss.png"):
            (folder.path / name).write_text("newer")
        held.mirror.write_all()
    for name in ("metrics.jsonl", "notices.jsonl", "plots/loss.png"):
        assert mine.read(name) == b"newer"


def test_of_a_run_that_is_refused_before_it_begins_nothing_stays(
    folder: RunFolder, bucket: BucketPath
) -> None:
    with pytest.raises(ConfigError, match="refused"), spool.held(folder, bucket / "runs"):
        raise ConfigError("refused")
    assert not BucketFolder(bucket).list()
    assert not folder.path.exists()
    # Of one that began before, everything does.
    with spool.held(folder, bucket / "runs"):
        write(folder, *FILES)
    with pytest.raises(ConfigError, match="refused"), spool.held(folder, bucket / "runs"):
        raise ConfigError("refused")
    assert names_in(bucket) == set(FILES)


def test_who_waits_for_a_file_that_the_bucket_refuses_for_good_learns_why(
    folder: RunFolder, bucket: BucketPath, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait() -> None:
        while not mirror.is_mirrored(folder.path, "export"):
            time.sleep(0.02)

    monkeypatch.setattr(mirror, "REFUSED_SECONDS", 0.0)
    with spool.held(folder, bucket / "runs"):
        s3.fail("denied", containing="export/", times=10_000)
        write(folder, "export/model.safetensors")
        with pytest.raises(StorageError, match="export/model.safetensors: no permission to write"):
            wait()
        s3.heal()
        # The next write clears it.
        while (folder.path / ".mirror-refusal").exists():
            time.sleep(0.02)
        wait()
    assert "export/model.safetensors" in names_in(bucket)


def test_a_second_driver_of_this_machine_is_refused_with_the_first_ones_process_and_time(
    folder: RunFolder, bucket: BucketPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool, "LOCK_SECONDS", 0.0)
    named = rf"another driver is at work on this run: process {os.getpid()} on \S+, for "
    with spool.held(folder, bucket / "runs"):
        with pytest.raises(ClusterError, match=named), spool.held(folder, bucket / "runs"):
            pytest.fail("two drivers hold one run")
        with pytest.raises(ClusterError, match=named):
            spool.publish(folder, bucket / "runs")
    # A process that holds the spool alone, as `raybio compare` does.
    with (
        folder.lock("driver", timeout_seconds=0),
        pytest.raises(ClusterError, match="another process is at work on this run"),
    ):
        spool.publish(folder, bucket / "runs")


def test_of_a_new_run_that_the_bucket_refuses_nothing_stays(
    folder: RunFolder, bucket: BucketPath, s3: S3
) -> None:
    s3.fail("denied", containing="list-type", times=10_000)
    with (
        pytest.raises(StorageError, match="no permission to list"),
        spool.held(folder, bucket / "runs"),
    ):
        pytest.fail("the run has begun")
    s3.heal()
    assert not BucketFolder(bucket).list()
    assert not folder.path.exists()


def test_a_copy_of_a_run_that_cannot_be_locked_is_no_copy_that_another_driver_holds(
    bucket: BucketPath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYBIO_CACHE", str(tmp_path / "disk"))
    BucketFolder(bucket / "runs" / "first").write("run.json", b"new")
    folder = RunFolder(spool.spool_of(bucket / "runs"), "first")
    folder.make()
    (folder.path / "run.json").write_text("old")
    with folder.lock("driver", timeout_seconds=0):
        spool.refresh(folder, bucket / "runs")
    assert (folder.path / "run.json").read_text() == "old"
    (folder.path / ".driver.lock").unlink()
    (folder.path / ".driver.lock").mkdir()
    with pytest.raises(ClusterError, match=r"\.driver\.lock: cannot be written"):
        spool.refresh(folder, bucket / "runs")


def test_a_killed_upload_does_not_fail_the_next_one(
    bucket: BucketPath, s3: S3, tmp_path: Path
) -> None:
    (tmp_path / "model").write_bytes(b"new")
    (tmp_path / ".model.sent").write_bytes(b"old")
    mirror._upload(BucketFolder(bucket / "runs"), tmp_path / "model", "model")
    assert BucketFolder(bucket / "runs").read("model") == b"new"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_of_all_runs_those_that_are_named_are_listed(
    bucket: BucketPath, s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYBIO_CACHE", str(tmp_path / "disk"))
    for name in ("first", "second", "other"):
        folder = BucketFolder(bucket / "runs" / name)
        folder.write("run.json", name.encode())
        folder.write("checkpoints/step-00000002-483920175/manifest.json", b"{}")
    s3.requests.clear()
    runs = spool.spool_of(bucket / "runs")
    spool.refresh_matching(runs, bucket / "runs", ["first", "sec*/trials/*", "none"])
    assert {path.name for path in runs.iterdir()} == {"first", "second"}
    assert (runs / "second" / "run.json").read_text() == "second"
    # Shared scores lie next to the runs.
    BucketFolder(bucket / "runs" / SHARED_SCORES).write("a.json", b"{}")
    spool.refresh_matching(runs, bucket / "runs", ["*"])
    assert {path.name for path in runs.iterdir()} == {"first", "second", "other", SHARED_SCORES}
    # The copy of a run that the bucket no longer has stays, and is none of its runs.
    gone = BucketFolder(bucket / "runs" / "first")
    gone.delete([info.name for info in gone.list()])
    assert spool.refresh_matching(runs, bucket / "runs", ["*"]) == {"second", "other"}
    assert (runs / "first" / "run.json").read_text() == "first"
    gone.write("run.json", b"first")
    s3.requests.clear()
    assert model_path(bucket / "runs" / "first" / "checkpoints", "--model").name == "checkpoints"
    with pytest.raises(ConfigError, match="--run .*first: that run has no model of its own"):
        model_path(bucket / "runs" / "first", "--run")
    BucketFolder(bucket / "runs" / "first" / "export").write("config.json", b"{}")
    assert model_path(bucket / "runs" / "first", "--run").name == "export"
    # One level of a folder, not all that is below it.
    lists = [request.path for request in s3.requests if "list-type" in request.path]
    assert len(lists) == 3
    assert all("delimiter=" in path for path in lists)


def test_a_folder_that_cannot_be_read_takes_nothing_from_the_bucket(
    folder: RunFolder, bucket: BucketPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scan(path: str) -> object:
        if str(path).endswith("plots"):
            raise OSError(5, "Input/output error", str(path))
        return scandir(path)

    scandir = os.scandir
    with (
        pytest.raises(OSError, match="Input/output error"),
        spool.held(folder, bucket / "runs") as held,
    ):
        write(folder, *FILES)
        held.mirror.write_all()
        monkeypatch.setattr("os.scandir", scan)
    monkeypatch.setattr("os.scandir", scandir)
    assert names_in(bucket) == set(FILES)


def test_a_run_is_mirrored_and_its_files_are_not_fetched_again(
    container: BucketPath, azure: Azure, tmp_path: Path
) -> None:
    folder = RunFolder(tmp_path / "runs", "mine")
    with spool.held(folder, container):
        folder.config.write_text("method: m\n")
    azure.requests.clear()
    with spool.held(folder, container):
        assert folder.config.read_text() == "method: m\n"
    assert [path for method, path in azure.requests if method == "GET" and "config" in path] == []
    folder.config.unlink()
    spool.refresh(folder, container)
    assert folder.config.read_text() == "method: m\n"
