"""Pairs of entities that recur in a corpus: what "matching the blanks" takes for positives (Zhou et al., 2023, App. A).

Shape letters: N documents, E entities of one, U distinct pairs of the corpus, K those that are kept, O occurrences.
"""

from dataclasses import dataclass

import numpy as np
from pydantic import Field

from raybio.config import Config
from raybio.data.document_store import DocumentStore
from raybio.errors import DataError

DOCUMENTS_AT_ONCE = 4096


class EntityPairConfig(Config):
    """Which pairs of entities are taken for positives."""

    min_documents: int = Field(
        16, ge=2, description="documents that a pair occurs in, at least; 16 for BioRED, 3 for DocRED in the paper"
    )
    num_pairs: int = Field(5000, ge=2, description="of those, the pairs with the greatest mutual information")
    held_out_share: float = Field(
        0.05, ge=0, lt=1, description="of those, pairs that are never compared in training and asked for in evaluations"
    )


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


def recurring_pairs(store: DocumentStore, rows: np.ndarray, config: EntityPairConfig) -> RecurringPairs:
    """The pairs of entities of documents ``rows`` that are kept.

    Exact, and in memory that is bounded by the corpus' distinct entities and kept pairs, not by its pairs: those are
    counted in as many passes as keep a pass' occurrences below ``OCCURRENCES_AT_ONCE``.

    Raises:
        DataError: if no pair occurs in enough documents.
    """
    num_keys = len(store.entity_keys)
    count_V, num_occurrences = np.zeros(num_keys, dtype=np.int64), 0
    for row in rows.tolist():
        count_V[np.unique(store.keys(row))] += 1
        num_occurrences += len(store.candidates(row)[0])
    num_passes = max(-(-num_occurrences // OCCURRENCES_AT_ONCE), 1)
    # A pair is rarer than the rarer of its entities.
    is_common_V = count_V >= config.min_documents
    kept = [_count(store, rows, is_common_V, (number, num_passes), config) for number in range(num_passes)]
    pair_U, count_U = (np.concatenate(parts) for parts in zip(*kept, strict=True))
    if not len(pair_U):
        raise DataError(
            f"{store.path}: no two entities that may be related occur together in {config.min_documents} of "
            f"{len(rows):,} documents; want some that do. Lower pairs.min_documents, or give more documents"
        )
    first_U, second_U = np.divmod(pair_U, num_keys)
    score_U = count_U / (count_V[first_U].astype(np.float64) * count_V[second_U])
    best = np.lexsort((pair_U, -count_U, -score_U))[: config.num_pairs]
    return _with_documents(store, rows, pair_U[best], count_U[best], score_U[best])


OCCURRENCES_AT_ONCE = 1 << 26


def _pairs(store: DocumentStore, row: int, is_kept_V: np.ndarray) -> np.ndarray:
    """Numbers of a document's pairs of kept entities, each once."""
    key_E = store.keys(row).astype(np.int64)
    head_P, tail_P = (key_E[side] for side in store.candidates(row))
    both = is_kept_V[head_P] & is_kept_V[tail_P]
    head_P, tail_P = head_P[both], tail_P[both]
    return np.unique(np.minimum(head_P, tail_P) * len(is_kept_V) + np.maximum(head_P, tail_P))


def _count(
    store: DocumentStore, rows: np.ndarray, is_common_V: np.ndarray, part: tuple[int, int], config: EntityPairConfig
) -> tuple[np.ndarray, np.ndarray]:
    """The pairs of one part of all pairs that occur often enough, and in how many documents."""
    number, num_parts = part
    found = [np.zeros(0, dtype=np.int64)]
    for row in rows.tolist():
        pair_O = _pairs(store, row, is_common_V)
        found.append(pair_O if num_parts == 1 else pair_O[pair_O % num_parts == number])
    pair_U, count_U = np.unique(np.concatenate(found), return_counts=True)
    often = count_U >= config.min_documents
    return pair_U[often], count_U[often]


def _with_documents(
    store: DocumentStore, rows: np.ndarray, pair_K: np.ndarray, count_K: np.ndarray, score_K: np.ndarray
) -> RecurringPairs:
    num_keys = len(store.entity_keys)
    order = np.argsort(pair_K)
    sorted_K = pair_K[order]
    is_kept_V = np.zeros(num_keys, dtype=bool)
    is_kept_V[np.concatenate(np.divmod(pair_K, num_keys))] = True
    places, documents = [], []
    for row in rows.tolist():
        pair_O = _pairs(store, row, is_kept_V)
        place_O = np.minimum(np.searchsorted(sorted_K, pair_O), len(sorted_K) - 1)
        here = order[place_O[sorted_K[place_O] == pair_O]]
        places.append(here)
        documents.append(np.full(len(here), row))
    place_O, row_O = np.concatenate(places), np.concatenate(documents)
    by_pair = np.argsort(place_O, kind="stable")
    return RecurringPairs(
        key_K2=np.stack(np.divmod(pair_K, num_keys), 1),
        count_K=count_K,
        score_K=score_K,
        indptr_K1=np.concatenate([[0], np.cumsum(np.bincount(place_O, minlength=len(pair_K)))]).astype(np.int64),
        row_O=row_O[by_pair].astype(np.int64),
    )
