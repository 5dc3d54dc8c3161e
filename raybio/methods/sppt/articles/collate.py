"""Texts of a batch as tokens, for the collation in ``sppt.collate``.

Shape letters: R texts, T tokens of these texts, concatenated.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from raybio.encoders.tokenization import Tokenize


class HasTexts(Protocol):
    """A store, or any other picklable object, with a text for each row."""

    def texts(self, row_R: np.ndarray) -> list[str]:
        """Return the texts of these rows."""
        ...


@dataclass(frozen=True)
class TextRows:
    """Reader of texts as tokens, truncated to the encoder's maximum length; a ``collate.ReadRows``.

    Attributes:
        linked: source of the texts.
        tokenize: returns tokens with special tokens.
        mask_id: token id of the mask token.
        special_ids: token ids that are never masked.
        ordinary_ids: token ids of all words.
    """

    linked: HasTexts
    tokenize: Tokenize
    mask_id: int
    special_ids: tuple[int, ...]
    ordinary_ids: np.ndarray

    def __call__(
        self, row_R: np.ndarray, chance_R: object = 0.0
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return tokens (T,), row pointers (R + 1,) and a mask of special tokens (T,).

        ``chance_R`` is unused: texts are always cut at the end.
        """
        token_T, indptr_R1 = self.tokenize(self.linked.texts(row_R))
        return token_T, indptr_R1, np.isin(token_T, self.special_ids)
