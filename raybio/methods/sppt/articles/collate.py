"""Texts of a batch as tokens, for the collation in ``sppt.collate``.

Shape letters: R texts, T tokens of these texts, concatenated.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from raybio.encoders.tokenization import BYTES_PER_TOKEN, Tokenize

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


def tokenize_rows(
    linked: HasTexts, tokenize: Tokenize, row_R: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens (T,) of rows and their row pointers (R + 1,)."""
    return tokenize(linked.texts(row_R))


def read_lengths(linked: HasTexts, max_tokens: int, row_R: np.ndarray) -> np.ndarray:
    """Return roughly the bytes that an encoder reads of each row (R,)."""
    return np.minimum(linked.text_lengths(row_R), BYTES_PER_TOKEN * max_tokens)
