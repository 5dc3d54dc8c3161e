"""The lease of a run: one driver at a time, and clocks that do not agree."""

import contextlib
import json
import re
import time
import uuid
from pathlib import Path
from types import SimpleNamespace

import pytest

from raybio.core.errors import ClusterError
from raybio.core.location import BucketPath
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.open_run import OpenRun
from raybio.runtime.spool import lease as leases
from raybio.runtime.spool.lease import LEASE, Lease, LostLeaseError, acquire, held
from raybio.runtime.spool.spool import HeldSpool
from raybio.store.bucket import BucketFolder
from tests.runtime.spool.taken_lease import taken_from
from tests.s3 import S3


@pytest.fixture
def folder(bucket: BucketPath) -> BucketFolder:
    return BucketFolder(bucket / "runs" / "mine", is_patient=False)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    # Not so short that a busy machine loses it: half of it without a renewal are too much.
    monkeypatch.setattr(leases, "LEASE_SECONDS", 6.0)
    monkeypatch.setattr(leases, "HEARTBEAT_SECONDS", 0.5)
    monkeypatch.setattr(leases, "_POLL_SECONDS", 0.1)


def wait_until_renewed(lease: Lease) -> None:
    """Return when the holder may write; pytest's limit ends a hang.

    Raises:
        LostLeaseError: if another driver has the lease.
    """
    while True:
        lease.check_not_lost()
        with contextlib.suppress(ClusterError):
            lease.check()
            return
        time.sleep(0.1)


def abandon(lease: Lease) -> None:
    """Its driver is killed: nothing renews or deletes the lease."""
    lease._ended.set()
    lease._thread.join()


def on_another_machine(folder: BucketFolder, **changes: object) -> None:
    """Rewrite the lease as that of a driver elsewhere, whose process number means nothing here."""
    content = json.loads(folder.read(LEASE)) | {"machine": "elsewhere", "host": "node-7"} | changes
    folder.write(LEASE, json.dumps(content).encode())


def test_a_second_driver_is_refused_with_the_holders_name_and_the_time_it_has_held_the_run(
    folder: BucketFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with held(folder):
        with pytest.raises(ClusterError, match=r"process \d+ on \S+, for "):
            acquire(folder)
        # Also where processes cannot be looked at: it is renewed.
        monkeypatch.setattr(leases, "_machine", lambda: uuid.uuid4().hex)
        with pytest.raises(ClusterError, match="another driver is at work"):
            acquire(folder)
    assert json.loads(folder.read(LEASE)) == {"is_released": True}


@pytest.mark.parametrize(
    ("field", "holder"), [("pid", "an unknown driver"), ("process_start", "process ")]
)
def test_a_driver_whose_process_is_unknown_is_alive_while_it_renews(
    folder: BucketFolder, capsys: pytest.CaptureFixture[str], field: str, holder: str
) -> None:
    with held(folder):
        damaged = json.loads(folder.read(LEASE)) | {field: "none"}
        folder.write(LEASE, json.dumps(damaged).encode())
        with pytest.raises(ClusterError, match="another driver is at work"):
            acquire(folder)
    assert f"held by {holder}" in capsys.readouterr().out


@pytest.mark.nightly
def test_the_lease_of_a_dead_driver_on_another_machine_ends_when_it_is_not_renewed(
    folder: BucketFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    abandon(acquire(folder))
    on_another_machine(folder, held_seconds=4321)
    began = time.monotonic()
    lease = acquire(folder)
    assert time.monotonic() - began > 1.0  # not before its time
    assert "node-7, for 72 minutes" in capsys.readouterr().out
    wait_until_renewed(lease)
    lease.release()
    assert json.loads(folder.read(LEASE)) == {"is_released": True}


def test_the_lease_of_a_process_of_this_machine_that_was_killed_is_taken_at_once(
    folder: BucketFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "LEASE_SECONDS", 3600.0)
    abandon(acquire(folder))
    content = json.loads(folder.read(LEASE))
    # The number is that of a process which began at another time.
    folder.write(LEASE, json.dumps(content | {"process_start": 1}).encode())
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("waits for a dead process"))
    acquire(folder).release()
    assert json.loads(folder.read(LEASE)) == {"is_released": True}


def test_a_process_of_this_machine_that_may_not_be_looked_at_is_alive_while_it_renews(
    folder: BucketFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(pid: int, signal: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    with held(folder):
        # As /proc with hidepid shows the processes of other users.
        monkeypatch.setattr(leases, "_start_of", lambda pid: None)
        monkeypatch.setattr(leases.os, "kill", kill)
        with pytest.raises(ClusterError, match="another driver is at work"):
            acquire(folder)


@pytest.mark.nightly
@pytest.mark.parametrize("minutes", [-10, 10])
def test_a_driver_whose_clock_is_ten_minutes_off_is_neither_dead_nor_immortal(
    folder: BucketFolder,
    s3: S3,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    minutes: int,
) -> None:
    s3.clock_ahead_seconds = 60 * minutes
    lease = acquire(folder)
    written = folder.info(LEASE)
    assert written is not None and abs(written.modified - time.time() - 60 * minutes) < 300
    monkeypatch.setattr(leases, "_machine", lambda: uuid.uuid4().hex)
    with pytest.raises(ClusterError, match="another driver is at work"):
        acquire(folder)
    abandon(lease)
    acquire(folder).release()
    waits = re.findall("waiting up to ([0-9]+) s", capsys.readouterr().out)
    assert waits and all(float(wait) <= 6 for wait in waits)


def test_a_lease_that_is_deleted_or_released_is_not_said_to_be_another_drivers(
    folder: BucketFolder,
) -> None:
    lease = acquire(folder)
    folder.delete(LEASE)
    with pytest.raises(LostLeaseError, match="was deleted while the run was at work"):
        while True:
            lease.check_not_lost()
            time.sleep(0.1)
    assert not lease.is_taken_over()
    key = lease.key
    lease.release()
    acquire(folder).release()
    with pytest.raises(LostLeaseError, match="the driver of the run has ended"):
        leases.check_key(key)
    # Of a driver's own lease, only the next driver can have released it.
    first = acquire(folder)
    taken_from(folder).release()
    assert first.is_taken_over()
    with pytest.raises(LostLeaseError, match="by another driver, which has ended"):
        first.confirm()
    first.release()
    other = taken_from(folder)
    with pytest.raises(LostLeaseError, match="started again by another driver"):
        leases.check_key(key)
    other.release()


def test_a_driver_whose_lease_was_taken_over_stops_and_leaves_the_new_one_alone(
    folder: BucketFolder,
) -> None:
    first = acquire(folder)
    second = taken_from(folder)
    with pytest.raises(ClusterError, match="started again by another driver"):
        while True:
            first.check()
            time.sleep(0.1)
    first.release()
    wait_until_renewed(second)
    assert json.loads(folder.read(LEASE))["id"] == second.id
    second.release()


def test_a_driver_that_cannot_reach_the_bucket_writes_nothing_and_its_run_goes_on(
    folder: BucketFolder, bucket: BucketPath, s3: S3, tmp_path: Path
) -> None:
    lease = acquire(folder)
    spec = SimpleNamespace(folder=RunFolder(tmp_path, "mine"))
    spool = HeldSpool(folder.path, lease, SimpleNamespace())  # type: ignore[arg-type]
    run = OpenRun(spec, SimpleNamespace(), None, spool)  # type: ignore[arg-type]
    s3.fail("reset", containing=LEASE, times=10_000)
    with pytest.raises(ClusterError, match="could not be renewed"):
        while True:
            lease.check()
            time.sleep(0.1)
    # What follows the workers does not end them, also when the lease is past its time.
    time.sleep(leases.LEASE_SECONDS)
    run.check_lease()
    s3.heal()
    wait_until_renewed(lease)
    # Another driver has it, as this one learns at the next renewal.
    other = taken_from(folder)
    with pytest.raises(LostLeaseError, match="started again by another driver"):
        while True:
            run.check_lease()
            time.sleep(0.1)
    lease.release()
    other.release()


@pytest.mark.parametrize("is_repeated_in_vain", [False, True])
def test_a_renewal_whose_answer_was_lost_keeps_the_lease(
    folder: BucketFolder, s3: S3, is_repeated_in_vain: bool
) -> None:
    lease = acquire(folder)
    s3.fail("lost", method="PUT", containing=LEASE, times=1)
    if is_repeated_in_vain:
        # So that the next renewal finds an object of another version and content, by this driver.
        s3.fail("denied", method="PUT", containing=LEASE, times=1)
    written = folder.read(LEASE)
    while folder.read(LEASE) == written:
        time.sleep(0.05)
    time.sleep(1.5)  # two more renewals
    wait_until_renewed(lease)
    lease.release()


def test_the_lease_of_complete_work_is_deleted_unless_another_driver_has_it(
    folder: BucketFolder,
) -> None:
    acquire(folder).delete()
    assert not folder.list()
    lost = acquire(folder)
    folder.delete(LEASE)
    other = acquire(folder)
    lost.delete()
    assert json.loads(folder.read(LEASE))["id"] == other.id
    other.release()
