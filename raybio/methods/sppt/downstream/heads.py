"""Heads of supervised tasks, as in TAPE (Rao et al. 2019) and SciBERT (Beltagy et al. 2019).

Shape letters: R sequences, L padded length, D width, H hidden width, C classes (1 for a number).
"""

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from raybio.core.errors import ConfigError
from raybio.encoders.transformer import seeded_weights
from raybio.methods.sppt.downstream.config import HeadKind

HIDDEN = 512


class ConvTokenHead(nn.Module):
    """TAPE's head for residues: convolutions over 5 and 3 tokens, with weight norm and ReLU.

    TAPE has a batch norm instead of the layer norm. Its result would depend on how a batch is
    divided into micro-batches.
    """

    def __init__(self, width: int, num_classes: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.wide = weight_norm(nn.Conv1d(width, HIDDEN, 5, padding=2))
        self.narrow = weight_norm(nn.Conv1d(HIDDEN, num_classes, 3, padding=1))

    def forward(self, hidden_RLD: Tensor, mask_RL: Tensor) -> Tensor:
        """Return scores (R, L, C). Padding counts as zeros, so its length has no effect."""
        mask_R1L = mask_RL[:, None]
        states_RDL = self.norm(hidden_RLD).transpose(1, 2) * mask_R1L
        inner_RHL = torch.relu(self.wide(states_RDL)) * mask_R1L
        return self.narrow(inner_RHL).transpose(1, 2)


class LinearTokenHead(nn.Module):
    """A linear map of each token."""

    def __init__(self, width: int, num_classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, num_classes)

    def forward(self, hidden_RLD: Tensor, mask_RL: Tensor) -> Tensor:
        """Return scores (R, L, C)."""
        return self.linear(hidden_RLD)


def resolve_head(kind: HeadKind, *, on_tokens: bool, on_texts: bool) -> HeadKind:
    """Return the kind of head of a task, with ``auto`` resolved.

    Raises:
        ConfigError: for ``mlp`` on tokens or ``conv`` on sequences.
    """
    if on_tokens and kind == "mlp":
        raise ConfigError(
            f"encoder.head: got {kind}, and the task has labels of residues; want auto, linear or "
            "conv"
        )
    if not on_tokens and kind == "conv":
        raise ConfigError(
            f"encoder.head: got {kind}, and the task has labels of sequences; want auto, linear or "
            "mlp"
        )
    if kind != "auto":
        return kind
    if on_texts:
        return "linear"
    return "conv" if on_tokens else "mlp"


def build_head(
    kind: HeadKind, width: int, num_outputs: int, *, on_tokens: bool, seed: int
) -> nn.Module:
    """Return a new head, whose weights depend on ``seed`` only.

    Args:
        kind: as ``resolve_head`` returns it.
        width: D.
        num_outputs: C.
        on_tokens: whether it scores tokens instead of sequences.
        seed: seed of the weights.
    """
    with seeded_weights(seed):
        if on_tokens and kind == "conv":
            return ConvTokenHead(width, num_outputs)
        if on_tokens:
            return LinearTokenHead(width, num_outputs)
        if kind == "linear":
            return nn.Linear(width, num_outputs)
        inner = weight_norm(nn.Linear(width, HIDDEN))
        outer = weight_norm(nn.Linear(HIDDEN, num_outputs))
        return nn.Sequential(inner, nn.ReLU(), outer)
