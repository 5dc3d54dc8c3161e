"""Checkpoints in a bucket: uploaded in the background, the newest whole one is found with an empty disk."""

import errno
import json
import logging
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from raybio.core.errors import CheckpointError, ClusterError
from raybio.core.location import BucketPath
from raybio.store.bucket import BucketFolder
from raybio.training.checkpoint import CheckpointStore
from raybio.training.checkpoint_files import Identity
from raybio.training.remote_checkpoints import TAIL_BYTES, RemoteCheckpoints, last_step_of_log
from tests.s3 import S3
from tests.training.small_checkpoints import DATA, Settings, new_state, train, weights_hash
from tests.training.test_checkpoint_storage import fail_writes


def report_line(step: int) -> str:
    """A line as ``MetricsLog.append`` writes it."""
    return json.dumps({"step": step, "time_ms": 1, "metrics": {"loss": 2.0}}) + "\n"


class Node:
    """A machine that works on the run: its disk is empty when it starts."""

    def __init__(self, folder: Path, bucket: BucketFolder) -> None:
        self.folder = folder
        self.bucket = bucket
        self.log = folder / "metrics.jsonl"
        self.manifests: dict[str, bytes] = {}
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)

    def store(
        self, keep: int = 2, check_lease: Callable[[], None] = lambda: None
    ) -> CheckpointStore:
        remote = RemoteCheckpoints(
            self.bucket,
            self.folder / "fetched",
            keep=keep,
            check_lease=check_lease,
            on_change=self.remember,
            last_reported_step=lambda: last_step_of_log(self.log),
            log=self.log,
            retry_delays_seconds=(),
        )
        store = CheckpointStore(
            self.folder / "own", keep=keep, remote=remote, retry_delays_seconds=()
        )
        store.load_newest(Settings(), DATA)
        return store

    def remember(self, manifests: dict[str, bytes]) -> None:
        self.manifests = manifests

    def report(self, step: int) -> None:
        with self.log.open("a") as log:
            log.write(report_line(step))


@pytest.fixture
def folder(bucket: BucketPath) -> BucketFolder:
    return BucketFolder(bucket / "runs" / "mine", is_patient=False)


def save(node: Node, store: CheckpointStore, *steps: int, best: int | None = None) -> None:
    for step in steps:
        store.save(new_state(step), step, best)
        node.report(step)
        store.wait()


def steps_in(folder: BucketFolder) -> list[int]:
    whole = [info.name for info in folder.list() if info.name.endswith("manifest.json")]
    return [int(name.split("-")[1]) for name in whole]


def test_a_machine_with_an_empty_disk_goes_on_with_the_bits_and_the_log_of_the_lost_one(
    tmp_path: Path, folder: BucketFolder
) -> None:
    unbroken = new_state()
    train(unbroken, range(10))
    lost = Node(tmp_path / "a", folder)
    broken = new_state()
    train(broken, range(5))
    store = lost.store()
    for step in range(6):
        lost.report(step)
    store.save(broken, 5)
    train(broken, range(5, 8))
    store.close()
    lost.report(6)
    shutil.rmtree(lost.folder)

    node = Node(tmp_path / "b", folder)
    store = node.store()
    saved = store.load_newest(Settings(), DATA)
    assert saved is not None and saved.step == 5
    store.restore_log(node.log)
    assert last_step_of_log(node.log) == 5
    resumed = new_state(seed=99)
    saved.restore(resumed.model, resumed.optimizer)
    train(resumed, range(5, 10))
    assert weights_hash(resumed.model) == weights_hash(unbroken.model)


def test_the_newest_and_the_best_are_kept_and_the_driver_knows_them(
    tmp_path: Path, folder: BucketFolder
) -> None:
    node = Node(tmp_path, folder)
    store = node.store(keep=2)
    save(node, store, 1, 2, 3, 4, best=1)
    assert steps_in(folder) == [1, 3, 4]
    assert sorted(json.loads(text)["step"] for text in node.manifests.values()) == [1, 3, 4]
    assert Node(tmp_path / "b", folder).store().of_step(1).step == 1
    store.close()
    later = Node(tmp_path / "c", folder)
    again = later.store(keep=2)
    save(later, again, 5, best=None)
    assert steps_in(folder) == [4, 5]
    again.close()


def test_a_step_does_not_wait_for_an_upload_and_the_end_does(
    tmp_path: Path, folder: BucketFolder
) -> None:
    node = Node(tmp_path, folder)
    goes_on = threading.Event()
    node.remember = lambda manifests: goes_on.wait()  # type: ignore[method-assign]
    store = node.store(keep=1)
    for step in (1, 2, 3, 4):  # would never return if a save waited for the upload before it
        store.save(new_state(step), step, 2)
        node.report(step)
    goes_on.set()
    store.wait()
    # The best one is there, however many were left out while the first was uploaded.
    assert steps_in(folder) == [2, 4]
    store.close()


def test_a_checkpoint_is_fetched_while_a_newer_one_arrives_in_the_bucket(
    tmp_path: Path, folder: BucketFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path, folder)
    store = node.store(keep=2)
    save(node, store, 1)
    assert store.remote is not None
    uploaded = store.remote._uploaded
    ((own, name),) = uploaded.items()
    shutil.rmtree(own)
    is_dir = Path.is_dir

    def is_dir_after_an_upload(path: Path) -> bool:
        if path == own:
            uploaded[own.with_name("newer")] = "newer"
        return is_dir(path)

    monkeypatch.setattr(Path, "is_dir", is_dir_after_an_upload)
    assert store.remote.fetch(name) == node.folder / "fetched" / name
    store.close()


def test_a_checkpoint_is_never_committed_without_the_report_of_its_step(
    tmp_path: Path, folder: BucketFolder
) -> None:
    node = Node(tmp_path / "a", folder)
    store = node.store()
    save(node, store, 1)
    # The end of a run: the best weights are restored before the last step is reported.
    store.save(new_state(2), 2, 1)
    assert store.of_step(1).step == 1
    assert steps_in(folder) == [1]
    node.report(2)
    store.close()
    assert steps_in(folder) == [1, 2]
    again = Node(tmp_path / "b", folder)
    again.store().restore_log(again.log)
    assert last_step_of_log(again.log) == 2
    # A process that ends before the report gives the checkpoint up.
    store = again.store()
    store.save(new_state(3), 3)
    store._join_writer()
    assert store.remote is not None
    while store.remote._current is None:
        time.sleep(0.01)  # until the upload has begun
    store.remote.close()
    with pytest.raises(ClusterError, match="the process has ended before"):
        store.wait()
    assert steps_in(folder) == [1, 2]


@pytest.mark.parametrize("file", ["model.safetensors", "state.json", "manifest.json"])
def test_a_process_killed_in_the_middle_of_an_upload_leaves_the_checkpoint_before_it(
    tmp_path: Path, folder: BucketFolder, s3: S3, file: str
) -> None:
    node = Node(tmp_path / "a", folder)
    store = node.store()
    save(node, store, 1)
    s3.fail("denied", method="PUT", containing=file, times=99)
    store.save(new_state(2), 2)
    node.report(2)
    with pytest.raises(ClusterError, match="step-00000002 was not uploaded.*no permission"):
        store.wait()
    s3.heal()
    other = Node(tmp_path / "b", folder)
    again = other.store(keep=1)
    assert again.latest().step == 1  # type: ignore[union-attr]
    # What the killed process left is deleted.
    save(other, again, 2)
    again.close()
    assert {info.name.split("/")[1][:13] for info in folder.list()} == {"step-00000002"}


def test_a_flipped_byte_in_the_newest_is_found_and_the_one_before_it_is_loaded_with_a_warning(
    tmp_path: Path, folder: BucketFolder, caplog: pytest.LogCaptureFixture
) -> None:
    node = Node(tmp_path / "a", folder)
    store = node.store()
    save(node, store, 1, 2)
    store.close()
    (name,) = [info.name for info in folder.list() if "0002-" in info.name and "model" in info.name]
    content = bytearray(folder.read(name))
    content[-1] ^= 1
    folder.write(name, bytes(content))
    other = Node(tmp_path / "b", folder)
    with caplog.at_level(logging.WARNING):
        again = other.store(keep=2)
    assert "resuming from step 1" in caplog.text and "sha256" in caplog.text
    save(other, again, 2, 3)
    assert steps_in(folder) == [2, 3]
    assert name not in {info.name for info in folder.list()}
    again.close()
    for info in folder.list():
        if "state.json" in info.name:
            folder.delete(info.name)
    with pytest.raises(CheckpointError, match="s3://.*none of the 2 checkpoints can be used"):
        Node(tmp_path / "c", folder).store()


def test_faults_of_the_network_that_pass_are_not_seen(
    tmp_path: Path, bucket: BucketPath, s3: S3
) -> None:
    patient = BucketFolder(bucket / "mine")
    node = Node(tmp_path / "a", patient)
    store = node.store()
    for kind in ("busy", "reset", "lost"):
        s3.fail(kind, method="PUT", times=2)
    save(node, store, 1)
    store.close()
    s3.fail("cut", method="GET", containing="model", times=2)
    assert Node(tmp_path / "b", patient).store().latest().step == 1  # type: ignore[union-attr]


def test_a_process_of_a_driver_that_lost_the_run_commits_and_deletes_nothing(
    tmp_path: Path, folder: BucketFolder
) -> None:
    node = Node(tmp_path, folder)
    store = node.store(keep=1)
    save(node, store, 1)

    def taken_over() -> None:
        raise ClusterError("the run has been started again")

    zombie = Node(tmp_path / "b", folder)
    other = zombie.store(keep=1, check_lease=taken_over)
    other.save(new_state(2), 2)
    zombie.report(2)
    with pytest.raises(ClusterError, match="started again"):
        other.wait()
    assert steps_in(folder) == [1]
    store.close()


def test_a_checkpoint_that_is_pruned_between_listing_and_reading_is_no_damaged_one(
    tmp_path: Path, folder: BucketFolder, caplog: pytest.LogCaptureFixture
) -> None:
    writer = Node(tmp_path / "a", folder)
    written = writer.store(keep=1)
    save(writer, written, 1)
    reader = Node(tmp_path / "b", folder).store()
    assert reader.remote is not None
    shutil.rmtree(tmp_path / "b" / "fetched")
    first = iter([reader.remote.names()])
    save(writer, written, 2)
    listed = reader.remote.names
    reader.remote.names = lambda: next(first, None) or listed()  # type: ignore[method-assign]
    with caplog.at_level(logging.WARNING):
        found = reader.latest()
    assert found is not None and found.step == 2
    assert "damaged" not in caplog.text
    written.close()


def test_a_checkpoint_without_all_of_its_files_takes_no_slot_of_a_whole_one(
    tmp_path: Path, folder: BucketFolder
) -> None:
    """Two processes of one rank: one commits what the other has half deleted."""
    folder.write("checkpoints/step-00000003-123456789/manifest.json", b"{}")
    node = Node(tmp_path, folder)
    remote = RemoteCheckpoints(
        folder,
        tmp_path / "fetched",
        keep=1,
        check_lease=lambda: None,
        on_change=node.remember,
        last_reported_step=lambda: last_step_of_log(node.log),
        log=node.log,
        retry_delays_seconds=(),
    )
    store = CheckpointStore(tmp_path / "own", keep=1, remote=remote, retry_delays_seconds=())
    # What ``load_newest`` does, which would refuse a run of damaged checkpoints alone.
    store._identity = Identity(Settings().to_mapping(), "", DATA, {}, {})
    save(node, store, 2)
    assert steps_in(folder) == [2]
    store.close()


def test_a_full_local_disk_fails_with_the_reason_and_the_bucket_keeps_what_it_has(
    tmp_path: Path, folder: BucketFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path / "a", folder)
    store = node.store()
    save(node, store, 1)
    with monkeypatch.context() as patch:
        fail_writes(patch, errno.ENOSPC, times=100)
        with pytest.raises(CheckpointError, match="step 2 was not written.*No space left"):
            save(node, store, 2)
    assert steps_in(folder) == [1]
    save(node, store, 3)  # room again
    assert steps_in(folder) == [1, 3]
    store.close()


def test_damaged_lines_at_the_end_of_a_log_are_skipped(tmp_path: Path) -> None:
    log = tmp_path / "metrics.jsonl"
    assert last_step_of_log(log) == -1
    three, four = (report_line(step).encode() for step in (3, 4))
    log.write_bytes(three + four + bytes(50) + b'\n[1]\nnull\n{"step": 9}\n{torn')
    assert last_step_of_log(log) == 4
    log.write_bytes(bytes(50) + b"\n")
    assert last_step_of_log(log) == -1
    damage = bytes(3 * TAIL_BYTES) + b"\n"
    log.write_bytes(three + damage)
    assert last_step_of_log(log) == 3
    log.write_bytes(damage)
    assert last_step_of_log(log) == -1


def test_the_last_step_is_read_from_the_end_of_a_log_of_any_size(tmp_path: Path) -> None:
    log = tmp_path / "metrics.jsonl"
    with log.open("wb") as file:
        file.truncate(8 << 40)  # a hole
    with log.open("ab") as file:
        file.write(f"\n{report_line(3)}{report_line(4)}{{torn".encode())
    assert last_step_of_log(log) == 4
