"""Whatever ``build`` refuses of an encoder's source, ``check`` refuses before anything starts."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from transformers import (
    AlbertConfig,
    AlbertModel,
    AutoConfig,
    AutoModel,
    AutoTokenizer,
    XLNetConfig,
    XLNetModel,
)

from raybio.encoders.sentence_folder import write_sentence_files
from tests.encoders.hub import run_with_hub
from tests.encoders.tiny_text import MAX_POSITIONS, save_tiny, save_with_head, tiny_tokenizer
from tests.methods.conformance_cases import CASES, tiny_config
from tests.methods.published_encoders import PUBLISHED
from tests.methods.sppt.proteins.published_proteins import LAYOUTS

PROGRAM = """
import json, sys
from raybio.core.errors import ConfigError
from raybio.methods import METHODS
from raybio.store.store import open_store

def refusal(call, *arguments):
    try:
        call(*arguments)
    except ConfigError as error:
        return str(error)

for name, (method, settings, store) in json.load(sys.stdin).items():
    entry = METHODS[method]
    config = entry.config.from_mapping(settings)
    checked = refusal(entry.check, config, open_store(store, entry.store))
    print(json.dumps([name, checked, refusal(entry.build, config, store)]))
"""


class Spoiled(NamedTuple):
    """A source that a method cannot train.

    Attributes:
        method: the method.
        write: writes the source to a folder.
        changes: settings of the method.
        reason: words of the refusal.
    """

    method: str
    write: Callable[[Path], object]
    changes: dict[str, object]
    reason: str


def _bert(folder: Path) -> None:
    save_with_head(folder, "bert")


def _long_bert(folder: Path) -> None:
    """With positions for the sentences of the tiny store."""
    save_tiny(folder)
    config = AutoConfig.from_pretrained(folder, max_position_embeddings=128)
    AutoModel.from_config(config).save_pretrained(folder)


def _mpnet(folder: Path) -> None:
    save_tiny(folder, "mpnet")


def _electra(folder: Path) -> None:
    save_tiny(folder, "electra")


def _larger_tokenizer(folder: Path) -> None:
    _bert(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["gene7"])
    tokenizer.save_pretrained(folder)


def _without(token: str) -> Callable[[Path], object]:
    def write(folder: Path) -> None:
        _bert(folder)
        path = folder / "tokenizer_config.json"
        settings = json.loads(path.read_text())
        del settings[token]
        path.write_text(json.dumps(settings))

    return write


def _other_padding(folder: Path) -> None:
    save_tiny(folder, "roberta")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.pad_token = "[SEP]"
    tokenizer.save_pretrained(folder)


def _endless(folder: Path) -> None:
    tokenizer = tiny_tokenizer(max_tokens=int(1e30))
    sizes = {"d_model": 32, "n_layer": 1, "n_head": 4, "d_inner": 48}
    XLNetModel(XLNetConfig(vocab_size=len(tokenizer), **sizes)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _albert(folder: Path) -> None:
    """Two layers that share their weights."""
    tokenizer = tiny_tokenizer()
    config = AlbertConfig(
        vocab_size=len(tokenizer),
        embedding_size=16,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=MAX_POSITIONS,
        pad_token_id=tokenizer.pad_token_id,
    )
    AlbertModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _larger_vocabulary(folder: Path) -> None:
    LAYOUTS["protbert"](folder)
    with (folder / "vocab.txt").open("a") as file:
        file.write("\n<extra>")


def _mean_of_all_tokens(folder: Path) -> None:
    LAYOUTS["esm2"](folder)
    write_sentence_files(folder, width=32, pooling="mean", max_tokens=40)


WORDS = {"encoder.num_frozen_layers": 0}
CHARACTERS = PUBLISHED["character_bert"].write
NO_MASK = _without("mask_token")

SPOILED = {
    "tokenizer": Spoiled("biostransformers", _larger_tokenizer, {}, "and its model only"),
    "padding": Spoiled("biostransformers", _without("pad_token"), {}, "no padding token"),
    "other_padding": Spoiled("sppt_mag", _other_padding, {}, "do not belong together"),
    "endless": Spoiled("biostransformers", _endless, {"encoder.max_length": "auto"}, "a length"),
    "recomputed": Spoiled(
        "biostransformers", _mpnet, {"encoder.recompute_activations": True}, "MPNetModel cannot do"
    ),
    "no_mask_cloze": Spoiled("contrastive_probe", NO_MASK, {}, "no mask token"),
    "no_mask_mag": Spoiled("sppt_mag", NO_MASK, {}, "no mask token"),
    "no_mask_synthetic": Spoiled("sppt_synthetic", NO_MASK, {}, "no mask token"),
    "no_mask_mtb": Spoiled("mtb_pretrain", NO_MASK, {}, "no mask token"),
    "no_mask_mccl": Spoiled("relation_finetune", NO_MASK, {}, "no mask token"),
    "head_mag": Spoiled("sppt_mag", _electra, {"objective.lambda_spml": 0.5}, "have 16 numbers"),
    "head_mtb": Spoiled("mtb_pretrain", _electra, {}, "have 16 numbers"),
    "frozen": Spoiled("relation_graphs", _bert, {"encoder.num_frozen_layers": 2}, "has 2 layers"),
    "kept": Spoiled(
        "relation_graphs",
        _bert,
        {"encoder.num_frozen_layers": 1, "encoder.num_layers_kept": 1},
        "has 1 layers",
    ),
    "shared": Spoiled(
        "relation_graphs", _albert, {"encoder.num_frozen_layers": 1}, "layers cannot be found"
    ),
    "sentences": Spoiled(
        "relation_graphs", _bert, WORDS | {"encoder.max_length": 5}, "more than the 5 tokens"
    ),
    "frozen_characters": Spoiled(
        "relation_graphs", CHARACTERS, {"encoder.num_frozen_layers": 3}, "has 3 layers"
    ),
    "attention_dropout": Spoiled(
        "relation_graphs", CHARACTERS, WORDS | {"encoder.attention_dropout": 0.0}, "one dropout"
    ),
    "adapters": Spoiled(
        "relation_graphs",
        CHARACTERS,
        WORDS | {"encoder.lora.rank": 2, "encoder.lora.targets": ["q_proj"]},
        "encoder.lora",
    ),
    "modules": Spoiled(
        "sppt_protein", _mean_of_all_tokens, {"encoder.pooling": "auto"}, "mean over all tokens"
    ),
    "modules_task": Spoiled(
        "finetune", _mean_of_all_tokens, {"encoder.pooling": "auto"}, "mean over all tokens"
    ),
    "vocabulary": Spoiled("sppt_protein", _larger_vocabulary, {}, "and its model only"),
}

SOUND = {
    "bert": ("biostransformers", _bert, {"encoder.recompute_activations": True}),
    "cloze": ("contrastive_probe", _bert, {}),
    "mag": ("sppt_mag", _bert, {"objective.lambda_spml": 0.5}),
    "mtb": ("mtb_pretrain", _bert, {}),
    "mccl": ("relation_finetune", _bert, {}),
    "words": (
        "relation_graphs",
        _long_bert,
        {"encoder.num_frozen_layers": 1, "encoder.max_length": 128},
    ),
    "characters": ("relation_graphs", CHARACTERS, {"encoder.num_frozen_layers": 2}),
    "protein": ("sppt_protein", LAYOUTS["esm2"], {}),
    "task": ("finetune", LAYOUTS["esm2"], {}),
}

PLACES = ("folder", "hub")


@pytest.fixture(scope="module")
def refusals(request, tmp_path_factory) -> dict[str, list[str | None]]:
    """What ``check`` and ``build`` say of each source, in a folder and at the hub."""
    folder = tmp_path_factory.mktemp("sources")
    repositories = {}
    cases = {}
    for name, (method, write, changes, *_) in (SPOILED | SOUND).items():
        write(folder / name)
        repositories[f"tiny/{name}"] = folder / name
        store = request.getfixturevalue(CASES[method].store)
        for place, source in zip(PLACES, (str(folder / name), f"tiny/{name}"), strict=True):
            config = tiny_config(method, **changes, **{"encoder.source": source})
            cases[f"{place} {name}"] = (method, config.to_mapping(), str(store.path))
    shown = run_with_hub(PROGRAM, json.dumps(cases), repositories, folder)
    return {name: refused for name, *refused in map(json.loads, shown.splitlines())}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", SPOILED)
def test_what_workers_would_refuse_is_refused_before_they_start(refusals, name, place):
    checked, built = refusals[f"{place} {name}"]
    assert built is not None and SPOILED[name].reason in built
    assert checked == built


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", SOUND)
def test_what_workers_read_is_not_refused(refusals, name, place):
    assert refusals[f"{place} {name}"] == [None, None]
