"""Entity pairs that recur in a corpus: the positives of MTB (Zhou et al., 2023, Appendix A).

Of the pairs that occur together in at least ``min_documents`` documents, the ``num_pairs`` with the
highest N(e1, e2) / (N(e1) N(e2)) are kept, which ranks as pointwise mutual information does. N
counts documents.

Shape letters: E entities of a block of documents, V distinct entities of the corpus, O occurrences
of pairs, U distinct pairs, K kept pairs.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from raybio.core.arrays import distinct, read_npz
from raybio.core.config import fingerprint
from raybio.core.errors import DataError, StoreError, one_line
from raybio.core.files import replacing
from raybio.core.location import BucketPath
from raybio.methods.mtb_mccl.documents.store import DocumentStore
from raybio.methods.mtb_mccl.mtb.config import PairCountConfig
from raybio.ops.segments import indptr_from_lengths
from raybio.store.bucket import BucketFolder
from raybio.store.remote_sources import fetch_input_file

OCCURRENCES_AT_ONCE = 1 << 26


BLOCK_OCCURRENCES = 1 << 22
"""Pairs of a block of documents; each takes about 33 bytes while they are built."""


@dataclass(frozen=True)
class RecurringPairs:
    """The kept pairs, by descending mutual information.

    Attributes:
        key_K2: the two entities, as indices of ``DocumentStore.entity_keys``, the smaller first.
        count_K: number of documents with both.
        indptr_K1: CSR pointers to each pair's documents.
        row_O: these documents, ascending per pair.
    """

    key_K2: np.ndarray
    count_K: np.ndarray
    indptr_K1: np.ndarray
    row_O: np.ndarray

    def __len__(self) -> int:
        """Return K."""
        return len(self.count_K)

    def documents(self, pair: int) -> np.ndarray:
        """Return the documents of a pair, ascending."""
        return self.row_O[self.indptr_K1[pair] : self.indptr_K1[pair + 1]]


@dataclass(frozen=True)
class PairCount:
    """Counts the documents of all pairs in one of ``num_parts`` parts; parts are independent.

    Attributes:
        store: the corpus.
        is_common_V: whether an entity is in at least ``min_documents`` documents; a pair is in no
            more documents than its rarer entity.
        min_documents: rarer pairs are skipped.
        num_parts: number of parts that the pairs are divided into.
    """

    store: DocumentStore
    is_common_V: np.ndarray
    min_documents: int
    num_parts: int

    def __call__(self, part: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (pair (U,), count (U,)), int64, ascending by pair = first * V + second."""
        nothing = np.zeros(0, dtype=np.int64)
        blocks = (
            pair_O[pair_O % self.num_parts == part]
            for pair_O in pair_blocks(self.store, self.is_common_V)
        )
        pair_U, count_U = np.unique(np.concatenate([nothing, *blocks]), return_counts=True)
        is_frequent_U = count_U >= self.min_documents
        return pair_U[is_frequent_U], count_U[is_frequent_U]


CountParts = Callable[[PairCount], Sequence[tuple[np.ndarray, np.ndarray]]]
"""Counts all parts and returns the results in the order of the parts."""


def count_in_process(count: PairCount) -> list[tuple[np.ndarray, np.ndarray]]:
    """Count one part after the other in this process."""
    return [count(part) for part in range(count.num_parts)]


def recurring_pairs(
    store: DocumentStore, config: PairCountConfig, count_parts: CountParts = count_in_process
) -> RecurringPairs:
    """Return the recurring pairs of the training documents, or load what was saved.

    Counts are exact. Memory is bounded by the distinct entities and frequent pairs of the corpus,
    not by the occurrences of pairs: these are counted in enough parts to keep each part below
    ``OCCURRENCES_AT_ONCE``.

    Raises:
        DataError: if no pair occurs in enough documents.
        StoreError: if the file of ``save_recurring_pairs`` is damaged.
    """
    path = _saved_path(store, config)
    if path.is_file():
        return _load(path)
    shared = _shared_path(store, config)
    if shared is not None and BucketFolder(shared.parent).info(shared.name) is not None:
        return _load(fetch_input_file(shared, "recurring pairs"))
    num_documents_V = documents_with(store)
    is_common_V = num_documents_V >= config.min_documents
    num_occurrences = sum(len(pair_O) for pair_O in pair_blocks(store, is_common_V))
    num_parts = max(-(-num_occurrences // OCCURRENCES_AT_ONCE), 1)
    parts = count_parts(PairCount(store, is_common_V, config.min_documents, num_parts))
    pair_U = np.concatenate([pair_P for pair_P, _ in parts])
    count_U = np.concatenate([count_P for _, count_P in parts])
    if not len(pair_U):
        raise DataError(
            f"{store.location}: no candidate pair of entities occurs in {config.min_documents} of "
            f"{len(store.split_rows('train')):,} documents. Lower pairs.min_documents, or prepare "
            "more documents"
        )
    first_U, second_U = np.divmod(pair_U, len(num_documents_V))
    score_U = count_U / (num_documents_V[first_U].astype(np.float64) * num_documents_V[second_U])
    best_K = np.lexsort((pair_U, -count_U, -score_U))[: config.num_pairs]
    key_K2 = np.stack([first_U[best_K], second_U[best_K]], 1)
    num_rows = len(store.split_rows("train"))
    rows = [
        _documents_with_both(store, first, second, num_rows) for first, second in key_K2.tolist()
    ]
    indptr_K1 = indptr_from_lengths([len(row_O) for row_O in rows])
    return RecurringPairs(key_K2, count_U[best_K], indptr_K1, np.concatenate(rows))


def save_recurring_pairs(
    store: DocumentStore, config: PairCountConfig, count_parts: CountParts
) -> RecurringPairs:
    """Count, and save the kept pairs in the store's folder for later runs with these settings.

    For a store in a bucket, they are uploaded next to it, and every node reads them from there.

    Raises:
        DataError: as ``recurring_pairs``.
        StorageError: if they cannot be uploaded.
        StoreError: if they cannot be written.
    """
    path = _saved_path(store, config)
    path.unlink(missing_ok=True)
    shared = _shared_path(store, config)
    if shared is not None:
        # Check this before counting, which takes long.
        BucketFolder(shared.parent, is_patient=False).check_writable("--store")
        BucketFolder(shared.parent).delete(shared.name)
    pairs = recurring_pairs(store, config, count_parts)
    try:
        path.parent.mkdir(exist_ok=True)
        with replacing(path) as file:
            np.savez(file, **asdict(pairs))
    except OSError as error:
        raise StoreError(
            f"{path} cannot be written ({error}); the store's folder must be writable"
        ) from None
    if shared is not None:
        BucketFolder(shared.parent).upload(path, shared.name)
    return pairs


def documents_with(store: DocumentStore) -> np.ndarray:
    """Return the number of training documents that mention each entity, int64 (V,)."""
    count_V = np.zeros(len(store.entity_keys), dtype=np.int64)
    for first, stop in _blocks(store):
        row_E, _, key_E = store.entities(first, stop)
        # Two entities of a DocRED document may share a name and thus a key.
        distinct_E = distinct(row_E * len(count_V) + key_E)
        count_V += np.bincount(distinct_E % len(count_V), minlength=len(count_V))
    return count_V


def pair_blocks(store: DocumentStore, is_kept_V: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the candidate pairs of kept entities, each once per training document, int64 (O,)."""
    num_keys = len(is_kept_V)
    is_related_TT = store.is_candidate_TT | store.is_candidate_TT.T
    for first, stop in _blocks(store):
        row_E, type_E, key_E = store.entities(first, stop)
        distinct_E, index_E = np.unique(row_E * num_keys + key_E, return_index=True)
        is_kept_E = is_kept_V[distinct_E % num_keys]
        row_E, key_E = np.divmod(distinct_E[is_kept_E], num_keys)
        type_E = type_E[index_E[is_kept_E]]
        # Combine every entity with the later ones of its document.
        num_later_E = np.searchsorted(row_E, row_E, side="right") - np.arange(len(row_E)) - 1
        first_O = np.repeat(np.arange(len(row_E)), num_later_E)
        start_E = np.cumsum(num_later_E) - num_later_E
        second_O = first_O + 1 + np.arange(len(first_O)) - start_E[first_O]
        is_candidate_O = is_related_TT[type_E[first_O], type_E[second_O]]
        yield (key_E[first_O] * num_keys + key_E[second_O])[is_candidate_O]


def _blocks(store: DocumentStore) -> list[tuple[int, int]]:
    """Return (first, stop) of blocks of training documents with about ``BLOCK_OCCURRENCES`` pairs.

    One full text may have thousands of entities, so a block may exceed this number by one document.
    """
    num_rows = len(store.split_rows("train"))
    size_N: np.ndarray = np.diff(store.entity_indptr_N1[: num_rows + 1].astype(np.int64))
    block_N = np.cumsum(size_N * (size_N + 1) // 2) // BLOCK_OCCURRENCES
    bounds = np.concatenate([[0], np.flatnonzero(np.diff(block_N)) + 1, [num_rows]]).tolist()
    return [(first, stop) for first, stop in pairwise(bounds) if stop > first]


def _documents_with_both(
    store: DocumentStore, first: int, second: int, num_rows: int
) -> np.ndarray:
    """Return those of the first ``num_rows`` documents that mention both entities."""
    row_O = np.intersect1d(
        store.documents_of(first).astype(np.int64),
        store.documents_of(second).astype(np.int64),
        assume_unique=True,
    )
    return row_O[row_O < num_rows]


def _saved_path(store: DocumentStore, config: PairCountConfig) -> Path:
    settings = PairCountConfig(min_documents=config.min_documents, num_pairs=config.num_pairs)
    return store.derived_path(f"recurring_pairs-{fingerprint(settings)}.npz")


def _shared_path(store: DocumentStore, config: PairCountConfig) -> BucketPath | None:
    """Return where pairs of a store in a bucket are saved for all nodes; None for a local store.

    The manifest does not list the object, so its name contains the store's digest.
    """
    if not isinstance(store.location, BucketPath):
        return None
    name = _saved_path(store, config)
    return store.location / f"{name.stem}-{store.digest[:16]}{name.suffix}"


def _load(path: Path) -> RecurringPairs:
    try:
        with open(path, "rb") as file:
            return RecurringPairs(**read_npz(file))
    except (OSError, ValueError, TypeError) as error:
        raise StoreError(
            f"{path} cannot be read ({one_line(error)}); delete it, or count again with raybio "
            "prepare recurring-pairs"
        ) from None
