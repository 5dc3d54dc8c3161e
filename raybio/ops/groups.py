"""What the rows of each group come to; a group's rows need not stand together.

Shape letters: C rows, E groups, D width.
"""

import torch
from torch import Tensor


def log_sum_exp_by(value_CD: Tensor, group_C: Tensor, num_groups: int) -> Tensor:
    """Elementwise log-sum-exp of the rows of each group (E, D); zero for a group without rows."""
    index_CD = group_C[:, None].expand_as(value_CD)
    largest_ED = value_CD.new_full((num_groups, value_CD.shape[1]), -torch.inf)
    largest_ED = largest_ED.scatter_reduce(0, index_CD, value_CD.detach(), "amax")
    has_rows_E1 = torch.bincount(group_C, minlength=num_groups)[:, None] > 0
    largest_ED = largest_ED.where(has_rows_E1, 0.0)
    sum_ED = torch.zeros_like(largest_ED).index_add(
        0, group_C, (value_CD - largest_ED[group_C]).exp()
    )
    return (sum_ED.where(has_rows_E1, 1.0).log() + largest_ED).where(has_rows_E1, 0.0)


def mean_by(value_CX: Tensor, group_C: Tensor, num_groups: int) -> Tensor:
    """Mean of the rows of each group (E, ...); zero for a group without rows."""
    total_EX = value_CX.new_zeros(num_groups, *value_CX.shape[1:]).index_add(0, group_C, value_CX)
    count_E = torch.bincount(group_C, minlength=num_groups).clamp(min=1)
    return total_EX / count_E.view(-1, *[1] * (total_EX.ndim - 1))
