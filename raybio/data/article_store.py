"""The store of articles: titles and abstracts as text, the MeSH terms of each, and which are kept for validation.

Texts are stored as text, not as tokens: one store serves every encoder, and tokenising a batch costs a hundredth of a
training step.

Shape letters: N articles ascending by PMID, T distinct terms ascending by name, E (article, term) entries by article.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from raybio.data.residues import Ragged
from raybio.data.store import PREPARE_AGAIN, Store
from raybio.data.store_writer import Draft, small
from raybio.errors import StoreError

ROWS, TERMS, INDPTR, ENTRIES, WORDS = "rows.arrow", "terms.arrow", "indptr.arrow", "entries.arrow", "words.arrow"
FIELDS = ("title", "abstract", "vernacular_title")


class ArticleStore(Store):
    """An open store of articles."""

    kind = "articles"

    @cached_property
    def pmid_N(self) -> np.ndarray:
        """PMIDs, int64, ascending."""
        return self._rows.column("pmid").to_numpy(zero_copy_only=True)

    @cached_property
    def year_N(self) -> np.ndarray:
        """Year of publication, int16; 0 where it is unknown."""
        return self._rows.column("year").to_numpy(zero_copy_only=True)

    @cached_property
    def is_validation_N(self) -> np.ndarray:
        """Whether an article is kept out of training, bool."""
        return self._rows.column("is_validation").to_numpy(zero_copy_only=True).view(np.bool_)

    def has_text_N(self, field: str) -> np.ndarray:
        """Whether each article has a ``field`` (one of ``FIELDS``) that is not empty, bool (N,)."""
        return np.diff(Ragged.of(self._held(ROWS, field)).indptr_N1) > 0

    def texts(self, field: str, row_R: np.ndarray) -> list[str]:
        """The ``field`` of some articles."""
        return [text.decode() for text in self._held(ROWS, field).take(pa.array(row_R)).to_pylist()]

    @cached_property
    def term_names(self) -> pa.Array:
        """Names of the MeSH terms, Arrow strings (T,), ascending."""
        return self._batch(TERMS).column("name")

    @cached_property
    def term_indptr_N1(self) -> np.ndarray:
        """Article n has the terms ``term_E[term_indptr_N1[n] : term_indptr_N1[n + 1]]``."""
        return self._column(INDPTR)

    @cached_property
    def term_E(self) -> np.ndarray:
        """Term numbers, ascending within an article, int32."""
        return self._batch(ENTRIES).column("term").to_numpy(zero_copy_only=True)

    @cached_property
    def is_major_E(self) -> np.ndarray:
        """Whether the term is a major topic of the article, bool."""
        return self._batch(ENTRIES).column("is_major").to_numpy(zero_copy_only=True).view(np.bool_)

    @cached_property
    def qualifiers_E(self) -> pa.DictionaryArray:
        """Qualifiers of each entry's term as PubMed writes them: "" or "genetics/*metabolism", * for a major one."""
        return self._held(ENTRIES, "qualifiers")

    @cached_property
    def count_by_word(self) -> dict[str, int]:
        """How often the commonest words occur, for a tokenizer that is made from scratch."""
        words = self._batch(WORDS)
        return dict(zip(words.column("word").to_pylist(), words.column("count").to_pylist(), strict=True))

    @cached_property
    def _rows(self) -> pa.RecordBatch:
        return self._batch(ROWS)

    def _held(self, file: str, column: str) -> pa.Array:
        """A column that stores of this version may lack: it came later."""
        batch = self._batch(file)
        if column not in batch.schema.names:
            raise StoreError(f"{self.path}: was prepared when stores did not keep {column}. {PREPARE_AGAIN}")
        return batch.column(column)


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
        StoreError: if it cannot be written.
    """
    tables = {
        ROWS: {
            "pmid": pa.array(pmid_N.astype(np.int64, copy=False)),
            "year": pa.array(year_N.astype(np.int16, copy=False)),
            "is_validation": pa.array(is_validation_N.astype(np.uint8)),
            "title": title.to_arrow(),
            "abstract": abstract.to_arrow(),
            "vernacular_title": vernacular_title.to_arrow(),
        },
        TERMS: {"name": pa.array(term_names, pa.string())},
        INDPTR: {"indptr": pa.array(small(term_indptr_N1))},
        ENTRIES: {
            "term": pa.array(term_E.astype(np.int32)),
            "is_major": pa.array(is_major_E.astype(np.uint8)),
            "qualifiers": qualifiers_E,
        },
        WORDS: {
            "word": pa.array(list(count_by_word), pa.string()),
            "count": pa.array(list(count_by_word.values()), pa.int64()),
        },
    }
    counts = {
        "rows": len(pmid_N),
        "validation_articles": int(is_validation_N.sum()),
        "articles_with_abstract": int((np.diff(abstract.indptr_N1) > 0).sum()),
        "articles_with_terms": int((np.diff(term_indptr_N1) > 0).sum()),
        "terms": len(term_names),
        "article_terms": len(term_E),
    }
    return draft.commit(ArticleStore, tables, counts, provenance)
