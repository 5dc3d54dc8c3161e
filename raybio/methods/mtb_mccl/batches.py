"""Typed batches of documents with entity pairs."""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from raybio.core.batch import PaddedTokens, TokenBatch
from raybio.ops.grouped import gather_segments, segment_starts

Pairs = tuple[np.ndarray, np.ndarray]
"""(head, tail): numbers of the entities of a document's pairs."""


@dataclass(frozen=True)
class PaddedDocuments(PaddedTokens):
    """Some documents of a batch as a rectangle, with their mentions, entities and pairs numbered through.

    Attributes:
        row_M: document of each mention, a row of ``token_RL``.
        position_M: position of its opening marker there.
        mention_C: mention of each link.
        entity_C: entity of each link; an entity none of whose mentions was read has no link.
        num_entities: E.
        row_P: document of each pair.
        head_P: first entity of each pair.
        tail_P: second entity of each pair.
    """

    row_M: Tensor
    position_M: Tensor
    mention_C: Tensor
    entity_C: Tensor
    num_entities: int
    row_P: Tensor
    head_P: Tensor
    tail_P: Tensor


@dataclass(frozen=True)
class DocumentBatch(TokenBatch):
    """Documents as sequences, whose embeddings are those of their pairs of entities.

    Everything lies end to end, document by document, and is numbered within its document.

    Attributes:
        mention_indptr_R1: mentions of each document.
        position_M: position in its document of the marker that opens a mention.
        entity_indptr_R1: entities of each document.
        link_indptr_R1: links of each document.
        mention_C: mention of a link.
        entity_C: entity of a link; a mention may belong to several.
        pair_indptr_R1: pairs of each document.
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
        """Pairs of all documents."""
        return len(self.head_P)

    def embedding_rows(self, row_M: Tensor) -> Tensor:
        """Numbers of the pairs of documents ``row_M``."""
        return gather_segments(self.pair_indptr_R1, row_M)[0]

    def pad(self, row_M: Tensor, pad_id: int) -> PaddedDocuments:
        """Documents ``row_M`` as a rectangle, with what lies in them."""
        tokens = super().pad(row_M, pad_id)
        mentions, row_of_mention = gather_segments(self.mention_indptr_R1, row_M)
        links, row_of_link = gather_segments(self.link_indptr_R1, row_M)
        pairs, row_of_pair = gather_segments(self.pair_indptr_R1, row_M)
        first_mention_M, first_entity_M = (
            segment_starts(self.mention_indptr_R1, row_M),
            segment_starts(self.entity_indptr_R1, row_M),
        )
        return PaddedDocuments(
            token_RL=tokens.token_RL,
            mask_RL=tokens.mask_RL,
            label_RL=tokens.label_RL,
            row_M=row_of_mention,
            position_M=self.position_M[mentions],
            mention_C=self.mention_C[links] + first_mention_M[row_of_link],
            entity_C=self.entity_C[links] + first_entity_M[row_of_link],
            num_entities=int(self.entity_indptr_R1.diff()[row_M].sum()),
            row_P=row_of_pair,
            head_P=self.head_P[pairs] + first_entity_M[row_of_pair],
            tail_P=self.tail_P[pairs] + first_entity_M[row_of_pair],
        )


@dataclass(frozen=True)
class LabelledDocumentBatch(DocumentBatch):
    """One worker's shard of a step of relation extraction.

    Attributes:
        label_PC: True where a pair has a relation, (P, C) with "none" as class 0.
    """

    label_PC: Tensor


@dataclass(frozen=True)
class TwinDocumentBatch(DocumentBatch):
    """One worker's shard of a step of matching the blanks: its documents, and then the same ones once more.

    Attributes:
        id_N: number of the two entities of each pair of the first half, the same in all documents.
        type_N: number of their types, in order.
    """

    id_N: Tensor
    type_N: Tensor
