"""The store of documents with entities and, where they are known, relations; rows are sorted by split.

Shape letters: N documents; of all documents end to end or of one: M places with mentions, C (mention, entity) links,
E entities, P relations, K candidate pairs. T types, Y keys, L entries of the keys' lists of documents.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from raybio.core.errors import ConfigError, DataError
from raybio.ops.segments import indptr_from_lengths
from raybio.store.columns import ArrowColumn, NumberColumn, TextColumn, column_tables
from raybio.store.ragged import Ragged, RaggedStore, ragged_tables
from raybio.store.relation_labels import NO_RELATION
from raybio.store.store import SPLITS
from raybio.store.word_counts import WordCounts
from raybio.store.writer import Draft

ROWS, WORDS = "rows.arrow", "words.arrow"


TYPES, KEYS, RELATION_NAMES, TYPE_PAIRS = (
    "types.arrow",
    "keys.arrow",
    "relation_names.arrow",
    "type_pairs.arrow",
)


KEY_POINTERS, KEY_DOCUMENTS = "key_pointers.arrow", "key_documents.arrow"


PARTS: dict[str, tuple[str, ...]] = {
    "mentions": ("start", "end"),
    "links": ("mention", "entity"),
    "entities": ("type", "key"),
    "relations": ("head", "tail", "label"),
}
"""What a document has several of -> the columns of its file; ``pointers.arrow`` says which rows are whose."""


class DocumentStore(RaggedStore):
    """An open store of documents.

    Entities of a document are numbered in the order of their first mentions, and mentions in that of the text.
    """

    kind = "documents"
    parts = PARTS

    document_ids = ArrowColumn(ROWS, "document_id", pa.large_string())
    """Id of each document: a PMID, or a title."""

    texts = ArrowColumn(ROWS, "text")
    """Text of each document, UTF-8."""

    entity_types = TextColumn(TYPES, "name")
    """The types that occur, in the order of ``documents.type_rank``."""

    entity_keys = ArrowColumn(KEYS, "key", pa.large_string())
    """The identities of entities (Y,), ascending: "Gene:7157", "Chemical:~an unknown drug"."""

    relation_names = TextColumn(RELATION_NAMES, "name")
    """Names of the relations; number 0 is "NA", which is never stored."""

    head_types = NumberColumn(TYPE_PAIRS, "head", np.int64)
    tail_types = NumberColumn(TYPE_PAIRS, "tail", np.int64)

    key_indptr = NumberColumn(KEY_POINTERS, "indptr")
    """Entity y occurs in documents ``key_document_L[key_indptr[y] : key_indptr[y + 1]]``; (Y + 1,)."""

    key_document_L = NumberColumn(KEY_DOCUMENTS, "row")

    count_by_word = WordCounts(WORDS)
    """Counts of the most frequent words in training documents, for a tokenizer that is trained from scratch."""

    def split_rows(self, name: str) -> np.ndarray:
        """Rows of "train", "dev" or "test", int64; contiguous, empty if there are none.

        Raises:
            ConfigError: for another name.
        """
        if name not in SPLITS:
            raise ConfigError(f"split {name!r} is none of {', '.join(SPLITS)}")
        nums = [self.manifest["counts"][f"{split}_documents"] for split in SPLITS]
        first = sum(nums[: SPLITS.index(name)])
        return np.arange(first, first + nums[SPLITS.index(name)])

    def document_id(self, row: int) -> str:
        """Id of a document: a PMID, or a title."""
        return str(self.document_ids[int(row)].as_py())

    def text(self, row: int) -> str:
        """Text of a document; its mentions' offsets count its characters."""
        return self.texts[int(row)].as_py().decode()

    def mentions(self, row: int) -> tuple[np.ndarray, np.ndarray]:
        """Offsets (start (M,), end (M,)) of the places with mentions, int64, ascending and each place once."""
        return self._of("mentions", "start", row), self._of("mentions", "end", row)

    def links(self, row: int) -> tuple[np.ndarray, np.ndarray]:
        """Which mention names which entity: (mention (C,), entity (C,)), int64, ascending."""
        return self._of("links", "mention", row), self._of("links", "entity", row)

    def types(self, row: int) -> np.ndarray:
        """Type of each entity (E,): its place in ``entity_types``, int64."""
        return self._of("entities", "type", row)

    def keys(self, row: int) -> np.ndarray:
        """Identity of each entity across documents (E,): its place in ``entity_keys``, int64."""
        return self._of("entities", "key", row)

    @property
    def entity_indptr_N1(self) -> np.ndarray:
        """``np.diff`` of it is the number of entities of each document; mapped."""
        return self._arrays["entities", ""]

    def entities(self, first: int, stop: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """All entities of documents ``first`` to ``stop - 1`` end to end: (row (E,), type (E,), key (E,)), int64."""
        bounds = self.entity_indptr_N1[first : stop + 1]
        row_E = np.repeat(np.arange(first, stop), np.diff(bounds))
        type_E, key_E = (
            self._arrays["entities", name][bounds[0] : bounds[-1]] for name in PARTS["entities"]
        )
        return row_E, type_E.astype(np.int64), key_E.astype(np.int64)

    def relations(self, row: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(head (P,), tail (P,), label (P,)), int64: entities of the document, and places in ``relation_names``.

        Where relations have no direction, head and tail are in the order of ``candidates``.
        """
        return (
            self._of("relations", "head", row),
            self._of("relations", "tail", row),
            self._of("relations", "label", row),
        )

    def candidates(self, row: int) -> tuple[np.ndarray, np.ndarray]:
        """The pairs of entities to be classified: (head (K,), tail (K,)), int64, ascending.

        Directed relations: all ordered pairs of different entities. Else: the unordered pairs whose types are one of
        ``type_pairs``; the head is the entity whose type comes first in ``entity_types``, within a type the one that is
        mentioned first.
        """
        type_E = self.types(row)
        if self.is_directed:
            head, tail = np.nonzero(~np.eye(len(type_E), dtype=bool))
            return head, tail
        order_E = np.argsort(type_E, kind="stable")
        first, second = np.triu_indices(len(type_E), 1)
        head, tail = order_E[first], order_E[second]
        is_allowed = self.is_candidate_TT[type_E[head], type_E[tail]]
        head, tail = head[is_allowed], tail[is_allowed]
        by_head = np.lexsort((tail, head))
        return head[by_head], tail[by_head]

    def documents_of(self, key: int) -> np.ndarray:
        """Rows of the documents that mention an entity, ascending."""
        return self.key_document_L[self.key_indptr[key] : self.key_indptr[key + 1]]

    @cached_property
    def type_pairs(self) -> frozenset[tuple[int, int]]:
        """(type of the head, type of the tail) of the pairs that are candidates."""
        return frozenset(zip(self.head_types.tolist(), self.tail_types.tolist(), strict=True))

    @cached_property
    def is_candidate_TT(self) -> np.ndarray:
        """Whether (type of the head, type of the tail) is one of ``type_pairs``; bool (T, T)."""
        allowed = np.zeros((len(self.entity_types), len(self.entity_types)), dtype=bool)
        allowed[tuple(np.array(sorted(self.type_pairs), np.int64).reshape(-1, 2).T)] = True
        return allowed

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
        draft: where.
        document_ids: strings (N,).
        texts: UTF-8; may be mapped from a file.
        split_N: place of each document's split in ``SPLITS``, ascending.
        indptr_by_part: (N + 1,) for each of ``PARTS``.
        columns: the columns of all ``PARTS``.
        entity_types: as the attribute of ``DocumentStore``, and so the next two.
        entity_keys: ascending.
        relation_names: without ``NO_RELATION``, which becomes number 0.
        is_docred: whether relations have a direction, and a pair several.
        min_type_pair_relations: pairs of types with fewer training relations are no candidates; without direction only.
        count_by_word: as ``DocumentStore.count_by_word``.
        provenance: further entries of the manifest.

    Raises:
        DataError: if relations of all pairs of types are too rare.
        StoreError: if it cannot be written.
    """
    key_indptr, key_document_L = _documents_by_key(
        indptr_by_part["entities"], columns["key"], len(entity_keys)
    )
    types_P2 = _relation_types(indptr_by_part, columns)
    train_types_P2 = types_P2[: indptr_by_part["relations"][(split_N == 0).sum()]]
    is_allowed_TT = _type_pairs(
        train_types_P2, len(entity_types), is_docred, min_type_pair_relations
    )
    head_types, tail_types = np.nonzero(is_allowed_TT)
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
    counts["relations_outside_candidates"] = int((~is_allowed_TT[tuple(types_P2.T)]).sum())
    flags = {"is_directed": is_docred, "is_multi_label": is_docred}
    return draft.commit(DocumentStore, tables, counts, provenance | flags)


def _counts(split_N: np.ndarray, columns: Mapping[str, np.ndarray]) -> dict[str, int]:
    counts = {"rows": len(split_N)}
    counts |= {
        f"{split}_documents": int((split_N == number).sum()) for number, split in enumerate(SPLITS)
    }
    return counts | {part: len(columns[names[0]]) for part, names in PARTS.items()}


def _documents_by_key(
    indptr_N1: np.ndarray, key_E: np.ndarray, num_keys: int
) -> tuple[np.ndarray, np.ndarray]:
    """The rows that mention each key, as CSR; a document counts once."""
    row_E = np.repeat(np.arange(len(indptr_N1) - 1), np.diff(indptr_N1))
    order = np.lexsort((row_E, key_E))
    key_E, row_E = key_E[order], row_E[order]
    is_new = np.ones(len(key_E), dtype=bool)
    is_new[1:] = (np.diff(key_E) != 0) | (np.diff(row_E) != 0)
    indptr = indptr_from_lengths(np.bincount(key_E[is_new], minlength=num_keys))
    return indptr, row_E[is_new]


def _relation_types(
    indptr_by_part: Mapping[str, np.ndarray], columns: Mapping[str, np.ndarray]
) -> np.ndarray:
    """Types of the head and the tail of each relation, int64 (P, 2)."""
    indptr_N1 = indptr_by_part["relations"]
    first_P = np.repeat(indptr_by_part["entities"][:-1], np.diff(indptr_N1))
    return np.stack(
        [columns["type"][first_P + columns[end]] for end in ("head", "tail")], axis=1
    ).astype(np.int64)


def _type_pairs(
    train_types_P2: np.ndarray, num_types: int, is_directed: bool, min_relations: int
) -> np.ndarray:
    """Which (head, tail) types are candidates, bool (T, T).

    Raises:
        DataError: if all of them are too rare.
    """
    if is_directed:
        return np.ones((num_types, num_types), dtype=bool)
    if not len(train_types_P2):
        return np.triu(np.ones((num_types, num_types), dtype=bool))
    num_TT = np.zeros((num_types, num_types), dtype=np.int64)
    np.add.at(num_TT, tuple(train_types_P2.T), 1)
    if num_TT.max() < min_relations:
        raise DataError(
            f"no pair of types has {min_relations} training relations, so no pair of entities would be a candidate. "
            "Lower --min-type-pair-relations."
        )
    return num_TT >= min_relations
