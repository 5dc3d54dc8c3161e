"""Rankings of documents for queries by common words or letters, without an encoder.

Words are scikit-learn's: two or more letters or digits, lower-cased, stop words included. Documents
without any word are all equally near to every query.

Shape letters: Q queries, C documents, V words, E (document, word) entries, B queries of a block.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from scipy import sparse

from raybio.core.randomness import derive_seed, hash_uniform
from raybio.ops.retrieval import Scores

TextScorer = Callable[[Sequence[str], Sequence[str]], Scores]
"""(queries, documents) -> scores of all documents for all queries."""

_DECIMALS = 9
"""Scores are rounded, so that equal ones tie whatever the order of summation."""


def bm25_scores(
    queries: Sequence[str], documents: Sequence[str], *, k1: float = 1.2, b: float = 0.75
) -> Scores:
    """Return Okapi BM25 (Robertson and Zaragoza 2009), a sum over the words of the query.

    A repeated word counts as often as it occurs.

    A word contributes idf * count (k1 + 1) / (count + k1 (1 - b + b length / mean length)), with
    idf = log(1 + (C - C_word + 1/2) / (C_word + 1/2)). Unlike the original idf, it is never
    negative.
    """
    # Imported here, since it takes a second.
    from sklearn.feature_extraction.text import CountVectorizer

    query_QV, count_CV = _vectors(CountVectorizer(), queries, documents)
    length_C = np.asarray(count_CV.sum(axis=1)).ravel()
    num_with_V = np.bincount(count_CV.indices, minlength=count_CV.shape[1])
    idf_V = np.log1p((len(documents) - num_with_V + 0.5) / (num_with_V + 0.5))
    mean_length = length_C.mean() or 1.0  # no document has a word: avoid 0 / 0
    damping_C = k1 * (1 - b + b * length_C / mean_length)
    count_E = count_CV.data
    row_E = np.repeat(np.arange(len(documents)), np.diff(count_CV.indptr))
    count_CV.data = idf_V[count_CV.indices] * count_E * (k1 + 1) / (count_E + damping_C[row_E])
    return _products(query_QV, count_CV)


def tfidf_scores(queries: Sequence[str], documents: Sequence[str]) -> Scores:
    """Return cosines of TF-IDF vectors: (1 + log count) * idf, with the idf of the documents."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    return _products(*_vectors(TfidfVectorizer(sublinear_tf=True), queries, documents))


def character_scores(queries: Sequence[str], documents: Sequence[str]) -> Scores:
    """Return ``tfidf_scores`` over the sequences of 2 to 4 characters inside of words.

    Words are what spaces separate, with one space on each side; case is ignored.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), sublinear_tf=True)
    return _products(*_vectors(vectorizer, queries, documents))


def with_random_ties(scores: Scores, *, decimals: int = _DECIMALS) -> Scores:
    """Return scores in the same order, but with ties broken at random.

    Most documents share no word with a query. If ties kept the order of documents, the first ones
    would be found only for being first. The random order depends only on the indices of query and
    document. Scores that agree to ``decimals`` decimals tie.
    """
    key = derive_seed(0, "order of ties")
    start_Q = hash_uniform(key, np.arange(scores.num_queries), 0)
    order_C = np.argsort(hash_uniform(key, np.arange(scores.num_candidates), 1))
    # Candidates stand at equal distances on a circle, and each query begins at a random point.
    position_C = np.argsort(order_C) / scores.num_candidates

    def block(first: int, end: int) -> torch.Tensor:
        drawn_BC = (start_Q[first:end, None] + position_C) % 1
        score_BC = scores.block(first, end).double().round_(decimals=decimals)
        return score_BC.add_(torch.from_numpy(drawn_BC * 0.5 * 10.0**-decimals).to(score_BC))

    return replace(scores, block=block)


def _with_random_ties(scorer: TextScorer) -> TextScorer:
    return lambda queries, documents: with_random_ties(scorer(queries, documents))


BASELINES: Mapping[str, TextScorer] = {
    "TF-IDF": _with_random_ties(tfidf_scores),
    "BM25": _with_random_ties(bm25_scores),
}
"""Name of a baseline -> its scorer, which breaks ties at random."""


def _vectors(
    vectorizer: Any, queries: Sequence[str], documents: Sequence[str]
) -> tuple[sparse.csr_matrix, sparse.csr_matrix]:
    """Return vectors (Q, V) and (C, V) by a vectorizer that is fitted to the documents."""
    analyze = vectorizer.build_analyzer()
    if not any(analyze(document) for document in documents):
        # The vectorizer refuses documents without any word. Their vectors have width 0.
        return sparse.csr_matrix((len(queries), 0)), sparse.csr_matrix((len(documents), 0))
    document_CV = vectorizer.fit_transform(documents)
    query_QV = vectorizer.transform(queries)
    return (
        sparse.csr_matrix(query_QV, dtype=np.float64),
        sparse.csr_matrix(document_CV, dtype=np.float64),
    )


def _products(query_QV: sparse.csr_matrix, document_CV: sparse.csr_matrix) -> Scores:
    document_VC = document_CV.T.tocsr()

    def block(first: int, end: int) -> torch.Tensor:
        product_BC = query_QV[first:end] @ document_VC
        product_BC.data = product_BC.data.round(_DECIMALS)
        return torch.from_numpy(product_BC.toarray())

    return Scores(block, num_queries=query_QV.shape[0], num_candidates=document_VC.shape[1])
