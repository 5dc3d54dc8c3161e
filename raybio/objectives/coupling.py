"""What objectives have in common that only couple embeddings, and say nothing of single sequences."""

import torch
from torch import Tensor

from raybio.batches import PaddedTokens, TokenBatch
from raybio.protocols import Collective, Encoded, Encoder, LossReport


class CouplingObjective:
    """An ``raybio.protocols.Objective`` without a part that is separable over sequences; add ``embedding_loss``."""

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

    def row_loss(self, encoder: Encoder, encoded: Encoded, tokens: PaddedTokens, normaliser: Tensor) -> LossReport:
        """There is none; ``uses_rows`` keeps it from being asked for.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(f"{type(self).__name__} has no part that is separable over sequences")
