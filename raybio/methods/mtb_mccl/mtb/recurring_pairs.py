"""Pairs of entities that recur in a corpus: what "matching the blanks" takes for positives (Zhou et al., 2023, App. A).

Shape letters: E entities of a block of documents, V distinct entities of the corpus, O occurrences of pairs, U distinct
pairs, K those that are kept.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from raybio.core.config import fingerprint
from raybio.core.errors import DataError, StoreError
from raybio.methods.mtb_mccl.documents.store import DocumentStore
from raybio.methods.mtb_mccl.mtb.config import PairCountConfig

OCCURRENCES_AT_ONCE = 1 << 26


BLOCK_OCCURRENCES = 1 << 22
"""Pairs of a block of documents; each takes some 33 bytes while they are made."""


@dataclass(frozen=True)
class RecurringPairs:
    """The kept pairs, the greatest mutual information first.

    Attributes:
        key_K2: numbers of the two entities, as in ``DocumentStore.entity_keys``, the smaller first.
        count_K: documents with both.
        score_K: count / (documents with the first x documents with the second), which ranks as PMI does.
        indptr_K1: bounds of each pair's documents.
        row_O: those, ascending.
    """

    key_K2: np.ndarray
    count_K: np.ndarray
    score_K: np.ndarray
    indptr_K1: np.ndarray
    row_O: np.ndarray

    def __len__(self) -> int:
        """K."""
        return len(self.count_K)

    def documents(self, pair: int) -> np.ndarray:
        """Rows of the documents with a pair, ascending."""
        return self.row_O[self.indptr_K1[pair] : self.indptr_K1[pair + 1]]


@dataclass(frozen=True)
class PairCount:
    """Counting the pairs of one part of all pairs; parts are independent, whoever counts them wherever.

    Attributes:
        store: the corpus.
        min_documents: rarer pairs are left out.
        num_parts: into how many parts the pairs are divided.
    """

    store: DocumentStore
    min_documents: int
    num_parts: int

    def __call__(self, part: int) -> tuple[np.ndarray, np.ndarray]:
        """(pair (U,), documents with it (U,)), int64, ascending; a pair is first x V + second."""
        # A pair is rarer than the rarer of its entities.
        is_common_V = documents_with(self.store) >= self.min_documents
        nothing = np.zeros(0, dtype=np.int64)
        blocks = (
            pair_O[pair_O % self.num_parts == part]
            for pair_O in pair_blocks(self.store, is_common_V)
        )
        pair_U, count_U = np.unique(np.concatenate([nothing, *blocks]), return_counts=True)
        often = count_U >= self.min_documents
        return pair_U[often], count_U[often]


CountParts = Callable[[PairCount], Sequence[tuple[np.ndarray, np.ndarray]]]
"""Counts all parts, in their order."""


def count_in_process(count: PairCount) -> list[tuple[np.ndarray, np.ndarray]]:
    """One part after the other, in this process."""
    return [count(part) for part in range(count.num_parts)]


def recurring_pairs(
    store: DocumentStore, config: PairCountConfig, count_parts: CountParts = count_in_process
) -> RecurringPairs:
    """The pairs of entities of training documents that are kept; those that ``save_recurring_pairs`` left there, if it did.

    Exact, and in memory that is bounded by the corpus' distinct entities and frequent pairs, not by the occurrences of
    pairs: those are counted in as many parts as keep a part below ``OCCURRENCES_AT_ONCE``.

    Raises:
        DataError: if no pair occurs in enough documents.
        StoreError: if what ``save_recurring_pairs`` left is damaged.
    """
    if (saved := _place(store, config)).is_file():
        return _load(saved)
    num_documents_V = documents_with(store)
    num_occurrences = sum(
        len(pair_O) for pair_O in pair_blocks(store, num_documents_V >= config.min_documents)
    )
    num_parts = max(-(-num_occurrences // OCCURRENCES_AT_ONCE), 1)
    parts = count_parts(PairCount(store, config.min_documents, num_parts))
    pair_U, count_U = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    if not len(pair_U):
        raise DataError(
            f"{store.path}: no two entities that may be related occur together in {config.min_documents} of "
            f"{len(store.split_rows('train')):,} documents; want some that do. Lower pairs.min_documents, or give more "
            "documents"
        )
    first_U, second_U = np.divmod(pair_U, len(num_documents_V))
    score_U = count_U / (num_documents_V[first_U].astype(np.float64) * num_documents_V[second_U])
    best_K = np.lexsort((pair_U, -count_U, -score_U))[: config.num_pairs]
    key_K2 = np.stack([first_U[best_K], second_U[best_K]], 1)
    rows = [_documents_with_both(store, *pair) for pair in key_K2.tolist()]
    indptr_K1 = np.concatenate([[0], np.cumsum([len(row_O) for row_O in rows])])
    return RecurringPairs(key_K2, count_U[best_K], score_U[best_K], indptr_K1, np.concatenate(rows))


def save_recurring_pairs(
    store: DocumentStore, config: PairCountConfig, count_parts: CountParts
) -> RecurringPairs:
    """Count, and leave the kept pairs in the store's folder for every later run with these settings.

    Raises:
        DataError: as ``recurring_pairs``.
        StoreError: if they cannot be written.
    """
    place = _place(store, config)
    place.unlink(missing_ok=True)
    pairs = recurring_pairs(store, config, count_parts)
    temporary = place.with_name(f".{place.name}")
    try:
        with open(temporary, "wb") as file:
            np.savez(file, **asdict(pairs))
        temporary.replace(place)
    except OSError as error:
        raise StoreError(
            f"{place} cannot be written ({error}); the store's folder must be writable"
        ) from None
    return pairs


def documents_with(store: DocumentStore) -> np.ndarray:
    """In how many training documents each entity occurs; int64 (V,)."""
    count_V = np.zeros(len(store.entity_keys), dtype=np.int64)
    for first, stop in _blocks(store):
        row_E, _, key_E = store.entities(first, stop)
        # Two entities of a DocRED document may have one name.
        once_E = np.unique(row_E * len(count_V) + key_E)
        count_V += np.bincount(once_E % len(count_V), minlength=len(count_V))
    return count_V


def pair_blocks(store: DocumentStore, is_kept_V: np.ndarray) -> Iterator[np.ndarray]:
    """The candidate pairs of kept entities of training documents, each once a document: int64 (O,) a block."""
    num_keys = len(is_kept_V)
    is_related_TT = store.is_candidate_TT | store.is_candidate_TT.T
    for first, stop in _blocks(store):
        row_E, type_E, key_E = store.entities(first, stop)
        once_E, place_E = np.unique(row_E * num_keys + key_E, return_index=True)
        kept = is_kept_V[once_E % num_keys]
        row_E, key_E = np.divmod(once_E[kept], num_keys)
        type_E = type_E[place_E[kept]]
        # Every entity with those after it in its document.
        num_later_E = np.searchsorted(row_E, row_E, side="right") - np.arange(len(row_E)) - 1
        one_O = np.repeat(np.arange(len(row_E)), num_later_E)
        start_E = np.cumsum(num_later_E) - num_later_E
        other_O = one_O + 1 + np.arange(len(one_O)) - start_E[one_O]
        is_candidate_O = is_related_TT[type_E[one_O], type_E[other_O]]
        yield (key_E[one_O] * num_keys + key_E[other_O])[is_candidate_O]


def _blocks(store: DocumentStore) -> list[tuple[int, int]]:
    """(first, stop) of training documents that have so many pairs together, or one more: full texts have thousands."""
    num_rows = len(store.split_rows("train"))
    size_N: np.ndarray = np.diff(store.entity_indptr_N1[: num_rows + 1].astype(np.int64))
    block_N = np.cumsum(size_N * (size_N + 1) // 2) // BLOCK_OCCURRENCES
    bounds = np.concatenate([[0], np.flatnonzero(np.diff(block_N)) + 1, [num_rows]]).tolist()
    return [(first, stop) for first, stop in pairwise(bounds) if stop > first]


def _documents_with_both(store: DocumentStore, one: int, other: int) -> np.ndarray:
    with_one, with_other = (store.documents_of(key).astype(np.int64) for key in (one, other))
    row_O = np.intersect1d(with_one, with_other, assume_unique=True)
    return row_O[row_O < len(store.split_rows("train"))]


def _place(store: DocumentStore, config: PairCountConfig) -> Path:
    settings = PairCountConfig(min_documents=config.min_documents, num_pairs=config.num_pairs)
    return store.path / f"recurring_pairs-{fingerprint(settings)}.npz"


def _load(path: Path) -> RecurringPairs:
    try:
        with open(path, "rb") as file, np.load(file) as saved:
            return RecurringPairs(**saved)
    except (OSError, ValueError, TypeError, BadZipFile) as error:
        raise StoreError(
            f"{path} cannot be read ({error}); delete it, or count again with `jobs/prepare.py recurring-pairs`"
        ) from None
