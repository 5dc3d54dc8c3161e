"""Scores of names by a masked language model at one mask, alone or mixed with an encoder's.

Q queries, C candidate names, V vocabulary, B queries of a block, T word pieces of all names end to
end, R relations, S names of a single token.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from raybio.ops.retrieval import Scores


def mask_average_scores(
    log_probs: Callable[[int, int], Tensor],
    num_queries: int,
    names: Sequence[Sequence[int]],
    vocabulary_size: int,
) -> Scores:
    """Return scores of names: the mean log-probability of their word pieces at the mask.

    This is "mask average" as the paper defines it. The authors' code averages logits, and counts
    padding as pieces with score 0. Names with the same pieces, in any order, tie; a name without
    pieces comes last.

    Args:
        log_probs: (first, end) -> log-probabilities (end - first, V) at the masks of these queries.
        num_queries: Q.
        names: word pieces of each of the C names.
        vocabulary_size: V.
    """
    length_C = np.array([len(name) for name in names])
    piece_T = np.array([piece for name in names for piece in name], dtype=np.int64)
    name_T = np.repeat(np.arange(len(names)), length_C)
    shape = (len(names), vocabulary_size)
    # Counts are whole numbers and rows are summed in order of piece, so equal names tie exactly.
    count_CV = sparse.csr_matrix((np.ones(len(piece_T)), (name_T, piece_T)), shape=shape)
    count_CV.sum_duplicates()

    def block(first: int, end: int) -> Tensor:
        log_prob_VB = log_probs(first, end).double().cpu().numpy().T
        score_CB = (count_CV @ log_prob_VB) / np.maximum(length_C, 1)[:, None]
        score_CB[length_C == 0] = -np.inf
        return torch.from_numpy(score_CB.T)

    return Scores(block, num_queries, len(names))


def restricted_scores(
    scores: Scores, relation_Q: NDArray, is_candidate_RC: NDArray[np.bool_]
) -> Scores:
    """Return scores in which names that are no candidates of a query's relation come last."""

    def block(first: int, end: int) -> Tensor:
        score_BC = scores.block(first, end)
        is_excluded_BC = torch.from_numpy(~is_candidate_RC[relation_Q[first:end]])
        return score_BC.masked_fill_(is_excluded_BC.to(score_BC.device), -torch.inf)

    return replace(scores, block=block)


def hybrid_scores(
    retrieval: Scores, mask: Scores, is_single_C: NDArray[np.bool_], weight: float
) -> Scores:
    """Return an encoder's scores, mixed with a masked language model's for single-token names.

    Masked language models are better at single tokens (Meng et al., Limitations) and do not compare
    names of different lengths, so names of several tokens keep the encoder's score. For the
    single-token names of a query, the mask's scores are shifted and scaled to the mean and standard
    deviation of the encoder's. The new score is (1 - weight) x encoder + weight x mask, so this
    group neither gains nor loses against the other names.

    Args:
        retrieval: finite scores of the encoder.
        mask: scores of the masked language model for the same queries and candidates, finite for
            single tokens.
        is_single_C: whether a candidate is a single token of the masked language model.
        weight: 0: the encoder only; 1: the language model orders the single tokens.

    Raises:
        ValueError: if the weight is outside [0, 1], or the scores have different shapes.
    """
    if not 0.0 <= weight <= 1.0:
        raise ValueError(f"weight is {weight}, want a share in [0, 1]")
    shape = (retrieval.num_queries, retrieval.num_candidates)
    mask_shape = (mask.num_queries, mask.num_candidates)
    if shape != mask_shape or shape[1] != len(is_single_C):
        raise ValueError(
            f"scores of (queries, candidates) {shape} and {mask_shape} and {len(is_single_C)} "
            "candidates that are or are not single tokens; want the same queries and candidates"
        )
    single_S = torch.from_numpy(np.flatnonzero(is_single_C))

    def block(first: int, end: int) -> Tensor:
        score_BC = retrieval.block(first, end)
        if len(single_S) and weight > 0:
            column_S = single_S.to(score_BC.device)
            encoder_BS = score_BC[:, column_S]
            mask_BS = mask.block(first, end).to(score_BC)[:, column_S]
            scaled_BS = _on_scale_of(mask_BS, encoder_BS)
            score_BC[:, column_S] = (1 - weight) * encoder_BS + weight * scaled_BS
        return score_BC

    return replace(retrieval, block=block)


def _on_scale_of(score_BS: Tensor, other_BS: Tensor) -> Tensor:
    """Return scores with the mean and deviation of each row of ``other_BS``; ties stay ties."""
    centered_BS = score_BS - score_BS.mean(1, keepdim=True)
    spread_B1 = centered_BS.square().mean(1, keepdim=True).sqrt()
    other_spread_B1 = other_BS.std(1, correction=0, keepdim=True)
    ratio_B1 = torch.where(spread_B1 > 1e-12, other_spread_B1 / spread_B1.clamp(min=1e-12), 0.0)
    return other_BS.mean(1, keepdim=True) + centered_BS * ratio_B1
