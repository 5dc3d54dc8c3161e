"""Exactly uniform non-neighbours, without rejection.

Q queries, S samples a query. The r-th node that is *not* in a sorted row is r + k, where k is the number of row entries
before it, and k is found by binary search: the k-th entry v satisfies v - k <= r exactly when it lies before.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from raybio.ops.segments import Integers, Positions, bisect, lower_bound

SAMPLES_AT_ONCE = 1 << 14
"""Samples that are looked up together: their arrays stay in the cache."""


def sample_non_neighbours(
    indptr: Integers,
    indices: Integers,
    node_Q: Positions,
    first_Q: Positions,
    end_Q: Positions,
    num: int,
    rng: np.random.Generator,
) -> Positions:
    """Uniform nodes of ``[first, end)`` other than the node and its neighbours; where none is left, from outside it.

    Args:
        indptr: rows of the graph.
        indices: neighbours, ascending within a row.
        node_Q: the nodes, each inside its range.
        first_Q: start of each node's group.
        end_Q: end of each node's group.
        num: samples a node, with replacement.
        rng: one draw a sample.

    Raises:
        ValueError: for a node that is linked to all others.
    """
    if num == 0:
        return np.empty((len(node_Q), 0), dtype=np.int64)
    num_nodes = len(indptr) - 1
    low_Q = indptr[node_Q].astype(np.int64)
    high_Q = indptr[node_Q + 1].astype(np.int64)
    inner_low_Q, inner_high_Q = _neighbours_inside(indices, low_Q, high_Q, first_Q, end_Q)
    num_inside_Q = end_Q - first_Q - 1 - (inner_high_Q - inner_low_Q)
    num_outside_Q = num_nodes - (end_Q - first_Q) - (high_Q - low_Q - (inner_high_Q - inner_low_Q))
    is_inside_Q = num_inside_Q > 0
    num_allowed_Q = np.where(is_inside_Q, num_inside_Q, num_outside_Q)
    if len(node_Q) and num_allowed_Q.min() == 0:
        raise ValueError(
            f"node {node_Q[num_allowed_Q == 0][0]} is linked to all {num_nodes - 1} others: it has no negative. "
            "Drop such hubs, or choose larger groups"
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
    """Queries in chunks of about ``SAMPLES_AT_ONCE`` samples."""
    num_queries = max(1, SAMPLES_AT_ONCE // num_samples)
    for start in range(0, len(query), num_queries):
        yield query[start : start + num_queries]


def _neighbours_inside(
    indices: Integers, low_Q: Positions, high_Q: Positions, first_Q: Positions, end_Q: Positions
) -> tuple[Positions, Positions]:
    """The part of each row ``[low, high)`` whose entries lie in ``[first, end)``."""
    inner_low_Q, inner_high_Q = low_Q.copy(), high_Q.copy()
    if len(indices) == 0:
        return inner_low_Q, inner_high_Q
    # Two look-ups tell for nearly every row that it has no neighbour elsewhere; the others are searched.
    lowest_Q, highest_Q = indices[np.minimum(low_Q, len(indices) - 1)], indices[high_Q - 1]
    mixed = np.flatnonzero((high_Q > low_Q) & ((lowest_Q < first_Q) | (highest_Q >= end_Q)))
    if len(mixed):
        low, length = low_Q[mixed], high_Q[mixed] - low_Q[mixed]
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
    """The rank-th id >= first that is neither the node nor an entry of its row ``[low, high)``."""
    if len(indices) == 0:
        found_QS = rank_QS + first_Q[:, None]
        return found_QS + (found_QS >= node_Q[:, None])
    node, first, low = (np.repeat(array, rank_QS.shape[1]) for array in (node_Q, first_Q, low_Q))
    rank = rank_QS.ravel()
    # With the node itself taken out of the numbering, later ids move down by one; its row stays ascending.
    target = rank + first - low

    def is_before(position: Positions) -> NDArray[np.bool_]:
        entry = indices[position]
        return entry - (entry > node) - position <= target

    length = np.repeat(high_Q - low_Q, rank_QS.shape[1])
    found = rank + first + bisect(low, length, is_before, len(indices) - 1) - low
    return (found + (found >= node)).reshape(rank_QS.shape)


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
    """The rank-th id outside ``[first, end)`` that is no entry of the row before or after its inner part."""
    num = rank_QS.shape[1]
    first, end, low = (np.repeat(array, num) for array in (first_Q, end_Q, low_Q))
    inner_low, inner_length = (
        np.repeat(inner_low_Q, num),
        np.repeat(inner_high_Q - inner_low_Q, num),
    )
    rank = rank_QS.ravel()

    def is_before(place: Positions) -> NDArray[np.bool_]:
        position = low + place + np.where(low + place >= inner_low, inner_length, 0)
        entry = indices[np.minimum(position, len(indices) - 1)]
        is_before: NDArray[np.bool_] = (
            entry - np.where(entry >= end, end - first, 0) - place <= rank
        )
        return is_before

    length = np.repeat(high_Q - low_Q, num) - inner_length
    found = rank + bisect(np.zeros_like(rank), length, is_before, int(length.max(initial=1)))
    return (found + np.where(found >= first, end - first, 0)).reshape(rank_QS.shape)
