"""Collector of article records: from record batches to the rows of a store, in bounded memory.

Texts are spooled to disk. PMIDs, lengths and term numbers stay in memory.

Shape letters: A articles in reading order, N rows of the store, E (article, term) entries, T terms,
Q sets of qualifiers, R rows of a block.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raybio.core.errors import DataError
from raybio.core.randomness import derive_seed, hash_uniform
from raybio.methods.biostransformers.config import FIELDS, ArticleConfig
from raybio.methods.biostransformers.store import ArticleStore, commit_articles
from raybio.ops.segments import expand, indptr_from_lengths
from raybio.store.ragged import Ragged, Spool
from raybio.store.text_keys import text_keys
from raybio.store.word_counts import count_words
from raybio.store.writer import Draft

ARTICLE_COLUMNS = ("pmid", "year", *FIELDS, "mesh")
"""Columns that the collector reads of a record batch in ``ARTICLE_SCHEMA``."""

MAX_COUNTED_ARTICLES = 200_000
"""Words are counted in about this many titles and abstracts, evenly spaced."""

ROWS_PER_BLOCK = 1 << 20
TEXTS_PER_BLOCK = 10_000


class ArticleCollector:
    """Collects articles. Of several records of one PMID the last one counts.

    Use it as a context manager, which closes its files.
    """

    def __init__(self, folder: Path) -> None:
        """Keep texts in ``folder`` until they are written into the store."""
        self.folder = folder
        self._spools = {field: Spool(folder / f"{field}.spool") for field in FIELDS}
        self._pmids: list[np.ndarray] = []
        self._years: list[np.ndarray] = []
        self._num_terms: list[np.ndarray] = []
        self._terms: list[np.ndarray] = []
        self._majors: list[np.ndarray] = []
        self._qualifiers: list[np.ndarray] = []
        self._number_by_term: dict[str, int] = {}
        self._number_by_qualifiers: dict[str, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for spool in self._spools.values():
            spool.__exit__(*error)

    def add(self, batch: pa.RecordBatch) -> None:
        """Add records, which have at least the columns of ``ARTICLE_COLUMNS``."""
        self._pmids.append(batch.column("pmid").to_numpy())
        self._years.append(pc.fill_null(batch.column("year"), 0).to_numpy(zero_copy_only=False))
        for field, spool in self._spools.items():
            spool.append(pc.fill_null(batch.column(field), "").cast(pa.large_binary()))
        mesh = batch.column("mesh")
        num_terms = pc.fill_null(pc.list_value_length(mesh), 0)
        self._num_terms.append(num_terms.to_numpy(zero_copy_only=False))
        terms = mesh.flatten()
        self._terms.append(_numbers(terms.field("name"), self._number_by_term))
        qualifiers = _joined_qualifiers(terms.field("qualifiers"))
        self._qualifiers.append(_numbers(qualifiers, self._number_by_qualifiers))
        self._majors.append(terms.field("is_major").to_numpy(zero_copy_only=False).astype(bool))

    def commit(
        self, draft: Draft, config: ArticleConfig, provenance: dict[str, Any]
    ) -> ArticleStore:
        """Sort by PMID, number the terms by name, write the store, and return it open.

        Raises:
            DataError: if there is no article, or none has a term.
            StoreError: if the store cannot be written.
        """
        pmid_A = np.concatenate([np.empty(0, np.int64), *self._pmids])
        article_N = _last_occurrences(pmid_A)
        if not len(article_N):
            raise DataError("no article was read, want at least one with a title or an abstract")
        entries = self._entries(article_N)
        pmid_N = pmid_A[article_N]
        texts: dict[str, Any] = {
            field: spool.in_order(article_N, self.folder / f"{field}.texts")
            for field, spool in self._spools.items()
        }
        is_validation_N = is_validation(pmid_N, config)
        provenance = {
            **provenance,
            "replaced_records": len(pmid_A) - len(pmid_N),
            "leakage": _leakage(texts["title"], is_validation_N),
        }
        counted = _counted_texts([texts["title"], texts["abstract"]], entries["term_names"])
        return commit_articles(
            draft,
            pmid_N=pmid_N,
            year_N=np.concatenate(self._years)[article_N],
            is_validation_N=is_validation_N,
            **texts,
            **entries,
            count_by_word=count_words(counted),
            provenance=provenance,
        )

    def _entries(self, article_N: np.ndarray) -> dict[str, Any]:
        """Return occurring terms and entries of the rows, as ``commit_articles`` takes them.

        A row has each of its terms once. If a record repeats a term, the qualifiers of the first
        occurrence count.
        """
        num_A = np.concatenate(self._num_terms).astype(np.int64)
        first_A = np.cumsum(num_A) - num_A
        names, rank_T = _ranks(self._number_by_term)
        qualifier_sets, rank_Q = _ranks(self._number_by_qualifiers)
        term_E = np.concatenate([np.empty(0, np.int32), *self._terms])
        qualifiers_E = np.concatenate([np.empty(0, np.int32), *self._qualifiers])
        is_major_E = np.concatenate([np.empty(0, bool), *self._majors])
        key_blocks = [np.empty(0, np.int64)]
        major_blocks = [np.empty(0, bool)]
        qualifier_blocks = [np.empty(0, np.int32)]
        for start in range(0, len(article_N), ROWS_PER_BLOCK):
            block_R = article_N[start : start + ROWS_PER_BLOCK]
            position, owner = expand(first_A[block_R], num_A[block_R])
            key = (start + owner) * len(names) + rank_T[term_E[position]]
            key, first, inverse = np.unique(key, return_index=True, return_inverse=True)
            num_major = np.bincount(inverse, weights=is_major_E[position], minlength=len(key))
            key_blocks.append(key)
            major_blocks.append(num_major > 0)
            qualifier_blocks.append(rank_Q[qualifiers_E[position[first]]])
        row_E, rank_E = np.divmod(np.concatenate(key_blocks), max(len(names), 1))
        if not len(rank_E):
            raise DataError(
                "no article has a MeSH term, want some: there is nothing to pair texts with"
            )
        used_names, used_term_E = _drop_unused(names, rank_E)
        used_sets, used_set_E = _drop_unused(qualifier_sets, np.concatenate(qualifier_blocks))
        return {
            "term_names": used_names,
            "term_indptr_N1": indptr_from_lengths(np.bincount(row_E, minlength=len(article_N))),
            "term_E": used_term_E,
            "is_major_E": np.concatenate(major_blocks),
            "qualifiers_E": pa.DictionaryArray.from_arrays(
                pa.array(used_set_E), pa.array(used_sets)
            ),
        }


def is_validation(pmid_N: np.ndarray, config: ArticleConfig) -> np.ndarray:
    """Return whether each article is kept out of training, bool (N,).

    It depends on seed and PMID only, so that a growing corpus keeps its split.
    """
    return hash_uniform(derive_seed(config.seed, "validation"), pmid_N) < config.validation_share


def _leakage(title: Ragged, is_validation_N: np.ndarray) -> dict[str, int]:
    """Count the validation articles whose title a training article has, too."""
    key_N = text_keys(text.as_py().decode() for text in title.to_arrow())
    validation = key_N[is_validation_N & (key_N != 0)]
    is_known = np.isin(validation, key_N[~is_validation_N])
    return {"validation_titles_in_training": int(is_known.sum())}


def _numbers(names: pa.Array, number_by_name: dict[str, int]) -> np.ndarray:
    """Return the number of each name, int32. New names get the next numbers."""
    encoded = names.dictionary_encode()
    numbers = [
        number_by_name.setdefault(name, len(number_by_name))
        for name in encoded.dictionary.to_pylist()
    ]
    return np.array(numbers, dtype=np.int32)[np.asarray(encoded.indices)]


def _joined_qualifiers(qualifiers: pa.Array) -> pa.Array:
    """Return lists of qualifiers as texts, in PubMed's notation."""
    flat = qualifiers.flatten()
    name = flat.field("name")
    marked = pc.if_else(flat.field("is_major"), pc.binary_join_element_wise("*", name, ""), name)
    bounds = indptr_from_lengths(np.asarray(pc.list_value_length(qualifiers)))
    return pc.binary_join(pa.ListArray.from_arrays(pa.array(bounds, pa.int32()), marked), "/")


def _ranks(number_by_name: dict[str, int]) -> tuple[list[str], np.ndarray]:
    """Return the names, ascending, and the rank of each number among them, int32."""
    names = sorted(number_by_name)
    rank = np.empty(len(names), dtype=np.int32)
    rank[[number_by_name[name] for name in names]] = np.arange(len(names))
    return names, rank


def _drop_unused(names: list[str], rank_E: np.ndarray) -> tuple[list[str], np.ndarray]:
    """Drop names that only replaced records had; return names and new ranks, int32."""
    used, rank_E = np.unique(rank_E, return_inverse=True)
    return [names[rank] for rank in used], rank_E.astype(np.int32)


def _last_occurrences(pmid_A: np.ndarray) -> np.ndarray:
    """Return the index of each PMID's last occurrence, ascending by PMID."""
    order = np.argsort(pmid_A, kind="stable")
    is_last = np.append(np.diff(pmid_A[order]) != 0, True)[: len(order)]
    return order[is_last]


def _counted_texts(texts: list[Ragged], names: list[str]) -> Iterator[str]:
    """Yield all terms, and evenly spaced texts."""
    yield from names
    for ragged in texts:
        column = ragged.to_arrow()
        chosen = np.arange(0, len(column), max(1, len(column) // MAX_COUNTED_ARTICLES))
        for start in range(0, len(chosen), TEXTS_PER_BLOCK):
            block = column.take(pa.array(chosen[start : start + TEXTS_PER_BLOCK]))
            yield from (text.as_py().decode() for text in block)
