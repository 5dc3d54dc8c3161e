"""Rivals of term retrieval: rankings that need no training of an encoder.

- ``frequent terms``: terms of many training articles first, the same for every text. They rank no
  texts for terms.
- ``TF-IDF`` and ``BM25``: terms that share words with the text, and texts that share words with the
  term (``raybio.evaluation.lexical``). No synonym and no other form of a word counts.

Equal scores are ranked in random order.

Shape letters: Q texts, C terms.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from raybio.core.interfaces import Collective
from raybio.evaluation.lexical import BASELINES, with_random_ties
from raybio.methods.biostransformers.term_retrieval import TermQueries, rank_terms
from raybio.ops.retrieval import Retrieval, Scores, retrieve

FREQUENT = "frequent terms"


def retrieve_by_rivals(
    queries: TermQueries,
    texts: Sequence[str],
    terms: Sequence[str],
    num_articles_C: np.ndarray,
    block_rows: int,
    collective: Collective | None = None,
) -> Iterator[tuple[str, dict[str, Retrieval]]]:
    """Yield the name of each rival, and its retrieval by direction.

    Args:
        queries: which texts and terms belong together.
        texts: the texts (Q) as the encoder is given them.
        terms: names of the terms (C).
        num_articles_C: number of training articles of each term.
        block_rows: queries that are scored at once.
        collective: workers that divide the queries.
    """
    frequent = with_random_ties(_same_for_all(num_articles_C, len(texts)))
    found = retrieve(
        frequent, queries.indptr, queries.indices, block_rows=block_rows, collective=collective
    )
    yield FREQUENT, {"text_to_term": found}
    for name, scorer in BASELINES.items():
        text_scores = with_random_ties(scorer(texts, terms))
        term_scores = with_random_ties(scorer(terms, texts))
        yield name, rank_terms(queries, text_scores, term_scores, block_rows, collective)


def _same_for_all(score_C: np.ndarray, num_queries: int) -> Scores:
    """Return the same scores of candidates for each query."""
    score_1C = torch.from_numpy(score_C.astype(np.float64))[None]
    return Scores(
        lambda first, end: score_1C.repeat(end - first, 1),
        num_queries=num_queries,
        num_candidates=len(score_C),
    )
