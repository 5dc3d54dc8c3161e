"""Read sentences of a store as the arrays of a ``WordBatch``.

Shape letters: N sentences of the store, V its distinct words, E their tokens, concatenated; W words
of a sentence, K tokens of a sentence; R sentences of a batch, T tokens of the batch, M its words.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from raybio.core.batch import IGNORED_LABEL
from raybio.core.errors import ConfigError
from raybio.methods.relation_graphs.batches import WordBatch
from raybio.methods.relation_graphs.store import WordStore
from raybio.ops.segments import indptr_from_lengths

Arrays = dict[str, np.ndarray]

NO_WORD = -1
"""Word of tokens without a word: special tokens, and pieces that are not pooled."""


@dataclass(frozen=True)
class WordTokens:
    """Tokens of a store's words, as an encoder reads them.

    Attributes:
        token_E: token ids of all distinct words, end to end.
        indptr_V1: word v is ``token_E[indptr_V1[v] : indptr_V1[v + 1]]``.
        prefix_ids: tokens before a sentence; the first one is "word 0".
        suffix_ids: tokens after a sentence.
        first_only: whether a word is the state of its first token instead of the mean of all.
        spelling: hex digest of the words as they are read.
    """

    token_E: np.ndarray
    indptr_V1: np.ndarray
    prefix_ids: tuple[int, ...]
    suffix_ids: tuple[int, ...]
    first_only: bool
    spelling: str


@dataclass(frozen=True)
class WordReader:
    """Sentences as an encoder reads them.

    Attributes:
        store: the sentences.
        tokens: tokens of the words, as the encoder reads them.
        max_tokens: maximum tokens of a sentence, special ones included.
    """

    store: WordStore
    tokens: WordTokens
    max_tokens: int

    def __post_init__(self) -> None:
        """Check that no sentence is truncated: a word without a vector could not be predicted.

        Raises:
            ConfigError: if a sentence has more tokens than ``max_tokens``.
        """
        tokens = self.tokens
        num_tokens_V = np.diff(tokens.indptr_V1)
        tokens_before_word = indptr_from_lengths(num_tokens_V[self.store.word_T])
        size_N = np.diff(tokens_before_word[np.asarray(self.store.indptr_N1)])
        size_N += len(tokens.prefix_ids) + len(tokens.suffix_ids)
        if size_N.max(initial=0) > self.max_tokens:
            longest = int(size_N.argmax())
            raise ConfigError(
                f"{self.store.location}: {(size_N > self.max_tokens).sum():,} of {len(size_N):,} "
                f"sentences have more than the {self.max_tokens:,} tokens that the encoder reads, "
                f"sentence {self.store.orig_ids[longest] or longest} {size_N[longest]:,}; want "
                "encoder.max_length of at least that, an encoder that reads them, or such "
                "sentences divided"
            )

    def batch(self, rows: np.ndarray) -> WordBatch:
        """Return sentences as a batch."""
        return WordBatch.from_arrays(self.arrays(rows.tolist()))

    def arrays(self, rows: Sequence[int]) -> Arrays:
        """Return the arrays of a ``WordBatch``."""
        nothing = np.zeros(0, dtype=np.int64)
        tokens = [nothing]
        words = [nothing]
        lengths = []
        for row in rows:
            token_K, word_K = self._read(self.store.sentence(row))
            tokens.append(token_K)
            words.append(word_K)
            lengths.append(len(token_K))
        token_T = np.concatenate(tokens)
        return {
            "token_T": token_T.astype(np.int32),
            "indptr_R1": indptr_from_lengths(lengths),
            "label_T": np.full(len(token_T), IGNORED_LABEL, dtype=np.int32),
            "word_T": np.concatenate(words),
            "word_indptr_R1": self.word_pointers(rows),
        }

    @property
    def digest(self) -> str:
        """Return 16 hex digits that change with anything that changes the tokens of a sentence."""
        tokens = self.tokens
        numbers = [
            *tokens.prefix_ids,
            -1,
            *tokens.suffix_ids,
            -1,
            int(tokens.first_only),
            self.max_tokens,
        ]
        digest = hashlib.sha256(np.array(numbers, dtype=np.int64).tobytes())
        digest.update(tokens.spelling.encode())
        digest.update(tokens.token_E.astype(np.int64).tobytes())
        digest.update(tokens.indptr_V1.astype(np.int64).tobytes())
        return digest.hexdigest()[:16]

    def word_pointers(self, rows: Sequence[int] | np.ndarray) -> np.ndarray:
        """Return CSR pointers (R + 1,) to the words of each sentence, its word 0 included."""
        row_R = np.asarray(rows, dtype=np.int64)
        indptr_N1 = self.store.indptr_N1
        return indptr_from_lengths(indptr_N1[row_R + 1] - indptr_N1[row_R] + 1)

    def is_word(self, rows: Sequence[int] | np.ndarray) -> np.ndarray:
        """Return which embeddings of a batch are words (M,), and not the word 0 of a sentence."""
        pointers_R1 = self.word_pointers(rows)
        is_word_M = np.ones(pointers_R1[-1], dtype=bool)
        is_word_M[pointers_R1[:-1]] = False
        return is_word_M

    def _read(self, word_W: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the tokens of a sentence (K,), and the word of each."""
        tokens = self.tokens
        first_W = tokens.indptr_V1[word_W]
        # Words may have a narrow type that does not hold the last word + 1.
        size_W = tokens.indptr_V1[1:][word_W] - first_W
        owner_K = np.repeat(np.arange(len(word_W)), size_W)
        offset_K = np.arange(len(owner_K)) - (np.cumsum(size_W) - size_W)[owner_K]
        token_K = tokens.token_E[first_W[owner_K] + offset_K]
        word_K = owner_K + 1
        if tokens.first_only:
            word_K = np.where(offset_K == 0, word_K, NO_WORD)
        prefix_word = np.full(len(tokens.prefix_ids), NO_WORD)
        prefix_word[:1] = 0
        suffix_word = np.full(len(tokens.suffix_ids), NO_WORD)
        sentence_K = np.concatenate([tokens.prefix_ids, token_K, tokens.suffix_ids])
        return sentence_K.astype(np.int64), np.concatenate([prefix_word, word_K, suffix_word])
