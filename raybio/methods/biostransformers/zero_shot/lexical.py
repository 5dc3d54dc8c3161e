"""Lexical baselines: scores of documents for queries by common words.

Words are scikit-learn's: two or more letters or digits, lower-cased, stop words included.

Shape letters: Q queries, C documents, V words, E (document, word) entries.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from scipy import sparse

from raybio.core.errors import DataError
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

    Raises:
        DataError: if no document has a word.
    """
    # Imported here: it takes a second.
    from sklearn.feature_extraction.text import CountVectorizer

    vectorizer = CountVectorizer()
    count_CV = sparse.csr_matrix(_fit(vectorizer, documents), dtype=np.float64)
    length_C = np.asarray(count_CV.sum(axis=1)).ravel()
    num_with_V = np.bincount(count_CV.indices, minlength=count_CV.shape[1])
    idf_V = np.log1p((len(documents) - num_with_V + 0.5) / (num_with_V + 0.5))
    damping_C = k1 * (1 - b + b * length_C / length_C.mean())
    count_E = count_CV.data
    row_E = np.repeat(np.arange(len(documents)), np.diff(count_CV.indptr))
    count_CV.data = idf_V[count_CV.indices] * count_E * (k1 + 1) / (count_E + damping_C[row_E])
    return _products(vectorizer.transform(queries).astype(np.float64), count_CV)


def tfidf_scores(queries: Sequence[str], documents: Sequence[str]) -> Scores:
    """Return cosines of TF-IDF vectors: (1 + log count) * idf, with the idf of the documents.

    Raises:
        DataError: if no document has a word.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(sublinear_tf=True)
    document_CV = _fit(vectorizer, documents)
    return _products(vectorizer.transform(queries), document_CV)


BASELINES: Mapping[str, TextScorer] = {"TF-IDF": tfidf_scores, "BM25": bm25_scores}


def _fit(vectorizer: Any, documents: Sequence[str]) -> Any:
    try:
        return vectorizer.fit_transform(documents)
    except ValueError as error:
        raise DataError(
            f"{len(documents)} documents, the first {documents[:1]!r}: {error}; want texts"
        ) from None


def _products(query_QV: Any, document_CV: Any) -> Scores:
    query_QV = sparse.csr_matrix(query_QV)
    document_VC = sparse.csr_matrix(document_CV).T.tocsr()

    def block(first: int, end: int) -> torch.Tensor:
        dense = (query_QV[first:end] @ document_VC).toarray()
        return torch.from_numpy(dense.round(_DECIMALS))

    return Scores(block, num_queries=query_QV.shape[0], num_candidates=document_VC.shape[1])
