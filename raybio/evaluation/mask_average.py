"""Scores of candidate names by what a masked language model says at one mask, and together with an encoder's scores.

Q queries, C candidate names, V vocabulary, B queries of a block, T word pieces of all names end to end, R relations.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from raybio.functional.retrieval import Scores


def mask_average_scores(
    log_probs: Callable[[int, int], Tensor], num_queries: int, names: Sequence[Sequence[int]], vocabulary_size: int
) -> Scores:
    """A name's score is the mean log-probability of its word pieces at the one mask (Contrastive-Probe, mask average).

    As the paper says it; the authors' code averages logits, and counts padding as pieces of score 0. Names of the same
    pieces, in whatever order, have equal scores; one without pieces comes last.

    Args:
        log_probs: (first, end) -> log-probabilities (end - first, V) at those queries' masks.
        num_queries: Q.
        names: word pieces of each of the C names.
        vocabulary_size: V.
    """
    length_C = np.array([len(name) for name in names])
    piece_T = np.array([piece for name in names for piece in name], dtype=np.int64)
    name_T = np.repeat(np.arange(len(names)), length_C)
    shape = (len(names), vocabulary_size)
    # Counts are whole numbers, and rows are summed in order of piece: what ties on paper ties here.
    count_CV = sparse.csr_matrix((np.ones(len(piece_T)), (name_T, piece_T)), shape=shape)
    count_CV.sum_duplicates()

    def block(first: int, end: int) -> Tensor:
        log_prob_VB = log_probs(first, end).double().cpu().numpy().T
        score_CB = (count_CV @ log_prob_VB) / np.maximum(length_C, 1)[:, None]
        score_CB[length_C == 0] = -np.inf
        return torch.from_numpy(score_CB.T)

    return Scores(block, num_queries, len(names))


def restricted_scores(scores: Scores, relation_Q: NDArray, is_candidate_RC: NDArray[np.bool_]) -> Scores:
    """The same scores, with the candidates that a query's relation does not allow behind all others."""

    def block(first: int, end: int) -> Tensor:
        score_BC = scores.block(first, end)
        is_out_BC = torch.from_numpy(~is_candidate_RC[relation_Q[first:end]])
        return score_BC.masked_fill_(is_out_BC.to(score_BC.device), -torch.inf)

    return replace(scores, block=block)


def hybrid_scores(retrieval: Scores, mask: Scores, is_single_C: NDArray[np.bool_], weight: float) -> Scores:
    """An encoder's scores, with those of a masked language model mixed in where a candidate is a single token.

    Masked language models are better at single tokens and know nothing of others' lengths (the Contrastive-Probe
    paper's limits), so multi-token candidates keep the encoder's score. Of a query's single-token candidates the
    mask's scores are shifted and scaled to the mean and standard deviation of the encoder's, and the new score is
    (1 - weight) x encoder + weight x mask: as a group they neither gain nor lose against the others.

    Args:
        retrieval: finite scores of the encoder.
        mask: scores of the masked language model for the same queries and candidates, finite for single tokens.
        is_single_C: which candidates are single tokens of the masked language model.
        weight: 0: the encoder alone; 1: the language model alone orders single tokens among themselves.

    Raises:
        ValueError: if the weight is outside [0, 1], or the scores are not of the same queries and candidates.
    """
    if not 0.0 <= weight <= 1.0:
        raise ValueError(f"weight is {weight}, want a share in [0, 1]")
    shapes = [(one.num_queries, one.num_candidates) for one in (retrieval, mask)]
    if shapes[0] != shapes[1] or shapes[0][1] != len(is_single_C):
        raise ValueError(
            f"scores of (queries, candidates) {shapes[0]} and {shapes[1]} and {len(is_single_C)} candidates that "
            "are or are not single tokens; want the same queries and candidates"
        )
    single_S = torch.from_numpy(np.flatnonzero(is_single_C))

    def block(first: int, end: int) -> Tensor:
        score_BC = retrieval.block(first, end)
        if len(single_S) and weight > 0:
            column_S = single_S.to(score_BC.device)
            encoder_BS = score_BC[:, column_S]
            mask_BS = mask.block(first, end).to(score_BC)[:, column_S]
            score_BC[:, column_S] = (1 - weight) * encoder_BS + weight * _on_scale_of(mask_BS, encoder_BS)
        return score_BC

    return replace(retrieval, block=block)


def _on_scale_of(score_BS: Tensor, other_BS: Tensor) -> Tensor:
    """Scores with each row's mean and standard deviation those of the other's row; equal scores stay equal."""
    centred_BS = score_BS - score_BS.mean(1, keepdim=True)
    spread_B1 = centred_BS.square().mean(1, keepdim=True).sqrt()
    other_spread_B1 = other_BS.std(1, correction=0, keepdim=True)
    ratio_B1 = torch.where(spread_B1 > 1e-12, other_spread_B1 / spread_B1.clamp(min=1e-12), 0.0)
    return other_BS.mean(1, keepdim=True) + centred_BS * ratio_B1
