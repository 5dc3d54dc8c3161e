"""Plan."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from raybio.core.randomness import derive_seed, hash_uniform, keyed_permutation, shuffled_epochs
from raybio.methods.mtb_mccl.documents.store import DocumentStore
from raybio.methods.mtb_mccl.mtb.config import DocumentPairPlanConfig, EntityPairConfig
from raybio.methods.mtb_mccl.mtb.recurring_pairs import RecurringPairs, recurring_pairs


@dataclass(frozen=True)
class DocumentPairPlan:
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
    config: DocumentPairPlanConfig
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


def oriented_pairs(store: DocumentStore, row: int) -> tuple[np.ndarray, np.ndarray]:
    """(head, tail) of a document's pairs, each in the same order in all documents, whichever is mentioned first."""
    head_P, tail_P = store.candidates(row)
    key_E, type_E = store.keys(row), store.types(row)
    if store.is_directed:
        return head_P, tail_P
    swap_P = (type_E[head_P] == type_E[tail_P]) & (key_E[head_P] > key_E[tail_P])
    return np.where(swap_P, tail_P, head_P), np.where(swap_P, head_P, tail_P)
