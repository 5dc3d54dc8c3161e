"""The k nearest candidates of each query, exact, at the speed of single precision.

One matrix product in single precision shortlists M > K candidates of each query. Only those are
scored in double precision. A bound on the error of single precision then proves that no other
candidate belongs among the K. If the proof fails for a query (very many equal distances), all its
candidates are ranked in double precision.

Shape letters: Q queries, C candidates, D width, K nearest, B queries of a block, M shortlisted
candidates of a query.
"""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from raybio.core.distance import DISTANCES, Distance
from raybio.core.interfaces import Collective
from raybio.ops.scores import Scorer, check_finite, row_blocks, scorer
from raybio.ops.similarity import normalize

_SPARE = 6
"""Shortlisted candidates beyond K; more of them prove more queries, and cost more."""

_GROUP = 16
"""Candidates of a group; only the groups with the best members are sorted."""

_SAMPLE = 1000
"""Candidates in the sample whose median is taken for the center."""


class Nearest(NamedTuple):
    """The candidates (Q, K) of each query in order of distance, int64, and their scores, float32.

    Scores are negative squared distances, or cosines: higher is nearer.
    """

    index_QK: Tensor
    score_QK: Tensor


def nearest(
    query_QD: Tensor,
    candidate_CD: Tensor,
    k: int,
    *,
    metric: Distance = "euclidean",
    block_rows: int = 1024,
    collective: Collective | None = None,
) -> Nearest:
    """Return the min(k, C) nearest candidates of each query; ties in float32 are ordered by index.

    Cosines are ranked by the distance of unit vectors, which resolves cosines near 1 far better. A
    zero vector has cosine 1 with other zero vectors and 0 with all others. Memory beyond the
    embeddings: three times theirs, and a block of scores.

    Args:
        query_QD: queries, on the device that does the work.
        candidate_CD: candidates.
        k: number of neighbors, >= 1.
        metric: "euclidean" (distance of the given vectors) or "cosine".
        block_rows: maximum number of queries scored at once.
        collective: divides the queries over workers, each of which holds all embeddings and returns
            the whole result.

    Raises:
        ValueError: for embeddings that are not finite or of two widths, no candidates, an unknown
            metric or k < 1.
    """
    _check(query_QD, candidate_CD, k, metric)
    query_QD = _vectors(query_QD, metric)
    candidate_CD = _vectors(candidate_CD, metric)
    num_queries = len(query_QD)
    num_candidates = len(candidate_CD)
    k = min(k, num_candidates)
    coarse = _Coarse.of(query_QD, candidate_CD)
    # Rows of other workers stay 0, so that the sum over workers assembles them.
    index_QK = torch.zeros(num_queries, k, dtype=torch.int64, device=query_QD.device)
    score_QK = torch.zeros(num_queries, k, device=query_QD.device)
    exact: Scorer | None = None
    blocks = list(row_blocks(num_queries, num_candidates, block_rows, collective, query_QD.device))
    largest_block = max((end - start for start, end in blocks), default=0)
    # One buffer for all blocks: fresh memory would cost a tenth of the product.
    buffer_BC = query_QD.new_empty(largest_block, num_candidates)
    for start, end in blocks:
        coarse_BM, index_BM = largest(coarse.scores(start, end, buffer_BC), k + _SPARE)
        score_BM = _exact_scores(query_QD[start:end], candidate_CD, index_BM)
        index_BK, score_BK = _best(score_BM, index_BM, k)
        is_proved_B = score_BK[:, -1].double() > coarse.bounds(coarse_BM[:, -1], start, end)
        unproved = torch.nonzero(~is_proved_B)[:, 0]
        if len(unproved) and k + _SPARE < num_candidates:
            exact = exact or scorer(query_QD, "euclidean", torch.float64, candidate_CD)
            # Fewer rows at once, since these scores take twice the memory and are sorted.
            for row_B in torch.split(unproved, max(1, block_rows // 4)):
                score_BC = exact.between(row_B + start).float()
                sorted_BC = score_BC.sort(dim=1, descending=True, stable=True)
                index_BK[row_B] = sorted_BC.indices[:, :k]
                score_BK[row_B] = sorted_BC.values[:, :k]
        index_QK[start:end] = index_BK
        score_QK[start:end] = score_BK
    if collective is not None:
        index_QK = collective.all_sum(index_QK)
        score_QK = collective.all_sum(score_QK)
    # Unit vectors: |a - b|^2 = 2 - 2 cos.
    return Nearest(index_QK, score_QK if metric == "euclidean" else 1 + score_QK / 2)


def nearest_others(
    query_QD: Tensor,
    row_Q: Tensor,
    blocks: Iterable[Tensor],
    k: int,
    *,
    metric: Distance = "euclidean",
) -> Nearest:
    """Return the k nearest rows of each query, excluding itself; all others if there are fewer.

    Args:
        query_QD: queries, which are rows of the blocks, on the device that does the work.
        row_Q: row of each query.
        blocks: all rows (C, D) in order, on the same device.
        k: number of neighbors, >= 1.
        metric: as for ``nearest``.

    Returns:
        Row indices, nearest first; ties are ordered by row index.
    """
    row_QK = torch.empty(len(query_QD), 0, dtype=torch.int64, device=query_QD.device)
    score_QK = torch.empty(len(query_QD), 0, device=query_QD.device)
    start = 0
    for block_CD in blocks:
        neighbors = nearest(query_QD, block_CD, k + 1, metric=metric)
        row_QK = torch.cat([row_QK, neighbors.index_QK + start], dim=1)
        score_QK = torch.cat([score_QK, neighbors.score_QK], dim=1)
        order_QK = score_QK.sort(dim=1, descending=True, stable=True).indices[:, : k + 1]
        row_QK = row_QK.gather(1, order_QK)
        score_QK = score_QK.gather(1, order_QK)
        start += len(block_CD)
    is_self_QK = row_QK == row_Q.to(row_QK.device)[:, None]
    # Among more than k copies of a row, its own index may be missing: then drop the last one.
    is_self_QK[:, -1] |= ~is_self_QK.any(dim=1)
    shape = (len(query_QD), row_QK.shape[1] - 1)
    return Nearest(row_QK[~is_self_QK].reshape(shape), score_QK[~is_self_QK].reshape(shape))


def largest(score_BC: Tensor, num: int) -> tuple[Tensor, Tensor]:
    """Return the min(num, C) largest scores of each row and their columns, in descending order.

    Equal to ``score_BC.topk(num)``, except that the columns of equal scores may differ. For many
    candidates it is several times faster.
    """
    num_rows, num_candidates = score_BC.shape
    num = min(num, num_candidates)
    if num_candidates < 4 * num * _GROUP:
        score_BM, index_BM = score_BC.topk(num, dim=1)
        return score_BM, index_BM
    # The best ``num`` candidates lie in the ``num`` groups with the best maxima.
    # Group g holds every G-th candidate from g on.
    num_groups = num_candidates // _GROUP
    grouped_BNG = score_BC[:, : num_groups * _GROUP].view(num_rows, _GROUP, num_groups)
    rest_BC = score_BC[:, num_groups * _GROUP :]
    group_BM = grouped_BNG.amax(1).topk(num, dim=1, sorted=False).indices
    member_BN = grouped_BNG.gather(2, group_BM[:, None].expand(-1, _GROUP, -1)).flatten(1)
    score_BM, position_BM = torch.cat([member_BN, rest_BC], dim=1).topk(num, dim=1)
    in_group_BM = group_BM.gather(1, position_BM % num) + position_BM // num * num_groups
    in_rest_BM = position_BM + (num_groups - num) * _GROUP
    return score_BM, torch.where(position_BM < num * _GROUP, in_group_BM, in_rest_BM)


class _Coarse(NamedTuple):
    """Queries and candidates, shifted to a common center, for scores by one fp32 matrix product.

    A score is q . c - |c|^2 / 2 = (|q|^2 - |q - c|^2) / 2.
    """

    query_QD: Tensor
    candidate_CD: Tensor
    half_size_C: Tensor
    query_size_Q: Tensor

    @classmethod
    def of(cls, query_QD: Tensor, candidate_CD: Tensor) -> "_Coarse":
        """Shift queries and candidates by the same point."""
        # Shifting keeps distances and reduces cancellation. A single outlier would move the mean.
        center_D = candidate_CD[:: len(candidate_CD) // _SAMPLE + 1].median(0).values
        query_QD = query_QD - center_D
        candidate_CD = candidate_CD - center_D
        query_size_Q = torch.linalg.vector_norm(query_QD, dim=1).square()
        size_C = torch.linalg.vector_norm(candidate_CD, dim=1).square()
        return cls(query_QD, candidate_CD, size_C / 2, query_size_Q.double())

    def scores(self, start: int, end: int, out_BC: Tensor) -> Tensor:
        """Write the scores (B, C) of queries ``[start, end)`` to ``out_BC``."""
        score_BC = out_BC[: end - start]
        with torch.autocast(out_BC.device.type, enabled=False):
            torch.mm(self.query_QD[start:end], self.candidate_CD.T, out=score_BC)
        return score_BC.sub_(self.half_size_C)

    def bounds(self, score_B: Tensor, start: int, end: int) -> Tensor:
        """Return upper bounds (B,) of negative squared distances with scores up to ``score_B``.

        The error of a sum of D products in any order is at most D 2^-24 times the sum of their
        magnitudes (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1), and 2 |q|
        |c| <= |q|^2 + |c|^2. The constant 12 covers the rounding of the shift and of the sizes.
        """
        size_B = self.query_size_Q[start:end]
        largest_size = 2 * self.half_size_C.max().double()
        error_B = (self.query_QD.shape[1] + 12) * 2.0**-24 * (size_B + largest_size)
        return 2 * score_B.double() - size_B + error_B


def _check(query_QD: Tensor, candidate_CD: Tensor, k: int, metric: str) -> None:
    if metric not in DISTANCES:
        raise ValueError(f"metric is {metric!r}, want 'euclidean' or 'cosine'")
    if k < 1 or len(candidate_CD) == 0:
        raise ValueError(f"k is {k} among {len(candidate_CD)} candidates; want at least 1 of each")
    if query_QD.shape[1] != candidate_CD.shape[1]:
        raise ValueError(
            f"queries are {query_QD.shape[1]} wide, candidates {candidate_CD.shape[1]}; want one "
            "encoder"
        )
    embeddings = {
        "embeddings of queries": query_QD,
        "embeddings of candidates": candidate_CD,
    }
    for name, vector_ND in embeddings.items():
        # A sum with a NaN or Inf is not finite. It takes one pass; testing each entry takes four.
        if not bool(torch.isfinite(vector_ND.sum())):
            check_finite(vector_ND, name)


def _vectors(embedding_ND: Tensor, metric: Distance) -> Tensor:
    vector_ND = embedding_ND.detach().float()
    if metric == "euclidean":
        return vector_ND
    is_zero_N1 = (vector_ND == 0).all(1, keepdim=True)
    return torch.cat([normalize(vector_ND), is_zero_N1.float()], dim=1)


def _exact_scores(query_BD: Tensor, candidate_CD: Tensor, index_BM: Tensor) -> Tensor:
    """Return negative squared distances (B, M) as float32, computed from fp64 differences."""
    num_rows, num_listed = index_BM.shape
    width = query_BD.shape[1]
    rows = max(1, (1 << 18) // (num_listed * width))  # the gathered rows stay in the cache
    # Buffers for all blocks: fresh memory would cost a third of the time.
    single_ND = candidate_CD.new_empty(rows * num_listed, width)
    double_ND = single_ND.double()
    score_BM = query_BD.new_empty(num_rows, num_listed)
    for start in range(0, num_rows, rows):
        query_RD = query_BD[start : start + rows]
        index_N = index_BM[start : start + rows].flatten()
        num = len(index_N)
        torch.index_select(candidate_CD, 0, index_N, out=single_ND[:num])
        candidate_RMD = double_ND[:num].copy_(single_ND[:num]).view(-1, num_listed, width)
        difference_RMD = candidate_RMD.sub_(query_RD[:, None])
        score_BM[start : start + rows] = -torch.linalg.vector_norm(difference_RMD, dim=2).square_()
    return score_BM


def _best(score_BM: Tensor, index_BM: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k best of each row; equal scores are ordered by candidate."""
    index_BM, order_BM = index_BM.sort(dim=1)
    score_BM, by_score_BM = score_BM.gather(1, order_BM).sort(dim=1, descending=True, stable=True)
    return index_BM.gather(1, by_score_BM)[:, :k], score_BM[:, :k]
