"""InfoNCE over linked pairs (van den Oord et al. 2018, Eq. 4), with the language model of SPPT.

Shape letters: R sequences of this worker, G sequences of all workers, D embedding width.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from raybio.core.interfaces import Collective, LossReport
from raybio.methods.sppt.batches import LinkBatch
from raybio.methods.sppt.objective import StructurePreserving
from raybio.methods.sppt.pair_masks import pair_masks
from raybio.ops.contrastive import equal_rows
from raybio.ops.similarity import cosine


def linked_info_nce(
    embedding_RD: Tensor,
    candidate_GD: Tensor,
    linked_RG: Tensor,
    ignore_RG: Tensor,
    temperature: float,
) -> tuple[Tensor, Tensor]:
    """Return the mean of -log softmax(cosine / temperature) over linked candidates (R,).

    The second result (R,) is True where a row has a linked candidate.
    """
    logit_RG = cosine(embedding_RD, candidate_GD) / temperature
    log_probability_RG = logit_RG.masked_fill(ignore_RG, -torch.inf).log_softmax(dim=1)
    positive_RG = linked_RG & ~ignore_RG
    num_positives_R = positive_RG.sum(dim=1)
    sum_R = log_probability_RG.masked_fill(~positive_RG, 0.0).sum(dim=1)
    return -sum_R / num_positives_R.clamp(min=1), num_positives_R > 0


@dataclass(frozen=True)
class InfoNceObjective(StructurePreserving):
    """(1 - λ) language model + λ InfoNCE over links.

    Attributes:
        temperature: divides the cosines.
    """

    temperature: float = 0.1

    def embedding_loss(
        self, embedding_RD: Tensor, batch: LinkBatch, collective: Collective
    ) -> LossReport:
        """Return λ times this worker's share; all shares add up to the mean over rows with a link."""
        candidate_GD = collective.all_gather(embedding_RD).row_MD
        masks = pair_masks(batch, collective, self.config.same_node)
        loss_R, has_link_R = linked_info_nce(embedding_RD, candidate_GD, *masks, self.temperature)
        num_rows = collective.all_sum(has_link_R.sum()).clamp(min=1)
        share = loss_R.sum() / num_rows
        # The loss of equal embeddings is logged next to it: a run that stays there has collapsed.
        equal_R, _ = linked_info_nce(
            equal_rows(embedding_RD), equal_rows(candidate_GD), *masks, self.temperature
        )
        terms = {"info_nce_loss": share.detach(), "info_nce_chance": equal_R.sum() / num_rows}
        return LossReport(self.config.lambda_spml * share, terms)
