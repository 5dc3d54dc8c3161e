"""The optimizer and its learning rate, as a pure function of the step."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from raybio.core.interfaces import Collective
from raybio.training.settings import OptimConfig
from raybio.training.sharded_optimizer import ShardedAdamW

SHARDED_FROM = 650_000_000
"""Number of trainable values from which ``shard_state: auto`` shards the optimizer's state."""


def build_optimizer(
    model: nn.Module, config: OptimConfig, collective: Collective | None = None
) -> torch.optim.AdamW:
    """Return AdamW (Loshchilov and Hutter, 2019) over the trainable parameters of ``model``.

    Tensors of fewer than two dimensions (biases, norms, learned temperatures) get no weight decay.
    Scalars have a learning rate in a fixed proportion to that of other parameters: at an encoder's
    rate they would hardly move.

    Args:
        model: its parameters are on their device.
        config: see ``OptimConfig``.
        collective: workers among which the state may be sharded; None: no sharding.

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
    scalar_ratio = config.scalar_lr / config.peak_lr
    groups = [
        {"params": matrices, "weight_decay": config.weight_decay, "lr_ratio": 1.0},
        {"params": vectors, "weight_decay": 0.0, "lr_ratio": 1.0},
        {"params": scalars, "weight_decay": 0.0, "lr_ratio": scalar_ratio},
    ]
    groups = [group for group in groups if group["params"]]
    options: dict[str, Any] = {
        "lr": config.peak_lr,
        "betas": (config.beta1, config.beta2),
        "eps": config.eps,
        "fused": True,
    }
    is_sharded = config.shard_state
    if is_sharded == "auto":
        is_sharded = sum(parameter.numel() for _, parameter in trainable) >= SHARDED_FROM
    if is_sharded and collective is not None and collective.world > 1:
        return ShardedAdamW(groups, collective, **options)
    return torch.optim.AdamW(groups, **options)


def num_warmup_steps(config: OptimConfig, num_steps: int) -> int:
    """Return the number of steps of the warm-up."""
    return config.num_warmup_steps or round(config.warmup_ratio * num_steps)


def learning_rate(step: int, num_steps: int, config: OptimConfig) -> float:
    """Return the learning rate of update number ``step`` (from 0) of ``num_steps``.

    It rises linearly over the w steps of the warm-up, from 1/w of the peak. Then it stays or falls
    to ``final_lr_ratio`` of the peak, which it would reach at ``step == num_steps``.
    """
    warmup = num_warmup_steps(config, num_steps)
    if step < warmup:
        return config.peak_lr * (step + 1) / warmup
    done = min((step - warmup) / max(num_steps - warmup, 1), 1.0)
    fall_by_schedule = {
        "constant": 0.0,
        "linear": done,
        "cosine": (1 - math.cos(math.pi * done)) / 2,
    }
    fall = fall_by_schedule[config.schedule]
    return config.peak_lr * (1 - fall * (1 - config.final_lr_ratio))


def set_learning_rate(optimizer: torch.optim.Optimizer, value: float) -> None:
    """Set the rate of the next update: ``value`` times the ``lr_ratio`` of each group."""
    for group in optimizer.param_groups:
        group["lr"] = value * group["lr_ratio"]


def clip_gradients(parameters: Iterable[nn.Parameter], max_norm: float | None) -> Tensor:
    """Scale gradients down to a joint 2-norm of at most ``max_norm``; None or 0 only measures.

    The host does not wait for the norm.

    Returns:
        The norm () before clipping. If it is not finite, the gradients are unchanged, and the
        caller must not update with them.
    """
    known = list(parameters)
    gradients = [parameter.grad for parameter in known if parameter.grad is not None]
    if not gradients:
        return torch.zeros((), device=known[0].device if known else None)
    norm = nn.utils.get_total_norm(gradients)
    if max_norm:
        # Computed in float64, as with a Python number. A factor of 1 changes no bit.
        wide = norm.double()
        is_clipped = wide.isfinite() & (wide > max_norm)
        factor = torch.where(is_clipped, max_norm / wide, 1.0)
        torch._foreach_mul_(gradients, factor.to(gradients[0].dtype))
    return norm
