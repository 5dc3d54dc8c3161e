"""Text encoder of SPPT: initial weights, the head for masked words, and texts as its tokens.

Shape letters: R texts, T tokens of these texts, concatenated.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np

from raybio.core.errors import ConfigError
from raybio.core.randomness import derive_seed
from raybio.encoders.config import ClsTextEncoderConfig
from raybio.encoders.text import TextEncoder, initial_encoder
from raybio.encoders.tokenization import BYTES_PER_TOKEN, Tokenize, TokenizerSource
from raybio.methods.sppt.config import ObjectiveConfig

ReadTokens = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
"""rows -> tokens (T,) with special tokens, and row pointers (R + 1,)."""


class HasTexts(Protocol):
    """A store, or any other picklable object, with a text for each row."""

    def texts(self, row_R: np.ndarray) -> list[str]:
        """Return the texts of these rows."""
        ...

    def text_lengths(self, row_R: np.ndarray) -> np.ndarray:
        """Return the bytes of these rows' texts (R,)."""
        ...


@dataclass(frozen=True)
class TextRows:
    """Reader of texts as tokens, truncated to the encoder's maximum length; a ``collate.ReadRows``.

    Attributes:
        tokens: returns the tokens of rows.
        lengths: returns the length of rows (R,), in any unit.
        mask_id: token id of the mask token.
        special_ids: token ids that are never masked.
        ordinary_ids: token ids of all words.
    """

    tokens: ReadTokens
    lengths: Callable[[np.ndarray], np.ndarray]
    mask_id: int
    special_ids: tuple[int, ...]
    ordinary_ids: np.ndarray

    def __call__(
        self, row_R: np.ndarray, chance_R: object = 0.0
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return tokens (T,), row pointers (R + 1,) and a mask of special tokens (T,).

        ``chance_R`` is unused: texts are always cut at the end.
        """
        token_T, indptr_R1 = self.tokens(row_R)
        return token_T, indptr_R1, np.isin(token_T, self.special_ids)


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


def tokenize_rows(
    linked: HasTexts, tokenize: Tokenize, row_R: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens (T,) of rows and their row pointers (R + 1,)."""
    return tokenize(linked.texts(row_R))


def read_lengths(linked: HasTexts, max_tokens: int, row_R: np.ndarray) -> np.ndarray:
    """Return the approximate number of bytes that an encoder reads of each row (R,)."""
    return np.minimum(linked.text_lengths(row_R), BYTES_PER_TOKEN * max_tokens)
