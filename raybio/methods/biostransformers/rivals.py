"""Rivals of term retrieval: rankings that need no training of an encoder.

- ``frequent terms``: terms of many training articles first, the same for every text. This rival
  does not rank texts for terms.
- ``TF-IDF`` and ``BM25``: terms that share words with the text, and texts that share words with the
  term (``raybio.evaluation.lexical``). Synonyms and other forms of a word do not match.
- ``nearest articles``: terms of the training articles whose texts share most words with the text.

Equal scores are ranked in random order.

Shape letters: Q texts, C terms, R training articles, K nearest training articles, B texts of a
block, V words, E (article, term) entries.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from scipy import sparse

from raybio.core.interfaces import Collective
from raybio.evaluation.lexical import BASELINES, tfidf_scores, with_random_ties
from raybio.methods.biostransformers.term_retrieval import TermQueries, rank_terms
from raybio.ops.retrieval import Retrieval, Scores, retrieve
from raybio.ops.scores import row_blocks
from raybio.training.collective import SingleProcess

FREQUENT = "frequent terms"

NEAREST = "nearest articles"

NUM_NEAREST = 20
"""Training articles whose terms count for a text."""

MAX_TRAINING_TEXTS = 100_000
"""Maximum number of training articles that are searched; a random sample if there are more."""

SIMILARITIES_PER_BLOCK = 1 << 22
"""Similarities of texts and training texts that are held at once: 32 MiB."""


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
    retrieved = retrieve(
        frequent, queries.indptr, queries.indices, block_rows=block_rows, collective=collective
    )
    yield FREQUENT, {"text_to_term": retrieved}
    for name, scorer in BASELINES.items():
        text_scores = scorer(texts, terms)
        term_scores = scorer(terms, texts)
        yield name, rank_terms(queries, text_scores, term_scores, block_rows, collective)


def retrieve_by_nearest(
    queries: TermQueries,
    texts: Sequence[str],
    training_texts: Sequence[str],
    term_RC: sparse.csr_matrix,
    block_rows: int,
    collective: Collective | None = None,
) -> dict[str, Retrieval]:
    """Return the retrieval by the terms of the nearest training texts, by direction.

    The score of a text and a term is the sum of the similarities of the text's 20 nearest training
    texts that have the term. Terms rank texts by the same scores.

    Args:
        queries: which texts and terms belong together.
        texts: the texts (Q) as the encoder is given them.
        training_texts: texts of training articles (R).
        term_RC: 1 where a training article has a term.
        block_rows: queries that are scored at once.
        collective: workers that divide the queries.
    """
    score_QC = nearest_scores(texts, training_texts, term_RC, collective)
    text_scores = with_random_ties(_of_matrix(score_QC))
    term_scores = with_random_ties(_of_matrix(score_QC.T.tocsr()))
    return rank_terms(queries, text_scores, term_scores, block_rows, collective)


def nearest_scores(
    texts: Sequence[str],
    training_texts: Sequence[str],
    term_RC: sparse.csr_matrix,
    collective: Collective | None = None,
) -> sparse.csr_matrix:
    """Return the scores (Q, C) of ``retrieve_by_nearest``, whose arguments these are.

    The similarity is the cosine of TF-IDF vectors, with the idf of the training texts. Equally near
    training texts are taken in their order.
    """
    collective = collective or SingleProcess()
    scores = tfidf_scores(texts, training_texts)
    num_texts = len(texts)
    num_training = len(training_texts)
    block_rows = max(1, SIMILARITIES_PER_BLOCK // max(1, num_training))
    num_nearest = min(NUM_NEAREST, num_training)
    near = [np.zeros((0, num_nearest), np.int64)]
    value = [np.zeros((0, num_nearest))]
    cpu = torch.device("cpu")
    for first, end in row_blocks(num_texts, num_training, block_rows, collective, cpu):
        similarity_BR = scores.block(first, end).numpy()
        # Similarities are rounded to 1e-9, so this only orders equal ones.
        key_BR = 1e-15 * np.arange(num_training) - similarity_BR
        near_BK = np.sort(np.argpartition(key_BR, num_nearest - 1, axis=1)[:, :num_nearest])
        near.append(near_BK)
        value.append(np.take_along_axis(similarity_BR, near_BK, axis=1))
    near_QK, value_QK = (
        collective.all_gather(torch.from_numpy(np.concatenate(blocks))).row_MD.numpy()
        for blocks in (near, value)
    )
    indptr = np.arange(num_texts + 1) * num_nearest
    near_QR = sparse.csr_matrix(
        (value_QK.ravel(), near_QK.ravel(), indptr), shape=(num_texts, num_training)
    )
    return near_QR @ term_RC


def _of_matrix(score_QC: sparse.csr_matrix) -> Scores:
    return Scores(
        lambda first, end: torch.from_numpy(score_QC[first:end].toarray()),
        num_queries=score_QC.shape[0],
        num_candidates=score_QC.shape[1],
    )


def _same_for_all(score_C: np.ndarray, num_queries: int) -> Scores:
    """Return the same scores of candidates for each query."""
    score_1C = torch.from_numpy(score_C.astype(np.float64))[None]
    return Scores(
        lambda first, end: score_1C.repeat(end - first, 1),
        num_queries=num_queries,
        num_candidates=len(score_C),
    )
