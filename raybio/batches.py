"""Typed, frozen batches: what the data floor hands to the training floor.

Shape letters: R sequences of a batch, T tokens of all sequences end to end, L padded length, G sequences of the
*global* batch (all workers). In documents: M mentions, E entities, C links between them, P pairs of entities.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

IGNORED_LABEL = -100
PADDING_MULTIPLE = 8


class Batch:
    """Base of batches: flat fields, each one array, so that any of them travels through Arrow unchanged."""

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Self:
        """Build from named numpy arrays; fields keep their dtypes except that integers widen to int64."""
        names = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
        return cls(**{name: _tensor(arrays[name]) for name in names})

    def to(self, device: torch.device | str) -> Self:
        """The same batch on ``device``."""
        moved = {name: tensor.to(device, non_blocking=True) for name, tensor in self._tensors()}
        return type(self)(**moved)

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            yield field.name, getattr(self, field.name)


@dataclass(frozen=True)
class PaddedTokens:
    """Some sequences of a batch as a rectangle, ready for an encoder.

    Attributes:
        token_RL: token ids, padded with the pad id.
        mask_RL: True at real tokens.
        label_RL: token ids to predict, ``IGNORED_LABEL`` elsewhere.
    """

    token_RL: Tensor
    mask_RL: Tensor
    label_RL: Tensor


@dataclass(frozen=True)
class TokenBatch(Batch):
    """Ragged token sequences with the labels of masked language modelling.

    Attributes:
        token_T: token ids, all sequences end to end, special tokens included.
        indptr_R1: sequence r is ``token_T[indptr_R1[r] : indptr_R1[r + 1]]``.
        label_T: the original id where a token was masked for prediction, ``IGNORED_LABEL`` elsewhere.
    """

    token_T: Tensor
    indptr_R1: Tensor
    label_T: Tensor

    @property
    def num_rows(self) -> int:
        """Number of sequences."""
        return len(self.indptr_R1) - 1

    @property
    def length_R(self) -> Tensor:
        """Tokens of each sequence."""
        return self.indptr_R1.diff()

    @property
    def num_embeddings(self) -> int:
        """Embeddings that an encoder makes of the whole batch."""
        return self.num_rows

    def embedding_rows(self, row_M: Tensor) -> Tensor:
        """Numbers, among the embeddings of the whole batch, of those that an encoder makes of sequences ``row_M``."""
        return row_M

    def pad(self, row_M: Tensor, pad_id: int) -> PaddedTokens:
        """Sequences ``row_M`` as a rectangle whose length is rounded up to ``PADDING_MULTIPLE``."""
        start_M, length_M = self.indptr_R1[row_M], self.length_R[row_M]
        longest = int(length_M.max())
        padded_length = -(-longest // PADDING_MULTIPLE) * PADDING_MULTIPLE
        offset_L = torch.arange(padded_length, device=self.token_T.device)
        mask_ML = offset_L < length_M[:, None]
        index_ML = torch.where(mask_ML, start_M[:, None] + offset_L, 0)
        return PaddedTokens(
            token_RL=self.token_T[index_ML].masked_fill(~mask_ML, pad_id),
            mask_RL=mask_ML,
            label_RL=self.label_T[index_ML].masked_fill(~mask_ML, IGNORED_LABEL),
        )


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
        return ranges_of(self.pair_indptr_R1, row_M)[0]

    def pad(self, row_M: Tensor, pad_id: int) -> PaddedDocuments:
        """Documents ``row_M`` as a rectangle, with what lies in them."""
        tokens = super().pad(row_M, pad_id)
        mentions, row_of_mention = ranges_of(self.mention_indptr_R1, row_M)
        links, row_of_link = ranges_of(self.link_indptr_R1, row_M)
        pairs, row_of_pair = ranges_of(self.pair_indptr_R1, row_M)
        first_mention_M, first_entity_M = (
            starts_of(self.mention_indptr_R1, row_M),
            starts_of(self.entity_indptr_R1, row_M),
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


@dataclass(frozen=True)
class LinkBatch(TokenBatch):
    """One worker's shard of a step of structure-preserving pre-training.

    The R sequences are the shard's anchors, then their positives, then their negatives. Columns of the pair masks run
    over the G sequences of the global batch: the shards of all workers in rank order, each in that same layout.

    Attributes:
        row_R: store row (graph node) of each sequence.
        num_anchors: how many sequences are anchors, shape ().
        linked_RG: True where the two nodes are linked in the graph.
        ignore_RG: True where a pair is neither positive nor negative: a sequence and itself, and by default copies of
            the same node.
        num_fallback_negatives: negatives that had to come from outside their anchor's group, shape ().
    """

    row_R: Tensor
    num_anchors: Tensor
    linked_RG: Tensor
    ignore_RG: Tensor
    num_fallback_negatives: Tensor


@dataclass(frozen=True)
class TaskBatch(TokenBatch):
    """One worker's shard of a step of a supervised task; ``label_T`` holds the class of each token, if those have one.

    Attributes:
        target_R: class or number of each sequence, float64.
    """

    target_R: Tensor


@dataclass(frozen=True)
class PairBatch(TokenBatch):
    """One worker's shard of a step of (text, term) pairs: N texts, then their N terms, R = 2 N sequences.

    Columns of the masks run over the pairs of the global batch: the shards of all workers in rank order.

    Attributes:
        ignore_NG: True where the term of another pair belongs to the text's own article.
        ignore_reverse_NG: True where the term belongs to the article of another pair's text; (N, 0) if not asked for.
        num_deferred: pairs that were put off from an earlier batch, shape ().
        num_forced: pairs that conflict with others of the batch and were taken all the same, shape ().
    """

    ignore_NG: Tensor
    ignore_reverse_NG: Tensor
    num_deferred: Tensor
    num_forced: Tensor


@dataclass(frozen=True)
class ClozeBatch(TokenBatch):
    """One worker's shard of a step of cloze pairs: N queries, then their N answers, R = 2 N sequences.

    Columns run over the G sequences of the global batch: the shards of all workers in rank order, each in that layout.

    Attributes:
        positive_R: column of the answer of each query and of the query of each answer.
        ignore_RG: True where a column is neither positive nor negative: the sequence itself, all of an equal sentence,
            and all whose text is that of the sequence or of its positive.
    """

    positive_R: Tensor
    ignore_RG: Tensor


def ranges_of(indptr_R1: Tensor, row_M: Tensor) -> tuple[Tensor, Tensor]:
    """Indices of all that rows ``row_M`` hold, row after row, and the place in ``row_M`` of each one's row."""
    size_M = indptr_R1.diff()[row_M]
    place_K = torch.repeat_interleave(torch.arange(len(row_M), device=row_M.device), size_M)
    offset_K = torch.arange(len(place_K), device=row_M.device) - (size_M.cumsum(0) - size_M)[place_K]
    return indptr_R1[row_M][place_K] + offset_K, place_K


def starts_of(indptr_R1: Tensor, row_M: Tensor) -> Tensor:
    """Where each of rows ``row_M`` begins, if these alone lay end to end."""
    size_M = indptr_R1.diff()[row_M]
    return size_M.cumsum(0) - size_M


def _tensor(array: np.ndarray) -> Tensor:
    array = np.asarray(array)
    if array.dtype.kind in "iu" and array.dtype != np.int64:
        array = array.astype(np.int64)
    # Arrow hands out read-only views; torch cannot mark a tensor read-only, so it gets its own bytes.
    return torch.from_numpy(array if array.flags.writeable else array.copy())
