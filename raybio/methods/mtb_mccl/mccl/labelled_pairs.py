"""Labelled pairs."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from raybio.core.randomness import derive_seed, keyed_permutation
from raybio.methods.mtb_mccl.batches import Pairs
from raybio.methods.mtb_mccl.documents.store import DocumentStore


@dataclass(frozen=True)
class LabelledPairs:
    """The pairs of a split that keep their label.

    Attributes:
        store: the documents.
        split: "train", "dev" or "test".
        fraction: share of its pairs.
        seed: which of them.
    """

    store: DocumentStore
    split: str
    fraction: float
    seed: int

    @cached_property
    def rows(self) -> np.ndarray:
        """Documents with a pair, ascending."""
        return np.array(
            sorted(row for row, chosen in self._chosen.items() if len(chosen)), dtype=np.int64
        )

    @cached_property
    def outside_F4(self) -> np.ndarray:
        """Relations of the split between entities that are no candidate pair, (document, head, tail, class), int64.

        None where labels are few: of those left out nothing is known, and whether they are candidates neither.
        """
        found = [np.zeros((0, 4), dtype=np.int64)]
        for row in self.store.split_rows(self.split).tolist() if self.fraction == 1 else ():
            head_F, tail_F, label_F = (part.astype(np.int64) for part in self.store.relations(row))
            num_entities = len(self.store.types(row))
            ends = [
                head_K * num_entities + tail_K
                for head_K, tail_K in _both_ways(self.store, self.pairs(row))
            ]
            is_outside_F = ~np.isin(head_F * num_entities + tail_F, np.concatenate(ends))
            if not self.store.is_directed:
                head_F, tail_F = np.minimum(head_F, tail_F), np.maximum(head_F, tail_F)
            fact_F4 = np.stack([np.full_like(head_F, row), head_F, tail_F, label_F], axis=1)
            found.append(fact_F4[is_outside_F])
        return np.concatenate(found)

    @cached_property
    def num_pairs(self) -> int:
        """Of all documents."""
        return sum(len(chosen) for chosen in self._chosen.values())

    def pairs(self, row: int) -> Pairs:
        """(head, tail) of a document's pairs."""
        head_K, tail_K = self.store.candidates(row)
        chosen = self._chosen[row]
        return head_K[chosen], tail_K[chosen]

    def labels(self, row: int) -> np.ndarray:
        """Classes of a document's pairs, bool (K, C)."""
        return pair_labels(self.store, row, self.pairs(row))

    @cached_property
    def _chosen(self) -> dict[int, np.ndarray]:
        rows = self.store.split_rows(self.split).tolist()
        sizes = [len(self.store.candidates(row)[0]) for row in rows]
        bound_N1 = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        total = int(bound_N1[-1])
        number = np.arange(total)
        if self.fraction < 1 and total:
            wanted = max(round(self.fraction * total), 1)
            key = derive_seed(self.seed, "labels", self.split)
            number = np.sort(keyed_permutation(np.arange(wanted), num_rows=total, key=key))
        parts = np.split(number, np.searchsorted(number, bound_N1[1:-1]))
        return {
            row: part - start
            for row, part, start in zip(rows, parts, bound_N1[:-1].tolist(), strict=True)
        }


def pair_labels(store: DocumentStore, row: int, pairs: Pairs) -> np.ndarray:
    """Which classes some pairs of a document have, bool (K, C); pairs without a relation are of class 0."""
    head_K, tail_K = pairs
    head_P, tail_P, label_P = store.relations(row)
    num_entities = len(store.types(row))
    label_KC = np.zeros((len(head_K), len(store.relation_names)), dtype=bool)
    place = {pair: number for number, pair in enumerate((head_K * num_entities + tail_K).tolist())}
    for first_P, second_P in _both_ways(store, (head_P, tail_P)):
        for pair, label in zip(
            (first_P * num_entities + second_P).tolist(), label_P.tolist(), strict=True
        ):
            if pair in place:
                label_KC[place[pair], label] = True
    label_KC[:, 0] = ~label_KC[:, 1:].any(1)
    return label_KC


def _both_ways(store: DocumentStore, pairs: Pairs) -> list[Pairs]:
    """Pairs as they are and, where they have no direction, the other way round."""
    return [pairs] if store.is_directed else [pairs, pairs[::-1]]


def coarse_labels(label_KC: np.ndarray) -> np.ndarray:
    """The classes of training that is told only whether a pair has a relation, bool (K, 2)."""
    return np.stack([label_KC[:, 0], ~label_KC[:, 0]], axis=1)
