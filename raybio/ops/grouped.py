"""Torch operations on ragged rows: reduce entries by group, and look up columns in lists.

None of these functions makes the host wait for a GPU.

Shape letters: C entries, E groups, D width; N rows and G columns of a mask.
"""

import torch
from torch import Tensor


def grouped_logsumexp(value_CD: Tensor, group_C: Tensor, num_groups: int) -> Tensor:
    """Return the elementwise log-sum-exp of each group's entries (E, D); 0 for an empty group.

    The entries of a group need not be adjacent.
    """
    index_CD = group_C[:, None].expand_as(value_CD)
    largest_ED = value_CD.new_full((num_groups, value_CD.shape[1]), -torch.inf)
    largest_ED = largest_ED.scatter_reduce(0, index_CD, value_CD.detach(), "amax")
    has_rows_E1 = group_sizes(group_C, num_groups)[:, None] > 0
    largest_ED = largest_ED.where(has_rows_E1, 0.0)
    exp_CD = (value_CD - largest_ED[group_C]).exp()
    sum_ED = torch.zeros_like(largest_ED).index_add(0, group_C, exp_CD)
    return (sum_ED.where(has_rows_E1, 1.0).log() + largest_ED).where(has_rows_E1, 0.0)


def grouped_mean(value_CX: Tensor, group_C: Tensor, num_groups: int) -> Tensor:
    """Return the mean over the entries of each group (E, ...); 0 for an empty group."""
    total_EX = value_CX.new_zeros(num_groups, *value_CX.shape[1:]).index_add(0, group_C, value_CX)
    count_E = group_sizes(group_C, num_groups).clamp(min=1)
    return total_EX / count_E.view(-1, *[1] * (total_EX.ndim - 1))


def group_sizes(group_C: Tensor, num_groups: int) -> Tensor:
    """Return the number of entries of each group, int64 (E,).

    ``torch.bincount`` makes the host wait for a GPU, even if it is given the number of groups.
    """
    return group_C.new_zeros(num_groups).index_add(0, group_C, torch.ones_like(group_C))


def lists_contain(row_C: Tensor, key_C: Tensor, column_G: Tensor, num_rows: int) -> Tensor:
    """Return whether the list of each row contains the key of each column, bool (N, G).

    Memory grows with N x G only; keys may be any integers.

    Args:
        row_C: row whose list each entry belongs to.
        key_C: key of each entry, of the dtype of ``column_G``.
        column_G: key of each column; keys may repeat.
        num_rows: N.
    """
    num_columns = len(column_G)
    if num_columns == 0:
        # No columns, as on a worker without rows.
        return column_G.new_zeros(num_rows, 0, dtype=torch.bool)
    sorted_G = column_G.sort().values
    slot_C = torch.searchsorted(sorted_G, key_C.contiguous())
    is_column_C = sorted_G[slot_C.clamp(max=num_columns - 1)] == key_C
    # Keys of no column are marked in an extra column, so that no tensor's size depends on them.
    slot_C = torch.where(is_column_C, slot_C, num_columns)
    flat = torch.zeros(num_rows * (num_columns + 1), dtype=torch.bool, device=column_G.device)
    flat = flat.index_fill(0, row_C * (num_columns + 1) + slot_C, True)
    # Both searches find the first of equal keys.
    slot_G = torch.searchsorted(sorted_G, column_G.contiguous())
    return flat.view(num_rows, num_columns + 1).index_select(1, slot_G)
