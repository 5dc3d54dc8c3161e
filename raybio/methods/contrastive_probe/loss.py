"""InfoNCE between the query and the answer of a sentence, in both directions (NT-Xent).

Shape letters: R sequences of this worker (queries, then answers), G sequences of all workers,
D width.
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
    """-log softmax(cos / τ) of the positive of a sequence, mean over the 2B sequences of a step.

    Meng et al. (2022), Eq. 1, as in the authors' code: symmetric; the negatives are the queries and
    answers of all other sentences; the sequence itself is excluded; the mean, not the sum.

    Different: sequences of an equal sentence, or with the text of the anchor or its positive, are
    ignored, since they are false negatives.

    Attributes:
        config: settings.
    """

    config: ClozeContrastConfig

    def embedding_loss(
        self, embedding_RD: Tensor, batch: ClozeBatch, collective: Collective
    ) -> LossReport:
        """Return this worker's share of the mean over all sequences."""
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
        # Each sequence ignores itself, which is not a false negative.
        num_ignored = batch.ignore_RG.sum() - num_sequences
        num_pairs = num_global * max(num_global - 2, 1)
        terms = {
            "cloze_loss": share.detach(),
            "cloze_chance": chance * (num_sequences / num_global),
            "ignored_pair_rate": num_ignored / num_pairs,
        }
        return LossReport(share, terms)
