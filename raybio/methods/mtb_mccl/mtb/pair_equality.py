"""Vanilla MTB: binary classification of pair equality (Baldini Soares et al., 2019).

Shape letters: N anchors, M candidates (the anchors are rows of them), D embedding width, B anchors
of a block.
"""

from typing import NamedTuple

from torch import Tensor
from torch.nn.functional import logsigmoid

from raybio.methods.mtb_mccl.pair_contrast import (
    ContrastSum,
    PairRows,
    by_entity_pair,
    candidate_rows,
    sum_over_blocks,
)
from raybio.ops.similarity import at_least_fp32, matmul


class EqualitySums(NamedTuple):
    """Negative log-likelihoods of this worker's (anchor, candidate) pairs.

    Attributes:
        positive: of pairs with the same entity pair.
        negative: of pairs with different entity pairs.
    """

    positive: ContrastSum
    negative: ContrastSum


def pair_equality(
    anchors: PairRows,
    *,
    type_filter: bool = True,
    others: PairRows | None = None,
    offset: int = 0,
    block_rows: int | None = None,
) -> EqualitySums:
    """Return the negative log-likelihoods with p(same entity pair) = sigmoid(z_i . z_j).

    Every ordered (anchor, candidate) pair is a term: -log sigmoid(z_i . z_j) for the same entity
    pair, -log sigmoid(-z_i . z_j) for another one. Half the sum of both means is the expected loss
    of the original's sampling of as many negatives as positives.

    The (N, M) scores are never stored: blocks of anchors are scored in the forward pass and again
    in the backward pass.

    Arguments as for ``matching_the_blanks``; here the length of embeddings matters.

    Raises:
        ValueError: for inconsistent rows.
    """
    other_MD, id_M, type_M = candidate_rows(anchors, others, offset)
    relate = by_entity_pair(id_M, type_M, type_filter=type_filter)

    def block_sums(query_BD: Tensor, key_MD: Tensor, own_B: Tensor) -> tuple[Tensor, ...]:
        score_BM = matmul(query_BD, key_MD.T)
        is_positive_BM, is_negative_BM = relate(own_B)
        return (
            -logsigmoid(score_BM).where(is_positive_BM, 0.0).sum(),
            is_positive_BM.sum(),
            -logsigmoid(-score_BM).where(is_negative_BM, 0.0).sum(),
            is_negative_BM.sum(),
        )

    pull, num_positives, push, num_negatives = sum_over_blocks(
        block_sums,
        at_least_fp32(anchors.embedding_ND),
        at_least_fp32(other_MD),
        offset,
        block_rows,
    )
    return EqualitySums(ContrastSum(pull, num_positives), ContrastSum(push, num_negatives))
