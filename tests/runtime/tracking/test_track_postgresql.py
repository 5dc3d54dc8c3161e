"""The cluster's tracking: an ``mlflow server`` on PostgreSQL, with several drivers that write at
the same time.
"""

import http.client
import multiprocessing
import time
from pathlib import Path

import pytest

from raybio.runtime.tracking import tracker as track
from raybio.runtime.tracking.tracker import tracking_uri
from tests.runtime.tracking.postgresql import PASSWORD, postgresql
from tests.runtime.tracking.tracking_server import mlflow_server
from tests.runtime.tune.tracked_sweep import TrackedSweep

SYSTEM, CHILDREN = "sppt_protein", 4
pytestmark = pytest.mark.slow


def drive(folder: Path, uri: str, start_at: float) -> None:
    """A driver in a process of its own: a sweep's parent and children, for some seconds."""
    sweep = TrackedSweep(folder, uri, CHILDREN, SYSTEM)
    time.sleep(max(start_at - time.time(), 0))
    sweep.start()
    sweep.report(1, 200)
    sweep.finish()
    sweep.check(uri, last=200)


@pytest.mark.nightly
def test_drivers_write_to_one_server_on_postgresql_at_once_and_its_going_down_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    monkeypatch.setattr(track, "_warned", {})
    with postgresql() as database, mlflow_server(tmp_path, database.uri) as address:
        assert status_for(address, "elsewhere.example:80") == 403
        uri, start_at = tracking_uri(address, tmp_path), time.time() + 10
        drivers = [
            multiprocessing.get_context("spawn").Process(
                target=drive, args=(tmp_path / name, uri, start_at)
            )
            for name in ("first", "second")
        ]
        for driver in drivers:
            driver.start()
        sweep = TrackedSweep(tmp_path / "third", uri, CHILDREN, SYSTEM)
        time.sleep(max(start_at - time.time(), 0))
        sweep.start()
        sweep.report(1, 100)
        database.stop()
        sweep.report(101, 150)
        database.start()
        sweep.report(151, 200)
        sweep.finish()
        for driver in drivers:
            driver.join(timeout=1500)
            assert driver.exitcode == 0
        sweep.check(address, last=200)
        assert database.query("select count(*), count(distinct name) from runs") == [
            (3 + 3 * CHILDREN,) * 2
        ]
        assert database.query("select count(*) from metrics where key = 'loss'") == [
            (200 * (3 + 3 * CHILDREN),)
        ]
        assert database.query("select count(*) from experiments where name <> 'Default'") == [(1,)]
    assert (tmp_path / "artifacts").is_dir()


def status_for(address: str, host: str) -> int:
    """Of a page that another site's name leads a browser to."""
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=600)
    connection.request(
        "GET", "/api/2.0/mlflow/experiments/search?max_results=1", headers={"Host": host}
    )
    status = connection.getresponse().status
    connection.close()
    return status
