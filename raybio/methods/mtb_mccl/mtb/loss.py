"""The MTB objective: L = L_rel + L_self + L_mlm (Zhou et al., 2023, Section 3.2).

    L_rel     the same entity pair in two documents, against pairs of other types
              (``pair_contrast.matching_the_blanks``)
    L_self    the same pair in two dropout passes, against all other pairs of the batch
    L_mlm     masked tokens outside mentions

The paper's ablations of L_rel: ``pair_equality`` (vanilla MTB, Table 4) and
``multi_center`` (MCCL, Table 5).

Shape letters: N pairs of this worker's documents, each embedded twice, M pairs of all workers,
D embedding width, B pairs of a block.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from raybio.core.batch import Tokens
from raybio.core.interfaces import Collective, Encoded, Encoder, LossReport
from raybio.methods.mtb_mccl.batches import TwinDocumentBatch
from raybio.methods.mtb_mccl.mtb.config import MtbObjectiveConfig
from raybio.methods.mtb_mccl.mtb.multi_center import multi_center_contrast
from raybio.methods.mtb_mccl.mtb.pair_equality import pair_equality
from raybio.methods.mtb_mccl.pair_contrast import (
    PairRows,
    contrast_sum,
    matching_the_blanks,
)
from raybio.ops.contrastive import equal_rows
from raybio.training.objectives import masked_language_model


@dataclass(frozen=True)
class MatchingTheBlanks:
    """The three losses; a loss of weight 0 is not computed.

    Attributes:
        config: settings.
    """

    config: MtbObjectiveConfig

    @property
    def uses_rows(self) -> bool:
        """Whether masked tokens are predicted."""
        return self.config.mlm_weight > 0

    @property
    def row_terms(self) -> tuple[str, ...]:
        """Return the names of the terms of ``row_loss``."""
        return ("mlm_loss",)

    @property
    def uses_embeddings(self) -> bool:
        """Whether pairs are compared."""
        return self.config.relation_weight + self.config.self_weight > 0

    def row_loss(
        self, encoder: Encoder, encoded: Encoded, tokens: Tokens, num_labels: Tensor
    ) -> LossReport:
        """Return this micro-batch's share of L_mlm."""
        return masked_language_model(
            encoder, encoded, tokens, num_labels, weight=self.config.mlm_weight
        )

    def embedding_loss(
        self, embedding_PD: Tensor, batch: TwinDocumentBatch, collective: Collective
    ) -> LossReport:
        """Return this worker's share of L_rel and L_self."""
        num_pairs = len(batch.id_N)
        pair_ND = embedding_PD[:num_pairs]
        twin_ND = embedding_PD[num_pairs:]
        gathered = collective.all_gather(pair_ND)
        key_N2 = torch.stack([batch.id_N, batch.type_N], 1)
        id_M, type_M = collective.all_gather(key_N2, gathered).row_MD.unbind(1)
        anchors = PairRows(pair_ND, batch.id_N, batch.type_N)
        candidates = PairRows(gathered.row_MD, id_M, type_M)
        loss = embedding_PD.sum() * 0
        terms = dict[str, Tensor]()
        if self.config.relation_weight:
            share, logged = self._relation_loss(anchors, candidates, gathered.offset, collective)
            loss = loss + self.config.relation_weight * share
            terms |= {"relation_loss": share.detach()} | logged
        if self.config.self_weight:
            twin_MD = collective.all_gather(twin_ND, gathered).row_MD
            others = (id_M, gathered.offset, collective)
            share = self._self_loss(pair_ND, twin_MD, *others)
            loss = loss + self.config.self_weight * share
            terms["self_loss"] = share.detach()
            with torch.no_grad():
                terms["self_chance"] = self._self_loss(
                    equal_rows(pair_ND), equal_rows(twin_MD), *others
                )
        return LossReport(loss, terms)

    def _relation_loss(
        self, anchors: PairRows, candidates: PairRows, offset: int, collective: Collective
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the share of L_rel (or its ablation), and what to log with it."""
        settings: dict[str, Any] = {"type_filter": self.config.type_filter, "offset": offset}
        if self.config.relation_loss == "binary":
            sums = pair_equality(anchors, others=candidates, **settings)
            share = (sums.positive.share(collective) + sums.negative.share(collective)) / 2
            return share, {"positive_pairs": sums.positive.num_terms.float()}
        if self.config.relation_loss == "multi_center":
            terms = multi_center_contrast(
                anchors,
                others=candidates,
                weight_temperature=self.config.weight_temperature,
                logit_temperature=self.config.logit_temperature,
                **settings,
            )
            return terms.share(collective), {"positive_anchors": terms.num_terms.float()}
        settings["temperature"] = self.config.temperature
        terms = matching_the_blanks(anchors, others=candidates, **settings)
        with torch.no_grad():
            # The loss of an encoder that maps all pairs to the same point.
            equal, others = (
                rows._replace(embedding_ND=equal_rows(rows.embedding_ND))
                for rows in (anchors, candidates)
            )
            chance = matching_the_blanks(equal, others=others, **settings)
        logged = {
            "relation_chance": chance.share(collective),
            "positive_pairs": terms.num_terms.float(),
        }
        return terms.share(collective), logged

    def _self_loss(
        self,
        pair_ND: Tensor,
        twin_MD: Tensor,
        id_M: Tensor,
        offset: int,
        collective: Collective,
    ) -> Tensor:
        """Return the share of L_self, over the pairs that have a positive in L_rel.

        Each pair is contrasted with the second passes of all other pairs.
        """
        number_M = torch.arange(len(id_M), device=id_M.device)

        def relate(own_B: Tensor) -> tuple[Tensor, Tensor]:
            is_own_BM = own_B[:, None] == number_M
            is_same_BM = (id_M[own_B, None] == id_M) & (id_M >= 0)
            has_positive_B1 = is_same_BM.sum(1, keepdim=True) > 1
            is_negative_BM = ~is_own_BM
            if self.config.self_exclude_positives:
                is_negative_BM &= ~is_same_BM
            return is_own_BM & has_positive_B1, is_negative_BM

        terms = contrast_sum(pair_ND, twin_MD, relate, offset, self.config.temperature)
        return terms.share(collective)
