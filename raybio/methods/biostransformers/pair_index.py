"""Training pairs by number, without a list of them: rank and select over the mapped store.

The pairs of a field are its articles' entries in the order of the store, except those that are not
allowed. The index keeps the number of pairs before each block of articles; positions inside a block
are computed at look-up. So a process holds a few bytes per block instead of per entry.

Shape letters: N articles, E (article, term) entries of some articles, K blocks of articles, B pairs
that are looked up, R articles, T terms, S terms with too many pairs, C bins.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np
import pyarrow as pa

from raybio.core.randomness import hash_uniform
from raybio.methods.biostransformers.store import (
    ENTRIES,
    INDPTR,
    ROWS,
    ArticleStore,
    text_pointers,
)
from raybio.ops.segments import expand, indptr_from_lengths
from raybio.store.columns import compact_int
from raybio.store.prefetch import release_pages

ARTICLES_PER_BLOCK = 32

ARTICLES_PER_PASS = 1 << 13
"""Articles that are read at once in a pass over the store, a multiple of ARTICLES_PER_BLOCK."""

PAIRS_PER_LOOKUP = 256

RELEASED_BYTES = 1 << 28
"""Pages of larger columns are released from a process after it has looked pairs up."""

MAX_BINS = 256
"""Bins of the histogram that finds a term's pairs of lowest priority."""

MAX_CELLS = 1 << 22
"""Bins of all terms together, 4 bytes each."""


class Columns(NamedTuple):
    """Mapped columns of a store that decide which entries are pairs.

    Attributes:
        indptr_N1: pointers to the entries of each article.
        term_E: term of each entry.
        is_validation_N: whether an article is excluded from training.
        text_N1: pointers to the field's bytes.
        letter_T: bytes of the field's texts.
    """

    indptr_N1: np.ndarray
    term_E: np.ndarray
    is_validation_N: np.ndarray
    text_N1: np.ndarray
    letter_T: np.ndarray

    @classmethod
    def of(cls, column: Callable[[str, str], pa.Array], field: str) -> Self:
        """Read the columns; ``column(file, name)`` returns one of them."""
        text = column(ROWS, field)
        return cls(
            column(INDPTR, "indptr").to_numpy(),
            column(ENTRIES, "term").to_numpy(),
            column(ROWS, "is_validation").to_numpy().view(np.bool_),
            text_pointers(text),
            np.frombuffer(text.buffers()[2] or b"", np.uint8),
        )

    def release(self) -> None:
        """Release the pages that were read, if there are many."""
        if sum(column.nbytes for column in self) > RELEASED_BYTES:
            for column in self:
                release_pages(column)


@dataclass(frozen=True, eq=False)
class Cap:
    """The random choice of a limited number of pairs per term: the pairs of lowest priority.

    Attributes:
        key: chooses the priorities.
        priority_T: highest chosen priority of each term; infinite if all of its pairs are chosen.
        entry_T: last chosen entry among the pairs with exactly this priority.
    """

    key: int
    priority_T: np.ndarray
    entry_T: np.ndarray

    def allows(self, entry_E: np.ndarray, term_E: np.ndarray) -> np.ndarray:
        """Return whether each entry is chosen, bool."""
        priority_E = hash_uniform(self.key, entry_E)
        highest_E = self.priority_T[term_E]
        is_last_E = (priority_E == highest_E) & (entry_E <= self.entry_T[term_E])
        return (priority_E < highest_E) | is_last_E


@dataclass(frozen=True, eq=False)
class PairIndex:
    """The training pairs of one field of a store.

    Attributes:
        store: articles and their terms.
        field: the text that is paired with terms.
        is_stop_T: terms that are never paired; None: there are none.
        cap: choice among the pairs of frequent terms; None: all are taken.
    """

    store: ArticleStore
    field: str
    is_stop_T: np.ndarray | None = None
    cap: Cap | None = None

    def capped(self, max_pairs_per_term: int, key: int) -> "PairIndex":
        """Return the index of at most ``max_pairs_per_term`` pairs a term, drawn by ``key``."""
        return replace(self, cap=_choose(self, max_pairs_per_term, key))

    def __len__(self) -> int:
        """Return the number of pairs."""
        return int(self._first_K1[-1])

    def look_up(self, pair_B: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return article, entry and term of each pair; pair numbers are below ``len``."""
        article_B = np.empty(len(pair_B), np.int64)
        entry_B = np.empty(len(pair_B), np.int64)
        term_B = np.empty(len(pair_B), np.int64)
        for first in range(0, len(pair_B), PAIRS_PER_LOOKUP):
            here = slice(first, first + PAIRS_PER_LOOKUP)
            article_B[here], entry_B[here] = self._look_up(pair_B[here])
            term_B[here] = self.columns.term_E[entry_B[here]]
            self.columns.release()
        return article_B, entry_B, term_B

    def terms_of(self, article_R: np.ndarray) -> list[list[int]]:
        """Return all terms of each article."""
        bounds = self.columns.indptr_N1
        terms = []
        for number, article in enumerate(article_R.tolist(), 1):
            terms.append(self.columns.term_E[bounds[article] : bounds[article + 1]].tolist())
            if number % PAIRS_PER_LOOKUP == 0:
                self.columns.release()
        return terms

    def _look_up(self, pair_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        # With another dtype, numpy would copy the searched array.
        number_B = pair_B.astype(self._first_K1.dtype)
        block_B = np.searchsorted(self._first_K1, number_B, side="right") - 1
        article_R = (block_B[:, None] * ARTICLES_PER_BLOCK + np.arange(ARTICLES_PER_BLOCK)).ravel()
        # The last block may be short. No pair is beyond the last article.
        article_R = np.minimum(article_R, self.store.num_rows - 1)
        if self.is_stop_T is None and self.cap is None:
            return self._look_up_whole(pair_B - self._first_K1[block_B], article_R)
        entry_E, owner_E = self.entries(article_R)
        pair_E = owner_E // ARTICLES_PER_BLOCK
        first_B = np.searchsorted(pair_E, np.arange(len(pair_B)))
        position_B = first_B + pair_B - self._first_K1[block_B]
        return article_R[owner_E[position_B]], entry_E[position_B]

    def _look_up_whole(
        self, offset_B: np.ndarray, article_R: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Look pairs up in their blocks by lengths of articles, if every entry is a pair."""
        shape = (len(offset_B), ARTICLES_PER_BLOCK)
        length_R = self._num_entries(article_R)
        # Pairs up to each article of the block.
        end_BR = np.cumsum(length_R.reshape(shape), axis=1)
        slot_B = (end_BR <= offset_B[:, None]).sum(axis=1)
        position_B = np.arange(len(offset_B)) * ARTICLES_PER_BLOCK + slot_B
        article_B = article_R[position_B]
        before_B = end_BR.ravel()[position_B] - length_R[position_B]
        start_B = self.columns.indptr_N1[article_B].astype(np.int64)
        return article_B, start_B + offset_B - before_B

    def _num_entries(self, article_R: np.ndarray) -> np.ndarray:
        """Return the number of entries of articles, int64: 0 without text or in validation."""
        columns = self.columns
        is_allowed_R = ~columns.is_validation_N[article_R]
        is_allowed_R &= columns.text_N1[article_R + 1] > columns.text_N1[article_R]
        start_R = columns.indptr_N1[article_R].astype(np.int64)
        length_R: np.ndarray = (columns.indptr_N1[article_R + 1] - start_R) * is_allowed_R
        return length_R

    def entries(self, article_R: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the entries of articles that are pairs, and for each the index of its article."""
        start_R = self.columns.indptr_N1[article_R].astype(np.int64)
        entry_E, owner_E = expand(start_R, self._num_entries(article_R))
        if self.is_stop_T is None and self.cap is None:
            return entry_E, owner_E
        term_E = self.columns.term_E[entry_E]
        is_allowed_E = np.ones(len(entry_E), bool)
        if self.is_stop_T is not None:
            is_allowed_E &= ~self.is_stop_T[term_E]
        if self.cap is not None:
            is_allowed_E &= self.cap.allows(entry_E, term_E)
        return entry_E[is_allowed_E], owner_E[is_allowed_E]

    def passes(self) -> Iterator[tuple[int, np.ndarray, np.ndarray, np.ndarray]]:
        """Yield the first article of each block, and entry, owner and term of the block's pairs."""
        for first in range(0, self.store.num_rows, ARTICLES_PER_PASS):
            article_R = np.arange(first, min(first + ARTICLES_PER_PASS, self.store.num_rows))
            entry_E, owner_E = self.entries(article_R)
            yield first, entry_E, owner_E, self.columns.term_E[entry_E]
            self.columns.release()

    @cached_property
    def columns(self) -> Columns:
        """The store's columns, mapped."""
        return Columns.of(self.store.column, self.field)

    @cached_property
    def _first_K1(self) -> np.ndarray:
        """The first pair of each block of articles, and the number of pairs; int32 if they fit."""
        num_blocks = -(-self.store.num_rows // ARTICLES_PER_BLOCK)
        size_K = np.zeros(num_blocks, np.int32)
        for first, _, owner_E, _ in self.passes():
            sizes = np.bincount(owner_E // ARTICLES_PER_BLOCK)
            block = first // ARTICLES_PER_BLOCK
            size_K[block : block + len(sizes)] = sizes
        return compact_int(indptr_from_lengths(size_K))


def _choose(index: PairIndex, max_pairs_per_term: int, key: int) -> Cap | None:
    """Return the exact choice of at most ``max_pairs_per_term`` pairs a term, in three passes.

    A histogram of priorities gives the bin of a term's last pair, and only the pairs of that bin
    are sorted.
    """
    num_terms = len(index.store.term_names)
    num_pairs_T = np.zeros(num_terms, np.int64)
    for _, _, _, term_E in index.passes():
        num_pairs_T += np.bincount(term_E, minlength=num_terms)
    capped_S = np.flatnonzero(num_pairs_T > max_pairs_per_term)
    if not len(capped_S):
        return None
    slot_T = np.full(num_terms, -1)
    slot_T[capped_S] = np.arange(len(capped_S))
    num_bins = max(1, min(MAX_BINS, MAX_CELLS // len(capped_S)))
    num_pairs_SC = np.zeros((len(capped_S), num_bins), np.int32)
    for _, slot_E, bin_E, _ in _priorities(index, slot_T, num_bins, key):
        cell_E = slot_E * num_bins + bin_E
        cell, counts = np.unique(cell_E, return_counts=True)
        num_pairs_SC.ravel()[cell] += counts.astype(np.int32)
    up_to_SC = np.cumsum(num_pairs_SC, axis=1, dtype=np.int32)
    bin_S = np.argmax(up_to_SC >= max_pairs_per_term, axis=1)
    all_S = np.arange(len(capped_S))
    before_S = up_to_SC[all_S, bin_S] - num_pairs_SC[all_S, bin_S]
    del num_pairs_SC, up_to_SC
    slots = []
    priorities = []
    entries = []
    for entry_E, slot_E, bin_E, priority_E in _priorities(index, slot_T, num_bins, key):
        is_near_E = bin_E == bin_S[slot_E]
        slots.append(slot_E[is_near_E])
        priorities.append(priority_E[is_near_E])
        entries.append(entry_E[is_near_E])
    slot_E = np.concatenate(slots)
    priority_E = np.concatenate(priorities)
    entry_E = np.concatenate(entries)
    order = np.lexsort([entry_E, priority_E, slot_E])
    first_S = np.searchsorted(slot_E[order], all_S)
    last_S = order[first_S + max_pairs_per_term - before_S - 1]
    priority_T = np.full(num_terms, np.inf)
    entry_T = np.full(num_terms, -1)
    priority_T[capped_S] = priority_E[last_S]
    entry_T[capped_S] = entry_E[last_S]
    return Cap(key, priority_T, entry_T)


def _priorities(
    index: PairIndex, slot_T: np.ndarray, num_bins: int, key: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """Yield entry, slot of the term, bin and priority of the pairs of terms that have a slot."""
    for _, entry_E, _, term_E in index.passes():
        slot_E = slot_T[term_E]
        entry_E = entry_E[slot_E >= 0]
        priority_E = hash_uniform(key, entry_E)
        bin_E = (priority_E * num_bins).astype(np.int64)
        yield entry_E, slot_E[slot_E >= 0], bin_E, priority_E
