"""Ranks by counting the candidates with a higher score and with an equal score.

Shape letters: B anchors of a block, N candidates, P links of those anchors, U anchors that have
links, V anchors counted by one algorithm, W links of the anchor with the most links, K thresholds,
I ignored entries, Q values that are ranked among them.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

_ENTRIES_AT_ONCE = 1 << 24

_GPU_ENTRIES_AT_ONCE = 1 << 26
"""More than on a CPU, since kernel launches on a GPU cost more than memory."""


class RankCounts(NamedTuple):
    """Counts of candidates for each link, int64 (P,).

    Attributes:
        above_P: candidates with a higher score.
        at_least_P: candidates with an equal or higher score, including the other end of the link.
        tied_before_P: candidates with an equal score and a smaller index.
    """

    above_P: Tensor
    at_least_P: Tensor
    tied_before_P: Tensor


class SortedBlock(NamedTuple):
    """Scores of a block on the CPU, sorted once for several counts.

    Attributes:
        by_row_BN: each row sorted, ascending.
        score_E: all scores sorted, ascending (B * N,).
        ignored_row_I: rows of entries that are not counted.
        ignored_score_I: their scores.
    """

    by_row_BN: Tensor
    score_E: Tensor
    ignored_row_I: Tensor
    ignored_score_I: Tensor

    def ignoring(self, row_I: Tensor, score_I: Tensor) -> "SortedBlock":
        """Return the same scores, of which these entries are not counted."""
        return self._replace(ignored_row_I=row_I, ignored_score_I=score_I)

    def count_ignored(self, row_Q: Tensor, value_Q: Tensor) -> tuple[Tensor, Tensor]:
        """Count the ignored entries of a row that are higher, and as high or higher, int64 (Q,)."""
        if not len(self.ignored_row_I):
            nothing = torch.zeros_like(row_Q)
            return nothing, nothing
        scores = torch.cat([self.ignored_score_I, value_Q])
        distinct, order = torch.unique(scores, return_inverse=True)
        key = torch.cat([self.ignored_row_I, row_Q]) * len(distinct) + order
        num_ignored = len(self.ignored_row_I)
        key_I = key[:num_ignored].sort().values
        end_Q = torch.searchsorted(key_I, (row_Q + 1) * len(distinct))
        above_Q = end_Q - torch.searchsorted(key_I, key[num_ignored:], right=True)
        return above_Q, end_Q - torch.searchsorted(key_I, key[num_ignored:])


def count_ranks(
    score_BN: Tensor, row_P: Tensor, column_P: Tensor, block: SortedBlock | None = None
) -> RankCounts:
    """Rank the entries ``score_BN[row_P, column_P]`` in their rows.

    Args:
        score_BN: scores; -inf where there is no candidate.
        row_P: rows of the entries, ascending.
        column_P: columns of the entries.
        block: the same scores, to save sorting them again. Entries that it ignores are -inf in
            ``score_BN`` only.
    """
    value_P = score_BN[row_P, column_P]
    used_U, owner_P, num_U = torch.unique_consecutive(
        row_P, return_inverse=True, return_counts=True
    )
    if len(used_U) == 0:
        empty = torch.zeros(0, dtype=torch.int64, device=score_BN.device)
        return RankCounts(empty, empty, empty)
    # Position of each link among the links of its anchor.
    slot_P = torch.arange(len(row_P), device=row_P.device) - (num_U.cumsum(0) - num_U)[owner_P]
    above_P = torch.zeros_like(row_P)
    at_least_P = torch.zeros_like(row_P)
    has_few_U = num_U <= (_max_compared(score_BN) if block is None else 0)
    searched_BN = score_BN if block is None else block.by_row_BN
    by_searching = _count_by_searching if block is None else _count_in_sorted
    # Each anchor takes the cheaper algorithm, so that few anchors with many links do not slow down
    # all others.
    for count, counted_BN, is_chosen_U in (
        (_count_by_comparing, score_BN, has_few_U),
        (by_searching, searched_BN, ~has_few_U),
    ):
        link_K = torch.nonzero(is_chosen_U[owner_P])[:, 0]
        if not len(link_K):
            continue
        index_VW = (is_chosen_U.cumsum(0) - 1)[owner_P[link_K]], slot_P[link_K]
        shape = (int(is_chosen_U.sum()), int(num_U[is_chosen_U].max()))
        value_VW = torch.full(shape, torch.inf, dtype=score_BN.dtype, device=row_P.device)
        value_VW[index_VW] = value_P[link_K]
        used_V = used_U[is_chosen_U]
        score_VN = counted_BN if len(used_V) == len(score_BN) else counted_BN[used_V]
        above_VW, at_least_VW = count(score_VN, value_VW)
        above_P[link_K] = above_VW[index_VW]
        at_least_P[link_K] = at_least_VW[index_VW]
    if block is not None:
        ignored_above_P, ignored_at_least_P = block.count_ignored(row_P, value_P)
        above_P -= ignored_above_P
        at_least_P -= ignored_at_least_P
    tied_before_P = torch.zeros_like(above_P)
    tied = torch.nonzero(at_least_P - above_P > 1)[:, 0]
    index_N = torch.arange(score_BN.shape[1], device=score_BN.device)
    for part in torch.split(tied, _rows_at_once(score_BN)):
        is_equal = score_BN[row_P[part]] == value_P[part][:, None]
        tied_before_P[part] = (is_equal & (index_N < column_P[part][:, None])).sum(1)
    return RankCounts(above_P, at_least_P, tied_before_P)


def sort_if_cheap(score_BN: Tensor) -> SortedBlock | None:
    """Return the sorted scores if counts at many thresholds need them, else None."""
    return sort_block(score_BN) if _sorts_scores(score_BN) else None


def sort_block(score_BN: Tensor) -> SortedBlock:
    """Sort the scores of a block on the CPU, of which none is ignored."""
    # NumPy's sort is vectorized, many times faster than torch's.
    by_row_BN = np.sort(score_BN.numpy(), axis=1)
    score_E = np.sort(by_row_BN, axis=None)
    nothing = torch.zeros(0, dtype=torch.int64)
    return SortedBlock(
        torch.from_numpy(by_row_BN), torch.from_numpy(score_E), nothing, score_BN.new_zeros(0)
    )


def count_at_least(
    score_BN: Tensor, threshold_U: Tensor, index_K: Tensor, block: SortedBlock | None = None
) -> tuple[Tensor, Tensor]:
    """Count the entries >= each threshold, in a whole block and in each of its rows.

    Args:
        score_BN: scores.
        threshold_U: ascending.
        index_K: thresholds, ascending, at which each row is counted.
        block: the same scores; entries that it ignores are -inf in ``score_BN`` only.

    Returns:
        The number of entries of the block >= each threshold (U,), and of each row >= thresholds
        ``index_K`` (B, K); int64.
    """
    if block is not None:
        threshold_BK = threshold_U[index_K].expand(len(score_BN), -1).contiguous()
        _, by_row_BK = _count_in_sorted(block.by_row_BN, threshold_BK)
        row_BK = torch.arange(len(score_BN))[:, None].expand_as(threshold_BK)
        _, ignored_Q = block.count_ignored(row_BK.flatten(), threshold_BK.flatten())
        # There are more scores than thresholds, and sorting is faster than a search for each.
        at_least_U = _num_at_least(block.score_E, threshold_U)
        at_least_U -= _num_at_least(block.ignored_score_I.sort().values, threshold_U)
        return at_least_U, by_row_BK - ignored_Q.view_as(by_row_BK)
    num_thresholds = len(threshold_U)
    # An entry that reaches s thresholds is in slot s; it reaches row_slot[s] of the K.
    slot = torch.arange(num_thresholds + 1, device=score_BN.device)
    row_slot = torch.searchsorted(index_K, slot)
    num_by_slot = torch.zeros_like(slot)
    by_row = []
    for part_RN in torch.split(score_BN, _rows_at_once(score_BN)):
        slot_RN = torch.searchsorted(threshold_U, part_RN, right=True, out_int32=True)
        num_by_slot += torch.bincount(slot_RN.reshape(-1), minlength=len(slot))
        by_row.append(_count_by_row(row_slot[slot_RN], len(index_K) + 1))
    return _at_least(num_by_slot), _at_least(torch.cat(by_row))


def _num_at_least(ordered_E: Tensor, threshold_U: Tensor) -> Tensor:
    return len(ordered_E) - torch.searchsorted(ordered_E, threshold_U)


def _rows_at_once(score_BN: Tensor) -> int:
    entries = _GPU_ENTRIES_AT_ONCE if score_BN.is_cuda else _ENTRIES_AT_ONCE
    return max(1, entries // score_BN.shape[1])


def _count_by_row(slot_RN: Tensor, num_slots: int) -> Tensor:
    """Count the entries of each row by slot, int64 (R, S); overwrite the slots."""
    slot_RN += num_slots * torch.arange(len(slot_RN), device=slot_RN.device)[:, None]
    # Unlike scatter_add_, it is fast where torch computes deterministically.
    num_by_slot = torch.bincount(slot_RN.reshape(-1), minlength=num_slots * len(slot_RN))
    return num_by_slot.view(-1, num_slots)


def _at_least(num_by_slot: Tensor) -> Tensor:
    """Return how many entries (..., S - 1) are in slot s or higher, for each s from 1 to S - 1."""
    return num_by_slot.flip(-1).cumsum(-1).flip(-1)[..., 1:]


def _sorts_scores(score: Tensor) -> bool:
    """Return whether to rank links by sorting scores: on a GPU it is cheaper to sort the links."""
    return score.device.type == "cpu"


def _max_compared(score_BN: Tensor) -> int:
    """Return the largest number of links per anchor for which comparing is the fastest way."""
    return 2 if score_BN.device.type != "cpu" else min(3 + score_BN.shape[1] // 2000, 32)


def _count_by_searching(score_UN: Tensor, value_UW: Tensor) -> tuple[Tensor, Tensor]:
    if not _sorts_scores(score_UN):
        return _count_by_row_buckets(score_UN, value_UW)
    return _count_in_sorted(torch.from_numpy(np.sort(score_UN.numpy(), axis=1)), value_UW)


def _count_in_sorted(ordered_UN: Tensor, value_UW: Tensor) -> tuple[Tensor, Tensor]:
    num = ordered_UN.shape[1]
    above_UW = num - torch.searchsorted(ordered_UN, value_UW, right=True)
    at_least_UW = num - torch.searchsorted(ordered_UN, value_UW)
    return above_UW, at_least_UW


def _count_by_row_buckets(score_UN: Tensor, value_UW: Tensor) -> tuple[Tensor, Tensor]:
    """Count as ``_count_by_searching``, by sorting the few values instead of the scores."""
    ordered_UW, slot_UW = value_UW.sort(1)
    num_slots = value_UW.shape[1] + 1
    rows = _rows_at_once(score_UN)
    counts = []
    for side in ("left", "right"):
        # Number of values below a score ("left"), or at most as high as it ("right").
        by_row = [
            _count_by_row(torch.searchsorted(ordered_RW, score_RN, side=side), num_slots)
            for ordered_RW, score_RN in zip(
                torch.split(ordered_UW, rows), torch.split(score_UN, rows), strict=True
            )
        ]
        at_slot_UW = _at_least(torch.cat(by_row))
        counts.append(torch.empty_like(at_slot_UW).scatter_(1, slot_UW, at_slot_UW))
    return counts[0], counts[1]


def _count_by_comparing(score_UN: Tensor, value_UW: Tensor) -> tuple[Tensor, Tensor]:
    above_UW = torch.zeros(value_UW.shape, dtype=torch.int64, device=value_UW.device)
    at_least_UW = torch.zeros_like(above_UW)
    if score_UN.device.type != "cpu":
        for slot in range(value_UW.shape[1]):
            above_UW[:, slot] = (score_UN > value_UW[:, slot, None]).sum(1)
            at_least_UW[:, slot] = (score_UN >= value_UW[:, slot, None]).sum(1)
        return above_UW, at_least_UW
    # One row at a time stays in the cache, and counting in single rows is fastest in numpy.
    above = above_UW.numpy()
    at_least = at_least_UW.numpy()
    rows = zip(score_UN.numpy(), value_UW.numpy(), strict=True)
    for number, (score_N, value_W) in enumerate(rows):
        for slot, value in enumerate(value_W):
            if value == np.inf:
                break
            above[number, slot] = np.count_nonzero(score_N > value)
            at_least[number, slot] = np.count_nonzero(score_N >= value)
    return above_UW, at_least_UW
