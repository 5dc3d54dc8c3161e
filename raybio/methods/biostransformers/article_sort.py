"""Articles of all parts, sorted by PMID into the files of a store, in bounded memory.

1. The parts are read once, in order. The remaining articles go to buckets on disk, which are ranges
   of PMIDs of about equal bytes (``merge.py``). Terms and qualifiers become numbers.
2. The buckets are read, sorted and appended to the store, one at a time.

Shape letters: R articles of a block or of a bucket, K buckets, E (article, term) entries, T terms,
Q sets of qualifiers.
"""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raybio.core.errors import DataError
from raybio.core.randomness import derive_seed, hash_uniform
from raybio.methods.biostransformers.config import FIELDS, ArticleConfig
from raybio.methods.biostransformers.formats.medline_parts import (
    FileReport,
    read_blocks,
)
from raybio.methods.biostransformers.merge import Merged
from raybio.methods.biostransformers.store import ArticleStore, ArticleWriter, StoreSize
from raybio.ops.segments import indptr_from_lengths
from raybio.store.text_keys import text_keys
from raybio.store.word_counts import WordCounter
from raybio.store.writer import Draft

ARTICLE_COLUMNS = ("pmid", "year", *FIELDS, "mesh")
"""Columns of a part that reach the store."""

BLOCK_BYTES = 16 << 20
"""Bytes of a part that are read at once."""

TEXTS_PER_BLOCK = 10_000

MAX_COUNTED_ARTICLES = 200_000
"""Words are counted in about this many titles and abstracts, evenly spaced."""

KEYS_PER_BLOCK = 1 << 20

BUCKET_SCHEMA = pa.schema(
    [
        ("pmid", pa.int64()),
        ("year", pa.int16()),
        *((field, pa.large_binary()) for field in FIELDS),
        # Term << 32 | set of qualifiers << 1 | whether it is a major topic.
        ("entry", pa.list_(pa.int64())),
    ]
)


def write_articles(
    draft: Draft,
    reports: Sequence[FileReport],
    merged: Merged,
    config: ArticleConfig,
    provenance: dict[str, Any],
) -> ArticleStore:
    """Write the remaining articles of all parts as a store, and return it open.

    Args:
        draft: takes the buckets and the store.
        reports: reports of all files, as ``merge_parts`` was given them.
        merged: result of ``merge_parts``.
        config: settings.
        provenance: the manifest's record of the input.

    Raises:
        DataError: if there is no article, or none has a term.
        StoreError: if a part cannot be read or the store cannot be written.
    """
    if not merged.num_articles:
        raise DataError("no article was read, want at least one with a title or an abstract")
    buckets = _BucketFiles(draft.folder, merged.first_pmid_K)
    for batch in _remaining_articles(reports, merged):
        buckets.add(batch)
    size = StoreSize(merged.num_articles, buckets.num_entries, buckets.num_bytes_by_field)
    if not size.num_entries:
        raise DataError(
            "no article has a MeSH term, want some: there is nothing to pair texts with"
        )
    names, rank_T = buckets.terms.ranks()
    qualifier_sets, rank_Q = buckets.qualifiers.ranks()
    words = WordCounter()
    words.add(names)
    spacing = max(1, merged.num_articles // MAX_COUNTED_ARTICLES)
    first_row = 0
    with (
        _TitleLeakage(draft.folder) as leakage,
        ArticleWriter(draft, size, qualifier_sets) as writer,
    ):
        for bucket in buckets.read():
            pmid_R = bucket.pop("pmid").to_numpy()
            order = np.argsort(pmid_R)
            pmid_R = pmid_R[order]
            is_validation_R = is_validation(pmid_R, config)
            writer.add_rows(pmid_R, bucket.pop("year").to_numpy()[order], is_validation_R)
            counted = np.arange(-first_row % spacing, len(order), spacing)
            for field in FIELDS:
                text = bucket.pop(field).take(pa.array(order))
                writer.add_texts(field, text)
                if field == "title":
                    leakage.add(text, is_validation_R)
                if field in ("title", "abstract"):
                    words.add(_decoded(text.take(pa.array(counted))))
            entry = bucket.pop("entry").take(pa.array(order))
            writer.add_entries(*_sorted_entries(entry, rank_T, rank_Q))
            first_row += len(order)
        provenance = {**provenance, "leakage": leakage.count()}
    return writer.commit(names, words.most_frequent(), provenance)


def is_validation(pmid_N: np.ndarray, config: ArticleConfig) -> np.ndarray:
    """Return whether each article is kept out of training, bool (N,).

    It depends on seed and PMID only, so that a growing corpus keeps its split.
    """
    return hash_uniform(derive_seed(config.seed, "validation"), pmid_N) < config.validation_share


def _remaining_articles(reports: Sequence[FileReport], merged: Merged) -> Iterator[pa.RecordBatch]:
    """Yield the newest revisions from the parts, in the order of files and rows."""
    for number, report in enumerate(reports):
        remains_C = merged.remains(number)
        first = 0
        for block in read_blocks(report.part, ARTICLE_COLUMNS, BLOCK_BYTES):
            remains_R = remains_C[first : first + block.num_rows]
            first += block.num_rows
            yield block if remains_R.all() else block.filter(pa.array(remains_R))


class _Numbers:
    """Numbers of texts, in the order in which they first occur."""

    def __init__(self) -> None:
        self._number_by_text: dict[str, int] = {}

    def of(self, texts: pa.Array) -> np.ndarray:
        """Return the number of each text, int64. New texts get the next numbers."""
        encoded = texts.dictionary_encode()
        numbers = [
            self._number_by_text.setdefault(text, len(self._number_by_text))
            for text in encoded.dictionary.to_pylist()
        ]
        return np.array(numbers, np.int64)[np.asarray(encoded.indices)]

    def ranks(self) -> tuple[list[str], np.ndarray]:
        """Return the texts, ascending, and the rank of each number among them, int32."""
        texts = sorted(self._number_by_text)
        rank = np.empty(len(texts), dtype=np.int32)
        rank[[self._number_by_text[text] for text in texts]] = np.arange(len(texts))
        return texts, rank


class _BucketFiles:
    """Articles on disk by ranges of PMIDs. Only one of the (perhaps thousands of) files is open.

    Attributes:
        terms: numbers of the terms.
        qualifiers: numbers of the sets of qualifiers.
        num_entries: entries of all articles.
        num_bytes_by_field: bytes of all texts of each field.
    """

    def __init__(self, folder: Path, first_pmid_K: np.ndarray) -> None:
        self.terms = _Numbers()
        self.qualifiers = _Numbers()
        self.num_entries = 0
        self.num_bytes_by_field = dict.fromkeys(FIELDS, 0)
        self._first_pmid_K = first_pmid_K
        self._paths = [folder / f"{number}.bucket" for number in range(len(first_pmid_K))]

    def add(self, articles: pa.RecordBatch) -> None:
        """Append articles, which have the columns of ``ARTICLE_COLUMNS``, to their buckets."""
        batch = self._encoded(articles)
        bucket_R = np.searchsorted(self._first_pmid_K, batch["pmid"].to_numpy(), side="right") - 1
        if np.any(bucket_R[1:] < bucket_R[:-1]):
            order = np.argsort(bucket_R, kind="stable")
            bucket_R = bucket_R[order]
            batch = batch.take(pa.array(order))
        numbers, starts, sizes = np.unique(bucket_R, return_index=True, return_counts=True)
        for number, start, size in zip(numbers, starts.tolist(), sizes.tolist(), strict=True):
            with self._paths[number].open("ab") as file:
                file.write(batch.slice(start, size).serialize())

    def read(self) -> Iterator[dict[str, pa.Array]]:
        """Yield the columns of one bucket after the other, and remove its file."""
        for path in self._paths:
            # The columns of a batch share one buffer. Copies of single columns can be freed as soon
            # as they are written. For a moment, this holds the bucket twice.
            batches = []
            with pa.OSFile(str(path)) as file:
                while file.tell() < file.size():
                    batches.append(pa.ipc.read_record_batch(file, BUCKET_SCHEMA))
            path.unlink()
            table = pa.Table.from_batches(batches)
            del batches
            columns = {name: pa.concat_arrays(table[name].chunks) for name in table.column_names}
            del table
            yield columns

    def _encoded(self, articles: pa.RecordBatch) -> pa.RecordBatch:
        """Return articles in ``BUCKET_SCHEMA``."""
        columns = {
            "pmid": articles["pmid"],
            "year": pc.fill_null(articles["year"], 0),
        }
        for field in FIELDS:
            columns[field] = pc.fill_null(articles[field], "").cast(pa.large_binary())
            self.num_bytes_by_field[field] += pc.sum(pc.binary_length(columns[field])).as_py() or 0
        num_terms_R, entry_E = self._entries(articles["mesh"])
        self.num_entries += len(entry_E)
        bounds = indptr_from_lengths(num_terms_R)
        columns["entry"] = pa.ListArray.from_arrays(pa.array(bounds, pa.int32()), entry_E)
        return pa.record_batch(columns, schema=BUCKET_SCHEMA)

    def _entries(self, mesh: pa.Array) -> tuple[np.ndarray, np.ndarray]:
        """Return the number of distinct terms of each article, and the entries.

        If a record repeats a term, the qualifiers of the first occurrence count.
        """
        num_terms = pc.fill_null(pc.list_value_length(mesh), 0)
        num_terms_R = num_terms.to_numpy(zero_copy_only=False).astype(np.int64)
        terms = mesh.flatten()
        is_major_E = terms.field("is_major").to_numpy(zero_copy_only=False).astype(bool)
        qualifiers = terms.field("qualifiers")
        owner_E = np.repeat(np.arange(len(num_terms_R)), num_terms_R)
        key_E = owner_E << 32 | self.terms.of(terms.field("name"))
        ordered_E = np.sort(key_E)
        if np.any(ordered_E[1:] == ordered_E[:-1]):
            key_E, first, inverse = np.unique(key_E, return_index=True, return_inverse=True)
            is_major_E = np.bincount(inverse, weights=is_major_E, minlength=len(key_E)) > 0
            qualifiers = qualifiers.take(pa.array(first))
            num_terms_R = np.bincount(key_E >> 32, minlength=len(num_terms_R))
        qualifiers_E = self.qualifiers.of(_joined_qualifiers(qualifiers))
        return num_terms_R, (key_E & 0xFFFFFFFF) << 32 | qualifiers_E << 1 | is_major_E


class _TitleLeakage:
    """Counts validation articles with the title of a training article; a context manager.

    Keys of training titles are on disk, keys of validation titles in memory.
    """

    def __init__(self, folder: Path) -> None:
        self._training: IO[bytes] = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        self._validation = [np.empty(0, np.uint64)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._training.close()

    def add(self, title: pa.Array, is_validation_R: np.ndarray) -> None:
        """Add titles, large_binary."""
        key_R = text_keys(_decoded(title))
        self._validation.append(key_R[is_validation_R & (key_R != 0)])
        self._training.write(key_R[~is_validation_R].data)

    def count(self) -> dict[str, int]:
        """Return the manifest's section on leakage."""
        key, num_articles = np.unique(np.concatenate(self._validation), return_counts=True)
        is_known = np.zeros(len(key), bool)
        self._training.seek(0)
        while content := self._training.read(KEYS_PER_BLOCK * 8):
            training = np.frombuffer(content, np.uint64)
            position = np.searchsorted(key, training)
            is_inside = position < len(key)
            position = position[is_inside]
            is_known[position[key[position] == training[is_inside]]] = True
        return {"validation_titles_in_training": int(num_articles[is_known].sum())}


def _decoded(texts: pa.Array) -> Iterator[str]:
    """Yield texts of a large_binary array."""
    for start in range(0, len(texts), TEXTS_PER_BLOCK):
        for text in texts.slice(start, TEXTS_PER_BLOCK).to_pylist():
            yield text.decode()


def _joined_qualifiers(qualifiers: pa.Array) -> pa.Array:
    """Return lists of qualifiers as texts, in PubMed's notation."""
    flat = qualifiers.flatten()
    name = flat.field("name")
    marked = pc.if_else(flat.field("is_major"), pc.binary_join_element_wise("*", name, ""), name)
    bounds = indptr_from_lengths(np.asarray(pc.list_value_length(qualifiers)))
    return pc.binary_join(pa.ListArray.from_arrays(pa.array(bounds, pa.int32()), marked), "/")


def _sorted_entries(
    entry: pa.Array, rank_T: np.ndarray, rank_Q: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return number of terms, terms, whether they are major, and qualifiers, for a store."""
    num_terms_R = pc.list_value_length(entry).to_numpy()
    entry_E = entry.flatten().to_numpy()
    owner_E = np.repeat(np.arange(len(num_terms_R)), num_terms_R)
    term_E = rank_T[entry_E >> 32]
    entry_E = entry_E[np.argsort(owner_E * len(rank_T) + term_E)]
    qualifiers_E = rank_Q[(entry_E & 0xFFFFFFFF) >> 1]
    return num_terms_R, rank_T[entry_E >> 32], (entry_E & 1).astype(bool), qualifiers_E
