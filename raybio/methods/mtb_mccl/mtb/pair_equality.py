"""Vanilla MTB."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid
from torch.utils.checkpoint import checkpoint

from raybio.methods.mtb_mccl.pair_contrast import (
    ContrastSum,
    by_entity_pair,
    with_others,
)
from raybio.ops.similarity import at_least_fp32, matmul

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
