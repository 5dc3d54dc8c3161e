"""Torch operations on ragged rows: select the entries of some rows, and reduce entries by group.

Shape letters: R rows, M selected rows, K entries of the selected rows; C entries, E groups, D
width.
"""

import torch
from torch import Tensor


def gather_segments(indptr_R1: Tensor, row_M: Tensor) -> tuple[Tensor, Tensor]:
    """Return the index of every entry of rows ``row_M``, and its row's position in ``row_M``.

    Row r has the entries ``indptr_R1[r]`` to ``indptr_R1[r + 1]``. Both results have shape (K,).
    """
    length_M = indptr_R1.diff()[row_M]
    owner_K = torch.repeat_interleave(torch.arange(len(row_M), device=row_M.device), length_M)
    start_M = length_M.cumsum(0) - length_M
    offset_K = torch.arange(len(owner_K), device=row_M.device) - start_M[owner_K]
    return indptr_R1[row_M][owner_K] + offset_K, owner_K


def segment_starts(indptr_R1: Tensor, row_M: Tensor) -> Tensor:
    """Return where each of rows ``row_M`` starts once these rows are concatenated, shape (M,)."""
    length_M = indptr_R1.diff()[row_M]
    return length_M.cumsum(0) - length_M


def grouped_logsumexp(value_CD: Tensor, group_C: Tensor, num_groups: int) -> Tensor:
    """Return the elementwise log-sum-exp of each group's entries (E, D); 0 for an empty group.

    The entries of a group need not be adjacent.
    """
    index_CD = group_C[:, None].expand_as(value_CD)
    largest_ED = value_CD.new_full((num_groups, value_CD.shape[1]), -torch.inf)
    largest_ED = largest_ED.scatter_reduce(0, index_CD, value_CD.detach(), "amax")
    has_rows_E1 = torch.bincount(group_C, minlength=num_groups)[:, None] > 0
    largest_ED = largest_ED.where(has_rows_E1, 0.0)
    exp_CD = (value_CD - largest_ED[group_C]).exp()
    sum_ED = torch.zeros_like(largest_ED).index_add(0, group_C, exp_CD)
    return (sum_ED.where(has_rows_E1, 1.0).log() + largest_ED).where(has_rows_E1, 0.0)


def grouped_mean(value_CX: Tensor, group_C: Tensor, num_groups: int) -> Tensor:
    """Return the mean over the entries of each group (E, ...); 0 for an empty group."""
    total_EX = value_CX.new_zeros(num_groups, *value_CX.shape[1:]).index_add(0, group_C, value_CX)
    count_E = torch.bincount(group_C, minlength=num_groups).clamp(min=1)
    return total_EX / count_E.view(-1, *[1] * (total_EX.ndim - 1))
