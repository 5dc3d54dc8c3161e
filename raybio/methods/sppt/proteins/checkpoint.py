"""Published protein encoders, from a folder or the hub: safetensors only, no remote code."""

import logging

from transformers import (
    AutoConfig,
    AutoModelForMaskedLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
)

from raybio.core.errors import ConfigError
from raybio.encoders.checkpoints import check_complete, check_source, load_pretrained, load_weights
from raybio.encoders.config import SCRATCH
from raybio.methods.sppt.proteins.tokenizer import vocabulary_of_tokenizer
from raybio.methods.sppt.proteins.vocabulary import Vocabulary

logger = logging.getLogger(__name__)


def load_vocabulary(source: str, revision: str) -> Vocabulary:
    """Return the vocabulary of a checkpoint's tokenizer.

    Raises:
        ConfigError: if the source cannot be found or reached, or its tokenizer does not read single
            residues.
    """
    tokenizer = load_pretrained(AutoTokenizer, source, revision)
    try:
        return vocabulary_of_tokenizer(tokenizer)
    except ValueError as error:
        raise ConfigError(
            f"encoder.source {source!r} is no protein encoder: {error}. Give one whose tokens are "
            "single residues."
        ) from None


def check_protein_source(source: str, revision: str) -> None:
    """Refuse a source that does not exist or whose tokens are not single residues.

    Raises:
        ConfigError: the message names the source and what is wanted.
    """
    check_source(source, revision)
    if source != SCRATCH:
        load_vocabulary(source, revision)


def load_config(source: str, revision: str) -> PreTrainedConfig:
    """Return the settings of a checkpoint's model; no weights are read.

    Raises:
        ConfigError: if the source cannot be found or reached, or is no BERT or ESM.
    """
    model_config: PreTrainedConfig = load_pretrained(AutoConfig, source, revision)
    if model_config.model_type not in ("bert", "esm") or getattr(
        model_config, "is_folding_model", False
    ):
        raise ConfigError(
            f"encoder.source {source!r} is of type {model_config.model_type}; want BERT or ESM "
            "(not ESMFold)"
        )
    return model_config


def load_model(source: str, revision: str, *, dropout: float) -> PreTrainedModel:
    """Return a checkpoint's masked language model in float32, with ``dropout`` replacing its own.

    A checkpoint without a language-model head gets a random one from torch's generator, and the log
    warns.

    Raises:
        ConfigError: if the source cannot be found or reached, is no BERT or ESM, or lacks weights.
    """
    model_config = load_config(source, revision)
    model_config.hidden_dropout_prob = model_config.attention_probs_dropout_prob = dropout
    model, missing = load_weights(
        AutoModelForMaskedLM, source, revision, config=model_config, attn_implementation="sdpa"
    )
    missing = [name for name in missing if "contact_head" not in name]
    check_complete(
        source, [name for name in missing if name.startswith(f"{model.base_model_prefix}.")]
    )
    if missing:
        logger.warning("%s has no language-model head; it starts from random weights", source)
    return model
