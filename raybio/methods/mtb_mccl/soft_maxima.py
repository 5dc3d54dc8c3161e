"""Soft maxima of the scores of classes, which MCCL and the multi-center loss of MTB compare.

The soft maximum of the scores s_1..s_n of a class is the sum of w_j s_j, with the weights
w_j = softmax_j(s_j / tau1). It approaches their mean for a high tau1, their maximum for a low one.

Shape letters: E entries (a member of several classes is an entry of each), R classes, B anchors of
a block, P classes of all parts.
"""

import torch
from torch import Tensor

_ROWS_PER_SUM = 8
"""Least number of entries that are added one after the other, on average."""


def soft_maxima(
    score_EB: Tensor, is_member_EB: Tensor, class_E: Tensor, num_classes: int, temperature: float
) -> Tensor:
    """Return the soft maxima (R, B) of the scores of each class; -inf for one without members.

    Entries come first, so that sums over the entries of a class add whole rows.

    Args:
        score_EB: scores of entries for anchors.
        is_member_EB: which entries count for which anchor, bool.
        class_E: class of each entry.
        num_classes: R.
        temperature: tau1.
    """
    # The maximum needs no gradient: the soft maximum is the same whatever is subtracted.
    member_EB = score_EB.detach().masked_fill(~is_member_EB, -torch.inf)
    lowest_RB = score_EB.new_full((num_classes, score_EB.shape[1]), -torch.inf)
    index_EB = class_E[:, None].expand_as(score_EB)
    largest_RB = lowest_RB.scatter_reduce(0, index_EB, member_EB, "amax")
    is_empty_RB = largest_RB == -torch.inf
    largest_RB = largest_RB.masked_fill(is_empty_RB, 0.0)
    # Sum differences to the maximum: they are small where weights are large, and so is rounding.
    excess_EB = score_EB - largest_RB.index_select(0, class_E)
    weight_EB = (excess_EB / temperature).masked_fill(~is_member_EB, -torch.inf).exp()
    sum_RB = _sum_by_class(weight_EB, class_E, num_classes)
    mean_RB = _sum_by_class(weight_EB * excess_EB, class_E, num_classes) / sum_RB.clamp(min=1)
    return (largest_RB + mean_RB).masked_fill(is_empty_RB, -torch.inf)


def _sum_by_class(value_EB: Tensor, class_E: Tensor, num_classes: int) -> Tensor:
    """Return the sums (R, B) of the values of each class.

    Entries are divided into parts whose sums are then added: in deterministic mode, a GPU would
    otherwise add the rows of a class with most of the entries one by one.
    """
    num_parts = max(1, len(class_E) // max(1, _ROWS_PER_SUM * num_classes))
    part_E = torch.arange(len(class_E), device=class_E.device) % num_parts
    num_anchors = value_EB.shape[1]
    zero_PB = value_EB.new_zeros(num_parts * num_classes, num_anchors)
    sum_PB = zero_PB.index_add(0, part_E * num_classes + class_E, value_EB)
    return sum_PB.view(num_parts, num_classes, num_anchors).sum(0)
