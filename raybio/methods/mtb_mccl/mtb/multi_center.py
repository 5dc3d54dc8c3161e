"""MCCL in place of L_rel: each entity pair is a class (Zhou et al., 2023, Table 5).

Shape letters: N anchors, M candidates (the anchors are rows of them), D embedding width, B anchors
of a block.
"""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from raybio.methods.mtb_mccl.pair_contrast import (
    ContrastSum,
    PairRows,
    by_entity_pair,
    candidate_rows,
    sum_over_blocks,
)
from raybio.methods.mtb_mccl.soft_maxima import soft_maxima
from raybio.ops.contrastive import check_temperature
from raybio.ops.similarity import matmul, normalize


def multi_center_contrast(
    anchors: PairRows,
    *,
    weight_temperature: float,
    logit_temperature: float,
    type_filter: bool = True,
    others: PairRows | None = None,
    offset: int = 0,
    block_rows: int | None = None,
) -> ContrastSum:
    """Return the sum of cross entropies of anchors whose entity pair occurs again.

    The logits are those of ``multi_center_logits``, without proxies and biases. The members of
    other classes are the negatives of ``matching_the_blanks``.

    Here there are about as many classes as rows, and most have one member. So (N, M) logits are not
    stored: blocks of anchors are scored in the forward pass and again in the backward pass.

    Arguments as for ``matching_the_blanks``, with the two temperatures of ``multi_center_logits``.

    Raises:
        ValueError: for a temperature that is not positive, or inconsistent rows.
    """
    check_temperature(weight_temperature)
    check_temperature(logit_temperature)
    other_MD, id_M, type_M = candidate_rows(anchors, others, offset)
    relate = by_entity_pair(id_M, type_M, type_filter=type_filter)
    # Each row with id -1 is a class of its own.
    class_M = torch.where(id_M < 0, -1 - torch.arange(len(id_M), device=id_M.device), id_M)
    # Numbers below M, equal for rows of one class; only the device knows how many there are.
    class_M = torch.searchsorted(class_M.sort().values, class_M)

    def block_sums(query_BD: Tensor, key_MD: Tensor, own_B: Tensor) -> tuple[Tensor, Tensor]:
        """Return the summed loss of a block's anchors, and how many have a positive."""
        positive_BM, negative_BM = relate(own_B)
        has_positive_B = positive_BM.any(1)
        soft_maximum_MB = soft_maxima(
            matmul(key_MD, query_BD.T),
            (positive_BM | negative_BM).T,
            class_M,
            len(class_M),
            weight_temperature,
        )
        logits_BM = soft_maximum_MB.T / logit_temperature
        # Without positives, the anchor's own class has the logit -inf.
        logits_BM = logits_BM.masked_fill(~has_positive_B[:, None], 0.0)
        loss_B = cross_entropy(logits_BM, class_M[own_B], reduction="none")
        return loss_B.where(has_positive_B, 0.0).sum(), has_positive_B.sum()

    query_ND = normalize(anchors.embedding_ND)
    return ContrastSum(
        *sum_over_blocks(block_sums, query_ND, normalize(other_MD), offset, block_rows)
    )
