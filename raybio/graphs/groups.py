"""Where the nodes of each group lie.

N nodes, G groups, Q queries.
"""

from dataclasses import dataclass

import numpy as np

from raybio.graphs.types import Integers, Positions


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


def group_layout(group_N: Integers) -> GroupLayout:
    """Lay out the groups; nothing of size N is kept where equal numbers are adjacent."""
    group_N = np.asarray(group_N)
    head = np.concatenate([np.zeros(min(1, len(group_N)), np.int64), np.flatnonzero(group_N[1:] != group_N[:-1]) + 1])
    if len(np.unique(group_N[head])) == len(head):
        return GroupLayout(np.append(head, len(group_N)), None, None)
    node_N = np.argsort(group_N, kind="stable")
    place_N = np.empty_like(node_N)
    place_N[node_N] = np.arange(len(node_N))
    return GroupLayout(group_layout(group_N[node_N]).bound_G1, node_N, place_N)
