"""``raybio push`` to a hub on the loopback, and what others load from there."""

import copy
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import ModelCard, constants

import raybio
from raybio.core.errors import ConfigError
from raybio.encoders.hub import push_folder
from raybio.encoders.model_card import Card
from raybio.methods.sppt.proteins.config import EncoderConfig
from raybio.methods.sppt.proteins.encoder import build_protein_encoder
from raybio.methods.sppt.proteins.export import export_encoder
from tests.encoders.tiny_text import save_tiny
from tests.encoders.upload_hub import UploadHub, upload_hub

# Of the hub's client, in its own requests.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

TOKEN = "hf_" + "w" * 34
READER = "hf_" + "r" * 34

SEQUENCES = ["MKTAYIAKQR", "MVLSPADK"]

PUSH_AND_USE = """
import re, sys
import numpy as np
import raybio
from huggingface_hub import ModelCard
from raybio.cli.app import run_app
from raybio.cli.main import app
folder, repository, out = sys.argv[1:]
try:
    run_app(app, ["push", folder, repository, "--license", "mit"])
except SystemExit as end:
    assert end.code == 0
embedding = {"load": raybio.load(repository).encode(["MKTAYIAKQR", "MVLSPADK"])}
card = ModelCard.load(repository)
for number, code in enumerate(re.findall(r"```python\\n(.*?)```", card.text, re.DOTALL)):
    names = {}
    exec(code, names)
    embedding[f"card {number}"] = np.asarray(names["embedding"])
from raybio.methods.sppt.proteins.saved_settings import read_protein_settings
print(read_protein_settings(repository), card.data.license)
np.savez(out, **embedding)
"""


def export(folder: Path, pooling: str = "mean", seed: int = 0) -> Path:
    sizes = {"num_layers": 1, "width": 16, "num_heads": 2, "ffn_width": 32, "max_positions": 48}
    encoder = build_protein_encoder(
        EncoderConfig(vocabulary="esm", pooling=pooling, **sizes), seed=seed
    )
    return export_encoder(encoder, folder, card={"name": "tiny"})


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> UploadHub:
    with upload_hub({TOKEN: {"me"}, READER: set()}) as server:
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, server.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield server


def run(hub: UploadHub, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    own = {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(folder / "home"),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_OFFLINE": "0",
        "HF_TOKEN": TOKEN,
    }
    inherited = {
        key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")
    }
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=inherited | own,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.nightly
def test_a_pushed_model_is_loaded_from_the_hub_with_equal_embeddings(
    hub: UploadHub, tmp_path: Path
) -> None:
    folder = export(tmp_path / "export")
    done = run(hub, tmp_path, "-c", PUSH_AND_USE, str(folder), "me/tiny", "found.npz")
    assert done.returncode == 0, done.stderr
    commit, files = hub.repositories["me/tiny"].at("main")
    assert f"{hub.url}/me/tiny/commit/{commit}: {len(files) - 1} files" in done.stdout
    assert TOKEN not in done.stdout + done.stderr
    # All files as they are but the card.
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and name != "README.md":
            assert files[name] == path.read_bytes()
    assert f"PUT /lfs/{[*hub.large][0]}" in hub.requests
    # A hub id states its pooling as a folder does.
    assert done.stdout.splitlines()[-1] == "ProteinSettings(pooling='mean', max_tokens=48) mit"
    expected_ND = raybio.load(folder).encode(SEQUENCES)
    with np.load(tmp_path / "found.npz") as found:
        assert len(found.files) > 1
        for name in found.files:
            np.testing.assert_allclose(found[name], expected_ND, rtol=1e-5, atol=1e-5)


def test_a_push_replaces_a_model_in_one_commit_and_only_what_has_changed_is_sent(
    hub: UploadHub, tmp_path: Path
) -> None:
    first = push_folder(export(tmp_path / "first", "cls"), "me/tiny")
    assert first.deleted == []
    second = export(tmp_path / "second", "mean", seed=1)
    (second / ".cache" / "huggingface").mkdir(parents=True)
    (second / ".cache" / "huggingface" / "CACHEDIR.TAG").write_text("of a download")
    again = push_folder(second, "me/tiny")
    repository = hub.repositories["me/tiny"]
    assert len(repository.files_by_commit) == 3  # the hub's own, and one a push
    _, files = repository.at("main")
    wanted = {
        path.relative_to(tmp_path / "second").as_posix()
        for path in (tmp_path / "second").rglob("*")
        if path.is_file() and ".cache" not in path.parts
    }
    assert set(files) == wanted | {".gitattributes"}
    assert set(again.deleted) == set(repository.files_by_commit[first.commit]) - set(files)


def test_a_branch_is_created_and_main_stays(hub: UploadHub, tmp_path: Path) -> None:
    first = push_folder(export(tmp_path / "first"), "me/tiny")
    second = push_folder(export(tmp_path / "second", seed=1), "me/tiny", revision="v2")
    repository = hub.repositories["me/tiny"]
    assert repository.commit_by_branch == {"main": first.commit, "v2": second.commit}
    third = push_folder(export(tmp_path / "third", seed=2), "me/tiny", revision="v2")
    assert repository.commit_by_branch == {"main": first.commit, "v2": third.commit}


def test_a_private_model_never_becomes_public(hub: UploadHub, tmp_path: Path) -> None:
    folder = export(tmp_path / "export")
    push_folder(folder, "me/secret", is_private=True)
    assert hub.repositories["me/secret"].is_private
    push_folder(folder, "me/open")
    before = copy.deepcopy(hub.repositories["me/open"])
    for branch in ("main", "v2"):
        with pytest.raises(ConfigError, match="me/open exists and is public, and --private wants"):
            push_folder(folder, "me/open", is_private=True, revision=branch)
        assert hub.repositories["me/open"] == before


def test_a_repository_with_something_else_is_not_replaced(hub: UploadHub, tmp_path: Path) -> None:
    folder = export(tmp_path / "export")
    for card in ({}, {"README.md": b"---\ntags:\n- other\n---\n\n# Other\n"}):
        hub.add("me/other", {"model.safetensors": b"1", **card})
        before = copy.deepcopy(hub.repositories["me/other"])
        for branch in ("main", "v2"):
            with pytest.raises(
                ConfigError, match="me/other holds something else .*lacks the tag raybio"
            ):
                push_folder(folder, "me/other", revision=branch)
            assert hub.repositories["me/other"] == before


@pytest.mark.parametrize(
    ("token", "repository", "message"),
    [
        ("", "me/tiny", r"there is no token\. Set HF_TOKEN .* or log in with `hf auth login`"),
        ("hf_" + "x" * 34, "me/tiny", "does not accept the token. Set HF_TOKEN to a valid"),
        (READER, "me/tiny", "the token may not write to me/tiny. Want a token with write"),
        (TOKEN, "they/tiny", "the token may not write to they/tiny"),
        (TOKEN, "tiny", "REPO: got 'tiny', want OWNER/NAME"),
        (TOKEN, "me/ti ny", "REPO 'me/ti ny': "),
    ],
)
def test_what_may_not_be_pushed_is_refused_without_the_token_in_the_message(
    hub: UploadHub,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    token: str,
    repository: str,
    message: str,
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no token"))
    monkeypatch.setattr(constants, "HF_STORED_TOKENS_PATH", str(tmp_path / "no tokens"))
    with pytest.raises(ConfigError, match=message) as caught:
        push_folder(export(tmp_path / "export"), repository)
    assert not token or token not in str(caught.value)
    assert hub.repositories == {}


def test_a_hub_that_refuses_the_card_or_does_not_answer_is_named(
    hub: UploadHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = export(tmp_path / "export")
    with pytest.raises(ConfigError, match='refuses the header of the card: .*"license" must be'):
        push_folder(folder, "me/tiny", license_id="MIT")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(ConfigError, match="http://127.0.0.1:1 did not take me/tiny: "):
        push_folder(folder, "me/tiny")


def test_a_folder_that_is_no_export_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such folder; want a finished run"):
        push_folder(tmp_path / "nothing", "me/tiny")
    with pytest.raises(
        ConfigError, match=r"is no export of raybio, it has no README.md and no config"
    ):
        push_folder(tmp_path, "me/tiny")
    other = Path(save_tiny(tmp_path / "other"))
    (other / "README.md").write_text("# Other\n")
    with pytest.raises(ConfigError, match="its README.md lacks the tag raybio; .*`hf upload`"):
        push_folder(other, "me/tiny")


def test_the_license_of_a_push_replaces_that_of_the_card(hub: UploadHub, tmp_path: Path) -> None:
    folder = export(tmp_path / "export")
    card = Card.parse((folder / "README.md").read_text())
    text = f"{card.body}\n\n## License\n\nLicense: mit. Predict: `raybio predict . --input F`.\n"
    (folder / "README.md").write_text(str(Card({**card.metadata, "license": "mit"}, text)))
    push_folder(folder, "me/tiny", license_id="apache-2.0")
    _, files = hub.repositories["me/tiny"].at("main")
    found = ModelCard(files["README.md"].decode())
    assert found.data.license == "apache-2.0"
    assert "License: apache-2.0. Predict: `raybio predict me/tiny --input F`." in found.text
    assert not re.search(r'\("\."', found.text)
    assert "mit" in (folder / "README.md").read_text()  # the folder is not changed


def test_a_model_that_the_hub_does_not_have_is_refused_by_its_name(hub: UploadHub) -> None:
    with pytest.raises(ConfigError, match="me/nothing: there is no such folder, and it cannot be"):
        raybio.load("me/nothing")
    with pytest.raises(ConfigError, match="a/b/c: no such folder; want a run, a model's folder"):
        raybio.load("a/b/c")
