"""Retrieval of candidates for queries: at which rank each gold candidate of a query comes, exactly, in bounded memory.

Q queries, C candidates, D embedding width, P (query, gold candidate) pairs in order of query, B queries of a block.
The gold candidates of query q are ``indices[indptr[q] : indptr[q + 1]]``. Ties stand in order of candidate index.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raybio.core.interfaces import Collective
from raybio.ops.rank_counts import count_ranks
from raybio.ops.scores import Metric, check_finite, row_blocks, scorer

Integers = NDArray[np.integer[Any]]


Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Scores:
    """Scores of all candidates for all queries, whatever they come from; the higher, the nearer.

    Attributes:
        block: (first, end) -> scores (end - first, C) for those queries, free to be overwritten.
        num_queries: Q.
        num_candidates: C.
    """

    block: Callable[[int, int], Tensor]
    num_queries: int
    num_candidates: int


@dataclass(frozen=True)
class Retrieval:
    """Ranks of gold candidates, and what is told by them. Queries without gold are left out of all means.

    Attributes:
        indptr: (Q + 1,) where each query's gold begins.
        rank_P: 0-based rank of each gold candidate among its query's candidates.
        num_candidates: C.

    Raises:
        ValueError: if there is no gold at all, or the arrays do not fit together.
    """

    indptr: Integers
    rank_P: Integers
    num_candidates: int

    def __post_init__(self) -> None:
        """Check that there is something to take means of."""
        if len(self.rank_P) == 0:
            raise ValueError("there is nothing to retrieve: no query has a gold candidate")
        if int(self.indptr[-1]) != len(self.rank_P):
            raise ValueError(
                f"indptr ends at {int(self.indptr[-1])}, want the number of ranks: {len(self.rank_P)}"
            )

    @cached_property
    def num_gold_Q(self) -> Integers:
        """|G_q|, gold candidates of each query."""
        return np.diff(self.indptr)

    def hits_at(self, k_Q: int | Integers) -> Integers:
        """(Q,) gold candidates among the first k of each query; k is one number, or one a query."""
        query_P = np.repeat(np.arange(len(self.num_gold_Q)), self.num_gold_Q)
        is_hit_P = self.rank_P < np.broadcast_to(k_Q, self.num_gold_Q.shape)[query_P]
        return np.bincount(query_P[is_hit_P], minlength=len(self.num_gold_Q))

    def true_positives_at(self, k: int) -> int:
        """Gold candidates among the first k, summed over queries (BioSTransformers' TP@k)."""
        return int(self.hits_at(k).sum())

    def recall_at(self, k: int) -> float:
        """Share of a query's gold that is among its first k, mean over queries with gold."""
        return float(np.nanmean(self._share_Q(self.hits_at(k))))

    @cached_property
    def mean_reciprocal_rank(self) -> float:
        """MRR: 1 / (1 + rank) of a query's best gold candidate, mean over queries with gold."""
        return float(
            (
                1 / (1 + np.minimum.reduceat(self.rank_P, self.indptr[:-1][self.num_gold_Q > 0]))
            ).mean()
        )

    @cached_property
    def r_hits_Q(self) -> Integers:
        """Gold candidates among the first |G_q|."""
        return self.hits_at(self.num_gold_Q)

    @property
    def r_precision_Q(self) -> Floats:
        """R-precision: precision, recall and F1 of the first |G_q|, which are one number; NaN without gold."""
        return self._share_Q(self.r_hits_Q)

    @property
    def macro_r_precision(self) -> float:
        """Mean R-precision over queries with gold."""
        return float(np.nanmean(self.r_precision_Q))

    def _share_Q(self, hits_Q: Integers) -> Floats:
        num_gold_Q = self.num_gold_Q.astype(np.float64)
        share_Q = np.full(len(num_gold_Q), np.nan)
        np.divide(hits_Q, num_gold_Q, out=share_Q, where=num_gold_Q > 0)
        return share_Q


def retrieve(
    scores: Scores,
    indptr: Integers,
    indices: Integers,
    *,
    block_rows: int = 1024,
    collective: Collective | None = None,
) -> Retrieval:
    """Rank the gold candidates of each query; a block of queries without gold is never scored.

    As ``retrieve_by_each``, by one kind of scores.
    """
    (retrieval,) = retrieve_by_each(
        [scores], indptr, indices, block_rows=block_rows, collective=collective
    )
    return retrieval


def retrieve_by_each(
    several: Sequence[Scores],
    indptr: Integers,
    indices: Integers,
    *,
    block_rows: int = 1024,
    collective: Collective | None = None,
) -> list[Retrieval]:
    """Rank the gold candidates of each query by each of several scores, block by block: all by a block, then the next.

    Memory beyond what the scores need: some blocks of ``block_rows`` x C numbers.

    Args:
        several: scores of the same candidates for the same queries.
        indptr: (Q + 1,) rows of gold.
        indices: (P,) gold candidates, in any order, each once a query.
        block_rows: queries scored at once, at most.
        collective: divides the queries over workers, each of which holds all scores and returns the whole result.

    Raises:
        ValueError: for arrays that do not fit together, or if there is no gold.
    """
    indptr, indices = np.asarray(indptr), np.asarray(indices)
    shapes = {(scores.num_queries, scores.num_candidates) for scores in several}
    if len(shapes) != 1:
        raise ValueError(
            f"scores of (queries, candidates) {sorted(shapes)}; want one kind at least, all of one shape"
        )
    ((num_queries, num_candidates),) = shapes
    query_P = _checked_pairs(several[0], indptr, indices)
    # Other workers' ranks stay 0, so that a sum puts them together.
    rank_SP = torch.zeros(len(several), len(indices), dtype=torch.int64)
    for start, end in row_blocks(num_queries, num_candidates, block_rows, collective):
        low, high = int(indptr[start]), int(indptr[end])
        for number, scores in enumerate(several if low < high else ()):
            score_BC = scores.block(start, end)
            row_P = torch.from_numpy(query_P[low:high] - start).to(score_BC.device)
            column_P = torch.from_numpy(indices[low:high].astype(np.int64)).to(score_BC.device)
            counts = count_ranks(score_BC, row_P, column_P)
            rank_SP[number, low:high] = (counts.above_P + counts.tied_before_P).cpu()
    all_rank_SP = rank_SP if collective is None else collective.all_sum(rank_SP)
    return [Retrieval(indptr, rank_P, num_candidates) for rank_P in all_rank_SP.numpy()]


def cached_scores(scores: Scores) -> Scores:
    """The same scores, whose last block is kept for the next that asks for it: several scores may be made of them."""
    last: dict[tuple[int, int], Tensor] = {}

    def block(first: int, end: int) -> Tensor:
        if (first, end) not in last:
            last.clear()
            last[first, end] = scores.block(first, end)
        return last[first, end].clone()

    return replace(scores, block=block)


def cosine_scores(query_QD: Tensor, candidate_CD: Tensor) -> Scores:
    """``vector_scores`` by cosine, in which a zero vector is as far from all others and near its like."""
    return vector_scores(query_QD, candidate_CD, "cosine")


def vector_scores(query_QD: Tensor, candidate_CD: Tensor, metric: Metric) -> Scores:
    """Scores in the order of nearness, in which equal distances are equal numbers (see ``raybio.ops.scores``).

    Work is done where the embeddings lie, in fp64.

    Raises:
        ValueError: for embeddings that are not finite, or of two widths.
    """
    both = _between(query_QD, candidate_CD, metric)
    return Scores(both, len(query_QD), len(candidate_CD))


def distance_scores(query_QD: Tensor, candidate_CD: Tensor) -> Scores:
    """Minus Euclidean distances, in fp64, of squares that are equal where they are equal in single precision.

    So their order is that of ``raybio.ops.nearest``. Work is done where the embeddings lie.

    Raises:
        ValueError: for embeddings that are not finite, or of two widths.
    """
    both = _between(query_QD, candidate_CD, "euclidean")

    def block(first: int, end: int) -> Tensor:
        # Rounding may leave a distance of 0 on the wrong side of it.
        return both(first, end).float().clamp(max=0).double().neg_().sqrt_().neg_()

    return Scores(block, len(query_QD), len(candidate_CD))


def _between(
    query_QD: Tensor, candidate_CD: Tensor, metric: Metric
) -> Callable[[int, int], Tensor]:
    check_finite(query_QD, "embeddings of queries")
    check_finite(candidate_CD, "embeddings of candidates")
    if query_QD.shape[1] != candidate_CD.shape[1]:
        raise ValueError(
            f"queries are {query_QD.shape[1]} wide, candidates {candidate_CD.shape[1]}; want one encoder"
        )
    both = scorer(query_QD, metric, torch.float64, candidate_CD)
    return lambda first, end: both.between(slice(first, end))


def _checked_pairs(scores: Scores, indptr: Integers, indices: Integers) -> NDArray[np.int64]:
    """The query of each gold candidate."""
    if len(indptr) != scores.num_queries + 1:
        raise ValueError(
            f"{scores.num_queries} queries do not fit indptr: {len(indptr)} entries, want {scores.num_queries + 1}"
        )
    if int(indptr[0]) != 0 or int(indptr[-1]) != len(indices) or (np.diff(indptr) < 0).any():
        raise ValueError(
            f"indptr must rise from 0 to the number of gold candidates, {len(indices)}"
        )
    is_outside_P = (indices < 0) | (indices >= scores.num_candidates)
    if is_outside_P.any():
        raise ValueError(
            f"gold candidate {indices[is_outside_P][0]}: want 0 <= candidate < {scores.num_candidates}"
        )
    query_P = np.repeat(np.arange(scores.num_queries), np.diff(indptr))
    key_P = query_P * scores.num_candidates + indices
    if len(np.unique(key_P)) < len(key_P):
        raise ValueError("a query names the same gold candidate twice; want each once")
    return query_P
