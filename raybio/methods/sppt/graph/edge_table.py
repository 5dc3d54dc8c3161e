"""An exact hash table of a graph's edges, for very many pairs at once.

A pair of nodes is one number, and a bijection scrambles it. The upper bits choose a bucket, and the
bucket stores the lower bits (quotienting). So nothing is approximate, an entry takes 2 or 4 bytes,
and a query costs one random memory access; a binary search costs one for each bit of the degree.

Shape letters: N nodes, E edges, Q queries, B buckets of S slots.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raybio.core.arrays import Integers
from raybio.ops.segments import Positions

_NUM_SLOTS = 4
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class EdgeTable:
    """The linked pairs of a graph.

    Attributes:
        node_bits: bits of a node number.
        rest_bits: bits of a scrambled pair that its bucket stores.
        bucket_B: one item a bucket, made of ``_NUM_SLOTS`` entries: rest + 1, or 0 where free.
        overflow: ascending scrambled pairs whose bucket was full.
    """

    node_bits: int
    rest_bits: int
    bucket_B: NDArray[Any]
    overflow: NDArray[np.uint64]

    def has(self, left_Q: Positions, right_Q: Positions) -> NDArray[np.bool_]:
        """Return whether each pair of nodes, which must be in range, is linked."""
        scrambled_Q = _scramble(left_Q, right_Q, self.node_bits)
        bucket_Q = self.bucket_B.take((scrambled_Q >> np.uint64(self.rest_bits)).view(np.int64))
        entry_QS = bucket_Q.view(np.uint16 if self.bucket_B.itemsize == 8 else np.uint32).reshape(
            -1, _NUM_SLOTS
        )
        # Narrow before masking: the upper bits select the bucket.
        wanted_Q = scrambled_Q.astype(entry_QS.dtype)
        wanted_Q &= entry_QS.dtype.type((1 << self.rest_bits) - 1)
        wanted_Q += entry_QS.dtype.type(1)
        is_linked_Q: NDArray[np.bool_] = entry_QS[:, 0] == wanted_Q
        for slot in range(1, _NUM_SLOTS):
            is_linked_Q |= entry_QS[:, slot] == wanted_Q
        if len(self.overflow):
            unsure = np.flatnonzero((entry_QS[:, -1] != 0) & ~is_linked_Q)
            index = np.searchsorted(self.overflow, scrambled_Q[unsure])
            nearest = self.overflow[np.minimum(index, len(self.overflow) - 1)]
            is_linked_Q[unsure] = nearest == scrambled_Q[unsure]
        return is_linked_Q


def build_edge_table(indptr: Integers, indices: Integers) -> EdgeTable | None:
    """Return the table; None if the graph is so large and sparse that entries exceed 4 bytes."""
    num_nodes = len(indptr) - 1
    num_edges = len(indices) // 2
    node_bits = max(1, (num_nodes - 1).bit_length())
    bucket_bits = min(2 * node_bits, max(1, (num_edges - 1).bit_length()))
    rest_bits = 2 * node_bits - bucket_bits
    if rest_bits >= 32:
        return None
    source = np.repeat(np.arange(num_nodes), np.diff(indptr))
    is_first = source < indices
    scrambled = _scramble(source[is_first], indices[is_first].astype(np.int64), node_bits)
    scrambled.sort()
    bucket = scrambled >> np.uint64(rest_bits)
    head = np.zeros(0, dtype=np.int64)
    if num_edges:
        head = np.flatnonzero(np.append(True, bucket[1:] != bucket[:-1]))
    slot = np.arange(num_edges) - np.repeat(head, np.diff(np.append(head, num_edges)))
    fits = slot < _NUM_SLOTS
    rest = (scrambled & np.uint64((1 << rest_bits) - 1)) + np.uint64(1)
    entry_BS = np.zeros(
        (1 << bucket_bits, _NUM_SLOTS), dtype=np.uint16 if rest_bits < 16 else np.uint32
    )
    entry_BS[bucket[fits].view(np.int64), slot[fits]] = rest[fits]
    # All slots of a bucket are read as one number: 4 x 2 bytes, or 4 x 4 (complex128 is numpy's
    # only such type).
    whole = np.uint64 if entry_BS.itemsize == 2 else np.complex128
    return EdgeTable(node_bits, rest_bits, entry_BS.view(whole)[:, 0], scrambled[~fits])


def _scramble(left_Q: Positions, right_Q: Positions, node_bits: int) -> NDArray[np.uint64]:
    """Map unordered pairs one to one to numbers of 2 * node_bits bits.

    Both steps can be inverted: an XOR of the halves and the product with an odd number.
    """
    low_Q = np.minimum(left_Q, right_Q)
    high_Q = np.maximum(left_Q, right_Q)
    high_Q ^= low_Q
    low_Q <<= node_bits
    low_Q |= high_Q
    scrambled_Q = low_Q.view(np.uint64)
    scrambled_Q *= _MULTIPLIER
    scrambled_Q &= np.uint64((1 << (2 * node_bits)) - 1)
    return scrambled_Q
