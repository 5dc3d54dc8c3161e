"""What workers of a run in a bucket send to the driver."""

import os
import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from raybio.core.errors import ClusterError
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.spool import relay
from raybio.runtime.spool.relay import Change, _apply, _Link, _Relay


class Driver:
    """The driver's end: a folder of runs, and how many more batches it takes."""

    def __init__(self, runs: Path) -> None:
        self.runs = runs
        self.num_batches = 10**6
        self.arrived: list[str] = []
        self.fetch = SimpleNamespace(remote=lambda *call: dict)
        self.send = SimpleNamespace(remote=lambda *call: partial(self._send, *call))

    def _send(self, name: str, start: str, writer: str, batch: list[Change]) -> bool:
        self.num_batches -= 1
        if self.num_batches < 0:
            raise OSError(28, "No space left on device")
        for change in batch:
            _apply(self.runs / change.name, change)
            self.arrived.append(change.name)
        return False


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    return Driver(tmp_path / "driver")


@pytest.fixture
def link(driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> _Link:
    monkeypatch.setattr(relay, "POLL_SECONDS", 0.01)
    # In place of Ray's actor: the call is made here.
    monkeypatch.setattr(_Link, "_ask", lambda self, call: call())
    runs = tmp_path / "worker"
    run = SimpleNamespace(name="mine", runs=runs, folder=RunFolder(runs, "mine"), bucket=None)
    return _Link(SimpleNamespace(run=run, relay=driver, start="1", lease=None), rank=0)  # type: ignore[arg-type]


def test_files_arrive_whole_grown_and_removed(
    link: _Link, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "CHUNK_BYTES", 8)
    own = link._folder.path
    there = driver.runs / "mine"
    with link:
        (own / "metrics.jsonl").write_text("first\n")
        (own / "export").mkdir()
        (own / "export" / "old").write_bytes(b"x" * 100)
        link._send()
        assert (there / "export" / "old").read_bytes() == b"x" * 100
        with (own / "metrics.jsonl").open("a") as log:
            log.write("second, which is longer\n")
        (own / "export" / "old").unlink()
        (own / "export" / "new").write_bytes(b"y" * 16)
        (own / "outcome.json").write_text("{}")
    assert (there / "metrics.jsonl").read_text() == "first\nsecond, which is longer\n"
    assert not (there / "export" / "old").exists()
    assert (there / "export" / "new").read_bytes() == b"y" * 16
    assert (there / "outcome.json").read_text() == "{}"
    assert not list(there.rglob("*.arriving"))


@pytest.mark.parametrize("is_replaced", [True, False])
def test_a_log_that_was_written_again_arrives_as_a_whole(
    is_replaced: bool, link: _Link, driver: Driver
) -> None:
    log = link._folder.metrics
    with link:
        log.write_text("1\n2\n")
        link._send()
        if is_replaced:
            new = log.with_name(".new")
            new.write_text("5\n6\n7\n")
            new.replace(log)
        else:
            log.write_text("5\n")
    there = driver.runs / "mine" / log.name
    assert there.read_text() == ("5\n6\n7\n" if is_replaced else "5\n")


def test_notices_of_an_earlier_process_stay_and_an_outcome_arrives_last(
    link: _Link, driver: Driver
) -> None:
    own = link._folder
    there = driver.runs / "mine" / own.notices.name
    there.parent.mkdir(parents=True)
    there.write_text("earlier\n")
    with link, link._sending:
        own.outcome.write_text("{}")
        own.notices.write_text("later\n")
        own.unit_scores.write_bytes(b"x")
    assert there.read_text() == "earlier\nlater\n"
    assert len(driver.arrived) == 3
    assert driver.arrived[-1] == f"mine/{own.outcome.name}"


def test_what_did_not_reach_the_driver_is_an_error_and_no_outcome_follows(
    link: _Link, driver: Driver
) -> None:
    with pytest.raises((OSError, ClusterError), match="No space left"), link:
        link._folder.stop.unlink(missing_ok=True)
        driver.num_batches = 0
        (link._folder.path / "metrics.jsonl").write_text("line\n")
        link._thread.join(timeout=60)
        assert not link._thread.is_alive() and link._folder.stop.exists()
        driver.num_batches = 10**6
        (link._folder.path / "outcome.json").write_text("{}")
    assert not (driver.runs / "mine" / "outcome.json").exists()


def test_of_two_processes_of_one_rank_the_newer_alone_writes(tmp_path: Path) -> None:
    """The node of the older one was lost for the cluster, and the process lives on."""
    folder = RunFolder(tmp_path, "mine")
    folder.make()
    start = folder.begin_start()
    actor = _Relay(str(tmp_path), None)
    actor.fetch("mine", start, "older")
    actor.send("mine", start, "older", [Change("mine/metrics.jsonl", b"1\n", is_begun=True)])
    actor.fetch("mine", start, "newer")
    actor.send("mine", start, "newer", [Change("mine/metrics.jsonl", b"2\n", is_begun=True)])
    for call in (
        lambda: actor.send("mine", start, "older", []),
        lambda: actor.checkpoints("mine", start, "older", {}),
    ):
        with pytest.raises(ClusterError, match="started again meanwhile"):
            call()
    # A process of an earlier start does not take the place of one of this start.
    actor.fetch("mine", "earlier start", "oldest")
    assert not actor.send("mine", start, "newer", [])
    assert not actor.send("mine", start, None, [])  # another rank, which writes no checkpoints
    assert folder.metrics.read_bytes() == b"2\n"


def test_a_worker_that_dies_between_two_chunks_of_a_log_takes_no_lines_from_the_next_one(
    tmp_path: Path,
) -> None:
    folder = RunFolder(tmp_path, "mine")
    folder.make()
    folder.metrics.write_bytes(b"1\n2\n")
    start = folder.begin_start()
    actor = _Relay(str(tmp_path), None)
    actor.fetch("mine", start, "killed")
    torn = Change("mine/metrics.jsonl", b"1\n", is_begun=True, is_complete=False)
    actor.send("mine", start, "killed", [torn])
    # A process of an earlier start leaves alone what this one sends.
    actor.fetch("mine", "earlier start", "oldest")
    assert list(folder.path.glob("*.arriving"))
    assert actor.fetch("mine", start, "next")["mine/metrics.jsonl"] == b"1\n2\n"
    actor.send("mine", start, "next", [Change("mine/metrics.jsonl", b"3\n")])
    assert folder.metrics.read_bytes() == b"1\n2\n3\n"


def test_a_sweep_that_stops_stops_its_trials(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "sweep" / "trials", "one")
    folder.make()
    start = folder.begin_start()
    actor = _Relay(str(tmp_path / "sweep" / "trials"), str(tmp_path / "sweep"))
    actor.fetch("one", start, "writer")
    assert not actor.send("one", start, "writer", [])
    (tmp_path / "sweep" / ".stop").touch()
    assert actor.send("one", start, "writer", [])
    assert "one/.stop" in actor.fetch("one", start, "writer")


def test_a_worker_that_has_ended_reports_no_files_as_gone(link: _Link, driver: Driver) -> None:
    """Its upload may go on while its folder is deleted."""
    with link:
        (link._folder.path / "export").mkdir()
        (link._folder.path / "export" / "model").write_bytes(b"x")
    shutil.rmtree(link._folder.path)
    for call in (link.flush, link.wait_for_export):
        with pytest.raises(ClusterError, match="this worker has ended"):
            call()
    assert (driver.runs / "mine" / "export" / "model").read_bytes() == b"x"


@pytest.mark.parametrize("is_deleted", [True, False])
def test_a_workers_folder_that_is_lost_takes_nothing_from_the_driver(
    link: _Link, driver: Driver, monkeypatch: pytest.MonkeyPatch, is_deleted: bool
) -> None:
    def scan(path: str) -> object:
        if str(path).endswith("export"):
            raise OSError(5, "Input/output error", str(path))
        return scandir(path)

    scandir = os.scandir
    own = link._folder.path
    with pytest.raises((ClusterError, OSError), match="was deleted|Input/output error"), link:
        (own / "export").mkdir()
        (own / "export" / "model").write_bytes(b"x")
        (own / "run.json").write_text("{}")
        link._send()
        with link._sending:
            if is_deleted:
                shutil.rmtree(own)
            else:
                monkeypatch.setattr("os.scandir", scan)
    monkeypatch.setattr("os.scandir", scandir)
    assert (driver.runs / "mine" / "export" / "model").read_bytes() == b"x"
