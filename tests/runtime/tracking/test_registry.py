"""Runs in MLflow's model registry, with its own database."""

import json
from pathlib import Path

import numpy as np
import pytest

import raybio
from raybio.core.errors import ClusterError, ConfigError
from raybio.core.records import read_record, write_record
from raybio.methods.sppt.proteins.config import EncoderConfig
from raybio.methods.sppt.proteins.encoder import build_protein_encoder
from raybio.methods.sppt.proteins.export import export_encoder
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.tracking.registry import Registration, register
from raybio.runtime.tracking.tracker import Tracker, tracking_uri
from raybio.training.settings import TrainingConfig

SEQUENCES = ["MKTAYIAKQR", "MVLSPADK"]


@pytest.fixture
def uri(tmp_path: Path, empty_database: Path) -> str:
    (tmp_path / "mlflow.db").write_bytes(empty_database.read_bytes())
    return tracking_uri(None, tmp_path / "runs")


def finished(runs: Path, uri: str, name: str, seed: int = 0) -> RunFolder:
    """Return a run with an export, which MLflow has."""
    folder = RunFolder(runs, name)
    folder.open("sppt_protein", TrainingConfig(), Path("/store"), "d" * 64, ())
    sizes = {"num_layers": 1, "width": 16, "num_heads": 2, "ffn_width": 32, "max_positions": 48}
    encoder = build_protein_encoder(EncoderConfig(**sizes), seed=seed)
    export_encoder(encoder, folder.export, card={"name": name})
    write_record(folder.result, "result", {"weights_sha256": "ab" * 32})
    Tracker(folder, uri, "sppt_protein", {}, "d" * 64).catch_up()
    return folder


def test_a_run_becomes_one_version_whose_files_are_its_export(tmp_path: Path, uri: str) -> None:
    import mlflow
    from mlflow import MlflowClient

    first = finished(tmp_path / "runs", uri, "first")
    second = finished(tmp_path / "runs", uri, "second", seed=1)
    assert register(first, Registration("encoder")) == "1"
    assert register(second, Registration("encoder", "champion")) == "2"
    client = MlflowClient(uri)
    version = client.get_model_version_by_alias("encoder", "champion")
    assert (int(version.version), version.run_id) == (2, Tracker(second, uri, "", {}, "").run_id)
    assert version.tags == {
        "method": "sppt_protein",
        "data_digest": "d" * 64,
        "weights_sha256": "ab" * 32,
    }
    mlflow.set_tracking_uri(uri)
    try:
        copy = mlflow.artifacts.download_artifacts(
            "models:/encoder@champion", dst_path=tmp_path / "c"
        )
    finally:
        mlflow.set_tracking_uri(None)
    np.testing.assert_array_equal(
        raybio.load(copy).encode(SEQUENCES), raybio.load(second.export).encode(SEQUENCES)
    )
    # The same command, and a run that is resumed: the alias moves, and no version is added.
    Tracker(first, uri, "sppt_protein", {}, "d" * 64).finish("FINISHED")
    assert register(first, Registration("encoder", "champion")) == "1"
    assert client.get_model_version_by_alias("encoder", "champion").version == version.version - 1
    assert len(client.search_model_versions("name = 'encoder'")) == 2


def test_what_mlflow_does_not_have_yet_is_not_registered(tmp_path: Path, uri: str) -> None:
    folder = RunFolder(tmp_path / "runs", "first")
    folder.open("sppt_protein", TrainingConfig(), Path("/store"), "d" * 64, ())
    with pytest.raises(ClusterError, match="does not have all of first yet. Give the same command"):
        register(folder, Registration("encoder"))
    folder = finished(tmp_path / "runs", uri, "second")
    saved = json.dumps(read_record(folder.tracking, "tracking"))
    elsewhere = json.loads(saved.replace(uri, "http://127.0.0.1:1"))
    write_record(folder.tracking, "tracking", elsewhere)
    with pytest.raises(ClusterError, match="MLflow did not take it .*the same command registers"):
        register(folder, Registration("encoder"))


@pytest.mark.parametrize("name", ["", "a/b", "a:b", "a'b", "a" * 251])
def test_a_name_that_mlflow_refuses_is_refused_before_training(name: str) -> None:
    with pytest.raises(ConfigError, match="--register: got .*want up to 250 letters without"):
        Registration(name)


@pytest.mark.parametrize("alias", ["", "latest", "V3", "a b", "a@b"])
def test_an_alias_that_mlflow_refuses_is_refused_before_training(alias: str) -> None:
    with pytest.raises(ConfigError, match="--alias: got .*want letters, digits"):
        Registration("encoder", alias)
