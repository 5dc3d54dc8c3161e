"""The whole way: the job is started as a user would, and its MLflow store is opened afterwards."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from raybio.core.records import read_record
from raybio.runtime.model_folders import model_of_run
from raybio.store.store import Store
from tests.paths import ROOT

SETTINGS = {
    "encoder": {"num_layers": 1, "width": 16, "num_heads": 2, "ffn_width": 32, "max_positions": 40},
    "input": {"max_length": 40},
    "objective": {"lambda_spml": 0.5},
    "plan": {"global_batch_rows": 16},
    "schedule": {
        "max_steps": 20,
        "checkpoint_every_steps": 10,
        "evaluate_every_steps": 10,
        "log_every_steps": 2,
    },
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("h")


def run(home: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {
        "HOME": str(home),
        "RAY_TMPDIR": os.environ.get("RAY_TMPDIR", "/tmp"),
        "COLUMNS": "160",
    }
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=home, env=environment)


@pytest.mark.slow
def test_the_job_trains_compares_and_tracks_and_transformers_reads_its_model(
    tiny_store: Store, home: Path, empty_database: Path
) -> None:
    from mlflow import MlflowClient

    shutil.copy(empty_database, home)
    (home / "my.yaml").write_text(yaml.safe_dump(SETTINGS))
    job = ROOT / "jobs" / "sppt_protein.py"
    arguments = [job, "--store", tiny_store.path, "--config", "my.yaml", "--name", "first"]
    register = ["--register", "proteins", "--alias", "champion"]
    trained = run(home, *arguments, *register)
    assert trained.returncode == 0, trained.stderr[-3000:]
    assert trained.stdout.startswith("precision: ")
    assert "held-out links" in trained.stdout
    for label in ("chance", "random", "initial", "lambda_spml = 0", "lambda_spml = 0.5 (this run)"):
        assert label in trained.stdout
    assert "step 20/20" in trained.stderr
    assert "(raylet)" not in trained.stdout + trained.stderr

    folder = home / "runs" / "first"
    result = read_record(folder / "result.json", "result")
    assert (result["status"], result["step"]) == ("finished", 20)
    assert result["config"]["precision"] == "auto"
    for name in ("first", "first.lambda_spml-0"):
        assert (
            read_record(home / "runs" / name / "run.json", "run")["precision"]
            == result["precision"]
        )
    client = MlflowClient(f"sqlite:///{home}/mlflow.db")
    tracked = client.get_run(result["mlflow_run_id"])
    assert tracked.info.status == "FINISHED"
    assert tracked.data.params["objective.lambda_spml"] == "0.5"
    assert tracked.data.metrics["loss"] == pytest.approx(result["metrics"]["loss"])
    assert "val/link_mrr" in tracked.data.metrics
    assert tracked.inputs.dataset_inputs[0].dataset.digest == tiny_store.digest[:36]
    names = {file.path for file in client.list_artifacts(tracked.info.run_id)}
    assert {"config.yaml", "result.json", "table.md", "plots", "export"} <= names
    experiment = client.get_experiment_by_name("sppt_protein")
    runs = client.search_runs([experiment.experiment_id])
    assert len(runs) == 2
    baseline = next(other for other in runs if other.info.run_id != tracked.info.run_id)
    assert baseline.data.tags["mlflow.parentRunId"] == tracked.info.run_id

    again = run(home, job, "--name", "first", *register)
    assert again.returncode == 0, again.stderr[-3000:]
    for done in (trained, again):
        assert "registered: models:/proteins/1, models:/proteins@champion" in done.stdout
    (version,) = client.search_model_versions("name = 'proteins'")
    assert version.run_id == result["mlflow_run_id"]
    assert "first was finished already, at step 20" in again.stdout

    model = model_of_run(home / "runs", "first")
    sequences = ["MKTAYIAKQR", "MVLSPADK"]
    embeddings = model.embed(model.load(), [sequence.encode() for sequence in sequences])
    assert_plain_transformers_agrees(folder / "export", sequences, embeddings)


def assert_plain_transformers_agrees(
    folder: Path, sequences: list[str], embeddings: np.ndarray
) -> None:
    import torch
    from transformers import AutoModel, AutoTokenizer

    model, tokenizer = (
        AutoModel.from_pretrained(folder).eval(),
        AutoTokenizer.from_pretrained(folder),
    )
    for sequence, embedding in zip(sequences, embeddings, strict=True):
        with torch.no_grad():
            states = model(**tokenizer(sequence, return_tensors="pt")).last_hidden_state
        np.testing.assert_allclose(embedding, states[0, 0].numpy(), atol=1e-5)
