"""All pairs of words of sentences.

Shape letters: W words of all sentences, S sentences, D width, P pairs; X rows of a ragged list,
Y its entries.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class WordPairs:
    """All pairs of words i < j within each sentence, for sentences end to end.

    Attributes:
        row_WD: vectors of the words.
        indptr_S1: where each sentence begins among the words, and where the last one ends; int64.

    Raises:
        ValueError: if the sentences do not cover the words in order.
    """

    row_WD: Tensor
    indptr_S1: Tensor

    def __post_init__(self) -> None:
        """Check that sentences and words fit together."""
        indptr_S1 = self.indptr_S1
        num_words = len(self.row_WD)
        if (
            self.row_WD.ndim != 2
            or indptr_S1.ndim != 1
            or indptr_S1.dtype != torch.int64
            or not len(indptr_S1)
        ):
            raise ValueError(
                f"words have shape {tuple(self.row_WD.shape)} and indptr is {indptr_S1.dtype} "
                f"{tuple(indptr_S1.shape)}; want (W, D) and torch.int64 (S + 1,)"
            )
        if indptr_S1[0] != 0 or indptr_S1[-1] != num_words or bool((indptr_S1.diff() < 0).any()):
            raise ValueError(
                f"indptr goes from {int(indptr_S1[0])} to {int(indptr_S1[-1])}, want from 0 to "
                f"{num_words}, never back"
            )

    @cached_property
    def pair_indptr_S1(self) -> Tensor:
        """Index of the first pair of each sentence, and one past the last pair."""
        length_S = self.indptr_S1.diff()
        return torch.cat([length_S.new_zeros(1), (length_S * (length_S - 1) // 2).cumsum(0)])

    @property
    def num_pairs(self) -> int:
        """P."""
        return int(self.pair_indptr_S1[-1])

    def pairs(self) -> tuple[Tensor, Tensor]:
        """Return the first and second word of each pair (P,), sorted by sentence, first, second."""
        word_W = torch.arange(len(self.row_WD), device=self.indptr_S1.device)
        end_W = self.indptr_S1[1:].repeat_interleave(self.indptr_S1.diff())
        first_P, offset_P = ragged(end_W - word_W - 1)
        return first_P, first_P + 1 + offset_P

    def of_words(self, is_kept_W: Tensor) -> "WordPairs":
        """Return the same sentences with only some of their words."""
        num_kept_before_W1 = torch.cat([self.indptr_S1.new_zeros(1), is_kept_W.cumsum(0)])
        return WordPairs(self.row_WD[is_kept_W], num_kept_before_W1[self.indptr_S1])


def ragged(count_X: Tensor) -> tuple[Tensor, Tensor]:
    """Return owner and index (Y,) of each entry: (0, 0), (0, 1), ..., (1, 0), (1, 1), ..."""
    owner_Y = torch.repeat_interleave(count_X)
    start_X = count_X.cumsum(0) - count_X
    return owner_Y, torch.arange(len(owner_Y), device=count_X.device) - start_X[owner_Y]
