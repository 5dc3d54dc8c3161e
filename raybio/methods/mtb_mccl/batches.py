"""Typed batches of documents with entity pairs.

Shape letters: R documents, L padded length, T tokens of all documents, M mentions, C links of
mentions to entities, E entities, P pairs; R1 is R + 1 (CSR pointers).
"""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from raybio.core.batch import PaddedTokens, TokenBatch
from raybio.ops.grouped import gather_segments, segment_starts

Pairs = tuple[np.ndarray, np.ndarray]
"""(head (P,), tail (P,)): the entities of each pair, as numbered in their document."""


@dataclass(frozen=True)
class PaddedDocuments(PaddedTokens):
    """A padded micro-batch; mentions, entities and pairs are numbered across its documents.

    Attributes:
        row_M: document of each mention, a row of ``token_RL``.
        position_M: position of the mention's opening marker in that row.
        mention_C: mention of each link.
        entity_C: entity of each link. Entities whose mentions were all truncated have no link.
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
        return gather_segments(self.pair_indptr_R1, row_M)[0]

    def pad(self, row_M: Tensor, pad_id: int) -> PaddedDocuments:
        """Return documents ``row_M`` as a rectangle, with their mentions, entities and pairs."""
        tokens = super().pad(row_M, pad_id)
        mentions, row_of_mention = gather_segments(self.mention_indptr_R1, row_M)
        links, row_of_link = gather_segments(self.link_indptr_R1, row_M)
        pairs, row_of_pair = gather_segments(self.pair_indptr_R1, row_M)
        first_mention_M = segment_starts(self.mention_indptr_R1, row_M)
        first_entity_M = segment_starts(self.entity_indptr_R1, row_M)
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
