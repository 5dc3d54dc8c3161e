"""The store of articles: titles and abstracts as text, the MeSH terms of each, and which are kept for validation.

Texts are stored as text, not as tokens: one store serves every encoder, and tokenising a batch costs a hundredth of a
training step.

Shape letters: N articles ascending by PMID, T distinct terms ascending by name, E (article, term) entries by article.

From article records as they were read to the rows of a store of articles, in bounded memory.

Texts go through a spool on disk; in memory stay PMIDs, lengths and term numbers.

Shape letters: A articles in reading order, N rows of the store, E (article, term) entries, T terms.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raybio.core.errors import DataError
from raybio.core.randomness import derive_seed, hash_uniform
from raybio.methods.biostransformers.config import FIELDS, ArticleConfig
from raybio.ops.segments import expand, indptr_from_lengths
from raybio.store.columns import ArrowColumn, NumberColumn, column_tables
from raybio.store.ragged import Ragged, Spool
from raybio.store.store import Store
from raybio.store.word_counts import WordCounts, count_words
from raybio.store.writer import Draft

ROWS, TERMS, INDPTR, ENTRIES, WORDS = (
    "rows.arrow",
    "terms.arrow",
    "indptr.arrow",
    "entries.arrow",
    "words.arrow",
)


class ArticleStore(Store):
    """An open store of articles."""

    kind = "articles"

    pmid_N = NumberColumn(ROWS, "pmid", np.int64)
    """PMIDs, ascending."""

    year_N = NumberColumn(ROWS, "year", np.int16)
    """Year of publication; 0 where it is unknown."""

    is_validation_N = NumberColumn(ROWS, "is_validation", np.bool_)
    """Whether an article is excluded from training."""

    title = ArrowColumn(ROWS, "title")
    """Title of each article, UTF-8; as all of ``FIELDS``, it may be empty."""

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
    """Qualifiers of each entry's term as PubMed writes them: "" or "genetics/*metabolism", * marks a major one."""

    count_by_word = WordCounts(WORDS)
    """Counts of the most frequent words, for a tokenizer that is trained from scratch."""

    def has_text_N(self, field: str) -> np.ndarray:
        """Whether each article has a ``field`` (one of ``FIELDS``) that is not empty, bool (N,)."""
        return np.diff(Ragged.of(self.column(ROWS, field)).indptr_N1) > 0

    def texts(self, field: str, row_R: np.ndarray) -> list[str]:
        """Return the ``field`` of some articles."""
        column = self.column(ROWS, field).take(pa.array(row_R))
        return [text.decode() for text in column.to_pylist()]


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


ARTICLE_COLUMNS = ("pmid", "year", *FIELDS, "mesh")
"""What is read of a record batch in ``ARTICLE_SCHEMA``."""


WORDS_FROM_ARTICLES = 200_000


ROWS_PER_BLOCK = 1 << 20


class ArticleCollector:
    """Collects articles; of several records of one PMID the last one counts. As a context it closes its files."""

    def __init__(self, folder: Path) -> None:
        """Keep texts in ``folder`` until they are written into the store."""
        self.folder = folder
        self._spools = {field: Spool(folder / f"{field}.spool") for field in FIELDS}
        self._pmids, self._years = list[np.ndarray](), list[np.ndarray]()
        self._num_terms, self._terms, self._majors = (
            list[np.ndarray](),
            list[np.ndarray](),
            list[np.ndarray](),
        )
        self._qualifiers = list[np.ndarray]()
        self._number_by_term: dict[str, int] = {}
        self._number_by_qualifiers: dict[str, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for spool in self._spools.values():
            spool.__exit__(*error)

    def add(self, batch: pa.RecordBatch) -> None:
        """Take records, with the columns of ``ARTICLE_COLUMNS`` at least."""
        self._pmids.append(batch.column("pmid").to_numpy())
        self._years.append(pc.fill_null(batch.column("year"), 0).to_numpy(zero_copy_only=False))
        for field, spool in self._spools.items():
            spool.append(pc.fill_null(batch.column(field), "").cast(pa.large_binary()))
        mesh = batch.column("mesh")
        self._num_terms.append(
            pc.fill_null(pc.list_value_length(mesh), 0).to_numpy(zero_copy_only=False)
        )
        terms = mesh.flatten()
        self._terms.append(_numbered(terms.field("name"), self._number_by_term))
        self._qualifiers.append(
            _numbered(_joined(terms.field("qualifiers")), self._number_by_qualifiers)
        )
        self._majors.append(terms.field("is_major").to_numpy(zero_copy_only=False).astype(bool))

    def commit(
        self, draft: Draft, config: ArticleConfig, provenance: dict[str, Any]
    ) -> ArticleStore:
        """Sort by PMID, number the terms by name, and write the store.

        Raises:
            DataError: if there is no article, or none has a term.
        """
        pmid_A = np.concatenate([np.empty(0, np.int64), *self._pmids])
        article_N = _last_of_each(pmid_A)
        if not len(article_N):
            raise DataError("no article was read, want at least one with a title or an abstract")
        entries = self._entries(article_N)
        pmid_N = pmid_A[article_N]
        provenance = {**provenance, "replaced_records": len(pmid_A) - len(pmid_N)}
        texts: dict[str, Any] = {
            field: spool.in_order(article_N, self.folder / f"{field}.texts")
            for field, spool in self._spools.items()
        }
        return commit_articles(
            draft,
            pmid_N=pmid_N,
            year_N=np.concatenate(self._years)[article_N],
            is_validation_N=is_validation(pmid_N, config),
            **texts,
            **entries,
            count_by_word=count_words(
                _some([texts["title"], texts["abstract"]], entries["term_names"])
            ),
            provenance=provenance,
        )

    def _entries(self, article_N: np.ndarray) -> dict[str, Any]:
        """The terms that occur and the entries of the rows, as ``commit_articles`` takes them.

        Each term is there once a row; of one that a record repeats, the first one's qualifiers count.
        """
        num_A = np.concatenate(self._num_terms).astype(np.int64)
        first_A = np.cumsum(num_A) - num_A
        names, place_T = _by_name(self._number_by_term)
        sets, place_Q = _by_name(self._number_by_qualifiers)
        term_A = np.concatenate([np.empty(0, np.int32), *self._terms])
        qualifiers_A = np.concatenate([np.empty(0, np.int32), *self._qualifiers])
        is_major_A = np.concatenate([np.empty(0, bool), *self._majors])
        keys, majors, qualifiers = (
            [np.empty(0, np.int64)],
            [np.empty(0, bool)],
            [np.empty(0, np.int32)],
        )
        for start in range(0, len(article_N), ROWS_PER_BLOCK):
            block_R = article_N[start : start + ROWS_PER_BLOCK]
            position, owner = expand(first_A[block_R], num_A[block_R])
            key = (start + owner) * len(names) + place_T[term_A[position]]
            key, first, inverse = np.unique(key, return_index=True, return_inverse=True)
            keys.append(key)
            majors.append(
                np.bincount(inverse, weights=is_major_A[position], minlength=len(key)) > 0
            )
            qualifiers.append(place_Q[qualifiers_A[position[first]]])
        row_E, term_E = np.divmod(np.concatenate(keys), max(len(names), 1))
        if not len(term_E):
            raise DataError(
                "no article has a MeSH term, want some: there is nothing to pair texts with"
            )
        used_names, term_E = _only_used(names, term_E)
        used_sets, qualifiers_E = _only_used(sets, np.concatenate(qualifiers))
        return {
            "term_names": used_names,
            "term_indptr_N1": indptr_from_lengths(np.bincount(row_E, minlength=len(article_N))),
            "term_E": term_E,
            "is_major_E": np.concatenate(majors),
            "qualifiers_E": pa.DictionaryArray.from_arrays(
                pa.array(qualifiers_E), pa.array(used_sets)
            ),
        }


def is_validation(pmid_N: np.ndarray, config: ArticleConfig) -> np.ndarray:
    """Whether each article is kept out of training: by its PMID alone, so that a corpus that grows keeps its split."""
    return hash_uniform(derive_seed(config.seed, "validation"), pmid_N) < config.validation_share


def _numbered(names: pa.Array, number_by_name: dict[str, int]) -> np.ndarray:
    """The number of each name, int32; new names get the next ones."""
    encoded = names.dictionary_encode()
    numbers = [
        number_by_name.setdefault(name, len(number_by_name))
        for name in encoded.dictionary.to_pylist()
    ]
    return np.array(numbers, dtype=np.int32)[np.asarray(encoded.indices)]


def _joined(qualifiers: pa.Array) -> pa.Array:
    """Lists of qualifiers as texts, in PubMed's notation."""
    flat = qualifiers.flatten()
    name = flat.field("name")
    marked = pc.if_else(flat.field("is_major"), pc.binary_join_element_wise("*", name, ""), name)
    bounds = indptr_from_lengths(np.asarray(pc.list_value_length(qualifiers)))
    return pc.binary_join(pa.ListArray.from_arrays(pa.array(bounds, pa.int32()), marked), "/")


def _by_name(number_by_name: dict[str, int]) -> tuple[list[str], np.ndarray]:
    """Names ascending, and the place of each number among them, int32."""
    names = sorted(number_by_name)
    place = np.empty(len(names), dtype=np.int32)
    place[[number_by_name[name] for name in names]] = np.arange(len(names))
    return names, place


def _only_used(names: list[str], place_E: np.ndarray) -> tuple[list[str], np.ndarray]:
    """Without the names that only superseded records had; places among those that are left, int32."""
    used, place_E = np.unique(place_E, return_inverse=True)
    return [names[place] for place in used], place_E.astype(np.int32)


def _last_of_each(pmid_A: np.ndarray) -> np.ndarray:
    """Where each PMID stands for the last time, ascending by PMID."""
    order = np.argsort(pmid_A, kind="stable")
    is_last = np.append(np.diff(pmid_A[order]) != 0, True)[: len(order)]
    return order[is_last]


def _some(texts: list[Ragged], names: list[str]) -> Iterator[str]:
    """A part of the texts, and all terms."""
    yield from names
    for ragged in texts:
        column = ragged.to_arrow()
        step = max(1, len(column) // WORDS_FROM_ARTICLES)
        chosen = np.arange(0, len(column), step)
        for start in range(0, len(chosen), 10_000):
            yield from _decoded(column.take(pa.array(chosen[start : start + 10_000])))


def _decoded(column: Iterable[Any]) -> Iterator[str]:
    return (value.as_py().decode() for value in column)
