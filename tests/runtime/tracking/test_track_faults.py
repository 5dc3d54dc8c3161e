"""Tracking while MLflow is away, broken, hanging or locked: a real server, and real faults on the
way to it.
"""

import base64
import logging
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from raybio.core.records import read_record, write_record
from raybio.runtime.tracking import mlflow as mlflow_run
from raybio.runtime.tracking import tracker as track
from raybio.runtime.tracking.tracker import Tracker, tracking_uri
from tests.runtime.tracking.tracking_server import Way, mlflow_server
from tests.runtime.tune.tracked_sweep import TrackedSweep
from tests.runtime_fixtures import fill, set_read_only

FAULTS = ["refused", "broken", "hanging"]
CHILDREN = 12


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, empty_database: Path) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("server")
    (folder / "mlflow.db").write_bytes(empty_database.read_bytes())
    with mlflow_server(folder, f"sqlite:///{folder}/mlflow.db") as address:
        yield address


@pytest.fixture
def way(server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Way]:
    """With short pauses, and limits that a busy machine does not reach: a request that hangs ends
    with its server.
    """
    monkeypatch.setattr(track, "FINISH_SECONDS", 1500.0)
    monkeypatch.setattr(track, "KILLED_SECONDS", 1500.0)
    monkeypatch.setattr(track, "RETRY_SECONDS", (0.2, 0.5))
    monkeypatch.setattr(track, "FORWARD_SECONDS", 0.2)
    monkeypatch.setattr(track, "_warned", {})
    for name, value in (mlflow_run._SETTINGS | {"MLFLOW_HTTP_REQUEST_TIMEOUT": "1500"}).items():
        monkeypatch.setenv(name, value)
    way = Way(server)
    yield way
    way.become("refused")


@pytest.mark.parametrize(
    "fault",
    ["refused", *(pytest.param(fault, marks=pytest.mark.nightly) for fault in FAULTS[1:])],
)
def test_a_server_away_at_the_start_and_again_later_gets_everything_and_training_never_waits(
    way: Way, tmp_path: Path, fault: str
) -> None:
    way.become(fault)
    sweep = TrackedSweep(tmp_path, way.address, num_children=3)
    # The server stays away until training has reported: who waited for it would wait forever.
    sweep.start()
    sweep.report(1, 10)
    way.become("pass")
    while not sweep.all_are_open:
        time.sleep(0.05)
    way.become(fault)
    sweep.report(11, 20)
    way.become("pass")
    sweep.finish()
    sweep.check(way.address, last=20)


@pytest.mark.nightly
@pytest.mark.parametrize("fault", ["refused", "hanging"])
def test_children_of_a_server_that_stays_away_end_in_time_and_are_sent_by_the_next_start(
    way: Way,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    fault: str,
) -> None:
    monkeypatch.setattr(track, "FINISH_SECONDS", 3.0)
    monkeypatch.setattr(track, "KILLED_SECONDS", 2.0)
    monkeypatch.setattr(track, "WARN_SECONDS", 1e6)
    sweep = TrackedSweep(tmp_path, way.address, num_children=CHILDREN)
    sweep.start()
    if fault != "refused":  # the children's runs are there; otherwise nothing is
        while not sweep.all_are_open:
            time.sleep(0.05)
    way.become(fault)
    sweep.report(1, 10)
    with caplog.at_level(logging.WARNING):
        sweep.finish()  # ends, though the server stays away
    lines = [record.getMessage() for record in caplog.records]
    assert sum("trying again" in line for line in lines) <= 1, lines
    assert all(
        read_record(folder.tracking, "tracking")["pending"] for folder in sweep.folders.values()
    )
    way.become("refused")  # requests that hang end
    for tracker in sweep.trackers.values():
        assert tracker._thread is not None
        tracker._thread.join()  # the process that had them would be gone
    monkeypatch.setattr(track, "FINISH_SECONDS", 1500.0)
    monkeypatch.setattr(track, "KILLED_SECONDS", 1500.0)
    way.become("pass")
    sweep.catch_up()
    sweep.check(way.address, last=10)
    # Once more: MLflow has all of the children, and is asked for nothing.
    way.requests.clear()
    sweep.children_together(Tracker.catch_up)
    assert way.requests == []


@pytest.mark.first_tier("runs/create")
@pytest.mark.parametrize(
    ("how", "path"),
    [
        ("losing", "runs/create"),
        ("losing", "runs/log-batch"),
        ("losing", "runs/update"),
        ("failing", "config.yaml"),
        ("failing", "runs/log-inputs"),
    ],
)
def test_a_request_that_fails_once_or_whose_answer_is_lost_leaves_one_whole_run(
    way: Way, tmp_path: Path, how: str, path: str
) -> None:
    setattr(way, how, path)
    sweep = TrackedSweep(tmp_path, way.address, num_children=0)
    sweep.report(1, 3)
    sweep.start()
    sweep.finish()
    assert getattr(way, how) == ""
    # Not one more that is deleted later.
    assert sum(request.endswith("runs/create") for request in way.requests) == 1
    sweep.check(way.address, last=3)


def test_a_run_that_a_slow_server_made_after_it_was_given_up_is_deleted(
    way: Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    way.delaying = "runs/create"
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "2")
    sweep = TrackedSweep(tmp_path, way.address, num_children=0)
    sweep.report(1, 3)
    sweep.start()
    while way.delaying:
        time.sleep(0.05)
    # The first one is under way, and ends after two seconds; none of the others shall.
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1500")
    way.is_late.wait()
    assert len([path for path in way.requests if path.endswith("runs/create")]) == 2
    sweep.finish()
    sweep.check(way.address, last=3)


@pytest.mark.parametrize(
    ("how", "path"), [("losing", "runs/create"), ("failing", "runs/log-inputs")]
)
def test_a_run_half_made_when_the_driver_was_killed_is_found_and_completed_by_the_next_start(
    way: Way, tmp_path: Path, how: str, path: str
) -> None:
    sweep = TrackedSweep(tmp_path, way.address, num_children=0)
    sweep.report(1, 3)
    sweep.track()
    setattr(way, how, path)
    with pytest.raises(Exception, match=path):
        sweep.parent._open()  # and then the process is gone
    sweep.catch_up()
    sweep.check(way.address, last=3)


def test_a_run_half_described_when_the_driver_was_killed_resumes_with_another_budget(
    way: Way, tmp_path: Path
) -> None:
    from mlflow import MlflowClient

    sweep = TrackedSweep(tmp_path, way.address, num_children=0)
    sweep.track()
    sweep.parent.config = {"seed": 7, "budget": {"num_trials": 12}}
    way.failing = "runs/log-inputs"
    with pytest.raises(Exception, match="runs/log-inputs"):
        sweep.parent._open()  # its parameters are there; and then the process is gone
    sweep.track()
    sweep.parent.config = {"seed": 7, "budget": {"num_trials": 20}, "more": 1}
    sweep.parent.catch_up()
    run = MlflowClient(way.address).get_run(sweep.parent.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params == {"seed": "7", "budget.num_trials": "12", "more": "1"}


def test_a_server_that_is_away_when_a_run_resumes_leads_to_no_second_run(
    way: Way, tmp_path: Path
) -> None:
    sweep = TrackedSweep(tmp_path, way.address, num_children=1)
    sweep.report(1, 5)
    sweep.start()
    sweep.finish()
    way.become("broken")
    sweep.start()
    sweep.report(6, 10)
    way.become("pass")
    sweep.finish()
    sweep.check(way.address, last=10)


@pytest.mark.first_tier("deleted")
@pytest.mark.parametrize("how", ["deleted", "unknown"])
def test_a_run_that_mlflow_no_longer_has_is_made_anew_and_whole(
    way: Way, tmp_path: Path, how: str
) -> None:
    from mlflow import MlflowClient

    sweep = TrackedSweep(tmp_path, way.address, num_children=0)
    sweep.report(1, 5)
    sweep.start()
    sweep.finish()
    first, saved = sweep.parent.run_id, sweep.parent.folder.tracking
    MlflowClient(way.address).delete_run(first)
    if how == "unknown":
        write_record(saved, "tracking", read_record(saved, "tracking") | {"run_id": "0" * 32})
    sweep.start()
    sweep.finish()
    assert sweep.parent.run_id != first
    sweep.check(way.address, last=5)


def test_what_a_broken_server_did_not_take_goes_to_the_one_that_the_same_command_names_later(
    way: Way, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(track, "FINISH_SECONDS", 1.0)
    monkeypatch.setattr(track, "KILLED_SECONDS", 1.0)
    way.become("broken")
    sweep = TrackedSweep(tmp_path, way.address, num_children=1)
    sweep.report(1, 5)
    sweep.start()
    sweep.finish()
    assert sweep.parent.run_id is None
    monkeypatch.setattr(track, "FINISH_SECONDS", 1500.0)
    monkeypatch.setattr(track, "KILLED_SECONDS", 1500.0)
    sweep.uri = server
    sweep.catch_up()
    sweep.check(server, last=5)


def test_a_password_of_the_environment_reaches_the_server_and_nothing_else(
    way: Way,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd,
) -> None:
    secret = "s3cr3t-" + "7" * 20
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "me")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", secret)
    way.failing = "runs/create"
    sweep = TrackedSweep(tmp_path, way.address, num_children=0)
    sweep.report(1, 3)
    with caplog.at_level(logging.DEBUG):
        sweep.start()
        sweep.finish()
    assert way.logins == {"Basic " + base64.b64encode(f"me:{secret}".encode()).decode()}
    sweep.check(way.address, last=3)
    messages = caplog.text + "".join(capfd.readouterr())
    assert "trying again" in messages
    assert secret not in messages
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or secret.encode() not in path.read_bytes(), path


def test_a_server_that_came_back_during_a_long_pause_is_tried_at_once_when_the_run_ends(
    way: Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(track, "RETRY_SECONDS", (600.0,))
    way.become("broken")
    sweep = TrackedSweep(tmp_path, way.address, num_children=1)
    sweep.report(1, 5)
    sweep.start()
    while not way.requests:
        time.sleep(0.05)
    way.become("pass")
    sweep.finish()
    sweep.check(way.address, last=5)


@pytest.mark.nightly
def test_the_machine_is_sampled_again_after_a_server_was_away(
    way: Way, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    monkeypatch.setattr("raybio.runtime.cluster.machine.SAMPLE_SECONDS", 0.2)
    sweep = TrackedSweep(tmp_path, way.address, num_children=1)
    sweep.start()

    def num_samples(tracker: Tracker) -> int:
        return len(
            MlflowClient(server).get_metric_history(
                tracker.run_id, "system/cpu_utilization_percentage"
            )
        )

    parent, child = sweep.trackers.values()
    while not (sweep.all_are_open and num_samples(parent)):
        time.sleep(0.1)
    way.become("refused")
    time.sleep(1)
    way.become("pass")
    before = num_samples(parent)
    while num_samples(parent) < before + 2:
        time.sleep(0.1)
    sweep.finish()
    assert num_samples(child) == 0  # its parent has them


@pytest.mark.nightly
def test_children_that_all_end_at_once_on_sqlite_lose_nothing(
    tmp_path: Path, empty_database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(track, "FINISH_SECONDS", 1500.0)
    monkeypatch.setattr(track, "KILLED_SECONDS", 1500.0)
    (tmp_path / "mlflow.db").write_bytes(empty_database.read_bytes())
    sweep = TrackedSweep(tmp_path, tracking_uri(None, tmp_path / "runs"), CHILDREN)
    sweep.start()
    sweep.report(1, 100)
    sweep.finish()
    sweep.check(sweep.uri, last=100)


@pytest.mark.parametrize("seconds", [2, pytest.param(60, marks=pytest.mark.nightly)])
def test_a_database_that_is_locked_for_a_while_loses_nothing_and_holds_up_nobody(
    tmp_path: Path, empty_database: Path, seconds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(track, "FINISH_SECONDS", 1500.0)
    monkeypatch.setattr(track, "KILLED_SECONDS", 1500.0)
    (tmp_path / "mlflow.db").write_bytes(empty_database.read_bytes())
    sweep = TrackedSweep(tmp_path, tracking_uri(None, tmp_path / "runs"), num_children=3)
    sweep.start()
    while not sweep.all_are_open:
        time.sleep(0.05)
    database = sqlite3.connect(tmp_path / "mlflow.db", timeout=1500, isolation_level=None)
    database.execute("BEGIN EXCLUSIVE")
    until, step = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        step += 1
        sweep.report(step, step)  # who waited for the database would wait forever
        time.sleep(0.05)
    database.execute("ROLLBACK")
    database.close()
    sweep.finish()
    sweep.check(sweep.uri, last=step)


def try_often_and_end_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(track, "RETRY_SECONDS", (0.2,))
    monkeypatch.setattr(track, "FORWARD_SECONDS", 0.1)
    monkeypatch.setattr(track, "FINISH_SECONDS", 0.0)
    monkeypatch.setattr(track, "KILLED_SECONDS", 0.0)
    monkeypatch.setattr(track, "WARN_SECONDS", 1e6)
    monkeypatch.setattr(track, "_warned", {})


@pytest.mark.first_tier("deleted")
@pytest.mark.parametrize("fault", ["deleted", "full"])
def test_a_database_that_is_lost_or_full_is_one_line_a_minute_and_loses_nothing(
    small_disk: Path,
    empty_database: Path,
    fault: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """MLflow itself logs a traceback of a hundred lines for each request."""
    try_often_and_end_at_once(monkeypatch)
    (small_disk / "mlflow.db").write_bytes(empty_database.read_bytes())
    folder = small_disk.parent / fault
    uri = f"sqlite:///{small_disk / 'mlflow.db'}"
    sweep = TrackedSweep(folder, uri, num_children=1)
    sweep.start()
    while not sweep.all_are_open:
        time.sleep(0.05)
    capfd.readouterr()
    with monkeypatch.context() as changed:
        tries: list[Exception] = []
        warn = track._warn
        changed.setattr(track, "_warn", lambda *words: tries.append(words[1]) or warn(*words))
        filler = fill(small_disk) if fault == "full" else (small_disk / "mlflow.db")
        if fault == "deleted":
            filler.unlink()
        sweep.report(1, 20)
        while len(tries) < 5:
            time.sleep(0.05)
    sweep.finish()
    for tracker in sweep.trackers.values():
        assert tracker._thread is not None
        tracker._thread.join()
    assert capfd.readouterr().err == ""
    records = [one for one in caplog.records if one.name.startswith("raybio")]
    first, *others = [one.getMessage() for one in records]
    reasons = {
        "full": ["database or disk is full"],
        # The second, where a new connection made an empty file.
        "deleted": ["attempt to write a readonly database", "no such table: runs"],
    }
    assert first in [f"MLflow at {uri}: {reason}; trying again" for reason in reasons[fault]]
    assert len(others) == 2  # what was not taken, of each run
    assert all("the same command sends it again" in line for line in others)
    filler.unlink(missing_ok=True)
    monkeypatch.setattr(track, "FINISH_SECONDS", 1500.0)
    monkeypatch.setattr(track, "KILLED_SECONDS", 1500.0)
    if fault == "full":
        sweep.catch_up()
        sweep.check(uri, last=20)


def test_a_database_on_a_read_only_disk_holds_up_nobody_and_gets_everything_later(
    small_disk: Path,
    empty_database: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    try_often_and_end_at_once(monkeypatch)
    (small_disk / "mlflow.db").write_bytes(empty_database.read_bytes())
    set_read_only(small_disk, is_read_only=True)
    uri = f"sqlite:///{small_disk / 'mlflow.db'}"
    sweep = TrackedSweep(small_disk.parent / "sweep", uri, num_children=1)
    sweep.start()
    # Who waited for the database would wait forever.
    sweep.report(1, 20)
    while not any("trying again" in line for line in caplog.messages):
        time.sleep(0.05)
    sweep.finish()
    for tracker in sweep.trackers.values():
        assert tracker._thread is not None
        tracker._thread.join()
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("raybio")]
    first, *others = lines
    assert first == f"MLflow at {uri}: attempt to write a readonly database; trying again"
    # The child waits for its parent's run, which is not there.
    assert len(others) == 1 and "the same command sends it again" in others[0]
    set_read_only(small_disk, is_read_only=False)
    # The same command is another process, with connections of its own.
    SqlAlchemyStore._engine_map[uri].dispose()
    monkeypatch.setattr(track, "FINISH_SECONDS", 1500.0)
    monkeypatch.setattr(track, "KILLED_SECONDS", 1500.0)
    sweep.catch_up()
    sweep.check(uri, last=20)


def test_a_database_whose_making_was_interrupted_is_not_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow.store.db.utils as database

    def interrupted(engine: object) -> None:
        raise KeyboardInterrupt

    uri = tracking_uri(None, tmp_path / "runs")
    with monkeypatch.context() as patch:
        patch.setattr(database, "_upgrade_db", interrupted)
        with pytest.raises(KeyboardInterrupt):
            mlflow_run.open_client(uri).search_experiments()
    assert [*tmp_path.iterdir()] == []
    assert mlflow_run.open_client(uri).search_experiments()
    assert [path.name for path in tmp_path.iterdir()] == ["mlflow.db"]
