"""Retrieval of candidates for queries: at which rank each gold candidate of a query comes, exactly, in bounded memory.

Q queries, C candidates, D embedding width, P (query, gold candidate) pairs in order of query, B queries of a block.
The gold candidates of query q are ``indices[indptr[q] : indptr[q + 1]]``. Ties stand in order of candidate index.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raybio.functional.rank_counts import count_ranks
from raybio.functional.scores import scorer
from raybio.protocols import Collective

_ENTRIES_AT_ONCE = 1 << 24
Integers = NDArray[np.integer[Any]]
Floats = NDArray[np.float64]
ScoreBlock = Callable[[int, int], Tensor]
"""(first, end) -> scores (end - first, C) of all candidates for those queries, free to be overwritten."""


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
            raise ValueError(f"indptr ends at {int(self.indptr[-1])}, want the number of ranks: {len(self.rank_P)}")

    @cached_property
    def num_gold_Q(self) -> Integers:
        """|G_q|, gold candidates of each query."""
        return np.diff(self.indptr)

    @property
    def num_queries_without_gold(self) -> int:
        """Queries that no mean speaks of."""
        return int((self.num_gold_Q == 0).sum())

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
    def r_hits_Q(self) -> Integers:
        """Gold candidates among the first |G_q|."""
        return self.hits_at(self.num_gold_Q)

    @property
    def r_precision_Q(self) -> Floats:
        """R-precision: precision, recall and F1 of the first |G_q|, which are one number; NaN without gold."""
        return self._share_Q(self.r_hits_Q)

    @property
    def micro_r_precision(self) -> float:
        """Sum of hits / sum of |G_q|."""
        return float(self.r_hits_Q.sum() / self.num_gold_Q.sum())

    @property
    def macro_r_precision(self) -> float:
        """Mean R-precision over queries with gold."""
        return float(np.nanmean(self.r_precision_Q))

    def _share_Q(self, hits_Q: Integers) -> Floats:
        num_gold_Q = self.num_gold_Q.astype(np.float64)
        share_Q = np.full(len(num_gold_Q), np.nan)
        np.divide(hits_Q, num_gold_Q, out=share_Q, where=num_gold_Q > 0)
        return share_Q


def gold_ranks(
    query_QD: Tensor,
    candidate_CD: Tensor,
    indptr: Integers,
    indices: Integers,
    *,
    block_rows: int = 1024,
    collective: Collective | None = None,
    candidates_of: tuple[Integers, Integers] | None = None,
) -> Integers:
    """The 0-based rank of each gold candidate by cosine with its query, (P,) int64.

    Memory beyond the embeddings in fp64: some blocks of ``block_rows`` x C numbers. Equal cosines tie (see
    ``raybio.functional.scores``; a zero vector is as far from all others and near its like).

    Args:
        query_QD: embeddings of the queries, on the device that is to do the work.
        candidate_CD: embeddings of the candidates.
        indptr: (Q + 1,) rows of gold.
        indices: (P,) gold candidates, in any order, each once a query.
        block_rows: queries scored at once, at most.
        collective: divides the queries over workers, each of which holds all embeddings and returns all ranks.
        candidates_of: (indptr, indices) of the candidates of each query; None: all are.

    Raises:
        ValueError: for embeddings that are not finite, arrays that do not fit together, or gold that is no candidate.
    """
    if len(query_QD) != len(indptr) - 1:
        raise ValueError(f"{len(query_QD)} queries do not fit indptr: {len(indptr)} entries, want {len(query_QD) + 1}")
    return ranks_by_score(
        cosine_scores(query_QD, candidate_CD),
        len(candidate_CD),
        indptr,
        indices,
        block_rows=block_rows,
        collective=collective,
        candidates_of=candidates_of,
    )


def cosine_scores(query_QD: Tensor, candidate_CD: Tensor) -> ScoreBlock:
    """Scores in the order of cosines, in which equal cosines are equal numbers.

    Raises:
        ValueError: for embeddings that are not finite, or of two widths.
    """
    for name, vector_ND in (("queries", query_QD), ("candidates", candidate_CD)):
        is_bad_N = ~torch.isfinite(vector_ND).all(1)
        if bool(is_bad_N.any()):
            raise ValueError(
                f"{int(is_bad_N.sum())} of {len(vector_ND)} embeddings of {name} hold NaN or Inf "
                f"(the first: row {int(torch.nonzero(is_bad_N)[0, 0])}); has training diverged?"
            )
    if query_QD.shape[1] != candidate_CD.shape[1]:
        raise ValueError(f"queries are {query_QD.shape[1]} wide, candidates {candidate_CD.shape[1]}; want one encoder")
    num_queries = len(query_QD)
    both = scorer(torch.cat([query_QD, candidate_CD]), "cosine", torch.float64)
    return lambda first, end: both.between(slice(first, end), slice(num_queries, None))


def ranks_by_score(
    score_block: ScoreBlock,
    num_candidates: int,
    indptr: Integers,
    indices: Integers,
    *,
    block_rows: int = 1024,
    collective: Collective | None = None,
    candidates_of: tuple[Integers, Integers] | None = None,
) -> Integers:
    """As ``gold_ranks``, by scores of any origin; a block of queries without gold is never scored.

    Raises:
        ValueError: for arrays that do not fit together, or gold that is no candidate.
    """
    indptr, indices = np.asarray(indptr), np.asarray(indices)
    query_P = _checked_pairs(indptr, indices, num_candidates, candidates_of)
    num_queries = len(indptr) - 1
    rank, world = (0, 1) if collective is None else (collective.rank, collective.world)
    mine, others = num_queries * rank // world, num_queries * (rank + 1) // world
    rows = max(1, min(block_rows, _ENTRIES_AT_ONCE // max(num_candidates, 1)))
    # Other workers' ranks stay 0, so that a sum puts them together.
    rank_P = torch.zeros(len(indices), dtype=torch.int64)
    for start in range(mine, others, rows):
        end = min(start + rows, others)
        low, high = int(indptr[start]), int(indptr[end])
        if low < high:
            score_BC = score_block(start, end)
            if candidates_of is not None:
                score_BC = _only(score_BC, candidates_of, start, end)
            row_P = torch.from_numpy(query_P[low:high] - start).to(score_BC.device)
            column_P = torch.from_numpy(indices[low:high].astype(np.int64)).to(score_BC.device)
            counts = count_ranks(score_BC, row_P, column_P)
            rank_P[low:high] = (counts.above_P + counts.tied_before_P).cpu()
    ranks: Integers = (rank_P if collective is None else collective.all_sum(rank_P)).numpy()
    return ranks


def _only(score_BC: Tensor, candidates_of: tuple[Integers, Integers], start: int, end: int) -> Tensor:
    """Scores with -inf for what is none of a query's candidates."""
    indptr, indices = candidates_of
    row = np.repeat(np.arange(end - start), np.diff(indptr[start : end + 1]))
    column = np.asarray(indices[int(indptr[start]) : int(indptr[end])], dtype=np.int64)
    is_left_out_BC = torch.ones_like(score_BC, dtype=torch.bool)
    is_left_out_BC[torch.from_numpy(row).to(score_BC.device), torch.from_numpy(column).to(score_BC.device)] = False
    return score_BC.masked_fill_(is_left_out_BC, -torch.inf)


def _checked_pairs(
    indptr: Integers, indices: Integers, num_candidates: int, candidates_of: tuple[Integers, Integers] | None
) -> NDArray[np.int64]:
    """The query of each gold candidate."""
    if len(indptr) == 0 or int(indptr[0]) != 0 or int(indptr[-1]) != len(indices) or (np.diff(indptr) < 0).any():
        raise ValueError(f"indptr must rise from 0 to the number of gold candidates, {len(indices)}")
    is_outside_P = (indices < 0) | (indices >= num_candidates)
    if is_outside_P.any():
        raise ValueError(f"gold candidate {indices[is_outside_P][0]}: want 0 <= candidate < {num_candidates}")
    query_P = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    key_P = query_P * num_candidates + indices
    if len(np.unique(key_P)) < len(key_P):
        raise ValueError("a query names the same gold candidate twice; want each once")
    if candidates_of is not None:
        if len(candidates_of[0]) != len(indptr):
            raise ValueError(f"candidates_of has {len(candidates_of[0]) - 1} rows, want one a query: {len(indptr) - 1}")
        asked = np.repeat(np.arange(len(indptr) - 1), np.diff(candidates_of[0])) * num_candidates + candidates_of[1]
        is_lost_P = ~np.isin(key_P, asked)
        if is_lost_P.any():
            raise ValueError(
                f"{int(is_lost_P.sum())} gold candidates are none of their query's candidates (the first: query "
                f"{query_P[is_lost_P][0]}, candidate {indices[is_lost_P][0]}); add them, or take them out of the gold"
            )
    return query_P
