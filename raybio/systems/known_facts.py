"""Which facts the training documents tell already, by their names: Ign-F1 leaves them out (facts §7).

Shape letters: P pairs, C classes ("none" first), F gold facts, in the order of their pairs and then of their classes.
"""

from functools import lru_cache

import numpy as np

from raybio.data.document_store import DocumentStore
from raybio.systems.embedded_pairs import EmbeddedPairs


def told_in_training(store: DocumentStore, pairs: EmbeddedPairs, label_PC: np.ndarray) -> np.ndarray:
    """Whether a training document has the same relation between a mention of the same name each, bool (F,)."""
    names_by_row = {row: _names(store, row) for row in np.unique(pairs.row_P).tolist()}
    pair_F, label_F = np.nonzero(label_PC[:, 1:])
    facts = zip(*(part[pair_F].tolist() for part in (pairs.row_P, pairs.head_P, pairs.tail_P)), strict=True)
    return np.array(
        [
            any(
                (head, tail, label) in _training_facts(store)
                for head in names_by_row[row][first]
                for tail in names_by_row[row][second]
            )
            for (row, first, second), label in zip(facts, (label_F + 1).tolist(), strict=True)
        ],
        dtype=bool,
    )


@lru_cache(maxsize=1)
def _training_facts(store: DocumentStore) -> set[tuple[str, str, int]]:
    facts = set()
    for row in store.split_rows("train").tolist():
        names = _names(store, row)
        for first, second, label in zip(*(part.tolist() for part in store.relations(row)), strict=True):
            facts |= {(head, tail, label) for head in names[first] for tail in names[second]}
    return facts


def _names(store: DocumentStore, row: int) -> list[set[str]]:
    """The words of each entity's mentions."""
    text = store.text(row)
    names = [set[str]() for _ in store.types(row)]
    places = list(zip(*(part.tolist() for part in store.mentions(row)), strict=True))
    for mention, entity in zip(*(part.tolist() for part in store.links(row)), strict=True):
        names[entity].add(text[slice(*places[mention])])
    return names
