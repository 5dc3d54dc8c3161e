"""Labeled entity pairs and their classes; a fraction of the pairs may keep its label.

Shape letters: N documents, K candidate pairs of a document, F facts, C classes, NA first.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from raybio.core.errors import ConfigError
from raybio.core.randomness import derive_seed, keyed_permutation
from raybio.methods.mtb_mccl.batches import Pairs
from raybio.methods.mtb_mccl.documents.store import DocumentStore
from raybio.ops.segments import indptr_from_lengths


@dataclass(frozen=True)
class LabeledPairs:
    """The pairs of a split that keep their label.

    A fraction is drawn uniformly over the pairs of the whole split, NA pairs included (Zhou et al.,
    2023, Section 4.1). All other pairs are dropped; they do not become NA.

    Attributes:
        store: the documents.
        split: "train", "dev" or "test".
        fraction: fraction of the pairs.
        seed: of the draw.
        sample: documents whose pairs are left; None: those of the whole split.
    """

    store: DocumentStore
    split: str
    fraction: float
    seed: int
    sample: frozenset[int] | None = None

    def sampled(self, max_documents: int) -> "LabeledPairs":
        """Return the pairs of some of ``evaluated_rows``, the same in all runs with these labels.

        Args:
            max_documents: number of documents that are drawn, if there are more; 0: all are left.
        """
        if max_documents == 0:
            return self
        rows = self.evaluated_rows
        if len(rows) <= max_documents:
            return self
        drawn = np.random.default_rng(0).choice(rows, max_documents, replace=False)
        return replace(self, sample=frozenset(drawn.tolist()))

    @cached_property
    def rows(self) -> np.ndarray:
        """Documents with a labeled pair, ascending."""
        rows = sorted(row for row, chosen in self._chosen_by_row.items() if len(chosen))
        return np.array(rows, dtype=np.int64)

    @cached_property
    def evaluated_rows(self) -> np.ndarray:
        """Documents with a labeled pair or a relation of ``outside_F4``, ascending."""
        return np.union1d(self.rows, self.outside_F4[:, 0])

    def check(self) -> None:
        """Refuse a split without a labeled pair, or with unrelated pairs only.

        Training would learn no relation from it, and every model would have an F1 of 0.

        Raises:
            ConfigError: with what to do.
        """
        if any(self.labels(row)[:, 1:].any() for row in self.rows.tolist()):
            return
        noun = f"{self.split} pair" if self.sample is None else f"drawn {self.split} pair"
        fault = f"no {noun} has a relation" if len(self.rows) else f"has no {noun}"
        larger = f", or a larger label fraction than {self.fraction:g}" if self.fraction < 1 else ""
        if self.sample is not None:
            larger += f", or a larger evaluation.max_documents than {len(self.sample)}"
        raise ConfigError(
            f"{self.store.location}: {fault}; want {self.split} documents with entities and "
            f"relations{larger}"
        )

    @cached_property
    def outside_F4(self) -> np.ndarray:
        """Gold relations between entities that are no candidate pair, which no model can predict.

        (document, head, tail, class), int64. Empty if only a fraction keeps its label: whether a
        dropped relation belongs to a candidate pair is then unknown.
        """
        parts = [np.zeros((0, 4), dtype=np.int64)]
        if self.fraction < 1:
            return parts[0]
        for row in self._chosen_by_row:
            head_F, tail_F, label_F = (part.astype(np.int64) for part in self.store.relations(row))
            num_entities = len(self.store.types(row))
            candidate_ids = [
                head_K * num_entities + tail_K
                for head_K, tail_K in _orders(self.store, self.pairs(row))
            ]
            is_outside_F = ~np.isin(head_F * num_entities + tail_F, np.concatenate(candidate_ids))
            if not self.store.is_directed:
                first_F = np.minimum(head_F, tail_F)
                tail_F = np.maximum(head_F, tail_F)
                head_F = first_F
            fact_F4 = np.stack([np.full_like(head_F, row), head_F, tail_F, label_F], axis=1)
            parts.append(fact_F4[is_outside_F])
        return np.concatenate(parts)

    @cached_property
    def num_pairs(self) -> int:
        """Number of labeled pairs of all documents."""
        return sum(len(chosen) for chosen in self._chosen_by_row.values())

    def class_counts(self) -> np.ndarray:
        """Return the number of labeled pairs of each class (C,), int64."""
        num_C = np.zeros(len(self.store.relation_names), dtype=np.int64)
        for row in self.rows.tolist():
            num_C += self.labels(row).sum(axis=0)
        return num_C

    def pairs(self, row: int) -> Pairs:
        """Return (head, tail) of a document's labeled pairs."""
        head_K, tail_K = self.store.candidates(row)
        chosen = self._chosen_by_row[row]
        return head_K[chosen], tail_K[chosen]

    def labels(self, row: int) -> np.ndarray:
        """Return the classes of a document's labeled pairs, bool (K, C)."""
        return pair_labels(self.store, row, self.pairs(row))

    @cached_property
    def _chosen_by_row(self) -> dict[int, np.ndarray]:
        """Document -> numbers of its candidate pairs that keep their label."""
        rows = self.store.split_rows(self.split).tolist()
        sizes = [len(self.store.candidates(row)[0]) for row in rows]
        bound_N1 = indptr_from_lengths(sizes)
        total = int(bound_N1[-1])
        number = np.arange(total)
        if self.fraction < 1 and total:
            num_kept = max(round(self.fraction * total), 1)
            key = derive_seed(self.seed, "labels", self.split)
            number = np.sort(keyed_permutation(np.arange(num_kept), num_rows=total, key=key))
        place_N1 = np.searchsorted(number, bound_N1)
        return {
            row: number[place_N1[index] : place_N1[index + 1]] - bound_N1[index]
            for index, row in enumerate(rows)
            if self.sample is None or row in self.sample
        }


def labeled_pairs(
    store: DocumentStore, split: str, label_fraction: float, seed: int
) -> LabeledPairs:
    """Return the labeled pairs of a split, all pairs of the test split."""
    return LabeledPairs(store, split, 1.0 if split == "test" else label_fraction, seed)


def pair_labels(store: DocumentStore, row: int, pairs: Pairs) -> np.ndarray:
    """Return the classes of some pairs of a document, bool (K, C); unrelated pairs are NA."""
    head_K, tail_K = pairs
    head_P, tail_P, label_P = store.relations(row)
    num_entities = len(store.types(row))
    label_KC = np.zeros((len(head_K), len(store.relation_names)), dtype=bool)
    number_by_pair = {
        pair: number for number, pair in enumerate((head_K * num_entities + tail_K).tolist())
    }
    for first_P, second_P in _orders(store, (head_P, tail_P)):
        pair_P = (first_P * num_entities + second_P).tolist()
        for pair, label in zip(pair_P, label_P.tolist(), strict=True):
            if pair in number_by_pair:
                label_KC[number_by_pair[pair], label] = True
    label_KC[:, 0] = ~label_KC[:, 1:].any(1)
    return label_KC


def coarse_labels(label_KC: np.ndarray) -> np.ndarray:
    """Return the classes "NA" and "any relation", bool (K, 2)."""
    return np.stack([label_KC[:, 0], ~label_KC[:, 0]], axis=1)


def _orders(store: DocumentStore, pairs: Pairs) -> list[Pairs]:
    """Return the pairs, and for undirected relations also the reversed pairs."""
    return [pairs] if store.is_directed else [pairs, pairs[::-1]]
