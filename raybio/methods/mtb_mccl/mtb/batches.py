"""Batches of "matching the blanks": documents that share pairs of entities, with entities blanked at random.

Shape letters: R documents of a shard, E entities, P pairs of one document, T tokens.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from raybio.core.batch import IGNORED_LABEL, shard
from raybio.core.randomness import derive_seed, hash_uniform, keyed_permutation, shuffled_epochs
from raybio.methods.mtb_mccl.documents.collate import DocumentReader, MarkedDocument
from raybio.methods.mtb_mccl.documents.store import DocumentStore
from raybio.methods.mtb_mccl.mtb.config import BlankConfig, CouplePlanConfig, EntityPairConfig
from raybio.methods.mtb_mccl.mtb.recurring_pairs import RecurringPairs, recurring_pairs
from raybio.ops.masking import mask_tokens


@dataclass(frozen=True)
class CouplePlan:
    """Which documents make up each step.

    A couple is a recurring pair of entities, each in its turn, and two of its documents, drawn anew each time.

    Attributes:
        store: the corpus.
        pairs_config: which pairs recur.
        config: how many documents.
        seed: the run's.
    """

    store: DocumentStore
    pairs_config: EntityPairConfig
    config: CouplePlanConfig
    seed: int

    @cached_property
    def recurring(self) -> RecurringPairs:
        """The pairs that couples are drawn from."""
        return recurring_pairs(self.store, self.pairs_config)

    @cached_property
    def held_out(self) -> np.ndarray:
        """Numbers of the recurring pairs that training never compares, ascending."""
        total = len(self.recurring)
        drawn = keyed_permutation(
            np.arange(total), num_rows=total, key=derive_seed(self.seed, "held out")
        )
        return np.sort(drawn[: round(self.pairs_config.held_out_share * total)])

    @cached_property
    def trained(self) -> np.ndarray:
        """Numbers of those that it draws couples from, ascending."""
        return np.setdiff1d(np.arange(len(self.recurring)), self.held_out)

    @property
    def steps_per_epoch(self) -> float:
        """Steps in which every recurring pair is drawn once."""
        return len(self.trained) * 2 / self.config.global_batch_rows

    def rows(self, step: int) -> np.ndarray:
        """The documents of a step, each once; a few less than are asked for where couples overlap."""
        num_couples = self.config.global_batch_rows // 2
        slot = np.arange(step * num_couples, (step + 1) * num_couples)
        pairs, trained = self.recurring, self.trained
        first = step * num_couples
        pair = trained[
            shuffled_epochs(
                first, num_couples, num_rows=len(trained), seed=self.seed, name="couples"
            )
        ]
        start, size = pairs.indptr_K1[pair], pairs.count_K[pair]
        draw = hash_uniform(derive_seed(self.seed, "couple"), slot[:, None], np.arange(2))
        one = (draw[:, 0] * size).astype(np.int64)
        # The other is any but this one.
        other = (one + 1 + (draw[:, 1] * (size - 1)).astype(np.int64)) % size
        rows = np.stack([pairs.row_O[start + one], pairs.row_O[start + other]], 1).ravel()
        return np.array(list(dict.fromkeys(rows.tolist())), dtype=np.int64)


def oriented(store: DocumentStore, row: int) -> tuple[np.ndarray, np.ndarray]:
    """(head, tail) of a document's pairs, each in the same order in all documents, whichever is mentioned first."""
    head_P, tail_P = store.candidates(row)
    key_E, type_E = store.keys(row), store.types(row)
    if store.is_directed:
        return head_P, tail_P
    swap_P = (type_E[head_P] == type_E[tail_P]) & (key_E[head_P] > key_E[tail_P])
    return np.where(swap_P, tail_P, head_P), np.where(swap_P, head_P, tail_P)


class PairQuestions(NamedTuple):
    """Occurrences of pairs of entities, and the documents in which the same pairs are searched for.

    Attributes:
        row_Q: document of each query.
        key_Q2: numbers of its two entities, the smaller first.
        row_S: documents that are searched, ascending; none is one of the queries'.
    """

    row_Q: np.ndarray
    key_Q2: np.ndarray
    row_S: np.ndarray


def pair_questions(pairs: RecurringPairs, number_K: np.ndarray, seed: int) -> PairQuestions:
    """One question each of the pairs ``number_K``; those that have no document on one side are left out.

    Documents are divided at random into those that ask and those that are searched.
    """
    asks = [hash_uniform(seed, pairs.documents(pair)) < 0.5 for pair in number_K.tolist()]
    found = [
        (
            pairs.documents(pair)[is_asking][0],
            pairs.key_K2[pair],
            pairs.documents(pair)[~is_asking][0],
        )
        for pair, is_asking in zip(number_K.tolist(), asks, strict=True)
        if is_asking.any() and not is_asking.all()
    ]
    rows, keys, searched = (
        zip(*found, strict=True) if found else ((), np.zeros((0, 2), dtype=np.int64), ())
    )
    return PairQuestions(
        np.array(rows, dtype=np.int64),
        np.array(keys),
        np.unique(np.array(searched, dtype=np.int64)),
    )


def is_in_sorted(value_P: np.ndarray, sorted_K: np.ndarray) -> np.ndarray:
    """Return which values occur in an ascending array, bool (P,), as ``np.isin`` does, by binary search."""
    if len(sorted_K) == 0:
        return np.zeros(len(value_P), dtype=bool)
    position_P = np.searchsorted(sorted_K, value_P)
    is_found_P: np.ndarray = sorted_K[np.minimum(position_P, len(sorted_K) - 1)] == value_P
    return is_found_P


@dataclass(frozen=True)
class BlankCollate:
    """(step, rank, world) -> the arrays of a ``TwinDocumentBatch``.

    Attributes:
        reader: documents as the encoder reads them.
        plan: which documents.
        config: what is hidden.
        ordinary_ids: tokens that a word to be guessed may be replaced with.
        seed: the run's.
    """

    reader: DocumentReader
    plan: CouplePlan
    config: BlankConfig
    ordinary_ids: np.ndarray
    seed: int

    def __call__(self, step: int, rank: int, world: int) -> Mapping[str, np.ndarray]:
        """The arrays of worker ``rank``'s shard of ``step``."""
        rows = shard(self.plan.rows(step), rank, world).tolist()
        marked = [self.reader.marked(row, self._is_blank(step, row)) for row in rows]
        pairs = [self._pairs(step, row) for row in rows]
        arrays = self.reader.arrays(rows * 2, marked * 2, pairs * 2)
        names = [self._names(row, *pair) for row, pair in zip(rows, pairs, strict=True)]
        masked = [self._masked(step, row, one) for row, one in zip(rows, marked, strict=True)]
        token_T = [token for token, _ in masked]
        # Both readings have the same words hidden; they are guessed in the first.
        unasked = [np.full(len(token), IGNORED_LABEL) for token in token_T]
        nothing = np.zeros(0, dtype=np.int64)
        return arrays | {
            "token_T": np.concatenate([nothing, *token_T, *token_T]).astype(np.int32),
            "label_T": np.concatenate([nothing, *(label for _, label in masked), *unasked]).astype(
                np.int32
            ),
            "id_N": np.concatenate([nothing, *(id_P for id_P, _ in names)]),
            "type_N": np.concatenate([nothing, *(type_P for _, type_P in names)]),
        }

    def _is_blank(self, step: int, row: int) -> np.ndarray:
        number_E = np.arange(len(self.reader.store.types(row)))
        return (
            hash_uniform(derive_seed(self.seed, "blank", step), row, number_E)
            < self.config.blank_rate
        )

    def _pairs(self, step: int, row: int) -> tuple[np.ndarray, np.ndarray]:
        """A document's pairs, those that recur first where there are too many."""
        store = self.reader.store
        head_P, tail_P = oriented(store, row)
        key_E = store.keys(row)
        # Entities of a DocRED document may share their name; one pair of it with itself would be no positive.
        _, first = np.unique(self._number(key_E[head_P], key_E[tail_P]), return_index=True)
        head_P, tail_P = head_P[np.sort(first)], tail_P[np.sort(first)]
        low_P, high_P = (
            np.minimum(key_E[head_P], key_E[tail_P]),
            np.maximum(key_E[head_P], key_E[tail_P]),
        )
        number_P = self._number(low_P, high_P)
        rank_P = hash_uniform(derive_seed(self.seed, "pairs", step), row, np.arange(len(head_P)))
        rank_P = rank_P - is_in_sorted(number_P, self._trained_numbers)
        kept = np.flatnonzero(~is_in_sorted(number_P, self._held_out_numbers))
        chosen = np.sort(kept[np.argsort(rank_P[kept])[: self.plan.config.max_pairs_per_document]])
        return head_P[chosen], tail_P[chosen]

    @cached_property
    def _trained_numbers(self) -> np.ndarray:
        return np.sort(self._number(*self.plan.recurring.key_K2[self.plan.trained].T))

    @cached_property
    def _held_out_numbers(self) -> np.ndarray:
        return np.sort(self._number(*self.plan.recurring.key_K2[self.plan.held_out].T))

    def _number(self, first_P: np.ndarray, second_P: np.ndarray) -> np.ndarray:
        return first_P.astype(np.int64) * len(self.reader.store.entity_keys) + second_P

    def _names(
        self, row: int, head_P: np.ndarray, tail_P: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Which two entities each pair is, and of which types, in order."""
        key_E, type_E = self.reader.store.keys(row), self.reader.store.types(row).astype(np.int64)
        type_P = type_E[head_P] * len(self.reader.store.entity_types) + type_E[tail_P]
        return self._number(key_E[head_P], key_E[tail_P]), type_P

    def _masked(self, step: int, row: int, marked: MarkedDocument) -> tuple[np.ndarray, np.ndarray]:
        place_S1 = np.arange(len(marked.id_S))[:, None]
        draw = hash_uniform(derive_seed(self.seed, "mask", step), row, place_S1, np.arange(3))
        return mask_tokens(
            marked.id_S,
            ~marked.is_plain_S,
            draw[:, 0],
            draw[:, 1],
            draw[:, 2],
            rate=self.config.mask_rate,
            mask_id=self.reader.markers.mask_id,
            random_token_ids=self.ordinary_ids,
            style="bert",
        )
