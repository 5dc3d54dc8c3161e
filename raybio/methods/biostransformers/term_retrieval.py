"""Term retrieval: is the MeSH term that lies nearest to a text one of the article's, and the other way round?

Validation of BioSTransformers (facts §3.3): texts of held-out articles against all terms, both ways, exactly.

Shape letters: Q texts asked, C terms, D embedding width.
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
from raybio.ops.retrieval import Retrieval, cosine_scores, retrieve
from raybio.ops.segments import expand
from raybio.ops.significance import ratio_interval

CUTOFFS = (1, 10, 100)


TRUE_POSITIVE_CUTOFFS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)
"""Those of the authors' evaluator."""


@dataclass(frozen=True)
class TermQuestions:
    """Texts, terms, and which belong together.

    Attributes:
        row_Q: store rows of the texts, ascending.
        num_terms: C, all terms.
        indptr: (Q + 1,) text q has the terms ``indices[indptr[q] : indptr[q + 1]]``.
        indices: term numbers.
    """

    row_Q: np.ndarray
    num_terms: int
    indptr: np.ndarray
    indices: np.ndarray

    @cached_property
    def reversed(self) -> tuple[np.ndarray, np.ndarray]:
        """The same pairs by term: (indptr, texts)."""
        text_P = np.repeat(np.arange(len(self.row_Q)), np.diff(self.indptr))
        order = np.argsort(self.indices, kind="stable")
        counts = np.bincount(self.indices, minlength=self.num_terms)
        return np.concatenate([[0], np.cumsum(counts)]), text_P[order]


def term_questions(
    row_A: np.ndarray,
    indptr_N1: np.ndarray,
    term_E: np.ndarray,
    num_terms: int,
    num_articles: int,
    seed: int,
) -> TermQuestions:
    """Choose the articles that are asked.

    Args:
        row_A: rows that may be asked: validation articles with a text.
        indptr_N1: terms of all rows, as pointers.
        term_E: and as numbers.
        num_terms: all terms.
        num_articles: how many articles are drawn, 0: all that have a term.
        seed: of the draw.
    """
    row_A = row_A[indptr_N1[row_A + 1] > indptr_N1[row_A]]
    if 0 < num_articles < len(row_A):
        row_A = np.sort(np.random.default_rng(seed).choice(row_A, num_articles, replace=False))
    start_Q = indptr_N1[row_A].astype(np.int64)
    length_Q = (indptr_N1[row_A + 1] - start_Q).astype(np.int64)
    position, _ = expand(start_Q, length_Q)
    indptr = np.concatenate([[0], np.cumsum(length_Q)])
    return TermQuestions(row_A, num_terms, indptr, np.asarray(term_E)[position].astype(np.int64))


def ask_terms(
    questions: TermQuestions,
    text_QD: Tensor,
    term_CD: Tensor,
    block_rows: int,
    collective: Collective | None = None,
) -> dict[str, Retrieval]:
    """Retrieval by direction: of terms for texts and of texts for terms (those that a text of the questions has)."""
    settings: dict[str, Any] = {"block_rows": block_rows, "collective": collective}
    return {
        "text_to_term": retrieve(
            cosine_scores(text_QD, term_CD), questions.indptr, questions.indices, **settings
        ),
        "term_to_text": retrieve(cosine_scores(term_CD, text_QD), *questions.reversed, **settings),
    }


def term_metrics(retrievals: Mapping[str, Retrieval]) -> dict[str, float]:
    """Scalars under the names that reports and search spaces use, such as ``val/text_to_term_recall_at_10``."""
    metrics = {}
    for direction, retrieval in retrievals.items():
        for k in CUTOFFS:
            metrics[f"val/{direction}_recall_at_{k}"] = retrieval.recall_at(k)
            metrics[f"val/{direction}_true_positives_at_{k}"] = float(
                retrieval.true_positives_at(k)
            )
        metrics[f"val/{direction}_r_precision"] = retrieval.macro_r_precision
    return metrics


def term_scores(
    retrievals: Mapping[str, Retrieval], rng: np.random.Generator
) -> dict[str, dict[str, Any]]:
    """``{direction: {score: {"value", "low", "high"}}}`` with 95 % bootstrap intervals over the queries."""
    return {direction: _scores(retrieval, rng) for direction, retrieval in retrievals.items()}


def query_scores(
    retrievals: Mapping[str, Retrieval], questions: TermQuestions
) -> dict[str, UnitScores]:
    """What each text (its store row) and each term adds to ``term_scores``, by the same names."""
    unit_by_direction = {
        "text_to_term": questions.row_Q,
        "term_to_text": np.arange(questions.num_terms),
    }
    return {
        direction: sample_units(
            unit_by_direction[direction][retrieval.num_gold_Q > 0], _shares(retrieval)
        )
        for direction, retrieval in retrievals.items()
    }


def true_positives(retrievals: Mapping[str, Retrieval]) -> dict[str, dict[str, int]]:
    """The authors' TP@k: gold among the first k, summed over the queries."""
    return {
        direction: {str(k): retrieval.true_positives_at(k) for k in TRUE_POSITIVE_CUTOFFS}
        for direction, retrieval in retrievals.items()
    }


def term_chance(retrievals: Mapping[str, Retrieval]) -> dict[str, dict[str, dict[str, float]]]:
    """Return ``{direction: {score: {"value"}}}`` of candidates in random order, exactly.

    Of the first k of C candidates, a share k / C of a query's gold is expected; k is the number of its gold candidates
    for R-precision.
    """
    scores = {}
    for direction, retrieval in retrievals.items():
        num_candidates = retrieval.num_candidates
        values = {f"recall_at_{k}": float(expected_recall(k, num_candidates)) for k in CUTOFFS}
        num_gold_Q = retrieval.num_gold_Q[retrieval.num_gold_Q > 0]
        values["r_precision"] = float(num_gold_Q.mean() / num_candidates)
        scores[direction] = exact_scores(values)
    return scores


def _scores(retrieval: Retrieval, rng: np.random.Generator) -> dict[str, Any]:
    return {
        name: ratio_interval(share, np.ones(len(share)), rng)._asdict()
        for name, share in _shares(retrieval).items()
    }


def _shares(retrieval: Retrieval) -> dict[str, np.ndarray]:
    """By score a number a query that has gold."""
    asked = retrieval.num_gold_Q > 0
    shares = {
        f"recall_at_{k}": retrieval.hits_at(k)[asked] / retrieval.num_gold_Q[asked] for k in CUTOFFS
    }
    return shares | {"r_precision": retrieval.r_precision_Q[asked]}
