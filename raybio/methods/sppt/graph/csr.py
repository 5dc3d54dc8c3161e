"""Graphs as arrays: neighbours, exact negatives, held-out links.

Undirected graphs as compressed sparse rows.

N nodes, E undirected edges, Q queries, R rows and C columns of a batch. The neighbours of node u are
``indices[indptr[u] : indptr[u + 1]]``, ascending. A group (a species, a component) is a set of nodes; negatives of a
node come from its own group.

An exact hash table of a graph's edges, for those who ask about very many pairs.

N nodes, E edges, Q queries, B buckets of S slots. A pair of nodes is one number; a bijection stirs it; its upper bits
choose a bucket and the lower ones are what the bucket keeps (quotienting), so nothing is approximate, an entry takes 2
or 4 bytes, and a question costs one random look into memory where a binary search costs one a bit of the degree.

Where the nodes of each group lie.

N nodes, G groups, Q queries.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from raybio.core.errors import DataError
from raybio.methods.sppt.graph.negatives import sample_non_neighbours
from raybio.ops.segments import Integers, Positions, expand, lower_bound

_CHUNK = 1 << 15  # queries at once: their temporaries stay in the L2 cache


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
        entry_QS = kept_Q.view(np.uint16 if self.bucket_B.itemsize == 8 else np.uint32).reshape(
            -1, _NUM_SLOTS
        )
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
            found_Q[unsure] = (
                self.overflow[np.minimum(place, len(self.overflow) - 1)] == stirred_Q[unsure]
            )
        return found_Q


@dataclass(frozen=True)
class GroupLayout:
    """Nodes ordered by group, so that a group is a range of places.

    Attributes:
        bound_G1: group g holds the places ``[bound_G1[g], bound_G1[g + 1])``.
        node_N: the node at each place, ascending within a group; None where groups are ranges of nodes already.
        place_N: the place of each node; None likewise.
    """

    bound_G1: Positions
    node_N: Positions | None
    place_N: Positions | None

    def range_of(self, place_Q: Positions) -> tuple[Positions, Positions]:
        """First place and end of the group that holds each place."""
        group_Q = np.searchsorted(self.bound_G1, place_Q, side="right") - 1
        return self.bound_G1[group_Q], self.bound_G1[group_Q + 1]


@dataclass(frozen=True, eq=False)
class Graph:
    """An immutable simple undirected graph over nodes 0..N-1; its arrays may be memory-mapped and are never copied.

    Attributes:
        indptr: (N + 1,) int32 or int64.
        indices: (2E,) int32 or int64: each edge from both ends, ascending in each row, no self pair, no duplicate.
        group_N: (N,) group number of each node; None makes one group of all. Where equal numbers are adjacent,
            groups cost no memory.
    """

    indptr: Integers
    indices: Integers
    group_N: Integers = None  # type: ignore[assignment]  # replaced below

    def __post_init__(self) -> None:
        """Check the shapes; order within rows is the builder's promise (``from_edges``)."""
        if self.group_N is None:
            object.__setattr__(self, "group_N", np.zeros(self.num_nodes, dtype=np.int32))
        if (
            len(self.indptr) == 0
            or int(self.indptr[0]) != 0
            or int(self.indptr[-1]) != len(self.indices)
        ):
            raise ValueError(f"indptr must run from 0 to len(indices) = {len(self.indices)}")
        if len(self.group_N) != self.num_nodes:
            raise ValueError(
                f"group_N has {len(self.group_N)} entries, want one a node: {self.num_nodes}"
            )

    @classmethod
    def from_edges(
        cls, edge_E2: ArrayLike, num_nodes: int, group_N: ArrayLike | None = None
    ) -> "Graph":
        """Build from pairs in any order and direction; duplicates are merged and self pairs dropped.

        Memory: some 50 bytes an edge.

        Args:
            edge_E2: (E, 2) integers.
            num_nodes: N.
            group_N: (N,) integers, or None for one group.

        Raises:
            DataError: for a node id outside [0, num_nodes).
            ValueError: for arrays of another shape or type.
        """
        group = None if group_N is None else np.asarray(group_N)
        return cls(*_compress(_checked_edges(edge_E2, num_nodes), num_nodes), group)  # type: ignore[arg-type]

    @property
    def num_nodes(self) -> int:
        """N."""
        return len(self.indptr) - 1

    @property
    def num_edges(self) -> int:
        """E: undirected edges, each counted once."""
        return len(self.indices) // 2

    @cached_property
    def degree_N(self) -> Positions:  # noqa: N802  # shape letters
        """Number of neighbours of each node."""
        return np.diff(self.indptr).astype(np.int64)

    def has_edge(self, u: ArrayLike, v: ArrayLike) -> NDArray[np.bool_]:
        """Whether each pair is linked; ``u`` and ``v`` broadcast.

        Binary search in the shorter of the two rows; from a question on that is large enough to pay for it (a quarter
        of the number of edges), a hash table of 8 to 16 bytes an edge that the graph then keeps.

        Raises:
            ValueError: for a node that is not in the graph.
        """
        u_array, v_array = np.broadcast_arrays(np.asarray(u), np.asarray(v))
        left_Q, right_Q = self._as_nodes(u_array), self._as_nodes(v_array)
        found_Q = np.zeros(len(left_Q), dtype=bool)
        if len(self.indices) == 0:
            return found_Q.reshape(u_array.shape)
        wants_table = "_table" in vars(self) or len(left_Q) >= max(_CHUNK, self.num_edges // 4)
        table = self._table if wants_table else None
        look_up = self._has_edge if table is None else table.has
        for start in range(0, len(left_Q), _CHUNK):
            chunk = slice(start, start + _CHUNK)
            found_Q[chunk] = look_up(left_Q[chunk], right_Q[chunk])
        return found_Q.reshape(u_array.shape)

    def sample_neighbours(self, nodes: ArrayLike, num: int, rng: np.random.Generator) -> Positions:
        """Uniform neighbours, with replacement, shape (len(nodes), num).

        Raises:
            ValueError: for a node without a neighbour, or one that is not in the graph.
        """
        node_Q = self._as_nodes(nodes)
        start_Q = self.indptr[node_Q].astype(np.int64)
        degree_Q = self.indptr[node_Q + 1] - start_Q
        if len(node_Q) and degree_Q.min() == 0:
            isolated = node_Q[degree_Q == 0]
            raise ValueError(
                f"{len(isolated)} of {len(node_Q)} nodes have no neighbour (the first: {isolated[0]}); "
                "drop isolated nodes before positives are drawn"
            )
        offset_QS = rng.integers(0, degree_Q[:, None], size=(len(node_Q), num))
        neighbour_QS: Positions = self.indices[start_Q[:, None] + offset_QS].astype(np.int64)
        return neighbour_QS

    def sample_negatives(self, nodes: ArrayLike, num: int, rng: np.random.Generator) -> Positions:
        """Exactly uniform non-neighbours from each node's own group, with replacement, shape (len(nodes), num).

        Not by rejection: with r drawn below the number of allowed nodes, the r-th of them is found by binary search in
        the sorted row, so each negative costs one draw and a hub or a nearly complete group costs no more than others.

        A node whose group holds only itself and its neighbours gets, as the fallback, uniform non-neighbours from all
        of the other groups. Its negatives are then of another group than the node, which is how to count them.

        Raises:
            ValueError: for a node that is linked to all others, or one that is not in the graph.
        """
        node_Q, layout = self._as_nodes(nodes), self._layout
        if layout.node_N is None or layout.place_N is None:
            rows = self.indptr, self.indices
            place_Q = node_Q
        else:
            rows = self._rows_by_group
            place_Q = layout.place_N[node_Q]
        place_QS = sample_non_neighbours(*rows, place_Q, *layout.range_of(place_Q), num, rng)
        return place_QS if layout.node_N is None else layout.node_N[place_QS]

    def linked(self, rows_R: ArrayLike, columns_C: ArrayLike) -> NDArray[np.bool_]:
        """Whether each row node and each column node are linked, shape (R, C); nodes may repeat on both sides."""
        row_R, column_C = self._as_nodes(rows_R), self._as_nodes(columns_C)
        start_R = self.indptr[row_R].astype(np.int64)
        position, owner = expand(start_R, self.indptr[row_R + 1] - start_R)
        neighbour = self.indices[position]
        is_column_N = np.zeros(
            self.num_nodes, dtype=bool
        )  # fresh pages of zeros: only those touched cost anything
        is_column_N[column_C] = True
        hit = np.flatnonzero(is_column_N[neighbour])
        unique_U, place_C = np.unique(column_C, return_inverse=True)
        linked_RU = np.zeros((len(row_R), len(unique_U)), dtype=bool)
        linked_RU[owner[hit], np.searchsorted(unique_U, neighbour[hit])] = True
        return linked_RU[:, place_C]

    @cached_property
    def _layout(self) -> GroupLayout:
        return group_layout(self.group_N)

    @cached_property
    def _table(self) -> EdgeTable | None:
        return edge_table(self.indptr, self.indices)

    @cached_property
    def _rows_by_group(self) -> tuple[Integers, Integers]:
        """The same graph with nodes renumbered by place, for groups that are not ranges of nodes."""
        place_N = self._layout.place_N
        assert place_N is not None
        source = np.repeat(place_N, self.degree_N)
        return _compress(np.stack([source, place_N[self.indices]], axis=1), self.num_nodes)

    def _has_edge(self, left_Q: Positions, right_Q: Positions) -> NDArray[np.bool_]:
        low_Q, other_low_Q = (
            self.indptr[left_Q].astype(np.int64),
            self.indptr[right_Q].astype(np.int64),
        )
        length_Q, other_length_Q = (
            self.indptr[left_Q + 1] - low_Q,
            self.indptr[right_Q + 1] - other_low_Q,
        )
        swap_Q = other_length_Q < length_Q
        low_Q = np.where(swap_Q, other_low_Q, low_Q)
        length_Q = np.where(swap_Q, other_length_Q, length_Q)
        wanted_Q = np.where(swap_Q, left_Q, right_Q).astype(self.indices.dtype)
        place_Q = lower_bound(self.indices, low_Q, length_Q, wanted_Q)
        is_linked_Q: NDArray[np.bool_] = (
            self.indices[np.minimum(place_Q, len(self.indices) - 1)] == wanted_Q
        )
        return is_linked_Q & (place_Q < low_Q + length_Q)

    def _as_nodes(self, nodes: ArrayLike) -> Positions:
        array = np.asarray(nodes)
        if array.size and array.dtype.kind not in "iu":
            raise ValueError(f"nodes have dtype {array.dtype}, want integers")
        if array.size and (int(array.min()) < 0 or int(array.max()) >= self.num_nodes):
            raise ValueError(
                f"nodes span [{array.min()}, {array.max()}], want [0, {self.num_nodes})"
            )
        return array.astype(np.int64, copy=False).ravel()


def _checked_edges(edge_E2: ArrayLike, num_nodes: int) -> Integers:
    edge = np.asarray(edge_E2)
    if edge.size == 0:
        return np.zeros((0, 2), dtype=np.int64)
    if edge.ndim != 2 or edge.shape[1] != 2 or edge.dtype.kind not in "iu":
        raise ValueError(
            f"edge_E2 has shape {edge.shape} and dtype {edge.dtype}, want (E, 2) integers"
        )
    if int(edge.min()) < 0 or int(edge.max()) >= num_nodes:
        row = int(np.flatnonzero(((edge < 0) | (edge >= num_nodes)).any(axis=1))[0])
        raise DataError(
            f"edge {row} is {tuple(edge[row].tolist())}, want node ids in [0, {num_nodes}): "
            "number the nodes from 0, or raise num_nodes"
        )
    return edge


def _compress(edge_E2: Integers, num_nodes: int) -> tuple[Positions, Integers]:
    """Rows of a graph by one sort of the pairs as single numbers."""
    size = max(num_nodes, 1)
    edge_E2 = edge_E2[edge_E2[:, 0] != edge_E2[:, 1]]
    key = np.empty(2 * len(edge_E2), dtype=np.int64)
    np.multiply(edge_E2[:, 0], size, out=key[: len(edge_E2)], dtype=np.int64)
    np.multiply(edge_E2[:, 1], size, out=key[len(edge_E2) :], dtype=np.int64)
    key[: len(edge_E2)] += edge_E2[:, 1]
    key[len(edge_E2) :] += edge_E2[:, 0]
    key.sort()
    if len(key):
        key = key[np.concatenate([[True], key[1:] != key[:-1]])]
    indptr = np.zeros(num_nodes + 1, dtype=np.int64)
    np.cumsum(np.bincount(key // size, minlength=num_nodes), out=indptr[1:])
    key %= size
    return indptr, key.astype(np.int32 if num_nodes <= np.iinfo(np.int32).max else np.int64)


_NUM_SLOTS = 4


_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


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
    head = (
        np.flatnonzero(np.append(True, bucket[1:] != bucket[:-1]))
        if num_edges
        else np.zeros(0, dtype=np.int64)
    )
    slot = np.arange(num_edges) - np.repeat(head, np.diff(np.append(head, num_edges)))
    fits = slot < _NUM_SLOTS
    rest = (stirred & np.uint64((1 << rest_bits) - 1)) + np.uint64(1)
    entry_BS = np.zeros(
        (1 << bucket_bits, _NUM_SLOTS), dtype=np.uint16 if rest_bits < 16 else np.uint32
    )
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


def group_layout(group_N: Integers) -> GroupLayout:
    """Lay out the groups; nothing of size N is kept where equal numbers are adjacent."""
    group_N = np.asarray(group_N)
    head = np.concatenate(
        [np.zeros(min(1, len(group_N)), np.int64), np.flatnonzero(group_N[1:] != group_N[:-1]) + 1]
    )
    if len(np.unique(group_N[head])) == len(head):
        return GroupLayout(np.append(head, len(group_N)), None, None)
    node_N = np.argsort(group_N, kind="stable")
    place_N = np.empty_like(node_N)
    place_N[node_N] = np.arange(len(node_N))
    return GroupLayout(group_layout(group_N[node_N]).bound_G1, node_N, place_N)
