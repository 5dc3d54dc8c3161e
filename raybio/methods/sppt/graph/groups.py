"""Nodes of a graph in order of group, so that a group is a range of positions.

Shape letters: N nodes, G groups, Q queries.
"""

from dataclasses import dataclass

import numpy as np

from raybio.core.arrays import Integers
from raybio.ops.segments import Positions


@dataclass(frozen=True)
class GroupLayout:
    """Positions of the nodes when they are sorted by group.

    Attributes:
        bound_G1: group g holds the positions ``[bound_G1[g], bound_G1[g + 1])``.
        node_N: node at each position, ascending within a group; None where groups are ranges of
            nodes already.
        position_N: position of each node; None likewise.
    """

    bound_G1: Positions
    node_N: Positions | None
    position_N: Positions | None

    def range_of(self, position_Q: Positions) -> tuple[Positions, Positions]:
        """Return the first position and the end of the group that holds each position."""
        group_Q = np.searchsorted(self.bound_G1, position_Q, side="right") - 1
        return self.bound_G1[group_Q], self.bound_G1[group_Q + 1]


def group_layout(group_N: Integers) -> GroupLayout:
    """Return the layout of groups; where equal numbers are adjacent, it holds nothing of size N."""
    group_N = np.asarray(group_N)
    first = np.zeros(min(1, len(group_N)), np.int64)
    head = np.concatenate([first, np.flatnonzero(group_N[1:] != group_N[:-1]) + 1])
    if len(np.unique(group_N[head])) == len(head):
        return GroupLayout(np.append(head, len(group_N)), None, None)
    node_N = np.argsort(group_N, kind="stable")
    position_N = np.empty_like(node_N)
    position_N[node_N] = np.arange(len(node_N))
    return GroupLayout(group_layout(group_N[node_N]).bound_G1, node_N, position_N)
