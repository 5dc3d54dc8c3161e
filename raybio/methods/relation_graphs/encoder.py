"""Encoders of the words of sentences: CharacterBERT, or any transformer with pooled word pieces.

Shape letters: R sentences, L padded length, W words of all sentences, D width, V distinct words.
"""

import hashlib
from collections.abc import Callable, Sequence

import numpy as np
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import PreTrainedConfig

from raybio.core.batch import Tokens
from raybio.core.errors import ConfigError
from raybio.core.interfaces import Encoded, Encoder
from raybio.encoders.checkpoints import check_source
from raybio.encoders.lora import add_adapters, check_adapters, check_lora
from raybio.encoders.packed import packed_states
from raybio.encoders.sources import source_folder
from raybio.encoders.text import TextEncoder, build_text_encoder, check_text_encoder
from raybio.encoders.tokenization import special_ids_around, word_pieces
from raybio.encoders.transformer import last_hidden_states
from raybio.methods.relation_graphs.batches import PackedWords, PaddedWords
from raybio.methods.relation_graphs.config import WordEncoderConfig
from raybio.methods.relation_graphs.encoders.character_bert.checkpoint import is_character_bert
from raybio.methods.relation_graphs.encoders.character_bert.model import (
    CLS_ID,
    FIRST_WORD_ID,
    PAD_ID,
    SEP_ID,
    CharacterBert,
    build_character_bert,
    check_character_bert,
)
from raybio.methods.relation_graphs.encoders.word_reader import WordTokens
from raybio.ops.grouped import grouped_mean
from raybio.ops.similarity import at_least_fp32

HEADS = "word_heads.safetensors"


class WordEncoder(Encoder):
    """A transformer that embeds the words of sentences: an ``Encoder`` over ``PaddedWords``.

    Attributes:
        body: the transformer: a ``TextEncoder``, or CharacterBERT.
        model_config: its sizes.
        max_tokens: longest sentence it can read, special tokens included.
        width: D.
        pad_id: token id of padding.
        head: parameters that a method trains next to the encoder, or None.
    """

    head: nn.Module | None

    def __init__(self, body: TextEncoder | CharacterBert) -> None:
        """Wrap a transformer."""
        super().__init__()
        self.body = body
        self.model_config: PreTrainedConfig = (
            body.model.config if isinstance(body, TextEncoder) else body.config
        )
        self.width: int = self.model_config.hidden_size
        self.pad_id: int = body.pad_id if isinstance(body, TextEncoder) else PAD_ID
        self.max_tokens: int = (
            body.max_tokens
            if isinstance(body, TextEncoder)
            else self.model_config.max_position_embeddings
        )
        self.head = None

    def why_padded(self) -> str:
        """Return why the encoder reads padded tokens only; empty if it reads packed ones, too."""
        if isinstance(self.body, TextEncoder):
            return self.body.why_padded()
        return "CharacterBERT reads padded sequences"

    def forward(self, tokens: Tokens) -> Encoded:
        """Return last hidden states (R, L, D) or (T, D) and words (W, D), float32 or wider."""
        if isinstance(tokens, PackedWords):
            return self._read_packed(tokens)
        if not isinstance(tokens, PaddedWords):
            raise TypeError(
                f"a word encoder reads PaddedWords or PackedWords, got {type(tokens).__name__}"
            )
        if isinstance(self.body, TextEncoder):
            hidden_RLD = last_hidden_states(self.body.model, tokens, self.max_tokens)
        else:
            hidden_RLD = self.body(tokens.token_RL, tokens.mask_RL)
        is_word_RL = tokens.word_RL >= 0
        word_WD = grouped_mean(
            at_least_fp32(hidden_RLD)[is_word_RL], tokens.word_RL[is_word_RL], tokens.num_words
        )
        return Encoded(hidden_RLD, word_WD)

    def _read_packed(self, tokens: PackedWords) -> Encoded:
        assert isinstance(self.body, TextEncoder)
        self.body.check_length(tokens.longest)
        hidden_TD = packed_states(self.body.model, tokens)
        state_KD = at_least_fp32(hidden_TD).index_select(0, tokens.word_index_K)
        return Encoded(hidden_TD, grouped_mean(state_KD, tokens.word_K, tokens.num_words))

    def token_logits(self, hidden_KD: Tensor) -> Tensor:
        """Not supported: no tokens are predicted.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(
            "a WordEncoder scores no tokens; want an objective whose uses_rows is False"
        )

    def word_tokens(self, words: Sequence[str], config: WordEncoderConfig) -> WordTokens:
        """Return the tokens of words; CharacterBERT keeps the characters of the words.

        Raises:
            ConfigError: if the tokenizer has no token for a word.
        """
        if config.lower_case:
            words = [word.lower() for word in words]
        # CharacterBERT's ids do not depend on the words' spelling.
        spelling = hashlib.sha256("\0".join(words).encode(errors="surrogatepass")).hexdigest()
        if isinstance(self.body, TextEncoder):
            token_E, indptr_V1 = word_pieces(self.body.tokenizer, words)
            prefix_ids, suffix_ids = special_ids_around(self.body.tokenizer)
            return WordTokens(
                token_E,
                indptr_V1,
                prefix_ids,
                suffix_ids,
                first_only=config.word_pooling == "first",
                spelling=spelling,
            )
        self.body.read_words(words)
        return WordTokens(
            token_E=np.arange(len(words)) + FIRST_WORD_ID,
            indptr_V1=np.arange(len(words) + 1),
            prefix_ids=(CLS_ID,),
            suffix_ids=(SEP_ID,),
            first_only=False,
            spelling=spelling,
        )


def build_word_encoder(
    config: WordEncoderConfig, *, seed: int, count_by_word: dict[str, int] | None = None
) -> WordEncoder:
    """Build the encoder that ``config`` describes, with its first layers frozen.

    Raises:
        ConfigError: if the source cannot be found or reached, or has fewer layers than are to be
            frozen.
    """
    if is_character_bert(config.source, config.revision):
        encoder = _character_encoder(config, build_character_bert)
        add_adapters(encoder.body.model, config, seed=seed)
    else:
        encoder = WordEncoder(build_text_encoder(config, seed=seed, count_by_word=count_by_word))
    _freeze(encoder, config)
    return encoder.train()


def check_word_encoder(config: WordEncoderConfig) -> WordEncoder | None:
    """Refuse what ``build_word_encoder`` would refuse; only the headers of weights are read.

    Returns:
        The encoder without its weights and adapters, for more checks; None for scratch.

    Raises:
        ConfigError: as ``build_word_encoder``.
    """
    check_lora(config)
    check_source(config.source, config.revision)
    if is_character_bert(config.source, config.revision):
        encoder = _character_encoder(config, check_character_bert)
        check_adapters(encoder.body.model, config)
    else:
        body = check_text_encoder(config)
        if body is None:
            return None
        encoder = WordEncoder(body)
    _freeze(encoder, config)
    return encoder


def read_heads(source: str) -> dict[str, Tensor]:
    """Return the heads of an exported folder by name; other sources have none."""
    path = source_folder(source) / HEADS
    return load_file(path) if path.is_file() else {}


def _character_encoder(
    config: WordEncoderConfig, make: Callable[..., CharacterBert]
) -> WordEncoder:
    """Return the encoder over the CharacterBERT that ``make`` makes of a source."""
    if config.attention_dropout is not None:
        raise ConfigError(
            f"encoder.attention_dropout is {config.attention_dropout:g}, and CharacterBERT has one "
            "dropout for all; want encoder.dropout"
        )
    body = make(
        config.source,
        revision=config.revision,
        dropout=config.dropout,
        num_layers_kept=config.num_layers_kept,
    )
    if config.recompute_activations:
        body.model.gradient_checkpointing_enable(
            gradient_checkpointing_kwargs={"use_reentrant": False}
        )
    encoder = WordEncoder(body)
    if config.max_length != "auto":
        encoder.max_tokens = min(encoder.max_tokens, config.max_length)
    return encoder


def _freeze(encoder: WordEncoder, config: WordEncoderConfig) -> None:
    """Freeze everything before layer ``num_frozen_layers``."""
    if not config.num_frozen_layers:
        return
    num_layers = encoder.model_config.num_hidden_layers
    if config.num_frozen_layers >= max(num_layers, 1):
        raise ConfigError(
            f"encoder.num_frozen_layers is {config.num_frozen_layers}, and the encoder has "
            f"{num_layers} layers (encoder.source {config.source!r}); want fewer, so that "
            "something is trained"
        )
    model = encoder.body.model
    # The character part has its own module lists.
    below = set(model.get_input_embeddings().modules())
    lists = [
        module
        for module in model.modules()
        if isinstance(module, nn.ModuleList) and module not in below
    ]
    layers = next((module for module in lists if len(module) == num_layers), None)
    if layers is None:
        raise ConfigError(
            f"encoder.source {config.source!r}: its {num_layers} layers cannot be found, so "
            "that none of them can be frozen alone; want encoder.num_frozen_layers=0"
        )
    first = next(layers[config.num_frozen_layers].parameters())
    for weight in encoder.body.parameters():
        if weight is first:
            return
        weight.requires_grad_(False)
