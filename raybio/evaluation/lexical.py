"""Scores of documents for queries by the words they share: what an encoder has to beat.

Q queries, C documents, V words, B queries of a block. Words are scikit-learn's: two or more letters or digits, in lower
case; no stop words are left out.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from scipy import sparse

from raybio.errors import DataError
from raybio.functional.retrieval import Scores

# Rounded, so that scores which are equal on paper tie, however the products were summed.
_DECIMALS = 9


def tfidf_scores(queries: Sequence[str], documents: Sequence[str]) -> Scores:
    """Cosines of TF-IDF vectors: (1 + log count) x idf, the idf from the documents alone, rows of length 1.

    Raises:
        DataError: if no document has a word.
    """
    # Only now: it takes a second to import, and all training workers would wait for it.
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(sublinear_tf=True)
    document_CV = _fit(vectorizer, documents)
    return _products(vectorizer.transform(queries), document_CV)


def bm25_scores(queries: Sequence[str], documents: Sequence[str], *, k1: float = 1.2, b: float = 0.75) -> Scores:
    """Okapi BM25 (Robertson and Zaragoza, 2009), a sum over the query's words, each as often as it stands there.

    A word adds idf x count (k1 + 1) / (count + k1 (1 - b + b length / mean length)), with
    idf = log(1 + (C - C_word + 1/2) / (C_word + 1/2)), which unlike the original one is never negative.

    Raises:
        DataError: if no document has a word.
    """
    from sklearn.feature_extraction.text import CountVectorizer

    vectorizer = CountVectorizer()
    count_CV = sparse.csr_matrix(_fit(vectorizer, documents), dtype=np.float64)
    length_C = np.asarray(count_CV.sum(axis=1)).ravel()
    num_with_V = np.bincount(count_CV.indices, minlength=count_CV.shape[1])
    idf_V = np.log1p((len(documents) - num_with_V + 0.5) / (num_with_V + 0.5))
    damping_C = k1 * (1 - b + b * length_C / length_C.mean())
    count_E, row_E = count_CV.data, np.repeat(np.arange(len(documents)), np.diff(count_CV.indptr))
    count_CV.data = idf_V[count_CV.indices] * count_E * (k1 + 1) / (count_E + damping_C[row_E])
    return _products(vectorizer.transform(queries).astype(np.float64), count_CV)


def _fit(vectorizer: Any, documents: Sequence[str]) -> Any:
    try:
        return vectorizer.fit_transform(documents)
    except ValueError as error:
        raise DataError(f"{len(documents)} documents, the first {documents[:1]!r}: {error}; want texts") from None


def _products(query_QV: Any, document_CV: Any) -> Scores:
    query_QV, document_VC = sparse.csr_matrix(query_QV), sparse.csr_matrix(document_CV).T.tocsr()
    return Scores(
        lambda first, end: torch.from_numpy((query_QV[first:end] @ document_VC).toarray().round(_DECIMALS)),
        num_queries=query_QV.shape[0],
        num_candidates=document_VC.shape[1],
    )
