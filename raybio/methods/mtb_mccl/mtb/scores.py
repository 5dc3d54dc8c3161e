"""Retrieval scores: is an entity pair the nearest neighbor of its occurrence in another document?

Shape letters: Q queries, C candidates (all pairs of the searched documents).
"""

from typing import Any

import numpy as np

from raybio.core.final_report import UnitScores
from raybio.core.interfaces import Collective
from raybio.evaluation.evaluator import exact_scores
from raybio.evaluation.unit_scores import sample_units
from raybio.ops.chance import expected_hit, expected_reciprocal_rank
from raybio.ops.retrieval import Retrieval, Scores, retrieve
from raybio.ops.segments import indptr_from_lengths
from raybio.ops.significance import ratio_interval

CUTOFFS = (1, 10)


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


def pair_scores(retrieval: Retrieval, rng: np.random.Generator) -> dict[str, Any]:
    """Return ``{score: {"value", "low", "high"}}``: 95 % bootstrap intervals over queries."""
    return {
        name: ratio_interval(score_Q, np.ones(len(score_Q)), rng)._asdict()
        for name, score_Q in _scores(retrieval).items()
    }


def pair_chance(retrieval: Retrieval) -> dict[str, dict[str, float]]:
    """Return ``{score: {"value"}}`` in expectation over random rankings of the candidates."""
    sizes = retrieval.num_gold_Q, retrieval.num_candidates
    values = {f"recall_at_{k}": float(expected_hit(k, *sizes).mean()) for k in CUTOFFS}
    return exact_scores(values | {"mrr": float(expected_reciprocal_rank(*sizes).mean())})


def pair_unit_scores(retrieval: Retrieval, id_Q: np.ndarray) -> UnitScores:
    """Return each query's share of ``pair_scores``, for paired tests between runs.

    The units are the entity pairs ``id_Q``: other settings of a run may retrieve others.
    """
    return sample_units(id_Q, _scores(retrieval))


def _scores(retrieval: Retrieval) -> dict[str, np.ndarray]:
    best_Q = np.minimum.reduceat(retrieval.rank_P, retrieval.indptr[:-1])
    hits = {f"recall_at_{k}": (best_Q < k).astype(np.float64) for k in CUTOFFS}
    return hits | {"mrr": 1 / (1 + best_Q)}
