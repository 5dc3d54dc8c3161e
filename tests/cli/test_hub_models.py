"""Commands that take a model by its hub id, from a server on the loopback."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import constants, hf_api
from typer.testing import CliRunner

import raybio
from raybio.cli.main import app
from raybio.core.digest import file_digest
from raybio.core.errors import ConfigError
from raybio.encoders.hub import fetch_model
from raybio.methods.biostransformers.store import ArticleStore
from tests.cli.contrastive_probe.test_probe import write_medlama
from tests.cli.test_evaluate_models import trained_system, write_task
from tests.encoders.hub import COMMIT, serve_hub
from tests.encoders.published import pickled_text
from tests.encoders.tiny_text import save_tiny, save_with_head
from tests.guide_inputs import zero_shot_inputs
from tests.methods.conformance_cases import tiny_config
from tests.runtime.search.test_index import write
from tests.runtime.search.test_queries import SEQUENCES, export

HUB_ID = "tiny/proteins"


def run(*arguments: object) -> str:
    done = CliRunner().invoke(app, [*map(str, arguments)])
    assert done.exit_code == 0, (arguments, done.output, done.exception)
    return done.stdout


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the model that the hub has as ``HUB_ID``."""
    folder = export(tmp_path / "model", 0)
    with serve_hub({HUB_ID: folder}) as address:
        use_hub(monkeypatch, address, tmp_path / "cache")
        yield folder


def use_hub(monkeypatch: pytest.MonkeyPatch, address: str, cache: Path) -> None:
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, address)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hf_api.api, "endpoint", address)
    # transformers keeps a client of the first address it sees.
    monkeypatch.setattr("transformers.utils.hub._hf_api", None)


def test_search_takes_a_hub_id_for_the_folder_that_it_names(model: Path, tmp_path: Path) -> None:
    loaded = raybio.load(model)
    embeddings = write(tmp_path / "e.parquet", loaded.encode(SEQUENCES), loaded.digest())
    run("search", "index", "--embeddings", embeddings, "--out", tmp_path / "index")
    query = ("search", "query", tmp_path / "index", "--text", SEQUENCES[1], "--k", 1)
    shown = run(*query, "--model", HUB_ID)
    assert shown == run(*query, "--model", model)
    assert shown.splitlines()[1].split("\t")[:3] == ["1", "1", "k1"]


@pytest.mark.nightly
@pytest.mark.usefixtures("ray_cluster")
def test_embed_takes_a_hub_id_for_the_folder_that_it_names(model: Path, tmp_path: Path) -> None:
    fasta = tmp_path / "proteins.fasta"
    fasta.write_text("".join(f">k{row}\n{text}\n" for row, text in enumerate(SEQUENCES)))
    for source, out in ((model, "local.parquet"), (HUB_ID, "hub.parquet")):
        run("embed", "--input", fasta, "--model", source, "--out", tmp_path / out)
    assert (tmp_path / "hub.parquet").read_bytes() == (tmp_path / "local.parquet").read_bytes()


def test_a_report_has_the_commit_of_a_hub_id_and_the_digest_of_each_model(
    tiny_articles: ArticleStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = trained_system("biostransformers", tiny_config("biostransformers"), tiny_articles)
    # The cache of the hub has such folders, and so may anybody.
    folder = system.export(tmp_path / "snapshots" / "mine", {})
    out = tmp_path / "report"
    task = write_task(tmp_path, tiny_articles)
    models = ("--model", "tiny/texts", "--model", folder)
    with serve_hub({"tiny/texts": folder}) as address:
        use_hub(monkeypatch, address, tmp_path / "cache")
        run("evaluate", "retrieval", *models, *task, "--out", out)
        commit = fetch_model("tiny/texts").name
    digest = raybio.load(folder).digest()
    assert json.loads((out / "report.json").read_text())["settings"]["weights"] == {
        "tiny/texts": {"digest": digest, "commit": commit},
        str(folder): {"digest": digest},
    }


@pytest.mark.parametrize("command", ["evaluate zero-shot", "evaluate baselines", "evaluate probe"])
def test_a_report_names_the_commit_of_a_hub_id_and_the_digest_of_a_folder(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_with_head(tmp_path / "model", "bert")
    data = tmp_path / "data"
    arguments = ["--benchmark", data]
    if command == "evaluate zero-shot":
        zero_shot_inputs(data)
        arguments = ["--data", data, "--tasks", "pubmedqa"]
    else:
        write_medlama(data)
    if command == "evaluate baselines":
        arguments += ["--methods", "mask-average", "--queries-per-relation", 1]
    # A process keeps the commit of a hub id.
    hub_id = f"tiny/{command.split()[-1]}"
    out = tmp_path / "report"
    with serve_hub({hub_id: Path(folder)}) as address:
        use_hub(monkeypatch, address, tmp_path / "cache")
        run(*command.split(), "--model", hub_id, "--model", folder, *arguments, "--out", out)
    report = out / ("baselines.json" if command == "evaluate baselines" else "report.json")
    shared = {"revision": "main", "weights": "model.safetensors"}
    assert json.loads(report.read_text())["settings"]["weights"] == {
        hub_id: shared | {"commit": COMMIT},
        folder: shared | {"sha256": file_digest(Path(folder) / "model.safetensors")},
    }


def test_pickled_weights_are_fetched_where_there_are_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pickled_text(tmp_path / "pickled", "bert")
    both = save_tiny(tmp_path / "both", "bert")
    (Path(both) / "pytorch_model.bin").write_bytes(b"not wanted")
    with serve_hub({"tiny/pickled": tmp_path / "pickled", "tiny/both": Path(both)}) as address:
        use_hub(monkeypatch, address, tmp_path / "cache")
        texts = ["Asthma in early life."]
        from_hub = raybio.load("tiny/pickled", pooling="cls").encode(texts)
        folder = fetch_model("tiny/both")
    with pytest.raises(ConfigError, match="it does not answer .* this machine lacks the model"):
        fetch_model("tiny/none")
    assert not (folder / "pytorch_model.bin").exists()
    local = raybio.load(tmp_path / "pickled", pooling="cls").encode(texts)
    np.testing.assert_array_equal(from_hub, local)
