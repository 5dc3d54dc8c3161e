"""Which sentences train, and collation of a step of CLDR, CLGS or CLNER.

Shape letters as in ``RelationGraphBatch``.

Sentences of words as the arrays of a ``WordBatch``.

Shape letters: V distinct words of the store, E tokens of these end to end, W words of a sentence, T tokens of the
batch.
"""

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np

from raybio.core.batch import IGNORED_LABEL, shard
from raybio.core.errors import ConfigError
from raybio.core.randomness import derive_seed, shuffled_epochs
from raybio.methods.relation_graphs.config import FoldConfig, GraphsConfig, SamplesConfig
from raybio.methods.relation_graphs.graphs import (
    NOBODY,
    Graph,
    Sentence,
    draw_samples,
    pair_graphs,
    sentence_of,
    whole_graphs,
)
from raybio.methods.relation_graphs.store import WordStore
from raybio.methods.relation_graphs.tags import tag_names, tags_of

GraphKind = Literal["pairs", "whole"]


VALIDATION_SEED = 42
"""The authors'."""


@dataclass(frozen=True)
class Fold:
    """Rows of a fold, ascending."""

    train: np.ndarray
    dev: np.ndarray
    test: np.ndarray


def fold_of(store: WordStore, config: FoldConfig) -> Fold:
    """The rows of a fold.

    Raises:
        ConfigError: if the store has no such fold.
    """
    train, dev, test = (store.fold_rows(config.fold, split) for split in ("train", "dev", "test"))
    if not len(dev) and config.validation_share:
        # As the authors draw them, from Python's own generator and the fold's own order: the very same sentences.
        size = int(config.validation_share * len(train))
        chosen = np.zeros(len(train), dtype=bool)
        chosen[random.Random(VALIDATION_SEED).sample(range(len(train)), size)] = True
        train, dev = train[~chosen], train[chosen]
    return Fold(
        np.union1d(train, dev) if config.train_on_validation else np.sort(train),
        np.sort(dev),
        np.sort(test),
    )


@dataclass(frozen=True)
class NodeFeatures:
    """What an encoder that is not trained says of the words of a store: a file of float32 (W, F), all sentences.

    Attributes:
        path: of the file, in numpy's format.
        indptr_N1: words of each sentence.
    """

    path: Path
    indptr_N1: np.ndarray

    def of(self, row: int, word_K: Sequence[int]) -> np.ndarray:
        """Features (K, F) of words of a sentence, which count from 0."""
        return np.asarray(
            _mapped(self.path)[self.indptr_N1[row] + np.asarray(word_K, dtype=np.int64)]
        )

    @property
    def width(self) -> int:
        """F."""
        return int(_mapped(self.path).shape[1])


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
        """Every word must be read: one without a vector could be nobody's neighbour and would still be counted.

        Raises:
            ConfigError: if a sentence has more tokens than ``max_tokens``.
        """
        tokens, pointers_N1 = self.tokens, np.asarray(self.store.indptr_N1)
        sum_W1 = np.cumsum(np.concatenate([[0], np.diff(tokens.indptr_V1)[self.store.word_T]]))
        size_N = np.diff(sum_W1[pointers_N1]) + len(tokens.prefix_ids) + len(tokens.suffix_ids)
        if len(size_N) and size_N.max() > self.max_tokens:
            longest = int(size_N.argmax())
            raise ConfigError(
                f"{self.store.path}: {(size_N > self.max_tokens).sum():,} of {len(size_N):,} sentences have more than "
                f"the {self.max_tokens:,} tokens that the encoder reads, sentence "
                f"{self.store.orig_ids[longest] or longest} {size_N[longest]:,}; want encoder.max_length of at least "
                "that, an encoder that reads so many, or such sentences divided"
            )

    def arrays(self, rows: Sequence[int]) -> Arrays:
        """The arrays of a ``WordBatch``."""
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


@dataclass(frozen=True)
class RelationGraphCollate:
    """(step, rank, world) -> the arrays of a ``RelationGraphBatch``.

    Attributes:
        reader: sentences as the encoder reads them.
        rows: sentences that train.
        batch_rows: sentences of a step.
        seed: the run's.
        kind: which graphs a sentence has; None: none.
        graphs: their false ones.
        features: of their nodes; None where there are none.
        samples: of words to compare words with; None: none.
    """

    reader: WordReader
    rows: np.ndarray
    batch_rows: int
    seed: int
    kind: GraphKind | None
    graphs: GraphsConfig
    features: NodeFeatures | None
    samples: SamplesConfig | None

    def __post_init__(self) -> None:
        """Refuse a fold without sentences to learn from."""
        if not len(self.rows):
            raise ConfigError(
                f"{self.reader.store.path}: this fold has no training sentence; want some in --input"
            )

    def __call__(self, step: int, rank: int, world: int) -> Mapping[str, np.ndarray]:
        """The arrays of worker ``rank``'s shard of ``step``."""
        size = self.batch_rows
        place = shuffled_epochs(
            step * size, size, num_rows=len(self.rows), seed=self.seed, name="sentences"
        )
        return self.arrays(self.rows[place], derive_seed(self.seed, "negatives", step), rank, world)

    @property
    def steps_per_epoch(self) -> float:
        """Steps in which every sentence comes once."""
        return len(self.rows) / self.batch_rows

    def arrays(self, rows: np.ndarray, key: int, rank: int = 0, world: int = 1) -> Arrays:
        """The arrays of a worker's shard of a step of these sentences; what is drawn depends on ``key``."""
        own = shard(np.arange(len(rows)), rank, world)
        mine = rows[own].tolist()
        pointers = self.reader.word_pointers(mine)
        arrays = self.reader.arrays(mine)
        arrays |= self._graph_arrays(
            mine, pointers, [derive_seed(key, int(place)) for place in own]
        )
        return arrays | self._tag_arrays(
            rows.tolist(), int(own[0]) if len(own) else len(rows), pointers, key
        )

    def _graph_arrays(self, rows: list[int], pointers: np.ndarray, keys: list[int]) -> Arrays:
        word, size, anchor, sentence_of_anchor = list[int](), [0], list[int](), list[int]()
        feature, edges = list[np.ndarray](), [np.zeros((0, 2), int)]
        for number, (row, key) in enumerate(zip(rows, keys, strict=True) if self.kind else ()):
            for graphs in self._anchors(row, key):
                for graph in graphs:
                    edges.append(np.array(graph.edges, dtype=int).reshape(-1, 2) + len(word))
                    feature.append(self._features(row, graph.words))
                    word += [pointers[number] + 1 + one for one in graph.words]
                    size.append(len(graph.words))
                    anchor.append(len(sentence_of_anchor))
                sentence_of_anchor.append(number)
        edge_E2 = np.concatenate(edges)
        width = self.features.width if self.features else 0
        return {
            "feature_NF": np.concatenate([np.zeros((0, width), np.float32), *feature]),
            "word_N": np.array(word, dtype=np.int64),
            "node_indptr_G1": np.cumsum(size, dtype=np.int64),
            "head_E": np.concatenate([edge_E2[:, 0], edge_E2[:, 1]]),
            "tail_E": np.concatenate([edge_E2[:, 1], edge_E2[:, 0]]),
            "anchor_G": np.array(anchor, dtype=np.int64),
            "sentence_A": np.array(sentence_of_anchor, dtype=np.int64),
        }

    def _anchors(self, row: int, key: int) -> list[list[Graph]]:
        """Graphs of each anchor of a sentence, the true one first."""
        sentence, rng = _sentence(self.reader.store, row), np.random.default_rng(key)
        if self.kind == "pairs":
            return list(pair_graphs(sentence, self.graphs, rng))
        whole = whole_graphs(sentence, self.graphs.num_negatives, rng)
        return [whole] if whole else []

    def _features(self, row: int, words: list[int]) -> np.ndarray:
        assert self.features is not None
        return self.features.of(row, words)

    def _tag_arrays(self, rows: list[int], first: int, pointers: np.ndarray, key: int) -> Arrays:
        """Tags of the shard's words, and samples, which are drawn for the global batch whatever the shard."""
        num_words = int(pointers[-1])
        if self.samples is None:
            nothing = np.zeros((num_words, 0), dtype=np.int64)
            return {"tag_W": np.full(num_words, -1), "sample_WK": nothing, "sample_tag_WK": nothing}
        store = self.reader.store
        # Word 0 of a sentence is no word, and takes no part.
        tag_W = np.concatenate(
            [np.zeros(0, np.int64), *([-1, *_tags(store, row)] for row in rows)]
        ).astype(np.int64)
        sample_WK = np.full((len(tag_W), self.samples.num_samples), NOBODY, dtype=np.int64)
        asked_M = np.flatnonzero(tag_W >= 0)
        rng = np.random.default_rng(derive_seed(key, "samples"))
        sample_WK[asked_M] = draw_samples(
            tag_W, asked_M, self.samples, len(tag_names(store.entity_types)), rng
        )
        start = int(self.reader.word_pointers(rows[:first])[-1])
        own = slice(start, start + num_words)
        sample_tag_WK = np.where(sample_WK == NOBODY, -1, tag_W[sample_WK])
        return {
            "tag_W": tag_W[own],
            "sample_WK": sample_WK[own],
            "sample_tag_WK": sample_tag_WK[own],
        }


@lru_cache(maxsize=65536)
def _sentence(store: WordStore, row: int) -> Sentence:
    return sentence_of(store, row)


@lru_cache(maxsize=65536)
def _tags(store: WordStore, row: int) -> tuple[int, ...]:
    return tuple(tags_of(store, row).tolist())


@lru_cache(maxsize=2)
def _mapped(path: Path) -> np.ndarray:
    return np.load(path, mmap_mode="r")


NO_WORD = -1
