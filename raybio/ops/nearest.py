"""The k nearest candidates of each query, exactly, at the speed of single precision.

Q queries, C candidates, D width, K nearest, B queries of a block, M candidates of a query that are looked at closely.

One matrix product in single precision shortlists M > K candidates of each query, and those alone are scored in double
precision. A bound on what single precision can be wrong by then proves that no other candidate belongs among the K; a
query for which it does not (very many equal distances) is ranked in double precision over all candidates.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from raybio.core.interfaces import Collective
from raybio.ops.scores import Scorer, check_finite, row_blocks, scorer
from raybio.ops.similarity import normalise

Metric = Literal["l2", "cosine"]


_SPARE = 6
"""Candidates looked at closely beyond K; more prove more, and cost more."""


_GROUP = 16
"""Candidates of which the best is taken before any is sorted."""


_SAMPLE = 1000
"""Candidates of which the median is taken for the middle."""


class Nearest(NamedTuple):
    """Candidates (Q, K) of each query in order of distance, int64, and their scores, float32: the higher, the nearer.

    Scores are minus squared distances, or cosines.
    """

    index_QK: Tensor
    score_QK: Tensor


def nearest(
    query_QD: Tensor,
    candidate_CD: Tensor,
    k: int,
    *,
    metric: Metric = "l2",
    block_rows: int = 1024,
    collective: Collective | None = None,
) -> Nearest:
    """The min(k, C) nearest candidates of each query; squared distances equal in float32 stand in order of candidate.

    Cosines are ranked by the distance of unit vectors, which resolves those near 1 far better. A zero vector has a
    cosine of 0 with all others and 1 with its like. Memory beyond the embeddings: three times theirs, and a block of
    scores.

    Args:
        query_QD: what is asked, on the device where the work is to be done.
        candidate_CD: among what.
        k: how many, >= 1.
        metric: "l2" (Euclidean, vectors as they are) or "cosine".
        block_rows: queries scored at once, at most.
        collective: divides the queries over workers, each of which holds all embeddings and returns the whole result.

    Raises:
        ValueError: for embeddings that are not finite, of two widths or without candidates, an unknown metric or k < 1.
    """
    _check(query_QD, candidate_CD, k, metric)
    query_QD, candidate_CD = _vectors(query_QD, metric), _vectors(candidate_CD, metric)
    num_queries, num_candidates = len(query_QD), len(candidate_CD)
    k = min(k, num_candidates)
    coarse = _Coarse.of(query_QD, candidate_CD)
    # Other workers' queries stay 0, so that a sum puts them together.
    index_QK = torch.zeros(num_queries, k, dtype=torch.int64, device=query_QD.device)
    score_QK = torch.zeros(num_queries, k, device=query_QD.device)
    exact: Scorer | None = None
    # Used again and again: fresh memory costs a tenth of the product.
    blocks = list(row_blocks(num_queries, num_candidates, block_rows, collective))
    buffer_BC = query_QD.new_empty(
        max((end - start for start, end in blocks), default=0), num_candidates
    )
    for start, end in blocks:
        index_BM, worst_B = _shortlist(coarse.scores(start, end, buffer_BC), k + _SPARE)
        index_BK, score_BK = _best(
            _closely(query_QD[start:end], candidate_CD, index_BM), index_BM, k
        )
        unproved = torch.nonzero(~(score_BK[:, -1].double() > coarse.bounds(worst_B, start, end)))[
            :, 0
        ]
        if len(unproved) and k + _SPARE < num_candidates:
            exact = exact or scorer(query_QD, "euclidean", torch.float64, candidate_CD)
            # Half as many at once: their scores are twice as wide, and are sorted.
            for row_B in unproved.split(max(1, block_rows // 4)):
                score_BC = exact.between(row_B + start).float()
                sorted_BC = score_BC.sort(dim=1, descending=True, stable=True)
                index_BK[row_B], score_BK[row_B] = sorted_BC.indices[:, :k], sorted_BC.values[:, :k]
        index_QK[start:end], score_QK[start:end] = index_BK, score_BK
    if collective is not None:
        index_QK, score_QK = collective.all_sum(index_QK), collective.all_sum(score_QK)
    # Unit vectors: |a - b|^2 = 2 - 2 cos.
    return Nearest(index_QK, score_QK if metric == "l2" else 1 + score_QK / 2)


class _Coarse(NamedTuple):
    """Queries and candidates, shifted to a common middle, for scores by one matrix product in single precision.

    A score is q . c - |c|^2 / 2 = (|q|^2 - |q - c|^2) / 2.
    """

    query_QD: Tensor
    candidate_CD: Tensor
    half_size_C: Tensor
    query_size_Q: Tensor

    @classmethod
    def of(cls, query_QD: Tensor, candidate_CD: Tensor) -> "_Coarse":
        """Both sides moved by one point, so that sums are small."""
        # Distances stay, but less is left to cancel. Not the mean, which one giant would move.
        middle_D = candidate_CD[:: len(candidate_CD) // _SAMPLE + 1].median(0).values
        query_QD, candidate_CD = query_QD - middle_D, candidate_CD - middle_D
        query_size_Q, size_C = (
            torch.linalg.vector_norm(one, dim=1).square() for one in (query_QD, candidate_CD)
        )
        return cls(query_QD, candidate_CD, size_C / 2, query_size_Q.double())

    def scores(self, start: int, end: int, out_BC: Tensor) -> Tensor:
        """Scores of queries start to end (B, C), written to ``out_BC``."""
        with torch.autocast(out_BC.device.type, enabled=False):
            return torch.mm(
                self.query_QD[start:end], self.candidate_CD.T, out=out_BC[: end - start]
            ).sub_(self.half_size_C)

    def bounds(self, score_B: Tensor, start: int, end: int) -> Tensor:
        """What minus the squared distance (B,) can be at most, in double precision, for scores of at most ``score_B``.

        The error of a sum of D products in any order is at most D 2^-24 times the sum of their sizes (Higham, Accuracy
        and Stability of Numerical Algorithms, section 3.1), and 2 |q| |c| <= |q|^2 + |c|^2. The rest is for the
        roundings of the shift and of the sizes.
        """
        size_B, largest_size = self.query_size_Q[start:end], 2 * self.half_size_C.max().double()
        error_B = (self.query_QD.shape[1] + 12) * 2.0**-24 * (size_B + largest_size)
        return 2 * score_B.double() - size_B + error_B


def _check(query_QD: Tensor, candidate_CD: Tensor, k: int, metric: str) -> None:
    if metric not in ("l2", "cosine"):
        raise ValueError(f"metric is {metric!r}, want 'l2' or 'cosine'")
    if k < 1 or len(candidate_CD) == 0:
        raise ValueError(f"k is {k} among {len(candidate_CD)} candidates; want at least 1 of each")
    if query_QD.shape[1] != candidate_CD.shape[1]:
        raise ValueError(
            f"queries are {query_QD.shape[1]} wide, candidates {candidate_CD.shape[1]}; want one encoder"
        )
    for vector_ND, what in (
        (query_QD, "embeddings of queries"),
        (candidate_CD, "embeddings of candidates"),
    ):
        # A sum with NaN or Inf in it is not finite: one pass, where looking at each entry takes four.
        if not bool(torch.isfinite(vector_ND.sum())):
            check_finite(vector_ND, what)


def _vectors(embedding_ND: Tensor, metric: Metric) -> Tensor:
    vector_ND = embedding_ND.detach().float()
    if metric == "l2":
        return vector_ND
    is_zero_N1 = (vector_ND == 0).all(1, keepdim=True)
    return torch.cat([normalise(vector_ND), is_zero_N1.float()], dim=1)


def _shortlist(score_BC: Tensor, num: int) -> tuple[Tensor, Tensor]:
    """The ``num`` best candidates of each row (B, M), and the score (B,) that no other is above, in float32."""
    num_rows, num_candidates = score_BC.shape
    num = min(num, num_candidates)
    if num_candidates < 4 * num * _GROUP:
        score_BM, index_BM = score_BC.topk(num, dim=1)
        return index_BM, score_BM[:, -1]
    # The best ``num`` lie in the ``num`` groups whose best are best; group g is every G-th candidate from g on.
    num_groups = num_candidates // _GROUP
    grouped_BNG = score_BC[:, : num_groups * _GROUP].view(num_rows, _GROUP, num_groups)
    rest_BC = score_BC[:, num_groups * _GROUP :]
    group_BM = grouped_BNG.amax(1).topk(num, dim=1, sorted=False).indices
    member_BN = grouped_BNG.gather(2, group_BM[:, None].expand(-1, _GROUP, -1)).flatten(1)
    score_BM, place_BM = torch.cat([member_BN, rest_BC], dim=1).topk(num, dim=1)
    in_group_BM = group_BM.gather(1, place_BM % num) + place_BM // num * num_groups
    after_BM = place_BM + (num_groups - num) * _GROUP
    return torch.where(place_BM < num * _GROUP, in_group_BM, after_BM), score_BM[:, -1]


def _closely(query_BD: Tensor, candidate_CD: Tensor, index_BM: Tensor) -> Tensor:
    """Minus squared distances (B, M) from differences in double precision, as float32."""
    num_rows, num_looked_at = index_BM.shape
    width = query_BD.shape[1]
    rows = max(1, (1 << 18) // (num_looked_at * width))  # what is gathered stays in the cache
    # Used again and again: fresh memory costs a third of this.
    single_ND = candidate_CD.new_empty(rows * num_looked_at, width)
    double_ND = single_ND.double()
    score_BM = query_BD.new_empty(num_rows, num_looked_at)
    for start in range(0, num_rows, rows):
        query_RD, index_N = query_BD[start : start + rows], index_BM[start : start + rows].flatten()
        num = len(index_N)
        torch.index_select(candidate_CD, 0, index_N, out=single_ND[:num])
        difference_RMD = (
            double_ND[:num]
            .copy_(single_ND[:num])
            .view(-1, num_looked_at, width)
            .sub_(query_RD[:, None])
        )
        score_BM[start : start + rows] = -torch.linalg.vector_norm(difference_RMD, dim=2).square_()
    return score_BM


def _best(score_BM: Tensor, index_BM: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k best of each row, equal scores in order of candidate."""
    index_BM, order_BM = index_BM.sort(dim=1)
    score_BM, by_score_BM = score_BM.gather(1, order_BM).sort(dim=1, descending=True, stable=True)
    return index_BM.gather(1, by_score_BM)[:, :k], score_BM[:, :k]
