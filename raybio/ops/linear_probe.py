"""A linear classifier on fixed embeddings, fitted to its optimum.

N rows, D width, R classes, B rows of a block.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear

from raybio.ops.scores import check_finite
from raybio.ops.similarity import at_least_fp32

_ROWS_AT_ONCE = 1 << 16


_MOST_STEPS = 300


RowLoss = Callable[[Tensor, Tensor], Tensor]
"""Logits (B, R) and labels (B, R) -> loss (B,) of each row; convex in the logits."""


MeanLoss = Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
"""Weight (R, D) and bias (R,) -> the mean over rows, and its gradients by both."""


class LinearMap(NamedTuple):
    """Logits are ``row @ weight_RD.T + bias_R``."""

    weight_RD: Tensor
    bias_R: Tensor


def fit_linear(row_ND: Tensor, label_NR: Tensor, row_loss: RowLoss, *, l2: float) -> LinearMap:
    """The map of standardised rows with the least mean loss + l2 / 2 |weight|^2, given for rows as they are.

    With the cross entropy this is multinomial logistic regression, where scikit-learn's C is 1 / (l2 N). The problem is
    convex and has one optimum, which L-BFGS nears from zero, in at most 300 steps: nothing is drawn. The bias is not
    held back.

    Args:
        row_ND: embeddings; each column is brought to mean 0 and deviation 1, a constant one to 0.
        label_NR: bool.
        row_loss: such as a cross entropy, or ``adaptive_threshold``.
        l2: how strongly weights are held back, > 0: classes that can be told apart would have no optimum.

    Raises:
        ValueError: for no rows, labels of another number, an ``l2`` that is not positive, or rows that are not finite.
    """
    if not len(row_ND) or len(label_NR) != len(row_ND):
        raise ValueError(
            f"got {len(row_ND)} rows and labels of {len(label_NR)}; want one each, and at least one"
        )
    if not l2 > 0:
        raise ValueError(f"l2 is {l2}, want a number > 0")
    check_finite(row_ND, "embeddings")
    row_ND = at_least_fp32(row_ND.detach())
    std_D, mean_D = torch.std_mean(row_ND, dim=0, correction=0)
    scale_D = torch.where(std_D > 1e-6 * mean_D.abs(), 1 / std_D, 0.0)

    def mean_loss(weight_RD: Tensor, bias_R: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        total = row_ND.new_zeros(())
        steep_RD, steep_R = torch.zeros_like(weight_RD), torch.zeros_like(bias_R)
        for row_BD, label_BR in _blocks(row_ND, label_NR):
            standard_BD = (row_BD - mean_D) * scale_D
            logits_BR = linear(standard_BD, weight_RD, bias_R).requires_grad_()
            part = row_loss(logits_BR, label_BR).sum() / len(row_ND)
            (steep_BR,) = torch.autograd.grad(part, logits_BR)
            steep_RD, steep_R = steep_RD + steep_BR.T @ standard_BD, steep_R + steep_BR.sum(0)
            total = total + part.detach()
        return total, steep_RD, steep_R

    covariance_DD = row_ND.new_zeros(row_ND.shape[1], row_ND.shape[1])
    for row_BD in torch.split(row_ND, _ROWS_AT_ONCE):
        standard_BD = (row_BD - mean_D) * scale_D
        covariance_DD += standard_BD.T @ standard_BD / len(row_ND)
    share_R = (label_NR.sum(0) + 1).to(row_ND.dtype) / (len(row_ND) + 2)
    weight_RD, bias_R = minimize_regularized(mean_loss, covariance_DD, share_R, l2=l2)
    weight_RD = weight_RD * scale_D
    return LinearMap(weight_RD, bias_R - weight_RD @ mean_D)


def minimize_regularized(
    mean_loss: MeanLoss, covariance_DD: Tensor, share_R: Tensor, *, l2: float
) -> LinearMap:
    """The map with the least ``mean_loss`` + l2 / 2 |weight|^2, by L-BFGS from zero in at most 300 steps.

    Embeddings differ a thousand times more along some directions than along others, and a loss bends less for a rare
    class. Steps are taken in coordinates in which it is about as steep in all directions: the optimum stays where it is
    and takes a tenth of the steps.

    Args:
        mean_loss: convex.
        covariance_DD: of the rows, about.
        share_R: of the rows that have each label, about; in (0, 1).
        l2: > 0.
    """
    variance_D, direction_DD = torch.linalg.eigh(covariance_DD)
    bend_R = share_R * (1 - share_R) / 2
    gain_RD, gain_R = (bend_R[:, None] * variance_D.clamp(min=0) + l2).rsqrt(), bend_R.rsqrt()
    with torch.enable_grad():
        free_RD = torch.zeros_like(gain_RD).requires_grad_()
        free_R = torch.zeros_like(gain_R).requires_grad_()
        optimiser = torch.optim.LBFGS(
            [free_RD, free_R],
            max_iter=_MOST_STEPS,
            tolerance_grad=1e-5,
            tolerance_change=1e-8,
            history_size=20,
            line_search_fn="strong_wolfe",
        )

        def loss_and_gradient() -> Tensor:
            weight_RD, bias_R = (
                ((free_RD * gain_RD) @ direction_DD.T).detach(),
                (free_R * gain_R).detach(),
            )
            total, steep_RD, steep_R = mean_loss(weight_RD, bias_R)
            free_RD.grad = ((l2 * weight_RD + steep_RD) @ direction_DD) * gain_RD
            free_R.grad = steep_R * gain_R
            held_back: Tensor = l2 / 2 * weight_RD.square().sum()
            return held_back + total

        optimiser.step(loss_and_gradient)  # type: ignore[no-untyped-call]
    return LinearMap(((free_RD * gain_RD) @ direction_DD.T).detach(), (free_R * gain_R).detach())


def _blocks(row_ND: Tensor, label_NR: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    yield from zip(
        torch.split(row_ND, _ROWS_AT_ONCE), torch.split(label_NR, _ROWS_AT_ONCE), strict=True
    )
