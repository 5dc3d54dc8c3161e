"""The store of documents with entities and relations; rows are sorted by split.

Shape letters, of one document or of all documents concatenated: M mention spans, C (mention,
entity) links, E entities, P relations, K candidate pairs. N documents, T entity types, Y entity
keys, L entries of the keys' lists of documents.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from raybio.core.arrays import distinct
from raybio.core.errors import ConfigError, DataError
from raybio.ops.segments import indptr_from_lengths, tiles
from raybio.store.columns import ArrowColumn, NumberColumn, TextColumn, column_tables
from raybio.store.prefetch import byte_lengths, request_rows, request_slices
from raybio.store.ragged import Ragged, RaggedStore, mapped_array, ragged_tables
from raybio.store.relation_labels import NO_RELATION
from raybio.store.store import SPLITS
from raybio.store.text_keys import text_keys
from raybio.store.word_counts import WordCounts
from raybio.store.writer import Draft

ROWS = "rows.arrow"
WORDS = "words.arrow"
TYPES = "types.arrow"
KEYS = "keys.arrow"
RELATION_NAMES = "relation_names.arrow"
TYPE_PAIRS = "type_pairs.arrow"
KEY_POINTERS = "key_pointers.arrow"
KEY_DOCUMENTS = "key_documents.arrow"

PARTS: dict[str, tuple[str, ...]] = {
    "mentions": ("start", "end"),
    "links": ("mention", "entity"),
    "entities": ("type", "key"),
    "relations": ("head", "tail", "label"),
}
"""Part of a document -> columns of the part's file; ``pointers.arrow`` holds its CSR pointers."""


_DOCUMENTS_AT_ONCE = 1 << 15
"""Documents whose keys are sorted together."""


class DocumentStore(RaggedStore):
    """An open store of documents.

    Mentions of a document are numbered in the order of the text, entities in the order of their
    first mentions.
    """

    kind = "documents"
    parts = PARTS

    document_ids = ArrowColumn(ROWS, "document_id", pa.large_string())
    """Id of each document: a PMID, or a title."""

    texts = ArrowColumn(ROWS, "text")
    """Text of each document, UTF-8."""

    entity_types = TextColumn(TYPES, "name")
    """The entity types that occur, in the order of ``type_rank``."""

    entity_keys = ArrowColumn(KEYS, "key", pa.large_string())
    """The identities of entities (Y,), ascending: "Gene:7157", "Chemical:~an unknown drug"."""

    relation_names = TextColumn(RELATION_NAMES, "name")
    """Names of the relations; number 0 is "NA", which is never stored."""

    head_types = NumberColumn(TYPE_PAIRS, "head", np.int64)
    tail_types = NumberColumn(TYPE_PAIRS, "tail", np.int64)

    key_indptr = NumberColumn(KEY_POINTERS, "indptr")
    """CSR pointers (Y + 1,) to the documents of each key."""

    key_document_L = NumberColumn(KEY_DOCUMENTS, "row")
    """Documents that mention each key, ascending per key."""

    count_by_word = WordCounts(WORDS)
    """Frequent words of the training documents, for a tokenizer that is trained from scratch."""

    def split_rows(self, name: str) -> np.ndarray:
        """Return the rows of "train", "dev" or "test", int64; contiguous, possibly empty.

        Raises:
            ConfigError: for another name.
        """
        if name not in SPLITS:
            raise ConfigError(f"split {name!r} is none of {', '.join(SPLITS)}")
        sizes = [self.manifest["counts"][f"{split}_documents"] for split in SPLITS]
        number = SPLITS.index(name)
        first = sum(sizes[:number])
        return np.arange(first, first + sizes[number])

    def request(self, row_R: np.ndarray) -> None:
        """Prefetch documents that are about to be read one by one; return at once."""
        request_rows(self.texts, row_R)
        for (part, column), array in self._arrays.items():
            if column:
                indptr_N1 = self._arrays[part, ""]
                request_slices(array, indptr_N1[row_R], indptr_N1[row_R + 1])

    def document_id(self, row: int) -> str:
        """Return the id of a document: a PMID, or a title."""
        return str(self.document_ids[int(row)].as_py())

    def text(self, row: int) -> str:
        """Return the text of a document; offsets of mentions count its characters."""
        return self.texts[int(row)].as_py().decode()

    def text_lengths(self, row_R: np.ndarray) -> np.ndarray:
        """Return the bytes of documents (R,)."""
        return byte_lengths(self.texts, row_R)

    def num_mentions(self, row_R: np.ndarray) -> np.ndarray:
        """Return the number of distinct mention spans of documents (R,)."""
        indptr_N1 = self._arrays["mentions", ""]
        return indptr_N1[row_R + 1] - indptr_N1[row_R]

    def mentions(self, row: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the distinct mention spans (start (M,), end (M,)), int64, ascending."""
        return self._of("mentions", "start", row), self._of("mentions", "end", row)

    def links(self, row: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the links of mentions to entities: (mention (C,), entity (C,)), int64."""
        return self._of("links", "mention", row), self._of("links", "entity", row)

    def types(self, row: int) -> np.ndarray:
        """Return the type of each entity (E,), an index of ``entity_types``, int64."""
        return self._of("entities", "type", row)

    def keys(self, row: int) -> np.ndarray:
        """Return the identity of each entity (E,), an index of ``entity_keys``, int64."""
        return self._of("entities", "key", row)

    @property
    def entity_indptr_N1(self) -> np.ndarray:
        """CSR pointers to the entities of each document; memory-mapped."""
        return self._arrays["entities", ""]

    def entities(self, first: int, stop: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return (row (E,), type (E,), key (E,)), int64, of documents ``first`` to ``stop - 1``."""
        indptr = self.entity_indptr_N1[first : stop + 1]
        row_E = np.repeat(np.arange(first, stop), np.diff(indptr))
        type_E = self._arrays["entities", "type"][indptr[0] : indptr[-1]]
        key_E = self._arrays["entities", "key"][indptr[0] : indptr[-1]]
        return row_E, type_E.astype(np.int64), key_E.astype(np.int64)

    def relations(self, row: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return (head (P,), tail (P,), label (P,)), int64.

        Heads and tails are entities of the document, labels indices of ``relation_names``. In
        undirected relations, head and tail are ordered as in ``candidates``.
        """
        return (
            self._of("relations", "head", row),
            self._of("relations", "tail", row),
            self._of("relations", "label", row),
        )

    def candidates(self, row: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the entity pairs to classify: (head (K,), tail (K,)), int64, ascending.

        - Directed relations: all ordered pairs of different entities.
        - Undirected relations: the unordered pairs with types in ``type_pairs``. The head is the
          entity whose type comes first in ``entity_types``; of one type, the one mentioned first.
        """
        type_E = self.types(row)
        if self.is_directed:
            head, tail = np.nonzero(~np.eye(len(type_E), dtype=bool))
            return head, tail
        order_E = np.argsort(type_E, kind="stable")
        first, second = np.triu_indices(len(type_E), 1)
        head = order_E[first]
        tail = order_E[second]
        is_candidate = self.is_candidate_TT[type_E[head], type_E[tail]]
        head = head[is_candidate]
        tail = tail[is_candidate]
        order = np.lexsort((tail, head))
        return head[order], tail[order]

    def documents_of(self, key: int) -> np.ndarray:
        """Return the rows of the documents that mention an entity, ascending."""
        return self.key_document_L[self.key_indptr[key] : self.key_indptr[key + 1]]

    @cached_property
    def type_pairs(self) -> frozenset[tuple[int, int]]:
        """(head type, tail type) of the candidate pairs."""
        return frozenset(zip(self.head_types.tolist(), self.tail_types.tolist(), strict=True))

    @cached_property
    def is_candidate_TT(self) -> np.ndarray:
        """Whether (head type, tail type) is one of ``type_pairs``, bool (T, T)."""
        num_types = len(self.entity_types)
        is_candidate_TT = np.zeros((num_types, num_types), dtype=bool)
        for head_type, tail_type in self.type_pairs:
            is_candidate_TT[head_type, tail_type] = True
        return is_candidate_TT

    @property
    def is_directed(self) -> bool:
        """Whether (head, tail) and (tail, head) are different pairs, as in DocRED."""
        return bool(self.manifest["is_directed"])

    @property
    def is_multi_label(self) -> bool:
        """Whether a pair may have several relations, as in DocRED."""
        return bool(self.manifest["is_multi_label"])


def commit_documents(
    draft: Draft,
    *,
    document_ids: pa.Array,
    texts: Ragged,
    split_N: np.ndarray,
    indptr_by_part: Mapping[str, np.ndarray],
    columns: Mapping[str, np.ndarray],
    entity_types: Sequence[str],
    entity_keys: Sequence[str],
    relation_names: Sequence[str],
    is_docred: bool,
    min_type_pair_relations: int,
    count_by_word: Mapping[str, int],
    provenance: dict[str, Any],
) -> DocumentStore:
    """Write and commit a store of documents.

    Args:
        draft: the store's draft.
        document_ids: strings (N,).
        texts: UTF-8; may be mapped from a file.
        split_N: index of each document's split in ``SPLITS``, ascending.
        indptr_by_part: CSR pointers (N + 1,) for each of ``PARTS``.
        columns: the columns of all ``PARTS``.
        entity_types: as in ``DocumentStore``.
        entity_keys: as in ``DocumentStore``, ascending.
        relation_names: without ``NO_RELATION``, which becomes number 0.
        is_docred: whether relations have a direction, and a pair may have several.
        min_type_pair_relations: for undirected relations, pairs of types with fewer training
            relations are no candidates.
        count_by_word: as in ``DocumentStore``.
        provenance: more entries of the manifest.

    Raises:
        DataError: if the relations of all pairs of types are too rare.
        StoreError: if it cannot be written.
    """
    key_indptr, key_document_L = _documents_by_key(
        indptr_by_part["entities"],
        columns["key"],
        len(entity_keys),
        draft.folder / "documents_by_key",
    )
    types_P2 = _relation_types(indptr_by_part, columns)
    train_types_P2 = types_P2[: indptr_by_part["relations"][(split_N == 0).sum()]]
    is_candidate_TT = _type_pairs(
        train_types_P2, len(entity_types), is_docred, min_type_pair_relations
    )
    head_types, tail_types = np.nonzero(is_candidate_TT)
    declared = column_tables(
        DocumentStore,
        {
            "document_ids": document_ids,
            "texts": texts.to_arrow(),
            "entity_types": entity_types,
            "entity_keys": entity_keys,
            "relation_names": [NO_RELATION, *relation_names],
            "head_types": head_types,
            "tail_types": tail_types,
            "key_indptr": key_indptr,
            "key_document_L": key_document_L,
            "count_by_word": count_by_word,
        },
    )
    tables = declared | ragged_tables(PARTS, indptr_by_part, columns)
    counts = _counts(split_N, columns)
    counts |= {"entity_keys": len(entity_keys), "relation_names": len(relation_names) + 1}
    counts["relations_outside_candidates"] = int((~is_candidate_TT[tuple(types_P2.T)]).sum())
    flags = {"is_directed": is_docred, "is_multi_label": is_docred}
    leakage = _leakage(texts, split_N, indptr_by_part, columns)
    return draft.commit(DocumentStore, tables, counts, provenance | flags | {"leakage": leakage})


def _leakage(
    texts: Ragged,
    split_N: np.ndarray,
    indptr_by_part: Mapping[str, np.ndarray],
    columns: Mapping[str, np.ndarray],
) -> dict[str, int]:
    """Count documents and relations of dev and test that are also in training, and of dev in test.

    A document counts if another one has its text, under any id. A relation counts if its
    two entities are related in a training document, in either order and by any relation.
    """
    if not split_N.any():
        return {}
    key_N = text_keys(text.as_py().decode() for text in texts.to_arrow())
    row_P = np.repeat(np.arange(len(split_N)), np.diff(indptr_by_part["relations"]))
    first_P = indptr_by_part["entities"][row_P]
    ends_P2 = np.stack([columns["key"][first_P + columns[end]] for end in ("head", "tail")], axis=1)
    pair_P2 = np.sort(ends_P2.astype(np.int64), axis=1)
    pair_P = (pair_P2[:, 0] << 32) + pair_P2[:, 1]
    leakage = {}
    for number, split in enumerate(SPLITS[1:], start=1):
        for name, value, split_of in (
            ("documents", key_N, split_N),
            ("relations", pair_P, split_N[row_P]),
        ):
            is_known = np.isin(value[split_of == number], value[split_of == 0])
            leakage[f"{split}_{name}_in_training"] = int(is_known.sum())
    dev, test = (key_N[split_N == SPLITS.index(split)] for split in ("dev", "test"))
    leakage["dev_documents_in_test"] = int(np.isin(dev, test).sum())
    return leakage


def _counts(split_N: np.ndarray, columns: Mapping[str, np.ndarray]) -> dict[str, int]:
    counts = {"rows": len(split_N)}
    for number, split in enumerate(SPLITS):
        counts[f"{split}_documents"] = int((split_N == number).sum())
    for part, names in PARTS.items():
        counts[part] = len(columns[names[0]])
    return counts


def _documents_by_key(
    indptr_N1: np.ndarray, key_E: np.ndarray, num_keys: int, path: Path
) -> tuple[np.ndarray, np.ndarray]:
    """Return the documents that mention each key, as CSR (indptr, rows); each counts once.

    The rows are mapped from a new file at ``path``, since they may not fit in memory.
    """
    length_K = np.zeros(num_keys, dtype=np.int64)
    for key_B, _ in _mentioned_keys(indptr_N1, key_E):
        length_K += np.bincount(key_B, minlength=num_keys)
    indptr_K1 = indptr_from_lengths(length_K)
    row_L = mapped_array(path, int(indptr_K1[-1]), np.int32)
    next_K = indptr_K1[:-1].copy()
    for key_B, row_B in _mentioned_keys(indptr_N1, key_E):
        order = np.argsort(key_B, kind="stable")
        sorted_B = key_B[order]
        is_first_B = np.diff(sorted_B, prepend=-1) != 0
        first_B = np.flatnonzero(is_first_B)[np.cumsum(is_first_B) - 1]
        row_L[next_K[sorted_B] + np.arange(len(order)) - first_B] = row_B[order]
        next_K += np.bincount(key_B, minlength=num_keys)
    return indptr_K1, row_L


def _mentioned_keys(
    indptr_N1: np.ndarray, key_E: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield blocks of (keys, documents) of entities, by document; each key once per document."""
    for rows in tiles(len(indptr_N1) - 1, 1, _DOCUMENTS_AT_ONCE):
        num_R = np.diff(indptr_N1[rows.start : rows.stop + 1])
        row_E = np.repeat(np.arange(rows.start, rows.stop), num_R)
        key = key_E[indptr_N1[rows.start] : indptr_N1[rows.stop]].astype(np.int64)
        pair_B = distinct((row_E << 32) + key)
        yield pair_B & 0xFFFFFFFF, pair_B >> 32


def _relation_types(
    indptr_by_part: Mapping[str, np.ndarray], columns: Mapping[str, np.ndarray]
) -> np.ndarray:
    """Return the types of head and tail of each relation, int64 (P, 2)."""
    indptr_N1 = indptr_by_part["relations"]
    first_P = np.repeat(indptr_by_part["entities"][:-1], np.diff(indptr_N1))
    head_type_P = columns["type"][first_P + columns["head"]]
    tail_type_P = columns["type"][first_P + columns["tail"]]
    return np.stack([head_type_P, tail_type_P], axis=1).astype(np.int64)


def _type_pairs(
    train_types_P2: np.ndarray, num_types: int, is_directed: bool, min_relations: int
) -> np.ndarray:
    """Return whether each (head type, tail type) is a candidate, bool (T, T).

    Raises:
        DataError: if the relations of all pairs of types are too rare.
    """
    if is_directed:
        return np.ones((num_types, num_types), dtype=bool)
    if not len(train_types_P2):
        return np.triu(np.ones((num_types, num_types), dtype=bool))
    num_TT = np.zeros((num_types, num_types), dtype=np.int64)
    np.add.at(num_TT, tuple(train_types_P2.T), 1)
    if num_TT.max() < min_relations:
        raise DataError(
            f"no pair of types has {min_relations} training relations, so no pair of entities "
            "would be a candidate. Lower --min-type-pair-relations."
        )
    return num_TT >= min_relations
