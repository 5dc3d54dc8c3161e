"""How far the figures of a link retrieval would move with other anchors.

A anchors, G groups.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from raybio.functional.ranking import LinkRetrieval


class Interval(NamedTuple):
    """A value with the bounds that 95 % of the resamples fall between."""

    value: float
    low: float
    high: float


def bootstrap_intervals(
    retrieval: LinkRetrieval, rng: np.random.Generator, *, num_resamples: int = 1000
) -> dict[str, Interval]:
    """95 % percentile intervals of ``lrap``, ``ndcg``, ``average_precision`` and ``mrr``.

    Anchors are drawn with replacement within their group, so groups keep their weights. What is held fixed: the
    candidates, and for the average precision also the precision at each link's score, so that a resample's average
    precision is a ratio (sum of precisions / number of links, per group) and no pair is ranked anew. The intervals
    speak of the choice of anchors alone: not of training seeds, nor of anchors that share links.

    Args:
        retrieval: what ``link_retrieval`` returned.
        rng: draws the resamples.
        num_resamples: how many.
    """
    start_G = np.flatnonzero(np.diff(retrieval.group_A, prepend=retrieval.group_A[0] - 1))
    size_G = np.diff(np.append(start_G, len(retrieval.group_A)))
    first_A, size_A = np.repeat(start_G, size_G), np.repeat(size_G, size_G)
    means_A3 = np.stack([retrieval.lrap_A, retrieval.ndcg_A, retrieval.reciprocal_rank_A], axis=1)
    ratio_A2 = np.stack([retrieval.precision_sum_A, retrieval.num_links_A.astype(np.float64)], axis=1)
    resampled = np.empty((num_resamples, 4))
    for number in range(num_resamples):
        # One draw an anchor: float64 uniforms times sizes below 2**31 pick members evenly.
        drawn_A = first_A + (rng.random(len(first_A)) * size_A).astype(np.int64)
        resampled[number, :3] = means_A3[drawn_A].mean(axis=0)
        resampled[number, 3] = _average_precision(ratio_A2[drawn_A], start_G, size_G)
    low, high = np.percentile(resampled, [2.5, 97.5], axis=0)
    values = {
        "lrap": retrieval.lrap,
        "ndcg": retrieval.ndcg,
        "mrr": retrieval.mrr,
        "average_precision": retrieval.average_precision,
    }
    return {
        name: Interval(value, float(low[place]), float(high[place]))
        for place, (name, value) in enumerate(values.items())
    }


def _average_precision(ratio_A2: NDArray[np.float64], start_G: NDArray[np.int64], size_G: NDArray[np.int64]) -> float:
    sum_G2 = np.add.reduceat(ratio_A2, start_G, axis=0)
    return float(np.average(sum_G2[:, 0] / sum_G2[:, 1], weights=size_G))
