"""Exact nearest neighbors of word pairs among the word pairs of other sentences (Section 4.2).

Shape letters: W words, S sentences, D width, P query pairs, K neighbors, O orders of a pair, U
distinct pairs of words that are compared; X, Y and Z entries of ragged lists.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from raybio.methods.relation_graphs.annotations.word_pairs import WordPairs, ragged
from raybio.methods.relation_graphs.classifiers.pair_distances import ReferenceLayout, WordDistances
from raybio.ops.scores import check_finite

_MOST_WORDS = 256
"""Query words compared with all reference words at once, unless one sentence has more."""


_ENTRIES_AT_ONCE = 1 << 22
"""Maximum number of bounds or reference pairs that are processed at once."""


_SAMPLE = 1000
"""Size of the sample of words whose median is the center."""


def nearest_pairs(
    query: WordPairs, reference: WordPairs, *, k: int, both_orders: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the min(k, all) nearest reference pairs of each query pair, exactly.

    Equality of distances: the squared distance of two words is computed from differences in double
    precision and rounded to float32; the squared distance of two pairs is the float32 sum of two
    such numbers. Ties are ordered by sentence, first word and second word.

    1. All words are compared by one matrix product in double precision (``WordDistances``).
    2. The words of a sentence that are nearest to the two words of a query pair give a lower bound
       for all its pairs, which excludes nearly every sentence (``_candidates``).
    3. The distances of the remaining pairs are computed anew (``_exact_distances``).

    If all vectors are alike, nothing is pruned, and all pairs are compared.

    Memory beyond the words in double precision and the result: 16 bytes for each word of the
    reference set times the query words compared at once (256, or the longest sentence); half a GiB
    for a block of candidates; and about 100 bytes per pair if more than 4 million reference pairs
    are near one query pair.

    Args:
        query: query words; their device does the work.
        reference: reference words, on the same device.
        k: number of neighbors, >= 1.
        both_orders: a reference pair counts in the nearer of its two orders.

    Returns:
        Squared distances (P, K), float32, and indices of the first and of the second words in the
        reference (P, K), int64.

    Raises:
        ValueError: if k < 1, the reference has no pair, widths differ, or vectors are not finite.
    """
    _check(query, reference, k)
    k = min(k, reference.num_pairs)
    query_WD = query.row_WD.detach()
    reference_WD = reference.row_WD.detach()
    layout = ReferenceLayout.of(reference.indptr_S1)
    # Centering keeps distances and reduces cancellation in |a|^2 + |c|^2 - 2ac. A single outlier
    # would move the mean, so take the median.
    middle_D = reference_WD[:: len(reference_WD) // _SAMPLE + 1].double().median(0).values
    column_CD = reference_WD[layout.word_C].double().sub_(middle_D)
    first_P, second_P = query.pairs()
    distance_PK = query_WD.new_empty(len(first_P), k, dtype=torch.float32)
    word_PK2 = first_P.new_empty(len(first_P), k, 2)
    pair_indptr = query.pair_indptr_S1.tolist()
    pairs_at_once = max(1, _ENTRIES_AT_ONCE // len(layout.length_S))
    for block in _blocks(query.indptr_S1.tolist()):
        block_BD = query_WD[block.first_word : block.end_word].double() - middle_D
        distances = WordDistances.of(block_BD, column_CD, layout, both_orders)
        end_pair = pair_indptr[block.end_sentence]
        for start in range(pair_indptr[block.first_sentence], end_pair, pairs_at_once):
            pairs = slice(start, min(start + pairs_at_once, end_pair))
            a_P = first_P[pairs] - block.first_word
            b_P = second_P[pairs] - block.first_word
            for pair_X, first_X, second_X in _candidates(distances, layout, a_P, b_P, k):
                query_X2 = torch.stack([first_P[pairs][pair_X], second_P[pairs][pair_X]], dim=1)
                word_X2 = torch.stack([layout.word_C[first_X], layout.word_C[second_X]], dim=1)
                exact_X = _exact_distances(query_WD, reference_WD, query_X2, word_X2, both_orders)
                _keep_nearest(pair_X, exact_X, word_X2, distance_PK[pairs], word_PK2[pairs])
    return distance_PK, word_PK2[..., 0], word_PK2[..., 1]


def _candidates(
    distances: WordDistances, layout: ReferenceLayout, a_P: Tensor, b_P: Tensor, k: int
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield (query pairs, first columns, second columns) that may be among the k nearest.

    A part holds all candidates of its query pairs. A float32 sum never falls when a summand grows,
    so sums of least distances are valid bounds without any slack.
    """
    lower_PS = distances.least_BS[a_P] + distances.least_BS[b_P]
    bound_P = _upper_bounds(distances, layout, a_P, b_P, lower_PS, k)
    pair_X, sentence_X = torch.nonzero(lower_PS <= bound_P[:, None], as_tuple=True)
    length_X = layout.length_S[sentence_X]
    for part in _whole_pairs(pair_X, length_X * (length_X - 1) // 2):
        # Second words that are near enough with the best first word before them ...
        owner_Y, position_Y = layout.later_words(sentence_X[part])
        sentence_Y = sentence_X[part][owner_Y]
        pair_Y = pair_X[part][owner_Y]
        column_Y = layout.start_T[position_Y] + sentence_Y
        least_Y = distances.up_to(a_P[pair_Y], b_P[pair_Y], column_Y)
        near_Y = torch.nonzero(least_Y <= bound_P[pair_Y])[:, 0]
        # ... and then all first words before each of these.
        near_Z, position_Z = ragged(position_Y[near_Y])
        second_word_Z = near_Y[near_Z]
        first_Z = layout.start_T[position_Z] + sentence_Y[second_word_Z]
        second_Z = column_Y[second_word_Z]
        pair_Z = pair_Y[second_word_Z]
        distance_Z = distances.between(a_P[pair_Z], b_P[pair_Z], first_Z, second_Z)
        is_near_Z = distance_Z <= bound_P[pair_Z]
        yield pair_Z[is_near_Z], first_Z[is_near_Z], second_Z[is_near_Z]


def _upper_bounds(
    distances: WordDistances,
    layout: ReferenceLayout,
    a_P: Tensor,
    b_P: Tensor,
    lower_PS: Tensor,
    k: int,
) -> Tensor:
    """Return an upper bound (P,) of the distance of the k-th nearest pair; inf below k sentences.

    The best pairs of k sentences are k pairs. Twice as many sentences are tried, since in some the
    nearest words are in the wrong order.
    """
    num_pairs, num_sentences = lower_PS.shape
    if num_sentences < k:
        return lower_PS.new_full((num_pairs,), torch.inf)
    num_tried = min(2 * k + 2, num_sentences)
    sentence_X = lower_PS.topk(num_tried, dim=1, largest=False, sorted=False).indices.flatten()
    owner_Y, position_Y = layout.later_words(sentence_X)
    pair_Y = owner_Y // num_tried
    column_Y = layout.start_T[position_Y] + sentence_X[owner_Y]
    best_X = lower_PS.new_full((len(sentence_X),), torch.inf)
    least_Y = distances.up_to(a_P[pair_Y], b_P[pair_Y], column_Y)
    best_X.scatter_reduce_(0, owner_Y, least_Y, "amin")
    kth_P = best_X.view(num_pairs, num_tried).topk(k, dim=1, largest=False).values.amax(1)
    # One error for the pairs that were tried, and one for pairs that may be nearer; the factors
    # cover rounding to float32.
    error_P = distances.error_B[a_P] + distances.error_B[b_P]
    return kth_P * (1 + 2.0**-20) + 2.01 * error_P


def _exact_distances(
    query_WD: Tensor, reference_WD: Tensor, query_X2: Tensor, word_X2: Tensor, both_orders: bool
) -> Tensor:
    """Return squared distances (X,) of query to reference pairs, in double precision."""
    orders = [query_X2, query_X2.flip(1)] if both_orders else [query_X2]
    key_OX2 = torch.stack(orders) * len(reference_WD) + word_X2
    # Many pairs compare the same two words.
    key_U, index_OX2 = torch.unique(key_OX2, return_inverse=True)
    distance_U = query_WD.new_empty(len(key_U), dtype=torch.float32)
    keys_at_once = max(1, _ENTRIES_AT_ONCE // 8 // max(query_WD.shape[1], 1))
    for start in range(0, len(key_U), keys_at_once):
        key = key_U[start : start + keys_at_once]
        difference = query_WD[key // len(reference_WD)].double()
        difference.sub_(reference_WD[key % len(reference_WD)])
        distance_U[start : start + keys_at_once] = difference.square_().sum(1)
    distance_OX = distance_U[index_OX2[..., 0]] + distance_U[index_OX2[..., 1]]
    return distance_OX.amin(0)


def _keep_nearest(
    pair_X: Tensor, exact_X: Tensor, word_X2: Tensor, distance_PK: Tensor, word_PK2: Tensor
) -> None:
    """Write the K nearest candidates of each query pair; all of its candidates are given."""
    order_X = torch.arange(len(pair_X), device=pair_X.device)
    # Stable sorts by the least important key first: pair, distance, first word, second word.
    for key_X in (word_X2[:, 1], word_X2[:, 0], exact_X, pair_X):
        order_X = order_X[key_X[order_X].argsort(stable=True)]
    pair_X = pair_X[order_X]
    count_P = torch.bincount(pair_X, minlength=len(distance_PK))
    _, rank_X = ragged(count_P)
    is_kept_X = rank_X < distance_PK.shape[1]
    row_X = pair_X[is_kept_X]
    rank_X = rank_X[is_kept_X]
    order_X = order_X[is_kept_X]
    distance_PK[row_X, rank_X] = exact_X[order_X]
    word_PK2[row_X, rank_X] = word_X2[order_X]


def _whole_pairs(pair_X: Tensor, weight_X: Tensor) -> Iterator[slice]:
    """Divide a list sorted by pair into parts of about ``_ENTRIES_AT_ONCE``; pairs stay whole."""
    total_X = weight_X.cumsum(0)
    start = 0
    while start < len(pair_X):
        limit = _ENTRIES_AT_ONCE + (int(total_X[start - 1]) if start else 0)
        end = int(torch.searchsorted(total_X, limit, right=True))
        if end < len(pair_X):
            torn_pair = pair_X[end]
            end = int(torch.searchsorted(pair_X, torn_pair))
            # A pair that alone exceeds the limit gets a separate part.
            if end == start:
                end = int(torch.searchsorted(pair_X, torn_pair, right=True))
        yield slice(start, end)
        start = end


class _QueryBlock(NamedTuple):
    """A run of sentences, and of their words."""

    first_sentence: int
    end_sentence: int
    first_word: int
    end_word: int


def _blocks(indptr: Sequence[int]) -> Iterator[_QueryBlock]:
    """Divide sentences into runs of about ``_MOST_WORDS`` words."""
    num_sentences = len(indptr) - 1
    start = 0
    while start < num_sentences:
        end = start + 1
        while end < num_sentences and indptr[end + 1] - indptr[start] <= _MOST_WORDS:
            end += 1
        yield _QueryBlock(start, end, indptr[start], indptr[end])
        start = end


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
