"""Tier-1 negatives of SPPT: exactly uniform non-neighbors, without rejection.

The r-th node that is *not* in a sorted row is r + k, where k is the number of row entries before
it. Binary search finds k: the k-th entry v lies before that node exactly when v - k <= r.

Shape letters: Q queries, S samples a query.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from raybio.core.arrays import Integers
from raybio.ops.segments import Positions, bisect, lower_bound

SAMPLES_AT_ONCE = 1 << 14
"""Samples that are looked up together: their arrays stay in the cache."""


def sample_non_neighbors(
    indptr: Integers,
    indices: Integers,
    node_Q: Positions,
    first_Q: Positions,
    end_Q: Positions,
    num: int,
    rng: np.random.Generator,
) -> Positions:
    """Draw uniform non-neighbors of each node from ``[first, end)``; if none exists, from outside.

    Args:
        indptr: rows of the graph.
        indices: neighbors, ascending within a row.
        node_Q: nodes, each inside its range.
        first_Q: start of each node's group.
        end_Q: end of each node's group.
        num: samples S of each node, with replacement.
        rng: gives one draw a sample.

    Raises:
        ValueError: for a node that is linked to all others.
    """
    if num == 0:
        return np.empty((len(node_Q), 0), dtype=np.int64)
    num_nodes = len(indptr) - 1
    low_Q = indptr[node_Q].astype(np.int64)
    high_Q = indptr[node_Q + 1].astype(np.int64)
    inner_low_Q, inner_high_Q = _neighbors_inside(indices, low_Q, high_Q, first_Q, end_Q)
    group_size_Q = end_Q - first_Q
    num_neighbors_inside_Q = inner_high_Q - inner_low_Q
    num_neighbors_outside_Q = high_Q - low_Q - num_neighbors_inside_Q
    num_inside_Q = group_size_Q - 1 - num_neighbors_inside_Q
    num_outside_Q = num_nodes - group_size_Q - num_neighbors_outside_Q
    is_inside_Q = num_inside_Q > 0
    num_allowed_Q = np.where(is_inside_Q, num_inside_Q, num_outside_Q)
    if len(node_Q) and num_allowed_Q.min() == 0:
        raise ValueError(
            f"node {node_Q[num_allowed_Q == 0][0]} is linked to all {num_nodes - 1} others: it "
            "has no negative. Drop such hubs, or choose larger groups"
        )
    rank_QS = rng.integers(0, num_allowed_Q[:, None], size=(len(node_Q), num))
    sampled_QS = np.empty((len(node_Q), num), dtype=np.int64)
    for inside in _chunks(np.flatnonzero(is_inside_Q), num):
        sampled_QS[inside] = _nth_inside(
            indices,
            rank_QS[inside],
            node_Q[inside],
            first_Q[inside],
            inner_low_Q[inside],
            inner_high_Q[inside],
        )
    for outside in _chunks(np.flatnonzero(~is_inside_Q), num):
        rows = [
            array[outside] for array in (first_Q, end_Q, low_Q, high_Q, inner_low_Q, inner_high_Q)
        ]
        sampled_QS[outside] = _nth_outside(indices, rank_QS[outside], *rows)
    return sampled_QS


def _chunks(query: Positions, num_samples: int) -> Iterator[Positions]:
    """Yield queries in chunks of about ``SAMPLES_AT_ONCE`` samples."""
    num_queries = max(1, SAMPLES_AT_ONCE // num_samples)
    for start in range(0, len(query), num_queries):
        yield query[start : start + num_queries]


def _neighbors_inside(
    indices: Integers, low_Q: Positions, high_Q: Positions, first_Q: Positions, end_Q: Positions
) -> tuple[Positions, Positions]:
    """Return the part of each row ``[low, high)`` whose entries lie in ``[first, end)``."""
    inner_low_Q = low_Q.copy()
    inner_high_Q = high_Q.copy()
    if len(indices) == 0:
        return inner_low_Q, inner_high_Q
    # For nearly every row, its first and last entry show that no neighbor lies elsewhere. Search
    # only the others.
    lowest_Q = indices[np.minimum(low_Q, len(indices) - 1)]
    highest_Q = indices[high_Q - 1]
    mixed = np.flatnonzero((high_Q > low_Q) & ((lowest_Q < first_Q) | (highest_Q >= end_Q)))
    if len(mixed):
        low = low_Q[mixed]
        length = high_Q[mixed] - low
        inner_low_Q[mixed] = lower_bound(indices, low, length, first_Q[mixed])
        inner_high_Q[mixed] = lower_bound(indices, low, length, end_Q[mixed])
    return inner_low_Q, inner_high_Q


def _nth_inside(
    indices: Integers,
    rank_QS: Positions,
    node_Q: Positions,
    first_Q: Positions,
    low_Q: Positions,
    high_Q: Positions,
) -> Positions:
    """Return the rank-th id >= first that is neither the node nor in its row ``[low, high)``."""
    if len(indices) == 0:
        node_QS = rank_QS + first_Q[:, None]
        return node_QS + (node_QS >= node_Q[:, None])
    num = rank_QS.shape[1]
    node = np.repeat(node_Q, num)
    first = np.repeat(first_Q, num)
    low = np.repeat(low_Q, num)
    rank = rank_QS.ravel()
    # Without the node itself, later ids move down by one; its row stays ascending.
    target = rank + first - low

    def is_before(position: Positions) -> NDArray[np.bool_]:
        entry = indices[position]
        return entry - (entry > node) - position <= target

    length = np.repeat(high_Q - low_Q, num)
    sampled = rank + first + bisect(low, length, is_before, len(indices) - 1) - low
    return (sampled + (sampled >= node)).reshape(rank_QS.shape)


def _nth_outside(
    indices: Integers,
    rank_QS: Positions,
    first_Q: Positions,
    end_Q: Positions,
    low_Q: Positions,
    high_Q: Positions,
    inner_low_Q: Positions,
    inner_high_Q: Positions,
) -> Positions:
    """Return the rank-th id outside ``[first, end)`` that is not in the row's outer parts."""
    num = rank_QS.shape[1]
    first = np.repeat(first_Q, num)
    end = np.repeat(end_Q, num)
    low = np.repeat(low_Q, num)
    inner_low = np.repeat(inner_low_Q, num)
    inner_length = np.repeat(inner_high_Q - inner_low_Q, num)
    rank = rank_QS.ravel()

    def is_before(index: Positions) -> NDArray[np.bool_]:
        # The index-th entry of the row without its inner part; ids without the group move down by
        # its size.
        position = low + index + np.where(low + index >= inner_low, inner_length, 0)
        entry = indices[np.minimum(position, len(indices) - 1)]
        outer_id = entry - np.where(entry >= end, end - first, 0)
        is_before: NDArray[np.bool_] = outer_id - index <= rank
        return is_before

    length = np.repeat(high_Q - low_Q, num) - inner_length
    sampled = rank + bisect(np.zeros_like(rank), length, is_before, int(length.max(initial=1)))
    return (sampled + np.where(sampled >= first, end - first, 0)).reshape(rank_QS.shape)
