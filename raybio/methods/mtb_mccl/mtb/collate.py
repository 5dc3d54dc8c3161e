"""MTB's batches: documents with random entities blanked and random words masked, twice each.

Shape letters: E entities and P pairs of one document, N pairs of a shard, S tokens of a document,
K recurring pairs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from raybio.core.batch import IGNORED_LABEL, deal
from raybio.core.randomness import derive_seed, hash_uniform
from raybio.methods.mtb_mccl.batches import Pairs
from raybio.methods.mtb_mccl.documents.collate import DocumentReader
from raybio.methods.mtb_mccl.documents.markers import MarkedDocument
from raybio.methods.mtb_mccl.documents.store import DocumentStore
from raybio.methods.mtb_mccl.mtb.config import BlankConfig
from raybio.methods.mtb_mccl.mtb.plan import DocumentPairPlan, oriented_pairs
from raybio.ops.masking import mask_tokens


@dataclass(frozen=True)
class BlankCollate:
    """(step, rank, world) -> the arrays of a ``TwinDocumentBatch``.

    Attributes:
        reader: reads documents for the encoder.
        plan: the documents of each step.
        config: masking.
        ordinary_ids: token ids that may replace a masked token.
        seed: the run's seed.
    """

    reader: DocumentReader
    plan: DocumentPairPlan
    config: BlankConfig
    ordinary_ids: np.ndarray
    seed: int

    def __call__(self, step: int, rank: int, world: int) -> Mapping[str, np.ndarray]:
        """Return the arrays of worker ``rank``'s shard of ``step``."""
        row_B = self.plan.rows(step)
        row_R = row_B[deal(self.reader.lengths(row_B), world) == rank]
        self.reader.store.request(row_R)
        rows = row_R.tolist()
        marked = [self.reader.marked(row, self._is_blank(step, row)) for row in rows]
        pairs = [self._pairs(step, row) for row in rows]
        arrays = self.reader.arrays(rows * 2, marked * 2, pairs * 2)
        tokens = []
        labels = []
        ids = []
        types = []
        for row, document, pair in zip(rows, marked, pairs, strict=True):
            token_S, label_S = self._masked(step, row, document)
            id_P, type_P = self._names(row, pair)
            tokens.append(token_S)
            labels.append(label_S)
            ids.append(id_P)
            types.append(type_P)
        # Both passes read the same masked tokens; the loss counts only the first.
        ignored = [np.full(len(token_S), IGNORED_LABEL) for token_S in tokens]
        nothing = np.zeros(0, dtype=np.int64)
        return arrays | {
            "token_T": np.concatenate([nothing, *tokens, *tokens]).astype(np.int32),
            "label_T": np.concatenate([nothing, *labels, *ignored]).astype(np.int32),
            "id_N": np.concatenate([nothing, *ids]),
            "type_N": np.concatenate([nothing, *types]),
        }

    def _is_blank(self, step: int, row: int) -> np.ndarray:
        """Return which entities are blanked in all their mentions, bool (E,); one draw for each."""
        number_E = np.arange(len(self.reader.store.types(row)))
        seed = derive_seed(self.seed, "blank", step)
        return hash_uniform(seed, row, number_E) < self.config.blank_rate

    def _pairs(self, step: int, row: int) -> Pairs:
        """Return up to ``max_pairs_per_document`` pairs, recurring ones first, no held-out ones."""
        store = self.reader.store
        key_E = store.keys(row)
        head_P, tail_P = oriented_pairs(store, row)
        # Entities of a DocRED document may share their name. Two rows of one pair in the same
        # document would be no positive, so each pair counts once.
        _, first = np.unique(self._number(key_E[head_P], key_E[tail_P]), return_index=True)
        first = np.sort(first)
        head_P = head_P[first]
        tail_P = tail_P[first]
        low_P = np.minimum(key_E[head_P], key_E[tail_P])
        high_P = np.maximum(key_E[head_P], key_E[tail_P])
        number_P = self._number(low_P, high_P)
        held_out_K, trained_K = _sorted_numbers(self.plan)
        rank_P = hash_uniform(derive_seed(self.seed, "pairs", step), row, np.arange(len(head_P)))
        rank_P = rank_P - is_in_sorted(number_P, trained_K)
        kept = np.flatnonzero(~is_in_sorted(number_P, held_out_K))
        chosen = np.sort(kept[np.argsort(rank_P[kept])[: self.plan.config.max_pairs_per_document]])
        return head_P[chosen], tail_P[chosen]

    def _number(self, first_P: np.ndarray, second_P: np.ndarray) -> np.ndarray:
        return numbers_of_pairs(self.reader.store, first_P, second_P)

    def _names(self, row: int, pairs: Pairs) -> tuple[np.ndarray, np.ndarray]:
        """Return the number of each entity pair and of its (head type, tail type)."""
        store = self.reader.store
        head_P, tail_P = pairs
        key_E = store.keys(row)
        type_E = store.types(row).astype(np.int64)
        type_P = type_E[head_P] * len(store.entity_types) + type_E[tail_P]
        return self._number(key_E[head_P], key_E[tail_P]), type_P

    def _masked(self, step: int, row: int, marked: MarkedDocument) -> tuple[np.ndarray, np.ndarray]:
        """Return masked tokens and labels (S,); tokens of mentions and markers are never masked."""
        position_S1 = np.arange(len(marked.id_S))[:, None]
        draw_S3 = hash_uniform(derive_seed(self.seed, "mask", step), row, position_S1, np.arange(3))
        return mask_tokens(
            marked.id_S,
            ~marked.is_plain_S,
            draw_S3[:, 0],
            draw_S3[:, 1],
            draw_S3[:, 2],
            rate=self.config.mask_rate,
            mask_id=self.reader.markers.mask_id,
            random_token_ids=self.ordinary_ids,
            style="bert",
        )


def numbers_of_pairs(store: DocumentStore, first_P: np.ndarray, second_P: np.ndarray) -> np.ndarray:
    """Return one number for each pair of keys."""
    return first_P.astype(np.int64) * len(store.entity_keys) + second_P


@lru_cache(maxsize=2)
def _sorted_numbers(plan: DocumentPairPlan) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of the held-out and of the trained pairs, ascending.

    They are computed once per process, and not pickled with a collate.
    """
    key_K2 = plan.recurring.key_K2
    held_out_K = np.sort(numbers_of_pairs(plan.store, *key_K2[plan.held_out].T))
    return held_out_K, np.sort(numbers_of_pairs(plan.store, *key_K2[plan.trained].T))


def is_in_sorted(value_P: np.ndarray, sorted_K: np.ndarray) -> np.ndarray:
    """Return which values occur in an ascending array, bool (P,), by binary search."""
    if len(sorted_K) == 0:
        return np.zeros(len(value_P), dtype=bool)
    position_P = np.searchsorted(sorted_K, value_P)
    is_in_P: np.ndarray = sorted_K[np.minimum(position_P, len(sorted_K) - 1)] == value_P
    return is_in_P
