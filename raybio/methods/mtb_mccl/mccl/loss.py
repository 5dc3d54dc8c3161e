"""MCCL: multi-center contrastive loss (Zhou et al., 2023, Section 3.3).

The logit of a class is a soft maximum of the anchor's cosines to the members of that class, so that
a class may have many centers:

    s_r = sum_j w_j s_j,    w = softmax over members j of s_j / tau1,    s_j = cos(anchor, j)
    logit_r = (s_r + b_r) / tau2

Members of class r are the labeled pairs of the batch with label r, except the anchor itself, and
the proxies of r. ``objective`` applies cross entropy, or ``adaptive_threshold`` for several labels.

Shape letters: N anchors, M pairs of all workers, R classes, D embedding width, E labels of all
pairs (a pair with several labels is a member of several classes), B anchors of a block.
"""

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from raybio.methods.mtb_mccl.pair_contrast import with_others
from raybio.ops.contrastive import check_temperature
from raybio.ops.similarity import matmul, normalize, scores_at_once


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
    in the backward pass.

    Args:
        pair_ND: anchors; their length does not matter.
        member_E: int64, the row of ``other_MD`` that each label belongs to, in any order.
        class_E: int64, the class that each label states.
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
        ValueError: for a temperature that is not positive, or inconsistent shapes or offset.
    """
    check_temperature(weight_temperature)
    check_temperature(logit_temperature)
    (other_MD,) = with_others(pair_ND, (), other_MD, (), offset)
    if member_E.shape != class_E.shape:
        raise ValueError(f"got {len(member_E)} members and {len(class_E)} classes, want one each")
    num_classes = len(bias_R)
    key_MD = normalize(other_MD)
    if proxy_RD is not None:
        if len(proxy_RD) < num_classes or len(proxy_RD) % num_classes:
            raise ValueError(
                f"proxy_RD has {len(proxy_RD)} rows, want as many for each of {num_classes} "
                "classes, or None"
            )
        number_R = torch.arange(len(proxy_RD), device=class_E.device)
        member_E = torch.cat([member_E, len(key_MD) + number_R])
        class_E = torch.cat([class_E, number_R % num_classes])
        key_MD = torch.cat([key_MD, normalize(proxy_RD).to(key_MD.dtype)])
    key_ED = key_MD.index_select(0, member_E)

    def block_maxima(query_BD: Tensor, key_ED: Tensor, own_B: Tensor) -> Tensor:
        score_EB = matmul(key_ED, query_BD.T)
        is_other_EB = member_E[:, None] != own_B
        return soft_maxima(score_EB, is_other_EB, class_E, num_classes, weight_temperature).T

    query_ND = normalize(pair_ND)
    own_N = torch.arange(len(query_ND), device=query_ND.device) + offset
    rows = block_rows or rows_per_block(len(key_ED), query_ND.device)
    blocks = [
        checkpoint(
            block_maxima, query_BD, key_ED, own_B, use_reentrant=False, preserve_rng_state=False
        )
        for query_BD, own_B in zip(query_ND.split(rows), own_N.split(rows), strict=True)
    ]
    soft_maximum_NR = torch.cat(blocks)
    logits_NR = (soft_maximum_NR + bias_R) / logit_temperature
    return logits_NR.masked_fill(soft_maximum_NR == -torch.inf, -torch.inf)


def soft_maxima(
    score_EB: Tensor, is_member_EB: Tensor, class_E: Tensor, num_classes: int, temperature: float
) -> Tensor:
    """Return the soft maxima (R, B) of the scores of each class; -inf for one without members.

    Entries come first, so that sums over the entries of a class add whole rows.

    Args:
        score_EB: scores of entries for anchors.
        is_member_EB: which entries count for which anchor, bool.
        class_E: class of each entry.
        num_classes: R.
        temperature: tau1.
    """
    member_EB = score_EB.masked_fill(~is_member_EB, -torch.inf)
    # Subtract the maximum of each class, so that the sum over its members is at least 1.
    lowest_RB = score_EB.new_full((num_classes, score_EB.shape[1]), torch.finfo(score_EB.dtype).min)
    index_EB = class_E[:, None].expand_as(score_EB)
    largest_RB = lowest_RB.scatter_reduce(0, index_EB, member_EB.detach(), "amax")
    weight_EB = ((member_EB - largest_RB.index_select(0, class_E)) / temperature).exp()
    zero_RB = torch.zeros_like(largest_RB)
    sum_RB = zero_RB.index_add(0, class_E, weight_EB)
    soft_maximum_RB = zero_RB.index_add(0, class_E, weight_EB * score_EB) / sum_RB.clamp(min=1)
    return soft_maximum_RB.masked_fill(sum_RB == 0, -torch.inf)


def rows_per_block(num_columns: int, device: torch.device) -> int:
    """Return how many rows of a score matrix with ``num_columns`` columns to compute at once."""
    return max(1, scores_at_once(device) // max(num_columns, 1))
