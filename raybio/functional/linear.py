"""A linear classifier on fixed embeddings, fitted to its optimum.

N rows, D width, R classes, B rows of a block.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear

from raybio.functional.scores import demand_finite
from raybio.functional.similarity import at_least_fp32

_ROWS_AT_ONCE = 1 << 16
_MOST_STEPS = 1000

RowLoss = Callable[[Tensor, Tensor], Tensor]
"""Logits (B, R) and labels (B, R) -> loss (B,) of each row; convex in the logits."""


class LinearMap(NamedTuple):
    """Logits are ``row @ weight_RD.T + bias_R``."""

    weight_RD: Tensor
    bias_R: Tensor


def fit_linear(row_ND: Tensor, label_NR: Tensor, row_loss: RowLoss, *, l2: float) -> LinearMap:
    """The map of standardised rows with the least mean loss + l2 / 2 |weight|^2, given for rows as they are.

    With the cross entropy this is multinomial logistic regression, where scikit-learn's C is 1 / (l2 N). The problem is
    convex and has one optimum, which L-BFGS finds from zero: nothing is drawn. The bias is not held back.

    Args:
        row_ND: embeddings; each column is brought to mean 0 and deviation 1, a constant one to 0.
        label_NR: bool.
        row_loss: such as a cross entropy, or ``adaptive_threshold``.
        l2: how strongly weights are held back, > 0: classes that can be told apart would have no optimum.

    Raises:
        ValueError: for no rows, labels of another number, an ``l2`` that is not positive, or rows that are not finite.
    """
    if not len(row_ND) or len(label_NR) != len(row_ND):
        raise ValueError(f"got {len(row_ND)} rows and labels of {len(label_NR)}; want one each, and at least one")
    if not l2 > 0:
        raise ValueError(f"l2 is {l2}, want a number > 0")
    demand_finite(row_ND, "embeddings")
    row_ND = at_least_fp32(row_ND.detach())
    std_D, mean_D = torch.std_mean(row_ND, dim=0, correction=0)
    scale_D = torch.where(std_D > 1e-6 * mean_D.abs(), 1 / std_D, 0.0)
    with torch.enable_grad():
        weight_RD = row_ND.new_zeros(label_NR.shape[1], row_ND.shape[1]).requires_grad_()
        bias_R = row_ND.new_zeros(label_NR.shape[1]).requires_grad_()
        optimiser = torch.optim.LBFGS(
            [weight_RD, bias_R],
            max_iter=_MOST_STEPS,
            max_eval=2 * _MOST_STEPS,
            tolerance_grad=1e-6,
            tolerance_change=1e-10,
            history_size=20,
            line_search_fn="strong_wolfe",
        )

        def loss_and_gradient() -> Tensor:
            optimiser.zero_grad()
            total = l2 / 2 * weight_RD.square().sum()
            total.backward()  # type: ignore[no-untyped-call]
            for row_BD, label_BR in zip(
                torch.split(row_ND, _ROWS_AT_ONCE), torch.split(label_NR, _ROWS_AT_ONCE), strict=True
            ):
                logits_BR = linear((row_BD - mean_D) * scale_D, weight_RD, bias_R)
                part = row_loss(logits_BR, label_BR).sum() / len(row_ND)
                part.backward()  # type: ignore[no-untyped-call]
                total = total + part
            return total.detach()

        optimiser.step(loss_and_gradient)  # type: ignore[no-untyped-call]
    weight_RD, bias_R = weight_RD.detach() * scale_D, bias_R.detach()
    return LinearMap(weight_RD, bias_R - weight_RD @ mean_D)
