"""Store of articles: titles and abstracts, the MeSH terms of each, and the validation split.

The store holds texts, not tokens, so that one store serves every encoder. Tokenizing a batch takes
about a hundredth of a training step.

Shape letters: N articles ascending by PMID, T distinct terms ascending by name, E (article, term)
entries ordered by article, R some articles.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from raybio.store.columns import ArrowColumn, NumberColumn, column_tables
from raybio.store.prefetch import take_rows
from raybio.store.ragged import Ragged
from raybio.store.store import Store
from raybio.store.word_counts import WordCounts
from raybio.store.writer import Draft

ROWS = "rows.arrow"
TERMS = "terms.arrow"
INDPTR = "indptr.arrow"
ENTRIES = "entries.arrow"
WORDS = "words.arrow"


class ArticleStore(Store):
    """An open store of articles."""

    kind = "articles"

    pmid_N = NumberColumn(ROWS, "pmid", np.int64)
    """PMIDs, ascending."""

    year_N = NumberColumn(ROWS, "year", np.int16)
    """Year of publication; 0 if unknown."""

    is_validation_N = NumberColumn(ROWS, "is_validation", np.bool_)
    """Whether an article is excluded from training."""

    title = ArrowColumn(ROWS, "title")
    """Title of each article, UTF-8; like all of ``FIELDS``, it may be empty."""

    abstract = ArrowColumn(ROWS, "abstract")
    vernacular_title = ArrowColumn(ROWS, "vernacular_title")

    term_names = ArrowColumn(TERMS, "name", pa.string())
    """Names of the MeSH terms (T,), ascending."""

    term_indptr_N1 = NumberColumn(INDPTR, "indptr")
    """Article n has the terms ``term_E[term_indptr_N1[n] : term_indptr_N1[n + 1]]``."""

    term_E = NumberColumn(ENTRIES, "term", np.int32)
    """Term numbers, ascending within an article."""

    is_major_E = NumberColumn(ENTRIES, "is_major", np.bool_)
    """Whether the term is a major topic of the article."""

    qualifiers_E = ArrowColumn(ENTRIES, "qualifiers")
    """Qualifiers of each entry's term in PubMed's notation: "" or "genetics/*metabolism".

    An asterisk marks a major qualifier.
    """

    count_by_word = WordCounts(WORDS)
    """Counts of the most frequent words, for a tokenizer trained from scratch."""

    def has_text_N(self, field: str) -> np.ndarray:
        """Return whether each article has a non-empty ``field`` (one of ``FIELDS``), bool (N,)."""
        return np.diff(Ragged.of(self.column(ROWS, field)).indptr_N1) > 0

    def texts(self, field: str, row_R: np.ndarray) -> list[str]:
        """Return the ``field`` of these articles."""
        rows = take_rows(self.column(ROWS, field), row_R)
        return [text.decode() for text in rows.to_pylist()]


def commit_articles(
    draft: Draft,
    *,
    pmid_N: np.ndarray,
    year_N: np.ndarray,
    is_validation_N: np.ndarray,
    title: Ragged,
    abstract: Ragged,
    vernacular_title: Ragged,
    term_names: list[str],
    term_indptr_N1: np.ndarray,
    term_E: np.ndarray,
    is_major_E: np.ndarray,
    qualifiers_E: pa.DictionaryArray,
    count_by_word: Mapping[str, int],
    provenance: dict[str, Any],
) -> ArticleStore:
    """Write and commit a store of articles; arguments as the attributes of ``ArticleStore``.

    Raises:
        StoreError: if the store cannot be written.
    """
    tables = column_tables(
        ArticleStore,
        {
            "pmid_N": pmid_N,
            "year_N": year_N,
            "is_validation_N": is_validation_N,
            "title": title.to_arrow(),
            "abstract": abstract.to_arrow(),
            "vernacular_title": vernacular_title.to_arrow(),
            "term_names": term_names,
            "term_indptr_N1": term_indptr_N1,
            "term_E": term_E,
            "is_major_E": is_major_E,
            "qualifiers_E": qualifiers_E,
            "count_by_word": count_by_word,
        },
    )
    counts = {
        "rows": len(pmid_N),
        "validation_articles": int(is_validation_N.sum()),
        "articles_with_abstract": int((np.diff(abstract.indptr_N1) > 0).sum()),
        "articles_with_terms": int((np.diff(term_indptr_N1) > 0).sum()),
        "terms": len(term_names),
        "article_terms": len(term_E),
    }
    return draft.commit(ArticleStore, tables, counts, provenance)
