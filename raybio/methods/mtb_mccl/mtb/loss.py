"""The objective."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from raybio.core.batch import PaddedTokens
from raybio.core.interfaces import Collective, Encoded, Encoder, LossReport
from raybio.methods.mtb_mccl.batches import TwinDocumentBatch
from raybio.methods.mtb_mccl.mtb.config import MtbObjectiveConfig
from raybio.methods.mtb_mccl.mtb.multi_center import multi_center_contrast
from raybio.methods.mtb_mccl.mtb.pair_equality import pair_equality
from raybio.methods.mtb_mccl.pair_contrast import (
    ContrastSum,
    matching_the_blanks,
)
from raybio.ops.contrastive import equal_rows, info_nce
from raybio.training.objectives import count_labels, masked_language_model

CENTER_TEMPERATURE = 0.2
"""τ₁ and τ₂ of MCCL in place of L_rel: the paper's for fine-tuning on BioRED; it names none for pre-training."""


@dataclass(frozen=True)
class MatchingTheBlanks:
    """The three parts; those of weight 0 are not computed.

    Attributes:
        config: settings.
    """

    config: MtbObjectiveConfig

    @property
    def uses_rows(self) -> bool:
        """Whether words are guessed."""
        return self.config.mlm_weight > 0

    @property
    def uses_embeddings(self) -> bool:
        """Whether pairs are compared."""
        return self.config.relation_weight + self.config.self_weight > 0

    def normaliser(self, batch: TwinDocumentBatch, collective: Collective) -> Tensor:
        """Masked tokens of the global batch."""
        return count_labels(batch, collective)

    def row_loss(
        self, encoder: Encoder, encoded: Encoded, tokens: PaddedTokens, normaliser: Tensor
    ) -> LossReport:
        """This micro-batch's share of the language-model loss."""
        return masked_language_model(
            encoder, encoded, tokens, normaliser, weight=self.config.mlm_weight
        )

    def embedding_loss(
        self, embedding_PD: Tensor, batch: TwinDocumentBatch, collective: Collective
    ) -> LossReport:
        """This worker's share of L_rel and L_self."""
        num = len(batch.id_N)
        pair_ND, twin_ND = embedding_PD[:num], embedding_PD[num:]
        gathered = collective.all_gather(pair_ND)
        id_M, type_M = (
            collective.all_gather(part[:, None]).row_MD[:, 0] for part in (batch.id_N, batch.type_N)
        )
        loss, terms = embedding_PD.sum() * 0, dict[str, Tensor]()
        if self.config.relation_weight:
            given = {
                "other_MD": gathered.row_MD,
                "other_entity_pair_id_M": id_M,
                "other_type_M": type_M,
            }
            share, counts = self._relation_loss(
                pair_ND, batch, given | {"offset": gathered.offset}, collective
            )
            loss = loss + self.config.relation_weight * share
            terms |= {"relation_loss": share.detach()} | counts
        if self.config.self_weight:
            twin_MD = collective.all_gather(twin_ND).row_MD
            others = (batch.id_N, id_M, gathered.offset, collective)
            share = self._self_loss(pair_ND, twin_MD, *others)
            loss = loss + self.config.self_weight * share
            terms["self_loss"] = share.detach()
            with torch.no_grad():
                terms["self_chance"] = self._self_loss(
                    equal_rows(pair_ND), equal_rows(twin_MD), *others
                )
        return LossReport(loss, terms)

    def _relation_loss(
        self,
        pair_ND: Tensor,
        batch: TwinDocumentBatch,
        others: dict[str, Any],
        collective: Collective,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """L_rel, or what stands in its place; and how many terms it has."""
        anchors = pair_ND, batch.id_N, batch.type_N
        others = others | {"type_filter": self.config.type_filter}
        if self.config.relation_loss == "binary":
            found = pair_equality(*anchors, **others)
            share = (_share(found.positive, collective) + _share(found.negative, collective)) / 2
            return share, {"positive_pairs": found.positive.num_terms.float()}
        if self.config.relation_loss == "multi_center":
            terms = multi_center_contrast(
                *anchors,
                weight_temperature=CENTER_TEMPERATURE,
                logit_temperature=CENTER_TEMPERATURE,
                **others,
            )
            return _share(terms, collective), {"positive_anchors": terms.num_terms.float()}
        settings = others | {"temperature": self.config.temperature}
        terms = matching_the_blanks(*anchors, **settings)
        with torch.no_grad():
            settings["other_MD"] = equal_rows(settings["other_MD"])
            equal = matching_the_blanks(equal_rows(pair_ND), batch.id_N, batch.type_N, **settings)
        logged = {
            "relation_chance": _share(equal, collective),
            "positive_pairs": terms.num_terms.float(),
        }
        return _share(terms, collective), logged

    def _self_loss(
        self,
        pair_ND: Tensor,
        twin_MD: Tensor,
        id_N: Tensor,
        id_M: Tensor,
        offset: int,
        collective: Collective,
    ) -> Tensor:
        """Over the pairs that have a positive: their twin against the twins of all other pairs."""
        same_NM = id_N[:, None] == id_M
        anchor_A = (same_NM.sum(1) > 1).nonzero()[:, 0]
        num_anchors = collective.all_sum(torch.tensor(len(anchor_A), device=pair_ND.device)).clamp(
            min=1
        )
        own_A = anchor_A + offset
        loss = info_nce(
            pair_ND[anchor_A],
            twin_MD,
            own_A,
            temperature=self.config.temperature,
            ignore_NM=same_NM[anchor_A] if self.config.self_exclude_positives else None,
        )
        return loss * len(anchor_A) / num_anchors


def _share(terms: ContrastSum, collective: Collective) -> Tensor:
    """This worker's share of the mean over the terms of all workers."""
    return terms.total / collective.all_sum(terms.num_terms).clamp(min=1)
