"""Protein encoders: a BERT, ESM, ESM C or T5 transformer over residues.

Shape letters: R sequences, L padded length, D width, K selected tokens, V token ids.
"""

import torch
from torch import Tensor
from transformers import (
    BertConfig,
    BertForMaskedLM,
    EsmConfig,
    EsmForMaskedLM,
    PreTrainedConfig,
    PreTrainedModel,
    T5EncoderModel,
)

from raybio.core.batch import PackedTokens, Tokens
from raybio.core.errors import ConfigError, DataError
from raybio.core.interfaces import Encoded, Encoder
from raybio.encoders.config import SCRATCH, Pooling
from raybio.encoders.lora import add_adapters, check_adapters, check_lora
from raybio.encoders.packed import (
    first_states,
    packed_mean,
    packed_states,
    set_attention,
    why_padded,
)
from raybio.encoders.transformer import (
    fit_model,
    last_hidden_states,
    mean_over,
    resolve_pooling,
    seeded_weights,
)
from raybio.methods.sppt.proteins.checkpoint import (
    check_model,
    load_config,
    load_model,
    load_vocabulary,
)
from raybio.methods.sppt.proteins.config import EncoderConfig
from raybio.methods.sppt.proteins.saved_settings import read_protein_settings
from raybio.methods.sppt.proteins.vocabulary import VOCABULARIES, Vocabulary
from raybio.ops.similarity import at_least_fp32


class ProteinEncoder(Encoder):
    """A masked language model that also embeds whole sequences.

    An embedding depends neither on the other sequences of a batch nor on padding. This holds for
    ESM's ``token_dropout`` too, which rescales a sequence by its fraction of masked tokens: the
    attention mask is always passed, so it counts within the sequence. A checkpoint keeps its
    setting; from scratch it is on, as in ESM-2.

    Attributes:
        model: the ``transformers`` model with its language-model head; the encoder alone of a T5.
        vocabulary: token ids of residues.
        width: size D of an embedding.
        pad_id: token id of padding.
        max_tokens: longest sequence that it reads, special tokens included.
        pooling: "cls" or "mean".
    """

    def __init__(
        self,
        model: PreTrainedModel,
        vocabulary: Vocabulary,
        *,
        max_tokens: int,
        pooling: Pooling = "cls",
    ):
        """Wrap a masked language model, or a ``T5EncoderModel``."""
        super().__init__()
        set_attention(model)
        self.model = model
        self.vocabulary = vocabulary
        self.width: int = model.config.hidden_size
        self.pad_id = vocabulary.pad_id
        self.max_tokens = max_tokens
        self.pooling = pooling
        if model.config.model_type == "esm":
            # The contact head is not trained: freeze it, to keep it out of the optimizer and
            # gradient sums.
            model.esm.contact_head.requires_grad_(False)

    def why_padded(self) -> str:
        """Return why the encoder reads padded tokens only; empty if it reads packed ones, too."""
        return why_padded(self.model.base_model)

    def why_eager(self) -> str:
        """Return why the encoder cannot be compiled; empty if it can."""
        return why_padded(self.model.base_model)

    def forward(self, tokens: Tokens) -> Encoded:
        """Return last hidden states (R, L, D) or (T, D), and embeddings (R, D), float32 or wider.

        Raises:
            DataError: if a sequence is longer than ``max_tokens``.
        """
        if isinstance(tokens, PackedTokens):
            return self._read_packed(tokens)
        token_RL = tokens.token_RL
        mask_RL = tokens.mask_RL
        if token_RL.shape[1] > self.max_tokens:
            self.check_length(int(mask_RL.sum(1).max()))
        hidden_RLD = last_hidden_states(self.model.base_model, tokens, self.max_tokens)
        return Encoded(hidden_RLD, self._pool(hidden_RLD, token_RL, mask_RL))

    def token_logits(self, hidden_KD: Tensor) -> Tensor:
        """Return scores (K, V) of the vocabulary for K hidden states.

        Raises:
            NotImplementedError: if the encoder is a T5's, which has no language-model head.
        """
        if isinstance(self.model, T5EncoderModel):
            raise NotImplementedError(
                "the encoder of a T5 has no language-model head; want an objective whose "
                "uses_rows is False"
            )
        is_bert = self.model.config.model_type == "bert"
        return self.model.cls(hidden_KD) if is_bert else self.model.lm_head(hidden_KD)

    def check_length(self, num_tokens: int) -> None:
        """Refuse sequences of ``num_tokens`` tokens if the encoder has fewer positions.

        Raises:
            DataError: if ``num_tokens`` is more than ``max_tokens``.
        """
        if num_tokens > self.max_tokens:
            residues = self.max_tokens - self.vocabulary.num_special_per_sequence
            raise DataError(
                f"a sequence has {num_tokens} tokens, special ones included; this encoder has "
                f"{self.max_tokens} positions. Crop sequences to {residues} residues, or train an "
                "encoder with a larger max_positions."
            )

    def _pool(self, hidden_RLD: Tensor, token_RL: Tensor, mask_RL: Tensor) -> Tensor:
        if self.pooling == "cls":
            return at_least_fp32(hidden_RLD[:, 0])
        return mean_over(hidden_RLD, mask_RL & self.is_residue(token_RL))

    def _read_packed(self, tokens: PackedTokens) -> Encoded:
        self.check_length(tokens.longest)
        hidden_TD = packed_states(self.model.base_model, tokens)
        if self.pooling == "cls":
            return Encoded(hidden_TD, at_least_fp32(first_states(hidden_TD, tokens)))
        return Encoded(hidden_TD, packed_mean(hidden_TD, tokens, self.is_residue(tokens.token_T)))

    def is_residue(self, token: Tensor) -> Tensor:
        """Return which tokens are neither the first nor the last special token, bool."""
        is_residue = torch.ones_like(token, dtype=torch.bool)
        for special_id in (self.vocabulary.cls_id, self.vocabulary.eos_id):
            if special_id is not None:
                is_residue = is_residue & (token != special_id)
        return is_residue


def build_protein_encoder(config: EncoderConfig, *, seed: int) -> ProteinEncoder:
    """Return the encoder of ``config``, on the CPU in float32, in training mode.

    Random weights depend on ``seed`` only. Torch's global generators keep their states.

    Raises:
        ConfigError: if the source cannot be found or reached, is no usable protein encoder, or
            cannot have the adapters of ``lora``.
    """
    with seeded_weights(seed):
        if config.source == SCRATCH:
            model = _fresh_model(config)
        else:
            model = load_model(config.source, config.revision, dropout=config.dropout)
    encoder = _wrap(config, model)
    add_adapters(model, config, seed=seed)
    return encoder.train()


def _wrap(config: EncoderConfig, model: PreTrainedModel) -> ProteinEncoder:
    """Return the encoder of a model, if model, tokenizer and ``config`` fit together."""
    vocabulary = vocabulary_of(config)
    fit_model(model, config, vocabulary.size)
    if config.pooling == "cls" and vocabulary.cls_id is None:
        raise ConfigError(
            f"encoder.pooling is cls, and encoder.source {config.source!r} puts no token before a "
            "sequence, as all T5; want mean"
        )
    stated = None if config.source == SCRATCH else _stated_pooling(config)
    pooling = resolve_pooling(
        config.pooling,
        source=config.source,
        stated=stated,
        default="mean" if vocabulary.cls_id is None else "cls",
    )
    return ProteinEncoder(
        model, vocabulary, max_tokens=_max_tokens(model.config, config), pooling=pooling
    )


def check_protein_encoder(config: EncoderConfig) -> None:
    """Refuse what ``build_protein_encoder`` would refuse; only the headers of weights are read.

    Raises:
        ConfigError: as ``build_protein_encoder``.
    """
    check_lora(config)
    if config.source == SCRATCH:
        return
    model = check_model(config.source, config.revision)
    _wrap(config, model)
    check_adapters(model, config)


def _stated_pooling(config: EncoderConfig) -> Pooling | None:
    """Return the pooling that the source's folder states, None if it states none."""
    try:
        settings = read_protein_settings(config.source, config.revision)
    except ConfigError:
        if config.pooling == "auto":
            raise
        # Its modules are not supported; the setting exists to take the transformer without them.
        return None
    return settings.pooling if settings else None


def vocabulary_of(config: EncoderConfig) -> Vocabulary:
    """Return the vocabulary of the encoder of ``config``; no weights are loaded.

    Raises:
        ConfigError: if the source cannot be found or reached, or its tokenizer does not read single
            residues.
    """
    if config.source == SCRATCH:
        return VOCABULARIES[config.vocabulary]
    return load_vocabulary(config.source, config.revision)


def max_tokens_of(config: EncoderConfig) -> int:
    """Return the maximum tokens that the encoder of ``config`` reads; no weights are loaded.

    Raises:
        ConfigError: if the source cannot be found or reached, or is of another architecture.
    """
    if config.source == SCRATCH:
        return config.max_positions
    return _max_tokens(load_config(config.source, config.revision), config)


def _fresh_model(config: EncoderConfig) -> PreTrainedModel:
    vocabulary = VOCABULARIES[config.vocabulary]
    sizes = config.scratch_sizes(dropout=config.dropout or 0.0) | {
        "vocab_size": vocabulary.size,
        "max_position_embeddings": config.max_positions,
        "pad_token_id": vocabulary.pad_id,
    }
    if config.vocabulary == "tape":
        return BertForMaskedLM(BertConfig(**sizes, type_vocab_size=1))
    # The values of facebook/esm2_*.
    esm2 = {
        "position_embedding_type": "rotary",
        "token_dropout": True,
        "emb_layer_norm_before": False,
    }
    return EsmForMaskedLM(
        EsmConfig(**sizes, **esm2, mask_token_id=vocabulary.mask_id, layer_norm_eps=1e-5)
    )


def _max_tokens(model_config: PreTrainedConfig, config: EncoderConfig) -> int:
    if model_config.model_type == "bert":
        return model_config.max_position_embeddings
    if model_config.model_type in ("esmc", "t5"):  # rotary and relative positions
        return config.max_positions
    if model_config.position_embedding_type == "rotary":
        return config.max_positions
    # ESM-1b counts positions from pad_id + 1, as fairseq does.
    return model_config.max_position_embeddings - model_config.pad_token_id - 1
