"""The objective of structure-preserving pre-training (McDermott et al.): L = (1 - λ) L_MLM + λ L_SPML.

Shape letters: R sequences of this worker, G sequences of all workers, D embedding width.
"""

from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from raybio.batches import LinkBatch, PaddedTokens
from raybio.config import BaseConfig
from raybio.functional.contrastive import equal_rows
from raybio.functional.structure import margin_contrastive, multi_similarity_global, multi_similarity_per_anchor
from raybio.objectives.language_model import count_labels, masked_language_model
from raybio.protocols import Collective, Encoded, Encoder, LossReport

NO_MINING = 10.0
"""A mining margin of 2 or more filters nothing; this is the authors' value."""

PRESETS: dict[str, dict[str, float]] = {
    # The defaults of the metric-learning code that the authors ported the loss from.
    "metric_learning": {"positive_weight": 2.0, "negative_weight": 40.0, "threshold": 0.5, "mining_margin": 0.1},
    # The defaults of the authors' own code.
    "authors": {"positive_weight": 1.0, "negative_weight": 1.0, "threshold": 0.1, "mining_margin": NO_MINING},
    # Run names left in the authors' scripts.
    "authors_2_2": {"positive_weight": 2.0, "negative_weight": 2.0, "threshold": 0.1, "mining_margin": NO_MINING},
    "authors_2_40": {"positive_weight": 2.0, "negative_weight": 40.0, "threshold": 0.1, "mining_margin": NO_MINING},
}


class ObjectiveConfig(BaseConfig):
    """What is minimised."""

    lambda_spml: float = Field(0.1, ge=0, le=1, description="weight λ of the graph loss; the language model has 1 - λ")
    loss: Literal["multi_similarity", "multi_similarity_global", "margin_contrastive"] = Field(
        "multi_similarity",
        description="the graph loss; multi_similarity_global is the formula as the paper prints it, with inner "
        "products and one logarithm over all pairs",
    )
    preset: Literal["metric_learning", "authors", "authors_2_2", "authors_2_40"] = Field(
        "metric_learning", description="named settings of the Multi-Similarity loss: w+, w-, threshold, mining margin"
    )
    positive_weight: float | None = Field(None, gt=0, description="w+ of Multi-Similarity; null: the preset's")
    negative_weight: float | None = Field(None, gt=0, description="w- of Multi-Similarity; null: the preset's")
    threshold: float | None = Field(None, ge=-1, le=1, description="cosine threshold t; null: the preset's")
    mining_margin: float | None = Field(
        None, ge=0, description="mining margin of Multi-Similarity (2 or more filters nothing); null: the preset's"
    )
    positive_margin: float = Field(0.0, ge=0, description="margin_contrastive: linked pairs are pulled below this")
    negative_margin: float = Field(10.0, ge=0, description="margin_contrastive: unlinked pairs are pushed beyond this")
    same_node: Literal["ignore", "positive", "negative"] = Field(
        "ignore", description="what two copies of a node in one batch are (negative: as in the authors' code)"
    )
    masked_anchors: bool = Field(
        True,
        description="the graph loss sees the anchors' masked view, so that one forward pass serves both losses; false "
        "only with lambda_spml 1",
    )

    def multi_similarity(self) -> dict[str, float]:
        """The preset's numbers with the explicitly given ones in their place."""
        given = {name: getattr(self, name) for name in PRESETS[self.preset]}
        return PRESETS[self.preset] | {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True)
class StructurePreserving:
    """Masked language modelling and a graph loss, weighted by λ; the part of weight 0 is not computed."""

    config: ObjectiveConfig
    num_positives_per_anchor: int

    @property
    def uses_rows(self) -> bool:
        """Whether the language model counts (λ < 1)."""
        return self.config.lambda_spml < 1

    @property
    def uses_embeddings(self) -> bool:
        """Whether the graph loss counts (λ > 0)."""
        return self.config.lambda_spml > 0

    def normaliser(self, batch: LinkBatch, collective: Collective) -> Tensor:
        """Masked tokens of the global batch."""
        return count_labels(batch, collective)

    def row_loss(self, encoder: Encoder, encoded: Encoded, tokens: PaddedTokens, normaliser: Tensor) -> LossReport:
        """(1 - λ) times this micro-batch's share of the language-model loss."""
        return masked_language_model(encoder, encoded, tokens, normaliser, weight=1 - self.config.lambda_spml)

    def embedding_loss(self, embedding_RD: Tensor, batch: LinkBatch, collective: Collective) -> LossReport:
        """λ times this worker's share of the graph loss."""
        graph_loss = {
            "multi_similarity": self._multi_similarity,
            "multi_similarity_global": self._multi_similarity_global,
            "margin_contrastive": self._margin_contrastive,
        }[self.config.loss]
        share, terms = graph_loss(embedding_RD, batch, collective)
        terms |= {"spml_loss": share.detach(), "fallback_negatives": batch.num_fallback_negatives.float()}
        return LossReport(self.config.lambda_spml * share, terms)

    def _multi_similarity(
        self, embedding_RD: Tensor, batch: LinkBatch, collective: Collective
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Every local sequence against all sequences of all workers; mean over those with a positive and a negative."""
        gathered = collective.all_gather(embedding_RD)
        loss_R, is_counted_R = multi_similarity_per_anchor(
            embedding_RD, gathered.row_MD, batch.linked_RG, batch.ignore_RG, **self.config.multi_similarity()
        )
        num_counted = collective.all_sum(is_counted_R.sum()).clamp(min=1)
        with torch.no_grad():
            # All embeddings alike: where the loss stays when the encoder has collapsed.
            equal_R, _ = multi_similarity_per_anchor(
                equal_rows(embedding_RD),
                equal_rows(gathered.row_MD),
                batch.linked_RG,
                batch.ignore_RG,
                **self.config.multi_similarity(),
            )
        num_pairs = max(1, len(gathered.row_MD) * (len(gathered.row_MD) - 1))
        # A sequence and itself are no pair, so they do not count as ignored.
        terms = {
            "ignored_pair_rate": (batch.ignore_RG.sum() - len(embedding_RD)) / num_pairs,
            "counted_anchors": is_counted_R.sum().float(),
            "spml_chance": equal_R.sum() / num_counted,
        }
        return loss_R.sum() / num_counted, terms

    def _multi_similarity_global(
        self, embedding_RD: Tensor, batch: LinkBatch, collective: Collective
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """One logarithm over the pairs of all workers does not fall into shares: each computes all, and counts 1/W."""
        weights = {name: value for name, value in self.config.multi_similarity().items() if name != "mining_margin"}
        row_MD = collective.all_gather(embedding_RD).row_MD
        linked_MM = collective.all_gather(batch.linked_RG).row_MD
        ignore_MM = collective.all_gather(batch.ignore_RG).row_MD
        whole = multi_similarity_global(row_MD, linked_MM, ignore_NN=ignore_MM, **weights)
        with torch.no_grad():
            equal = multi_similarity_global(equal_rows(row_MD), linked_MM, ignore_NN=ignore_MM, **weights)
        return whole / collective.world, {"spml_chance": equal / collective.world}

    def _margin_contrastive(
        self, embedding_RD: Tensor, batch: LinkBatch, collective: Collective
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Each anchor with its own positives and negatives; nothing has to be gathered."""
        num_anchors = int(batch.num_anchors)
        num_pairs = num_anchors * self.num_positives_per_anchor
        anchor_ND, positive_ND, negative_ND = torch.split(embedding_RD, [num_anchors, num_pairs, num_pairs])
        num_pairs_global = collective.all_sum(torch.tensor(num_pairs, device=embedding_RD.device)).clamp(min=1)
        if num_pairs == 0:
            return embedding_RD.sum() * 0, {}
        margin_loss = partial(
            margin_contrastive,
            positive_margin=self.config.positive_margin,
            negative_margin=self.config.negative_margin,
        )
        anchor_PD = anchor_ND.repeat_interleave(self.num_positives_per_anchor, dim=0)
        mean = margin_loss(anchor_PD, positive_ND, negative_ND)
        with torch.no_grad():
            equal = margin_loss(equal_rows(anchor_PD), equal_rows(positive_ND), equal_rows(negative_ND))
        share = num_pairs / num_pairs_global
        return mean * share, {"spml_chance": equal * share}
