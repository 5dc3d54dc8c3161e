"""Files on their way to MLflow: each is sent once, however slow the server; a process that must go
waits for none.
"""

import threading
import time
from pathlib import Path

import pytest

from raybio.core.records import read_record
from raybio.runtime.tracking import tracker as track
from raybio.runtime.tracking.tracker import Tracker
from tests.runtime.tracking.test_track_faults import server, way
from tests.runtime.tracking.tracking_server import Way
from tests.runtime.tune.tracked_sweep import TrackedSweep

__all__ = ["server", "way"]


def with_files(sweep: TrackedSweep, num: int) -> None:
    """An exported model of several files, each with four seconds of its own to be sent in."""
    export = sweep.folders[sweep.name].export
    export.mkdir()
    for number in range(num):
        (export / f"part-{number}.bin").write_bytes(bytes(400_000))


class Clock:
    """Time as trackers see it: it stands still unless it is moved.

    Attributes:
        now: in seconds.
        looks: one for each time that somebody asked a tracker how long to wait for it.
    """

    def __init__(self) -> None:
        self.now, self.looks = 1000.0, threading.Semaphore(0)

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return time.time()

    def wait_for_looks(self, num: int) -> None:
        while self.looks.acquire(blocking=False):
            pass
        for _ in range(num):
            self.looks.acquire()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock, deadline = Clock(), Tracker._deadline

    def look(tracker: Tracker) -> float:
        clock.looks.release()
        return float(deadline.__get__(tracker))

    monkeypatch.setattr(track, "time", clock)
    monkeypatch.setattr(Tracker, "_deadline", property(look))
    return clock


def sent_files(way: Way) -> list[str]:
    return [
        path.rsplit("/", 1)[1]
        for path in way.requests
        if "mlflow-artifacts" in path and path.endswith(".bin")
    ]


@pytest.mark.nightly
def test_files_that_arrived_are_not_sent_again_by_another_attempt_or_another_start(
    way: Way, tmp_path: Path
) -> None:
    sweep = TrackedSweep(tmp_path, way.address, num_children=0)
    with_files(sweep, 3)
    sweep.report(1, 3)
    way.failing = "part-1.bin"
    sweep.start()
    sweep.finish()
    assert sent_files(way) == ["part-0.bin", "part-1.bin", "part-1.bin", "part-2.bin"]
    way.requests.clear()
    (sweep.folders[sweep.name].export / "part-2.bin").write_bytes(bytes(400_001))
    sweep.start()
    sweep.finish()
    assert sent_files(way) == ["part-2.bin"]
    sweep.check(way.address, last=3)


@pytest.mark.nightly
def test_large_files_arrive_at_a_slow_server_that_takes_longer_than_is_waited_for_one_that_is_away(
    way: Way, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    from mlflow import MlflowClient

    monkeypatch.setattr(track, "FINISH_SECONDS", 1.0)
    monkeypatch.setattr(track, "KILLED_SECONDS", 1.0)

    def two_seconds_pass() -> None:
        clock.now += 2
        clock.wait_for_looks(2)  # whoever waits for the tracker has seen it

    way.slow, way.on_slow = ".bin", two_seconds_pass
    sweep = TrackedSweep(tmp_path, way.address, num_children=0)
    with_files(sweep, 3)
    sweep.report(1, 3)
    sweep.start()
    while not sweep.all_are_open:
        time.sleep(0.05)
    sweep.finish()
    sweep.check(way.address, last=3)
    files = {
        file.path for file in MlflowClient(server).list_artifacts(sweep.parent.run_id, "export")
    }
    assert files == {f"export/part-{number}.bin" for number in range(3)}


@pytest.mark.nightly
def test_a_driver_that_was_killed_waits_for_no_large_files(
    way: Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    monkeypatch.setattr(track, "KILLED_SECONDS", 1.0)
    may_go_on = threading.Event()

    def two_seconds_pass_and_more() -> None:
        clock.wait_for_looks(1)  # somebody waits
        clock.now += 2
        may_go_on.wait()

    way.slow, way.on_slow = ".bin", two_seconds_pass_and_more
    sweep = TrackedSweep(tmp_path, way.address, num_children=0)
    with_files(sweep, 8)
    sweep.start()
    while not sweep.all_are_open:
        time.sleep(0.05)
    sweep.parent.kill()
    sweep.parent.finish("KILLED")  # ends while the first file is under way
    assert read_record(sweep.parent.folder.tracking, "tracking")["pending"]
    way.slow = ""
    may_go_on.set()
    assert sweep.parent._thread is not None
    sweep.parent._thread.join()  # the process would be gone
