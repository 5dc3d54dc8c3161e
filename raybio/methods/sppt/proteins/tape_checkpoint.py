"""TAPE's published checkpoint as one of ``transformers``, made when it is first read.

TAPE (songlab-cal/tape, ``bert-base``) publishes a configuration and pickled weights with parameter
names of its own, and no tokenizer. ``encoder.source`` takes a folder or a hub id that has them as
``config.json`` and ``pytorch_model.bin``. The conversion is cached (``raybio.core.cache``).

TAPE's pooler is dropped: SPPT embeds a sequence by the raw [CLS] state. A language-model head is
kept if there is one. The published file is said to have none (songlab-cal/tape#139); then training
starts a head from random weights.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import BertConfig, BertForMaskedLM, BertModel, PreTrainedModel

from raybio.core.cache import cached_folder
from raybio.core.errors import DataError
from raybio.core.files import atomic_folder
from raybio.encoders.bin_checkpoint import cache_key, read_tensors
from raybio.encoders.config import SCRATCH
from raybio.encoders.sources import CONFIG, PICKLE, fetch_file, require_file, unloadable
from raybio.methods.sppt.proteins.tokenizer import build_tokenizer
from raybio.methods.sppt.proteins.vocabulary import TAPE

SIZES = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "type_vocab_size",
)

OPTIONS = (
    "hidden_act",
    "layer_norm_eps",
    "initializer_range",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
)

# tape/models/modeling_utils.py, MLMHead -> transformers, BertLMPredictionHead.
HEAD_NAMES = {
    "mlm.transform.dense.weight": "cls.predictions.transform.dense.weight",
    "mlm.transform.dense.bias": "cls.predictions.transform.dense.bias",
    "mlm.transform.LayerNorm.weight": "cls.predictions.transform.LayerNorm.weight",
    "mlm.transform.LayerNorm.bias": "cls.predictions.transform.LayerNorm.bias",
    "mlm.bias": "cls.predictions.bias",
}

TIED_HEAD = "mlm.decoder.weight"
WORD_EMBEDDINGS = "bert.embeddings.word_embeddings.weight"


def readable_source(source: str, revision: str) -> tuple[str, str]:
    """Return (source, revision) to read; TAPE's own layout is replaced by its conversion.

    Raises:
        ConfigError: if the source cannot be found or reached, or is TAPE's and cannot be converted.
    """
    if source == SCRATCH:
        return source, revision
    path = fetch_file(source, CONFIG, revision)
    if path is None or not _is_tape(path):
        return source, revision

    def convert(folder: Path) -> None:
        weights = require_file(source, PICKLE, revision)
        try:
            convert_tape_checkpoint(weights.parent, folder)
        except DataError as error:
            raise unloadable(source, str(error)) from None

    return str(cached_folder(f"{cache_key(source, revision)}-tape", convert)), "main"


def _is_tape(path: Path) -> bool:
    """Return whether a configuration is TAPE's: BERT's sizes, and a type that is not BERT's."""
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return (
        isinstance(description, dict)
        and description.get("model_type") in (None, "transformer")
        and description.get("vocab_size") == TAPE.size
        and all(name in description for name in SIZES)
    )


def convert_tape_checkpoint(source_dir: str | Path, out_dir: str | Path) -> Path:
    """Write a TAPE checkpoint as safetensors, with configuration and tokenizer.

    Returns:
        ``out_dir``, which appears whole or not at all.

    Raises:
        DataError: if a file is missing or damaged, or if any tensor is missing, left over or of the
            wrong shape.
    """
    source = Path(source_dir)
    description = _read_description(source / CONFIG)
    tape_tensors = read_tensors(source / PICKLE)
    has_head = any(name.startswith("mlm.") for name in tape_tensors)
    tensors = rename_tape_tensors(tape_tensors)
    config = BertConfig(**description, pad_token_id=TAPE.pad_id, attn_implementation="sdpa")
    model: PreTrainedModel = (
        BertForMaskedLM(config) if has_head else BertModel(config, add_pooling_layer=False)
    )
    if not has_head:
        tensors = {name.removeprefix("bert."): tensor for name, tensor in tensors.items()}
    _fill(model, tensors, source)
    with atomic_folder(Path(out_dir)) as folder:
        model.save_pretrained(folder)
        build_tokenizer(TAPE, max_tokens=config.max_position_embeddings).save_pretrained(folder)
    return Path(out_dir)


def rename_tape_tensors(tape_tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return TAPE's tensors under the names of ``BertForMaskedLM``.

    The pooler and the tied output embeddings are dropped.

    Raises:
        DataError: if a name is unknown, or output and input embeddings differ.
    """
    tensors: dict[str, Tensor] = {}
    unknown = []
    for name, tensor in tape_tensors.items():
        modern = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace(
            "LayerNorm.beta", "LayerNorm.bias"
        )
        if modern.startswith(("embeddings.", "encoder.", "pooler.")):
            modern = f"bert.{modern}"
        if modern.startswith("bert.pooler.") or modern == TIED_HEAD:
            continue
        if modern in HEAD_NAMES:
            tensors[HEAD_NAMES[modern]] = tensor
        elif modern.startswith(("bert.embeddings.", "bert.encoder.layer.")):
            tensors[modern] = tensor
        else:
            unknown.append(name)
    if unknown:
        raise DataError(
            f"TAPE checkpoint: {len(unknown)} tensors with unknown names, such as {unknown[0]!r}; "
            "want those of ProteinBertForMaskedLM. Fine-tuned TAPE models have heads that no "
            "encoder keeps."
        )
    tied = tape_tensors.get(TIED_HEAD)
    if tied is not None and not torch.equal(tied, tensors[WORD_EMBEDDINGS]):
        raise DataError(
            f"TAPE checkpoint: {TIED_HEAD} differs from {WORD_EMBEDDINGS}; in TAPE they are one "
            "weight"
        )
    return tensors


def _fill(model: PreTrainedModel, tensors: Mapping[str, Tensor], source: Path) -> None:
    # A state dict has a tied weight under each of its names, the parameters have it once.
    wanted = {name: tuple(weight.shape) for name, weight in model.named_parameters()}
    missing = sorted(wanted.keys() - tensors.keys())
    left_over = sorted(tensors.keys() - wanted.keys())
    if missing or left_over:
        raise DataError(
            f"{source}: config.json and pytorch_model.bin do not belong together: missing "
            f"{missing[:3] or 'nothing'} ({len(missing)}), left over {left_over[:3] or 'nothing'} "
            f"({len(left_over)})"
        )
    for name, weight in model.named_parameters():
        if tuple(tensors[name].shape) != wanted[name]:
            raise DataError(
                f"{source}: {name} has shape {tuple(tensors[name].shape)}; config.json wants "
                f"{wanted[name]}"
            )
        with torch.no_grad():
            weight.copy_(tensors[name])


def _read_description(path: Path) -> dict[str, Any]:
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(
            f"{path}: cannot be read as JSON ({error}). Give the folder of TAPE's bert-base."
        ) from None
    absent = [name for name in SIZES if name not in description]
    if absent:
        raise DataError(
            f"{path}: has no {', '.join(absent)}; want the configuration of TAPE's ProteinBert"
        )
    if description["vocab_size"] != TAPE.size:
        raise DataError(
            f"{path}: vocab_size is {description['vocab_size']}; want {TAPE.size}, TAPE's IUPAC "
            "letters. Its other vocabularies are not supported."
        )
    return {name: description[name] for name in (*SIZES, *OPTIONS) if name in description}
