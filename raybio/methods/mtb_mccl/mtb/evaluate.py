"""Do two entities of one document lead to the same two in another? What pre-training by matching the blanks is for.

Q queries: occurrences of pairs of entities. C candidates: all pairs of the documents that are searched.
"""

from typing import Any

import numpy as np
from torch import Tensor

from raybio.core.final_report import UnitScores
from raybio.core.interfaces import Collective
from raybio.evaluation.evaluator import exact_scores
from raybio.evaluation.unit_scores import sample_units
from raybio.ops.chance import expected_hit, expected_reciprocal_rank
from raybio.ops.retrieval import Retrieval, cosine_scores, retrieve
from raybio.ops.significance import ratio_interval

CUTOFFS = (1, 10)


def retrieve_pairs(
    query_QD: Tensor,
    id_Q: np.ndarray,
    candidate_CD: Tensor,
    id_C: np.ndarray,
    collective: Collective | None = None,
) -> Retrieval:
    """Rank candidates by cosine; gold are those of a query's own two entities.

    Args:
        query_QD: embeddings of the queries.
        id_Q: which two entities each is.
        candidate_CD: embeddings of the candidates.
        id_C: which two entities each is; every query's at least once.
        collective: divides the queries over workers.

    Raises:
        ValueError: if there is no query, or one has no candidate of its own.
    """
    order_C = np.argsort(id_C, kind="stable")
    first_Q, behind_Q = (
        np.searchsorted(id_C[order_C], id_Q, side=side) for side in ("left", "right")
    )  # type: ignore[call-overload]
    gold = [
        order_C[first:behind]
        for first, behind in zip(first_Q.tolist(), behind_Q.tolist(), strict=True)
    ]
    indptr = np.concatenate([[0], np.cumsum(behind_Q - first_Q)])
    return retrieve(
        cosine_scores(query_QD, candidate_CD), indptr, np.concatenate(gold), collective=collective
    )


def pair_metrics(retrieval: Retrieval) -> dict[str, float]:
    """``pair_recall_at_1``, ``pair_recall_at_10`` and ``pair_mrr``: of the best gold candidate, mean over queries."""
    return {f"pair_{name}": float(share_Q.mean()) for name, share_Q in _shares(retrieval).items()}


def pair_scores(retrieval: Retrieval, rng: np.random.Generator) -> dict[str, Any]:
    """``{score: {"value", "low", "high"}}`` with 95 % bootstrap intervals over the queries."""
    shares = _shares(retrieval).items()
    return {
        name: ratio_interval(share_Q, np.ones(len(share_Q)), rng)._asdict()
        for name, share_Q in shares
    }


def pair_chance(retrieval: Retrieval) -> dict[str, dict[str, float]]:
    """Return ``{score: {"value"}}`` of candidates in random order, exactly."""
    sizes = retrieval.num_gold_Q, retrieval.num_candidates
    values = {f"recall_at_{k}": float(expected_hit(k, *sizes).mean()) for k in CUTOFFS}
    return exact_scores(values | {"mrr": float(expected_reciprocal_rank(*sizes).mean())})


def pair_unit_scores(retrieval: Retrieval) -> UnitScores:
    """What each query adds to ``pair_scores``."""
    return sample_units(np.arange(len(retrieval.num_gold_Q)), _shares(retrieval))


def _shares(retrieval: Retrieval) -> dict[str, np.ndarray]:
    best_Q = np.minimum.reduceat(retrieval.rank_P, retrieval.indptr[:-1])
    hits = {f"recall_at_{k}": (best_Q < k).astype(np.float64) for k in CUTOFFS}
    return hits | {"mrr": 1 / (1 + best_Q)}
