"""Training facts."""

from functools import lru_cache

import numpy as np

from raybio.methods.mtb_mccl.documents.store import DocumentStore
from raybio.methods.mtb_mccl.mccl.scores import Facts


def is_in_training_facts(store: DocumentStore, gold: Facts) -> np.ndarray:
    """Whether a training document has the same relation between a mention of the same name each, bool (F,).

    Args:
        store: the documents.
        gold: facts, their documents as rows of the store.
    """
    names_by_row = {row: _names(store, row) for row in np.unique(gold.document_F).tolist()}
    columns = (gold.document_F, gold.head_F, gold.tail_F, gold.label_F)
    return np.array(
        [
            any(
                (head, tail, label) in _training_facts(store)
                for head in names_by_row[row][first]
                for tail in names_by_row[row][second]
            )
            for row, first, second, label in zip(
                *(column.tolist() for column in columns), strict=True
            )
        ],
        dtype=bool,
    )


@lru_cache(maxsize=1)
def _training_facts(store: DocumentStore) -> set[tuple[str, str, int]]:
    facts = set()
    for row in store.split_rows("train").tolist():
        names = _names(store, row)
        for first, second, label in zip(
            *(part.tolist() for part in store.relations(row)), strict=True
        ):
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
