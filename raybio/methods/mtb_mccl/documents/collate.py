"""Collate documents."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from raybio.core.batch import IGNORED_LABEL
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


ReadText = Callable[[str], tuple[np.ndarray, np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class DocumentReader:
    """Documents with their markers, as an encoder reads them.

    Attributes:
        store: the documents.
        read: the encoder's tokenizer: text -> ``TextTokens``; hashable.
        markers: token ids that are no words.
        max_tokens: most tokens of a document, special ones included.
    """

    store: DocumentStore
    read: ReadText
    markers: Markers
    max_tokens: int

    def marked(self, row: int, is_blank_E: np.ndarray | None = None) -> MarkedDocument:
        """A document's tokens; entities that are blanked lose their words in all mentions."""
        start_M, end_M = self.store.mentions(row)
        is_blank_M = np.zeros(len(start_M), dtype=bool)
        if is_blank_E is not None:
            mention_C, entity_C = self.store.links(row)
            is_blank_M[mention_C[is_blank_E[entity_C]]] = True
        return insert_markers(
            _tokens(self.store, row, self.read),
            start_M,
            end_M,
            is_blank_M,
            self.markers,
            self.max_tokens,
        )

    def arrays(
        self,
        rows: Sequence[int],
        marked: Sequence[MarkedDocument],
        pairs: Sequence[tuple[np.ndarray, np.ndarray]],
    ) -> Arrays:
        """The arrays of a ``DocumentBatch``, with nothing to be guessed.

        Args:
            rows: of the store.
            marked: what is read of each.
            pairs: (head, tail) numbers of the entities of each one's pairs.
        """
        links = [self._links(row, one) for row, one in zip(rows, marked, strict=True)]
        head_P, tail_P = (_end_to_end([pair[side] for pair in pairs]) for side in (0, 1))
        return {
            "token_T": _end_to_end([one.id_S for one in marked]).astype(np.int32),
            "indptr_R1": indptr_from_lengths([len(one.id_S) for one in marked]),
            "label_T": np.full(sum(len(one.id_S) for one in marked), IGNORED_LABEL, dtype=np.int32),
            "mention_indptr_R1": indptr_from_lengths(
                [len(position_M) for position_M, _, _ in links]
            ),
            "position_M": _end_to_end([position_M for position_M, _, _ in links]),
            "entity_indptr_R1": indptr_from_lengths([len(self.store.types(row)) for row in rows]),
            "link_indptr_R1": indptr_from_lengths([len(mention_C) for _, mention_C, _ in links]),
            "mention_C": _end_to_end([mention_C for _, mention_C, _ in links]),
            "entity_C": _end_to_end([entity_C for _, _, entity_C in links]),
            "pair_indptr_R1": indptr_from_lengths([len(pair[0]) for pair in pairs]),
            "head_P": head_P,
            "tail_P": tail_P,
        }

    def _links(self, row: int, marked: MarkedDocument) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Positions of the mentions that are read, and their links."""
        mention_C, entity_C = self.store.links(row)
        is_read_M = marked.position_M != NOT_READ
        number_M = np.cumsum(is_read_M) - 1
        is_read_C = is_read_M[mention_C]
        return marked.position_M[is_read_M], number_M[mention_C[is_read_C]], entity_C[is_read_C]


@lru_cache(maxsize=8192)
def _tokens(store: DocumentStore, row: int, read: ReadText) -> TextTokens:
    id_T, start_T, end_T = read(store.text(row))
    return TextTokens(id_T.astype(np.int32), start_T.astype(np.int32), end_T.astype(np.int32))


def _end_to_end(parts: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.zeros(0, dtype=np.int64), *parts]).astype(np.int64)
