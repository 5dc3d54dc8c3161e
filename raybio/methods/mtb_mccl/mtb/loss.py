"""Are two rows occurrences of the same entity pair? The binary classification of vanilla MTB (facts §4.6).

N anchors, M rows, of which the anchors are some, D width, B anchors of a block.

Matching the blanks, improved (Zhou et al., 2023, facts §4.4): L_rel + L_self + L_mlm.

In place of L_rel stand, if asked for, what the paper compares it with (its Tables 4 and 5): binary classification of
pairs, or MCCL.

Shape letters: N pairs of this worker's documents, each embedded twice; M pairs of all workers; D width.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid
from torch.utils.checkpoint import checkpoint

from raybio.core.batch import PaddedTokens
from raybio.core.interfaces import Collective, Encoded, Encoder, LossReport
from raybio.methods.mtb_mccl.batches import TwinDocumentBatch
from raybio.methods.mtb_mccl.mccl.loss import multi_center_contrast
from raybio.methods.mtb_mccl.mtb.config import BlanksObjectiveConfig
from raybio.methods.mtb_mccl.pair_contrast import (
    ContrastSum,
    by_entity_pair,
    matching_the_blanks,
    with_others,
)
from raybio.ops.contrastive import equal_rows, info_nce
from raybio.ops.similarity import at_least_fp32, matmul
from raybio.training.objectives import count_labels, masked_language_model

_ENTRIES_AT_ONCE = {"cpu": 1 << 20, "cuda": 1 << 25}


class EqualitySums(NamedTuple):
    """Minus log-likelihoods of this worker's ordered pairs of rows, on either side."""

    positive: ContrastSum
    negative: ContrastSum


def pair_equality(
    pair_ND: Tensor,
    entity_pair_id_N: Tensor,
    type_N: Tensor,
    *,
    type_filter: bool = True,
    other_MD: Tensor | None = None,
    other_entity_pair_id_M: Tensor | None = None,
    other_type_M: Tensor | None = None,
    offset: int = 0,
    block_rows: int | None = None,
) -> EqualitySums:
    """Matching the blanks as Baldini Soares et al. (2019) do: p(the same entity pair) = sigmoid(z_i . z_j).

    Positives are the ordered pairs of rows with the same entity pair, -log sigmoid(z_i . z_j) each; negatives those of
    other entity pairs, of another type where that is asked for, -log sigmoid(-z_i . z_j) each. The half of both sides'
    means is what as many negatives as positives, drawn at random, give on average, without the chance of the draw.

    The (N, M) scores never exist at once: blocks of anchors are scored, and once more in the backward pass.

    Arguments as for ``matching_the_blanks``, but that the length of embeddings counts.

    Raises:
        ValueError: for rows that do not fit together.
    """
    other_MD, id_M, type_M = with_others(
        pair_ND,
        (entity_pair_id_N, type_N),
        other_MD,
        (other_entity_pair_id_M, other_type_M),
        offset,
    )
    relate, _ = by_entity_pair(id_M, type_M, type_filter=type_filter)

    def block_sums(query_BD: Tensor, key_MD: Tensor, own_B: Tensor) -> tuple[Tensor, ...]:
        score_BM = matmul(query_BD, key_MD.T)
        is_positive_BM, is_negative_BM = (
            related_BM.scatter(1, own_B[:, None], False) for related_BM in relate(own_B)
        )
        return (
            -logsigmoid(score_BM).where(is_positive_BM, 0.0).sum(),
            is_positive_BM.sum(),
            -logsigmoid(-score_BM).where(is_negative_BM, 0.0).sum(),
            is_negative_BM.sum(),
        )

    query_ND, key_MD = at_least_fp32(pair_ND), at_least_fp32(other_MD)
    nothing, none = query_ND.sum() * 0, torch.zeros_like(id_M).sum()
    sums: tuple[Tensor, ...] = (nothing, none, nothing, none)
    at_once = _ENTRIES_AT_ONCE.get(query_ND.device.type, _ENTRIES_AT_ONCE["cuda"])
    rows = block_rows or max(1, at_once // max(len(key_MD), 1))
    own_N = torch.arange(len(query_ND), device=query_ND.device) + offset
    for query_BD, own_B in zip(torch.split(query_ND, rows), torch.split(own_N, rows), strict=True):
        found = checkpoint(
            block_sums, query_BD, key_MD, own_B, use_reentrant=False, preserve_rng_state=False
        )
        sums = tuple(one + more for one, more in zip(sums, found, strict=True))
    return EqualitySums(ContrastSum(sums[0], sums[1]), ContrastSum(sums[2], sums[3]))


CENTER_TEMPERATURE = 0.2
"""τ₁ and τ₂ of MCCL in place of L_rel: the paper's for fine-tuning on BioRED; it names none for pre-training."""


@dataclass(frozen=True)
class MatchingTheBlanks:
    """The three parts; those of weight 0 are not computed.

    Attributes:
        config: settings.
    """

    config: BlanksObjectiveConfig

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
