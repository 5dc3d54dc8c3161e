"""MTB's sampler: each step draws pairs of documents that share a recurring entity pair.

A random batch would contain hardly any positives (Zhou et al., 2023, Appendix A). So a step draws
B / 2 recurring entity pairs, and two documents of each.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from raybio.core.randomness import derive_seed, hash_uniform, keyed_permutation, shuffled_epochs
from raybio.methods.mtb_mccl.batches import Pairs
from raybio.methods.mtb_mccl.documents.store import DocumentStore
from raybio.methods.mtb_mccl.mtb.config import DocumentPairPlanConfig, EntityPairConfig
from raybio.methods.mtb_mccl.mtb.recurring_pairs import RecurringPairs, recurring_pairs

HELD_OUT_SEED = 0
"""Seed of the held-out pairs, whatever the run's seed. Runs that differ in their seed train on and
retrieve the same pairs, so scores can be compared pair by pair, and rivals score alike in all."""

_recurring_by_key: dict[tuple[str, int, int], RecurringPairs] = {}
"""Digest of a store, ``min_documents`` and ``num_pairs`` -> its pairs; the last ones only."""


@dataclass(frozen=True)
class DocumentPairPlan:
    """The documents of each step, as a pure function of (seed, step).

    Every recurring entity pair is drawn once per epoch. Its two documents are drawn anew each time.

    Attributes:
        store: the corpus.
        pairs_config: selection of the recurring pairs.
        config: number of documents.
        seed: the run's seed, which draws documents; ``HELD_OUT_SEED`` draws the held-out pairs.
    """

    store: DocumentStore
    pairs_config: EntityPairConfig
    config: DocumentPairPlanConfig
    seed: int

    @cached_property
    def recurring(self) -> RecurringPairs:
        """The recurring entity pairs.

        Counting takes long, so they are pickled with the plan, and plans of one process share them.
        """
        config = self.pairs_config
        key = (self.store.digest, config.min_documents, config.num_pairs)
        if key not in _recurring_by_key:
            recurring = recurring_pairs(self.store, config)
            # Check, length and batches of one start share the pairs; older pairs are freed.
            _recurring_by_key.clear()
            _recurring_by_key[key] = recurring
        return _recurring_by_key[key]

    @property
    def held_out(self) -> np.ndarray:
        """Numbers of the recurring pairs that never enter the loss, ascending."""
        return _divided(self)[0]

    @property
    def trained(self) -> np.ndarray:
        """Numbers of the recurring pairs that steps are drawn from, ascending."""
        return _divided(self)[1]

    @property
    def steps_per_epoch(self) -> float:
        """Number of steps that draw as many document pairs as there are.

        At most ``max_document_pairs_per_entity_pair`` of an entity pair count: otherwise the few
        entity pairs in thousands of documents would make up nearly the whole epoch.
        """
        num_documents_K = self.recurring.count_K[self.trained].astype(np.int64)
        num_document_pairs_K = num_documents_K * (num_documents_K - 1) // 2
        counted_K = np.minimum(num_document_pairs_K, self.config.max_document_pairs_per_entity_pair)
        return float(counted_K.sum()) * 2 / self.config.global_batch_rows

    def rows(self, step: int) -> np.ndarray:
        """Return the distinct documents of a step; fewer than configured where pairs overlap."""
        # "couples" and "couple" name random streams; other names would draw other documents.
        num_document_pairs = self.config.global_batch_rows // 2
        first = step * num_document_pairs
        number_C = shuffled_epochs(
            first,
            num_document_pairs,
            num_rows=len(self.trained),
            seed=self.seed,
            name="couples",
        )
        pair_C = self.trained[number_C]
        start_C = self.recurring.indptr_K1[pair_C]
        size_C = self.recurring.count_K[pair_C]
        slot_C = np.arange(first, first + num_document_pairs)
        draw_C2 = hash_uniform(derive_seed(self.seed, "couple"), slot_C[:, None], np.arange(2))
        first_C = (draw_C2[:, 0] * size_C).astype(np.int64)
        # The second document is any but the first.
        second_C = (first_C + 1 + (draw_C2[:, 1] * (size_C - 1)).astype(np.int64)) % size_C
        row_C2 = np.stack(
            [
                self.recurring.row_O[start_C + first_C],
                self.recurring.row_O[start_C + second_C],
            ],
            axis=1,
        )
        return np.array(list(dict.fromkeys(row_C2.ravel().tolist())), dtype=np.int64)


@lru_cache(maxsize=2)
def _divided(plan: DocumentPairPlan) -> tuple[np.ndarray, np.ndarray]:
    """Return the held-out and the trained pairs; computed once per process, never pickled."""
    total = len(plan.recurring)
    drawn = keyed_permutation(
        np.arange(total), num_rows=total, key=derive_seed(HELD_OUT_SEED, "held out")
    )
    held_out = np.sort(drawn[: round(plan.pairs_config.held_out_share * total)])
    return held_out, np.setdiff1d(np.arange(total), held_out)


def oriented_pairs(store: DocumentStore, row: int) -> Pairs:
    """Return (head, tail) of a document's pairs, each in the same order in all documents.

    If both entities have one type, ``store.candidates`` takes the one mentioned first as head. Here
    it is the one with the smaller key.
    """
    head_P, tail_P = store.candidates(row)
    if store.is_directed:
        return head_P, tail_P
    key_E = store.keys(row)
    type_E = store.types(row)
    swap_P = (type_E[head_P] == type_E[tail_P]) & (key_E[head_P] > key_E[tail_P])
    return np.where(swap_P, tail_P, head_P), np.where(swap_P, head_P, tail_P)
