"""Text encoders: a transformer from scratch, a folder or the hub, pooled to one embedding a text.

Shape letters: R texts, L padded length, D width, K tokens, V vocabulary.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoModel, BertConfig, BertModel, PreTrainedModel, PreTrainedTokenizerFast

from raybio.core.batch import PackedTokens, Tokens
from raybio.core.errors import ConfigError, DataError
from raybio.core.interfaces import Encoded, Encoder
from raybio.core.randomness import derive_seed
from raybio.encoders.checkpoints import check_source
from raybio.encoders.config import MAX_LENGTH, SCRATCH, Pooling, TextEncoderConfig
from raybio.encoders.lora import add_adapters, check_adapters, check_lora
from raybio.encoders.mlm_head import (
    MaskHead,
    build_mask_head,
    check_mask_head_weights,
    check_mask_head_width,
    exported_mask_head,
    read_mask_head,
)
from raybio.encoders.packed import (
    first_states,
    packed_mean,
    packed_states,
    set_attention,
    why_padded,
)
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
from raybio.ops.similarity import at_least_fp32, normalize


class TextEncoder(Encoder):
    """A transformer that embeds whole texts.

    An embedding does not depend on the other texts of a batch, nor on the padding (on the right).

    Attributes:
        model: the ``transformers`` model.
        tokenizer: turns texts into token ids.
        width: D, dimensions of an embedding.
        pad_id: token id of padding.
        max_tokens: maximum tokens of a text, special ones included; callers cut longer texts.
        pooling: "mean" or "cls".
        is_normalized: whether embeddings have length 1.
        log_temperature: natural logarithm of a learned temperature, or None; see
            ``learn_temperature``.
        mask_head: head of masked language modeling, or None; see ``add_mask_head``.
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
        is_normalized: bool = False,
    ):
        """Wrap any ``transformers`` model with last hidden states."""
        super().__init__()
        set_attention(model)
        self.model = model
        self.tokenizer = tokenizer
        self.width: int = model.config.hidden_size
        self.pad_id: int = tokenizer.pad_token_id
        self.max_tokens = max_tokens
        self.pooling = pooling
        self.is_normalized = is_normalized
        self.register_parameter("log_temperature", None)
        self.mask_head = None
        for name, parameter in model.named_parameters():
            if "pooler" in name.split("."):
                # Embeddings do not use it. Frozen, it stays out of the optimizer and gradient sums.
                parameter.requires_grad_(False)

    def why_padded(self) -> str:
        """Return why the encoder reads padded tokens only; empty if it reads packed ones, too."""
        return why_padded(self.model)

    def why_eager(self) -> str:
        """Return why the encoder cannot be compiled; empty if it can."""
        return why_padded(self.model)

    def forward(self, tokens: Tokens) -> Encoded:
        """Return hidden states (R, L, D) or (T, D), and embeddings (R, D) in float32 or wider.

        Raises:
            DataError: if a text is longer than ``max_tokens``.
        """
        if isinstance(tokens, PackedTokens):
            hidden_RLD, embedding_RD = self._read_packed(tokens)
        else:
            if tokens.mask_RL.shape[1] > self.max_tokens:
                self.check_length(int(tokens.mask_RL.sum(1).max()))
            hidden_RLD = last_hidden_states(self.model, tokens, self.max_tokens)
            if self.pooling == "cls":
                embedding_RD = at_least_fp32(hidden_RLD[:, 0])
            else:
                embedding_RD = mean_over(hidden_RLD, tokens.mask_RL)
        if self.is_normalized:
            embedding_RD = normalize(embedding_RD)
        return Encoded(hidden_RLD, embedding_RD)

    def _read_packed(self, tokens: PackedTokens) -> tuple[Tensor, Tensor]:
        self.check_length(tokens.longest)
        hidden_TD = packed_states(self.model, tokens)
        if self.pooling == "cls":
            return hidden_TD, at_least_fp32(first_states(hidden_TD, tokens))
        return hidden_TD, packed_mean(hidden_TD, tokens)

    def token_logits(self, hidden_KD: Tensor) -> Tensor:
        """Return logits (K, V) of the vocabulary.

        Raises:
            NotImplementedError: before ``add_mask_head``.
        """
        if self.mask_head is None:
            raise NotImplementedError(
                "this text encoder has no language-model head; call add_mask_head first"
            )
        return self.mask_head(hidden_KD, self.model.get_input_embeddings().weight)

    def add_mask_head(self, config: TextEncoderConfig, *, seed: int) -> None:
        """Add a head of masked language modeling, tied to the word embeddings.

        Its weights come from the source, if that is a language model or an export with its head.
        They are drawn from ``seed`` if the source has no head, or if ``num_layers_kept`` removes
        layers below it.

        Raises:
            ConfigError: if the tokenizer has no mask token, or the model cannot have such a head.
        """
        require_mask_token(self.tokenizer, config.source)

        def weights() -> dict[str, Tensor] | None:
            if config.num_layers_kept is not None:
                return None
            path = exported_mask_head(config.source, config.revision)
            if path is not None:
                return load_file(path)
            return read_mask_head(config.source, config.revision)

        self.mask_head = build_mask_head(
            self.model, seed=seed, weights=weights, source=config.source
        )

    def learn_temperature(self, initial: float) -> None:
        """Make the temperature of a contrastive loss a parameter.

        Checkpoints contain it, exports do not.

        Raises:
            ValueError: if ``initial`` is not above 0.
        """
        if not initial > 0:
            raise ValueError(f"the initial temperature is {initial}, want a number > 0")
        device = next(self.model.parameters()).device
        self.log_temperature = nn.Parameter(torch.tensor(float(initial), device=device).log())

    def check_length(self, num_tokens: int) -> None:
        """Refuse a text without positions for its tokens; call it for the longest one.

        Raises:
            DataError: if ``num_tokens`` is more than ``max_tokens``.
        """
        if num_tokens > self.max_tokens:
            raise DataError(
                f"a text has {num_tokens} tokens, special ones included; this encoder reads "
                f"{self.max_tokens}. Cut texts to {self.max_tokens} tokens when they are "
                "tokenized, or raise encoder.max_length."
            )


def check_text_encoder(
    config: TextEncoderConfig, *, needs_mask_token: bool = False, needs_mask_head: bool = False
) -> TextEncoder | None:
    """Refuse what ``build_text_encoder`` would refuse; only the headers of weights are read.

    Args:
        config: the settings.
        needs_mask_token: whether the tokenizer must have a mask token.
        needs_mask_head: whether ``add_mask_head`` will be called.

    Returns:
        The encoder with zeros for weights and without adapters, for more checks; None for scratch.

    Raises:
        ConfigError: as ``build_text_encoder`` and ``TextEncoder.add_mask_head``.
    """
    check_lora(config)
    check_source(config.source, config.revision)
    if config.source == SCRATCH:
        return None
    checkpoint = _checkpoint(config)
    model = checkpoint.check_model(
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
        num_layers=config.num_layers_kept,
    )
    encoder = _wrap(config, model, checkpoint.load_tokenizer(), checkpoint)
    check_adapters(model, config)
    if needs_mask_token or needs_mask_head:
        require_mask_token(encoder.tokenizer, config.source)
    if needs_mask_head:
        check_mask_head_width(model, config.source)
        exported = exported_mask_head(config.source, config.revision)
        if exported is None and config.num_layers_kept is None:
            check_mask_head_weights(config.source, config.revision)
    return encoder


def require_mask_token(tokenizer: PreTrainedTokenizerFast, source: str) -> str:
    """Return the mask token of the tokenizer of a source.

    Raises:
        ConfigError: if it has none.
    """
    token: str | None = tokenizer.mask_token
    if token is None:
        raise ConfigError(
            f"encoder.source {source!r}: its tokenizer has no mask token; want one that has"
        )
    return token


def build_text_encoder(
    config: TextEncoderConfig, *, seed: int, count_by_word: Mapping[str, int] | None = None
) -> TextEncoder:
    """Build the encoder of ``config``, on the CPU in float32, in training mode.

    Random weights depend on ``seed`` only, and torch's global generators stay unchanged.

    Args:
        config: the settings.
        seed: of random weights.
        count_by_word: frequencies of the words of the corpus, from which scratch makes its
            tokenizer; a checkpoint has its own.

    Raises:
        ConfigError: if the source cannot be found or reached, is no usable text encoder, or cannot
            have the adapters of ``lora``.
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
    encoder = _wrap(config, model, tokenizer, checkpoint)
    add_adapters(model, config, seed=seed)
    return encoder.train()


def _wrap(
    config: TextEncoderConfig,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    checkpoint: TextCheckpoint | None,
) -> TextEncoder:
    """Return the encoder of a model and its tokenizer, if they and ``config`` fit together."""
    fit_model(model, config, len(tokenizer))
    _check_padding(config, model, tokenizer)
    if config.normalize == "auto":
        head = checkpoint.head if checkpoint else None
        is_normalized = head is not None and head.is_normalized
    else:
        is_normalized = config.normalize
    return TextEncoder(
        model,
        tokenizer,
        max_tokens=_max_tokens(config, model, tokenizer, checkpoint),
        pooling=resolve_pooling(
            config.pooling,
            source=config.source,
            stated=_stated_pooling(config, checkpoint),
            default=config.default_pooling,
        ),
        is_normalized=is_normalized,
    )


def initial_encoder(
    config: TextEncoderConfig, *, seed: int, count_by_word: Mapping[str, int]
) -> TextEncoder:
    """Return the encoder at the start of training.

    Args:
        config: the settings.
        seed: of the run.
        count_by_word: as ``build_text_encoder``.

    Raises:
        ConfigError: as ``build_text_encoder``.
    """
    weights_seed = derive_seed(seed, "weights")
    return build_text_encoder(config, seed=weights_seed, count_by_word=count_by_word)


def _checkpoint(config: TextEncoderConfig) -> TextCheckpoint:
    with_head = "auto" in (config.pooling, config.normalize)
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
        # Its modules are not supported; the setting exists to take the transformer without them.
        return None
    return folder.pooling if folder else None


class TextReader(NamedTuple):
    """Settings by which an encoder reads texts.

    Attributes:
        tokenizer: turns texts into token ids.
        max_tokens: maximum tokens of a text, special ones included: ``max_length`` or fewer.
        num_positions: tokens that the encoder has positions for, with any ``max_length``.
    """

    tokenizer: PreTrainedTokenizerFast
    max_tokens: int
    num_positions: int


def text_reader(config: TextEncoderConfig, *, count_by_word: Mapping[str, int]) -> TextReader:
    """Return the settings by which the encoder of ``config`` reads texts; load no weights.

    Raises:
        ConfigError: if the source cannot be found or reached, or is no usable text encoder.
    """
    if config.source == SCRATCH:
        tokenizer = _fresh_tokenizer(config, count_by_word)
        max_tokens = _length_limit(config, tokenizer)
        return TextReader(tokenizer, max_tokens, max_tokens)
    checkpoint = _checkpoint(config)
    tokenizer = checkpoint.load_tokenizer()
    with torch.device("meta"):  # shapes are enough: positions are counted from its table
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
        max_position_embeddings=_length_limit(config, tokenizer),
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
        # RoBERTa and its variants number the positions of all tokens except padding.
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
    limits = [_length_limit(config, tokenizer, checkpoint), *_positions(model)]
    # A tokenizer without a limit gives 1e30.
    if min(limits) > MAX_LENGTH:
        raise ConfigError(
            f"encoder.max_length is auto, and neither encoder.source {config.source!r} nor its "
            "tokenizer states a length. Set encoder.max_length, or max_seq_length in the folder's "
            "sentence_bert_config.json, to a number of tokens"
        )
    return min(limits)


def _positions(model: PreTrainedModel) -> list[int]:
    """Return the known limits of the number of positions of a model; empty if there is none."""
    stated = getattr(model.config, "max_position_embeddings", None) or 0
    limits = [stated] if stated > 0 else []
    table = position_table(model)
    if table is not None:
        num_reserved = 0 if table.padding_idx is None else table.padding_idx + 1
        limits.append(table.num_embeddings - num_reserved)
    return limits


def _length_limit(
    config: TextEncoderConfig,
    tokenizer: PreTrainedTokenizerFast,
    checkpoint: TextCheckpoint | None = None,
) -> int:
    if config.max_length != "auto":
        return config.max_length
    head = checkpoint.head if checkpoint else None
    return (head and head.max_tokens) or tokenizer.model_max_length
