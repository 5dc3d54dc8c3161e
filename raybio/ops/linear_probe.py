"""A linear classifier on frozen embeddings, fitted to its optimum.

Shape letters: N rows, D width, R classes, B rows of a block.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear

from raybio.ops.scores import check_finite
from raybio.ops.similarity import at_least_fp32

_ROWS_AT_ONCE = 1 << 16

_MAX_STEPS = 300

RowLoss = Callable[[Tensor, Tensor], Tensor]
"""Logits (B, R) and labels (B, R) -> loss (B,) of each row; convex in the logits."""

MeanLoss = Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
"""Weight (R, D) and bias (R,) -> the mean loss over rows, its gradients by weight and by bias."""


class LinearMap(NamedTuple):
    """A linear map; logits are ``row @ weight_RD.T + bias_R``."""

    weight_RD: Tensor
    bias_R: Tensor


def fit_linear(row_ND: Tensor, label_NR: Tensor, row_loss: RowLoss, *, l2: float) -> LinearMap:
    """Minimize mean loss + l2 / 2 |weight|^2 on standardized rows.

    Returns the map for the original rows.

    With the cross entropy this is multinomial logistic regression, where scikit-learn's C is 1 /
    (l2 N). The problem is convex and has one optimum. L-BFGS approaches it from zero in at most 300
    steps, without randomness. The bias is not regularized.

    Args:
        row_ND: embeddings; each column is standardized to mean 0 and deviation 1, a constant column
            to 0.
        label_NR: bool.
        row_loss: such as a cross entropy, or ``adaptive_threshold``.
        l2: weight of the regularization, > 0: separable classes would have no optimum without it.

    Raises:
        ValueError: if there are no rows, the numbers of rows and labels differ, ``l2`` is not
            positive, or rows are not finite.
    """
    if not len(row_ND) or len(label_NR) != len(row_ND):
        raise ValueError(
            f"got {len(row_ND)} rows and labels of {len(label_NR)}; want one each, at least one"
        )
    if not l2 > 0:
        raise ValueError(f"l2 is {l2}, want a number > 0")
    check_finite(row_ND, "embeddings")
    row_ND = at_least_fp32(row_ND.detach())
    std_D, mean_D = torch.std_mean(row_ND, dim=0, correction=0)
    scale_D = torch.where(std_D > 1e-6 * mean_D.abs(), 1 / std_D, 0.0)

    def mean_loss(weight_RD: Tensor, bias_R: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        total = row_ND.new_zeros(())
        gradient_RD = torch.zeros_like(weight_RD)
        gradient_R = torch.zeros_like(bias_R)
        for row_BD, label_BR in _blocks(row_ND, label_NR):
            standard_BD = (row_BD - mean_D) * scale_D
            logits_BR = linear(standard_BD, weight_RD, bias_R).requires_grad_()
            block_loss = row_loss(logits_BR, label_BR).sum() / len(row_ND)
            (gradient_BR,) = torch.autograd.grad(block_loss, logits_BR)
            gradient_RD = gradient_RD + gradient_BR.T @ standard_BD
            gradient_R = gradient_R + gradient_BR.sum(0)
            total = total + block_loss.detach()
        return total, gradient_RD, gradient_R

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
    """Minimize ``mean_loss`` + l2 / 2 |weight|^2 by L-BFGS from zero, in at most 300 steps.

    The parameters are preconditioned. The variance of embeddings differs a thousandfold between
    directions, and the curvature of the loss is smaller for a rare class. In the scaled coordinates
    the curvature is about equal in all directions, which saves nine in ten steps and does not move
    the optimum.

    Args:
        mean_loss: convex.
        covariance_DD: approximate covariance of the rows.
        share_R: approximate share of the rows with each label, in (0, 1).
        l2: weight of the regularization, > 0.
    """
    variance_D, direction_DD = torch.linalg.eigh(covariance_DD)
    curvature_R = share_R * (1 - share_R) / 2
    scale_RD = (curvature_R[:, None] * variance_D.clamp(min=0) + l2).rsqrt()
    scale_R = curvature_R.rsqrt()
    with torch.enable_grad():
        parameter_RD = torch.zeros_like(scale_RD).requires_grad_()
        parameter_R = torch.zeros_like(scale_R).requires_grad_()
        optimizer = torch.optim.LBFGS(
            [parameter_RD, parameter_R],
            max_iter=_MAX_STEPS,
            tolerance_grad=1e-5,
            tolerance_change=1e-8,
            history_size=20,
            line_search_fn="strong_wolfe",
        )

        def unscaled() -> LinearMap:
            weight_RD = (parameter_RD * scale_RD) @ direction_DD.T
            return LinearMap(weight_RD.detach(), (parameter_R * scale_R).detach())

        def loss_and_gradient() -> Tensor:
            fitted = unscaled()
            total, gradient_RD, gradient_R = mean_loss(fitted.weight_RD, fitted.bias_R)
            gradient_RD = l2 * fitted.weight_RD + gradient_RD
            parameter_RD.grad = (gradient_RD @ direction_DD) * scale_RD
            parameter_R.grad = gradient_R * scale_R
            penalty: Tensor = l2 / 2 * fitted.weight_RD.square().sum()
            return penalty + total

        optimizer.step(loss_and_gradient)  # type: ignore[no-untyped-call]
    return unscaled()


def _blocks(row_ND: Tensor, label_NR: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    yield from zip(
        torch.split(row_ND, _ROWS_AT_ONCE), torch.split(label_NR, _ROWS_AT_ONCE), strict=True
    )
