"""Published encoders from a hub on the loopback, by the commands of docs/encoders.md."""

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from mlflow import MlflowClient

from tests.encoders.hub import COMMIT, LATER, LATER_COMMIT, serve_hub
from tests.methods.published_encoders import PUBLISHED, TRAINING
from tests.paths import ROOT

pytestmark = pytest.mark.nightly

ID_BY_LAYOUT = {
    "esm2": "facebook/esm2_t12_35M_UR50D",
    "prott5": "Rostlab/prot_t5_xl_uniref50",
    "bert": "microsoft/BiomedNLP-BiomedBERT-base-uncased-abstract-fulltext",
    "bluebert": "bionlp/bluebert_pubmed_uncased_L-12_H-768_A-12",
    "electra": "kamalkraj/bioelectra-base-discriminator-pubmed",
    "roberta": "allenai/cs_roberta_base",
    "character_bert": "helboukkouri/character-bert-medical",
    "tape": "./tape",
}

RECIPES = {
    "biostransformers": {"schedule.keep_best": "null", "plan.conflicts": "reject"},
    "sppt_mag": {"evaluation.test_graphs": 0},
}
"""Settings by which recipes of a method fit a tiny store."""


def documented(hub_id: str) -> list[str]:
    """Return the command that docs/encoders.md has for an encoder."""
    page = (ROOT / "docs" / "encoders.md").read_text(encoding="utf-8")
    for command in re.findall(r"`raybio (train [^`]*)`", page):
        if hub_id in command:
            return shlex.split(command)
    raise AssertionError(f"docs/encoders.md has no command with {hub_id}")


def train(folder: Path, store: Path, layout: str, address: str, *more: str, **settings: object):
    """Run the documented command with the settings that make it small."""
    arguments = documented(ID_BY_LAYOUT[layout])
    given = TRAINING | PUBLISHED[layout].settings | RECIPES.get(PUBLISHED[layout].method, {})
    given |= {"schedule.max_steps": 2} | settings
    words = [str(store) if word == "STORE" else word for word in arguments]
    for path, value in given.items():
        words += ["--set", f"{path}={value}"]
    words += ["--name", "first", "--workers", "1", "--no-baseline", *more]
    inherited = {
        key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")
    }
    own = {"HF_HOME": str(folder / "hf"), "HF_ENDPOINT": address, "HF_HUB_OFFLINE": "0"}
    own |= {"HF_HUB_DISABLE_XET": "1", "PYTHONPATH": str(ROOT)}
    # This hub gives all contents one commit, by which converted checkpoints are cached.
    own |= {"RAYBIO_CACHE": str(folder / "cache")}
    return subprocess.run(
        [sys.executable, "-m", "raybio.cli.main", *words],
        cwd=folder,
        env=inherited | own,
        capture_output=True,
        text=True,
        check=False,
    )


def recorded_encoder(folder: Path) -> dict[str, str]:
    return json.loads((folder / "runs/first/run.json").read_text())["encoder"]


@pytest.mark.parametrize("layout", sorted(ID_BY_LAYOUT.keys() - {"esm2"}))
def test_the_documented_command_trains_it(layout, request, tmp_path):
    store = request.getfixturevalue(PUBLISHED[layout].store)
    repository = tmp_path / "tape" if layout == "tape" else tmp_path / "repository"
    PUBLISHED[layout].write(repository)
    with serve_hub({ID_BY_LAYOUT[layout]: repository}) as address:
        done = train(tmp_path, store.path, layout, address)
    assert done.returncode == 0, done.stderr
    record = recorded_encoder(tmp_path)
    assert record["weights"].startswith("pytorch_model.bin")
    assert record.get("commit", COMMIT) == COMMIT
    assert (tmp_path / "runs/first/export/model.safetensors").is_file()


def test_a_run_keeps_its_commit_when_the_branch_moves(tiny_store, tmp_path):
    repository = tmp_path / "repository"
    PUBLISHED["esm2"].write(repository)
    with serve_hub({ID_BY_LAYOUT["esm2"]: repository}) as address:
        done = train(tmp_path, tiny_store.path, "esm2", address)
        assert done.returncode == 0, done.stderr
        PUBLISHED["esm2"].write(repository / LATER)
        (repository / LATER / "model.safetensors").unlink()
        again = train(tmp_path, tiny_store.path, "esm2", address, **{"schedule.max_steps": 4})
    assert again.returncode == 0, again.stderr
    record = recorded_encoder(tmp_path)
    assert record["commit"] == COMMIT != LATER_COMMIT
    card = (tmp_path / "runs/first/export/README.md").read_text()
    assert COMMIT in card
    client = MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("sppt_protein")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.data.tags["encoder.commit"] == COMMIT


def missing(repository: Path) -> None:
    for path in repository.glob("pytorch_model*"):
        path.unlink()


def unsafe(repository: Path) -> None:
    torch.save({"a": print}, repository / "pytorch_model.bin")


def narrower(repository: Path) -> None:
    settings = json.loads((repository / "config.json").read_text())
    settings["intermediate_size"] -= 8
    (repository / "config.json").write_text(json.dumps(settings))


FAULTS = {
    missing: "it has no weights: no model.safetensors and no pytorch_model.bin",
    unsafe: "more than tensors, and reading it would run code (print)",
}
PICKLED = sorted(ID_BY_LAYOUT.keys() - {"esm2"})


@pytest.mark.parametrize(
    ("layout", "spoil", "message"),
    [
        *((layout, spoil, message) for layout in PICKLED for spoil, message in FAULTS.items()),
        ("esm2", narrower, "in the file, and config.json wants"),
        ("character_bert", narrower, "and its config.json wants"),
    ],
)
def test_a_checkpoint_that_cannot_be_used_is_refused_before_ray_starts(
    layout, spoil, message, request, tmp_path, monkeypatch
):
    store = request.getfixturevalue(PUBLISHED[layout].store)
    repository = tmp_path / "tape" if layout == "tape" else tmp_path / "repository"
    PUBLISHED[layout].write(repository)
    spoil(repository)
    # Ray refuses long paths.
    with (
        tempfile.TemporaryDirectory(prefix="rb") as ray_folder,
        serve_hub({ID_BY_LAYOUT[layout]: repository}) as address,
    ):
        monkeypatch.setenv("RAY_TMPDIR", ray_folder)
        done = train(tmp_path, store.path, layout, address)
        written_by_ray = list(Path(ray_folder).iterdir())
    assert done.returncode != 0
    assert message in " ".join(done.stderr.split())
    assert not written_by_ray
    assert not (tmp_path / "runs/first").exists()
