"""Expected scores of a ranking in random order: the chance level of a retrieval.

R of M candidates are relevant, 1 <= R <= M, and all M! orders are equally likely. Arrays broadcast.
H_n is the n-th harmonic number.
"""

import numpy as np
from numpy.typing import ArrayLike

from raybio.core.arrays import Floats


def expected_average_precision(num_relevant: ArrayLike, num_candidates: ArrayLike) -> Floats:
    """Return E[AP] = (H_M + (R - 1) / (M - 1) (M - H_M)) / M (Bestgen, PBML 103, 2015).

    It equals E[LRAP] without ties. A relevant candidate has rank k with probability 1 / M, and a
    share (R - 1) / (M - 1) of the k - 1 candidates before it is relevant. So its expected precision
    is (1 + (k - 1) (R - 1) / (M - 1)) / k.
    """
    r, m = _as_floats(num_relevant, num_candidates)
    harmonic = _harmonic(m)
    return np.asarray((harmonic + (r - 1) / np.maximum(m - 1, 1) * (m - harmonic)) / m)


def expected_reciprocal_rank(num_relevant: ArrayLike, num_candidates: ArrayLike) -> Floats:
    """Return E[1 / rank of the first relevant candidate] = R / (M - R + 1) (H_M - H_{R - 1}).

    The rank is k with probability C(M - k, R - 1) / C(M, R), and
    sum_k C(M - k, R - 1) / k = C(M, R - 1) (H_M - H_{R - 1}).
    """
    r, m = _as_floats(num_relevant, num_candidates)
    return np.asarray(r / (m - r + 1) * (_harmonic(m) - _harmonic(r - 1)))


def expected_ndcg(num_relevant: ArrayLike, num_candidates: ArrayLike) -> Floats:
    """Return E[nDCG] = (R / M) G(M) / G(R), where G(n) is the sum of 1 / log2(k + 1), k = 1..n."""
    r, m = _as_floats(num_relevant, num_candidates)
    gain = np.cumsum(1 / np.log2(np.arange(2, int(m.max(initial=1)) + 2)))
    return np.asarray(r / m * gain[m.astype(np.int64) - 1] / gain[r.astype(np.int64) - 1])


def expected_recall(k: int, num_candidates: ArrayLike) -> Floats:
    """Return the expected recall at k: min(k, M) / M."""
    m = np.asarray(num_candidates, np.float64)
    return np.asarray(np.minimum(k, m) / m)


def expected_hit(k: int, num_relevant: ArrayLike, num_candidates: ArrayLike) -> Floats:
    """Return the probability of a relevant candidate among the first k: 1 - C(M - R, k) / C(M, k).

    R may be 0 here.
    """
    r, m = _as_floats(num_relevant, num_candidates)
    miss_probability = np.ones(np.broadcast(r, m).shape)
    for rank in range(k):
        miss_probability = miss_probability * np.clip(m - r - rank, 0, None)
        miss_probability = miss_probability / np.maximum(m - rank, 1)
    return np.asarray(1 - miss_probability)


def _as_floats(num_relevant: ArrayLike, num_candidates: ArrayLike) -> tuple[Floats, Floats]:
    return np.asarray(num_relevant, np.float64), np.asarray(num_candidates, np.float64)


def _harmonic(n: Floats) -> Floats:
    from scipy.special import digamma  # half a second to import

    return np.asarray(digamma(n + 1) + np.euler_gamma)
