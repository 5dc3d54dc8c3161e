"""Texts as tokens, for the collation of linked texts.

Shape letters: R texts, T tokens of them end to end.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from raybio.data.pair_collate import Tokenise


class HasTexts(Protocol):
    """A store of texts, or whatever else has a text for each row; picklable."""

    def texts(self, row_R: np.ndarray) -> list[str]:
        """The texts of some rows."""
        ...


@dataclass(frozen=True)
class TextRows:
    """Texts as tokens, cut to their first ones; a ``collate.ReadRows``.

    Attributes:
        linked: has the texts.
        tokenise: makes tokens of them, special ones included.
        mask_id: token id of a masked word.
        special_ids: token ids that are never masked.
        ordinary_ids: token ids of all words.
    """

    linked: HasTexts
    tokenise: Tokenise
    mask_id: int
    special_ids: tuple[int, ...]
    ordinary_ids: np.ndarray

    def __call__(self, row_R: np.ndarray, chance_R: object = 0.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Tokens, pointers and whether each token is a special one; nothing is left to chance."""
        token_T, indptr_R1 = self.tokenise(self.linked.texts(row_R))
        return token_T, indptr_R1, np.isin(token_T, self.special_ids)
