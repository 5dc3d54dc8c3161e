"""Scores of all candidates for a block of anchors, where equal distances give equal scores.

A matrix product may sum the products of different entries in different orders. Two distances that
are mathematically equal then differ in their last bits, and a tie becomes a ranking. So scores are
computed in fp64 and rounded to 32 bits relative to the size of the summands: coarser than the
noise, finer than the resolution of single precision.

Shape letters: B anchors of a block, N anchors or candidates, M candidates, D embedding width, R
rows of a tile, W width of the scored vectors, C columns of a tile.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from raybio.core.distance import Distance
from raybio.core.interfaces import Collective
from raybio.ops.segments import tiles
from raybio.ops.similarity import matmul

Metric = Distance | Literal["dot"]

ENTRIES_AT_ONCE = 1 << 24
"""Maximum number of scores in a block on a CPU, where possible."""

_GPU_ENTRIES_AT_ONCE = 1 << 29

_GPU_BYTES_AN_ENTRY = 128
"""GPU memory for each score of a block: the scores, counts and what training keeps there."""

_GPU_TILE_ENTRIES = 1 << 26

_CPU_TILE_ENTRIES = 1 << 20

_CPU_MEDIAN_ENTRIES = 1 << 23

NOISE_ULPS = 16
"""Embeddings that differ by less than this many epsilons of their precision count as equal."""

_GRID = 2.0**20
"""Adding and subtracting 2**20 times a size rounds to 2**-32 of that size."""


@dataclass(frozen=True)
class _Vectors:
    """Embeddings in their own precision, converted a tile at a time to the vectors that are scored.

    Attributes:
        embedding_ND: the given embeddings.
        divisors: columns (N, 1), fp64, by which rows are divided in turn to get length 1; empty:
            rows stay as they are.
        is_zero_N1: whether a row is zero, which becomes an axis of its own; None: there is no such
            axis.
    """

    embedding_ND: Tensor
    divisors: tuple[Tensor, ...] = ()
    is_zero_N1: Tensor | None = None

    @classmethod
    def of(cls, embedding_ND: Tensor, metric: Metric) -> "_Vectors":
        """Wrap embeddings; for "cosine", compute the lengths of rows, a tile at a time."""
        embedding_ND = embedding_ND.detach()
        if metric != "cosine":
            return cls(embedding_ND)
        # The same steps as ``similarity.normalize``.
        shape = (len(embedding_ND), 1)
        largest_N1 = torch.empty(shape, dtype=torch.float64, device=embedding_ND.device)
        length_N1 = torch.empty_like(largest_N1)
        is_zero_N1 = torch.empty(shape, dtype=torch.bool, device=embedding_ND.device)
        for rows in tiles(len(embedding_ND), embedding_ND.shape[1], _tile_entries(embedding_ND)):
            wide_RD = embedding_ND[rows].double()
            largest_R1 = torch.linalg.vector_norm(wide_RD, ord=torch.inf, dim=1, keepdim=True)
            is_zero_N1[rows] = largest_R1 == 0
            largest_N1[rows] = largest_R1.masked_fill_(is_zero_N1[rows], 1)
            length_R1 = torch.linalg.vector_norm(wide_RD.div_(largest_R1), dim=1, keepdim=True)
            length_N1[rows] = length_R1.masked_fill_(is_zero_N1[rows], 1)
        return cls(embedding_ND, (largest_N1, length_N1), is_zero_N1)

    @property
    def width(self) -> int:
        """Width of the scored vectors."""
        return self.embedding_ND.shape[1] + (self.is_zero_N1 is not None)

    def rows(self, index: slice | Tensor) -> Tensor:
        """Return the vectors (R, W) of some rows, in fp64."""
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
        """Return columns of the vectors (C, N), in fp64."""
        column_CN = self.embedding_ND[:, index].T.to(
            torch.float64, memory_format=torch.contiguous_format
        )
        for divisor_N1 in self.divisors:
            column_CN /= divisor_N1.T
        return column_CN


@dataclass(frozen=True)
class Scorer:
    """Anchors and candidates, ready for scoring blocks of anchors; a higher score is nearer.

    The embeddings are not copied. Their vectors in double precision are computed a tile at a time
    when they are scored. Memory beyond the embeddings and a block of scores: a tile, and some
    numbers per row.

    Attributes:
        dtype: dtype of the scores.
        is_distance: scores are negative squared distances, which rank as distances do; otherwise
            they are inner products.
        scale: size relative to which all scores are rounded; None: each pair's own size, which a
            single outlier does not affect.
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
        """The number of candidates."""
        return len(self._candidates.embedding_ND)

    @property
    def device(self) -> torch.device:
        """The device of the embeddings, which does the work."""
        return self._candidates.embedding_ND.device

    def block(self, first: int, end: int) -> Tensor:
        """Return the scores (B, N) for anchors ``[first, end)``; -inf for the anchor itself."""
        score_BN = self.between(slice(first, end))
        score_BN.diagonal(offset=first).fill_(-torch.inf)
        return score_BN

    def between(self, anchors: slice | Tensor) -> Tensor:
        """Return the scores (B, N) for some anchors; the anchor itself is scored like any other."""
        anchor_BD = _prepared(self._anchors, anchors, self._center_D, self.dtype)
        size_B1 = self._anchor_size_N[anchors, None]
        num_anchors, width = anchor_BD.shape
        score_BN = anchor_BD.new_empty(num_anchors, self.num_candidates)
        # A tile needs memory for its vectors, the sizes of its scores and the scores.
        for rows in tiles(self.num_candidates, width + 2 * num_anchors, _tile_entries(anchor_BD)):
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
    """Prepare anchors and candidates for scoring.

    If all embeddings are equal up to rounding in their own precision, as after a collapse, they are
    made exactly equal. That noise depends on lengths and batches and must not be ranked.

    Args:
        anchor_ND: embeddings of the anchors.
        metric: "euclidean", "cosine" or "dot".
        dtype: dtype of the scores; ``torch.float32`` is twice as fast, but breaks ties arbitrarily.
        candidate_MD: embeddings of the candidates, of the same width; None: the anchors are the
            candidates.

    Raises:
        ValueError: for an unknown metric.
    """
    if metric not in ("euclidean", "cosine", "dot"):
        raise ValueError(f"metric is {metric!r}, want 'euclidean', 'cosine' or 'dot'")
    # On the unit sphere, cosines have the order of distances, and distances resolve cosines near 1
    # far better. Zero vectors get an axis of their own: their cosine is 1 with each other, else 0.
    anchors = _Vectors.of(anchor_ND, metric)
    candidates = anchors if candidate_MD is None else _Vectors.of(candidate_MD, metric)
    parts = (anchors,) if candidate_MD is None else (anchors, candidates)
    median_D = _center(parts)
    if _is_rounding_noise(parts, median_D):
        anchors = _Vectors(median_D.expand(len(anchors.embedding_ND), -1))
        candidates = _Vectors(median_D.expand(len(candidates.embedding_ND), -1))
        parts = (anchors, candidates)
    center_D = None if metric == "dot" else median_D
    sizes = [_sizes(part, center_D, dtype) for part in parts]
    scale = None
    if metric == "cosine":
        scale = max((float(size_N.max()) for size_N in sizes if len(size_N)), default=0.0)
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
    """Return the median of each axis over all vectors.

    Subtracting it keeps distances and reduces the cancellation in |a|^2 + |b|^2 - 2ab. The mean
    would depend on a single outlier.
    """
    width = parts[0].embedding_ND.shape[1]
    num_rows = sum(len(part.embedding_ND) for part in parts)
    center_D = torch.empty(parts[0].width, dtype=torch.float64, device=parts[0].embedding_ND.device)
    # A median needs about four times the memory of its input. A GPU computes each median on one
    # multiprocessor, so it gets many at once.
    is_cpu = center_D.device.type == "cpu"
    entries = _CPU_MEDIAN_ENTRIES if is_cpu else entries_at_once(center_D.device)
    for columns in tiles(width, 6 * num_rows, entries):
        column_CN = torch.cat([part.columns(columns) for part in parts], dim=1)
        center_D[columns] = column_CN.median(1).values
    flags = [part.is_zero_N1 for part in parts if part.is_zero_N1 is not None]
    if flags:
        center_D[width:] = torch.cat(flags).double().median(0).values
    return center_D


def _is_rounding_noise(parts: tuple[_Vectors, ...], center_D: Tensor) -> bool:
    """Return whether all vectors equal one point, up to the rounding of their own precision."""
    deviation = size = 0.0
    for part in parts:
        for rows in tiles(len(part.embedding_ND), part.width, _tile_entries(center_D)):
            vector_RD = part.rows(rows)
            size = max(size, float(vector_RD.abs().max()))
            deviation = max(deviation, float(vector_RD.sub_(center_D).abs().max()))
    return deviation <= _noise(parts[0].embedding_ND.dtype, size)


def _noise(made_in: torch.dtype, size: float) -> float:
    """Return the rounding noise of embeddings with largest entry ``size``; bf16 counts as fp32."""
    return NOISE_ULPS * min(torch.finfo(made_in).eps, torch.finfo(torch.float32).eps) * size


def _sizes(vectors: _Vectors, center_D: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return the squared length of each vector for distances, its length for inner products."""
    size_N = torch.empty(len(vectors.embedding_ND), dtype=dtype, device=vectors.embedding_ND.device)
    for rows in tiles(len(size_N), vectors.width, _tile_entries(size_N)):
        if center_D is None:
            size_N[rows] = torch.linalg.vector_norm(vectors.rows(rows), dim=1)
        else:
            size_N[rows] = _prepared(vectors, rows, center_D, dtype).square_().sum(1)
    return size_N


def _prepared(
    vectors: _Vectors, index: slice | Tensor, center_D: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """Return the vectors of some rows, relative to the center."""
    vector_RD = vectors.rows(index)
    return (vector_RD if center_D is None else vector_RD.sub_(center_D)).to(dtype)


def _tile_entries(tensor: Tensor) -> int:
    # On a CPU a tile should fit the cache. On a GPU, launches cost more than memory traffic.
    return _CPU_TILE_ENTRIES if tensor.device.type == "cpu" else _GPU_TILE_ENTRIES


def without_rounding_noise(wide_ND: Tensor, made_in: torch.dtype) -> Tensor:
    """Return the embeddings, or N copies of their median if they equal it up to rounding.

    Args:
        wide_ND: embeddings in float64.
        made_in: precision in which they were computed.
    """
    if not wide_ND.numel():
        return wide_ND
    median_D = wide_ND.median(0).values
    if float((wide_ND - median_D).abs().max()) > _noise(made_in, float(wide_ND.abs().max())):
        return wide_ND
    return median_D.expand_as(wide_ND).clone()


def entries_at_once(device: torch.device) -> int:
    """Return the maximum number of scores in a block, where possible.

    On a GPU the vectors of all candidates are converted for each block, so blocks are as large as
    its memory allows. Their size changes no result.
    """
    if device.type != "cuda":
        return ENTRIES_AT_ONCE
    num_bytes = torch.cuda.get_device_properties(device).total_memory
    return min(_GPU_ENTRIES_AT_ONCE, num_bytes // _GPU_BYTES_AN_ENTRY)


def row_blocks(
    num_rows: int,
    num_columns: int,
    block_rows: int,
    collective: Collective | None,
    device: torch.device,
) -> Iterator[tuple[int, int]]:
    """Yield (first row, end) of this worker's blocks.

    A block has at most ``block_rows`` rows and, where possible, at most ``entries_at_once`` scores.
    """
    rank, world = (0, 1) if collective is None else (collective.rank, collective.world)
    first = num_rows * rank // world
    last = num_rows * (rank + 1) // world
    rows = max(1, min(block_rows, entries_at_once(device) // max(num_columns, 1)))
    for start in range(first, last, rows):
        yield start, min(start + rows, last)


def check_finite(vector_ND: Tensor, name: str) -> None:
    """Check that embeddings are finite; ``name`` is the plural noun for them in the error.

    Raises:
        ValueError: with the number of rows that hold NaN or Inf, and the first of them.
    """
    is_bad_N = torch.empty(len(vector_ND), dtype=torch.bool, device=vector_ND.device)
    for rows in tiles(len(vector_ND), vector_ND.shape[1], _tile_entries(vector_ND)):
        is_bad_N[rows] = ~torch.isfinite(vector_ND[rows]).all(1)
    if bool(is_bad_N.any()):
        raise ValueError(
            f"{int(is_bad_N.sum())} of {len(vector_ND)} {name} hold NaN or Inf "
            f"(the first: row {int(torch.nonzero(is_bad_N)[0, 0])}); has training diverged?"
        )
