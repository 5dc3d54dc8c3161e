"""Retrieval scores: is an entity pair the nearest neighbor of its occurrence in another document?

Shape letters: Q queries, C candidates (all pairs of the searched documents), U units.
"""

from typing import Any, NamedTuple

import numpy as np

from raybio.core.final_report import UnitScores
from raybio.core.interfaces import Collective
from raybio.evaluation.evaluator import exact_scores
from raybio.evaluation.unit_scores import linear_share, sample_units
from raybio.ops.chance import expected_hit, expected_reciprocal_rank
from raybio.ops.retrieval import Retrieval, Scores, retrieve
from raybio.ops.segments import indptr_from_lengths
from raybio.ops.significance import ratio_interval

CUTOFFS = (1, 10)


class QueryUnits(NamedTuple):
    """The units of intervals and tests: entity pairs, regardless of the order of their entities.

    If relations are directed, a pair is a query in both orders. Both queries come from one
    occurrence, so they are not independent.

    Attributes:
        id_U: id of each unit's first query, in the order of the queries.
        unit_Q: unit of each query.
    """

    id_U: np.ndarray
    unit_Q: np.ndarray


def query_units(id_Q: np.ndarray, num_keys: int) -> QueryUnits:
    """Return the units of queries.

    Args:
        id_Q: entity pairs of the queries, ``head * num_keys + tail``.
        num_keys: number of all entities.
    """
    head_Q, tail_Q = np.divmod(id_Q, num_keys)
    pair_Q = np.minimum(head_Q, tail_Q) * num_keys + np.maximum(head_Q, tail_Q)
    _, first_U, sorted_unit_Q = np.unique(pair_Q, return_index=True, return_inverse=True)
    order_U = np.argsort(first_U)
    position_U = np.argsort(order_U)
    return QueryUnits(id_Q[first_U[order_U]], position_U[sorted_unit_Q])


def retrieve_pairs(
    scores: Scores, id_Q: np.ndarray, id_C: np.ndarray, collective: Collective | None
) -> Retrieval:
    """Rank candidates by their scores; the gold candidates have the query's entity pair.

    Args:
        scores: scores of the candidates.
        id_Q: entity pairs of the queries.
        id_C: entity pairs of the candidates; every query's pair occurs among them.
        collective: the workers that share the queries.

    Raises:
        ValueError: without queries, or if a query has no gold candidate.
    """
    order_C = np.argsort(id_C, kind="stable")
    sorted_C = id_C[order_C]
    first_Q = np.searchsorted(sorted_C, id_Q, side="left")
    behind_Q = np.searchsorted(sorted_C, id_Q, side="right")
    gold = [
        order_C[first:behind]
        for first, behind in zip(first_Q.tolist(), behind_Q.tolist(), strict=True)
    ]
    indptr = indptr_from_lengths(behind_Q - first_Q)
    return retrieve(scores, indptr, np.concatenate(gold), collective=collective)


def pair_metrics(retrieval: Retrieval) -> dict[str, float]:
    """Return ``pair_recall_at_1``, ``pair_recall_at_10`` and ``pair_mrr``, means over queries.

    The best-ranked gold candidate of a query counts.
    """
    return {f"pair_{name}": float(score_Q.mean()) for name, score_Q in _scores(retrieval).items()}


def pair_scores(
    retrieval: Retrieval, units: QueryUnits, rng: np.random.Generator
) -> dict[str, Any]:
    """Return ``{score: {"value", "low", "high"}}``, means over queries.

    Intervals are 95 % bootstrap intervals over units.
    """
    num_U = np.bincount(units.unit_Q)
    return {
        name: ratio_interval(np.bincount(units.unit_Q, score_Q), num_U, rng)._asdict()
        for name, score_Q in _scores(retrieval).items()
    }


def pair_chance(retrieval: Retrieval) -> dict[str, dict[str, float]]:
    """Return ``{score: {"value"}}`` in expectation over random rankings of the candidates."""
    sizes = retrieval.num_gold_Q, retrieval.num_candidates
    values = {f"recall_at_{k}": float(expected_hit(k, *sizes).mean()) for k in CUTOFFS}
    return exact_scores(values | {"mrr": float(expected_reciprocal_rank(*sizes).mean())})


def pair_unit_scores(retrieval: Retrieval, units: QueryUnits) -> UnitScores:
    """Return each unit's share of ``pair_scores``, for paired tests between runs.

    Units are named by entity pairs, since runs with other settings may retrieve other pairs.
    """
    num_U = np.bincount(units.unit_Q).astype(np.float64)
    value_by_score = {}
    for name, score_Q in _scores(retrieval).items():
        total_U = np.bincount(units.unit_Q, score_Q).astype(np.float64)
        value_by_score[name] = linear_share(total_U, num_U)
    return sample_units(units.id_U, value_by_score)


def _scores(retrieval: Retrieval) -> dict[str, np.ndarray]:
    best_Q = np.minimum.reduceat(retrieval.rank_P, retrieval.indptr[:-1])
    hits = {f"recall_at_{k}": (best_Q < k).astype(np.float64) for k in CUTOFFS}
    return hits | {"mrr": 1 / (1 + best_Q)}
