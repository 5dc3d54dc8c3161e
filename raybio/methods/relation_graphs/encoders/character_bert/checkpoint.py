"""CharacterBERT's folders: recognition, ``config.json``, and weights under the authors' names.

The authors' ``config.json`` is BERT's and does not mention characters, whose sizes are in their
code. Later files on the hub name these sizes. Both spellings are read, and settings that would need
another computation are refused.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import BertConfig, BertModel

from raybio.core.errors import ConfigError
from raybio.core.files import atomic_folder
from raybio.core.text import first_names
from raybio.encoders.bin_checkpoint import converted_weights
from raybio.encoders.config import SCRATCH
from raybio.encoders.sources import (
    CONFIG,
    INDEX,
    SAFETENSORS,
    fetch_file,
    find_source,
    find_weights,
    require_file,
)
from raybio.encoders.weight_shapes import weight_shapes
from raybio.methods.relation_graphs.encoders.character_bert.characters import (
    MAX_CHARACTERS,
    NUM_CHARACTERS,
)
from raybio.methods.relation_graphs.encoders.character_bert.cnn import (
    CHARACTER_WIDTH,
    FILTERS,
    NUM_HIGHWAYS,
)

MODEL_TYPE = "character_bert"


SIZES = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "type_vocab_size",
)


OPTIONS = (
    "hidden_act",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "layer_norm_eps",
    "initializer_range",
)


# Name, older name, and the authors' value.
CHARACTER_SIZES = (
    ("character_embedding_dim", "character_embeddings_dim", CHARACTER_WIDTH),
    ("character_cnn_filters", "cnn_filters", FILTERS),
    ("num_highway_layers", "num_highway_layers", NUM_HIGHWAYS),
)


# Other values of these settings would need another computation.
_FIXED = {
    "max_characters_per_token": MAX_CHARACTERS,
    "max_word_length": MAX_CHARACTERS,
    "character_vocab_size": NUM_CHARACTERS - 1,
    "cnn_activation": "relu",
    "position_embedding_type": "absolute",
    "is_decoder": False,
}


_MARK = "embeddings.word_embeddings._char_embedding_weights"


# The encoder alone; in transformers' BERT with a head; in the authors' model with the heads of
# pre-training.
_PREFIXES = ("", "bert.", "character_bert.")


_NOT_ENCODER = (
    "cls.",
    "classifier.",
    "pooler.",
    "embeddings.position_ids",
    "embeddings.token_type_ids",
)


_LAYER = re.compile(r"encoder\.layer\.(\d+)\.")


def is_character_bert(source: str, revision: str = "main") -> bool:
    """Return whether a source is a CharacterBERT, by its configuration or the names of its weights.

    Names are only checked if the weights are on this machine: in a folder, or pickled ones, which
    are converted.

    Raises:
        ConfigError: if it cannot be found or reached, its configuration cannot be read, or it has
            no weights that can be read.
    """
    path = None if source == SCRATCH else fetch_file(source, CONFIG, revision)
    if path is None:
        return False
    description = _read_description(source, path)
    names = [description.get("model_type"), *(description.get("architectures") or [])]
    if any(str(name).lower().replace("_", "").startswith("characterbert") for name in names):
        return True
    weights = find_weights(source, revision)
    is_local = weights.is_pickle or find_source(source, revision).commit is None
    if not is_local or weights.name.endswith(INDEX):
        return False
    try:
        with safe_open(_weights_path(source, revision), framework="pt") as file:
            return any(prefix + _MARK in file.keys() for prefix in _PREFIXES)  # noqa: SIM118
    except SafetensorError:
        return False


def _weights_path(source: str, revision: str) -> Path:
    """Return the local file of a source's weights; pickled ones are converted."""
    if find_weights(source, revision).is_pickle:
        return converted_weights(source, revision) / SAFETENSORS
    return require_file(source, SAFETENSORS, revision)


def read_config(source: str, revision: str) -> BertConfig:
    """Return the configuration of a folder or hub id, including the sizes of the character part.

    Raises:
        ConfigError: if it cannot be read, lacks a size, or needs an unsupported computation.
    """
    description = _read_description(source, require_file(source, CONFIG, revision))
    if absent := [name for name in SIZES if name not in description]:
        raise ConfigError(
            f"encoder.source {source!r}: its {CONFIG} has no {', '.join(absent)}; want BERT's "
            "settings"
        )
    for name, wanted in _FIXED.items():
        if description.get(name, wanted) != wanted:
            raise ConfigError(
                f"encoder.source {source!r}: its {CONFIG} says {name} {description[name]!r}; this "
                f"CharacterBERT has {wanted!r}, as the authors' published ones"
            )
    try:
        return _bert_config(description)
    except (StrictDataclassError, ValueError, TypeError) as error:
        reason = " ".join(str(error).split())[:300]
    raise ConfigError(
        f"encoder.source {source!r}: its {CONFIG} cannot be used ({reason}); correct it"
    )


def read_weights(model: BertModel, source: str, revision: str, *, num_layers: int) -> None:
    """Fill ``model`` with the weights of a folder or hub id; heads are skipped.

    Args:
        model: the model to fill; if it has fewer layers than the checkpoint, it gets the first
            ones.
        source: a folder or hub id.
        revision: of a hub id.
        num_layers: layers of the checkpoint.

    Raises:
        ConfigError: if there are no weights, the file holds more than tensors, or some weights are
            missing, unexpected or of another shape.
    """
    path = _weights_path(source, revision)
    try:
        tensors = load_file(path)
    except SafetensorError as error:
        raise ConfigError(
            f"encoder.source {source!r}: {path.name} is damaged ({error}). Fetch it again."
        ) from None
    own = _fitting(model, source, tensors, num_layers)
    model.load_state_dict({name: tensor.to(torch.float32) for name, tensor in own.items()})


def check_weights(model: BertModel, source: str, revision: str, *, num_layers: int) -> None:
    """Refuse the weights that ``read_weights`` refuses; only the headers of their files are read.

    Raises:
        ConfigError: as ``read_weights``.
    """
    shapes = weight_shapes(source, revision)
    tensors = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    _fitting(model, source, tensors, num_layers)


def _fitting(
    model: BertModel, source: str, tensors: Mapping[str, Tensor], num_layers: int
) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint that ``model`` has, by its names."""
    wanted = model.state_dict()
    cut = range(model.config.num_hidden_layers, num_layers)
    own = {
        name: tensor
        for name, tensor in _encoder_tensors(tensors).items()
        if _layer_of(name) not in cut
    }
    problems = [
        f"{len(names)} weights are {what}: {first_names(names, 8)}"
        for what, names in (
            ("missing", sorted(wanted.keys() - own.keys())),
            ("left over", sorted(own.keys() - wanted.keys())),
        )
        if names
    ] or [
        f"{name} has shape {tuple(own[name].shape)}, and its {CONFIG} wants "
        f"{tuple(wanted[name].shape)}"
        for name in wanted
        if own[name].shape != wanted[name].shape
    ]
    if problems:
        raise ConfigError(
            f"encoder.source {source!r} is not the CharacterBERT of its {CONFIG}: "
            f"{'; '.join(problems[:2])}. The checkpoint is incomplete or of another architecture."
        )
    return own


def write_checkpoint(model: BertModel, config: BertConfig, directory: Path) -> Path:
    """Write ``config.json`` and ``model.safetensors`` to a folder, atomically."""
    names = (*SIZES, *OPTIONS, *(name for name, _, _ in CHARACTER_SIZES))
    description = {
        "architectures": ["CharacterBertModel"],
        "model_type": MODEL_TYPE,
        **{name: getattr(config, name) for name in names},
        "max_characters_per_token": MAX_CHARACTERS,
        "character_vocab_size": NUM_CHARACTERS - 1,
    }
    tensors = {
        name: weight.detach().cpu().contiguous() for name, weight in model.state_dict().items()
    }
    with atomic_folder(directory) as folder:
        save_file(tensors, folder / SAFETENSORS, metadata={"format": "pt"})
        (folder / CONFIG).write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")
    return directory


def _bert_config(description: Mapping[str, Any]) -> BertConfig:
    known = {name: description[name] for name in (*SIZES, *OPTIONS) if name in description}
    characters = {
        name: description.get(name, description.get(older, default))
        for name, older, default in CHARACTER_SIZES
    }
    # BertModel makes a table of words, which is replaced later: keep it small.
    return BertConfig(**known, **characters, vocab_size=1, attn_implementation="sdpa")


def _encoder_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the encoder's own tensors, without the prefix of the model that held them."""
    prefix = next((prefix for prefix in _PREFIXES if prefix + _MARK in tensors), "")
    own = {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }
    return {name: tensor for name, tensor in own.items() if not name.startswith(_NOT_ENCODER)}


def _layer_of(name: str) -> int:
    match = _LAYER.match(name)
    return int(match[1]) if match else -1


def _read_description(source: str, path: Path) -> dict[str, Any]:
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"encoder.source {source!r}: {CONFIG} cannot be read as JSON ({error})"
        ) from None
    if not isinstance(description, dict):
        raise ConfigError(
            f"encoder.source {source!r}: {CONFIG} holds {type(description).__name__}, want settings"
        )
    return description
