"""The optimiser and its learning rate, as a pure function of the step."""

import math
from collections.abc import Iterable

import torch
from torch import nn

from raybio.training.settings import OptimConfig


def build_optimizer(model: nn.Module, config: OptimConfig) -> torch.optim.AdamW:
    """AdamW (Loshchilov and Hutter, 2019) over the trainable parameters of ``model``, in their order of declaration.

    Tensors of fewer than two dimensions (biases, norms, learned temperatures) get no weight decay. Single numbers
    have a learning rate of their own, in proportion to that of all others: at an encoder's they would hardly move.

    Raises:
        ValueError: if the model has nothing to train.
    """
    trainable = [
        (name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad
    ]
    if not trainable:
        raise ValueError(
            "the model has no parameter that requires a gradient. Unfreeze some before training."
        )
    matrices = [pair for pair in trainable if pair[1].ndim >= 2]
    vectors = [pair for pair in trainable if pair[1].ndim == 1]
    scalars = [pair for pair in trainable if pair[1].ndim == 0]
    groups = [
        {"params": pairs, "weight_decay": decay, "lr_ratio": ratio}
        for pairs, decay, ratio in (
            (matrices, config.weight_decay, 1.0),
            (vectors, 0.0, 1.0),
            (scalars, 0.0, config.scalar_lr / config.peak_lr),
        )
        if pairs
    ]
    return torch.optim.AdamW(
        groups, lr=config.peak_lr, betas=(config.beta1, config.beta2), eps=config.eps, fused=True
    )


def num_warmup_steps(config: OptimConfig, num_steps: int) -> int:
    """Return the number of steps of the warm-up."""
    return config.num_warmup_steps or round(config.warmup_ratio * num_steps)


def learning_rate(step: int, num_steps: int, config: OptimConfig) -> float:
    """Learning rate of update number ``step`` (from 0) of ``num_steps``.

    Rises linearly over the warm-up (its first step already learns: 1/w of the peak), then stays or falls to
    ``final_lr_ratio`` of the peak, which the last step nearly and ``step == num_steps`` exactly has.
    """
    warmup = num_warmup_steps(config, num_steps)
    if step < warmup:
        return config.peak_lr * (step + 1) / warmup
    done = min((step - warmup) / max(num_steps - warmup, 1), 1.0)
    fall = {"constant": 0.0, "linear": done, "cosine": (1 - math.cos(math.pi * done)) / 2}[
        config.schedule
    ]
    return config.peak_lr * (1 - fall * (1 - config.final_lr_ratio))


def set_learning_rate(optimizer: torch.optim.Optimizer, value: float) -> None:
    """Use ``value`` in the next update, and its ``lr_ratio`` in groups that have a rate of their own."""
    for group in optimizer.param_groups:
        group["lr"] = value * group["lr_ratio"]


def clip_gradients(parameters: Iterable[nn.Parameter], max_norm: float | None) -> float:
    """Scale gradients down so that their joint 2-norm is at most ``max_norm``; None or 0 only measures.

    Returns:
        The norm before clipping. If it is not finite, the gradients are left as they are and the caller must not
        update with them.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not gradients:
        return 0.0
    norm = float(nn.utils.get_total_norm(gradients))
    if max_norm and math.isfinite(norm) and norm > max_norm:
        torch._foreach_mul_(gradients, max_norm / norm)
    return norm
