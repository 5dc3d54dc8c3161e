"""Losses of supervised tasks: cross entropy over classes of sequences or tokens, squared error of numbers.

Shape letters: R sequences of this worker, K labelled tokens, D width, C classes.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raybio.batches import IGNORED_LABEL, PaddedTokens, TaskBatch
from raybio.objectives.language_model import count_labels
from raybio.protocols import Collective, Encoded, Encoder, LossReport


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

    def row_loss(self, encoder: Encoder, encoded: Encoded, tokens: PaddedTokens, normaliser: Tensor) -> LossReport:
        """This micro-batch's share of the mean cross entropy over tokens."""
        is_label_RL = tokens.label_RL != IGNORED_LABEL
        scores_KC = encoder.token_logits(encoded.hidden_RLD[is_label_RL])
        loss = F.cross_entropy(scores_KC, tokens.label_RL[is_label_RL], reduction="sum") / normaliser
        return LossReport(loss, {"task_loss": loss.detach()})

    def embedding_loss(self, embedding_RD: Tensor, batch: TaskBatch, collective: Collective) -> LossReport:
        """This worker's share of the mean loss over sequences."""
        num_rows = collective.all_sum(torch.tensor(len(embedding_RD), device=embedding_RD.device)).clamp(min=1)
        loss = self.losses(self.head(embedding_RD), batch.target_R).sum() / num_rows
        return LossReport(loss, {"task_loss": loss.detach()})

    def losses(self, scores_RC: Tensor, target_R: Tensor) -> Tensor:
        """The loss of each sequence (R,): its cross entropy, or half the squared error of the standardised number.

        That is minus a log-likelihood, of numbers but for a constant and with a variance of 1.
        """
        if self.labels == "class":
            return F.cross_entropy(scores_RC, target_R.long(), reduction="none")
        return (scores_RC[:, 0] - (target_R.to(scores_RC.dtype) - self.centre) / self.scale) ** 2 / 2
