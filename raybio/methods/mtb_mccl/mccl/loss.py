"""MCCL: multi-center contrastive loss (Zhou et al., 2023, Section 3.3).

The logit of a class is a soft maximum of the anchor's cosines to the members of that class, so that
a class may have many centers:

    s_r = sum_j w_j s_j,    w = softmax over members j of s_j / tau1,    s_j = cos(anchor, j)
    logit_r = (s_r + b_r) / tau2

Members of class r are the labeled pairs of the batch with label r, except the anchor itself, and
the proxies of r. ``objective`` applies cross entropy, or ``adaptive_threshold`` for several labels.

Shape letters: N anchors, M pairs of all workers, R classes, D embedding width, K proxies, E labels
of all pairs, later with an entry for each proxy, B anchors of a block.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from raybio.methods.mtb_mccl.pair_contrast import candidate_rows, rows_per_block
from raybio.methods.mtb_mccl.soft_maxima import soft_maxima
from raybio.ops.contrastive import check_temperature, values_on_host
from raybio.ops.similarity import matmul, normalize


def multi_center_logits(
    pair_ND: Tensor,
    member_E: Tensor,
    class_E: Tensor,
    proxy_RD: Tensor | None,
    bias_R: Tensor,
    *,
    weight_temperature: float,
    logit_temperature: float,
    other_MD: Tensor | None = None,
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
        member_E: int64, the row of ``other_MD`` that each label belongs to, in any order.
        class_E: int64, the class of each label.
        proxy_RD: trained vectors, never anchors. With k proxies per class these are k * R rows, and
            row i belongs to class i mod R. None: no proxies.
        bias_R: b.
        weight_temperature: tau1 > 0. Towards 0 the nearest member decides, towards infinity the
            mean of all members.
        logit_temperature: tau2 > 0.
        other_MD: with several workers the pairs of all of them, gathered with gradient; None: the
            anchors.
        offset: the anchors are ``other_MD[offset : offset + N]``.
        block_rows: anchors scored at once; None: ``rows_per_block``.

    Raises:
        ValueError: for a temperature that is not positive, or inconsistent shapes, members
            or offset.
    """
    check_temperature(weight_temperature)
    check_temperature(logit_temperature)
    others = None if other_MD is None else (other_MD,)
    (other_MD,) = candidate_rows((pair_ND,), others, offset)
    if member_E.shape != class_E.shape:
        raise ValueError(f"got {len(member_E)} members and {len(class_E)} classes, want one each")
    known_E = values_on_host(member_E)
    if known_E is not None and known_E.size:
        lowest = known_E.min()
        highest = known_E.max()
        if lowest < 0 or highest >= len(other_MD):
            raise ValueError(f"members are {lowest} to {highest}, want 0 to {len(other_MD) - 1}")
    num_classes = len(bias_R)
    key_MD = normalize(other_MD)
    if proxy_RD is not None:
        if len(proxy_RD) < num_classes or len(proxy_RD) % num_classes:
            raise ValueError(
                f"proxy_RD has {len(proxy_RD)} rows, want as many for each of {num_classes} "
                "classes, or None"
            )
        proxy_K = torch.arange(len(proxy_RD), device=class_E.device)
        member_E = torch.cat([member_E, len(key_MD) + proxy_K])
        class_E = torch.cat([class_E, proxy_K % num_classes])
        key_MD = torch.cat([key_MD, normalize(proxy_RD).to(key_MD.dtype)])
    key_ED = key_MD.index_select(0, member_E)

    query_ND = normalize(pair_ND)
    soft_maximum_NR: Tensor = _SoftMaxima.apply(  # type: ignore[no-untyped-call]
        query_ND,
        key_ED,
        torch.arange(offset, offset + len(query_ND), device=query_ND.device),
        member_E,
        class_E,
        num_classes,
        weight_temperature,
        block_rows or rows_per_block(len(key_ED), query_ND.device),
    )
    logits_NR = (soft_maximum_NR + bias_R) / logit_temperature
    # The value is -inf already. The mask stops its gradient from reaching the bias.
    return logits_NR.masked_fill(soft_maximum_NR == -torch.inf, -torch.inf)


class _SoftMaxima(torch.autograd.Function):
    """Soft maxima (N, R) of inner products of unit vectors; -inf for a class without members.

    The backward pass scores the blocks again and adds their gradients in place: autograd would
    allocate a gradient for all entries in each block.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query_ND: Tensor,
        key_ED: Tensor,
        own_N: Tensor,
        member_E: Tensor,
        class_E: Tensor,
        num_classes: int,
        temperature: float,
        block_rows: int,
    ) -> Tensor:
        """Return the values; ``own_N`` is the index of each anchor among the members."""
        ctx.save_for_backward(query_ND, key_ED, own_N, member_E, class_E)
        ctx.settings = (num_classes, temperature, block_rows)
        blocks = [
            soft_maxima(
                matmul(key_ED, query_BD.T),
                member_E[:, None] != own_B,
                class_E,
                num_classes,
                temperature,
            ).T
            for query_BD, own_B in zip(
                query_ND.split(block_rows), own_N.split(block_rows), strict=True
            )
        ]
        return torch.cat(blocks)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient_NR: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients by queries and keys."""
        query_ND, key_ED, own_N, member_E, class_E = ctx.saved_tensors
        num_classes, temperature, block_rows = ctx.settings
        query_gradient_ND = torch.zeros_like(query_ND)
        key_gradient_ED = torch.zeros_like(key_ED)
        for start in range(0, len(query_ND), block_rows):
            rows = slice(start, start + block_rows)
            score_EB = matmul(key_ED, query_ND[rows].T).requires_grad_()
            is_member_EB = member_E[:, None] != own_N[rows]
            with torch.enable_grad():
                soft_maximum_RB = soft_maxima(
                    score_EB, is_member_EB, class_E, num_classes, temperature
                )
            (gradient_EB,) = torch.autograd.grad(soft_maximum_RB, score_EB, gradient_NR[rows].T)
            query_gradient_ND[rows] = matmul(gradient_EB.T, key_ED)
            key_gradient_ED.addmm_(gradient_EB, query_ND[rows])
        return query_gradient_ND, key_gradient_ED, None, None, None, None, None, None
