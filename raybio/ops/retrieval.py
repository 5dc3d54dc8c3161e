"""Retrieval: the exact rank of each gold candidate of each query, in bounded memory.

The gold candidates of query q are ``indices[indptr[q] : indptr[q + 1]]``. Ties are ordered by
candidate index.

Shape letters: Q queries, C candidates, D embedding width, P (query, gold candidate) pairs in order
of query, B queries of a block, S scores.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raybio.core.arrays import Floats, Integers, distinct
from raybio.core.interfaces import Collective
from raybio.ops.rank_counts import count_ranks
from raybio.ops.scores import Metric, check_finite, row_blocks, scorer


@dataclass(frozen=True)
class Scores:
    """Scores of all candidates for all queries, from any source; higher is nearer.

    Attributes:
        block: (first, end) -> scores (end - first, C) of those queries; the caller may overwrite
            them.
        num_queries: Q.
        num_candidates: C.
        device: device on which they are computed.
    """

    block: Callable[[int, int], Tensor]
    num_queries: int
    num_candidates: int
    device: torch.device = torch.device("cpu")


@dataclass(frozen=True)
class Retrieval:
    """Ranks of gold candidates and the scores computed from them; means skip queries without gold.

    Attributes:
        indptr: (Q + 1,) row pointers of each query's gold.
        rank_P: 0-based rank of each gold candidate among its query's candidates.
        num_candidates: C.

    Raises:
        ValueError: if no query has gold, or the arrays do not fit together.
    """

    indptr: Integers
    rank_P: Integers
    num_candidates: int

    def __post_init__(self) -> None:
        """Check that there is gold."""
        if len(self.rank_P) == 0:
            raise ValueError("there is nothing to retrieve: no query has a gold candidate")
        if int(self.indptr[-1]) != len(self.rank_P):
            raise ValueError(
                f"indptr ends at {int(self.indptr[-1])}, want the number of ranks: "
                f"{len(self.rank_P)}"
            )

    @cached_property
    def num_gold_Q(self) -> Integers:
        """|G_q|, the number of gold candidates of each query."""
        return np.diff(self.indptr)

    def hits_at(self, k_Q: int | Integers) -> Integers:
        """Return the gold candidates among the first k of each query (Q,); k may be (Q,)."""
        query_P = np.repeat(np.arange(len(self.num_gold_Q)), self.num_gold_Q)
        is_hit_P = self.rank_P < np.broadcast_to(k_Q, self.num_gold_Q.shape)[query_P]
        return np.bincount(query_P[is_hit_P], minlength=len(self.num_gold_Q))

    def true_positives_at(self, k: int) -> int:
        """Return the hits at k, summed over queries (TP@k of BioSTransformers)."""
        return int(self.hits_at(k).sum())

    def recall_at(self, k: int) -> float:
        """Return the share of a query's gold among its first k, averaged over queries."""
        return float(np.nanmean(self._share_Q(self.hits_at(k))))

    @cached_property
    def mean_reciprocal_rank(self) -> float:
        """MRR: 1 / (1 + rank) of a query's best gold candidate, averaged over queries."""
        first_P = self.indptr[:-1][self.num_gold_Q > 0]
        best_rank = np.minimum.reduceat(self.rank_P, first_P)
        return float((1 / (1 + best_rank)).mean())

    @cached_property
    def r_hits_Q(self) -> Integers:
        """The number of gold candidates among the first |G_q|."""
        return self.hits_at(self.num_gold_Q)

    @property
    def r_precision_Q(self) -> Floats:
        """R-precision: precision, recall and F1 at |G_q|, which are equal; NaN without gold."""
        return self._share_Q(self.r_hits_Q)

    @property
    def macro_r_precision(self) -> float:
        """Mean R-precision over queries."""
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
    """Rank the gold candidates of each query by one kind of scores; see ``retrieve_by_each``."""
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
    """Rank the gold candidates of each query by each of several scores.

    A block of queries is ranked by all scores before the next block. Blocks without gold are not
    scored. Memory beyond what the scores need: some blocks of ``block_rows`` x C numbers.

    Args:
        several: scores of the same candidates for the same queries.
        indptr: (Q + 1,) row pointers of gold.
        indices: (P,) gold candidates, in any order, each once per query.
        block_rows: maximum number of queries scored at once.
        collective: divides the queries over workers, each of which holds all scores and returns the
            whole result.

    Raises:
        ValueError: for arrays that do not fit together, without gold, or scores of NaN.
    """
    indptr = np.asarray(indptr)
    indices = np.asarray(indices)
    shapes = {(scores.num_queries, scores.num_candidates) for scores in several}
    if len(shapes) != 1:
        raise ValueError(
            f"scores of (queries, candidates) {sorted(shapes)}; want at least one kind, all of one "
            "shape"
        )
    ((num_queries, num_candidates),) = shapes
    query_P = _checked_pairs(several[0], indptr, indices)
    # Ranks of other workers stay 0, so that the sum over workers assembles them.
    rank_SP = torch.zeros(len(several), len(indices), dtype=torch.int64)
    for start, end in row_blocks(
        num_queries, num_candidates, block_rows, collective, several[0].device
    ):
        low = int(indptr[start])
        high = int(indptr[end])
        if low == high:
            continue
        for number, scores in enumerate(several):
            score_BC = scores.block(start, end)
            # No score is above a NaN, which would rank first. A maximum keeps NaN.
            if score_BC.max().isnan():
                raise ValueError(f"scores of queries {start} to {end - 1} hold NaN, want numbers")
            row_P = torch.from_numpy(query_P[low:high] - start).to(score_BC.device)
            column_P = torch.from_numpy(indices[low:high].astype(np.int64)).to(score_BC.device)
            counts = count_ranks(score_BC, row_P, column_P)
            rank_SP[number, low:high] = (counts.above_P + counts.tied_before_P).cpu()
    all_rank_SP = rank_SP if collective is None else collective.all_sum(rank_SP)
    return [Retrieval(indptr, rank_P, num_candidates) for rank_P in all_rank_SP.numpy()]


def cached_scores(scores: Scores) -> Scores:
    """Return the same scores with the last block cached, so that several scores can share it."""
    last: dict[tuple[int, int], Tensor] = {}

    def block(first: int, end: int) -> Tensor:
        if (first, end) not in last:
            last.clear()
            last[first, end] = scores.block(first, end)
        return last[first, end].clone()

    return replace(scores, block=block)


def cosine_scores(query_QD: Tensor, candidate_CD: Tensor) -> Scores:
    """Return ``vector_scores`` by cosine; zero vectors have cosine 1 with each other, else 0."""
    return vector_scores(query_QD, candidate_CD, "cosine")


def vector_scores(query_QD: Tensor, candidate_CD: Tensor, metric: Metric) -> Scores:
    """Return scores by a metric; equal distances give equal scores (see ``raybio.ops.scores``).

    They are computed in fp64, on the device of the embeddings.

    Raises:
        ValueError: for embeddings that are not finite, or of two widths.
    """
    block = _blocks_by(query_QD, candidate_CD, metric)
    return Scores(block, len(query_QD), len(candidate_CD), query_QD.device)


def distance_scores(query_QD: Tensor, candidate_CD: Tensor) -> Scores:
    """Return negative Euclidean distances in fp64, whose squares were rounded to fp32.

    This gives the same order as ``raybio.ops.nearest``. Scores are computed on the device of the
    embeddings.

    Raises:
        ValueError: for embeddings that are not finite, or of two widths.
    """
    negative_squares = _blocks_by(query_QD, candidate_CD, "euclidean")

    def block(first: int, end: int) -> Tensor:
        # Rounding may make a squared distance of 0 slightly negative.
        score_BC = negative_squares(first, end).float().clamp(max=0).double()
        return score_BC.neg_().sqrt_().neg_()

    return Scores(block, len(query_QD), len(candidate_CD), query_QD.device)


def _blocks_by(
    query_QD: Tensor, candidate_CD: Tensor, metric: Metric
) -> Callable[[int, int], Tensor]:
    check_finite(query_QD, "embeddings of queries")
    check_finite(candidate_CD, "embeddings of candidates")
    if query_QD.shape[1] != candidate_CD.shape[1]:
        raise ValueError(
            f"queries are {query_QD.shape[1]} wide, candidates {candidate_CD.shape[1]}; want one "
            "encoder"
        )
    both = scorer(query_QD, metric, torch.float64, candidate_CD)
    return lambda first, end: both.between(slice(first, end))


def _checked_pairs(scores: Scores, indptr: Integers, indices: Integers) -> NDArray[np.int64]:
    """Check the gold; return the query of each gold candidate, (P,)."""
    if len(indptr) != scores.num_queries + 1:
        raise ValueError(
            f"{scores.num_queries} queries do not fit indptr: {len(indptr)} entries, want "
            f"{scores.num_queries + 1}"
        )
    if int(indptr[0]) != 0 or int(indptr[-1]) != len(indices) or (np.diff(indptr) < 0).any():
        raise ValueError(
            f"indptr must rise from 0 to the number of gold candidates, {len(indices)}"
        )
    is_outside_P = (indices < 0) | (indices >= scores.num_candidates)
    if is_outside_P.any():
        raise ValueError(
            f"gold candidate {indices[is_outside_P][0]}: want 0 <= candidate < "
            f"{scores.num_candidates}"
        )
    query_P = np.repeat(np.arange(scores.num_queries), np.diff(indptr))
    key_P = query_P * scores.num_candidates + indices
    if len(distinct(key_P)) < len(key_P):
        raise ValueError("a query names the same gold candidate twice; want each once")
    return query_P
