"""Encoders with a head for a supervised task: a class or a number a sequence, or a class a token (facts §5.2).

Shape letters: R sequences, L padded length, D width, C classes (1 for a number).

Losses of supervised tasks: cross entropy over classes of sequences or tokens, squared error of numbers.

Shape letters: R sequences of this worker, K labelled tokens, D width, C classes.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from raybio.core.batch import IGNORED_LABEL, PaddedTokens
from raybio.core.errors import ConfigError
from raybio.core.interfaces import Collective, Encoded, Encoder, LossReport
from raybio.encoders.transformer import seeded_weights
from raybio.methods.sppt.batches import TaskBatch
from raybio.methods.sppt.downstream.config import HeadKind
from raybio.ops.similarity import at_least_fp32
from raybio.training.objectives import count_labels

HIDDEN = 512


class TaskModel(Encoder):
    """An encoder and its head; of the evaluation that was best, the weights are kept in buffers.

    For a class or a number a sequence, ``embedding_RD`` is what ``head`` reads. For a class a token, ``hidden_RLD`` are
    the scores of the classes.

    Attributes:
        encoder: what is tuned.
        head: embeddings to scores; for tokens a ``TokenHead``.
        on_tokens: whether every token has a class.
    """

    best_value: Tensor

    def __init__(
        self, encoder: Encoder, head: nn.Module, *, on_tokens: bool, dropout: float
    ) -> None:
        """Wrap an encoder."""
        super().__init__()
        self.encoder, self.head, self.on_tokens = encoder, head, on_tokens
        self.width, self.pad_id = encoder.width, encoder.pad_id
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("best_value", torch.tensor(-torch.inf))
        for name, weight in self._weights():
            self.register_buffer(_buffer(name), weight.detach().clone())

    def forward(self, tokens: PaddedTokens) -> Encoded:
        """States, or scores (R, L, C) of tokens, and embeddings (R, D)."""
        encoded: Encoded = self.encoder(tokens)
        if self.on_tokens:
            scores_RLC = self.head(self.dropout(at_least_fp32(encoded.hidden_RLD)), tokens.mask_RL)
            return Encoded(scores_RLC, encoded.embedding_RD)
        return Encoded(encoded.hidden_RLD, self.dropout(encoded.embedding_RD))

    def token_logits(self, hidden_KD: Tensor) -> Tensor:
        """Scores of tokens are what ``forward`` gives: (K, C) as they are."""
        return hidden_KD

    def keep_if_best(self, value: float) -> None:
        """Remember the weights if an evaluation was better than all before; checkpoints hold them."""
        if not value > float(self.best_value):  # nor is NaN better
            return
        self.best_value.fill_(value)
        for name, weight in self._weights():
            self.get_buffer(_buffer(name)).copy_(weight.detach())

    def take_best(self) -> None:
        """Go back to the weights of the best evaluation, if there was one."""
        if torch.isfinite(self.best_value):
            with torch.no_grad():
                for name, weight in self._weights():
                    weight.copy_(self.get_buffer(_buffer(name)))

    def _weights(self) -> list[tuple[str, nn.Parameter]]:
        return [(name, weight) for name, weight in self.named_parameters() if weight.requires_grad]


class TokenHead(nn.Module):
    """TAPE's head over residues: convolutions over 5 and over 3 tokens, with weight norm and ReLU.

    A layer norm stands where TAPE has a batch norm, whose result would depend on how a batch is divided.
    """

    def __init__(self, width: int, num_classes: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.wide = weight_norm(nn.Conv1d(width, HIDDEN, 5, padding=2))
        self.narrow = weight_norm(nn.Conv1d(HIDDEN, num_classes, 3, padding=1))

    def forward(self, hidden_RLD: Tensor, mask_RL: Tensor) -> Tensor:
        """Scores (R, L, C); what lies beyond a sequence counts as zeros, however far it is padded."""
        is_there_R1L = mask_RL[:, None]
        states_RDL = self.norm(hidden_RLD).transpose(1, 2) * is_there_R1L
        inside_RHL = torch.relu(self.wide(states_RDL)) * is_there_R1L
        return self.narrow(inside_RHL).transpose(1, 2)


class LinearTokenHead(nn.Module):
    """A linear map of each token."""

    def __init__(self, width: int, num_classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, num_classes)

    def forward(self, hidden_RLD: Tensor, mask_RL: Tensor) -> Tensor:
        """Scores (R, L, C)."""
        return self.linear(hidden_RLD)


def settled_head(kind: HeadKind, *, on_tokens: bool, on_texts: bool) -> HeadKind:
    """The head of a task, ``auto`` resolved.

    Raises:
        ConfigError: for one that is for residues, or for sequences, alone.
    """
    if kind in (("mlp",) if on_tokens else ("conv",)):
        what, wanted = (
            ("residues", "auto, linear or conv")
            if on_tokens
            else ("sequences", "auto, linear or mlp")
        )
        raise ConfigError(
            f"encoder.head: got {kind}, and the task is told of {what}; want {wanted}"
        )
    if kind != "auto":
        return kind
    return "linear" if on_texts else "conv" if on_tokens else "mlp"


def build_head(
    kind: HeadKind, width: int, num_outputs: int, *, on_tokens: bool, seed: int
) -> nn.Module:
    """A fresh head, of a kind that ``settled_head`` gives, whose weights depend on ``seed`` alone."""
    with seeded_weights(seed):
        if on_tokens:
            return (
                TokenHead(width, num_outputs)
                if kind == "conv"
                else LinearTokenHead(width, num_outputs)
            )
        if kind == "linear":
            return nn.Linear(width, num_outputs)
        inner, outer = (
            weight_norm(nn.Linear(width, HIDDEN)),
            weight_norm(nn.Linear(HIDDEN, num_outputs)),
        )
        return nn.Sequential(inner, nn.ReLU(), outer)


def _buffer(name: str) -> str:
    return "best_" + name.replace(".", "_")


@dataclass(frozen=True)
class TaskLabels:
    """The mean over the sequences, or the labelled tokens, of the global batch.

    Attributes:
        head: embeddings to scores.
        labels: ``class`` or ``number`` of a sequence, or ``residues``: a class a token.
        centre: numbers are told as (number - centre) / scale, so that any head begins near them.
        scale: see ``centre``.
    """

    head: nn.Module
    labels: str
    centre: float = 0.0
    scale: float = 1.0

    @property
    def uses_rows(self) -> bool:
        """Tokens have classes."""
        return self.labels == "residues"

    @property
    def uses_embeddings(self) -> bool:
        """Sequences have a class or a number."""
        return self.labels != "residues"

    def normaliser(self, batch: TaskBatch, collective: Collective) -> Tensor:
        """Labelled tokens of the global batch."""
        return count_labels(batch, collective)

    def row_loss(
        self, encoder: Encoder, encoded: Encoded, tokens: PaddedTokens, normaliser: Tensor
    ) -> LossReport:
        """This micro-batch's share of the mean cross entropy over tokens."""
        is_label_RL = tokens.label_RL != IGNORED_LABEL
        scores_KC = encoder.token_logits(encoded.hidden_RLD[is_label_RL])
        loss = (
            F.cross_entropy(scores_KC, tokens.label_RL[is_label_RL], reduction="sum") / normaliser
        )
        return LossReport(loss, {"task_loss": loss.detach()})

    def embedding_loss(
        self, embedding_RD: Tensor, batch: TaskBatch, collective: Collective
    ) -> LossReport:
        """This worker's share of the mean loss over sequences."""
        num_rows = collective.all_sum(
            torch.tensor(len(embedding_RD), device=embedding_RD.device)
        ).clamp(min=1)
        loss = self.losses(self.head(embedding_RD), batch.target_R).sum() / num_rows
        return LossReport(loss, {"task_loss": loss.detach()})

    def losses(self, scores_RC: Tensor, target_R: Tensor) -> Tensor:
        """The loss of each sequence (R,): its cross entropy, or half the squared error of the standardised number.

        That is minus a log-likelihood, of numbers but for a constant and with a variance of 1.
        """
        if self.labels == "class":
            return F.cross_entropy(scores_RC, target_R.long(), reduction="none")
        return (
            scores_RC[:, 0] - (target_R.to(scores_RC.dtype) - self.centre) / self.scale
        ) ** 2 / 2
