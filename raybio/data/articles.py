"""From article records as they were read to the rows of a store of articles, in bounded memory.

Texts go through a spool on disk; in memory stay PMIDs, lengths and term numbers.

Shape letters: A articles in reading order, N rows of the store, E (article, term) entries, T terms.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from raybio.config import Config
from raybio.data.article_store import FIELDS, ArticleStore, commit_articles
from raybio.data.assemble import Spool
from raybio.data.residues import Ragged
from raybio.data.store_writer import Draft
from raybio.errors import DataError
from raybio.functional.hashing import derive_seed, hash_uniform
from raybio.graphs.rows import expand

ARTICLE_COLUMNS = ("pmid", "year", "title", "abstract", "mesh")
"""What is read of a record batch: int64, int16, string, string, list of struct with ``name`` and ``is_major``."""

WORDS_FROM_ARTICLES = 200_000
MOST_WORDS = 50_000
ROWS_PER_BLOCK = 1 << 20


class ArticleConfig(Config):
    """How a store of articles is prepared."""

    validation_share: float = Field(0.05, ge=0, lt=1, description="share of articles kept out of training")
    seed: int = Field(0, ge=0, description="chooses the articles kept out")
    max_bad_share: float = Field(0.1, ge=0, le=1, description="share of bad records that is put up with")


class ArticleCollector:
    """Collects articles; of several records of one PMID the last one counts."""

    def __init__(self, folder: Path) -> None:
        """Keep texts in ``folder`` until they are written into the store."""
        self.folder = folder
        self._spools = {field: Spool(folder / f"{field}.spool") for field in FIELDS}
        self._pmids, self._years = list[np.ndarray](), list[np.ndarray]()
        self._num_terms, self._terms, self._majors = list[np.ndarray](), list[np.ndarray](), list[np.ndarray]()
        self._number_by_term: dict[str, int] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Take records, with the columns of ``ARTICLE_COLUMNS`` at least."""
        self._pmids.append(batch.column("pmid").to_numpy())
        self._years.append(pc.fill_null(batch.column("year"), 0).to_numpy(zero_copy_only=False))
        for field, spool in self._spools.items():
            spool.append(pc.fill_null(batch.column(field), "").cast(pa.large_binary()))
        mesh = batch.column("mesh")
        self._num_terms.append(pc.fill_null(pc.list_value_length(mesh), 0).to_numpy(zero_copy_only=False))
        terms = mesh.flatten()
        encoded = terms.field("name").dictionary_encode()
        numbers = [self._number_by_term.setdefault(name, len(self._number_by_term)) for name in _names(encoded)]
        self._terms.append(np.array(numbers, dtype=np.int32)[np.asarray(encoded.indices)])
        self._majors.append(terms.field("is_major").to_numpy(zero_copy_only=False).astype(bool))

    def commit(self, draft: Draft, config: ArticleConfig, provenance: dict[str, Any]) -> ArticleStore:
        """Sort by PMID, number the terms by name, and write the store.

        Raises:
            DataError: if there is no article, or none has a term.
        """
        pmid_A = np.concatenate([np.empty(0, np.int64), *self._pmids])
        article_N = _last_of_each(pmid_A)
        if not len(article_N):
            raise DataError("no article was read, want at least one with a title or an abstract")
        names, term_indptr_N1, term_E, is_major_E = self._entries(article_N)
        pmid_N = pmid_A[article_N]
        provenance = {**provenance, "replaced_records": len(pmid_A) - len(pmid_N)}
        texts = {
            field: spool.in_order(article_N, self.folder / f"{field}.texts") for field, spool in self._spools.items()
        }
        return commit_articles(
            draft,
            pmid_N=pmid_N,
            year_N=np.concatenate(self._years)[article_N],
            is_validation_N=is_validation(pmid_N, config),
            **texts,
            term_names=names,
            term_indptr_N1=term_indptr_N1,
            term_E=term_E,
            is_major_E=is_major_E,
            count_by_word=_count_words([*texts.values()], names),
            provenance=provenance,
        )

    def _entries(self, article_N: np.ndarray) -> tuple[list[str], np.ndarray, np.ndarray, np.ndarray]:
        """Names of the terms that occur, and the entries of the rows, each term once a row."""
        num_A = np.concatenate(self._num_terms).astype(np.int64)
        first_A = np.cumsum(num_A) - num_A
        term_A = np.concatenate([np.empty(0, np.int32), *self._terms])
        is_major_A = np.concatenate([np.empty(0, bool), *self._majors])
        names = sorted(self._number_by_term)
        rank = np.empty(len(names), dtype=np.int64)
        rank[[self._number_by_term[name] for name in names]] = np.arange(len(names))
        keys, majors = [np.empty(0, np.int64)], [np.empty(0, bool)]
        for start in range(0, len(article_N), ROWS_PER_BLOCK):
            block_R = article_N[start : start + ROWS_PER_BLOCK]
            position, owner = expand(first_A[block_R], num_A[block_R])
            key, inverse = np.unique((start + owner) * len(names) + rank[term_A[position]], return_inverse=True)
            keys.append(key)
            majors.append(np.bincount(inverse, weights=is_major_A[position], minlength=len(key)) > 0)
        row_E, term_E = np.divmod(np.concatenate(keys), max(len(names), 1))
        if not len(term_E):
            raise DataError("no article has a MeSH term, want some: there is nothing to pair texts with")
        # Terms that only superseded records had are gone.
        used, term_E = np.unique(term_E, return_inverse=True)
        indptr_N1 = np.concatenate([[0], np.cumsum(np.bincount(row_E, minlength=len(article_N)))])
        return [names[term] for term in used], indptr_N1, term_E, np.concatenate(majors)


def is_validation(pmid_N: np.ndarray, config: ArticleConfig) -> np.ndarray:
    """Whether each article is kept out of training: by its PMID alone, so that a corpus that grows keeps its split."""
    return hash_uniform(derive_seed(config.seed, "validation"), pmid_N) < config.validation_share


def _names(encoded: pa.DictionaryArray) -> list[str]:
    return [str(name) for name in encoded.dictionary.to_pylist()]


def _last_of_each(pmid_A: np.ndarray) -> np.ndarray:
    """Where each PMID stands for the last time, ascending by PMID."""
    order = np.argsort(pmid_A, kind="stable")
    is_last = np.append(np.diff(pmid_A[order]) != 0, True)[: len(order)]
    return order[is_last]


def _count_words(texts: list[Ragged], names: list[str]) -> dict[str, int]:
    """The commonest lower-case words of a part of the texts and of all terms, most frequent first."""
    counts: Counter[str] = Counter()
    for text in _some(texts, names):
        counts.update(re.findall(r"[^\W_]+", text.lower()))
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return dict(ordered[:MOST_WORDS])


def _some(texts: list[Ragged], names: list[str]) -> Iterator[str]:
    yield from names
    for ragged in texts:
        column = ragged.to_arrow()
        step = max(1, len(column) // WORDS_FROM_ARTICLES)
        chosen = np.arange(0, len(column), step)
        for start in range(0, len(chosen), 10_000):
            yield from _decoded(column.take(pa.array(chosen[start : start + 10_000])))


def _decoded(column: Iterable[Any]) -> Iterator[str]:
    return (value.as_py().decode() for value in column)
