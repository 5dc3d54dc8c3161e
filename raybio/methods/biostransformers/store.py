"""Store of articles: titles and abstracts, the MeSH terms of each, and the validation split.

The store holds texts, not tokens, so that one store serves every encoder. A machine keeps the
tokens of long runs in its cache (``raybio.store.token_cache``).

Shape letters: N articles ascending by PMID, T distinct terms ascending by name, E (article, term)
entries ordered by article, R some articles.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import pyarrow as pa

from raybio.methods.biostransformers.column_file import (
    Binary,
    ColumnFile,
    ColumnType,
    Dictionary,
    Numbers,
)
from raybio.methods.biostransformers.config import FIELDS
from raybio.ops.segments import expand, indptr_from_lengths
from raybio.store.columns import ArrowColumn, NumberColumn
from raybio.store.prefetch import byte_lengths, take_rows
from raybio.store.store import Store
from raybio.store.word_counts import WordCounts
from raybio.store.writer import Draft

if TYPE_CHECKING:
    from scipy import sparse

ROWS = "rows.arrow"
TERMS = "terms.arrow"
INDPTR = "indptr.arrow"
ENTRIES = "entries.arrow"
WORDS = "words.arrow"

ARTICLES_PER_BLOCK = 1 << 16


class ArticleStore(Store):
    """An open store of articles."""

    kind = "articles"

    input_fields = FIELDS

    pmid_N = NumberColumn(ROWS, "pmid", np.int64)
    """PMIDs, ascending."""

    year_N = NumberColumn(ROWS, "year", np.int16)
    """Year of publication; 0 if unknown. Written for users: no method reads it."""

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

    def inputs(self, field: str, start: int, end: int) -> tuple[pa.Array, pa.Array]:
        """Return PMIDs and one of ``FIELDS`` of some articles."""
        keys = pa.array(self.pmid_N[start:end]).cast(pa.string())
        return keys, self.column(ROWS, field).slice(start, end - start).cast(pa.large_binary())

    def has_text_N(self, field: str) -> np.ndarray:
        """Return whether each article has a non-empty ``field`` (one of ``FIELDS``), bool (N,)."""
        pointer_N1 = text_pointers(self.column(ROWS, field))
        return pointer_N1[1:] > pointer_N1[:-1]

    def num_training_articles_T(self) -> np.ndarray:
        """Return the number of training articles of each term, int64 (T,)."""
        num_articles_T = np.zeros(len(self.term_names), np.int64)
        for first in range(0, self.num_rows, ARTICLES_PER_BLOCK):
            indptr = self.term_indptr_N1[first : first + ARTICLES_PER_BLOCK + 1]
            is_training = ~self.is_validation_N[first : first + ARTICLES_PER_BLOCK]
            term_E = self.term_E[indptr[0] : indptr[-1]][np.repeat(is_training, np.diff(indptr))]
            num_articles_T += np.bincount(term_E, minlength=len(num_articles_T))
        return num_articles_T

    def training_rows(self, field: str, at_most: int) -> np.ndarray:
        """Return rows of training articles with a ``field``, ascending, int64 (R,).

        If there are more than ``at_most``, a sample is drawn, the same at each call.
        """
        num_rows = self.num_rows
        row_R = np.arange(num_rows)
        if num_rows > 4 * at_most:
            # Do not hold an index for each of millions of articles.
            row_R = np.unique(np.random.default_rng(0).integers(num_rows, size=4 * at_most))
        pointer_N1 = text_pointers(self.column(ROWS, field))
        has_text_R = pointer_N1[row_R + 1] > pointer_N1[row_R]
        row_R = row_R[has_text_R & ~self.is_validation_N[row_R]]
        if len(row_R) > at_most:
            row_R = np.sort(np.random.default_rng(0).choice(row_R, at_most, replace=False))
        return row_R

    def terms_of(self, row_R: np.ndarray) -> "sparse.csr_matrix":
        """Return a sparse matrix (R, T) that is 1 where an article has a term."""
        from scipy import sparse  # a second to import

        start_R = self.term_indptr_N1[row_R].astype(np.int64)
        length_R = self.term_indptr_N1[row_R + 1].astype(np.int64) - start_R
        position_E, _ = expand(start_R, length_R)
        values = (np.ones(len(position_E)), self.term_E[position_E], indptr_from_lengths(length_R))
        return sparse.csr_matrix(values, shape=(len(row_R), len(self.term_names)))

    def texts(self, field: str, row_R: np.ndarray) -> list[str]:
        """Return the ``field`` of these articles."""
        rows = take_rows(self.column(ROWS, field), row_R)
        return [text.decode() for text in rows.to_pylist()]

    def text_lengths(self, field: str, row_R: np.ndarray) -> np.ndarray:
        """Return the bytes of the ``field`` of these articles (R,)."""
        return byte_lengths(self.column(ROWS, field), row_R)


def text_pointers(text: pa.Array) -> np.ndarray:
    """Return the pointers (N + 1,) to the bytes of a large_binary array, without a copy."""
    pointers = np.frombuffer(text.buffers()[1], np.int64)
    return pointers[text.offset : text.offset + len(text) + 1]


class StoreSize(NamedTuple):
    """Size of a store before it is written.

    Attributes:
        num_articles: N.
        num_entries: E.
        num_bytes_by_field: bytes of all texts of each of ``FIELDS``, as UTF-8.
    """

    num_articles: int
    num_entries: int
    num_bytes_by_field: Mapping[str, int]


class ArticleWriter:
    """Writes a store of articles block by block, ascending by PMID; a context manager.

    Args:
        draft: takes the files.
        size: size of the whole store.
        qualifier_sets: distinct qualifiers of entries, ascending.

    Raises:
        ValueError: when the context is left, if the blocks do not add up to ``size``.
    """

    def __init__(self, draft: Draft, size: StoreSize, qualifier_sets: Sequence[str]) -> None:
        """Create the files."""
        self.counts = dict.fromkeys(
            ("validation_articles", "articles_with_abstract", "articles_with_terms"), 0
        )
        self._draft = draft
        self._size = size
        self._num_entries = 0
        rows: dict[str, ColumnType] = {
            "pmid": Numbers(np.dtype(np.int64)),
            "year": Numbers(np.dtype(np.int16)),
            "is_validation": Numbers(np.dtype(np.uint8)),
        }
        for field in FIELDS:
            rows[field] = Binary(size.num_bytes_by_field[field])
        entries: dict[str, ColumnType] = {
            "term": Numbers(np.dtype(np.int32)),
            "is_major": Numbers(np.dtype(np.uint8)),
            "qualifiers": Dictionary(pa.array(qualifier_sets, pa.string())),
        }
        # The type that compact_int would choose.
        pointer = np.dtype(np.int32 if size.num_entries < 2**31 else np.int64)
        folder = draft.folder
        self._rows = ColumnFile(folder / ROWS, size.num_articles, rows)
        self._entries = ColumnFile(folder / ENTRIES, size.num_entries, entries)
        self._indptr = ColumnFile(
            folder / INDPTR, size.num_articles + 1, {"indptr": Numbers(pointer)}
        )
        self._indptr.append("indptr", np.zeros(1, np.int64))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        for file in (self._rows, self._entries, self._indptr):
            file.__exit__(*error)

    def add_rows(self, pmid_R: np.ndarray, year_R: np.ndarray, is_validation_R: np.ndarray) -> None:
        """Append articles; their texts and terms come by the other methods."""
        self._rows.append("pmid", pmid_R)
        self._rows.append("year", year_R)
        self._rows.append("is_validation", is_validation_R)
        self.counts["validation_articles"] += int(is_validation_R.sum())

    def add_texts(self, field: str, text: pa.Array) -> None:
        """Append the ``field`` of articles, large_binary."""
        self._rows.append(field, text)
        if field == "abstract":
            num_with_abstract = int((np.diff(text_pointers(text)) > 0).sum())
            self.counts["articles_with_abstract"] += num_with_abstract

    def add_entries(
        self,
        num_terms_R: np.ndarray,
        term_E: np.ndarray,
        is_major_E: np.ndarray,
        qualifiers_E: np.ndarray,
    ) -> None:
        """Append the terms of articles.

        Args:
            num_terms_R: number of terms of each article.
            term_E: term numbers, ascending within an article.
            is_major_E: whether the term is a major topic.
            qualifiers_E: index of the entry's qualifiers among ``qualifier_sets``.
        """
        self._indptr.append("indptr", self._num_entries + np.cumsum(num_terms_R))
        self._entries.append("term", term_E)
        self._entries.append("is_major", is_major_E)
        self._entries.append("qualifiers", qualifiers_E)
        self._num_entries += len(term_E)
        self.counts["articles_with_terms"] += int((num_terms_R > 0).sum())

    def commit(
        self,
        term_names: Sequence[str],
        count_by_word: Mapping[str, int],
        provenance: Mapping[str, Any],
    ) -> ArticleStore:
        """Commit the draft, after the context was left; return the open store.

        Raises:
            StoreError: if the store cannot be written.
        """
        tables = {
            TERMS: ArticleStore.term_names.arrays(term_names),
            WORDS: ArticleStore.count_by_word.arrays(count_by_word),
        }
        counts = {
            "rows": self._size.num_articles,
            **self.counts,
            "terms": len(term_names),
            "article_terms": self._size.num_entries,
        }
        written = (ROWS, INDPTR, ENTRIES)
        return self._draft.commit(ArticleStore, tables, counts, provenance, written)
