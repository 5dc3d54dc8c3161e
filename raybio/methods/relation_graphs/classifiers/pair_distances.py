"""Distances of word pairs from the distances of their words, and lower bounds.

A pair's vector is the concatenation [x_i ; x_j] of its words i < j. It is never built: the squared
distance of two pairs is the sum of the distances of their first and of their second words,
|[a;b] - [c;d]|^2 = |a-c|^2 + |b-d|^2.

Shape letters: B query words, C columns (words of the reference by position), D width, S sentences
of the reference, T positions; X and Y entries of lists.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from raybio.methods.relation_graphs.annotations.word_pairs import ragged

_COLUMNS_AT_ONCE = 1 << 13
"""Reference words in one matrix product."""


@dataclass(frozen=True)
class ReferenceLayout:
    """The reference words by position: first words of all sentences, then second ones, and so on.

    It has the sentences of two words or more, the longest first. So the sentences with a word at
    position t come first, and word t of sentence s has column start_T[t] + s.

    Attributes:
        start_T: column of the first word at each position.
        count_T: sentences with a word at each position.
        length_S: words of each sentence.
        word_C: the number of each column's word in the reference.
    """

    start_T: Tensor
    count_T: Tensor
    length_S: Tensor
    word_C: Tensor

    @classmethod
    def of(cls, indptr_S1: Tensor) -> "ReferenceLayout":
        """Lay out sentences that begin at these words."""
        length_S, order_S = indptr_S1.diff().sort(descending=True, stable=True)
        num_sentences = int((length_S >= 2).sum())
        length_S = length_S[:num_sentences]
        order_S = order_S[:num_sentences]
        # Entry n counts the sentences of at least n words: those with a word at position n - 1.
        num_as_long = torch.bincount(length_S).flip(0).cumsum(0).flip(0)
        count_T = num_as_long[1:]
        position_C, sentence_C = ragged(count_T)
        word_C = indptr_S1[order_S[sentence_C]] + position_C
        return cls(count_T.cumsum(0) - count_T, count_T, length_S, word_C)

    def later_words(self, sentence_X: Tensor) -> tuple[Tensor, Tensor]:
        """Return all words except the first of each sentence: index in the list, position (Y,)."""
        owner_Y, offset_Y = ragged(self.length_S[sentence_X] - 1)
        return owner_Y, offset_Y + 1


@dataclass(frozen=True)
class WordDistances:
    """Some query words compared with all reference words.

    Attributes:
        distance_BC: squared distances, float32, with an error of at most error_B and some rounding.
        before_BC: least distance to any earlier word of the column's sentence; inf for a first
            word.
        least_BS: least distance to a word of each sentence.
        error_B: maximum error of sums in double precision.
        both_orders: whether a pair counts in the nearer of its two orders.
    """

    distance_BC: Tensor
    before_BC: Tensor
    least_BS: Tensor
    error_B: Tensor
    both_orders: bool

    @classmethod
    def of(
        cls, query_BD: Tensor, column_CD: Tensor, layout: ReferenceLayout, both_orders: bool
    ) -> "WordDistances":
        """Compare query words with all columns; both in double precision."""
        size_B = query_BD.square().sum(1)
        size_C = torch.linalg.vector_norm(column_CD, dim=1).square()
        distance_BC = _squared_distances(query_BD, column_CD, size_B, size_C)
        before_BC = torch.empty_like(distance_BC)
        least_BS = distance_BC.new_full((len(query_BD), len(layout.length_S)), torch.inf)
        # ``least_BS`` is the minimum over the words up to each position.
        for start, count in zip(layout.start_T.tolist(), layout.count_T.tolist(), strict=True):
            columns = slice(start, start + count)
            before_BC[:, columns] = least_BS[:, :count]
            torch.minimum(least_BS[:, :count], distance_BC[:, columns], out=least_BS[:, :count])
        # Error of sums of D products in any order (Higham, Accuracy and Stability of Numerical
        # Algorithms, section 3.1), for shifted vectors; 2 |a| |c| <= |a|^2 + |c|^2.
        error_B = (2 * query_BD.shape[1] + 16) * 2.0**-53 * (size_B + size_C.max())
        return cls(distance_BC, before_BC, least_BS, error_B.float(), both_orders)

    def up_to(self, a_X: Tensor, b_X: Tensor, column_X: Tensor) -> Tensor:
        """Return the least distance (X,) of the pairs (a, b) to any pair with this second word."""
        distance_X = self.before_BC[a_X, column_X] + self.distance_BC[b_X, column_X]
        if not self.both_orders:
            return distance_X
        swapped_X = self.before_BC[b_X, column_X] + self.distance_BC[a_X, column_X]
        return torch.minimum(distance_X, swapped_X)

    def between(self, a_X: Tensor, b_X: Tensor, first_X: Tensor, second_X: Tensor) -> Tensor:
        """Return the distances (X,) of the pairs (a, b) to the pairs (first, second) of columns."""
        distance_X = self.distance_BC[a_X, first_X] + self.distance_BC[b_X, second_X]
        if not self.both_orders:
            return distance_X
        swapped_X = self.distance_BC[b_X, first_X] + self.distance_BC[a_X, second_X]
        return torch.minimum(distance_X, swapped_X)


def _squared_distances(
    query_BD: Tensor, column_CD: Tensor, size_B: Tensor, size_C: Tensor
) -> Tensor:
    """Return |q|^2 + |c|^2 - 2 qc (B, C) in float32, given the squared norms."""
    distance_BC = query_BD.new_empty(len(query_BD), len(column_CD), dtype=torch.float32)
    with torch.autocast(query_BD.device.type, enabled=False):
        # Process a part of the reference set at a time: the fp64 product takes twice the memory.
        for start in range(0, len(column_CD), _COLUMNS_AT_ONCE):
            part = slice(start, start + _COLUMNS_AT_ONCE)
            part_BC = torch.addmm(size_C[part], query_BD, column_CD[part].T, alpha=-2)
            distance_BC[:, part] = part_BC.add_(size_B[:, None]).clamp_(min=0)
    return distance_BC
