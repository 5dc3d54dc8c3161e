"""Collate a step of CLDR, CLGS or CLNER: tokens, graphs and samples.

Shape letters as in ``RelationGraphBatch``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from raybio.core.batch import deal
from raybio.core.errors import ConfigError
from raybio.core.randomness import derive_seed, shuffled_epochs
from raybio.methods.relation_graphs.annotations.graphs import (
    Sentence,
    SentenceGraph,
    pair_graphs,
    read_sentence,
    whole_graphs,
)
from raybio.methods.relation_graphs.annotations.tag_samples import NO_SAMPLE, draw_samples
from raybio.methods.relation_graphs.annotations.tags import tag_names, tags_of_rows
from raybio.methods.relation_graphs.config import GraphsConfig, SamplesConfig
from raybio.methods.relation_graphs.encoders.node_features import NodeFeatures
from raybio.methods.relation_graphs.encoders.word_reader import Arrays, WordReader
from raybio.methods.relation_graphs.store import WordStore
from raybio.ops.segments import entries_of_rows

GraphKind = Literal["pairs", "whole"]


@dataclass(frozen=True)
class RelationGraphCollate:
    """(step, rank, world) -> the arrays of a ``RelationGraphBatch``.

    Attributes:
        reader: reads sentences for the encoder.
        rows: training sentences.
        batch_rows: sentences per step.
        seed: the run's seed.
        kind: one graph per related pair or per sentence; None: no graphs.
        graphs: settings of false graphs.
        features: features of graph nodes; None without graphs.
        samples: settings of the samples of words; None: no samples.
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
        """Check that there is a training sentence."""
        if not len(self.rows):
            raise ConfigError(
                f"{self.reader.store.location}: this fold has no training sentence; want some in "
                "--input"
            )

    def __call__(self, step: int, rank: int, world: int) -> Mapping[str, np.ndarray]:
        """Return the arrays of worker ``rank``'s shard of ``step``."""
        size = self.batch_rows
        index = shuffled_epochs(
            step * size, size, num_rows=len(self.rows), seed=self.seed, name="sentences"
        )
        return self.arrays(self.rows[index], derive_seed(self.seed, "negatives", step), rank, world)

    @property
    def steps_per_epoch(self) -> float:
        """Steps in which every sentence comes once."""
        return len(self.rows) / self.batch_rows

    def arrays(self, rows: np.ndarray, key: int, rank: int = 0, world: int = 1) -> Arrays:
        """Return the arrays of a worker's shard of these sentences; draws depend on ``key``."""
        pointers_B1 = self.reader.word_pointers(rows)
        worker_B = deal(np.diff(pointers_B1), world)
        own = np.flatnonzero(worker_B == rank)
        mine = rows[own].tolist()
        pointers = self.reader.word_pointers(mine)
        arrays = self.reader.arrays(mine)
        arrays |= self._graph_arrays(
            mine, pointers, [derive_seed(key, int(index)) for index in own]
        )
        gathered_W, _ = entries_of_rows(pointers_B1, np.argsort(worker_B, kind="stable"))
        place_W = np.empty_like(gathered_W)
        place_W[gathered_W] = np.arange(len(gathered_W))
        own_W, _ = entries_of_rows(pointers_B1, own)
        return arrays | self._tag_arrays(rows, own_W, place_W, key)

    def _graph_arrays(self, rows: list[int], pointers: np.ndarray, keys: list[int]) -> Arrays:
        number_of_node = list[int]()
        position = list[int]()
        size = [0]
        anchor = list[int]()
        sentence_of_anchor = list[int]()
        edge = list[tuple[int, int]]()
        for number, (row, key) in enumerate(zip(rows, keys, strict=True) if self.kind else ()):
            for graphs in self._anchors(row, key):
                for graph in graphs:
                    first = len(position)
                    edge += [(first + head, first + tail) for head, tail in graph.edges]
                    position += graph.words
                    number_of_node += [number] * len(graph.words)
                    size.append(len(graph.words))
                    anchor.append(len(sentence_of_anchor))
                sentence_of_anchor.append(number)
        edge_E2 = np.array(edge, dtype=np.int64).reshape(-1, 2)
        number_N = np.array(number_of_node, dtype=np.int64)
        position_N = np.array(position, dtype=np.int64)
        word_N = pointers[number_N] + 1 + position_N
        # A word is a node of many graphs; its feature travels once.
        _, first_U, feature_N = np.unique(word_N, return_index=True, return_inverse=True)
        feature_UF = np.zeros((0, 0), np.float32)
        if self.features is not None:
            row_U = np.array(rows, dtype=np.int64)[number_N[first_U]]
            feature_UF = self.features.of(row_U, position_N[first_U])
        return {
            "feature_UF": feature_UF,
            "feature_N": feature_N,
            "word_N": word_N,
            "node_indptr_G1": np.cumsum(size, dtype=np.int64),
            "head_E": np.concatenate([edge_E2[:, 0], edge_E2[:, 1]]),
            "tail_E": np.concatenate([edge_E2[:, 1], edge_E2[:, 0]]),
            "anchor_G": np.array(anchor, dtype=np.int64),
            "sentence_A": np.array(sentence_of_anchor, dtype=np.int64),
        }

    def _anchors(self, row: int, key: int) -> list[list[SentenceGraph]]:
        """Return the graphs of each anchor of a sentence, the true one first."""
        sentence = _sentence(self.reader.store, row)
        rng = np.random.default_rng(key)
        if self.kind == "pairs":
            return list(pair_graphs(sentence, self.graphs, rng))
        whole = whole_graphs(sentence, self.graphs.num_negatives, rng)
        return [whole] if whole else []

    def _tag_arrays(
        self, row_B: np.ndarray, own_W: np.ndarray, place_W: np.ndarray, key: int
    ) -> Arrays:
        """Return tags and samples of the shard's words; samples are words of the global batch.

        Args:
            row_B: sentences of the global batch.
            own_W: numbers of the shard's words in it, ascending.
            place_W: index of each of its words among the words gathered from all workers.
            key: key of the random draws.
        """
        if self.samples is None:
            nothing = np.zeros((len(own_W), 0), dtype=np.int64)
            tag_W = np.full(len(own_W), -1)
            return {"tag_W": tag_W, "sample_WK": nothing, "sample_tag_WK": nothing}
        store = self.reader.store
        # Word 0 of a sentence is a special token, and is not sampled.
        is_word_W = self.reader.is_word(row_B)
        tag_W = np.full(len(is_word_W), -1)
        tag_W[is_word_W] = tags_of_rows(store, row_B)
        sample_WK = np.full((len(own_W), self.samples.num_samples), NO_SAMPLE, dtype=np.int64)
        rng = np.random.default_rng(derive_seed(key, "samples"))
        sample_WK[is_word_W[own_W]] = draw_samples(
            tag_W, own_W[is_word_W[own_W]], self.samples, len(tag_names(store.entity_types)), rng
        )
        exists_WK = sample_WK != NO_SAMPLE
        return {
            "tag_W": tag_W[own_W],
            "sample_WK": np.where(exists_WK, place_W[sample_WK], NO_SAMPLE),
            "sample_tag_WK": np.where(exists_WK, tag_W[sample_WK], -1),
        }


@lru_cache(maxsize=65536)
def _sentence(store: WordStore, row: int) -> Sentence:
    return read_sentence(store, row)
