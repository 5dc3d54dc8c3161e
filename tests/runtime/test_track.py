import http.server
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raybio.errors import ConfigError
from raybio.runtime import track
from raybio.runtime.metrics_log import MetricsLog
from raybio.runtime.run_folder import RunFolder, read_json
from raybio.runtime.track import Tracker, add_artifacts, flatten, tracking_uri
from raybio.training.settings import TrainingConfig

pytestmark = pytest.mark.timeout(300)
CONFIG = {"seed": 7, "optim": {"peak_lr": 0.1, "schedule": "constant"}, "encoder": {"source": "scratch"}}


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "runs", "first")
    folder.open("sppt", TrainingConfig(), Path("/store"), "d" * 64, ())
    return folder


@pytest.fixture
def uri(tmp_path: Path, empty_database: Path) -> str:
    (tmp_path / "mlflow.db").write_bytes(empty_database.read_bytes())
    return tracking_uri(None, tmp_path / "runs")


def new_tracker(folder: RunFolder, uri: str) -> Tracker:
    return Tracker(folder, uri, "sppt", CONFIG, "d" * 64)


def history(uri: str, run_id: str, name: str) -> list[tuple[int, float]]:
    from mlflow import MlflowClient

    return [(point.step, point.value) for point in MlflowClient(uri).get_metric_history(run_id, name)]


def test_the_default_is_a_database_beside_the_runs(tmp_path: Path) -> None:
    assert tracking_uri(None, tmp_path / "runs") == f"sqlite:///{tmp_path}/mlflow.db"


def test_a_relative_database_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert tracking_uri("sqlite:///mlflow.db", tmp_path) == f"sqlite:///{tmp_path}/mlflow.db"
    assert tracking_uri("sqlite:////data/mlflow.db", tmp_path) == "sqlite:////data/mlflow.db"


@pytest.mark.parametrize("uri", ["mlruns", "file:///tmp/mlruns", "./here"])
def test_a_file_store_is_refused(uri: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no longer writes"):
        tracking_uri(uri, tmp_path)


def test_settings_are_flattened() -> None:
    assert flatten(CONFIG)["optim.peak_lr"] == 0.1


def test_a_run_has_settings_tags_data_metrics_artifacts_and_its_true_status(folder: RunFolder, uri: str) -> None:
    from mlflow import MlflowClient

    log = MetricsLog(folder.metrics)
    tracker = new_tracker(folder, uri)
    tracker.start()
    for step in range(1, 2501):
        log.append(step, {"loss": 1 / step, "rate": 0.5})
    folder.export.mkdir()
    (folder.export / "config.json").write_text("{}")
    tracker.finish("FINISHED")
    client = MlflowClient(uri)
    run = client.get_run(tracker.run_id)
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "first"
    assert run.data.params["optim.peak_lr"] == "0.1"
    assert {"system", "version.ray", "version.torch", "data_digest"} <= run.data.tags.keys()
    assert run.inputs.dataset_inputs[0].dataset.digest == "d" * 36
    assert history(uri, tracker.run_id, "loss") == [(step, 1 / step) for step in range(1, 2501)]
    names = {file.path for file in client.list_artifacts(tracker.run_id)}
    assert {"config.yaml", "config.json", "export"} <= names
    assert "MLFLOW_RUN_ID" not in os.environ
    table = folder.path / "table.md"
    table.write_text("| a |")
    add_artifacts(folder, [table])
    assert "table.md" in {file.path for file in client.list_artifacts(tracker.run_id)}


def test_a_resumed_run_keeps_its_id_and_no_step_is_logged_twice(folder: RunFolder, uri: str) -> None:
    from mlflow import MlflowClient

    log = MetricsLog(folder.metrics)
    first = new_tracker(folder, uri)
    first.start()
    for step in range(1, 11):
        log.append(step, {"loss": float(step)})
    first.finish("KILLED")
    assert MlflowClient(uri).get_run(first.run_id).info.status == "KILLED"

    log = MetricsLog(folder.metrics)
    log.rewind(5)
    second = new_tracker(folder, uri)
    second.start()
    for step in range(6, 16):
        log.append(step, {"loss": float(step)})
    second.finish("FINISHED")
    assert second.run_id == first.run_id
    assert history(uri, first.run_id, "loss") == [(step, float(step)) for step in range(1, 16)]
    assert MlflowClient(uri).get_run(first.run_id).info.status == "FINISHED"


def test_a_database_locked_for_a_while_loses_nothing(folder: RunFolder, uri: str) -> None:
    log = MetricsLog(folder.metrics)
    tracker = new_tracker(folder, uri)
    tracker.start()
    while tracker.run_id is None:
        time.sleep(0.05)
    database = sqlite3.connect(uri.removeprefix("sqlite:///"), timeout=60)
    database.isolation_level = None
    database.execute("BEGIN EXCLUSIVE")
    slowest = 0.0
    for step in range(1, 101):
        started = time.monotonic()
        log.append(step, {"loss": float(step)})
        slowest = max(slowest, time.monotonic() - started)
        time.sleep(0.05)
    database.execute("ROLLBACK")
    database.close()
    tracker.finish("FINISHED")
    assert slowest < 1.0
    assert len(history(uri, tracker.run_id, "loss")) == 100


class _Client:
    """A tracking server in memory, whose methods fail once each, in the order of ``failing``."""

    def __init__(self, *failing: str) -> None:
        self.failing, self.calls, self.error = list(failing), list[str](), Exception("away")

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def method(*arguments: object, **_: object) -> Any:
            if name in self.failing:
                self.failing.remove(name)
                raise self.error
            self.calls.append(name)
            run = SimpleNamespace(info=SimpleNamespace(run_id=f"run-{self.calls.count('create_run')}"))
            return run if name == "create_run" else SimpleNamespace(experiment_id="1")

        return method


def opened(folder: RunFolder, client: _Client, monkeypatch: pytest.MonkeyPatch) -> Tracker:
    """A tracker that has reached ``client``; what fails is tried again, as ``Tracker.start`` does."""
    monkeypatch.setattr("mlflow.MlflowClient", lambda **_: client)
    monkeypatch.setattr(track, "RETRY_SECONDS", (0.0,))
    tracker = new_tracker(folder, "http://127.0.0.1:1")
    assert tracker._retry(tracker._open)
    return tracker


@pytest.mark.parametrize("failing", ["log_batch", "log_dict", "log_inputs"])
def test_settings_and_data_that_the_server_did_not_take_at_first_are_sent_again(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    client = _Client(failing)
    opened(folder, client, monkeypatch)
    assert client.calls.count("create_run") == 1
    assert {"log_batch", "log_dict", "log_inputs"} <= set(client.calls)
    assert read_json(folder.tracking)["described"]


def test_settings_are_sent_by_the_next_start_where_the_first_one_was_killed(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = _Client("log_dict")
    client.error = KeyboardInterrupt()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        opened(folder, client, monkeypatch)
    opened(folder, client, monkeypatch)
    assert client.calls.count("create_run") == 1
    assert "log_inputs" in client.calls
    opened(folder, client, monkeypatch)
    assert client.calls.count("log_inputs") == 1


def test_a_server_that_is_away_when_a_run_is_resumed_leads_to_no_second_run(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = opened(folder, _Client(), monkeypatch)
    client = _Client("update_run")
    assert opened(folder, client, monkeypatch).run_id == first.run_id
    assert client.calls == ["update_run"]


def test_a_run_that_the_server_no_longer_has_is_made_anew_and_described(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.exceptions import MlflowException
    from mlflow.protos.databricks_pb2 import RESOURCE_DOES_NOT_EXIST

    opened(folder, _Client(), monkeypatch)
    client = _Client("update_run")
    client.error = MlflowException("no such run", RESOURCE_DOES_NOT_EXIST)
    opened(folder, client, monkeypatch)
    assert {"create_run", "log_inputs"} <= set(client.calls)


class _Broken(http.server.BaseHTTPRequestHandler):
    """A tracking server that answers everything with 500."""

    def do_GET(self) -> None:
        self.send_error(500)

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        pass


def test_what_a_broken_server_did_not_take_is_sent_by_the_same_command_later(
    folder: RunFolder, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(track, "FINISH_SECONDS", 3.0)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Broken) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        MetricsLog(folder.metrics).append(1, {"loss": 0.5})
        tracker = new_tracker(folder, f"http://127.0.0.1:{server.server_port}")
        started = time.monotonic()
        tracker.start()
        assert time.monotonic() - started < 1
        tracker.finish("FINISHED")
        server.shutdown()
    assert read_json(folder.tracking)["pending"]
    monkeypatch.setattr(track, "FINISH_SECONDS", 120.0)
    later = new_tracker(folder, uri)
    later.catch_up()
    assert later.run_id is not None
    assert history(uri, later.run_id, "loss") == [(1, 0.5)]
    assert not read_json(folder.tracking)["pending"]


def test_secrets_in_the_environment_reach_no_database_log_or_artifact(
    folder: RunFolder, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "s3cr3t-" + "7" * 20
    for name in ("AWS_SECRET_ACCESS_KEY", "RAY_AUTH_TOKEN", "HF_TOKEN"):
        monkeypatch.setenv(name, secret)
    MetricsLog(folder.metrics).append(1, {"loss": 0.5})
    tracker = new_tracker(folder, uri)
    tracker.start()
    tracker.finish("FINISHED")
    for path in [Path(uri.removeprefix("sqlite:///")), *folder.path.parent.parent.rglob("*")]:
        if path.is_file():
            assert secret.encode() not in path.read_bytes(), path
