"""Scores for the final report: intervals; chance values and unit scores of link retrieval.

Scores of a stage are ``{split: {measure: {"value", "low", "high"}}}``: "train" for training links,
"val" for held-out links, and the names of their parts.

Shape letters: S nodes of an evaluation, A anchors (nodes with a link), G groups, E directed links,
K cut-offs, R resamples, M measures, N rows of a supervised task.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from raybio.core.arrays import Floats, Int64s
from raybio.core.final_report import UnitScores
from raybio.evaluation.evaluator import exact_scores
from raybio.evaluation.unit_scores import linear_share, sample_units
from raybio.methods.sppt.evaluate import LinkQueries
from raybio.methods.sppt.graph.csr import Graph
from raybio.methods.sppt.link_retrieval import CUTOFFS, LinkRetrieval
from raybio.ops.chance import (
    expected_average_precision,
    expected_ndcg,
    expected_recall,
    expected_reciprocal_rank,
)
from raybio.ops.significance import (
    MAX_RESAMPLED_UNITS,
    Interval,
    closed_form_interval,
    mean_interval,
)

LIMITS = {
    "accuracy": (0.0, 1.0),
    "macro_f1": (0.0, 1.0),
    "micro_f1": (0.0, 1.0),
    "spearman": (-1.0, 1.0),
}
"""The lowest and the highest value of bounded scores."""


def scores_with_intervals(
    retrievals: Mapping[str, LinkRetrieval], rng: np.random.Generator
) -> dict[str, dict[str, dict[str, float]]]:
    """Return the scores of each split with 95 % bootstrap intervals over anchors."""
    scores = {}
    for split, retrieval in retrievals.items():
        intervals = bootstrap_intervals(retrieval, rng)
        scores[split] = {name: interval._asdict() for name, interval in intervals.items()}
    return scores


def with_intervals(
    value_by_measure: dict[str, Floats],
    seed: int,
    limits: Mapping[str, tuple[float, float]] = LIMITS,
) -> dict[str, dict[str, float]]:
    """Return ``{measure: {"value", "low", "high"}}`` with 95 % bootstrap intervals over rows.

    An undefined score has NaN.

    Args:
        value_by_measure: contribution of each row (N,).
        seed: seed of the bootstrap.
        limits: lowest and highest value of bounded scores, by name. Linearized contributions, and
            so their intervals, may leave them: intervals are cut there.
    """
    scores = {}
    for name, value_N in value_by_measure.items():
        if np.isnan(value_N).any():
            scores[name] = {"value": np.nan, "low": np.nan, "high": np.nan}
            continue
        value, low, high = mean_interval(value_N, np.random.default_rng(seed))
        lowest, highest = limits.get(name, (-np.inf, np.inf))
        scores[name] = {"value": value, "low": max(low, lowest), "high": min(high, highest)}
    return scores


def link_unit_scores(
    retrievals: Mapping[str, LinkRetrieval], node_S: np.ndarray
) -> dict[str, UnitScores]:
    """Return each anchor's contribution to ``scores_with_intervals``, by the same names.

    Args:
        retrievals: retrieval of each split.
        node_S: store row of each evaluated node.
    """
    return {
        split: sample_units(node_S[retrieval.anchor_A], _contributions(retrieval))
        for split, retrieval in retrievals.items()
    }


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
    """Return 95 % intervals of all ``LinkRetrieval.measures``.

    Anchors are drawn with replacement within their group, so groups keep their weights. Each
    measure is the mean of the drawn anchors' contributions; those of average precision and recall
    are linearized, and their intervals end at 0 and 1. If every group has a single anchor, the
    intervals are unknown: NaN. Candidates stay fixed. The intervals cover the choice of anchors
    only: neither training seeds nor the dependence of anchors that share links.

    The ends are percentiles of resamples. With more than ``MAX_RESAMPLED_UNITS`` anchors they are
    those of infinitely many resamples by ``ops.closed_form_bootstrap``, except for measures that
    few anchors dominate.

    Args:
        retrieval: result of ``link_retrieval``.
        rng: draws the resamples.
        num_resamples: number of resamples.
    """
    value_by_measure = _contributions(retrieval)
    start_G = np.flatnonzero(np.diff(retrieval.group_A, prepend=retrieval.group_A[0] - 1))
    size_G = np.diff(np.append(start_G, len(retrieval.group_A)))
    bounds_by_measure: dict[str, Floats] = {}
    if size_G.max() == 1:
        # A resample of single anchors is the sample.
        bounds_by_measure = {name: np.full(2, np.nan) for name in value_by_measure}
    elif len(retrieval.group_A) > MAX_RESAMPLED_UNITS:
        bounds_by_measure = _closed_form(value_by_measure, start_G)
    resampled = [name for name in value_by_measure if name not in bounds_by_measure]
    if resampled:
        value_AM = np.stack([value_by_measure[name] for name in resampled], axis=1)
        bounds_2M = _percentiles(value_AM, start_G, size_G, rng, num_resamples)
        bounds_by_measure |= dict(zip(resampled, bounds_2M.T, strict=True))
    intervals = {}
    for name, value in retrieval.measures().items():
        low, high = bounds_by_measure[name].clip(0, 1).tolist()
        intervals[name] = Interval(value, low, high)
    return intervals


def _closed_form(value_by_measure: Mapping[str, Floats], start_G: Int64s) -> dict[str, Floats]:
    """Return both ends (2,) of each measure that is not dominated by few anchors."""
    bounds_by_measure = {}
    for name, value_A in value_by_measure.items():
        # Columns of cut-offs are not contiguous: one copy is faster than many strided reads.
        interval = closed_form_interval(
            np.ascontiguousarray(value_A), np.ones(len(value_A)), start_G
        )
        if interval is not None:
            bounds_by_measure[name] = np.array([interval.low, interval.high])
    return bounds_by_measure


def _percentiles(
    value_AM: Floats,
    start_G: Int64s,
    size_G: Int64s,
    rng: np.random.Generator,
    num_resamples: int,
) -> Floats:
    """Return the 2.5th and 97.5th percentiles (2, M) of means over resampled anchors."""
    num_anchors = len(value_AM)
    first_A = np.repeat(start_G, size_G)
    size_A = np.repeat(size_G, size_G)
    mean_RM = np.empty((num_resamples, value_AM.shape[1]))
    for number in range(num_resamples):
        # One draw an anchor: float64 uniforms times sizes below 2**31 pick members evenly.
        drawn_A = first_A + (rng.random(num_anchors) * size_A).astype(np.int64)
        # A product with the numbers of draws is ten times faster than a sum of drawn rows.
        num_draws_A = np.bincount(drawn_A, minlength=num_anchors).astype(np.float64)
        mean_RM[number] = num_draws_A @ value_AM / num_anchors
    return np.asarray(np.percentile(mean_RM, [2.5, 97.5], axis=0))


def _contributions(retrieval: LinkRetrieval) -> dict[str, Floats]:
    """Return each anchor's contribution to each measure; their means are the measures."""
    precision_KA = (retrieval.hits_AK / CUTOFFS).T
    num_links_A = retrieval.num_links_A.astype(np.float64)
    recall_KA = [linear_share(hits_A, num_links_A) for hits_A in retrieval.hits_AK.T]
    return {
        "lrap": retrieval.lrap_A,
        "ndcg": retrieval.ndcg_A,
        "mrr": retrieval.reciprocal_rank_A,
        "average_precision": retrieval.average_precision_A,
        **_named_by_cutoff(precision_KA, recall_KA),
    }


def _named_by_cutoff(precision_K: Iterable[Any], recall_K: Iterable[Any]) -> dict[str, Any]:
    """Return the entries of both as ``precision_at_1`` ... ``recall_at_100``."""
    named = {f"precision_at_{k}": value for k, value in zip(CUTOFFS, precision_K, strict=True)}
    named |= {f"recall_at_{k}": value for k, value in zip(CUTOFFS, recall_K, strict=True)}
    return named
