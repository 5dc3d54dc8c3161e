"""Spread, alignment and uniformity of embeddings: has an encoder collapsed?

Shape letters: N and M rows, K some of them, P pairs, B some of them, D embedding width.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from raybio.ops.scores import without_rounding_noise
from raybio.ops.similarity import normalize

MAX_ROWS = 1024
"""The spread is computed on at most this many rows."""

PAIRS_AT_ONCE = 4096
"""Pairs whose embeddings are copied at once."""

MEAN_COSINE = "spread/mean_cosine"
EFFECTIVE_RANK = "spread/effective_rank"


class EmbeddingSpread(NamedTuple):
    """The spread of a set of embeddings.

    Attributes:
        mean_cosine: mean cosine over all pairs of two different rows; 1 if all have one direction.
        effective_rank: number of directions in which the centered rows vary, from 1 to D; 0 if all
            rows are equal.
    """

    mean_cosine: float
    effective_rank: float


def embedding_spread(embedding_ND: Tensor, max_rows: int = MAX_ROWS) -> EmbeddingSpread:
    """Compute the mean cosine and the effective rank of embeddings.

    With unit vectors u and their sum s, the mean cosine of distinct pairs is ``(|s|^2 - sum_i
    |u_i|^2) / (N (N - 1))``: no N x N matrix is needed. The effective rank is the exponential of
    the entropy of the normalized singular values (Roy & Vetterli, "The effective rank: a measure of
    effective dimensionality", EUSIPCO 2007), here of the centered rows.

    Args:
        embedding_ND: embeddings of any floating type.
        max_rows: if there are more rows, this many are used, evenly spaced: the same rows at each
            evaluation.

    Raises:
        ValueError: for fewer than two rows.
    """
    num_rows = len(embedding_ND)
    if num_rows < 2:
        raise ValueError(f"the spread of embeddings needs two rows at least, got {num_rows}")
    embedding_ND = _evenly_spaced(embedding_ND, max_rows)
    num_rows = len(embedding_ND)
    # The rounding errors of a collapsed encoder span many directions and would hide the collapse.
    row_ND = without_rounding_noise(embedding_ND.detach().cpu().double(), embedding_ND.dtype)
    unit_ND = normalize(row_ND)
    num_pairs = num_rows * (num_rows - 1)
    mean_cosine = (unit_ND.sum(0).square().sum() - unit_ND.square().sum()) / num_pairs
    return EmbeddingSpread(float(mean_cosine), _effective_rank(row_ND))


def spread_metrics(embedding_ND: Tensor) -> dict[str, float]:
    """Return the spread as metrics; empty for fewer than two rows or non-finite rows."""
    if len(embedding_ND) < 2 or not bool(torch.isfinite(embedding_ND).all()):
        return {}
    spread = embedding_spread(embedding_ND)
    return {MEAN_COSINE: spread.mean_cosine, EFFECTIVE_RANK: spread.effective_rank}


def alignment(first_ND: Tensor, second_MD: Tensor, pair_P2: Tensor) -> float:
    """Return the mean squared distance of P pairs of embeddings on the unit sphere, from 0 to 4.

    A low value means that positive pairs are near each other. Alignment and ``uniformity`` measure
    the quality of embeddings (Wang & Isola, "Understanding contrastive representation learning
    through alignment and uniformity on the hypersphere", ICML 2020, Eq. 2 with alpha = 2).

    Args:
        first_ND: embeddings of first items.
        second_MD: embeddings of second items; the same tensor for pairs within a corpus.
        pair_P2: row of the first and of the second item of each pair.
    """
    total = 0.0
    for pair_B2 in torch.split(pair_P2, PAIRS_AT_ONCE):
        first_B, second_B = pair_B2.T
        first_BD = normalize(first_ND[first_B].detach().double())
        second_BD = normalize(second_MD[second_B].detach().double())
        total += float((first_BD - second_BD).square().sum())
    return total / len(pair_P2)


def uniformity(embedding_ND: Tensor, max_rows: int = MAX_ROWS) -> float:
    """Return ``log(mean(exp(-2 |u - v|^2)))`` over all pairs of rows on the unit sphere.

    A low value means that rows cover the sphere; 0 means collapse (Wang & Isola, 2020, Eq. 3
    with t = 2).
    """
    unit_KD = normalize(_evenly_spaced(embedding_ND, max_rows).detach().double())
    return float(torch.pdist(unit_KD).square().mul(-2).exp().mean().log())


def _evenly_spaced(embedding_ND: Tensor, max_rows: int) -> Tensor:
    num_rows = len(embedding_ND)
    if num_rows <= max_rows:
        return embedding_ND
    row_K = torch.arange(max_rows, device=embedding_ND.device) * num_rows // max_rows
    return embedding_ND[row_K]


def _effective_rank(row_ND: Tensor) -> float:
    centered_ND = row_ND - row_ND.mean(0)
    # Even equal rows differ from their own mean by rounding.
    if centered_ND.abs().max() <= 1e-12 * row_ND.abs().max():
        return 0.0
    singular_K = torch.linalg.svdvals(centered_ND)
    share_K = singular_K / singular_K.sum()
    return float(torch.special.entr(share_K).sum().exp())
