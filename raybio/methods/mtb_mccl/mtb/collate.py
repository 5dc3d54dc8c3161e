"""Collate."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from raybio.core.batch import IGNORED_LABEL, shard
from raybio.core.randomness import derive_seed, hash_uniform
from raybio.methods.mtb_mccl.documents.collate import DocumentReader
from raybio.methods.mtb_mccl.documents.markers import MarkedDocument
from raybio.methods.mtb_mccl.mtb.config import BlankConfig
from raybio.methods.mtb_mccl.mtb.plan import DocumentPairPlan, oriented_pairs
from raybio.ops.masking import mask_tokens


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
    plan: DocumentPairPlan
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
        head_P, tail_P = oriented_pairs(store, row)
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
