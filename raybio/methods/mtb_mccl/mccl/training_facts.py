"""Facts that training documents already state, which Ign-F1 ignores.

As in the DocRED evaluation, facts are compared by names: (head mention, tail mention, relation).
"""

from functools import lru_cache

import numpy as np

from raybio.methods.mtb_mccl.documents.store import DocumentStore
from raybio.methods.mtb_mccl.mccl.scores import Facts


def is_in_training_facts(store: DocumentStore, gold: Facts) -> np.ndarray:
    """Return whether a training document states each gold fact between the same names, bool (F,).

    Args:
        store: the documents.
        gold: facts; their documents are rows of the store.
    """
    training_facts = _training_facts(store)
    names_by_row = {row: _names(store, row) for row in np.unique(gold.document_F).tolist()}
    is_known_F = np.zeros(len(gold.label_F), dtype=bool)
    columns = (gold.document_F, gold.head_F, gold.tail_F, gold.label_F)
    facts = zip(*(column.tolist() for column in columns), strict=True)
    for number, (row, head, tail, label) in enumerate(facts):
        is_known_F[number] = any(
            (head_name, tail_name, label) in training_facts
            for head_name in names_by_row[row][head]
            for tail_name in names_by_row[row][tail]
        )
    return is_known_F


@lru_cache(maxsize=1)
def _training_facts(store: DocumentStore) -> set[tuple[str, str, int]]:
    facts = set()
    for row in store.split_rows("train").tolist():
        names = _names(store, row)
        relations = zip(*(column.tolist() for column in store.relations(row)), strict=True)
        for head, tail, label in relations:
            for head_name in names[head]:
                facts |= {(head_name, tail_name, label) for tail_name in names[tail]}
    return facts


def _names(store: DocumentStore, row: int) -> list[set[str]]:
    """Return the distinct mention texts of each entity."""
    text = store.text(row)
    start_M, end_M = store.mentions(row)
    names = [set[str]() for _ in store.types(row)]
    links = zip(*(column.tolist() for column in store.links(row)), strict=True)
    for mention, entity in links:
        names[entity].add(text[int(start_M[mention]) : int(end_M[mention])])
    return names
