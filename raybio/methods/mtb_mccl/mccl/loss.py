"""MCCL: multi-center contrastive loss (Zhou et al., 2023, Section 3.3).

The logit of a class is a soft maximum of the anchor's cosines to the members of that class, so that
a class may have many centers:

    s_r = sum_j w_j s_j,    w = softmax over members j of s_j / tau1,    s_j = cos(anchor, j)
    logit_r = (s_r + b_r) / tau2

Members of class r are the labeled pairs of the batch with label r, except the anchor itself, and
the proxies of r. ``objective`` applies cross entropy, or ``adaptive_threshold`` for several labels.

Shape letters: N anchors, M pairs of all workers, R classes, D embedding width, E entries: members
sorted by class (a pair with several labels is an entry of each), C entries of one class, B anchors
of a block.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from raybio.methods.mtb_mccl.pair_contrast import with_others
from raybio.ops.similarity import matmul, normalize, scores_at_once


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
    """Return the logits (N, R) of each anchor, as defined at the top of this module.

    Gradients flow through the weights w. A class without members other than the anchor has the
    logit -inf, without gradient: exclude anchors whose own class has -inf from a cross entropy.

    The (N, E) cosines are never stored: blocks of anchors are scored in the forward pass and again
    in the backward pass. The result can be differentiated once.

    Args:
        pair_ND: anchors; their length does not matter.
        label_NR: bool, the classes of each anchor: any number of them.
        proxy_RD: trained vectors, never anchors. With k proxies per class these are k * R rows, and
            row i belongs to class i mod R. None: no proxies.
        bias_R: b.
        weight_temperature: tau1 > 0. Towards 0 the nearest member decides, towards infinity the
            mean of all members.
        logit_temperature: tau2 > 0.
        other_MD: with several workers the pairs of all of them, gathered with gradient; None: the
            anchors.
        other_label_MR: their labels.
        offset: the anchors are ``other_MD[offset : offset + N]``.
        block_rows: anchors scored at once; None: ``rows_per_block``.

    Raises:
        ValueError: for a temperature that is not positive, or inconsistent shapes, labels or
            offset.
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
            f"proxy_RD has {len(proxy_RD)} rows, want as many for each of {num_classes} classes, "
            "or None"
        )
    key_MD = normalize(other_MD)
    if proxy_RD is not None:
        key_MD = torch.cat([key_MD, normalize(proxy_RD).to(key_MD.dtype)])
        own_class_RR = torch.eye(num_classes, dtype=torch.bool, device=member_MR.device)
        member_MR = torch.cat([member_MR, own_class_RR.repeat(len(proxy_RD) // num_classes, 1)])
    row_E = torch.nonzero(member_MR.T)[:, 1]
    size_R = member_MR.sum(0)
    soft_maximum_NR: Tensor = _SoftMaxima.apply(  # type: ignore[no-untyped-call]
        normalize(pair_ND),
        key_MD[row_E],
        row_E - offset,
        size_R.tolist(),
        weight_temperature,
        block_rows,
    )
    logits_NR = (soft_maximum_NR + bias_R) / logit_temperature
    num_other_members_NR = size_R - label_NR.long()
    return logits_NR.masked_fill(num_other_members_NR <= 0, -torch.inf)


def rows_per_block(num_columns: int, device: torch.device) -> int:
    """Return how many rows of a score matrix with ``num_columns`` columns to compute at once."""
    return max(1, scores_at_once(device) // max(num_columns, 1))


class _SoftMaxima(torch.autograd.Function):
    """Soft maxima (N, R) of inner products of unit vectors; undefined for a class without members.

    The backward pass scores the blocks again: ds_r / ds_j = w_j (1 + (s_j - s_r) / tau1).
    """

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
        """Return the values; ``anchor_E`` is an entry's anchor, outside [0, N) if it is none."""
        ctx.save_for_backward(query_ND, key_ED, anchor_E)
        ctx.block_rows = block_rows or rows_per_block(len(key_ED), query_ND.device)
        ctx.size_R = size_R
        ctx.temperature = temperature
        soft_maximum_NR = query_ND.new_zeros(len(query_ND), len(size_R))
        for start in range(0, len(query_ND), ctx.block_rows):
            rows = slice(start, start + ctx.block_rows)
            score_EB = _scores(query_ND[rows], key_ED, anchor_E - start, temperature)
            for number, score_CB in enumerate(torch.split(score_EB, size_R)):
                if len(score_CB):
                    weight_CB = _weights(score_CB, temperature)
                    soft_maximum_NR[rows, number] = (weight_CB * score_CB).sum(0)
        return soft_maximum_NR

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(
        ctx: Any, gradient_NR: Tensor
    ) -> tuple[Tensor | None, Tensor | None, None, None, None, None]:
        """Return the gradients by queries and keys."""
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
                    # The gradient overwrites the scores, which are no longer needed.
                    score_CB.sub_(soft_maximum_B).div_(ctx.temperature).add_(1)
                    score_CB.mul_(weight_CB).mul_(gradient_NR[rows, number])
            if query_gradient_ND is not None:
                torch.mm(score_EB.T, key_ED, out=query_gradient_ND[rows])
            if key_gradient_ED is not None:
                key_gradient_ED.addmm_(score_EB, query_ND[rows])
        return query_gradient_ND, key_gradient_ED, None, None, None, None


def _scores(query_BD: Tensor, key_ED: Tensor, anchor_E: Tensor, temperature: float) -> Tensor:
    """Return cosines (E, B); an anchor's cosine to itself gets a weight of exactly 0.

    Entries come first, so that the members of a class are contiguous.
    """
    score_EB = matmul(key_ED, query_BD.T)
    entry_S = torch.nonzero((anchor_E >= 0) & (anchor_E < len(query_BD)))[:, 0]
    # Not -inf, which times a weight of 0 is NaN. 800 temperatures below any cosine, the
    # exponential is 0 in float64, too.
    score_EB[entry_S, anchor_E[entry_S]] = -2 - 800 * temperature
    return score_EB


def _weights(score_CB: Tensor, temperature: float) -> Tensor:
    """Return the softmax over the members of one class; the maximum is subtracted first."""
    weight_CB = (score_CB - score_CB.amax(0)).div_(temperature).exp_()
    return weight_CB.div_(weight_CB.sum(0))
