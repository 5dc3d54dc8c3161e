"""Text encoder of SPPT: initial weights, the head for masked words, and texts as its tokens."""

from functools import partial

import numpy as np

from raybio.core.errors import ConfigError
from raybio.core.randomness import derive_seed
from raybio.encoders.config import ClsTextEncoderConfig
from raybio.encoders.text import TextEncoder, initial_encoder
from raybio.encoders.tokenization import TokenizerSource
from raybio.methods.sppt.articles.collate import HasTexts, TextRows, read_lengths, tokenize_rows
from raybio.methods.sppt.articles.store import LinkedTextStore
from raybio.methods.sppt.config import ObjectiveConfig
from raybio.store.token_cache import CachedTokens


def initial_text_encoder(
    config: ClsTextEncoderConfig,
    objective: ObjectiveConfig,
    *,
    count_by_word: dict[str, int],
    seed: int,
) -> TextEncoder:
    """Return the encoder at the start of training, with a language-model head if λ < 1.

    Args:
        config: settings of the encoder.
        objective: holds λ; with λ = 1 the head would get no gradient.
        count_by_word: word counts, for a tokenizer trained from scratch.
        seed: the run's seed.

    Raises:
        ConfigError: if the encoder cannot be loaded, or has no masked-word head and cannot get one.
    """
    encoder = initial_encoder(config, seed=seed, count_by_word=count_by_word)
    if objective.lambda_spml < 1:
        encoder.add_mask_head(config, seed=derive_seed(seed, "mask head"))
    return encoder


def text_rows(linked: HasTexts, encoder: TextEncoder, *, is_masked: bool = True) -> TextRows:
    """Return the reader of texts as the encoder's tokens.

    Args:
        linked: the texts.
        encoder: has the tokenizer.
        is_masked: whether words will be masked, as in training.

    Raises:
        ConfigError: if words will be masked, and the encoder's tokenizer has no mask token.
    """
    source = TokenizerSource.of(encoder.tokenizer)
    if is_masked and source.mask_id is None:
        raise ConfigError("encoder.source: its tokenizer has no mask token; want one that has")
    tokenize = partial(source.tokenize, max_length=encoder.max_tokens)
    ordinary_ids = np.setdiff1d(np.arange(source.vocabulary_size), source.special_ids)
    tokens = partial(tokenize_rows, linked, tokenize)
    lengths = partial(read_lengths, linked, encoder.max_tokens)
    mask_id = -1 if source.mask_id is None else source.mask_id
    return TextRows(tokens, lengths, mask_id, source.special_ids, ordinary_ids)


def stored_tokens(store: LinkedTextStore, encoder: TextEncoder, num_reads: float) -> CachedTokens:
    """Return the reader of a store's texts as the encoder's tokens, which uses their cache.

    Args:
        store: the texts.
        encoder: has the tokenizer.
        num_reads: rows that the run reads.
    """
    source = TokenizerSource.of(encoder.tokenizer)
    return CachedTokens(
        store.texts,
        partial(source.tokenize, max_length=encoder.max_tokens),
        num_rows=store.num_rows,
        identity=f"{store.digest}, text, {source.identity(encoder.max_tokens)}",
        num_reads=num_reads,
    )
