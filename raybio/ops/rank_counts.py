"""Ranks by counting: how many candidates score above, and how many score as high.

B anchors of a block, N candidates, P links of those anchors.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

_ENTRIES_AT_ONCE = 1 << 24


class RankCounts(NamedTuple):
    """Counts of candidates for each link, int64 (P,).

    Attributes:
        above_P: with a higher score.
        at_least_P: with a score as high or higher; the other end of the link is one of them.
        tied_before_P: with an equal score and a smaller index.
    """

    above_P: Tensor
    at_least_P: Tensor
    tied_before_P: Tensor


def count_ranks(score_BN: Tensor, row_P: Tensor, column_P: Tensor) -> RankCounts:
    """Rank the entries ``score_BN[row_P, column_P]`` in their rows.

    Args:
        score_BN: scores; -inf for what is no candidate.
        row_P: rows of the entries, ascending.
        column_P: their columns.
    """
    value_P = score_BN[row_P, column_P]
    used_U, place_P, num_U = torch.unique_consecutive(
        row_P, return_inverse=True, return_counts=True
    )
    if len(used_U) == 0:
        nothing = torch.zeros(0, dtype=torch.int64, device=score_BN.device)
        return RankCounts(nothing, nothing, nothing)
    slot_P = torch.arange(len(row_P), device=row_P.device) - (num_U.cumsum(0) - num_U)[place_P]
    above_P, at_least_P = torch.zeros_like(row_P), torch.zeros_like(row_P)
    is_few_U = num_U <= _compare_at_most(score_BN)
    # A few rows with many links must not make sorting worth while for all.
    for count, is_here_U in ((_count_by_comparing, is_few_U), (_count_by_sorting, ~is_few_U)):
        here_P = torch.nonzero(is_here_U[place_P])[:, 0]
        if len(here_P):
            row_V = (is_here_U.cumsum(0) - 1)[place_P[here_P]], slot_P[here_P]
            width = int(num_U[is_here_U].max())
            value_VW = torch.full(
                (int(is_here_U.sum()), width), torch.inf, dtype=score_BN.dtype, device=row_P.device
            )
            value_VW[row_V] = value_P[here_P]
            used_V = used_U[is_here_U]
            above_VW, at_least_VW = count(
                score_BN if len(used_V) == len(score_BN) else score_BN[used_V], value_VW
            )
            above_P[here_P], at_least_P[here_P] = above_VW[row_V], at_least_VW[row_V]
    tied_before_P = torch.zeros_like(above_P)
    tied = torch.nonzero(at_least_P - above_P > 1)[:, 0]
    index_N = torch.arange(score_BN.shape[1], device=score_BN.device)
    for part in torch.split(tied, max(1, _ENTRIES_AT_ONCE // score_BN.shape[1])):
        is_equal = score_BN[row_P[part]] == value_P[part][:, None]
        tied_before_P[part] = (is_equal & (index_N < column_P[part][:, None])).sum(1)
    return RankCounts(above_P, at_least_P, tied_before_P)


def count_at_least(score_BN: Tensor, threshold_U: Tensor) -> Tensor:
    """How many entries of the block reach each of the ascending thresholds, int64 (U,). Overwrites ``score_BN``."""
    flat = score_BN.view(-1)
    if flat.device.type == "cpu":
        flat.numpy().sort()  # vectorised, and many times faster than torch's
    else:
        flat = flat.sort().values
    return len(flat) - torch.searchsorted(flat, threshold_U)


def _compare_at_most(score_BN: Tensor) -> int:
    """Up to so many links of an anchor, comparing its row with each of them is faster than sorting it once."""
    return 32 if score_BN.device.type != "cpu" else min(3 + score_BN.shape[1] // 2000, 32)


def _count_by_sorting(score_UN: Tensor, value_UW: Tensor) -> tuple[Tensor, Tensor]:
    if score_UN.device.type == "cpu":
        ordered_UN = torch.from_numpy(np.sort(score_UN.numpy(), axis=1))
    else:
        ordered_UN = score_UN.sort(1).values
    num = score_UN.shape[1]
    return num - torch.searchsorted(ordered_UN, value_UW, right=True), num - torch.searchsorted(
        ordered_UN, value_UW
    )


def _count_by_comparing(score_UN: Tensor, value_UW: Tensor) -> tuple[Tensor, Tensor]:
    above_UW = torch.zeros(value_UW.shape, dtype=torch.int64, device=value_UW.device)
    at_least_UW = torch.zeros_like(above_UW)
    if score_UN.device.type != "cpu":
        for slot in range(value_UW.shape[1]):
            above_UW[:, slot] = (score_UN > value_UW[:, slot, None]).sum(1)
            at_least_UW[:, slot] = (score_UN >= value_UW[:, slot, None]).sum(1)
        return above_UW, at_least_UW
    # A row at a time stays in the cache, and counting single rows is numpy's fastest way to count.
    above, at_least = above_UW.numpy(), at_least_UW.numpy()
    for number, (score_N, value_W) in enumerate(
        zip(score_UN.numpy(), value_UW.numpy(), strict=True)
    ):
        for slot, value in enumerate(value_W):
            if value == np.inf:
                break
            above[number, slot] = np.count_nonzero(score_N > value)
            at_least[number, slot] = np.count_nonzero(score_N >= value)
    return above_UW, at_least_UW
