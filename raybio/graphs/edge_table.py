"""An exact hash table of a graph's edges, for those who ask about very many pairs.

N nodes, E edges, Q queries, B buckets of S slots. A pair of nodes is one number; a bijection stirs it; its upper bits
choose a bucket and the lower ones are what the bucket keeps (quotienting), so nothing is approximate, an entry takes 2
or 4 bytes, and a question costs one random look into memory where a binary search costs one a bit of the degree.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raybio.graphs.types import Integers, Positions

_NUM_SLOTS = 4
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class EdgeTable:
    """Which pairs are linked.

    Attributes:
        node_bits: bits of a node number.
        rest_bits: bits of a stirred pair that its bucket keeps.
        bucket_B: one item a bucket, ``_NUM_SLOTS`` entries side by side: rest + 1, or 0 where free.
        overflow: ascending stirred pairs that found their bucket full.
    """

    node_bits: int
    rest_bits: int
    bucket_B: NDArray[Any]
    overflow: NDArray[np.uint64]

    def has(self, left_Q: Positions, right_Q: Positions) -> NDArray[np.bool_]:
        """Whether each pair of nodes, in range, is linked."""
        stirred_Q = _stir(left_Q, right_Q, self.node_bits)
        kept_Q = self.bucket_B.take((stirred_Q >> np.uint64(self.rest_bits)).view(np.int64))
        entry_QS = kept_Q.view(np.uint16 if self.bucket_B.itemsize == 8 else np.uint32).reshape(-1, _NUM_SLOTS)
        # Narrowed before it is masked: the upper bits are the bucket's.
        wanted_Q = stirred_Q.astype(entry_QS.dtype)
        wanted_Q &= entry_QS.dtype.type((1 << self.rest_bits) - 1)
        wanted_Q += entry_QS.dtype.type(1)
        found_Q: NDArray[np.bool_] = entry_QS[:, 0] == wanted_Q
        for slot in range(1, _NUM_SLOTS):
            found_Q |= entry_QS[:, slot] == wanted_Q
        if len(self.overflow):
            unsure = np.flatnonzero((entry_QS[:, -1] != 0) & ~found_Q)
            place = np.searchsorted(self.overflow, stirred_Q[unsure])
            found_Q[unsure] = self.overflow[np.minimum(place, len(self.overflow) - 1)] == stirred_Q[unsure]
        return found_Q


def edge_table(indptr: Integers, indices: Integers) -> EdgeTable | None:
    """Build the table; None for graphs so large and thin that the entries would not fit 4 bytes."""
    num_nodes, num_edges = len(indptr) - 1, len(indices) // 2
    node_bits = max(1, (num_nodes - 1).bit_length())
    bucket_bits = min(2 * node_bits, max(1, (num_edges - 1).bit_length()))
    rest_bits = 2 * node_bits - bucket_bits
    if rest_bits >= 32:
        return None
    source = np.repeat(np.arange(num_nodes), np.diff(indptr))
    is_first = source < indices
    stirred = _stir(source[is_first], indices[is_first].astype(np.int64), node_bits)
    stirred.sort()
    bucket = stirred >> np.uint64(rest_bits)
    head = np.flatnonzero(np.append(True, bucket[1:] != bucket[:-1])) if num_edges else np.zeros(0, dtype=np.int64)
    slot = np.arange(num_edges) - np.repeat(head, np.diff(np.append(head, num_edges)))
    fits = slot < _NUM_SLOTS
    rest = (stirred & np.uint64((1 << rest_bits) - 1)) + np.uint64(1)
    entry_BS = np.zeros((1 << bucket_bits, _NUM_SLOTS), dtype=np.uint16 if rest_bits < 16 else np.uint32)
    entry_BS[bucket[fits].view(np.int64), slot[fits]] = rest[fits]
    whole = np.uint64 if entry_BS.itemsize == 2 else np.complex128
    return EdgeTable(node_bits, rest_bits, entry_BS.view(whole)[:, 0], stirred[~fits])


def _stir(left_Q: Positions, right_Q: Positions, node_bits: int) -> NDArray[np.uint64]:
    """A bijection of unordered pairs to numbers of 2 * node_bits bits: an XOR of halves, then an odd multiple."""
    low_Q, high_Q = np.minimum(left_Q, right_Q), np.maximum(left_Q, right_Q)
    high_Q ^= low_Q
    low_Q <<= node_bits
    low_Q |= high_Q
    stirred_Q = low_Q.view(np.uint64)
    stirred_Q *= _MULTIPLIER
    stirred_Q &= np.uint64((1 << (2 * node_bits)) - 1)
    return stirred_Q
