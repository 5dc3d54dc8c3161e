"""Typed batches of sentences whose words are embedded.

Shape letters: R sentences, T tokens end to end, W words end to end, L padded length. In graphs: A
anchors, G graphs, N nodes, U distinct words of nodes, E edges, F numbers in a feature; K samples of
a word.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from raybio.core.batch import PackedTokens, PaddedTokens, TokenBatch, field_values
from raybio.ops.segments import entries_of_rows


@dataclass(frozen=True)
class PaddedWords(PaddedTokens):
    """A padded micro-batch; words are numbered across its sentences.

    Attributes:
        word_RL: word that a token belongs to; -1: none.
        num_words: number of words of all sentences, including the word 0 of each.
    """

    word_RL: Tensor
    num_words: int


@dataclass(frozen=True)
class PackedWords(PackedTokens):
    """A packed micro-batch; words are numbered across its sentences.

    Attributes:
        word_index_K: tokens that belong to a word.
        word_K: word of each of these tokens.
        num_words: number of words of all sentences, including the word 0 of each.
    """

    word_index_K: Tensor
    word_K: Tensor
    num_words: int


@dataclass(frozen=True)
class WordBatch(TokenBatch):
    """Sentences as token sequences; a sentence has one embedding for each of its words.

    Attributes:
        word_T: word of each token, numbered in its sentence: 0 is the first special token, words
            start at 1; -1: none.
        word_indptr_R1: CSR pointers to the words of each sentence, the word 0 included.
    """

    word_T: Tensor
    word_indptr_R1: Tensor

    @property
    def num_embeddings(self) -> int:
        """Number of words of all sentences."""
        return int(self.word_indptr_R1[-1])

    def embedding_rows(self, row_M: Tensor) -> Tensor:
        """Return the numbers of the words of sentences ``row_M``."""
        return torch.from_numpy(entries_of_rows(self.word_indptr_R1.numpy(), row_M.numpy())[0])

    def pad(self, row_M: Tensor, pad_id: int) -> PaddedWords:
        """Return sentences ``row_M`` as a rectangle, with the word of each token."""
        tokens = super().pad(row_M, pad_id)
        word_K, num_words = self._words(row_M)
        word_RL = torch.full_like(tokens.token_RL, -1)
        word_RL[tokens.mask_RL] = torch.from_numpy(word_K)
        return PaddedWords(tokens.token_RL, tokens.mask_RL, tokens.label_RL, word_RL, num_words)

    def pack(self, row_M: Tensor, pad_id: int, *, num_tokens: int | None = None) -> PackedWords:
        """Return sentences ``row_M`` end to end, with the word of each token."""
        tokens = super().pack(row_M, pad_id, num_tokens=num_tokens)
        word_K, num_words = self._words(row_M)
        index_K = np.flatnonzero(word_K >= 0)
        return PackedWords(
            **field_values(tokens),
            word_index_K=torch.from_numpy(index_K),
            word_K=torch.from_numpy(word_K[index_K]),
            num_words=num_words,
        )

    def _words(self, row_M: Tensor) -> tuple[np.ndarray, int]:
        """Return the word of each token of these sentences, -1: none, and the number of words."""
        rows = row_M.numpy()
        token_K, owner_K = entries_of_rows(self.indptr_R1.numpy(), rows)
        num_words_M = np.diff(self.word_indptr_R1.numpy())[rows]
        first_word_M = np.cumsum(num_words_M) - num_words_M
        word_K = self.word_T.numpy()[token_K]
        return np.where(word_K < 0, -1, word_K + first_word_M[owner_K]), int(num_words_M.sum())


@dataclass(frozen=True)
class RelationGraphBatch(WordBatch):
    """One worker's shard of a step of relation-aware embeddings (CLDR, CLGS, CLNER).

    Every anchor has some of the G graphs; its first graph is the true one. Words are rows of the
    shard; samples, which may be words of other workers, are rows of the global batch.

    Attributes:
        feature_UF: fixed features of the distinct words of all graphs, from the untrained encoder.
        feature_N: row of ``feature_UF`` of each node.
        word_N: word of each node.
        node_indptr_G1: nodes of each graph.
        head_E: first node of each edge; edges have both directions and no loops.
        tail_E: second node of each edge.
        anchor_G: anchor of each graph, ascending.
        sentence_A: sentence of each anchor, ascending.
        tag_W: BIO tag of each word; -1: the word is no anchor.
        sample_WK: words that each word is compared with; -1: none.
        sample_tag_WK: tags of these samples.
    """

    feature_UF: Tensor
    feature_N: Tensor
    word_N: Tensor
    node_indptr_G1: Tensor
    head_E: Tensor
    tail_E: Tensor
    anchor_G: Tensor
    sentence_A: Tensor
    tag_W: Tensor
    sample_WK: Tensor
    sample_tag_WK: Tensor
