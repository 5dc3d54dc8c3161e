"""Loss of a supervised task: cross entropy of classes, or squared error of numbers.

Shape letters: R sequences of this worker, L padded length, K labeled tokens, D width, C classes, X
as in ``TaskBatch``.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raybio.core.batch import Tokens, to_device
from raybio.core.interfaces import Collective, Encoded, Encoder, LossReport
from raybio.methods.sppt.batches import TaskBatch
from raybio.methods.sppt.downstream.config import Labels


@dataclass(frozen=True)
class TaskLoss:
    """Mean loss over the sequences, or over the labeled tokens, of the global batch.

    Attributes:
        head: maps embeddings to scores.
        labels: ``class``, ``class_set`` or ``number`` of a sequence, or ``residues`` for a class a
            token.
        center: the head predicts (number - center) / scale, so that a fresh head starts near it.
        scale: see ``center``.
        constant_scores_C: the constant prediction with the least loss for the training labels,
            whose loss is logged as chance; None: it is not logged.
    """

    head: nn.Module
    labels: Labels
    center: float = 0.0
    scale: float = 1.0
    constant_scores_C: Tensor | None = None

    @property
    def uses_rows(self) -> bool:
        """Whether the loss is over tokens."""
        return self.labels == "residues"

    @property
    def row_terms(self) -> tuple[str, ...]:
        """Return the names of the terms of ``row_loss``."""
        return ("task_loss",) if self.constant_scores_C is None else ("task_loss", "task_chance")

    @property
    def uses_embeddings(self) -> bool:
        """Whether the loss is over sequences."""
        return self.labels != "residues"

    def row_loss(
        self, encoder: Encoder, encoded: Encoded, tokens: Tokens, num_labels: Tensor
    ) -> LossReport:
        """Return this micro-batch's share of the mean cross entropy over tokens."""
        scores_KC = encoder.token_logits(tokens.states_of_labels(encoded.hidden_RLD))
        label_K = tokens.label_K
        loss = F.cross_entropy(scores_KC, label_K, reduction="sum") / num_labels
        terms = {"task_loss": loss.detach()}
        if self.constant_scores_C is not None:
            constant_C = to_device(self.constant_scores_C, scores_KC.device)
            chance = F.cross_entropy(constant_C.expand_as(scores_KC), label_K, reduction="sum")
            terms["task_chance"] = chance / num_labels
        return LossReport(loss, terms)

    def embedding_loss(
        self, embedding_RD: Tensor, batch: TaskBatch, collective: Collective
    ) -> LossReport:
        """Return this worker's share of the mean loss over sequences."""
        num_local = torch.full((), len(embedding_RD), device=embedding_RD.device)
        num_rows = collective.all_sum(num_local).clamp(min=1)
        scores_RC = self.head(embedding_RD)
        loss = self.losses(scores_RC, batch.target_X).sum() / num_rows
        terms = {"task_loss": loss.detach()}
        if self.constant_scores_C is not None:
            constant_C = to_device(self.constant_scores_C, scores_RC.device)
            chance_R = self.losses(constant_C.expand_as(scores_RC), batch.target_X)
            terms["task_chance"] = chance_R.sum() / num_rows
        return LossReport(loss, terms)

    def losses(self, scores_RC: Tensor, target_X: Tensor) -> Tensor:
        """Return the loss of each sequence (R,): a negative log-likelihood.

        For classes it is the cross entropy. For sets of classes it is the sum of the binary cross
        entropy over classes, which treats classes as independent. For numbers it is half the
        squared error of the standardized number: a Gaussian of variance 1, without its constant.
        """
        if self.labels == "class":
            return F.cross_entropy(scores_RC, target_X.long(), reduction="none")
        target_X = target_X.to(scores_RC.dtype)
        if self.labels == "class_set":
            has_class_RC = target_X.view_as(scores_RC)
            losses_RC = F.binary_cross_entropy_with_logits(
                scores_RC, has_class_RC, reduction="none"
            )
            return losses_RC.sum(dim=1)
        standardized_R = (target_X - self.center) / self.scale
        return (scores_RC[:, 0] - standardized_R) ** 2 / 2
