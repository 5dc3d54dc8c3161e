"""Read sentences of a store as the arrays of a ``WordBatch``.

Shape letters: V distinct words of the store, E their tokens, concatenated, W words of a sentence,
K tokens of a sentence, T tokens of the batch.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from raybio.core.batch import IGNORED_LABEL
from raybio.core.errors import ConfigError
from raybio.methods.relation_graphs.store import WordStore

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class WordTokens:
    """How an encoder reads the words of a store.

    Attributes:
        token_E: token ids of all distinct words, end to end.
        indptr_V1: word v is ``token_E[indptr_V1[v] : indptr_V1[v + 1]]``.
        prefix_ids: what stands before a sentence; its first token is "word 0".
        suffix_ids: what stands behind it.
        first_only: whether a word is its first token's state, and not the mean of all of them.
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
        tokens: the encoder's way of reading words.
        max_tokens: most tokens of a sentence, special ones included.
    """

    store: WordStore
    tokens: WordTokens
    max_tokens: int

    def __post_init__(self) -> None:
        """Check that no sentence is truncated: a word without a vector could not be predicted.

        Raises:
            ConfigError: if a sentence has more tokens than ``max_tokens``.
        """
        tokens, pointers_N1 = self.tokens, np.asarray(self.store.indptr_N1)
        sum_W1 = np.cumsum(np.concatenate([[0], np.diff(tokens.indptr_V1)[self.store.word_T]]))
        size_N = np.diff(sum_W1[pointers_N1]) + len(tokens.prefix_ids) + len(tokens.suffix_ids)
        if len(size_N) and size_N.max() > self.max_tokens:
            longest = int(size_N.argmax())
            raise ConfigError(
                f"{self.store.path}: {(size_N > self.max_tokens).sum():,} of {len(size_N):,} "
                f"sentences have more than the {self.max_tokens:,} tokens that the encoder reads, "
                f"sentence {self.store.orig_ids[longest] or longest} {size_N[longest]:,}; want "
                "encoder.max_length of at least that, an encoder that reads so many, or such "
                "sentences divided"
            )

    def arrays(self, rows: Sequence[int]) -> Arrays:
        """Return the arrays of a ``WordBatch``."""
        read = [self._read(self.store.sentence(row)) for row in rows]
        token_T = np.concatenate([np.zeros(0, np.int64), *(token_K for token_K, _ in read)])
        return {
            "token_T": token_T.astype(np.int32),
            "indptr_R1": np.cumsum([0, *(len(token_K) for token_K, _ in read)], dtype=np.int64),
            "label_T": np.full(len(token_T), IGNORED_LABEL, dtype=np.int32),
            "word_T": np.concatenate([np.zeros(0, np.int64), *(word_K for _, word_K in read)]),
            "word_indptr_R1": self.word_pointers(rows),
        }

    @property
    def digest(self) -> str:
        """16 hex digits that change with anything that changes the tokens of a sentence."""
        tokens = self.tokens
        numbers = [
            *tokens.prefix_ids,
            -1,
            *tokens.suffix_ids,
            -1,
            int(tokens.first_only),
            self.max_tokens,
        ]
        found = hashlib.sha256(
            np.array(numbers, dtype=np.int64).tobytes() + tokens.spelling.encode()
        )
        for part in (tokens.token_E, tokens.indptr_V1):
            found.update(part.astype(np.int64).tobytes())
        return found.hexdigest()[:16]

    def word_pointers(self, rows: Sequence[int]) -> np.ndarray:
        """Where the words of each sentence begin, (R + 1,), the word 0 of each included."""
        return np.cumsum([0, *(len(self.store.sentence(row)) + 1 for row in rows)], dtype=np.int64)

    def _read(self, word_W: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Tokens of a sentence, and the word that each is of."""
        tokens = self.tokens
        size_W = np.diff(tokens.indptr_V1)[word_W]
        owner_K = np.repeat(np.arange(len(word_W)), size_W)
        offset_K = np.arange(len(owner_K)) - (np.cumsum(size_W) - size_W)[owner_K]
        token_K = tokens.token_E[tokens.indptr_V1[word_W][owner_K] + offset_K]
        word_K = owner_K + 1
        if tokens.first_only:
            word_K = np.where(offset_K == 0, word_K, NO_WORD)
        before_K = np.full(len(tokens.prefix_ids), NO_WORD)
        before_K[:1] = 0
        after_K = np.full(len(tokens.suffix_ids), NO_WORD)
        return (
            np.concatenate([tokens.prefix_ids, token_K, tokens.suffix_ids]).astype(np.int64),
            np.concatenate([before_K, word_K, after_K]),
        )


NO_WORD = -1
