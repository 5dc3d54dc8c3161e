"""MCCL in place of L_rel: each entity pair is a class (Zhou et al., 2023, Table 5).

Shape letters: N anchors, M candidates (the anchors are rows of them), A anchors with a positive,
R entity pairs, D embedding width, B anchors of a block.
"""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from raybio.methods.mtb_mccl.mccl.loss import rows_per_block
from raybio.methods.mtb_mccl.pair_contrast import ContrastSum, by_entity_pair, with_others
from raybio.ops.contrastive import check_temperature
from raybio.ops.similarity import matmul, normalize


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
    """Return the sum of cross entropies of anchors whose entity pair occurs again.

    The logits are those of ``multi_center_logits``, without proxies and biases. The members of
    other classes are the negatives of ``matching_the_blanks``.

    Here there are about as many classes as rows, and most have one member. So classes are not
    processed one by one, and (N, R) logits are not stored: blocks of anchors are scored in the
    forward pass and again in the backward pass.

    Arguments as for ``matching_the_blanks``, with the two temperatures of ``multi_center_logits``.

    Raises:
        ValueError: for a temperature that is not positive, or inconsistent rows.
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
    # Each row with id -1 is a class of its own.
    own_id_M = -1 - torch.arange(len(id_M), device=id_M.device)
    class_id_R, class_M = torch.unique(torch.where(id_M < 0, own_id_M, id_M), return_inverse=True)

    def block_loss(query_BD: Tensor, key_MD: Tensor, own_B: Tensor) -> Tensor:
        positive_BM, negative_BM = relate(own_B)
        is_member_BM = (positive_BM | negative_BM).scatter(1, own_B[:, None], False)
        soft_maximum_BR = _soft_maxima(
            matmul(query_BD, key_MD.T), is_member_BM, class_M, len(class_id_R), weight_temperature
        )
        return cross_entropy(soft_maximum_BR / logit_temperature, class_M[own_B], reduction="sum")

    used_A = torch.nonzero(has_positive_M[offset : offset + len(pair_ND)])[:, 0]
    query_AD = normalize(pair_ND)[used_A]
    key_MD = normalize(other_MD)
    total = query_AD.sum() * 0
    rows = block_rows or rows_per_block(len(key_MD), query_AD.device)
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
    return ContrastSum(total, torch.full((), len(used_A), device=used_A.device))


def _soft_maxima(
    score_BM: Tensor, is_member_BM: Tensor, class_M: Tensor, num_classes: int, temperature: float
) -> Tensor:
    """Return the soft maxima (B, R) of all classes at once; -inf for a class without members."""
    power_BM = (score_BM / temperature).masked_fill(~is_member_BM, -torch.inf)
    index_BM = class_M.expand_as(score_BM)
    zero_BR = score_BM.new_zeros(len(score_BM), num_classes)
    # Subtract the maximum of each class, so that the sum over its members is at least 1.
    lowest_BR = torch.full_like(zero_BR, torch.finfo(zero_BR.dtype).min)
    largest_BR = lowest_BR.scatter_reduce(1, index_BM, power_BM.detach(), "amax")
    weight_BM = (power_BM - largest_BR.gather(1, index_BM)).exp()
    sum_BR = zero_BR.scatter_add(1, index_BM, weight_BM)
    soft_maximum_BR = zero_BR.scatter_add(1, index_BM, weight_BM * score_BM) / sum_BR.clamp(min=1)
    return soft_maximum_BR.masked_fill(sum_BR == 0, -torch.inf)
