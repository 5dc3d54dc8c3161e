"""Held-out links and nodes of a graph.

Shape letters: N nodes, E edges, L distinct links, G groups, C clusters, K some of the links or
clusters, R ranks of clusters, B edges of a block.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from raybio.core.arrays import Integers
from raybio.ops.segments import Positions

EDGES_AT_ONCE = 1 << 20

MIN_FILLED = 0.9
"""No more clusters are held out once this fraction of the wanted links is reached."""


def hold_out_links(
    edge_E2: ArrayLike,
    num_nodes: int,
    group_N: ArrayLike,
    *,
    share: float,
    rng: np.random.Generator,
    rng_of_groups: np.random.Generator | None = None,
) -> NDArray[np.bool_]:
    """Choose the edges to keep out of training: a random share of each group's links.

    No node becomes isolated: every node with a link keeps at least one. Links are drawn uniformly.
    Where a draw would isolate a node, one of its links is returned for good and another one is
    drawn, until the group's number is reached or no link is left. The result depends on the set of
    links, not on the order of the edges.

    Args:
        edge_E2: (E, 2) integers in [0, num_nodes). Copies of an edge, in either direction, go
            together; self pairs stay.
        num_nodes: N.
        group_N: (N,) integers; a link belongs to the group of its smaller end.
        share: fraction of links, in [0, 1].
        rng: draws the links: a number a distinct link, in ascending order.
        rng_of_groups: draws the rounding of the groups' numbers of links, one number per group;
            None: ``rng`` does, afterwards.

    Returns:
        (E,) True where an edge is held out.

    Raises:
        ValueError: for a share outside [0, 1].
    """
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"share is {share}, want a number in [0, 1]")
    edge = np.asarray(edge_E2).reshape(-1, 2)
    pair = np.flatnonzero(edge[:, 0] != edge[:, 1])
    low = edge[pair].min(axis=1).astype(np.int64)
    high = edge[pair].max(axis=1)
    key_L, link = np.unique(low * max(num_nodes, 1) + high, return_inverse=True)
    end_L2 = np.stack(np.divmod(key_L, max(num_nodes, 1)), axis=1)
    degree_N = _degree(end_L2, num_nodes)
    random_L = rng.random(len(key_L))
    _, group_L = np.unique(np.asarray(group_N)[end_L2[:, 0]], return_inverse=True)
    num_links_G = np.bincount(group_L)
    # Round at random: with rounding down, many small groups would hold out nothing.
    wanted_G = share * num_links_G + (rng_of_groups or rng).random(len(num_links_G))
    wanted_G = np.floor(wanted_G).astype(np.int64)
    order = np.lexsort([random_L, group_L])
    # The only link of a node is never held out.
    order = order[(degree_N[end_L2[order]] > 1).all(axis=1)]
    while True:
        drawn = order[_index_in_run(group_L[order]) < wanted_G[group_L[order]]]
        returned = _isolating(end_L2[drawn], degree_N)
        if len(returned) == 0:
            break
        is_kept_L = np.zeros(len(key_L), dtype=bool)
        is_kept_L[drawn[returned]] = True
        order = order[~is_kept_L[order]]
    is_held_L = np.zeros(len(key_L), dtype=bool)
    is_held_L[drawn] = True
    is_held_E = np.zeros(len(edge), dtype=bool)
    is_held_E[pair] = is_held_L[link]
    return is_held_E


def hold_out_nodes(
    edge_E2: ArrayLike, cluster_N: ArrayLike, *, share: float, rng: np.random.Generator
) -> NDArray[np.bool_]:
    """Choose the nodes whose links are kept out of training: whole clusters, drawn at random.

    Clusters are drawn until the links of their nodes reach ``MIN_FILLED`` of the wanted share of
    all links. A cluster that would exceed the share, alone or with the others, stays in training.

    Args:
        edge_E2: (E, 2) distinct links.
        cluster_N: (N,) cluster of each node.
        share: fraction of links, in [0, 1].
        rng: draws the clusters.

    Returns:
        (N,) True where a node is held out.
    """
    edge = np.asarray(edge_E2).reshape(-1, 2)
    _, number_N = np.unique(np.asarray(cluster_N), return_inverse=True)
    num_clusters = int(number_N.max(initial=-1)) + 1
    wanted = share * len(edge)
    blocks = [slice(i, i + EDGES_AT_ONCE) for i in range(0, len(edge), EDGES_AT_ONCE)]
    num_links_C = np.zeros(num_clusters, np.int64)
    for block in blocks:
        end_B2 = number_N[edge[block]]
        is_inner_B = end_B2[:, 0] == end_B2[:, 1]
        num_links_C += np.bincount(end_B2.ravel(), minlength=num_clusters)
        num_links_C -= np.bincount(end_B2[is_inner_B, 0], minlength=num_clusters)
    order_C = np.lexsort([rng.permutation(num_clusters), num_links_C > wanted])
    candidate_K = order_C[: int((num_links_C <= wanted).sum())]
    is_held_C = np.zeros(num_clusters, dtype=bool)
    while len(candidate_K):
        # 0: clusters that are held out. Then the candidates, and clusters that stay in training.
        rank_C = np.full(num_clusters, len(candidate_K) + 1)
        rank_C[is_held_C] = 0
        rank_C[candidate_K] = np.arange(1, len(candidate_K) + 1)
        num_first_R = np.zeros(len(candidate_K) + 2, np.int64)
        for block in blocks:
            # A link is held out with the first of its two clusters.
            first_B = rank_C[number_N[edge[block]]].min(axis=1)
            num_first_R += np.bincount(first_B, minlength=len(num_first_R))
        num_held_R = np.cumsum(num_first_R[:-1])
        num_fitting = int(np.searchsorted(num_held_R, wanted, side="right")) - 1
        is_held_C[candidate_K[:num_fitting]] = True
        if num_held_R[num_fitting] >= MIN_FILLED * wanted:
            break
        # With the next one there would be too many links.
        candidate_K = candidate_K[num_fitting + 1 :]
    is_held_N: NDArray[np.bool_] = is_held_C[number_N]
    return is_held_N


def newest_links(edge_E2: ArrayLike, date_N: ArrayLike, *, share: float) -> NDArray[np.bool_]:
    """Choose the edges to keep out of training: the edges of the newest nodes.

    An edge has the date of its newer end. All edges after a date are held out: the date whose share
    of held-out edges is closest to the wanted one, with some edges on both sides.

    Args:
        edge_E2: (E, 2) distinct links.
        date_N: (N,) date of each node, as a number that grows with time.
        share: fraction of links, in (0, 1).

    Returns:
        (E,) True where an edge is held out.

    Raises:
        ValueError: if all edges have the same date.
    """
    date_E = np.asarray(date_N)[np.asarray(edge_E2).reshape(-1, 2)].max(axis=1)
    dates, num_dated = np.unique(date_E, return_counts=True)
    if len(dates) < 2:
        raise ValueError("all links have the same date")
    share_above = 1.0 - np.cumsum(num_dated)[:-1] / len(date_E)
    last_of_training = dates[np.argmin(np.abs(share_above - share))]
    is_newer_E: NDArray[np.bool_] = date_E > last_of_training
    return is_newer_E


def _isolating(end_K2: Integers, degree_N: Positions) -> Positions:
    """Return the last link of each node that would lose all its links with ``end_K2``."""
    is_isolated_N = (_degree(end_K2, len(degree_N)) == degree_N) & (degree_N > 0)
    last_N = np.full(len(degree_N), -1)
    for side in (0, 1):
        np.maximum.at(last_N, end_K2[:, side], np.arange(len(end_K2)))
    last: Positions = np.unique(last_N[is_isolated_N])
    return last


def _degree(end_K2: Integers, num_nodes: int) -> Positions:
    degree_N: Positions = np.bincount(end_K2.ravel(), minlength=num_nodes)
    return degree_N


def _index_in_run(sorted_K: Integers) -> Positions:
    """Return 0, 1, 2, ... within each run of equal entries."""
    if len(sorted_K) == 0:
        return np.zeros(0, dtype=np.int64)
    head = np.concatenate([[0], np.flatnonzero(sorted_K[1:] != sorted_K[:-1]) + 1])
    start_K: Positions = np.repeat(head, np.diff(np.append(head, len(sorted_K))))
    return np.arange(len(sorted_K)) - start_K
