"""Loading by hub id, from a server on the loopback that lays files out as the hub does."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from transformers import EsmTokenizer

from raybio.core.digest import weights_digest
from raybio.encoders.config import TextEncoderConfig
from raybio.encoders.export import export_text_encoder
from raybio.encoders.text import build_text_encoder
from raybio.methods.mtb_mccl.config import RelationEncoderConfig
from raybio.methods.mtb_mccl.encoder import build_relation_encoder
from raybio.methods.mtb_mccl.export import export_relation_encoder
from raybio.methods.relation_graphs.encoders.character_bert.model import save_character_bert
from raybio.methods.sppt.proteins.config import EncoderConfig
from raybio.methods.sppt.proteins.encoder import build_protein_encoder
from raybio.methods.sppt.proteins.vocabulary import ESM
from tests.encoders.hub import COMMIT, CUT, GATED, LATER, LATER_COMMIT, serve_hub
from tests.encoders.published import pickled_text
from tests.encoders.tiny_text import save_tiny
from tests.methods.relation_graphs.encoders.character_bert.tiny_characters import tiny

TINY = {"num_layers": 1, "width": 16, "num_heads": 2, "ffn_width": 16, "max_positions": 64}

OWNERLESS = "bert-tiny-uncased"
REDIRECTED = "bert-tiny-cased"
"""Ids without an owner, as bert-base-cased: at the hub itself, and redirected to tiny/plain."""

TOKEN = "hf_" + "x" * 34

PROGRAM = """
import os, sys
from pathlib import Path
from raybio.methods.relation_graphs.encoders.character_bert.checkpoint import is_character_bert
from raybio.methods.relation_graphs.encoders.character_bert.model import build_character_bert
from raybio.methods.sppt.proteins.encoder import EncoderConfig, build_protein_encoder, vocabulary_of
from raybio.encoders.checkpoints import check_source
from raybio.encoders.config import TextEncoderConfig
from raybio.encoders.sources import find_source, pin_commit
from raybio.encoders.text import build_text_encoder, check_text_encoder
from raybio.methods.mtb_mccl.config import RelationEncoderConfig
from raybio.methods.mtb_mccl.encoder import build_relation_encoder
from raybio.methods.mtb_mccl.frozen_encoder import frozen_config
from raybio.core.errors import ConfigError
from raybio.core.digest import weights_digest
for order in sys.argv[1:]:
    task, source, revision = order.split("@")
    if task == "token":
        os.environ["HF_TOKEN"] = source
        continue
    try:
        if task in ("check", "fits"):
            checked = check_source(source, revision)
            if task == "fits":
                check_text_encoder(TextEncoderConfig(source=source, revision=revision))
            weights = list(Path(os.environ["HF_HOME"]).rglob("*.safetensors"))
            print(checked, len(weights))
            continue
        if task == "pinned":
            pin_commit(source, "main", revision)
            revision = "main"
        if task == "relation":
            config = RelationEncoderConfig(source=source, revision=revision, projection="linear")
            print(weights_digest(build_relation_encoder(config, seed=1).state_dict().items()))
            continue
        if task == "frozen":
            config = frozen_config(source)
            print(config.projection, config.max_length, config.max_document_tokens)
            continue
        if task in ("text", "pinned", "masked"):
            config = TextEncoderConfig(source=source, revision=revision)
            encoder = build_text_encoder(config, seed=1)
            if task == "masked":
                check_text_encoder(config, needs_mask_head=True)
                encoder.add_mask_head(config, seed=1)
            commit = find_source(source, revision).commit
            print(commit, weights_digest(encoder.state_dict().items()))
            continue
        if task == "words":
            encoder = build_character_bert(source, revision=revision)
            print(is_character_bert(source), weights_digest(encoder.state_dict().items()))
            continue
        config = EncoderConfig(source=source, revision=revision, max_positions=64)
        encoder = build_protein_encoder(config, seed=1)
        print(vocabulary_of(config).name, weights_digest(encoder.state_dict().items()))
    except ConfigError as error:
        print("ConfigError:", error)
"""


class Hub(NamedTuple):
    """A hub on the loopback.

    Attributes:
        address: its address.
        digest_by_name: digests of the weights of tiny/esm, tiny/words, tiny/masked and
            tiny/relations.
        relations: folder of tiny/relations.
    """

    address: str
    digest_by_name: dict[str, str]
    relations: Path


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    encoder = build_protein_encoder(EncoderConfig(vocabulary="esm", **TINY), seed=0)
    folder = tmp_path_factory.mktemp("repository")
    encoder.model.save_pretrained(folder)
    # As the published ESM-2 repositories: a vocab.txt for EsmTokenizer and no tokenizer.json.
    (folder / "vocab.txt").write_text("\n".join(ESM.id_by_token))
    EsmTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    words = tiny()
    pickled = folder.parent / "pickled"
    pickled_text(pickled, "bert", in_parts=True)
    unsafe = folder.parent / "unsafe"
    pickled_text(unsafe, "bert")
    torch.save({"a": print}, unsafe / "pytorch_model.bin")
    cut = folder.parent / "cut"
    pickled_text(cut, "bert")
    (cut / CUT).touch()
    empty = folder.parent / "empty"
    pickled_text(empty, "bert")
    (empty / "pytorch_model.bin").unlink()
    moved = Path(save_tiny(folder.parent / "moved"))
    pickled_text(moved / LATER, "bert")
    gated = Path(save_tiny(folder.parent / "gated"))
    (gated / GATED).write_text(TOKEN)
    narrow = Path(save_tiny(folder.parent / "narrow"))
    settings = json.loads((narrow / "config.json").read_text()) | {"intermediate_size": 40}
    (narrow / "config.json").write_text(json.dumps(settings))
    plain = Path(save_tiny(folder.parent / "plain"))
    masked = build_text_encoder(TextEncoderConfig(source=save_tiny(folder.parent / "text")), seed=0)
    masked.add_mask_head(TextEncoderConfig(), seed=3)
    config = RelationEncoderConfig(source=save_tiny(folder.parent / "base"), projection="linear")
    relations = build_relation_encoder(config, seed=3)
    relation_settings = {"max_document_tokens": 900}
    encoder_by_id = {"esm": encoder, "words": words, "masked": masked, "relations": relations}
    repositories = {
        "tiny/masked": export_text_encoder(masked, folder.parent / "masked", card={}),
        "tiny/relations": export_relation_encoder(
            relations, folder.parent / "relations", card={}, settings=relation_settings
        ),
        "tiny/plain": plain,
        OWNERLESS: plain,
        "tiny/narrow": narrow,
        "tiny/esm": folder,
        "tiny/gated": gated,
        "tiny/pickled": pickled,
        "tiny/moved": moved,
        "tiny/unsafe": unsafe,
        "tiny/cut": cut,
        "tiny/empty": empty,
        "tiny/words": save_character_bert(words, folder.parent / "words"),
    }
    with serve_hub(repositories, {REDIRECTED: "tiny/plain"}) as address:
        yield Hub(
            address,
            {name: weights_digest(one.state_dict().items()) for name, one in encoder_by_id.items()},
            repositories["tiny/relations"],
        )


def run(orders: list[str], cache: Path, address: str | None, token: str = "") -> dict[str, str]:
    """Return what a process says of each order."""
    own = {
        "HF_HOME": str(cache),
        "RAYBIO_CACHE": str(cache / "raybio"),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_OFFLINE": "0" if address else "1",
        "HF_TOKEN": token,
    }
    if address:
        own["HF_ENDPOINT"] = address
    inherited = {
        key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")
    }
    command = [sys.executable, "-c", PROGRAM, *orders]
    done = subprocess.run(command, env=inherited | own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Retry" not in done.stderr
    answered = [order for order in orders if not order.startswith("token@")]
    return dict(zip(answered, done.stdout.splitlines(), strict=True))


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def online(hub, cache):
    """What a process says that first checks and then loads, beginning with an empty cache."""
    orders = [
        "check@tiny/esm@main",
        "check@tiny/other@main",
        "load@tiny/esm@main",
        f"load@tiny/esm@{COMMIT}",
        "load@tiny/other@main",
        "words@tiny/words@main",
        "masked@tiny/masked@main",
        "relation@tiny/relations@main",
        "frozen@tiny/relations@main",
        f"frozen@{hub.relations}@main",
        "check@tiny/pickled@main",
        "text@tiny/pickled@main",
        "text@tiny/moved@main",
        f"pinned@tiny/moved@{COMMIT}",
        "check@tiny/unsafe@main",
        "check@tiny/empty@main",
        "text@tiny/plain@main",
    ]
    for source in (OWNERLESS, REDIRECTED):
        orders += [f"fits@{source}@main", f"text@{source}@main"]
    return run(orders, cache, hub.address)


@pytest.fixture(scope="module")
def offline(cache, online):
    """What a process without a hub says, which loads from the cache."""
    orders = ["load@tiny/esm@main", "load@tiny/other@main", "words@tiny/words@main"]
    orders += ["text@tiny/pickled@main", f"pinned@tiny/moved@{COMMIT}"]
    orders += [f"text@{OWNERLESS}@main", f"text@{REDIRECTED}@main"]
    return run(orders, cache, None)


def test_an_encoder_is_loaded_by_hub_id_or_commit_and_later_from_the_cache(hub, online, offline):
    for order in ("load@tiny/esm@main", f"load@tiny/esm@{COMMIT}"):
        assert online[order] == f"esm {hub.digest_by_name['esm']}"
    for lines in (online, offline):
        assert lines["load@tiny/esm@main"] == f"esm {hub.digest_by_name['esm']}"
        assert lines["words@tiny/words@main"] == f"True {hub.digest_by_name['words']}"
        unknown = lines["load@tiny/other@main"]
        assert unknown.startswith("ConfigError: encoder.source 'tiny/other' cannot be loaded: ")
        assert "hf download tiny/other --local-dir FOLDER" in unknown
        assert "HF_HUB_OFFLINE=1" in unknown


@pytest.mark.parametrize("source", [OWNERLESS, REDIRECTED])
def test_an_id_without_an_owner_is_checked_and_loaded(online, offline, source):
    assert online[f"fits@{source}@main"].startswith("None ")
    loaded = online["text@tiny/plain@main"]
    assert loaded.startswith(f"{COMMIT} ")
    for lines in (online, offline):
        assert lines[f"text@{source}@main"] == loaded


def test_the_mask_head_of_an_export_at_the_hub_is_loaded(hub, online):
    assert online["masked@tiny/masked@main"] == f"{COMMIT} {hub.digest_by_name['masked']}"


def test_projection_and_settings_of_a_relation_encoder_at_the_hub_are_loaded(hub, online):
    assert online["relation@tiny/relations@main"] == hub.digest_by_name["relations"]
    for source in ("tiny/relations", hub.relations):
        assert online[f"frozen@{source}@main"] == "linear auto 900"


def test_pickled_weights_that_do_not_arrive_whole_are_one_message(hub, tmp_path):
    order = "check@tiny/cut@main"
    line = run([order], tmp_path, hub.address)[order]
    assert line.startswith("ConfigError: encoder.source 'tiny/cut' cannot be loaded: ")
    assert "hf download tiny/cut --local-dir FOLDER" in line


@pytest.mark.nightly
def test_a_hub_id_is_checked_without_loading_and_without_trying_again_where_there_is_no_network(
    online, tmp_path
):
    unknown = online["check@tiny/other@main"]
    assert online["check@tiny/esm@main"] == "None 0"  # no weights were fetched
    (unreachable,) = run(["check@tiny/esm@main"], tmp_path, "http://127.0.0.1:9").values()
    assert (
        "the hub could not be reached" in unreachable
        and "the hub has no config.json of it" in unknown
    )
    for source, line in {"tiny/other": unknown, "tiny/esm": unreachable}.items():
        assert line.startswith(f"ConfigError: encoder.source '{source}' cannot be loaded: ")
        assert f"hf download {source} --local-dir FOLDER" in line


@pytest.mark.nightly
def test_shapes_of_a_hub_id_are_checked_without_fetching_its_weights(hub, tmp_path):
    lines = run(["fits@tiny/plain@main", "fits@tiny/narrow@main"], tmp_path, hub.address)
    fits, refused = lines.values()
    assert fits == "None 0"
    assert refused.startswith("ConfigError: encoder.source 'tiny/narrow' cannot be loaded: ")
    assert "has shape (48,) in the file, and config.json wants (40,)" in refused


@pytest.mark.nightly
def test_a_gated_repository_is_named_as_such_and_read_with_a_token(hub, tmp_path):
    other = TOKEN.replace("x", "y")
    (refused,) = run(["check@tiny/gated@main"], tmp_path, hub.address, other).values()
    orders = [f"token@{TOKEN}@", "check@tiny/gated@main", "text@tiny/gated@main"]
    checked, loaded = run(orders, tmp_path, hub.address, other).values()
    assert refused.startswith("ConfigError: encoder.source 'tiny/gated' cannot be loaded: ")
    assert "its repository is gated. Accept its terms" in refused
    assert "HF_TOKEN" in refused
    assert other not in refused
    assert checked.startswith("None ")
    assert loaded.startswith(f"{COMMIT} ")


@pytest.mark.nightly
def test_pickled_weights_of_a_hub_id_are_converted_when_they_are_checked(cache, online, offline):
    loaded = online["text@tiny/pickled@main"]
    assert online["check@tiny/pickled@main"].startswith("None ")
    folders = {path.parent.relative_to(cache) for path in cache.rglob("raybio/**/*.safetensors")}
    assert Path(f"raybio/weights-1/hub/tiny--pickled/{COMMIT}") in folders
    assert loaded.startswith(f"{COMMIT} ")
    assert offline["text@tiny/pickled@main"] == loaded
    unsafe = online["check@tiny/unsafe@main"]
    assert "more than tensors, and reading it would run code" in unsafe
    empty = online["check@tiny/empty@main"]
    assert "it has no weights: no model.safetensors and no pytorch_model.bin" in empty


def test_a_pinned_commit_is_loaded_although_the_branch_has_moved(online, offline):
    pinned_order = f"pinned@tiny/moved@{COMMIT}"
    later, pinned = online["text@tiny/moved@main"], online[pinned_order]
    assert later.startswith(f"{LATER_COMMIT} ")
    assert pinned.startswith(f"{COMMIT} ")
    assert later.split()[1] != pinned.split()[1]
    assert offline[pinned_order] == pinned
