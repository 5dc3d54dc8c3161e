"""What objectives have in common that only couple embeddings, and say nothing of single sequences.

Masked language modelling, as the part of an objective that is separable over sequences.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from raybio.core.batch import IGNORED_LABEL, PaddedTokens, TokenBatch
from raybio.core.interfaces import Collective, Encoded, Encoder, LossReport
from raybio.ops.similarity import at_least_fp32


class CouplingObjective:
    """An ``raybio.core.interfaces.Objective`` without a part that is separable over sequences; add ``embedding_loss``."""

    @property
    def uses_rows(self) -> bool:
        """Nothing is separable over sequences here."""
        return False

    @property
    def uses_embeddings(self) -> bool:
        """All of it couples the sequences."""
        return True

    def normaliser(self, batch: TokenBatch, collective: Collective) -> Tensor:
        """Not used."""
        return torch.ones(())

    def row_loss(
        self, encoder: Encoder, encoded: Encoded, tokens: PaddedTokens, normaliser: Tensor
    ) -> LossReport:
        """There is none; ``uses_rows`` keeps it from being asked for.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(
            f"{type(self).__name__} has no part that is separable over sequences"
        )


def count_labels(batch: TokenBatch, collective: Collective) -> Tensor:
    """Masked tokens of the global batch, at least 1, shape ()."""
    return collective.all_sum((batch.label_T != IGNORED_LABEL).sum()).clamp(min=1)


def masked_language_model(
    encoder: Encoder,
    encoded: Encoded,
    tokens: PaddedTokens,
    num_labels: Tensor,
    *,
    weight: float = 1.0,
) -> LossReport:
    """This micro-batch's share of the mean cross entropy over all masked tokens of the global batch.

    The vocabulary's scores are computed at masked positions only, which at a mask rate of 15 % saves 85 % of the head.

    Args:
        encoder: gives the scores of the vocabulary.
        encoded: its output for ``tokens``.
        tokens: the micro-batch with its labels.
        num_labels: masked tokens of the global batch, from ``count_labels``.
        weight: factor on the loss, but not on the logged term.
    """
    is_label_RL = tokens.label_RL != IGNORED_LABEL
    logits_KV = at_least_fp32(encoder.token_logits(encoded.hidden_RLD[is_label_RL]))
    cross_entropy = (
        F.cross_entropy(logits_KV, tokens.label_RL[is_label_RL], reduction="sum") / num_labels
    )
    return LossReport(weight * cross_entropy, {"mlm_loss": cross_entropy.detach()})
