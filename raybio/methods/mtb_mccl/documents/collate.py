"""Collate documents of a store into the arrays of a ``DocumentBatch``.

Shape letters as in ``batches``: R documents, T tokens, M mentions, E entities, C links, P pairs;
S tokens of one document.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from raybio.core.batch import IGNORED_LABEL
from raybio.encoders.tokenization import BYTES_PER_TOKEN
from raybio.methods.mtb_mccl.batches import Pairs
from raybio.methods.mtb_mccl.documents.markers import (
    NOT_READ,
    MarkedDocument,
    Markers,
    TextTokens,
    insert_markers,
)
from raybio.methods.mtb_mccl.documents.store import DocumentStore
from raybio.ops.segments import indptr_from_lengths

Arrays = dict[str, np.ndarray]

Tokenize = Callable[[str], tuple[np.ndarray, np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class DocumentReader:
    """Reads documents of a store for an encoder.

    Attributes:
        store: the documents.
        tokenize: the encoder's tokenizer: text -> the arrays of ``TextTokens``; hashable.
        markers: special token ids.
        max_tokens: maximum number of tokens of a document, special ones included.
    """

    store: DocumentStore
    tokenize: Tokenize
    markers: Markers
    max_tokens: int

    def lengths(self, row_R: np.ndarray) -> np.ndarray:
        """Return about how many bytes are read of each document, markers included (R,)."""
        marker_bytes_R = 2 * BYTES_PER_TOKEN * self.store.num_mentions(row_R)
        length_R = self.store.text_lengths(row_R) + marker_bytes_R
        return np.minimum(length_R, BYTES_PER_TOKEN * self.max_tokens)

    def marked(self, row: int, is_blank_E: np.ndarray | None = None) -> MarkedDocument:
        """Return a document's tokens with markers; blanked entities lose all their mentions."""
        start_M, end_M = self.store.mentions(row)
        is_blank_M = np.zeros(len(start_M), dtype=bool)
        if is_blank_E is not None:
            mention_C, entity_C = self.store.links(row)
            is_blank_M[mention_C[is_blank_E[entity_C]]] = True
        return insert_markers(
            _tokens(self.store, row, self.tokenize),
            start_M,
            end_M,
            is_blank_M,
            self.markers,
            self.max_tokens,
        )

    def arrays(
        self, rows: Sequence[int], marked: Sequence[MarkedDocument], pairs: Sequence[Pairs]
    ) -> Arrays:
        """Return the arrays of a ``DocumentBatch``, without masked tokens.

        Args:
            rows: documents, rows of the store.
            marked: the tokens of each document.
            pairs: (head, tail) of each document's pairs.
        """
        tokens = [document.id_S for document in marked]
        positions = []
        mentions = []
        entities = []
        for row, document in zip(rows, marked, strict=True):
            position_M, mention_C, entity_C = self._links(row, document)
            positions.append(position_M)
            mentions.append(mention_C)
            entities.append(entity_C)
        num_entities = [len(self.store.types(row)) for row in rows]
        token_T = _concatenate(tokens).astype(np.int32)
        return {
            "token_T": token_T,
            "indptr_R1": _indptr(tokens),
            "label_T": np.full(len(token_T), IGNORED_LABEL, dtype=np.int32),
            "mention_indptr_R1": _indptr(positions),
            "position_M": _concatenate(positions),
            "entity_indptr_R1": indptr_from_lengths(num_entities),
            "link_indptr_R1": _indptr(mentions),
            "mention_C": _concatenate(mentions),
            "entity_C": _concatenate(entities),
            "pair_indptr_R1": _indptr([head_P for head_P, _ in pairs]),
            "head_P": _concatenate([head_P for head_P, _ in pairs]),
            "tail_P": _concatenate([tail_P for _, tail_P in pairs]),
        }

    def is_read(self, row: int) -> np.ndarray:
        """Return whether the encoder reads a mention of each entity, bool (E,)."""
        _, _, entity_C = self._links(row, self.marked(row))
        is_read_E = np.zeros(len(self.store.types(row)), dtype=bool)
        is_read_E[entity_C] = True
        return is_read_E

    def _links(self, row: int, marked: MarkedDocument) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return positions of the mentions that are read, and mention and entity of their links."""
        mention_C, entity_C = self.store.links(row)
        is_read_M = marked.position_M != NOT_READ
        number_M = np.cumsum(is_read_M) - 1
        is_read_C = is_read_M[mention_C]
        return marked.position_M[is_read_M], number_M[mention_C[is_read_C]], entity_C[is_read_C]


@lru_cache(maxsize=8192)
def _tokens(store: DocumentStore, row: int, tokenize: Tokenize) -> TextTokens:
    id_T, start_T, end_T = tokenize(store.text(row))
    return TextTokens(id_T.astype(np.int32), start_T.astype(np.int32), end_T.astype(np.int32))


def _indptr(parts: Sequence[np.ndarray]) -> np.ndarray:
    return indptr_from_lengths([len(part) for part in parts])


def _concatenate(parts: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.zeros(0, dtype=np.int64), *parts]).astype(np.int64)
