"""Scores of link retrieval for the final report: intervals, chance values, unit scores.

Scores of a stage are ``{split: {measure: {"value", "low", "high"}}}``: "train" for training links,
"val" for held-out links, and the names of their parts.

Shape letters: S nodes of an evaluation, A anchors (nodes with a link), G groups, E directed links,
K cut-offs.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raybio.core.final_report import UnitScores
from raybio.evaluation.evaluator import exact_scores
from raybio.evaluation.unit_scores import sample_units
from raybio.methods.sppt.evaluate import LinkQueries
from raybio.methods.sppt.graph.csr import Graph
from raybio.methods.sppt.link_retrieval import CUTOFFS, LinkRetrieval
from raybio.ops.chance import (
    expected_average_precision,
    expected_ndcg,
    expected_recall,
    expected_reciprocal_rank,
)
from raybio.ops.significance import Interval


def scores_with_intervals(
    retrievals: Mapping[str, LinkRetrieval], rng: np.random.Generator
) -> dict[str, dict[str, dict[str, float]]]:
    """Return the scores of each split with 95 % bootstrap intervals over anchors."""
    scores = {}
    for split, retrieval in retrievals.items():
        intervals = bootstrap_intervals(retrieval, rng)
        scores[split] = {name: interval._asdict() for name, interval in intervals.items()}
    return scores


def link_unit_scores(retrievals: Mapping[str, LinkRetrieval]) -> dict[str, UnitScores]:
    """Return each anchor's part of ``scores_with_intervals``, by the same names."""
    return {split: _unit_scores(retrieval) for split, retrieval in retrievals.items()}


def chance_scores(queries: LinkQueries) -> dict[str, dict[str, dict[str, float]]]:
    """Return the exact scores of randomly ordered candidates, by split and measure."""
    return {
        name: exact_scores(link_chance(split.links, queries.group_S, split.ignored))
        for name, split in queries.splits.items()
    }


def link_chance(
    links: Graph, group_S: np.ndarray, ignored: Graph | None = None
) -> dict[str, float]:
    """Return the expected scores where all orders of the candidates are equally likely.

    A node with R links among its M candidates, the other nodes of its group that are not ignored,
    expects ``expected_average_precision(R, M)`` as LRAP, and so on. For the average precision all
    pairs of a group are one list, in which a link and its reverse tie: the pairs count once.

    Args:
        links: links among the nodes; those between groups do not count.
        group_S: group of each node.
        ignored: pairs that are neither candidates nor links.
    """
    num_nodes = links.num_nodes
    source_E = np.repeat(np.arange(num_nodes), links.degree_N)
    is_inside_E = group_S[source_E] == group_S[links.indices]
    _, number_S = np.unique(group_S, return_inverse=True)
    candidates_S = np.bincount(number_S)[number_S] - 1
    if ignored is not None:
        is_inside_E &= ~ignored.has_edge(source_E, links.indices)
        ignored_E = np.repeat(np.arange(num_nodes), ignored.degree_N)
        is_candidate_E = group_S[ignored_E] == group_S[ignored.indices]
        candidates_S = candidates_S - np.bincount(ignored_E[is_candidate_E], minlength=num_nodes)
    links_S = np.bincount(source_E[is_inside_E], minlength=num_nodes)
    is_anchor_S = links_S > 0
    anchors_G = np.bincount(number_S, is_anchor_S)
    pairs_G = np.bincount(number_S, candidates_S) / 2
    links_G = np.bincount(number_S, links_S) / 2
    has_links_G = links_G > 0
    precision_G = expected_average_precision(links_G[has_links_G], pairs_G[has_links_G])
    links_A = links_S[is_anchor_S]
    candidates_A = candidates_S[is_anchor_S]
    return {
        "lrap": float(expected_average_precision(links_A, candidates_A).mean()),
        "ndcg": float(expected_ndcg(links_A, candidates_A).mean()),
        "average_precision": float(np.average(precision_G, weights=anchors_G[has_links_G])),
        "mrr": float(expected_reciprocal_rank(links_A, candidates_A).mean()),
        **_chance_at_cutoffs(links_A, candidates_A),
    }


def _chance_at_cutoffs(links_A: np.ndarray, candidates_A: np.ndarray) -> dict[str, float]:
    """Return precision and recall at each cut-off.

    R links among M candidates give R min(k, M) / M expected hits among the first k.
    """
    hits_AK = np.stack([links_A * expected_recall(k, candidates_A) for k in CUTOFFS], axis=1)
    precision_K = hits_AK.mean(axis=0) / CUTOFFS
    return _named_by_cutoff(precision_K, hits_AK.sum(axis=0) / links_A.sum())


def bootstrap_intervals(
    retrieval: LinkRetrieval, rng: np.random.Generator, *, num_resamples: int = 1000
) -> dict[str, Interval]:
    """Return 95 % percentile intervals of all ``LinkRetrieval.measures``.

    Anchors are drawn with replacement within their group, so groups keep their weights. Candidates
    stay fixed. For the average precision the precision at each link's score stays fixed too: a
    resample's value is a ratio (sum of precisions / number of links, per group), and no pair is
    ranked anew. So the intervals cover the choice of anchors only: neither training seeds nor the
    dependence of anchors that share links.

    Args:
        retrieval: result of ``link_retrieval``.
        rng: draws the resamples.
        num_resamples: number of resamples.
    """
    start_G = np.flatnonzero(np.diff(retrieval.group_A, prepend=retrieval.group_A[0] - 1))
    size_G = np.diff(np.append(start_G, len(retrieval.group_A)))
    cutoff_K = np.array(CUTOFFS)
    first_A = np.repeat(start_G, size_G)
    size_A = np.repeat(size_G, size_G)
    means_A3 = np.stack([retrieval.lrap_A, retrieval.ndcg_A, retrieval.reciprocal_rank_A], axis=1)
    ratio_A2 = np.stack(
        [retrieval.precision_sum_A, retrieval.num_links_A.astype(np.float64)], axis=1
    )
    resampled = np.empty((num_resamples, 4))
    precision_RK = np.empty((num_resamples, len(CUTOFFS)))
    recall_RK = np.empty_like(precision_RK)
    for number in range(num_resamples):
        # One draw an anchor: float64 uniforms times sizes below 2**31 pick members evenly.
        drawn_A = first_A + (rng.random(len(first_A)) * size_A).astype(np.int64)
        resampled[number, :3] = means_A3[drawn_A].mean(axis=0)
        resampled[number, 3] = _average_precision(ratio_A2[drawn_A], start_G, size_G)
        # A product with the numbers of draws is ten times faster than a sum of drawn rows.
        num_draws_A = np.bincount(drawn_A, minlength=len(first_A)).astype(np.float64)
        hits_K = num_draws_A @ retrieval.hits_AK
        precision_RK[number] = hits_K / (len(drawn_A) * cutoff_K)
        recall_RK[number] = hits_K / (num_draws_A @ retrieval.num_links_A)
    low_M, high_M = np.percentile(
        np.concatenate([resampled, precision_RK, recall_RK], axis=1), [2.5, 97.5], axis=0
    )
    # The columns are in the order of ``measures``.
    intervals = {}
    for column, (name, value) in enumerate(retrieval.measures().items()):
        intervals[name] = Interval(value, float(low_M[column]), float(high_M[column]))
    return intervals


def _average_precision(
    ratio_A2: NDArray[np.float64], start_G: NDArray[np.int64], size_G: NDArray[np.int64]
) -> float:
    sum_G2 = np.add.reduceat(ratio_A2, start_G, axis=0)
    return float(np.average(sum_G2[:, 0] / sum_G2[:, 1], weights=size_G))


def _unit_scores(retrieval: LinkRetrieval) -> UnitScores:
    _, group_A, size_G = np.unique(retrieval.group_A, return_inverse=True, return_counts=True)
    links_G = np.bincount(group_A, retrieval.num_links_A)
    values = {
        "lrap": retrieval.lrap_A,
        "ndcg": retrieval.ndcg_A,
        "mrr": retrieval.reciprocal_rank_A,
        # A group's precision is a ratio of sums over its links, and groups weigh as many anchors as
        # they have.
        "average_precision": retrieval.precision_sum_A * (size_G / links_G)[group_A],
        **_named_by_cutoff(
            (retrieval.hits_AK / CUTOFFS).T,
            (retrieval.hits_AK * (len(group_A) / retrieval.num_links_A.sum())).T,
        ),
    }
    return sample_units(retrieval.anchor_A, values)


def _named_by_cutoff(precision_K: np.ndarray, recall_K: np.ndarray) -> dict[str, Any]:
    """Return the entries of both arrays as ``precision_at_1`` ... ``recall_at_100``."""
    named = {f"precision_at_{k}": value for k, value in zip(CUTOFFS, precision_K, strict=True)}
    named |= {f"recall_at_{k}": value for k, value in zip(CUTOFFS, recall_K, strict=True)}
    return named
