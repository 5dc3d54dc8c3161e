"""Encoders that others trained: from a folder or the hub, safetensors only, and never with code of theirs."""

import logging
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForMaskedLM, AutoTokenizer, PreTrainedModel

from raybio.encoders.tokenizer import vocabulary_of_tokenizer
from raybio.encoders.vocabulary import Vocabulary
from raybio.errors import ConfigError

logger = logging.getLogger(__name__)


def load_vocabulary(source: str, revision: str) -> Vocabulary:
    """The vocabulary of a checkpoint's tokenizer.

    Raises:
        ConfigError: if the source cannot be found or reached, or its tokenizer does not read single residues.
    """
    tokenizer = _load(AutoTokenizer, source, revision)
    try:
        return vocabulary_of_tokenizer(tokenizer)
    except ValueError as error:
        raise ConfigError(
            f"encoder.source {source!r} is no protein encoder: {error}. Give one whose tokens are single residues."
        ) from None


def load_model(source: str, revision: str, *, dropout: float) -> PreTrainedModel:
    """A checkpoint's masked language model in float32, with ``dropout`` in place of its own.

    A checkpoint without language-model head gets a random one from torch's generator, with a warning in the log.

    Raises:
        ConfigError: if the source cannot be found or reached, is no BERT or ESM, or lacks weights.
    """
    model_config = _load(AutoConfig, source, revision)
    if model_config.model_type not in ("bert", "esm") or getattr(model_config, "is_folding_model", False):
        raise ConfigError(
            f"encoder.source {source!r} is of type {model_config.model_type}; want BERT or ESM (not ESMFold)"
        )
    model_config.hidden_dropout_prob = model_config.attention_probs_dropout_prob = dropout
    model, report = _load(
        AutoModelForMaskedLM,
        source,
        revision,
        config=model_config,
        use_safetensors=True,
        dtype=torch.float32,
        attn_implementation="sdpa",
        output_loading_info=True,
    )
    missing = sorted(name for name in report["missing_keys"] if "contact_head" not in name)
    in_body = [name for name in missing if name.startswith(f"{model.base_model_prefix}.")]
    if in_body:
        raise ConfigError(
            f"encoder.source {source!r}: {len(in_body)} encoder weights are not in the file, such as {in_body[0]}. "
            "The checkpoint is incomplete or of another architecture."
        )
    if missing:
        logger.warning("%s has no language-model head; it starts from random weights", source)
    return model


def _load(auto: Any, source: str, revision: str, **options: Any) -> Any:
    folder = Path(source).expanduser()
    is_folder = folder.is_dir()
    if not is_folder and (source.startswith((".", "/", "~")) or source.count("/") > 1 or "\\" in source):
        raise ConfigError(f"encoder.source {source!r}: no such folder. Give an existing one, 'scratch' or a hub id.")
    place = str(folder) if is_folder else source
    try:
        return auto.from_pretrained(place, revision=revision, trust_remote_code=False, **options)
    except (OSError, ValueError, ImportError) as error:
        reason = " ".join(str(error).split())[:300]
    if is_folder:
        advice = "The folder must be one that save_pretrained writes: config.json, model.safetensors and the tokenizer."
    else:
        advice = (
            "If it is meant to be a folder, there is none of that name here. If this machine has no network, fetch it "
            f"elsewhere with `hf download {source} --local-dir FOLDER` and set encoder.source=FOLDER, or copy a filled "
            "hub cache here and set HF_HUB_OFFLINE=1."
        )
    raise ConfigError(f"encoder.source {source!r} cannot be loaded: {reason}. {advice}")
