"""Published protein encoders, from a folder or the hub, without remote code.

BERT (TAPE, ProtBert), ESM-1b, ESM-2 and ESM C are masked language models. Of a T5 (ProtT5, Ankh)
the encoder is read: it has no head that predicts residues.
"""

import logging

from transformers import (
    AutoConfig,
    AutoModelForMaskedLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    T5EncoderModel,
)

from raybio.core.errors import ConfigError
from raybio.encoders.checkpoints import (
    WeightsReader,
    check_complete,
    check_source,
    check_weights,
    load_pretrained,
    load_weights,
)
from raybio.methods.sppt.proteins.tape_checkpoint import readable_source
from raybio.methods.sppt.proteins.tokenizer import vocabulary_of_tokenizer
from raybio.methods.sppt.proteins.vocabulary import Vocabulary

logger = logging.getLogger(__name__)

_HIDDEN_AND_ATTENTION = ("hidden_dropout_prob", "attention_probs_dropout_prob")

DROPOUTS = {
    "bert": _HIDDEN_AND_ATTENTION,
    "esm": _HIDDEN_AND_ATTENTION,
    "esmc": ("attention_dropout",),
    "t5": ("dropout_rate",),
}
"""Type of a model -> the settings that ``encoder.dropout`` replaces."""


def load_vocabulary(source: str, revision: str) -> Vocabulary:
    """Return the vocabulary of a checkpoint's tokenizer.

    Raises:
        ConfigError: if the source cannot be found or reached, or its tokenizer does not read single
            residues.
    """
    tokenizer = load_pretrained(AutoTokenizer, *readable_source(source, revision))
    try:
        return vocabulary_of_tokenizer(tokenizer)
    except ValueError as error:
        raise ConfigError(
            f"encoder.source {source!r} is no protein encoder: {error}. Give one whose tokens are "
            "single residues."
        ) from None


def check_model(source: str, revision: str) -> PreTrainedModel:
    """Return the same as ``load_model``, but with zeros for weights; read only their headers.

    Raises:
        ConfigError: as ``load_model``.
    """
    check_source(*readable_source(source, revision))
    model, _ = _read(check_weights, source, revision, load_config(source, revision))
    return model


def load_config(source: str, revision: str) -> PreTrainedConfig:
    """Return the settings of a checkpoint's model; no weights are read.

    Raises:
        ConfigError: if the source cannot be found or reached, or is of another architecture.
    """
    location, at = readable_source(source, revision)
    model_config: PreTrainedConfig = load_pretrained(AutoConfig, location, at)
    if model_config.model_type not in DROPOUTS or getattr(model_config, "is_folding_model", False):
        raise ConfigError(
            f"encoder.source {source!r} is of type {model_config.model_type}; want BERT, ESM (not "
            "ESMFold), ESM C or T5"
        )
    return model_config


def load_model(source: str, revision: str, *, dropout: float | None) -> PreTrainedModel:
    """Return a checkpoint's masked language model in float32; of a T5, its encoder.

    A checkpoint without a language-model head gets a random one from torch's generator, and the log
    warns.

    Args:
        source: a folder or hub id.
        revision: of a hub id.
        dropout: of states and attention; None: the checkpoint's own.

    Raises:
        ConfigError: if the source cannot be found or reached, is of another architecture, or lacks
            weights.
    """
    model_config = load_config(source, revision)
    if dropout is not None:
        for name in DROPOUTS[model_config.model_type]:
            setattr(model_config, name, dropout)
    model, missing = _read(load_weights, source, revision, model_config)
    if missing:
        logger.warning("%s has no language-model head; it starts from random weights", source)
    return model


def _read(
    read: WeightsReader, source: str, revision: str, model_config: PreTrainedConfig
) -> tuple[PreTrainedModel, list[str]]:
    """Return the model, and the names of missing weights of its language-model head."""
    location, at = readable_source(source, revision)
    if model_config.model_type == "t5":
        model, missing = read(T5EncoderModel, location, at, config=model_config)
        check_complete(source, missing)
        return model, []
    model, missing = read(
        AutoModelForMaskedLM, location, at, config=model_config, attn_implementation="sdpa"
    )
    missing = [name for name in missing if "contact_head" not in name]
    missing_of_encoder = [
        name for name in missing if name.startswith(f"{model.base_model_prefix}.")
    ]
    check_complete(source, missing_of_encoder)
    return model, missing
