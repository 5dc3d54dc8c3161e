"""Average precision of all pairs of a group in one list, and each anchor's contribution to it.

The precision at a link's score counts the pairs of all anchors. So an anchor raises the average
precision by its own links and lowers it by its pairs without a link, wherever links of others rank
below them.

Shape letters: A anchors, P links, U distinct scores of links (ascending), K of these at which pairs
are counted for each anchor.
"""

import numpy as np

from raybio.core.arrays import Floats, Int64s

MAX_COUNTED = 128
"""Maximum number of scores at which the pairs of each anchor are counted."""


def counted_thresholds(num_thresholds: int) -> Int64s:
    """Return the indices (K,), ascending, of the thresholds at which anchors' pairs are counted.

    If there are few, these are all. Otherwise they are the highest and the lowest, and geometric
    steps down from the highest, since precision changes fastest at the top of the list.
    """
    if num_thresholds <= MAX_COUNTED:
        return np.arange(num_thresholds)
    rank_K = np.unique(np.geomspace(1, num_thresholds, MAX_COUNTED).astype(np.int64))
    return num_thresholds - rank_K[::-1]


def average_precision_contributions(
    anchor_P: Int64s,
    threshold_P: Int64s,
    num_pairs_U: Int64s,
    num_pairs_AK: Int64s,
    index_K: Int64s,
) -> Floats:
    """Return contributions (A,) of anchors, whose mean is the average precision of the group.

    Over a resample of the anchors, the mean of the contributions is, to first order, the average
    precision of a list of the drawn anchors' pairs, ranked anew (the infinitesimal jackknife, Efron
    1982): the average precision is linearized in the weights of anchors. The derivative with
    respect to the weight of anchor a, at equal weights, is

        (sum over links of a of precision                      its links are hits,
         + sum over all links of (links of a >= score) / N     which raise others' precision,
         - sum over all links of precision (pairs of a >= score) / N    as its pairs lower it,
         - average precision * links of a) / P,

    where N is the number of pairs that score at least as high as the link. Between the counted
    thresholds, the pairs of an anchor are taken to be as dense as those of the group.

    Args:
        anchor_P: number of each link's anchor, ascending; every anchor has a link.
        threshold_P: index (0 to U - 1) of the threshold that equals the link's score.
        num_pairs_U: pairs of the group that score at least as high.
        num_pairs_AK: the same for the pairs of each anchor, at thresholds ``index_K``.
        index_K: counted thresholds (see ``counted_thresholds``).
    """
    num_links = len(anchor_P)
    links_at_U = np.bincount(threshold_P)
    precision_U = links_at_U[::-1].cumsum()[::-1] / num_pairs_U
    average_precision = float(links_at_U @ precision_U) / num_links
    raised_U = (links_at_U / num_pairs_U).cumsum()
    lowered_U = links_at_U * precision_U / num_pairs_U
    # Numbers of pairs descend with the threshold, and ``np.interp`` wants them ascending.
    last = len(index_K) - 1
    slot_U = last - np.interp(num_pairs_U, num_pairs_U[index_K][::-1], np.arange(last + 1.0))
    below_U = np.floor(slot_U).astype(np.int64)
    share_above_U = slot_U - below_U
    lowered_K = np.bincount(below_U, lowered_U * (1 - share_above_U), last + 2)
    lowered_K += np.bincount(below_U + 1, lowered_U * share_above_U, last + 2)
    # A sum over each row, unlike a matrix product, is the same however workers divide the rows.
    lowered_A = (num_pairs_AK * lowered_K[:-1]).sum(axis=1)
    contribution_P = precision_U[threshold_P] + raised_U[threshold_P] - average_precision
    derivative_A = (np.bincount(anchor_P, contribution_P) - lowered_A) / num_links
    return average_precision + len(derivative_A) * (derivative_A - derivative_A.mean())
