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

from raybio.core.interfaces import Collective
from raybio.ops.similarity import matmul

Metric = Literal["euclidean", "cosine", "dot"]


ENTRIES_AT_ONCE = 1 << 24


_TILE_ENTRIES = 1 << 23


_CPU_TILE_ENTRIES = 1 << 20


NOISE_ULPS = 16
"""Embeddings that lie nearer to each other, in units of the precision that made them, are equal."""


_GRID = 2.0**20  # adding and subtracting 2**20 times a size rounds to 2**-32 of that size


@dataclass(frozen=True)
class _Vectors:
    """Embeddings as they were given, and what turns their rows into the vectors that are scored.

    Attributes:
        embedding_ND: in their own precision.
        divisors: columns (N, 1), fp64, that rows are divided by in turn, so that they get length 1; empty: none.
        is_zero_N1: rows that are zero, as an axis of its own; None: there is no such axis.
    """

    embedding_ND: Tensor
    divisors: tuple[Tensor, ...] = ()
    is_zero_N1: Tensor | None = None

    @classmethod
    def of(cls, embedding_ND: Tensor, metric: Metric) -> "_Vectors":
        """Compute the lengths of rows for "cosine", a tile at a time."""
        embedding_ND = embedding_ND.detach()
        if metric != "cosine":
            return cls(embedding_ND)
        # As ``similarity.normalise``.
        shape = (len(embedding_ND), 1)
        largest_N1 = torch.empty(shape, dtype=torch.float64, device=embedding_ND.device)
        length_N1 = torch.empty_like(largest_N1)
        is_zero_N1 = torch.empty(shape, dtype=torch.bool, device=embedding_ND.device)
        for rows in _tiles(len(embedding_ND), embedding_ND.shape[1], _tile_entries(embedding_ND)):
            wide_RD = embedding_ND[rows].double()
            largest_R1 = torch.linalg.vector_norm(wide_RD, ord=torch.inf, dim=1, keepdim=True)
            is_zero_N1[rows] = largest_R1 == 0
            largest_N1[rows] = largest_R1.masked_fill_(is_zero_N1[rows], 1)
            length_R1 = torch.linalg.vector_norm(wide_RD.div_(largest_R1), dim=1, keepdim=True)
            length_N1[rows] = length_R1.masked_fill_(is_zero_N1[rows], 1)
        return cls(embedding_ND, (largest_N1, length_N1), is_zero_N1)

    @property
    def width(self) -> int:
        """Width of the vectors."""
        return self.embedding_ND.shape[1] + (self.is_zero_N1 is not None)

    def rows(self, index: slice | Tensor) -> Tensor:
        """Vectors (R, width) of some rows, fp64, without a copy of the others."""
        embedding_RD = self.embedding_ND[index]
        width = embedding_RD.shape[1]
        vector_RW = torch.empty(
            len(embedding_RD), self.width, dtype=torch.float64, device=embedding_RD.device
        )
        vector_RW[:, :width] = embedding_RD
        for divisor_N1 in self.divisors:
            vector_RW[:, :width] /= divisor_N1[index]
        if self.is_zero_N1 is not None:
            vector_RW[:, width:] = self.is_zero_N1[index]
        return vector_RW

    def columns(self, index: slice) -> Tensor:
        """Columns of the embeddings (columns, N), fp64, divided as the rows are."""
        column_CN = self.embedding_ND[:, index].T.to(
            torch.float64, memory_format=torch.contiguous_format
        )
        for divisor_N1 in self.divisors:
            column_CN /= divisor_N1.T
        return column_CN


@dataclass(frozen=True)
class Scorer:
    """Anchors and candidates for scoring blocks of anchors; the higher the score, the nearer.

    Embeddings stay as they are. Their vectors in double precision are made a tile at a time when they are scored.
    Memory beyond the embeddings and a block of scores: a tile, and some numbers a row.

    Attributes:
        dtype: of the scores.
        is_distance: scores are minus squared distances, whose order is that of distances; otherwise inner products.
        scale: size to which all scores are rounded; None: each pair's own, which one giant among them cannot spoil.
    """

    dtype: torch.dtype
    is_distance: bool
    _anchors: _Vectors
    _candidates: _Vectors
    _center_D: Tensor | None
    _anchor_size_N: Tensor
    _candidate_size_N: Tensor
    scale: float | None = None

    @property
    def num_candidates(self) -> int:
        """N."""
        return len(self._candidates.embedding_ND)

    @property
    def device(self) -> torch.device:
        """Where the embeddings lie and the work is done."""
        return self._candidates.embedding_ND.device

    def block(self, first: int, end: int) -> Tensor:
        """Scores (end - first, N) of the candidates for anchors ``[first, end)``; -inf for the anchor itself."""
        score_BN = self.between(slice(first, end))
        score_BN.diagonal(offset=first).fill_(-torch.inf)
        return score_BN

    def between(self, anchors: slice | Tensor) -> Tensor:
        """Scores (B, N) of the candidates for some anchors; a row that is both is scored like any other."""
        anchor_BD = _prepared(self._anchors, anchors, self._center_D, self.dtype)
        size_B1 = self._anchor_size_N[anchors, None]
        num_anchors, width = anchor_BD.shape
        score_BN = anchor_BD.new_empty(num_anchors, self.num_candidates)
        # A tile takes its vectors, the sizes of its scores and the scores themselves.
        for rows in _tiles(self.num_candidates, width + 2 * num_anchors, _tile_entries(anchor_BD)):
            candidate_RD = _prepared(self._candidates, rows, self._center_D, self.dtype)
            score_BN[:, rows] = self._scores(
                anchor_BD, candidate_RD.T, size_B1, self._candidate_size_N[rows]
            )
        return score_BN

    def _scores(
        self, anchor_BD: Tensor, candidate_DN: Tensor, size_B1: Tensor, size_N: Tensor
    ) -> Tensor:
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


def scorer(
    anchor_ND: Tensor, metric: Metric, dtype: torch.dtype, candidate_MD: Tensor | None = None
) -> Scorer:
    """Prepare candidates. In ``torch.float32`` twice as fast, but ties are left to chance.

    Embeddings that differ by the rounding of their own precision alone, as those of a collapsed encoder do, are equal:
    their noise depends on lengths and batches, and would be ranked as if it said something.

    Args:
        anchor_ND: embeddings.
        metric: "euclidean", "cosine" or "dot".
        dtype: of the scores.
        candidate_MD: embeddings of the same width; None: the anchors are the candidates.

    Raises:
        ValueError: for an unknown metric.
    """
    if metric not in ("euclidean", "cosine", "dot"):
        raise ValueError(f"metric is {metric!r}, want 'euclidean', 'cosine' or 'dot'")
    # On the unit sphere the order of cosines is that of distances, which resolve cosines near 1 far better. A zero
    # vector gets an axis of its own: its cosine is 1 with its like and 0 with all others.
    anchors = _Vectors.of(anchor_ND, metric)
    candidates = anchors if candidate_MD is None else _Vectors.of(candidate_MD, metric)
    parts = (anchors,) if candidate_MD is None else (anchors, candidates)
    median_D = _center(parts)
    if _is_rounding_noise(parts, median_D):
        anchors, candidates = (
            _Vectors(median_D.expand(len(part.embedding_ND), -1)) for part in (anchors, candidates)
        )
        parts = (anchors, candidates)
    center_D = None if metric == "dot" else median_D
    sizes = [_sizes(part, center_D, dtype) for part in parts]
    scale = (
        max((float(size_N.max()) for size_N in sizes if len(size_N)), default=0.0)
        if metric == "cosine"
        else None
    )
    return Scorer(
        dtype=dtype,
        is_distance=metric != "dot",
        _anchors=anchors,
        _candidates=candidates,
        _center_D=center_D,
        _anchor_size_N=sizes[0],
        _candidate_size_N=sizes[-1],
        scale=scale,
    )


def _center(parts: tuple[_Vectors, ...]) -> Tensor:
    """Median of each axis over all vectors.

    Distances to it stay, but less is left to cancel in |a|^2 + |b|^2 - 2ab. Not the mean, which one giant would move.
    """
    width = parts[0].embedding_ND.shape[1]
    num_rows = sum(len(part.embedding_ND) for part in parts)
    center_D = torch.empty(parts[0].width, dtype=torch.float64, device=parts[0].embedding_ND.device)
    # A median takes about four times its input.
    for columns in _tiles(width, 6 * num_rows, _TILE_ENTRIES):
        column_CN = torch.cat([part.columns(columns) for part in parts], dim=1)
        center_D[columns] = column_CN.median(1).values
    flags = [part.is_zero_N1 for part in parts if part.is_zero_N1 is not None]
    if flags:
        center_D[width:] = torch.cat(flags).double().median(0).values
    return center_D


def _is_rounding_noise(parts: tuple[_Vectors, ...], center_D: Tensor) -> bool:
    """Whether all vectors lie within the rounding of their own precision of one point."""
    deviation = size = 0.0
    for part in parts:
        for rows in _tiles(len(part.embedding_ND), part.width, _tile_entries(center_D)):
            vector_RD = part.rows(rows)
            size = max(size, float(vector_RD.abs().max()))
            deviation = max(deviation, float(vector_RD.sub_(center_D).abs().max()))
    return deviation <= _noise(parts[0].embedding_ND.dtype, size)


def _noise(made_in: torch.dtype, size: float) -> float:
    """Rounding noise of embeddings whose largest entry is ``size``; that of bf16 is taken for fp32's."""
    return NOISE_ULPS * min(torch.finfo(made_in).eps, torch.finfo(torch.float32).eps) * size


def _sizes(vectors: _Vectors, center_D: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Squared length of each vector for distances, length for inner products."""
    size_N = torch.empty(len(vectors.embedding_ND), dtype=dtype, device=vectors.embedding_ND.device)
    for rows in _tiles(len(size_N), vectors.width, _tile_entries(size_N)):
        if center_D is None:
            size_N[rows] = torch.linalg.vector_norm(vectors.rows(rows), dim=1)
        else:
            size_N[rows] = _prepared(vectors, rows, center_D, dtype).square_().sum(1)
    return size_N


def _prepared(
    vectors: _Vectors, index: slice | Tensor, center_D: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """Vectors of some rows, moved so that the center is 0."""
    vector_RD = vectors.rows(index)
    return (vector_RD if center_D is None else vector_RD.sub_(center_D)).to(dtype)


def _tile_entries(tensor: Tensor) -> int:
    # On a CPU a tile stays in the cache. On a GPU starting kernels costs more than memory traffic.
    return _CPU_TILE_ENTRIES if tensor.device.type == "cpu" else _TILE_ENTRIES


def _tiles(num_rows: int, entries_per_row: int, num_entries: int) -> Iterator[slice]:
    """Rows a tile at a time, each of ``num_entries`` entries at most if it can be."""
    rows = max(1, num_entries // max(entries_per_row, 1))
    for start in range(0, num_rows, rows):
        yield slice(start, min(start + rows, num_rows))


def without_rounding_noise(wide_ND: Tensor, made_in: torch.dtype) -> Tensor:
    """Return the embeddings, or their median N times if all of them lie within rounding of it.

    Args:
        wide_ND: embeddings in float64.
        made_in: the precision in which they were computed.
    """
    if not wide_ND.numel():
        return wide_ND
    median_D = wide_ND.median(0).values
    if float((wide_ND - median_D).abs().max()) > _noise(made_in, float(wide_ND.abs().max())):
        return wide_ND
    return median_D.expand_as(wide_ND).clone()


def row_blocks(
    num_rows: int, num_columns: int, block_rows: int, collective: Collective | None
) -> Iterator[tuple[int, int]]:
    """(first row, end) of this worker's blocks: at most ``block_rows`` rows and, if it can be, ``ENTRIES_AT_ONCE``."""
    rank, world = (0, 1) if collective is None else (collective.rank, collective.world)
    first, last = num_rows * rank // world, num_rows * (rank + 1) // world
    rows = max(1, min(block_rows, ENTRIES_AT_ONCE // max(num_columns, 1)))
    for start in range(first, last, rows):
        yield start, min(start + rows, last)


def check_finite(vector_ND: Tensor, what: str) -> None:
    """Refuse embeddings that cannot be ranked.

    Raises:
        ValueError: naming how many of ``what`` hold NaN or Inf, and the first.
    """
    is_bad_N = torch.empty(len(vector_ND), dtype=torch.bool, device=vector_ND.device)
    for rows in _tiles(len(vector_ND), vector_ND.shape[1], _tile_entries(vector_ND)):
        is_bad_N[rows] = ~torch.isfinite(vector_ND[rows]).all(1)
    if bool(is_bad_N.any()):
        raise ValueError(
            f"{int(is_bad_N.sum())} of {len(vector_ND)} {what} hold NaN or Inf "
            f"(the first: row {int(torch.nonzero(is_bad_N)[0, 0])}); has training diverged?"
        )
