"""Objectives of fine-tuning: MCCL, cross entropy and SupCon (Zhou et al., 2023, Section 3.3).

Shape letters: P pairs of this worker, M pairs of all workers, D embedding width, C classes, NA
first, G labels of this worker's pairs, E labels of all pairs.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from raybio.core.batch import to_device
from raybio.core.interfaces import Collective, LossReport
from raybio.methods.mtb_mccl.batches import LabeledDocumentBatch
from raybio.methods.mtb_mccl.mccl.adaptive_threshold import adaptive_threshold
from raybio.methods.mtb_mccl.mccl.config import RelationObjectiveConfig
from raybio.methods.mtb_mccl.mccl.loss import multi_center_logits
from raybio.methods.mtb_mccl.pair_contrast import (
    LabeledRows,
    supervised_contrast,
)
from raybio.ops.contrastive import equal_rows
from raybio.training.objectives import CouplingObjective


class RelationHead(nn.Module):
    """Parameters that are trained next to the encoder.

    Attributes:
        proxy_CD: proxies of the classes, or None; with several per class, row i belongs to class
            i mod C.
        bias_C: class biases, or None.
        classifier: linear classifier, or None.
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
        """Create the parameters that the loss needs; proxies are drawn by torch's generator.

        Args:
            config: settings.
            num_classes: NA and all relations.
            width: embedding width.
            is_coarse: train with two classes only, "NA" and "any relation". They have no biases,
                since kNN then chooses among relations, which have no biases either.
        """
        super().__init__()
        if is_coarse:
            num_classes = 2
        is_mccl = config.kind == "mccl"
        num_rows = config.num_proxies * num_classes if is_mccl else 0
        self.register_parameter(
            "proxy_CD", nn.Parameter(torch.randn(num_rows, width)) if num_rows else None
        )
        # With "lazy" the biases stay 0; they exist because a run needs a trainable parameter.
        has_bias = config.kind in ("mccl", "lazy") and not is_coarse
        self.register_parameter(
            "bias_C", nn.Parameter(torch.zeros(num_classes)) if has_bias else None
        )
        has_classifier = config.kind == "ce" or (is_mccl and config.ce_weight > 0)
        self.classifier = nn.Linear(width, num_classes) if has_classifier else None


@dataclass(frozen=True)
class RelationObjective(CouplingObjective):
    """The loss named by ``config.kind``, averaged over the labeled pairs of the global batch.

    Attributes:
        config: settings.
        head: parameters trained next to the encoder.
        is_multi_label: whether a pair may have several relations. If so, adaptive thresholding
            replaces cross entropy.
        constant_logits_C: a constant prediction, whose loss is the classifier's chance level: the
            best one for the training labels, or one near it; None: it is not logged.
    """

    config: RelationObjectiveConfig
    head: RelationHead
    is_multi_label: bool
    constant_logits_C: Tensor | None = None

    def embedding_loss(
        self, embedding_PD: Tensor, batch: LabeledDocumentBatch, collective: Collective
    ) -> LossReport:
        """Return this worker's share of the loss."""
        label_PC = batch.label_PC
        num_own_pairs = torch.full((), len(embedding_PD), device=embedding_PD.device)
        num_pairs = collective.all_sum(num_own_pairs).clamp(min=1)
        terms: dict[str, Tensor] = {
            "pairs": torch.full((), float(len(embedding_PD)), device=embedding_PD.device)
        }
        if self.config.kind == "supcon":
            return self._supcon(embedding_PD, label_PC, collective, terms)
        if self.config.kind == "lazy":
            assert self.head.bias_C is not None
            return LossReport(self.head.bias_C.sum() * 0, terms)
        loss = embedding_PD.sum() * 0
        ce_weight = 1.0 if self.config.kind == "ce" else self.config.ce_weight
        if ce_weight and self.head.classifier is not None:
            logits_PC = self.head.classifier(embedding_PD)
            share = self._classification_loss(logits_PC, label_PC).sum() / num_pairs
            loss = loss + ce_weight * share
            terms["ce_loss"] = share.detach()
            if self.constant_logits_C is not None:
                constant_C = to_device(self.constant_logits_C, logits_PC.device)
                chance_P = self._classification_loss(constant_C.expand_as(logits_PC), label_PC)
                terms["ce_chance"] = chance_P.sum() / num_pairs
        if self.config.kind == "mccl":
            bias_C: Tensor | None = self.head.bias_C
            if bias_C is None:
                bias_C = embedding_PD.new_zeros(label_PC.shape[1])
            logits_PC = self._mccl_logits(embedding_PD, bias_C, batch, collective)
            share = self._classification_loss(logits_PC, label_PC).sum() / num_pairs
            loss = loss + (1 - ce_weight) * share
            terms["mccl_loss"] = share.detach()
            # With equal cosines, the biases alone decide among the classes that have members.
            equal_PC = (bias_C.detach() / self.config.logit_temperature).expand_as(logits_PC)
            equal_PC = equal_PC.masked_fill(logits_PC.detach() == -torch.inf, -torch.inf)
            chance_P = self._classification_loss(equal_PC, label_PC)
            terms["mccl_chance"] = chance_P.sum() / num_pairs
        return LossReport(loss, terms)

    def _mccl_logits(
        self,
        embedding_PD: Tensor,
        bias_C: Tensor,
        batch: LabeledDocumentBatch,
        collective: Collective,
    ) -> Tensor:
        gathered = collective.all_gather(embedding_PD)
        label_G2 = torch.stack([batch.pair_G + gathered.offset, batch.class_G], 1)
        # Copy the columns: columns of the gathered matrix would be read with a stride.
        member_E, class_E = collective.all_gather(label_G2).row_MD.T.contiguous()
        return multi_center_logits(
            embedding_PD,
            member_E,
            class_E,
            self.head.proxy_CD,
            bias_C,
            weight_temperature=self.config.weight_temperature,
            logit_temperature=self.config.logit_temperature,
            other_MD=gathered.row_MD,
            offset=gathered.offset,
        )

    def _classification_loss(self, logits_PC: Tensor, label_PC: Tensor) -> Tensor:
        """Return the loss of each pair (P,)."""
        if self.is_multi_label:
            return adaptive_threshold(logits_PC, label_PC, na_index=0)
        target_P = label_PC.int().argmax(1)
        # A pair that is the only member of its class, without a proxy, has the loss 0.
        is_possible_P1 = logits_PC.detach().gather(1, target_P[:, None]) > -torch.inf
        logits_PC = logits_PC.masked_fill(~is_possible_P1, 0.0)
        loss_P = nn.functional.cross_entropy(logits_PC, target_P, reduction="none")
        return loss_P.where(is_possible_P1[:, 0], 0.0)

    def _supcon(
        self,
        embedding_PD: Tensor,
        label_PC: Tensor,
        collective: Collective,
        terms: dict[str, Tensor],
    ) -> LossReport:
        gathered = collective.all_gather(embedding_PD)
        own_label = label_PC
        other_label = collective.all_gather(label_PC, gathered).row_MD
        if not self.is_multi_label:
            own_label = own_label.int().argmax(1)
            other_label = other_label.int().argmax(1)

        def share_of(pair_PD: Tensor, other_MD: Tensor) -> Tensor:
            sums = supervised_contrast(
                LabeledRows(pair_PD, own_label),
                others=LabeledRows(other_MD, other_label),
                temperature=self.config.temperature,
                offset=gathered.offset,
            )
            return sums.share(collective)

        share = share_of(embedding_PD, gathered.row_MD)
        with torch.no_grad():
            # The loss of an encoder that maps all pairs to the same point.
            chance = share_of(equal_rows(embedding_PD), equal_rows(gathered.row_MD))
        return LossReport(share, terms | {"supcon_loss": share.detach(), "supcon_chance": chance})
