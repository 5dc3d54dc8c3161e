"""Adaptive thresholding for pairs with several relations or none (ATLOP; Zhou et al., 2021).

NA's logit is the threshold: relations with a higher logit are predicted. A logit of -inf marks a
class without anything to compare with, which is ignored.

Shape letters: N pairs, R relations, NA among them.
"""

import torch
from torch import Tensor


def adaptive_threshold(logits_NR: Tensor, label_NR: Tensor, *, na_index: int) -> Tensor:
    """Return the loss (N,) of each pair, L1 + L2 (Zhou et al., 2021, Eq. 4).

        L1 = - sum over r in Pos of log(e^l_r / sum over Pos and NA of e^l)
        L2 = - log(e^l_NA / sum over Neg and NA of e^l)

    L1 raises the positive relations above NA, L2 lowers the others below it. A positive with logit
    -inf adds nothing; if NA's logit is -inf, L2 is 0.

    Args:
        logits_NR: logits, -inf for absent classes.
        label_NR: bool; NA's column is ignored: a pair without another label is NA.
        na_index: NA's column.

    Raises:
        ValueError: for inconsistent shapes, a dtype other than bool, or an invalid ``na_index``.
    """
    _check_index(logits_NR, na_index)
    if label_NR.shape != logits_NR.shape or label_NR.dtype != torch.bool:
        raise ValueError(
            f"labels are {label_NR.dtype} of shape {tuple(label_NR.shape)}, want torch.bool of "
            f"{tuple(logits_NR.shape)}"
        )
    is_absent_NR = logits_NR == -torch.inf
    # Fill with a finite value: a logsumexp of only -inf would have the gradient inf - inf.
    filling = torch.finfo(logits_NR.dtype).min / 4
    logits_NR = logits_NR.masked_fill(is_absent_NR, filling)
    is_na_R = torch.arange(logits_NR.shape[1], device=logits_NR.device) == na_index
    is_positive_NR = label_NR & ~is_na_R
    with_na_NR = is_positive_NR | is_na_R
    all_positive_N1 = logits_NR.masked_fill(~with_na_NR, filling).logsumexp(1, keepdim=True)
    all_negative_N = logits_NR.masked_fill(is_positive_NR, filling).logsumexp(1)
    l1_N = torch.where(is_positive_NR & ~is_absent_NR, all_positive_N1 - logits_NR, 0.0).sum(1)
    l2_N = torch.where(is_absent_NR[:, na_index], 0.0, all_negative_N - logits_NR[:, na_index])
    return l1_N + l2_N


def above_threshold(logits_NR: Tensor, *, na_index: int) -> Tensor:
    """Return the predictions, bool (N, R): relations with a logit above NA's; none means NA.

    Args:
        logits_NR: logits; -inf is never predicted.
        na_index: NA's column.

    Raises:
        ValueError: if ``na_index`` is no column.
    """
    _check_index(logits_NR, na_index)
    return logits_NR > logits_NR[:, na_index, None]


def _check_index(logits_NR: Tensor, na_index: int) -> None:
    if not 0 <= na_index < logits_NR.shape[1]:
        raise ValueError(
            f"na_index is {na_index}, want a column of the {logits_NR.shape[1]} logits"
        )
