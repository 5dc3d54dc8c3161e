"""Scores of all candidates for a block of anchors, in which equal distances are equal numbers.

B anchors of a block, N candidates, D embedding width.

A matrix product sums in an order that may depend on where an entry lies, so two distances that are equal on paper come
out some last bits apart, and a tie becomes a ranking. Scores are therefore computed in fp64 and rounded to 32 bits
relative to the size of the summands: coarser than the noise, finer than what single precision tells apart.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from raybio.functional.similarity import matmul, normalise
from raybio.protocols import Collective

Metric = Literal["euclidean", "cosine", "dot"]
ENTRIES_AT_ONCE = 1 << 24
_GRID = 2.0**20  # adding and subtracting 2**20 times a size rounds to 2**-32 of that size


@dataclass(frozen=True)
class Scorer:
    """Candidates, prepared once for scoring blocks of anchors among them; the higher the score, the nearer.

    Attributes:
        vector_ND: embeddings, normalised or shifted as the metric wants.
        size_N: squared length of each (distances) or length (inner products).
        is_distance: scores are minus squared distances, whose order is that of distances; otherwise inner products.
        scale: size to which all scores are rounded; None: each pair's own, which one giant among them cannot spoil.
    """

    vector_ND: Tensor
    size_N: Tensor
    is_distance: bool
    scale: float | None = None

    def block(self, first: int, end: int) -> Tensor:
        """Scores (end - first, N) of the candidates for anchors ``[first, end)``; -inf for the anchor itself."""
        score_BN = self.between(slice(first, end), slice(None))
        score_BN.diagonal(offset=first).fill_(-torch.inf)
        return score_BN

    def between(self, anchors: slice | Tensor, candidates: slice) -> Tensor:
        """Scores of some rows as candidates for others as anchors; a row that is both is scored like any other."""
        anchor_BD, candidate_DN = self.vector_ND[anchors], self.vector_ND[candidates].T
        size_B1, size_N = self.size_N[anchors, None], self.size_N[candidates]
        if self.is_distance:
            size_BN = size_B1 + size_N
            with torch.autocast(anchor_BD.device.type, enabled=False):
                score_BN = torch.addmm(size_BN, anchor_BD, candidate_DN, beta=-1, alpha=2)
        else:
            size_BN = size_B1 * size_N
            score_BN = matmul(anchor_BD, candidate_DN)
        if score_BN.dtype == torch.float64:
            size = size_BN.mul_(_GRID) if self.scale is None else self.scale * _GRID
            score_BN += size
            score_BN -= size
        return score_BN


def scorer(embedding_ND: Tensor, metric: Metric, dtype: torch.dtype) -> Scorer:
    """Prepare candidates. In ``torch.float32`` twice as fast, but ties are left to chance."""
    wide_ND = embedding_ND.detach().double()
    if metric == "dot":
        return Scorer(wide_ND.to(dtype), torch.linalg.vector_norm(wide_ND, dim=1).to(dtype), is_distance=False)
    if metric == "cosine":
        # On the unit sphere the order of cosines is that of distances, which resolve cosines near 1 far better. A zero
        # vector gets an axis of its own: its cosine is 1 with its like and 0 with all others.
        is_zero_N1 = (wide_ND == 0).all(1, keepdim=True)
        wide_ND = torch.cat([normalise(wide_ND), is_zero_N1.double()], dim=1)
    elif metric != "euclidean":
        raise ValueError(f"metric is {metric!r}, want 'euclidean', 'cosine' or 'dot'")
    # Distances stay, but less is left to cancel in |a|^2 + |b|^2 - 2ab. Not the mean, which one giant would move.
    wide_ND = (wide_ND - wide_ND.median(0).values).to(dtype)
    size_N = wide_ND.square().sum(1)
    return Scorer(wide_ND, size_N, is_distance=True, scale=float(size_N.max()) if metric == "cosine" else None)


def row_blocks(
    num_rows: int, num_columns: int, block_rows: int, collective: Collective | None
) -> Iterator[tuple[int, int]]:
    """(first row, end) of this worker's blocks: at most ``block_rows`` rows and, if it can be, ``ENTRIES_AT_ONCE``."""
    rank, world = (0, 1) if collective is None else (collective.rank, collective.world)
    first, last = num_rows * rank // world, num_rows * (rank + 1) // world
    rows = max(1, min(block_rows, ENTRIES_AT_ONCE // max(num_columns, 1)))
    for start in range(first, last, rows):
        yield start, min(start + rows, last)


def demand_finite(vector_ND: Tensor, what: str) -> None:
    """Refuse embeddings that cannot be ranked.

    Raises:
        ValueError: naming how many of ``what`` hold NaN or Inf, and the first.
    """
    is_bad_N = ~torch.isfinite(vector_ND).all(1)
    if bool(is_bad_N.any()):
        raise ValueError(
            f"{int(is_bad_N.sum())} of {len(vector_ND)} {what} hold NaN or Inf "
            f"(the first: row {int(torch.nonzero(is_bad_N)[0, 0])}); has training diverged?"
        )
