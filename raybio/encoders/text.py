"""Text encoders: any transformer of words, from scratch, from a folder or from the hub, pooled to one embedding.

Shape letters: R texts, L padded length, D width.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoModel, BertConfig, BertModel, PreTrainedModel, PreTrainedTokenizerFast

from raybio.core.batch import PaddedTokens
from raybio.core.errors import ConfigError, DataError
from raybio.core.interfaces import Encoded, Encoder
from raybio.encoders.checkpoints import check_source
from raybio.encoders.config import MAX_LENGTH, SCRATCH, Pooling, TextEncoderConfig
from raybio.encoders.mlm_head import MaskHead, build_mask_head, read_mask_head
from raybio.encoders.sentence_folder import read_sentence_folder
from raybio.encoders.text_checkpoint import TextCheckpoint, position_table, read_checkpoint
from raybio.encoders.transformer import (
    fit_model,
    last_hidden_states,
    mean_over,
    resolve_pooling,
    seeded_weights,
)
from raybio.encoders.word_tokenizer import build_character_tokenizer, build_word_tokenizer
from raybio.ops.similarity import at_least_fp32, normalise

MASK_HEAD_FILE = "mask_head.safetensors"
"""Of an export: the head of masked language modelling, for those who train on."""


class TextEncoder(Encoder):
    """A transformer that embeds whole texts; an ``raybio.core.interfaces.Encoder``.

    An embedding does not depend on the other texts of a batch, nor on how far it is padded (on the
    right).

    Attributes:
        model: the ``transformers`` model.
        tokenizer: how texts become its token ids.
        width: D, numbers in an embedding.
        pad_id: token id of padding.
        max_tokens: longest text it can read, special tokens included; longer ones are to be cut to
            it.
        pooling: "mean" or "cls".
        is_normalised: whether embeddings have length 1.
        log_temperature: natural logarithm of a learned temperature, or None; see
            ``learn_temperature``.
        mask_head: head of masked language modelling, or None; see ``add_mask_head``.
    """

    log_temperature: nn.Parameter | None
    mask_head: MaskHead | None

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        *,
        max_tokens: int,
        pooling: Pooling = "mean",
        is_normalised: bool = False,
    ):
        """Wrap any ``transformers`` model that gives last hidden states."""
        super().__init__()
        self.model = model
        self.tokenizer = tokenizer
        self.width: int = model.config.hidden_size
        self.pad_id: int = tokenizer.pad_token_id
        self.max_tokens = max_tokens
        self.pooling = pooling
        self.is_normalised = is_normalised
        self.register_parameter("log_temperature", None)
        self.mask_head = None
        for name, parameter in model.named_parameters():
            if "pooler" in name.split("."):
                # It takes no part in an embedding; frozen, no optimiser or gradient sum waits for
                # it.
                parameter.requires_grad_(False)

    def forward(self, tokens: PaddedTokens) -> Encoded:
        """Last hidden states (R, L, D) and embeddings (R, D), these in float32 or wider.

        Raises:
            DataError: if a text is longer than ``max_tokens``.
        """
        if tokens.mask_RL.shape[1] > self.max_tokens:
            self.check_length(int(tokens.mask_RL.sum(1).max()))
        hidden_RLD = last_hidden_states(self.model, tokens, self.max_tokens)
        if self.pooling == "cls":
            embedding_RD = at_least_fp32(hidden_RLD[:, 0])
        else:
            embedding_RD = mean_over(hidden_RLD, tokens.mask_RL)
        return Encoded(hidden_RLD, normalise(embedding_RD) if self.is_normalised else embedding_RD)

    def token_logits(self, hidden_KD: Tensor) -> Tensor:
        """Scores (K, V) of the vocabulary.

        Raises:
            NotImplementedError: before ``add_mask_head``.
        """
        if self.mask_head is None:
            raise NotImplementedError(
                "this text encoder has no language-model head; call add_mask_head first"
            )
        return self.mask_head(hidden_KD, self.model.get_input_embeddings().weight)

    def add_mask_head(self, config: TextEncoderConfig, *, seed: int) -> None:
        """Add a head of masked language modelling whose last map is the word embeddings' own.

        Its weights are those of the source, be it a language model or an export with its head
        beside it; where that has none, or layers were left out between the two, they are drawn from
        ``seed``.

        Raises:
            ConfigError: if the tokenizer has no mask token, or the model cannot have such a head.
        """
        if self.tokenizer.mask_token_id is None:
            raise ConfigError(
                f"encoder.source {config.source!r}: its tokenizer has no mask token; want one that "
                "has"
            )

        def weights() -> dict[str, Tensor] | None:
            path = Path(config.source).expanduser() / MASK_HEAD_FILE
            return (
                load_file(path)
                if path.is_file()
                else read_mask_head(config.source, config.revision)
            )

        is_whole = config.num_layers_kept is None
        self.mask_head = build_mask_head(
            self.model,
            seed=seed,
            weights=weights if is_whole else lambda: None,
            source=config.source,
        )

    def learn_temperature(self, initial: float) -> None:
        """Make the temperature of a contrastive loss a parameter; it is in checkpoints and not in exports.

        Raises:
            ValueError: if ``initial`` is not above 0.
        """
        if not initial > 0:
            raise ValueError(f"the initial temperature is {initial}, want a number > 0")
        device = next(self.model.parameters()).device
        self.log_temperature = nn.Parameter(torch.tensor(float(initial), device=device).log())

    def check_length(self, num_tokens: int) -> None:
        """Refuse texts of ``num_tokens`` tokens that have no positions; call it before training with the longest.

        Raises:
            DataError: if ``num_tokens`` is more than ``max_tokens``.
        """
        if num_tokens > self.max_tokens:
            raise DataError(
                f"a text has {num_tokens} tokens, special ones included; this encoder reads "
                f"{self.max_tokens}. Cut texts to {self.max_tokens} tokens when they are "
                "tokenised, or raise encoder.max_length."
            )


def check_text_encoder(config: TextEncoderConfig) -> None:
    """Refuse a checkpoint that is not there or does not fit the settings; no weights are read.

    Raises:
        ConfigError: if it cannot be found or reached, is no text encoder, has fewer layers than
            ``num_layers_kept``, or no dropout that could be set.
    """
    check_source(config.source, config.revision)
    if config.source != SCRATCH:
        _checkpoint(config).load_config(
            config.num_layers_kept,
            dropout=config.dropout,
            attention_dropout=config.attention_dropout,
        )


def build_text_encoder(
    config: TextEncoderConfig, *, seed: int, count_by_word: Mapping[str, int] | None = None
) -> TextEncoder:
    """The encoder that ``config`` describes, on the CPU in float32, in training mode.

    Random weights depend on ``seed`` alone, and torch's global generators are left as they were.

    Args:
        config: the settings.
        seed: of random weights.
        count_by_word: how often the corpus has its words; scratch makes its tokenizer of them, a
            checkpoint brings its own.

    Raises:
        ConfigError: if the source cannot be found or reached, or is no usable text encoder.
    """
    with seeded_weights(seed):
        if config.source == SCRATCH:
            if count_by_word is None:
                raise ConfigError(
                    "encoder.source 'scratch' has no vocabulary of its own; want the words of a "
                    "corpus"
                )
            checkpoint = None
            tokenizer = _fresh_tokenizer(config, count_by_word)
            model = _fresh_model(config, tokenizer)
        else:
            checkpoint = _checkpoint(config)
            tokenizer = checkpoint.load_tokenizer()
            model = checkpoint.load_model(
                dropout=config.dropout,
                attention_dropout=config.attention_dropout,
                num_layers=config.num_layers_kept,
            )
    fit_model(model, config, len(tokenizer))
    _check_padding(config, model, tokenizer)
    head = checkpoint.head if checkpoint else None
    encoder = TextEncoder(
        model,
        tokenizer,
        max_tokens=_max_tokens(config, model, tokenizer, checkpoint),
        pooling=resolve_pooling(
            config.pooling,
            source=config.source,
            stated=_stated_pooling(config, checkpoint),
            default=config.default_pooling,
        ),
        is_normalised=config.normalise
        if config.normalise != "auto"
        else bool(head and head.is_normalised),
    )
    return encoder.train()


def _checkpoint(config: TextEncoderConfig) -> TextCheckpoint:
    with_head = "auto" in (config.pooling, config.normalise)
    return read_checkpoint(config.source, config.revision, with_head=with_head)


def _stated_pooling(config: TextEncoderConfig, checkpoint: TextCheckpoint | None) -> Pooling | None:
    """Return the pooling that a sentence-transformers folder states; None for other sources."""
    if checkpoint is None or checkpoint.head is None:
        return None
    if config.pooling == "auto":
        return checkpoint.head.pooling
    try:
        folder = read_sentence_folder(config.source, config.revision)
    except ConfigError:
        # Modules that cannot be honoured: the setting is there to take the transformer without
        # them.
        return None
    return folder.pooling if folder else None


class TextReader(NamedTuple):
    """How an encoder reads texts.

    Attributes:
        tokenizer: how texts become its token ids.
        max_tokens: longest text it reads, special tokens included: ``max_length`` or fewer.
        num_positions: most tokens that it has positions for, whatever ``max_length`` says.
    """

    tokenizer: PreTrainedTokenizerFast
    max_tokens: int
    num_positions: int


def text_reader(config: TextEncoderConfig, *, count_by_word: Mapping[str, int]) -> TextReader:
    """Return how the encoder of ``config`` reads texts; no weights are loaded.

    Raises:
        ConfigError: if the source cannot be found or reached, or is no usable text encoder.
    """
    if config.source == SCRATCH:
        tokenizer = _fresh_tokenizer(config, count_by_word)
        max_tokens = _wanted_length(config, tokenizer)
        return TextReader(tokenizer, max_tokens, max_tokens)
    checkpoint = _checkpoint(config)
    tokenizer = checkpoint.load_tokenizer()
    with torch.device("meta"):  # its shapes alone: positions are counted from the table that it has
        model = AutoModel.from_config(checkpoint.load_config())
    max_tokens = _max_tokens(config, model, tokenizer, checkpoint)
    return TextReader(tokenizer, max_tokens, min([*_positions(model), MAX_LENGTH]))


def _fresh_tokenizer(
    config: TextEncoderConfig, count_by_word: Mapping[str, int]
) -> PreTrainedTokenizerFast:
    if config.vocabulary == "characters":
        return build_character_tokenizer(count_by_word)
    return build_word_tokenizer(count_by_word, size=config.vocabulary_size)


def _fresh_model(config: TextEncoderConfig, tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    dropout = 0.1 if config.dropout is None else config.dropout
    sizes = BertConfig(
        **config.scratch_sizes(dropout=dropout, attention_dropout=config.attention_dropout),
        vocab_size=len(tokenizer),
        max_position_embeddings=_wanted_length(config, tokenizer),
        pad_token_id=tokenizer.pad_token_id,
    )
    return BertModel(sizes, add_pooling_layer=False)


def _check_padding(
    config: TextEncoderConfig, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
) -> None:
    """Refuse a tokenizer and a model that pad in different ways."""
    if tokenizer.pad_token_id is None:
        raise ConfigError(
            f"encoder.source {config.source!r}: its tokenizer has no padding token; want one that "
            "has"
        )
    table = position_table(model)
    if table is not None and table.padding_idx not in (None, tokenizer.pad_token_id):
        # RoBERTa and its kin number the positions of all tokens but this one.
        raise ConfigError(
            f"encoder.source {config.source!r}: its tokenizer pads with id "
            f"{tokenizer.pad_token_id} and its model takes {table.padding_idx} for padding. They "
            "do not belong together; save both again from where they came."
        )


def _max_tokens(
    config: TextEncoderConfig,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    checkpoint: TextCheckpoint | None,
) -> int:
    limits = [_wanted_length(config, tokenizer, checkpoint), *_positions(model)]
    # A tokenizer without a limit gives 1e30.
    if min(limits) > MAX_LENGTH:
        raise ConfigError(
            f"encoder.max_length is auto, and neither encoder.source {config.source!r} nor its "
            "tokenizer states a length. Set encoder.max_length to a number of tokens"
        )
    return min(limits)


def _positions(model: PreTrainedModel) -> list[int]:
    """What limits the tokens that a model has positions for; nothing if nothing is known to."""
    stated = getattr(model.config, "max_position_embeddings", None) or 0
    limits = [stated] if stated > 0 else []
    table = position_table(model)
    if table is not None:
        limits.append(
            table.num_embeddings - (0 if table.padding_idx is None else table.padding_idx + 1)
        )
    return limits


def _wanted_length(
    config: TextEncoderConfig,
    tokenizer: PreTrainedTokenizerFast,
    checkpoint: TextCheckpoint | None = None,
) -> int:
    if config.max_length != "auto":
        return config.max_length
    head = checkpoint.head if checkpoint else None
    return (head and head.max_tokens) or tokenizer.model_max_length
