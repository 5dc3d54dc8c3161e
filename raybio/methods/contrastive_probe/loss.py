"""InfoNCE between the query and the answer of a sentence, in both directions (NT-Xent).

Shape letters: R sequences of this worker (queries, then answers), G sequences of all workers,
D width.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from raybio.core.interfaces import Collective, Gathered, LossReport
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
        gathered = collective.all_gather(embedding_RD)
        gathered_GD = gathered.row_MD
        num_sequences = len(embedding_RD)
        num_global = len(gathered_GD)
        partner_R = partners(num_sequences, embedding_RD.device)
        positive_R = gathered.offset + partner_R
        ignore_RG = equal_sequences(batch, partner_R, positive_R, collective, gathered)
        settings: dict[str, Any] = {
            "temperature": self.config.temperature,
            "ignore_NM": ignore_RG,
        }
        loss = info_nce(embedding_RD, gathered_GD, positive_R, **settings)
        with torch.no_grad():
            chance = info_nce(
                equal_rows(embedding_RD), equal_rows(gathered_GD), positive_R, **settings
            )
        share = loss * (num_sequences / num_global)
        # Each sequence ignores itself, which is not a false negative.
        num_ignored = ignore_RG.sum() - num_sequences
        num_pairs = num_global * max(num_global - 2, 1)
        terms = {
            "cloze_loss": share.detach(),
            "cloze_chance": chance * (num_sequences / num_global),
            "ignored_pair_rate": num_ignored / num_pairs,
        }
        return LossReport(share, terms)


def partners(num_sequences: int, device: torch.device) -> Tensor:
    """Return the answer of each query and the query of each answer (R,), half a shard apart."""
    index_R = torch.arange(num_sequences, device=device)
    return (index_R + num_sequences // 2) % max(num_sequences, 1)


def equal_sequences(
    batch: ClozeBatch,
    partner_R: Tensor,
    positive_R: Tensor,
    collective: Collective,
    gathered: Gathered | None = None,
) -> Tensor:
    """Return the candidates of each sequence that are neither positive nor negative, bool (R, G).

    These are the sequence itself, sequences of an equal sentence, and those with the text of the
    sequence or of its positive.

    Args:
        batch: this worker's shard.
        partner_R: position of each sequence's positive in the shard.
        positive_R: position of each sequence's positive among the sequences of all workers.
        collective: the other workers.
        gathered: the embeddings of all sequences, if they were gathered before.
    """
    key_R2 = torch.stack([batch.sentence_key_R, batch.text_key_R], dim=1)
    sentence_G, text_G = collective.all_gather(key_R2, gathered).row_MD.unbind(1)
    ignore_RG = (
        (sentence_G == batch.sentence_key_R[:, None])
        | (text_G == batch.text_key_R[:, None])
        | (text_G == batch.text_key_R[partner_R, None])
    )
    return ignore_RG.scatter(1, positive_R[:, None], False)
