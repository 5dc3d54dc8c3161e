"""Term retrieval: rank all MeSH terms for the text of a held-out article, and texts for terms.

This is the validation of BioSTransformers (Menad et al.), computed exactly.

Shape letters: Q texts that are queries, C terms, D embedding width, A articles, N store rows, E
(article, term) entries.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor

from raybio.core.final_report import UnitScores
from raybio.core.interfaces import Collective
from raybio.evaluation.evaluator import exact_scores
from raybio.evaluation.unit_scores import sample_units
from raybio.ops.chance import expected_recall
from raybio.ops.retrieval import Retrieval, Scores, cosine_scores, retrieve
from raybio.ops.segments import expand, indptr_from_lengths
from raybio.ops.significance import ratio_interval

CUTOFFS = (1, 10, 100)

TRUE_POSITIVE_CUTOFFS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)
"""Cutoffs of the authors' evaluator."""


@dataclass(frozen=True)
class TermQueries:
    """Texts, terms, and the pairs that belong together.

    Attributes:
        row_Q: store rows of the texts, ascending.
        num_terms: number of all terms (C).
        indptr: (Q + 1,) text q has the terms ``indices[indptr[q] : indptr[q + 1]]``.
        indices: term numbers.
    """

    row_Q: np.ndarray
    num_terms: int
    indptr: np.ndarray
    indices: np.ndarray

    @cached_property
    def reversed(self) -> tuple[np.ndarray, np.ndarray]:
        """The same pairs by term: pointers (C + 1,) and text numbers."""
        text_P = np.repeat(np.arange(len(self.row_Q)), np.diff(self.indptr))
        order = np.argsort(self.indices, kind="stable")
        counts = np.bincount(self.indices, minlength=self.num_terms)
        return indptr_from_lengths(counts), text_P[order]


def draw_term_queries(
    row_A: np.ndarray,
    indptr_N1: np.ndarray,
    term_E: np.ndarray,
    num_terms: int,
    num_articles: int,
    seed: int,
) -> TermQueries:
    """Draw the articles of an evaluation.

    Args:
        row_A: candidates: rows of validation articles with a text. Articles without a term are
            skipped.
        indptr_N1: pointers to the terms of all rows.
        term_E: term numbers of all rows.
        num_terms: number of all terms.
        num_articles: articles to be drawn; 0 for all.
        seed: seed of the draw.
    """
    row_A = row_A[indptr_N1[row_A + 1] > indptr_N1[row_A]]
    if 0 < num_articles < len(row_A):
        row_A = np.sort(np.random.default_rng(seed).choice(row_A, num_articles, replace=False))
    start_Q = indptr_N1[row_A].astype(np.int64)
    length_Q = (indptr_N1[row_A + 1] - start_Q).astype(np.int64)
    position, _ = expand(start_Q, length_Q)
    indptr = indptr_from_lengths(length_Q)
    return TermQueries(row_A, num_terms, indptr, np.asarray(term_E)[position].astype(np.int64))


def retrieve_terms(
    queries: TermQueries,
    text_QD: Tensor,
    term_CD: Tensor,
    block_rows: int,
    collective: Collective | None = None,
) -> dict[str, Retrieval]:
    """Return the retrieval by direction: ``text_to_term`` and ``term_to_text``.

    Only terms of at least one text are queries of ``term_to_text``.
    """
    text_scores = cosine_scores(text_QD, term_CD)
    term_scores = cosine_scores(term_CD, text_QD)
    return rank_terms(queries, text_scores, term_scores, block_rows, collective)


def rank_terms(
    queries: TermQueries,
    text_scores: Scores,
    term_scores: Scores,
    block_rows: int,
    collective: Collective | None,
) -> dict[str, Retrieval]:
    """Return the retrieval by direction.

    Args:
        queries: texts and terms.
        text_scores: scores of terms for texts.
        term_scores: scores of texts for terms.
        block_rows: queries that are scored at once.
        collective: workers that divide the queries.
    """
    settings: dict[str, Any] = {"block_rows": block_rows, "collective": collective}
    return {
        "text_to_term": retrieve(text_scores, queries.indptr, queries.indices, **settings),
        "term_to_text": retrieve(term_scores, *queries.reversed, **settings),
    }


def term_metrics(retrievals: Mapping[str, Retrieval]) -> dict[str, float]:
    """Return scalars named as in logs, such as ``val/text_to_term_recall_at_10``."""
    metrics = {}
    for direction, retrieval in retrievals.items():
        for k in CUTOFFS:
            hits = float(retrieval.true_positives_at(k))
            metrics[f"val/{direction}_recall_at_{k}"] = retrieval.recall_at(k)
            metrics[f"val/{direction}_true_positives_at_{k}"] = hits
        metrics[f"val/{direction}_r_precision"] = retrieval.macro_r_precision
    return metrics


def term_scores(
    retrievals: Mapping[str, Retrieval], rng: np.random.Generator
) -> dict[str, dict[str, Any]]:
    """Return ``{direction: {score: {"value", "low", "high"}}}``.

    The 95 % intervals are bootstrap intervals over queries.
    """
    scores: dict[str, dict[str, Any]] = {}
    for direction, retrieval in retrievals.items():
        scores[direction] = {
            name: ratio_interval(share_Q, np.ones(len(share_Q)), rng)._asdict()
            for name, share_Q in _query_shares(retrieval).items()
        }
    return scores


def query_scores(
    retrievals: Mapping[str, Retrieval], queries: TermQueries
) -> dict[str, UnitScores]:
    """Return, by direction, each query's contribution to ``term_scores``, by the same names.

    The units are store rows of texts, and term numbers.
    """
    units_by_direction = {
        "text_to_term": queries.row_Q,
        "term_to_text": np.arange(queries.num_terms),
    }
    scores = {}
    for direction, retrieval in retrievals.items():
        units = units_by_direction[direction][retrieval.num_gold_Q > 0]
        scores[direction] = sample_units(units, _query_shares(retrieval))
    return scores


def true_positives(retrievals: Mapping[str, Retrieval]) -> dict[str, dict[str, int]]:
    """Return the authors' TP@k: gold among the first k, summed over queries."""
    return {
        direction: {str(k): retrieval.true_positives_at(k) for k in TRUE_POSITIVE_CUTOFFS}
        for direction, retrieval in retrievals.items()
    }


def term_chance(retrievals: Mapping[str, Retrieval]) -> dict[str, dict[str, dict[str, float]]]:
    """Return ``{direction: {score: {"value"}}}`` of randomly ordered candidates, exactly.

    The first k of C candidates contain an expected fraction k / C of a query's gold. In
    R-precision, k is the query's number of gold candidates.
    """
    scores = {}
    for direction, retrieval in retrievals.items():
        num_candidates = retrieval.num_candidates
        values = {f"recall_at_{k}": float(expected_recall(k, num_candidates)) for k in CUTOFFS}
        num_gold_Q = retrieval.num_gold_Q[retrieval.num_gold_Q > 0]
        values["r_precision"] = float(num_gold_Q.mean() / num_candidates)
        scores[direction] = exact_scores(values)
    return scores


def _query_shares(retrieval: Retrieval) -> dict[str, np.ndarray]:
    """Return one number for each query with gold, by score."""
    has_gold_Q = retrieval.num_gold_Q > 0
    num_gold_Q = retrieval.num_gold_Q[has_gold_Q]
    shares = {f"recall_at_{k}": retrieval.hits_at(k)[has_gold_Q] / num_gold_Q for k in CUTOFFS}
    return shares | {"r_precision": retrieval.r_precision_Q[has_gold_Q]}
