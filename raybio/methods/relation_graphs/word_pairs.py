"""Exact nearest neighbors of word pairs among the word pairs of other sentences (Section 4.2).

A pair's vector is the concatenation [x_i ; x_j] of its words i < j. It is never built: the squared
distance of two pairs is the sum of the distances of their first and of their second words,
|[a;b] - [c;d]|^2 = |a-c|^2 + |b-d|^2.

W words, S sentences, D width, P pairs, K neighbors; B query words of a block, C columns (words of
the reference by position), T positions, O orders, U pairs of words that meet; X, Y, Z entries of
ragged lists.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from raybio.ops.scores import check_finite

_MOST_WORDS = 256
"""Query words compared with all reference words at once, unless one sentence has more."""


_ENTRIES_AT_ONCE = 1 << 22
"""Bounds, or reference pairs, looked at together."""


_COLUMNS_AT_ONCE = 1 << 13
"""Reference words in one matrix product."""


_SAMPLE = 1000
"""Words of which the median is taken for the middle."""


@dataclass(frozen=True)
class WordPairs:
    """Sentences end to end, of each of which all pairs of words i < j are meant.

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
        indptr_S1, num_words = self.indptr_S1, len(self.row_WD)
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
        """Where the pairs of each sentence begin, as ``indptr_S1`` says it of words."""
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
        first_P, after_P = _ragged(end_W - word_W - 1)
        return first_P, first_P + 1 + after_P

    def of_words(self, is_kept_W: Tensor) -> "WordPairs":
        """The same sentences with only some of their words."""
        before_W1 = torch.cat([self.indptr_S1.new_zeros(1), is_kept_W.cumsum(0)])
        return WordPairs(self.row_WD[is_kept_W], before_W1[self.indptr_S1])


def nearest_pairs(
    query: WordPairs, reference: WordPairs, *, k: int, both_orders: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the min(k, all) nearest reference pairs of each query pair, exactly.

    What equal means: the squared distance of two words is computed from differences in double
    precision and rounded to float32; that of two pairs is the float32 sum of two such numbers.
    Reference pairs at equal distances stand in their order: sentence, first word, second word.

    All words are compared by one matrix product in double precision. The nearest words of a
    sentence to the two words of a query pair bound all its pairs from below, and so leave out
    nearly every sentence; the pairs that remain are computed anew. Where all vectors are alike
    nothing is pruned, and the time is that of comparing all pairs.

    Memory beyond the words in double precision and the result: 16 bytes for each word of the
    reference set times the query words compared at once (256, or the longest sentence); half a GiB
    for what is looked at together; and, only if the reference has more than 4 million pairs as near
    to one query pair, about 100 bytes for each.

    Args:
        query: query words; their device does the work.
        reference: among what; on the same device.
        k: how many, >= 1.
        both_orders: a reference pair counts in the nearer of its two orders.

    Returns:
        Squared distances (P, K), float32, and numbers in the reference of the first and of the
        second words (P, K), int64.

    Raises:
        ValueError: if k < 1, the reference has no pair, widths differ, or vectors are not finite.
    """
    _check(query, reference, k)
    query_WD, reference_WD = query.row_WD.detach(), reference.row_WD.detach()
    layout = _Layout.of(reference.indptr_S1)
    # Distances stay, but less is left to cancel in |a|^2 + |c|^2 - 2ac. Not the mean, which one
    # giant would move.
    middle_D = reference_WD[:: len(reference_WD) // _SAMPLE + 1].double().median(0).values
    column_CD = reference_WD[layout.word_C].double().sub_(middle_D)
    first_P, second_P = query.pairs()
    found_PK = torch.empty(
        len(first_P), min(k, reference.num_pairs), dtype=torch.float32, device=first_P.device
    )
    word_PK2 = torch.empty(*found_PK.shape, 2, dtype=torch.int64, device=first_P.device)
    pair_indptr = query.pair_indptr_S1.tolist()
    rows_at_once = max(1, _ENTRIES_AT_ONCE // len(layout.length_S))
    for sentence, last_sentence, word, last_word in _blocks(query.indptr_S1.tolist()):
        block = _Block.of(
            query_WD[word:last_word].double() - middle_D, column_CD, layout, both_orders
        )
        for start in range(pair_indptr[sentence], pair_indptr[last_sentence], rows_at_once):
            rows = slice(start, min(start + rows_at_once, pair_indptr[last_sentence]))
            a_P, b_P = first_P[rows] - word, second_P[rows] - word
            for pair_X, first_X, second_X in _candidates(
                block, layout, a_P, b_P, found_PK.shape[1]
            ):
                query_X2 = torch.stack([first_P[rows][pair_X], second_P[rows][pair_X]], dim=1)
                word_X2 = torch.stack([layout.word_C[first_X], layout.word_C[second_X]], dim=1)
                exact_X = _exact(query_WD, reference_WD, query_X2, word_X2, both_orders)
                _keep_nearest(pair_X, exact_X, word_X2, found_PK[rows], word_PK2[rows])
    return found_PK, word_PK2[..., 0], word_PK2[..., 1]


@dataclass(frozen=True)
class _Layout:
    """The reference words by position: first words of all sentences, then second ones, and so on.

    Sentences of two words or more count, the longest first: those with a word at position t are
    then the first so many, and word t of sentence s has column start_T[t] + s.

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
    def of(cls, indptr_S1: Tensor) -> "_Layout":
        length_S, order_S = indptr_S1.diff().sort(descending=True, stable=True)
        num_sentences = int((length_S >= 2).sum())
        length_S, order_S = length_S[:num_sentences], order_S[:num_sentences]
        longer_T = torch.bincount(length_S).flip(0).cumsum(0).flip(0)
        position_C, sentence_C = _ragged(longer_T[1:])
        word_C = indptr_S1[order_S[sentence_C]] + position_C
        return cls(longer_T[1:].cumsum(0) - longer_T[1:], longer_T[1:], length_S, word_C)

    def later_words(self, sentence_X: Tensor) -> tuple[Tensor, Tensor]:
        """Return all words but each sentence's first: index in the list (Y,), and position (Y,)."""
        owner_Y, place_Y = _ragged(self.length_S[sentence_X] - 1)
        return owner_Y, place_Y + 1


@dataclass(frozen=True)
class _Block:
    """Some query words compared with all reference words.

    Attributes:
        distance_BC: squared distances, float32, wrong by error_B and some roundings at most.
        before_BC: the least of them to a word that stands before this one in its sentence; inf for
            a first word.
        least_BS: the least to a word of each sentence.
        error_B: what sums in double precision may be wrong by.
        both_orders: whether a pair counts in the nearer of its two orders.
    """

    distance_BC: Tensor
    before_BC: Tensor
    least_BS: Tensor
    error_B: Tensor
    both_orders: bool

    @classmethod
    def of(
        cls, query_BD: Tensor, column_CD: Tensor, layout: _Layout, both_orders: bool
    ) -> "_Block":
        size_B, size_C = (
            query_BD.square().sum(1),
            torch.linalg.vector_norm(column_CD, dim=1).square(),
        )
        distance_BC = query_BD.new_empty(len(query_BD), len(column_CD), dtype=torch.float32)
        with torch.autocast(query_BD.device.type, enabled=False):
            # A part of the reference set at a time: the product is twice as wide as what is kept.
            for start in range(0, len(column_CD), _COLUMNS_AT_ONCE):
                some = slice(start, start + _COLUMNS_AT_ONCE)
                part_BC = torch.addmm(size_C[some], query_BD, column_CD[some].T, alpha=-2)
                distance_BC[:, some] = part_BC.add_(size_B[:, None]).clamp_(min=0)
        before_BC = torch.empty_like(distance_BC)
        least_BS = distance_BC.new_full((len(query_BD), len(layout.length_S)), torch.inf)
        for start, count in zip(layout.start_T.tolist(), layout.count_T.tolist(), strict=True):
            before_BC[:, start : start + count] = least_BS[:, :count]
            torch.minimum(
                least_BS[:, :count], distance_BC[:, start : start + count], out=least_BS[:, :count]
            )
        # Sums of D products in any order (Higham, Accuracy and Stability of Numerical Algorithms,
        # section 3.1), of vectors that were moved; 2 |a| |c| <= |a|^2 + |c|^2.
        error_B = (2 * query_BD.shape[1] + 16) * 2.0**-53 * (size_B + size_C.max())
        return cls(distance_BC, before_BC, least_BS, error_B.float(), both_orders)

    def up_to(self, a_X: Tensor, b_X: Tensor, column_X: Tensor) -> Tensor:
        """The least distance (X,) of the pairs (a, b) to those whose second word this is."""
        distance_X = self.before_BC[a_X, column_X] + self.distance_BC[b_X, column_X]
        if not self.both_orders:
            return distance_X
        return torch.minimum(
            distance_X, self.before_BC[b_X, column_X] + self.distance_BC[a_X, column_X]
        )

    def between(self, a_X: Tensor, b_X: Tensor, first_X: Tensor, second_X: Tensor) -> Tensor:
        """Distances (X,) of the pairs (a, b) to the pairs (first, second) of columns."""
        distance_X = self.distance_BC[a_X, first_X] + self.distance_BC[b_X, second_X]
        if not self.both_orders:
            return distance_X
        return torch.minimum(
            distance_X, self.distance_BC[b_X, first_X] + self.distance_BC[a_X, second_X]
        )


def _candidates(
    block: _Block, layout: _Layout, a_P: Tensor, b_P: Tensor, k: int
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield (query pairs, first columns, second columns); a part holds all candidates of its pairs.

    Float32 sums never fall when a summand grows, so that sums of least distances are bounds without
    any slack.
    """
    lower_PS = block.least_BS[a_P] + block.least_BS[b_P]
    bound_P = _bounds(block, layout, a_P, b_P, lower_PS, k)
    pair_X, sentence_X = torch.nonzero(lower_PS <= bound_P[:, None], as_tuple=True)
    length_X = layout.length_S[sentence_X]
    for start, end in _whole_pairs(pair_X, length_X * (length_X - 1) // 2):
        owner_Y, position_Y = layout.later_words(sentence_X[start:end])
        sentence_Y, pair_Y = sentence_X[start:end][owner_Y], pair_X[start:end][owner_Y]
        column_Y = layout.start_T[position_Y] + sentence_Y
        kept_Y = torch.nonzero(block.up_to(a_P[pair_Y], b_P[pair_Y], column_Y) <= bound_P[pair_Y])[
            :, 0
        ]
        owner_Z, earlier_Z = _ragged(position_Y[kept_Y])
        owner_Z = kept_Y[owner_Z]
        first_Z, second_Z, pair_Z = (
            layout.start_T[earlier_Z] + sentence_Y[owner_Z],
            column_Y[owner_Z],
            pair_Y[owner_Z],
        )
        kept_Z = block.between(a_P[pair_Z], b_P[pair_Z], first_Z, second_Z) <= bound_P[pair_Z]
        yield pair_Z[kept_Z], first_Z[kept_Z], second_Z[kept_Z]


def _bounds(
    block: _Block, layout: _Layout, a_P: Tensor, b_P: Tensor, lower_PS: Tensor, k: int
) -> Tensor:
    """Return an upper bound (P,) of the distance of the k-th nearest pair; inf below k sentences.

    The best pairs of k sentences are k pairs. Twice as many sentences are tried: the nearest words
    of some stand in the wrong order.
    """
    num_pairs, num_sentences = lower_PS.shape
    if num_sentences < k:
        return lower_PS.new_full((num_pairs,), torch.inf)
    num_tried = min(2 * k + 2, num_sentences)
    sentence_X = lower_PS.topk(num_tried, dim=1, largest=False, sorted=False).indices.flatten()
    owner_Y, position_Y = layout.later_words(sentence_X)
    pair_Y, column_Y = owner_Y // num_tried, layout.start_T[position_Y] + sentence_X[owner_Y]
    best_X = lower_PS.new_full((len(sentence_X),), torch.inf)
    best_X.scatter_reduce_(0, owner_Y, block.up_to(a_P[pair_Y], b_P[pair_Y], column_Y), "amin")
    kth_P = best_X.view(num_pairs, num_tried).topk(k, dim=1, largest=False).values.amax(1)
    # One error each for what was tried and for what may be nearer; the factors are for roundings to
    # float32.
    return kth_P * (1 + 2.0**-20) + 2.01 * (block.error_B[a_P] + block.error_B[b_P])


def _exact(
    query_WD: Tensor, reference_WD: Tensor, query_X2: Tensor, word_X2: Tensor, both_orders: bool
) -> Tensor:
    """Return squared distances (X,) of query to reference pairs, in double precision."""
    sides = (
        [(query_X2, word_X2), (query_X2.flip(1), word_X2)] if both_orders else [(query_X2, word_X2)]
    )
    # The same two words meet in many pairs.
    key_U, place = torch.unique(
        torch.stack([query * len(reference_WD) + word for query, word in sides]),
        return_inverse=True,
    )
    distance_U = query_WD.new_empty(len(key_U), dtype=torch.float32)
    rows = max(1, _ENTRIES_AT_ONCE // 8 // max(query_WD.shape[1], 1))
    for start in range(0, len(key_U), rows):
        key = key_U[start : start + rows]
        difference = (
            query_WD[key // len(reference_WD)].double().sub_(reference_WD[key % len(reference_WD)])
        )
        distance_U[start : start + rows] = difference.square_().sum(1)
    distance_OX = distance_U[place[..., 0]] + distance_U[place[..., 1]]
    return distance_OX.amin(0)


def _keep_nearest(
    pair_X: Tensor, exact_X: Tensor, word_X2: Tensor, found_PK: Tensor, word_PK2: Tensor
) -> None:
    """Write the K nearest of each query pair's candidates, which are all here, to its rows."""
    order_X = torch.arange(len(pair_X), device=pair_X.device)
    for key_X in (word_X2[:, 1], word_X2[:, 0], exact_X, pair_X):
        order_X = order_X[key_X[order_X].argsort(stable=True)]
    pair_X = pair_X[order_X]
    count_P = torch.bincount(pair_X, minlength=len(found_PK))
    place_X = (
        torch.arange(len(pair_X), device=pair_X.device) - (count_P.cumsum(0) - count_P)[pair_X]
    )
    kept_X = place_X < found_PK.shape[1]
    row_X, place_X, order_X = pair_X[kept_X], place_X[kept_X], order_X[kept_X]
    found_PK[row_X, place_X] = exact_X[order_X]
    word_PK2[row_X, place_X] = word_X2[order_X]


def _whole_pairs(pair_X: Tensor, weight_X: Tensor) -> Iterator[tuple[int, int]]:
    """Divide a list sorted by pair into parts of about ``_ENTRIES_AT_ONCE``; pairs stay whole."""
    end_X, start = weight_X.cumsum(0), 0
    while start < len(pair_X):
        limit = _ENTRIES_AT_ONCE + (int(end_X[start - 1]) if start else 0)
        end = int(torch.searchsorted(end_X, limit, right=True))
        if end < len(pair_X):
            torn = pair_X[end]
            end = int(torch.searchsorted(pair_X, torn))
            if end == start:
                end = int(torch.searchsorted(pair_X, torn, right=True))
        yield start, end
        start = end


def _blocks(indptr: Sequence[int]) -> Iterator[tuple[int, int, int, int]]:
    """Return (first sentence, end, first word, end) of runs of about ``_MOST_WORDS`` words."""
    start = 0
    while start < len(indptr) - 1:
        end = start + 1
        while end < len(indptr) - 1 and indptr[end + 1] - indptr[start] <= _MOST_WORDS:
            end += 1
        yield start, end, indptr[start], indptr[end]
        start = end


def _ragged(count_X: Tensor) -> tuple[Tensor, Tensor]:
    """Return owner and index of each entry: (0, 0), (0, 1) ... (0, count_X[0] - 1), (1, 0) ..."""
    owner_Y = torch.repeat_interleave(count_X)
    start_X = count_X.cumsum(0) - count_X
    return owner_Y, torch.arange(len(owner_Y), device=count_X.device) - start_X[owner_Y]


def _check(query: WordPairs, reference: WordPairs, k: int) -> None:
    if k < 1 or reference.num_pairs == 0:
        raise ValueError(
            f"k is {k} among {reference.num_pairs} reference pairs; want at least 1 of each"
        )
    if query.row_WD.shape[1] != reference.row_WD.shape[1]:
        raise ValueError(
            f"query words are {query.row_WD.shape[1]} wide, reference words "
            f"{reference.row_WD.shape[1]}; want one encoder"
        )
    check_finite(query.row_WD, "query words")
    check_finite(reference.row_WD, "reference words")
