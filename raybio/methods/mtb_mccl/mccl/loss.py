"""MCCL: the logit of a class is a soft maximum of cosines to its members (Zhou et al., 2023; facts §5.3).

N anchors, M rows among which members are found, R classes, D width, B anchors of a block, E (class, member) entries in
order of class: a row with several labels is an entry of each, a proxy one of its own class. A anchors that have
another member of their class.

Several labels or none: NA's logit is the threshold between what holds and what does not (ATLOP; facts §5.4).

N pairs, R relations, NA among them. A logit of -inf means that there is nothing to compare with: such a class takes no
part.

Losses of relation extraction: cross entropy, SupCon and MCCL (Zhou et al., 2023, facts §5).

Shape letters: N pairs of this worker, M pairs of all workers, D width, C classes, "none" first.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from raybio.core.interfaces import Collective, LossReport
from raybio.methods.mtb_mccl.batches import LabelledDocumentBatch
from raybio.methods.mtb_mccl.mccl.config import RelationObjectiveConfig
from raybio.methods.mtb_mccl.pair_contrast import (
    ContrastSum,
    by_entity_pair,
    multi_label_contrast,
    supervised_contrast,
    with_others,
)
from raybio.ops.contrastive import check_temperature, equal_rows
from raybio.ops.similarity import matmul, normalise
from raybio.training.objectives import CouplingObjective

_ENTRIES_AT_ONCE = {
    "cpu": 1 << 20,
    "cuda": 1 << 25,
}  # a CPU's stay in the cache, a GPU wants few and large kernels


def multi_center_logits(
    pair_ND: Tensor,
    label_NR: Tensor,
    proxy_RD: Tensor | None,
    bias_R: Tensor,
    *,
    weight_temperature: float,
    logit_temperature: float,
    other_MD: Tensor | None = None,
    other_label_MR: Tensor | None = None,
    offset: int = 0,
    block_rows: int | None = None,
) -> Tensor:
    """Logits (N, R) of each anchor: (s_r + b_r) / tau2, where s_r is a soft maximum of cosines to members of class r.

        s_r = sum_j w_j s_j,  w = softmax over the members j of class r of s_j / tau1,  s_j = cos(anchor, j)

    Members are the rows with label r except the anchor itself, and the proxies of r. Gradients flow through w. A class
    without any other member has the logit -inf and neither gives nor gets a gradient: leave anchors out of a cross
    entropy whose own logit is -inf. The (N, E) cosines never exist at once: blocks of anchors are scored, and once
    more in the backward pass. It can be differentiated once.

    Args:
        pair_ND: anchors; their length does not matter.
        label_NR: bool, which classes each belongs to; several, or none, are allowed.
        proxy_RD: trained vectors, never anchors: one a class, or k of each as k R rows, where row i is of class
            i mod R; None: no proxies.
        bias_R: b, added to the soft maxima.
        weight_temperature: tau1 > 0; towards 0 the nearest member decides, towards infinity the mean of all.
        logit_temperature: tau2 > 0.
        other_MD: on several workers the pairs of all of them, gathered with gradient; None: the anchors themselves.
        other_label_MR: their labels.
        offset: the anchors are ``other_MD[offset : offset + N]``.
        block_rows: anchors scored at once; None chooses.

    Raises:
        ValueError: for a temperature that is not positive, or shapes, labels and an offset that do not fit together.
    """
    if not (weight_temperature > 0 and logit_temperature > 0):
        raise ValueError(
            f"temperatures are {weight_temperature} and {logit_temperature}, want numbers > 0"
        )
    if label_NR.dtype != torch.bool:
        raise ValueError(f"labels are {label_NR.dtype}, want torch.bool")
    other_MD, member_MR = with_others(pair_ND, (label_NR,), other_MD, (other_label_MR,), offset)
    num_classes = label_NR.shape[1]
    if len(bias_R) != num_classes:
        raise ValueError(
            f"bias_R has {len(bias_R)} rows, want one for each of {num_classes} classes"
        )
    if proxy_RD is not None and (len(proxy_RD) < num_classes or len(proxy_RD) % num_classes):
        raise ValueError(
            f"proxy_RD has {len(proxy_RD)} rows, want as many for each of {num_classes} classes, or None"
        )
    key_MD = normalise(other_MD)
    if proxy_RD is not None:
        key_MD = torch.cat([key_MD, normalise(proxy_RD).to(key_MD.dtype)])
        own_class_RR = torch.eye(num_classes, dtype=torch.bool, device=member_MR.device)
        member_MR = torch.cat([member_MR, own_class_RR.repeat(len(proxy_RD) // num_classes, 1)])
    row_E = torch.nonzero(member_MR.T)[:, 1]
    size_R = member_MR.sum(0)
    soft_maximum_NR: Tensor = _SoftMaxima.apply(  # type: ignore[no-untyped-call]
        normalise(pair_ND),
        key_MD[row_E],
        row_E - offset,
        size_R.tolist(),
        weight_temperature,
        block_rows,
    )
    logits_NR = (soft_maximum_NR + bias_R) / logit_temperature
    return logits_NR.masked_fill(size_R - label_NR.long() <= 0, -torch.inf)


def multi_center_contrast(
    pair_ND: Tensor,
    entity_pair_id_N: Tensor,
    type_N: Tensor,
    *,
    weight_temperature: float,
    logit_temperature: float,
    type_filter: bool = True,
    other_MD: Tensor | None = None,
    other_entity_pair_id_M: Tensor | None = None,
    other_type_M: Tensor | None = None,
    offset: int = 0,
    block_rows: int | None = None,
) -> ContrastSum:
    """MCCL in pre-training, where each entity pair is a class (Zhou et al., 2023, Table 5; facts §8).

    A term is an anchor whose entity pair occurs again: the cross entropy of the logits of ``multi_center_logits``,
    without proxies and biases. Of the other entity pairs, as in ``matching_the_blanks``, the rows of another type are
    members alone. Here classes are about as many as rows and most have one member, so they are not gone through one by
    one, and no (N, R) logits are kept: blocks of anchors are scored, and once more in the backward pass.

    Arguments as for ``matching_the_blanks``, with the two temperatures of ``multi_center_logits``.

    Raises:
        ValueError: for a temperature that is not positive, or rows that do not fit together.
    """
    check_temperature(weight_temperature)
    check_temperature(logit_temperature)
    other_MD, id_M, type_M = with_others(
        pair_ND,
        (entity_pair_id_N, type_N),
        other_MD,
        (other_entity_pair_id_M, other_type_M),
        offset,
    )
    relate, has_positive_M = by_entity_pair(id_M, type_M, type_filter=type_filter)
    # Those of -1 are each a class of its own.
    alone_M = -1 - torch.arange(len(id_M), device=id_M.device)
    class_I, class_M = torch.unique(torch.where(id_M < 0, alone_M, id_M), return_inverse=True)

    def block_loss(query_BD: Tensor, key_MD: Tensor, own_B: Tensor) -> Tensor:
        positive_BM, negative_BM = relate(own_B)
        is_member_BM = (positive_BM | negative_BM).scatter(1, own_B[:, None], False)
        soft_maximum_BR = _soft_maxima_of_many(
            matmul(query_BD, key_MD.T), is_member_BM, class_M, len(class_I), weight_temperature
        )
        return cross_entropy(soft_maximum_BR / logit_temperature, class_M[own_B], reduction="sum")

    used_A = torch.nonzero(has_positive_M[offset : offset + len(pair_ND)])[:, 0]
    query_AD, key_MD = normalise(pair_ND)[used_A], normalise(other_MD)
    total = query_AD.sum() * 0
    at_once = _ENTRIES_AT_ONCE.get(query_AD.device.type, _ENTRIES_AT_ONCE["cuda"])
    rows = block_rows or max(1, at_once // max(len(key_MD), 1))
    for query_BD, used_B in zip(
        torch.split(query_AD, rows), torch.split(used_A, rows), strict=True
    ):
        total = total + checkpoint(
            block_loss,
            query_BD,
            key_MD,
            used_B + offset,
            use_reentrant=False,
            preserve_rng_state=False,
        )
    return ContrastSum(total, torch.tensor(len(used_A), device=used_A.device))


def _soft_maxima_of_many(
    score_BM: Tensor, is_member_BM: Tensor, class_M: Tensor, num_classes: int, temperature: float
) -> Tensor:
    """Soft maxima (B, R) of all classes at once; -inf for one without a member."""
    power_BM = (score_BM / temperature).masked_fill(~is_member_BM, -torch.inf)
    index_BM, zero_BR = class_M.expand_as(score_BM), score_BM.new_zeros(len(score_BM), num_classes)
    # The largest of each class is taken off, so that no sum underflows: that of a class with a member is at least 1.
    lowest_BR = torch.full_like(zero_BR, torch.finfo(zero_BR.dtype).min)
    largest_BR = lowest_BR.scatter_reduce(1, index_BM, power_BM.detach(), "amax")
    weight_BM = (power_BM - largest_BR.gather(1, index_BM)).exp()
    sum_BR = zero_BR.scatter_add(1, index_BM, weight_BM)
    soft_maximum_BR = zero_BR.scatter_add(1, index_BM, weight_BM * score_BM) / sum_BR.clamp(min=1)
    return soft_maximum_BR.masked_fill(sum_BR == 0, -torch.inf)


class _SoftMaxima(torch.autograd.Function):
    """Soft maxima (N, R) of inner products of unit vectors; a number without meaning where a class has no member."""

    @staticmethod
    def forward(
        ctx: Any,
        query_ND: Tensor,
        key_ED: Tensor,
        anchor_E: Tensor,
        size_R: list[int],
        temperature: float,
        block_rows: int | None,
    ) -> Tensor:
        """The values alone; ``anchor_E`` is the anchor that an entry is, or a number outside [0, N)."""
        ctx.save_for_backward(query_ND, key_ED, anchor_E)
        at_once = _ENTRIES_AT_ONCE.get(query_ND.device.type, _ENTRIES_AT_ONCE["cuda"])
        ctx.block_rows = block_rows or max(1, at_once // max(len(key_ED), 1))
        ctx.size_R, ctx.temperature = size_R, temperature
        soft_maximum_NR = query_ND.new_zeros(len(query_ND), len(size_R))
        for start in range(0, len(query_ND), ctx.block_rows):
            rows = slice(start, start + ctx.block_rows)
            score_EB = _scores(query_ND[rows], key_ED, anchor_E - start, temperature)
            for number, score_CB in enumerate(torch.split(score_EB, size_R)):
                if len(score_CB):
                    soft_maximum_NR[rows, number] = (
                        _weights(score_CB, temperature) * score_CB
                    ).sum(0)
        return soft_maximum_NR

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(
        ctx: Any, gradient_NR: Tensor
    ) -> tuple[Tensor | None, Tensor | None, None, None, None, None]:
        """Blocks are scored again: ds_r / ds_j = w_j (1 + (s_j - s_r) / tau1)."""
        query_ND, key_ED, anchor_E = ctx.saved_tensors
        wants_query, wants_key = ctx.needs_input_grad[:2]
        query_gradient_ND = torch.zeros_like(query_ND) if wants_query else None
        key_gradient_ED = torch.zeros_like(key_ED) if wants_key else None
        for start in range(0, len(query_ND), ctx.block_rows):
            rows = slice(start, start + ctx.block_rows)
            score_EB = _scores(query_ND[rows], key_ED, anchor_E - start, ctx.temperature)
            for number, score_CB in enumerate(torch.split(score_EB, ctx.size_R)):
                if len(score_CB):
                    weight_CB = _weights(score_CB, ctx.temperature)
                    soft_maximum_B = (weight_CB * score_CB).sum(0)
                    # In place of the scores, which are not needed any more.
                    score_CB.sub_(soft_maximum_B).div_(ctx.temperature).add_(1)
                    score_CB.mul_(weight_CB).mul_(gradient_NR[rows, number])
            if query_gradient_ND is not None:
                torch.mm(score_EB.T, key_ED, out=query_gradient_ND[rows])
            if key_gradient_ED is not None:
                key_gradient_ED.addmm_(score_EB, query_ND[rows])
        return query_gradient_ND, key_gradient_ED, None, None, None, None


def _scores(query_BD: Tensor, key_ED: Tensor, anchor_E: Tensor, temperature: float) -> Tensor:
    """Cosines (E, B), so that the members of a class lie together; an anchor's to itself has a weight of exactly 0."""
    score_EB = matmul(key_ED, query_BD.T)
    entry_S = torch.nonzero((anchor_E >= 0) & (anchor_E < len(query_BD)))[:, 0]
    # Not -inf, which times a weight of 0 is NaN: 800 temperatures below any cosine the exponential is 0 in fp64 too.
    score_EB[entry_S, anchor_E[entry_S]] = -2 - 800 * temperature
    return score_EB


def _weights(score_CB: Tensor, temperature: float) -> Tensor:
    """Softmax over the members of one class; the largest is taken off first, so that no sum underflows."""
    weight_CB = (score_CB - score_CB.amax(0)).div_(temperature).exp_()
    return weight_CB.div_(weight_CB.sum(0))


def adaptive_threshold(logits_NR: Tensor, label_NR: Tensor, *, na_index: int) -> Tensor:
    """Adaptive-threshold loss (N,) of each pair, L1 + L2 (Zhou et al., 2021).

        L1 = - sum over r in Pos of log(e^l_r / sum over Pos and NA of e^l),  L2 = - log(e^l_NA / sum over Neg and NA)

    L1 lifts what holds above NA, L2 presses what does not below it. A positive with logit -inf adds nothing, and with
    NA at -inf there is no L2.

    Args:
        logits_NR: logits, -inf for absent classes.
        label_NR: bool; the column of NA is not read: a pair is NA if it has no other label.
        na_index: NA's column.

    Raises:
        ValueError: if shapes, dtype or ``na_index`` do not fit.
    """
    _check_index(logits_NR, na_index)
    if label_NR.shape != logits_NR.shape or label_NR.dtype != torch.bool:
        raise ValueError(
            f"labels are {label_NR.dtype} of shape {tuple(label_NR.shape)}, want torch.bool of {tuple(logits_NR.shape)}"
        )
    is_absent_NR = logits_NR == -torch.inf
    # A finite filling: a sum over nothing but -inf would have the gradient inf - inf.
    filling = torch.finfo(logits_NR.dtype).min / 4
    logits_NR = logits_NR.masked_fill(is_absent_NR, filling)
    is_na_R = torch.arange(logits_NR.shape[1], device=logits_NR.device) == na_index
    is_positive_NR = label_NR & ~is_na_R
    with_na_NR = is_positive_NR | is_na_R
    all_positive_N1 = logits_NR.masked_fill(~with_na_NR, filling).logsumexp(1, keepdim=True)
    all_negative_N = logits_NR.masked_fill(is_positive_NR, filling).logsumexp(1)
    lift_N = torch.where(is_positive_NR & ~is_absent_NR, all_positive_N1 - logits_NR, 0.0).sum(1)
    press_N = torch.where(is_absent_NR[:, na_index], 0.0, all_negative_N - logits_NR[:, na_index])
    return lift_N + press_N


def above_threshold(logits_NR: Tensor, *, na_index: int, max_labels: int | None = None) -> Tensor:
    """Predictions, bool (N, R): the relations whose logit is above NA's, never NA itself; none of them means NA.

    Args:
        logits_NR: logits; -inf is never predicted.
        na_index: NA's column.
        max_labels: keep only relations whose logit is among a pair's so many highest, as ATLOP's code does with 4;
            None: all of them, as the paper.

    Raises:
        ValueError: if ``na_index`` is no column, or ``max_labels`` is below 1.
    """
    _check_index(logits_NR, na_index)
    is_above_NR = logits_NR > logits_NR[:, na_index, None]
    if max_labels is not None:
        if max_labels < 1:
            raise ValueError(f"max_labels is {max_labels}, want at least 1, or None for no limit")
        lowest_N1 = logits_NR.topk(min(max_labels, logits_NR.shape[1]), dim=1).values[:, -1:]
        is_above_NR &= logits_NR >= lowest_N1
    return is_above_NR


def _check_index(logits_NR: Tensor, na_index: int) -> None:
    if not 0 <= na_index < logits_NR.shape[1]:
        raise ValueError(
            f"na_index is {na_index}, want a column of the {logits_NR.shape[1]} logits"
        )


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
class RelationLabels(CouplingObjective):
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
