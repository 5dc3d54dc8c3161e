"""Commands that take a model by its hub id, from a server on the loopback."""

from pathlib import Path

import pytest
from huggingface_hub import constants
from typer.testing import CliRunner

from raybio.cli.main import app
from tests.encoders.hub import serve_hub
from tests.runtime.search.test_queries import SEQUENCES, export


def raybio(*arguments: object) -> str:
    done = CliRunner().invoke(app, [*map(str, arguments)])
    assert done.exit_code == 0, (arguments, done.output, done.exception)
    return done.stdout


def test_embed_and_search_take_a_hub_id_for_the_folder_that_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    export(Path("model"), 0)
    fasta = "".join(f">k{row}\n{text}\n" for row, text in enumerate(SEQUENCES))
    Path("proteins.fasta").write_text(fasta)
    with serve_hub({"tiny/proteins": tmp_path / "model"}) as address:
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, address)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "ENDPOINT", address)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        for model, out in (("model", "local.parquet"), ("tiny/proteins", "hub.parquet")):
            raybio("embed", "--input", "proteins.fasta", "--model", model, "--out", out)
        assert Path("hub.parquet").read_bytes() == Path("local.parquet").read_bytes()
        raybio("search", "index", "--embeddings", "local.parquet", "--out", "index")
        query = ("search", "query", "index", "--text", SEQUENCES[1], "--k", 1)
        assert raybio(*query, "--model", "tiny/proteins") == raybio(*query, "--model", "model")
