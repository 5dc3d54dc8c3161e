import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from raybio.core.errors import ConfigError
from raybio.core.records import write_record
from raybio.runtime.cluster import machine
from raybio.runtime.cluster.machine import network_file_system
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.metrics_log import MetricsLog
from raybio.runtime.tracking import tracker as track
from raybio.runtime.tracking.mlflow import KEY, create_run, find_runs, flatten
from raybio.runtime.tracking.tracker import Tracker, add_artifacts, tracking_uri
from raybio.training.settings import TrainingConfig

CONFIG = {
    "seed": 7,
    "optim": {"peak_lr": 0.1, "schedule": "constant"},
    "encoder": {"source": "scratch"},
}


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "runs", "first")
    folder.open("sppt_protein", TrainingConfig(), Path("/store"), "d" * 64, ())
    return folder


@pytest.fixture
def uri(tmp_path: Path, empty_database: Path) -> str:
    (tmp_path / "mlflow.db").write_bytes(empty_database.read_bytes())
    return tracking_uri(None, tmp_path / "runs")


def new_tracker(folder: RunFolder, uri: str) -> Tracker:
    return Tracker(folder, uri, "sppt_protein", CONFIG, "d" * 64)


def history(uri: str, run_id: str, name: str) -> list[tuple[int, float]]:
    from mlflow import MlflowClient

    return [
        (point.step, point.value) for point in MlflowClient(uri).get_metric_history(run_id, name)
    ]


def test_the_default_is_a_database_next_to_the_runs(tmp_path: Path) -> None:
    assert tracking_uri(None, tmp_path / "runs") == f"sqlite:///{tmp_path}/mlflow.db"


def test_a_relative_database_becomes_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert tracking_uri("sqlite:///mlflow.db", tmp_path) == f"sqlite:///{tmp_path}/mlflow.db"
    assert tracking_uri("sqlite:////data/mlflow.db", tmp_path) == "sqlite:////data/mlflow.db"


@pytest.mark.parametrize(
    "uri", ["mlruns", "file:///tmp/mlruns", "./here", "http://", "postgresql://db/mlflow"]
)
def test_a_file_store_and_a_database_without_a_server_are_refused(uri: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no longer writes"):
        tracking_uri(uri, tmp_path)


@pytest.mark.parametrize("scheme", ["http://", "https://", "postgresql://", ""])
def test_a_password_in_the_address_is_refused_and_not_repeated(scheme: str, tmp_path: Path) -> None:
    for password in ("s3cr3t", "s3/cr@3t", "s3cr3t:"):
        with pytest.raises(ConfigError) as caught:
            tracking_uri(f"{scheme}me:{password}@mlflow.example.org:5000", tmp_path)
        assert "3t" not in str(caught.value)
    assert "MLFLOW_TRACKING_PASSWORD" in str(caught.value) or not scheme.startswith("http")
    assert (
        tracking_uri("https://me@mlflow.example.org/x", tmp_path)
        == "https://me@mlflow.example.org/x"
    )


def test_settings_are_flattened() -> None:
    assert flatten(CONFIG)["optim.peak_lr"] == 0.1


def test_a_run_has_settings_tags_data_metrics_artifacts_and_its_true_status(
    folder: RunFolder, uri: str
) -> None:
    from mlflow import MlflowClient

    log = MetricsLog(folder.metrics)
    tracker = new_tracker(folder, uri)
    tracker.start()
    for step in range(1, 2501):
        log.append(step, {"loss": 1 / step, "rate": 0.5, "acc/treats (drug), µ+": 0.25})
    folder.export.mkdir()
    (folder.export / "config.json").write_text("{}")
    rival = {"lrap": {"value": 0.5, "low": 0.4, "high": 0.6}, "recall_at_5": {"value": 0.1}}
    scores = {
        "trained": {"test": {"f1": {"value": 0.75, "low": 0.7, "high": 0.8}}},
        "initial": {},
        "common neighbors": {"val": rival, "c2": rival},
    }
    write_record(folder.outcome, "outcome", {"step": 2500, "final": {"scores": scores}})
    tracker.finish("FINISHED")
    client = MlflowClient(uri)
    run = client.get_run(tracker.run_id)
    assert run.info.status == "FINISHED"
    # MLflow takes neither parentheses nor commas in names.
    assert run.data.metrics["acc/treats _drug__ µ_"] == 0.25
    assert run.info.run_name == "first"
    assert run.data.params["optim.peak_lr"] == "0.1"
    assert {"method", "version.ray", "version.torch", "data_digest"} <= run.data.tags.keys()
    assert run.inputs.dataset_inputs[0].dataset.digest == "d" * 36
    assert history(uri, tracker.run_id, "loss") == [(step, 1 / step) for step in range(1, 2501)]
    assert history(uri, tracker.run_id, "final/test/f1") == [(2500, 0.75)]
    assert history(uri, tracker.run_id, "rival/common neighbors/val/lrap") == [(2500, 0.5)]
    # Of the rivals, only the scores and splits that runs are compared by.
    logged = {name for name in run.data.metrics if name.startswith("rival/")}
    assert logged == {"rival/common neighbors/val/lrap"}
    names = {file.path for file in client.list_artifacts(tracker.run_id)}
    # config.yaml has the settings of the last start. A second file would keep those of the first.
    assert {"config.yaml", "export"} <= names
    assert "config.json" not in names
    assert "MLFLOW_RUN_ID" not in os.environ
    table = folder.path / "table.md"
    table.write_text("| a |")
    add_artifacts(folder, [table])
    assert "table.md" in {file.path for file in client.list_artifacts(tracker.run_id)}


def test_an_experiment_that_was_deleted_is_restored(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    client.delete_experiment(client.create_experiment("sppt_protein"))
    run = create_run(client, uri, "sppt_protein", "first", {KEY: "a"})
    assert find_runs(client, "sppt_protein", "a") == [run]


def test_a_resumed_run_keeps_its_id_and_no_step_is_logged_twice(
    folder: RunFolder, uri: str
) -> None:
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


def test_a_trial_that_finished_after_a_failure_has_no_error_in_mlflow(
    folder: RunFolder, uri: str
) -> None:
    from mlflow import MlflowClient

    for tags, status in (({"error": "no memory"}, "FAILED"), ({"best_step": "3"}, "FINISHED")):
        tracker = new_tracker(folder, uri)
        tracker.start()
        tracker.note(tags, {})
        tracker.finish(status, status.lower())
        run = MlflowClient(uri).get_run(tracker.run_id)
        assert run.info.status == status
        assert run.data.tags.get("error") == tags.get("error")


def test_an_evaluation_that_a_stop_left_to_the_next_start_is_forwarded(
    folder: RunFolder, uri: str
) -> None:
    log = MetricsLog(folder.metrics)
    log.append(1, {"loss": 2.0})
    log.append(2, {"loss": 1.0}, is_evaluation_pending=True)
    first = new_tracker(folder, uri)
    first.start()
    first.finish("KILLED")
    log = MetricsLog(folder.metrics)
    log.rewind(2)
    log.append(2, {"loss": 1.0, "val/mrr": 0.5})
    second = new_tracker(folder, uri)
    second.start()
    second.finish("FINISHED")
    assert history(uri, first.run_id, "loss") == [(1, 2.0), (2, 1.0)]
    assert history(uri, first.run_id, "val/mrr") == [(2, 0.5)]


def test_an_evaluation_that_a_later_start_adds_to_a_step_is_forwarded(
    folder: RunFolder, uri: str
) -> None:
    MetricsLog(folder.metrics).append(1, {"loss": 2.0}, is_evaluation=False)
    first = new_tracker(folder, uri)
    first.start()
    first.finish("KILLED")
    log = MetricsLog(folder.metrics)
    log.rewind(0)
    log.append(1, {"loss": 2.0, "val/mrr": 0.5}, is_evaluation=True)
    for _ in range(2):
        second = new_tracker(folder, uri)
        second.start()
        second.finish("FINISHED")
        assert history(uri, first.run_id, "val/mrr") == [(1, 0.5)]


def test_a_deleted_folder_ends_tracking_with_a_warning_and_no_error(
    folder: RunFolder, uri: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(track, "FINISH_SECONDS", 2.0)
    tracker = new_tracker(folder, uri)
    shutil.rmtree(folder.path)
    tracker.start()
    tracker.finish("FINISHED")
    assert "did not take everything" in caplog.text


def test_a_file_system_that_other_machines_share_is_known_by_its_kind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    places = {
        "/": "ext4",
        "/shared": "nfs4",
        "/shared/local": "xfs",
        "/lake": "fuse.gcsfuse",
        "/x": "fuse.overlayfs",
    }
    partitions = [SimpleNamespace(mountpoint=place, fstype=kind) for place, kind in places.items()]
    monkeypatch.setattr("psutil.disk_partitions", lambda all: partitions)
    assert network_file_system(Path("/shared/me/mlflow.db")) == "nfs4"
    assert network_file_system(Path("/lake/mlflow.db")) == "fuse.gcsfuse"
    for place in ("/mlflow.db", "/shared/local/mlflow.db", "/shareds/mlflow.db", "/x/mlflow.db"):
        assert network_file_system(Path(place)) is None


def test_sqlite_on_a_network_file_system_is_warned_about_once_for_a_sweep(
    folder: RunFolder, uri: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(machine, "network_file_system", lambda _: "nfs4")
    parent = new_tracker(folder, uri)
    child = Tracker(
        RunFolder(folder.path.parent, "second"),
        uri,
        "sppt_protein",
        CONFIG,
        "d" * 64,
        parent=parent,
    )
    child.folder.make()
    for tracker in (parent, child):
        tracker.start()
    for tracker in (child, parent):
        tracker.finish("FINISHED")
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "one driver at a time" in line
    assert "PostgreSQL" in line


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


def test_a_path_with_an_at_sign_is_shown_whole_and_a_login_is_not() -> None:
    file = "sqlite:////data/jane@corp.org/mlflow.db"
    assert track.how_to_show("a", file) == f"run a, mlflow ui --backend-store-uri {file}"
    assert track.shown_uri("https://jane:secret@host/mlflow") == "host/mlflow"
