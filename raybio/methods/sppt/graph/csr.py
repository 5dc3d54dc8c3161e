"""Undirected graphs as compressed sparse rows.

The neighbors of node u are ``indices[indptr[u] : indptr[u + 1]]``, ascending. A group (a species, a
component) is a set of nodes; negatives of a node come from its own group.

Shape letters: N nodes, E undirected edges, Q queries, S samples a query, R rows and C columns of a
batch.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from raybio.core.arrays import Integers
from raybio.core.errors import DataError
from raybio.methods.sppt.graph.edge_table import EdgeTable, build_edge_table
from raybio.methods.sppt.graph.groups import GroupLayout, group_layout
from raybio.methods.sppt.graph.negatives import sample_non_neighbors
from raybio.ops.segments import Positions, expand, lower_bound

_QUERIES_AT_ONCE = 1 << 15
"""Queries that are looked up together: their temporaries stay in the L2 cache."""


@dataclass(frozen=True, eq=False)
class Graph:
    """An immutable simple undirected graph over nodes 0..N-1.

    Its arrays may be memory-mapped; they are never copied.

    Attributes:
        indptr: (N + 1,) int32 or int64.
        indices: (2E,) int32 or int64: each edge from both ends, ascending in each row, no self
            pair, no duplicate.
        group_N: (N,) group number of each node; None makes one group of all nodes. Where equal
            numbers are adjacent, groups cost no memory.
    """

    indptr: Integers
    indices: Integers
    group_N: Integers = None  # type: ignore[assignment]  # replaced below

    def __post_init__(self) -> None:
        """Check the shapes. The order within rows is not checked: ``from_edges`` guarantees it."""
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
        """Return the graph of pairs in any order and direction, without self pairs and repetitions.

        Memory: about 50 bytes an edge.

        Args:
            edge_E2: (E, 2) integers.
            num_nodes: N.
            group_N: (N,) integers, or None for one group.

        Raises:
            DataError: for a node id outside [0, num_nodes).
            ValueError: for arrays of another shape or type.
        """
        group = None if group_N is None else np.asarray(group_N)
        indptr, indices = _compress(_checked_edges(edge_E2, num_nodes), num_nodes)
        return cls(indptr, indices, group)  # type: ignore[arg-type]

    @property
    def num_nodes(self) -> int:
        """Number of nodes N."""
        return len(self.indptr) - 1

    @property
    def num_edges(self) -> int:
        """Number of undirected edges E, each counted once."""
        return len(self.indices) // 2

    @cached_property
    def degree_N(self) -> Positions:  # shape letters
        """Number of neighbors of each node."""
        return np.diff(self.indptr).astype(np.int64)

    def has_edge(self, u: ArrayLike, v: ArrayLike) -> NDArray[np.bool_]:
        """Return whether each pair is linked; ``u`` and ``v`` broadcast.

        Small queries search the shorter of the two rows. The first query of at least a quarter of
        the number of edges builds a hash table of 8 to 16 bytes an edge, which the graph keeps.

        Raises:
            ValueError: for a node that is not in the graph.
        """
        u_array, v_array = np.broadcast_arrays(np.asarray(u), np.asarray(v))
        left_Q = self._as_nodes(u_array)
        right_Q = self._as_nodes(v_array)
        is_linked_Q = np.zeros(len(left_Q), dtype=bool)
        if len(self.indices) == 0:
            return is_linked_Q.reshape(u_array.shape)
        is_large = len(left_Q) >= max(_QUERIES_AT_ONCE, self.num_edges // 4)
        table = self._table if is_large or "_table" in vars(self) else None
        look_up = self._has_edge if table is None else table.has
        for start in range(0, len(left_Q), _QUERIES_AT_ONCE):
            chunk = slice(start, start + _QUERIES_AT_ONCE)
            is_linked_Q[chunk] = look_up(left_Q[chunk], right_Q[chunk])
        return is_linked_Q.reshape(u_array.shape)

    def sample_neighbors(self, nodes: ArrayLike, num: int, rng: np.random.Generator) -> Positions:
        """Draw uniform neighbors with replacement, shape (len(nodes), num).

        Raises:
            ValueError: for a node without a neighbor, or one that is not in the graph.
        """
        node_Q = self._as_nodes(nodes)
        start_Q = self.indptr[node_Q].astype(np.int64)
        degree_Q = self.indptr[node_Q + 1] - start_Q
        if len(node_Q) and degree_Q.min() == 0:
            isolated = node_Q[degree_Q == 0]
            raise ValueError(
                f"{len(isolated)} of {len(node_Q)} nodes have no neighbor (the first: "
                f"{isolated[0]}); drop isolated nodes before positives are drawn"
            )
        offset_QS = rng.integers(0, degree_Q[:, None], size=(len(node_Q), num))
        neighbor_QS: Positions = self.indices[start_Q[:, None] + offset_QS].astype(np.int64)
        return neighbor_QS

    def sample_negatives(self, nodes: ArrayLike, num: int, rng: np.random.Generator) -> Positions:
        """Draw exactly uniform non-neighbors from each node's own group, with replacement.

        No rejection: r is drawn below the number of allowed nodes, and a binary search in the
        sorted row finds the r-th of them. So each negative costs one draw, also for a hub or in a
        nearly complete group.

        If a node's group holds only the node and its neighbors, the fallback is uniform over the
        non-neighbors in all other groups. Callers count such negatives by comparing groups.

        Returns:
            Nodes (len(nodes), num).

        Raises:
            ValueError: for a node that is linked to all others, or one that is not in the graph.
        """
        node_Q = self._as_nodes(nodes)
        layout = self._layout
        if layout.node_N is None or layout.position_N is None:
            first_Q, end_Q = layout.range_of(node_Q)
            return sample_non_neighbors(self.indptr, self.indices, node_Q, first_Q, end_Q, num, rng)
        position_Q = layout.position_N[node_Q]
        first_Q, end_Q = layout.range_of(position_Q)
        indptr, indices = self._rows_by_group
        position_QS = sample_non_neighbors(indptr, indices, position_Q, first_Q, end_Q, num, rng)
        return layout.node_N[position_QS]

    def without(self, is_left_out_N: NDArray[np.bool_]) -> tuple["Graph", Positions]:
        """Return the graph without some nodes, renumbered, and the old numbers of its nodes.

        Raises:
            ValueError: if a node that is left out has neighbors.
        """
        if self.degree_N[is_left_out_N].any():
            raise ValueError("a node that is left out has neighbors, want none")
        node_M = np.flatnonzero(~is_left_out_N)
        new_N = np.zeros(self.num_nodes, dtype=self.indices.dtype)
        new_N[node_M] = np.arange(len(node_M))
        # Rows of the others are empty, so the remaining ones are adjacent.
        indptr = np.append(self.indptr[node_M], self.indptr[-1])
        return Graph(indptr, new_N[self.indices], self.group_N[node_M]), node_M

    def links_into(self, rows_R: ArrayLike, columns_C: ArrayLike) -> tuple[Positions, Integers]:
        """Return the links of some nodes to a set of nodes.

        Args:
            rows_R: nodes; each copy of a node has its links.
            columns_C: the set; copies of a node count once.

        Returns:
            The position in ``rows_R`` of each link, ascending, and the node in the set.
        """
        row_R = self._as_nodes(rows_R)
        start_R = self.indptr[row_R].astype(np.int64)
        entry, owner = expand(start_R, self.indptr[row_R + 1] - start_R)
        neighbor = self.indices[entry]
        # Fresh pages of zeros: only the touched ones cost anything.
        is_column_N = np.zeros(self.num_nodes, dtype=bool)
        is_column_N[self._as_nodes(columns_C)] = True
        hit = np.flatnonzero(is_column_N[neighbor])
        return owner[hit], neighbor[hit]

    @cached_property
    def _layout(self) -> GroupLayout:
        return group_layout(self.group_N)

    @cached_property
    def _table(self) -> EdgeTable | None:
        return build_edge_table(self.indptr, self.indices)

    @cached_property
    def _rows_by_group(self) -> tuple[Integers, Integers]:
        """The same graph with nodes renumbered by position in the group layout."""
        position_N = self._layout.position_N
        assert position_N is not None
        source = np.repeat(position_N, self.degree_N)
        return _compress(np.stack([source, position_N[self.indices]], axis=1), self.num_nodes)

    def _has_edge(self, left_Q: Positions, right_Q: Positions) -> NDArray[np.bool_]:
        """Return whether each pair is linked, by binary search in the shorter row."""
        low_Q = self.indptr[left_Q].astype(np.int64)
        other_low_Q = self.indptr[right_Q].astype(np.int64)
        length_Q = self.indptr[left_Q + 1] - low_Q
        other_length_Q = self.indptr[right_Q + 1] - other_low_Q
        swap_Q = other_length_Q < length_Q
        low_Q = np.where(swap_Q, other_low_Q, low_Q)
        length_Q = np.where(swap_Q, other_length_Q, length_Q)
        wanted_Q = np.where(swap_Q, left_Q, right_Q).astype(self.indices.dtype)
        entry_Q = lower_bound(self.indices, low_Q, length_Q, wanted_Q)
        is_equal_Q: NDArray[np.bool_] = (
            self.indices[np.minimum(entry_Q, len(self.indices) - 1)] == wanted_Q
        )
        return is_equal_Q & (entry_Q < low_Q + length_Q)

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
    """Return (indptr, indices) of a graph, by one sort of the pairs as single numbers."""
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
