"""Unlabeled documents for an exported model: the pairs that it reads, and their description.

Shape letters: K candidate pairs of a document, E entities, M mentions, C mentions of entities.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from raybio.core.errors import ConfigError
from raybio.methods.mtb_mccl.batches import Pairs
from raybio.methods.mtb_mccl.documents.entities import RawDocument
from raybio.methods.mtb_mccl.documents.store import DocumentStore


def check_direction(folder: str | Path, is_directed: bool | None, store: DocumentStore) -> None:
    """Check that documents are of the kind that a model was trained on; None: it reads both kinds.

    Raises:
        ConfigError: if they are not.
    """
    if is_directed is None or store.is_directed == is_directed:
        return
    formats = {
        True: "DocRED documents, whose relations have a direction",
        False: "PubTator or BioC documents",
    }
    raise ConfigError(
        f"{folder}: was trained on {formats[is_directed]}, and the input holds "
        f"{formats[store.is_directed]}; want the same kind"
    )


def candidate_pairs(
    types: frozenset[tuple[str, str]] | None, store: DocumentStore, row: int
) -> Pairs:
    """Return the pairs of a document that have the types that a model was trained on."""
    head_K, tail_K = store.candidates(row)
    if types is None:
        return head_K, tail_K
    type_E = [store.entity_types[number] for number in store.types(row).tolist()]
    is_candidate_K = np.array(
        [
            (type_E[head], type_E[tail]) in types
            for head, tail in zip(head_K.tolist(), tail_K.tolist(), strict=True)
        ],
        dtype=bool,
    )
    return head_K[is_candidate_K], tail_K[is_candidate_K]


def describe_entity(store: DocumentStore, row: int, entity: int, end: str) -> dict[str, Any]:
    """Return an entity's id as the input writes it, its type, and its first mention."""
    mention_C, entity_C = store.links(row)
    start_M, end_M = store.mentions(row)
    first = int(mention_C[entity_C == entity].min())
    start = int(start_M[first])
    stop = int(end_M[first])
    return {
        f"{end}_id": store.entity_keys[int(store.keys(row)[entity])].as_py(),
        f"{end}_type": store.entity_types[int(store.types(row)[entity])],
        end: " ".join(store.text(row)[start:stop].split()),
        f"{end}_start": start,
        f"{end}_end": stop,
    }


def document_matcher(store: DocumentStore, row: int) -> Callable[[RawDocument], bool]:
    """Return a check whether a document has the id, text and mentions of a row."""
    document_id = store.document_id(row)
    text = store.text(row)
    spans = [*zip(*(part.tolist() for part in store.mentions(row)), strict=True)]

    def is_row(raw: RawDocument) -> bool:
        if (raw.document_id, raw.text) != (document_id, text):
            return False
        return sorted({(mention.start, mention.end) for mention in raw.mentions}) == spans

    return is_row
