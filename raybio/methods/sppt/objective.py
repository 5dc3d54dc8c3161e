"""The objective of SPPT: L = (1 - λ) L_MLM + λ L_SPML (McDermott et al.).

Each method returns this worker's share: the sum over workers is the loss of the global batch.

Shape letters: R sequences of this worker, G sequences of all workers, P pairs of an anchor and a
positive, D embedding width.
"""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from raybio.core.batch import Tokens
from raybio.core.interfaces import Collective, Encoded, Encoder, LossReport
from raybio.methods.sppt.batches import LinkBatch
from raybio.methods.sppt.config import ObjectiveConfig
from raybio.methods.sppt.loss import (
    margin_contrastive,
    multi_similarity_global,
    multi_similarity_per_anchor,
)
from raybio.methods.sppt.pair_masks import pair_masks
from raybio.ops.contrastive import equal_rows
from raybio.training.objectives import masked_language_model


@dataclass(frozen=True)
class StructurePreserving:
    """Masked language modeling and a graph loss, weighted by λ; parts of weight 0 are skipped.

    Attributes:
        config: λ, the graph loss and its settings.
        num_positives_per_anchor: number of positives of an anchor. ``margin_contrastive`` needs as
            many negatives.
    """

    config: ObjectiveConfig
    num_positives_per_anchor: int

    @property
    def uses_rows(self) -> bool:
        """Whether the language model counts (λ < 1)."""
        return self.config.lambda_spml < 1

    @property
    def row_terms(self) -> tuple[str, ...]:
        """Return the names of the terms of ``row_loss``."""
        return ("mlm_loss",)

    @property
    def uses_embeddings(self) -> bool:
        """Whether the graph loss counts (λ > 0)."""
        return self.config.lambda_spml > 0

    def row_loss(
        self, encoder: Encoder, encoded: Encoded, tokens: Tokens, num_labels: Tensor
    ) -> LossReport:
        """Return (1 - λ) times this micro-batch's share of the language-model loss."""
        return masked_language_model(
            encoder, encoded, tokens, num_labels, weight=1 - self.config.lambda_spml
        )

    def embedding_loss(
        self, embedding_RD: Tensor, batch: LinkBatch, collective: Collective
    ) -> LossReport:
        """Return λ times this worker's share of the graph loss."""
        graph_losses = {
            "multi_similarity": self._multi_similarity,
            "multi_similarity_global": self._multi_similarity_global,
            "margin_contrastive": self._margin_contrastive,
        }
        share, terms = graph_losses[self.config.loss](embedding_RD, batch, collective)
        terms |= {
            "spml_loss": share.detach(),
            "fallback_negatives": batch.num_fallback_negatives.float(),
        }
        return LossReport(self.config.lambda_spml * share, terms)

    def _multi_similarity(
        self, embedding_RD: Tensor, batch: LinkBatch, collective: Collective
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Compare each local sequence with the sequences of all workers; mean over counted ones."""
        gathered = collective.all_gather(embedding_RD)
        masks = pair_masks(batch, collective, self.config.same_node, gathered)
        loss_R, is_counted_R = multi_similarity_per_anchor(
            embedding_RD,
            gathered.row_MD,
            masks.linked_RG,
            masks.ignore_RG,
            **self.config.multi_similarity(),
        )
        num_counted = collective.all_sum(is_counted_R.sum()).clamp(min=1)
        with torch.no_grad():
            # Equal embeddings: the value at which the loss stays if the encoder collapses.
            equal_R, _ = multi_similarity_per_anchor(
                equal_rows(embedding_RD),
                equal_rows(gathered.row_MD),
                masks.linked_RG,
                masks.ignore_RG,
                **self.config.multi_similarity(),
            )
        num_sequences = len(gathered.row_MD)
        num_pairs = max(1, num_sequences * (num_sequences - 1))
        # The diagonal of ``ignore_RG`` is no pair, so it does not count as ignored.
        terms = {
            "ignored_pair_rate": (masks.ignore_RG.sum() - len(embedding_RD)) / num_pairs,
            "counted_anchors": is_counted_R.sum().float(),
            "spml_chance": equal_R.sum() / num_counted,
        }
        return loss_R.sum() / num_counted, terms

    def _multi_similarity_global(
        self, embedding_RD: Tensor, batch: LinkBatch, collective: Collective
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the whole loss on every worker, and return 1 / W of it.

        One logarithm over all pairs cannot be divided into shares.
        """
        weights = {
            name: value
            for name, value in self.config.multi_similarity().items()
            if name != "mining_margin"
        }
        gathered = collective.all_gather(embedding_RD)
        row_MD = gathered.row_MD
        masks = pair_masks(batch, collective, self.config.same_node, gathered)
        linked_MM = collective.all_gather(masks.linked_RG, gathered).row_MD
        ignore_MM = collective.all_gather(masks.ignore_RG, gathered).row_MD
        whole = multi_similarity_global(row_MD, linked_MM, ignore_NN=ignore_MM, **weights)
        with torch.no_grad():
            equal = multi_similarity_global(
                equal_rows(row_MD), linked_MM, ignore_NN=ignore_MM, **weights
            )
        return whole / collective.world, {"spml_chance": equal / collective.world}

    def _margin_contrastive(
        self, embedding_RD: Tensor, batch: LinkBatch, collective: Collective
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Compare each anchor with its own positives and negatives; no embedding is gathered."""
        # Each anchor comes with its positives and as many negatives.
        num_anchors = len(embedding_RD) // (1 + 2 * self.num_positives_per_anchor)
        num_pairs = num_anchors * self.num_positives_per_anchor
        anchor_ND, positive_ND, negative_ND = torch.split(
            embedding_RD, [num_anchors, num_pairs, num_pairs]
        )
        num_pairs_here = torch.full((), num_pairs, device=embedding_RD.device)
        num_pairs_global = collective.all_sum(num_pairs_here).clamp(min=1)
        if num_pairs == 0:
            nothing = embedding_RD.sum() * 0
            # Every worker must return the same terms, since they are summed over workers.
            return nothing, {"spml_chance": nothing.detach()}
        margin_loss = partial(
            margin_contrastive,
            positive_margin=self.config.positive_margin,
            negative_margin=self.config.negative_margin,
        )
        anchor_PD = anchor_ND.repeat_interleave(self.num_positives_per_anchor, dim=0)
        mean = margin_loss(anchor_PD, positive_ND, negative_ND)
        with torch.no_grad():
            equal = margin_loss(
                equal_rows(anchor_PD), equal_rows(positive_ND), equal_rows(negative_ND)
            )
        share = num_pairs / num_pairs_global
        return mean * share, {"spml_chance": equal * share}
