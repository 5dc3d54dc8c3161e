"""Typed batches of documents with entity pairs.

Shape letters: R documents, L padded length, T tokens of all documents, M mentions, C links of
mentions to entities, E entities, P pairs; R1 is R + 1 (CSR pointers).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raybio.core.batch import PackedTokens, PaddedTokens, TokenBatch, field_values
from raybio.ops.segments import entries_of_rows

Pairs = tuple[np.ndarray, np.ndarray]
"""(head (P,), tail (P,)): the entities of each pair, as numbered in their document."""


@dataclass(frozen=True)
class DocumentParts:
    """Mentions, entities and pairs of a micro-batch, numbered across its documents.

    Attributes:
        row_M: document of each mention.
        position_M: position of the mention's opening marker in its document.
        mention_C: mention of each link.
        entity_C: entity of each link. Entities whose mentions were all truncated have no link.
        num_entities: E.
        row_P: document of each pair, ascending.
        head_P: first entity of each pair.
        tail_P: second entity of each pair.
        num_tokens_R: tokens of each document.
        num_mentions_R: mentions of each document.
        num_pairs_R: pairs of each document.
    """

    row_M: Tensor
    position_M: Tensor
    mention_C: Tensor
    entity_C: Tensor
    num_entities: int
    row_P: Tensor
    head_P: Tensor
    tail_P: Tensor
    num_tokens_R: list[int]
    num_mentions_R: list[int]
    num_pairs_R: list[int]


@dataclass(frozen=True)
class PaddedDocuments(DocumentParts, PaddedTokens):
    """A padded micro-batch of documents."""


@dataclass(frozen=True)
class PackedDocuments(DocumentParts, PackedTokens):
    """A packed micro-batch of documents."""


@dataclass(frozen=True)
class DocumentBatch(TokenBatch):
    """Documents as token sequences; the embeddings of a document are those of its entity pairs.

    All arrays are concatenated over documents. Mentions, entities and pairs are numbered within
    their document.

    Attributes:
        mention_indptr_R1: CSR pointers to the mentions of each document.
        position_M: position of the mention's opening marker in its document.
        entity_indptr_R1: CSR pointers to the entities of each document.
        link_indptr_R1: CSR pointers to the links of each document.
        mention_C: mention of a link.
        entity_C: entity of a link; a mention may belong to several entities.
        pair_indptr_R1: CSR pointers to the pairs of each document.
        head_P: first entity of a pair.
        tail_P: second entity of a pair.
    """

    mention_indptr_R1: Tensor
    position_M: Tensor
    entity_indptr_R1: Tensor
    link_indptr_R1: Tensor
    mention_C: Tensor
    entity_C: Tensor
    pair_indptr_R1: Tensor
    head_P: Tensor
    tail_P: Tensor

    @property
    def num_embeddings(self) -> int:
        """Number of pairs of all documents."""
        return len(self.head_P)

    def embedding_rows(self, row_M: Tensor) -> Tensor:
        """Return the numbers of the pairs of documents ``row_M``."""
        return torch.from_numpy(entries_of_rows(self.pair_indptr_R1.numpy(), row_M.numpy())[0])

    def pad(self, row_M: Tensor, pad_id: int) -> PaddedDocuments:
        """Return documents ``row_M`` as a rectangle, with their mentions, entities and pairs."""
        tokens = super().pad(row_M, pad_id)
        return PaddedDocuments(**field_values(tokens), **self._parts(row_M.numpy()))

    def pack(self, row_M: Tensor, pad_id: int, *, num_tokens: int | None = None) -> PackedDocuments:
        """Return documents ``row_M`` end to end, with their mentions, entities and pairs."""
        tokens = super().pack(row_M, pad_id, num_tokens=num_tokens)
        return PackedDocuments(**field_values(tokens), **self._parts(row_M.numpy()))

    def _parts(self, rows: np.ndarray) -> dict[str, Any]:
        """Return mentions, entities and pairs of documents, numbered across them."""
        mentions, row_of_mention = entries_of_rows(self.mention_indptr_R1.numpy(), rows)
        links, row_of_link = entries_of_rows(self.link_indptr_R1.numpy(), rows)
        pairs, row_of_pair = entries_of_rows(self.pair_indptr_R1.numpy(), rows)
        num_mentions_M = np.diff(self.mention_indptr_R1.numpy())[rows]
        num_entities_M = np.diff(self.entity_indptr_R1.numpy())[rows]
        first_mention_M = np.cumsum(num_mentions_M) - num_mentions_M
        first_entity_M = np.cumsum(num_entities_M) - num_entities_M
        parts = {
            "row_M": row_of_mention,
            "position_M": self.position_M.numpy()[mentions],
            "mention_C": self.mention_C.numpy()[links] + first_mention_M[row_of_link],
            "entity_C": self.entity_C.numpy()[links] + first_entity_M[row_of_link],
            "row_P": row_of_pair,
            "head_P": self.head_P.numpy()[pairs] + first_entity_M[row_of_pair],
            "tail_P": self.tail_P.numpy()[pairs] + first_entity_M[row_of_pair],
        }
        return {name: torch.from_numpy(part) for name, part in parts.items()} | {
            "num_entities": int(num_entities_M.sum()),
            "num_tokens_R": np.diff(self.indptr_R1.numpy())[rows].tolist(),
            "num_mentions_R": num_mentions_M.tolist(),
            "num_pairs_R": np.diff(self.pair_indptr_R1.numpy())[rows].tolist(),
        }


@dataclass(frozen=True)
class LabeledDocumentBatch(DocumentBatch):
    """One worker's shard of a fine-tuning step.

    Attributes:
        label_PC: bool (P, C), True for each class of a pair; class 0 is NA (no relation).
    """

    label_PC: Tensor


@dataclass(frozen=True)
class TwinDocumentBatch(DocumentBatch):
    """One worker's shard of an MTB step: its documents, followed by the same documents again.

    Attributes:
        id_N: number of each entity pair of the first half, equal across documents.
        type_N: number of the pair's (head type, tail type).
    """

    id_N: Tensor
    type_N: Tensor
