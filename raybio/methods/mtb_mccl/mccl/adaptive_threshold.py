"""Adaptive threshold."""

import torch
from torch import Tensor


def adaptive_threshold(logits_NR: Tensor, label_NR: Tensor, *, na_index: int) -> Tensor:
    """Adaptive-threshold loss (N,) of each pair, L1 + L2 (Zhou et al., 2021).

        L1 = - sum over r in Pos of log(e^l_r / sum over Pos and NA of e^l),  L2 = - log(e^l_NA / sum over Neg and NA)

    L1 lifts what holds above NA, L2 presses what does not below it. A positive with logit -inf adds nothing, and with
    NA at -inf there is no L2.

    Args:
        logits_NR: logits, -inf for absent classes.
        label_NR: bool; the column of NA is not read: a pair is NA if it has no other label.
        na_index: NA's column.

    Raises:
        ValueError: if shapes, dtype or ``na_index`` do not fit.
    """
    _check_index(logits_NR, na_index)
    if label_NR.shape != logits_NR.shape or label_NR.dtype != torch.bool:
        raise ValueError(
            f"labels are {label_NR.dtype} of shape {tuple(label_NR.shape)}, want torch.bool of {tuple(logits_NR.shape)}"
        )
    is_absent_NR = logits_NR == -torch.inf
    # A finite filling: a sum over nothing but -inf would have the gradient inf - inf.
    filling = torch.finfo(logits_NR.dtype).min / 4
    logits_NR = logits_NR.masked_fill(is_absent_NR, filling)
    is_na_R = torch.arange(logits_NR.shape[1], device=logits_NR.device) == na_index
    is_positive_NR = label_NR & ~is_na_R
    with_na_NR = is_positive_NR | is_na_R
    all_positive_N1 = logits_NR.masked_fill(~with_na_NR, filling).logsumexp(1, keepdim=True)
    all_negative_N = logits_NR.masked_fill(is_positive_NR, filling).logsumexp(1)
    lift_N = torch.where(is_positive_NR & ~is_absent_NR, all_positive_N1 - logits_NR, 0.0).sum(1)
    press_N = torch.where(is_absent_NR[:, na_index], 0.0, all_negative_N - logits_NR[:, na_index])
    return lift_N + press_N


def above_threshold(logits_NR: Tensor, *, na_index: int, max_labels: int | None = None) -> Tensor:
    """Predictions, bool (N, R): the relations whose logit is above NA's, never NA itself; none of them means NA.

    Args:
        logits_NR: logits; -inf is never predicted.
        na_index: NA's column.
        max_labels: keep only relations whose logit is among a pair's so many highest, as ATLOP's code does with 4;
            None: all of them, as the paper.

    Raises:
        ValueError: if ``na_index`` is no column, or ``max_labels`` is below 1.
    """
    _check_index(logits_NR, na_index)
    is_above_NR = logits_NR > logits_NR[:, na_index, None]
    if max_labels is not None:
        if max_labels < 1:
            raise ValueError(f"max_labels is {max_labels}, want at least 1, or None for no limit")
        lowest_N1 = logits_NR.topk(min(max_labels, logits_NR.shape[1]), dim=1).values[:, -1:]
        is_above_NR &= logits_NR >= lowest_N1
    return is_above_NR


def _check_index(logits_NR: Tensor, na_index: int) -> None:
    if not 0 <= na_index < logits_NR.shape[1]:
        raise ValueError(
            f"na_index is {na_index}, want a column of the {logits_NR.shape[1]} logits"
        )
