"""InfoNCE between the head of a sentence and its tail, both ways (Contrastive-Probe, facts §3.3; NT-Xent).

Shape letters: R sequences of this worker (queries, then answers), G sequences of all workers, D width.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from raybio.core.interfaces import Collective, LossReport
from raybio.methods.contrastive_probe.batches import ClozeBatch
from raybio.methods.contrastive_probe.config import ClozeContrastConfig
from raybio.ops.contrastive import equal_rows, info_nce
from raybio.training.objectives import CouplingObjective


@dataclass(frozen=True)
class ClozeContrast(CouplingObjective):
    """-log softmax(cos / τ) of a sequence's partner among all sequences of all workers, mean over the 2B sequences.

    The authors' code, which the paper's Equation 1 leaves open: symmetric, negatives are the queries and the answers of
    all other sentences, the sequence itself is none of them, and the loss is a mean. Different from it: sequences of an
    equal sentence, or with the text of the anchor or its partner, are left out, since they are no negatives.

    Attributes:
        config: settings.
    """

    config: ClozeContrastConfig

    def embedding_loss(
        self, embedding_RD: Tensor, batch: ClozeBatch, collective: Collective
    ) -> LossReport:
        """This worker's share of the mean over all sequences."""
        num_sequences, num_global = batch.ignore_RG.shape
        gathered_GD = collective.all_gather(embedding_RD).row_MD
        settings: dict[str, Any] = {
            "temperature": self.config.temperature,
            "ignore_NM": batch.ignore_RG,
        }
        loss = info_nce(embedding_RD, gathered_GD, batch.positive_R, **settings)
        with torch.no_grad():
            chance = info_nce(
                equal_rows(embedding_RD), equal_rows(gathered_GD), batch.positive_R, **settings
            )
        share = loss * (num_sequences / num_global)
        # Each sequence ignores itself, which is no false negative.
        num_duplicates = batch.ignore_RG.sum() - num_sequences
        pairs = num_global * max(num_global - 2, 1)
        terms = {
            "cloze_loss": share.detach(),
            "cloze_chance": chance * (num_sequences / num_global),
            "ignored_pair_rate": num_duplicates / pairs,
        }
        return LossReport(share, terms)
