"""Typed batches of documents with entity pairs.

Shape letters: R documents, L padded length, T tokens of all documents, M mentions, J mentions of
the document that has most, C links of mentions to entities, E entities, P pairs, X groups of pairs;
R1 is R + 1 (CSR pointers).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raybio.core.batch import PackedTokens, PaddedTokens, TokenBatch, field_values
from raybio.ops.segments import entries_of_rows, positions_within

Pairs = tuple[np.ndarray, np.ndarray]
"""(head (P,), tail (P,)): the entities of each pair, as numbered in their document."""

MAX_PAIRS_PER_GROUP = 64
"""Maximum number of pairs of a group; a document with more has several groups, to bound padding."""


@dataclass(frozen=True)
class DocumentParts:
    """Mentions, entities and pairs of a micro-batch, entities numbered across its documents.

    Mentions are padded to a rectangle (R, J), and pairs to a rectangle of groups, so that a few
    operations process all documents at once.

    Attributes:
        position_RJ: position of each mention's opening marker in its document; 0 at padding.
        slot_C: mention of each link, as its index in the flattened rectangle.
        entity_C: entity of each link. Entities whose mentions were all truncated have no link.
        num_entities: E.
        head_P: first entity of each pair.
        tail_P: second entity of each pair.
        row_X: document of each group of pairs.
        pairs_per_group: pairs of a group, padding included.
        slot_P: index of each pair in the groups, flattened.
        num_tokens_R: tokens of each document.
    """

    position_RJ: Tensor
    slot_C: Tensor
    entity_C: Tensor
    num_entities: int
    head_P: Tensor
    tail_P: Tensor
    row_X: Tensor
    pairs_per_group: int
    slot_P: Tensor
    num_tokens_R: list[int]


@dataclass(frozen=True)
class PaddedDocuments(DocumentParts, PaddedTokens):
    """A padded micro-batch of documents."""


@dataclass(frozen=True)
class PackedDocuments(DocumentParts, PackedTokens):
    """A packed micro-batch of documents."""


@dataclass(frozen=True)
class DocumentBatch(TokenBatch):
    """Documents as token sequences; a document has one embedding for each of its entity pairs.

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
        num_mentions_R = np.diff(self.mention_indptr_R1.numpy())[rows]
        num_entities_R = np.diff(self.entity_indptr_R1.numpy())[rows]
        num_pairs_R = np.diff(self.pair_indptr_R1.numpy())[rows]
        most_mentions = int(num_mentions_R.max(initial=0))
        position_RJ = np.zeros((len(rows), most_mentions), dtype=np.int64)
        position_RJ[row_of_mention, positions_within(num_mentions_R)] = self.position_M.numpy()[
            mentions
        ]
        first_entity_R = np.cumsum(num_entities_R) - num_entities_R
        pairs_per_group = min(int(num_pairs_R.max(initial=1)), MAX_PAIRS_PER_GROUP)
        num_groups_R = -(-num_pairs_R // pairs_per_group)
        first_slot_R = (np.cumsum(num_groups_R) - num_groups_R) * pairs_per_group
        parts = {
            "position_RJ": position_RJ,
            "slot_C": row_of_link * most_mentions + self.mention_C.numpy()[links],
            "entity_C": first_entity_R[row_of_link] + self.entity_C.numpy()[links],
            "head_P": first_entity_R[row_of_pair] + self.head_P.numpy()[pairs],
            "tail_P": first_entity_R[row_of_pair] + self.tail_P.numpy()[pairs],
            "row_X": np.repeat(np.arange(len(rows)), num_groups_R),
            "slot_P": first_slot_R[row_of_pair] + positions_within(num_pairs_R),
        }
        return {name: torch.from_numpy(part) for name, part in parts.items()} | {
            "num_entities": int(num_entities_R.sum()),
            "pairs_per_group": pairs_per_group,
            "num_tokens_R": np.diff(self.indptr_R1.numpy())[rows].tolist(),
        }


@dataclass(frozen=True)
class LabeledDocumentBatch(DocumentBatch):
    """One worker's shard of a fine-tuning step.

    Attributes:
        label_PC: bool (P, C), True for each class of a pair; class 0 is NA (no relation).
        pair_G: pair of each of the G labels, that is, the row of each True in ``label_PC``.
        class_G: class of each label, that is, the column of each True.
    """

    label_PC: Tensor
    pair_G: Tensor
    class_G: Tensor


@dataclass(frozen=True)
class TwinDocumentBatch(DocumentBatch):
    """One worker's shard of an MTB step: its documents, followed by the same documents again.

    Attributes:
        id_N: number of each entity pair of the first half, equal across documents.
        type_N: number of the pair's (head type, tail type).
    """

    id_N: Tensor
    type_N: Tensor
