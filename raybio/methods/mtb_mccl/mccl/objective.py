"""Objective."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from raybio.core.interfaces import Collective, LossReport
from raybio.methods.mtb_mccl.batches import LabelledDocumentBatch
from raybio.methods.mtb_mccl.mccl.adaptive_threshold import adaptive_threshold
from raybio.methods.mtb_mccl.mccl.config import RelationObjectiveConfig
from raybio.methods.mtb_mccl.mccl.loss import multi_center_logits
from raybio.methods.mtb_mccl.pair_contrast import (
    multi_label_contrast,
    supervised_contrast,
)
from raybio.ops.contrastive import equal_rows
from raybio.training.objectives import CouplingObjective


class RelationHead(nn.Module):
    """What is trained beside the encoder.

    Attributes:
        proxy_CD: members of the classes, or None; with several of each, row i is of class i mod C.
        bias_C: added to the score of each class, or None.
        classifier: a linear map to classes, or None.
    """

    proxy_CD: nn.Parameter | None
    bias_C: nn.Parameter | None

    def __init__(
        self,
        config: RelationObjectiveConfig,
        num_classes: int,
        width: int,
        *,
        is_coarse: bool = False,
    ) -> None:
        """Only what the loss needs; proxies are drawn by torch's generator.

        Args:
            config: settings.
            num_classes: "none" and all relations.
            width: of embeddings.
            is_coarse: whether training knows two classes alone, "none" and "some". They have no bias: relations, among
                which neighbours then choose, have none either, and what is trained is to be what decides.
        """
        super().__init__()
        num_classes = 2 if is_coarse else num_classes
        is_mccl = config.kind == "mccl"
        num_rows = config.num_proxies * num_classes if is_mccl else 0
        self.register_parameter(
            "proxy_CD", nn.Parameter(torch.randn(num_rows, width)) if num_rows else None
        )
        # With "lazy" it stays what it is: a run wants something that it may train.
        has_bias = config.kind in ("mccl", "lazy") and not is_coarse
        self.register_parameter(
            "bias_C", nn.Parameter(torch.zeros(num_classes)) if has_bias else None
        )
        has_classifier = config.kind == "ce" or (is_mccl and config.ce_weight > 0)
        self.classifier = nn.Linear(width, num_classes) if has_classifier else None


@dataclass(frozen=True)
class RelationObjective(CouplingObjective):
    """Mean over the labelled pairs of the global batch of the loss that ``config.kind`` names.

    Attributes:
        config: settings.
        head: what is trained beside the encoder.
        is_multi_label: whether a pair may have several relations; then classes are judged against "none" (adaptive
            thresholding) instead of each other.
    """

    config: RelationObjectiveConfig
    head: RelationHead
    is_multi_label: bool

    def embedding_loss(
        self, embedding_PD: Tensor, batch: LabelledDocumentBatch, collective: Collective
    ) -> LossReport:
        """This worker's share."""
        label_PC = batch.label_PC
        num_pairs = collective.all_sum(
            torch.tensor(len(embedding_PD), device=embedding_PD.device)
        ).clamp(min=1)
        terms: dict[str, Tensor] = {
            "pairs": torch.tensor(float(len(embedding_PD)), device=embedding_PD.device)
        }
        if self.config.kind == "supcon":
            return self._supcon(embedding_PD, label_PC, collective, terms)
        if self.config.kind == "lazy":
            assert self.head.bias_C is not None
            return LossReport(self.head.bias_C.sum() * 0, terms)
        loss = embedding_PD.sum() * 0
        ce_weight = 1.0 if self.config.kind == "ce" else self.config.ce_weight
        if ce_weight and self.head.classifier is not None:
            share = self._judged(self.head.classifier(embedding_PD), label_PC).sum() / num_pairs
            loss, terms["ce_loss"] = loss + ce_weight * share, share.detach()
        if self.config.kind == "mccl":
            bias_C = (
                embedding_PD.new_zeros(label_PC.shape[1])
                if self.head.bias_C is None
                else self.head.bias_C
            )
            gathered = collective.all_gather(embedding_PD)
            logits_PC = multi_center_logits(
                embedding_PD,
                label_PC,
                self.head.proxy_CD,
                bias_C,
                weight_temperature=self.config.weight_temperature,
                logit_temperature=self.config.logit_temperature,
                other_MD=gathered.row_MD,
                other_label_MR=collective.all_gather(label_PC).row_MD,
                offset=gathered.offset,
            )
            share = self._judged(logits_PC, label_PC).sum() / num_pairs
            loss, terms["mccl_loss"] = loss + (1 - ce_weight) * share, share.detach()
        return LossReport(loss, terms)

    def _judged(self, logits_PC: Tensor, label_PC: Tensor) -> Tensor:
        """The loss of each pair."""
        if self.is_multi_label:
            return adaptive_threshold(logits_PC, label_PC, na_index=0)
        target_P = label_PC.int().argmax(1)
        # A pair that is alone in its class, and has no proxy, says nothing.
        is_possible_P = logits_PC.detach().gather(1, target_P[:, None])[:, 0] > -torch.inf
        loss_P = nn.functional.cross_entropy(
            logits_PC[is_possible_P], target_P[is_possible_P], reduction="none"
        )
        return loss_P

    def _supcon(
        self,
        embedding_PD: Tensor,
        label_PC: Tensor,
        collective: Collective,
        terms: dict[str, Tensor],
    ) -> LossReport:
        gathered, other_label_MC = (
            collective.all_gather(embedding_PD),
            collective.all_gather(label_PC).row_MD,
        )
        given: dict[str, Any] = {"temperature": self.config.temperature, "offset": gathered.offset}

        def share_of(pair_PD: Tensor, other_MD: Tensor) -> Tensor:
            if self.is_multi_label:
                found = multi_label_contrast(
                    pair_PD, label_PC, other_MD=other_MD, other_label_MR=other_label_MC, **given
                )
            else:
                label_P, other_label_M = label_PC.int().argmax(1), other_label_MC.int().argmax(1)
                found = supervised_contrast(
                    pair_PD, label_P, other_MD=other_MD, other_label_M=other_label_M, **given
                )
            return found.total / collective.all_sum(found.num_terms).clamp(min=1)

        share = share_of(embedding_PD, gathered.row_MD)
        with torch.no_grad():
            chance = share_of(equal_rows(embedding_PD), equal_rows(gathered.row_MD))
        return LossReport(share, terms | {"supcon_loss": share.detach(), "supcon_chance": chance})
