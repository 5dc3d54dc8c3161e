"""Homophily of classes among linked nodes, and among nodes with near embeddings.

The row "linked nodes" is the figure of ``raybio evaluate task-fit``.

Shape letters: N nodes, D width, K neighbors, U nodes with a label and a labeled neighbor.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from raybio.benchmark.models import RandomVectors, on_device
from raybio.benchmark.stores import StoreLocation, missing_store, store_files
from raybio.benchmark.task import (
    BenchmarkEncoder,
    BenchmarkTask,
    Reads,
    TaskFacts,
    TaskScores,
    missing_files,
)
from raybio.core.arrays import Floats
from raybio.core.errors import DataError
from raybio.methods.sppt.articles.store import LinkedTextStore
from raybio.methods.sppt.graph.csr import Graph
from raybio.methods.sppt.graph.homophily import neighbor_vote
from raybio.methods.sppt.graph_store import GraphStore, open_graph
from raybio.methods.sppt.node_labels import read_node_labels
from raybio.methods.sppt.proteins.store import ProteinStore
from raybio.methods.sppt.task_fit import class_fit
from raybio.ops.nearest import nearest_others
from raybio.store.store import open_store

LINKED = "linked nodes"
"""Name of the rival that reads the graph."""

_PROTOCOL = (
    "Homophily (McDermott et al. 2023, theory section): the most frequent class among a node's "
    "nearest labeled nodes is its own; of equally frequent classes each counts its share. Score: "
    "the mean over labeled nodes with a labeled neighbor in the graph. An encoder's neighbors are "
    "the {k} nearest embeddings of all groups (Euclidean distance), those of {linked} the training "
    "links. Chance: training links with classes shuffled within groups; 95 % of the shuffles are "
    "from {low:.3f} to {high:.3f}."
)


class HomophilyTask(BenchmarkTask):
    """Classes of a store's nodes, by their nearest neighbors."""

    family: ClassVar[str] = "Homophily"

    store: StoreLocation = Field(description="prepared store of proteins or of articles")
    labels: Path = Field(description="table with a header: id and class")
    num_neighbors: int = Field(10, ge=1, description="nearest embeddings that vote on a class")

    @property
    def reads(self) -> Reads:
        """Kind of inputs."""
        return "proteins" if isinstance(self._linked, ProteinStore) else "texts"

    @property
    def measure(self) -> str:
        """Name of the score."""
        return "homophily"

    @property
    def limits(self) -> tuple[float, float]:
        """The lowest and the highest possible score."""
        return (0.0, 1.0)

    def check(self) -> str:
        """Return why the task cannot run."""
        wanted = "want a table of ids and classes, as `raybio evaluate task-fit` reads it"
        return missing_store(self.store, GraphStore) or missing_files([self.labels], wanted)

    def files(self) -> Mapping[str, Path]:
        """Return the store's manifest and the table."""
        return {**store_files(self.store), "labels": self.labels}

    def facts(self) -> TaskFacts:
        """Return protocol and sizes."""
        fit = class_fit(self._linked.graph, self._label_N)
        shuffled = fit["homophily"]
        protocol = _PROTOCOL.format(
            k=self.num_neighbors, linked=LINKED, low=shuffled.low, high=shuffled.high
        )
        size = (
            f"{fit['labeled']:,} of {fit['nodes']:,} nodes have one of {fit['classes']:,} classes"
        )
        return TaskFacts(protocol, size, chance={self.measure: shuffled.chance})

    def score(self, model: BenchmarkEncoder) -> TaskScores:
        """Let the nearest embeddings vote."""
        node_L = np.flatnonzero(self._label_N >= 0)
        inputs = [self._inputs[node] for node in node_L.tolist()]
        embedding_LD = on_device(model.embed(inputs))
        num = min(self.num_neighbors, len(node_L) - 1)
        row_L = torch.arange(len(node_L))
        neighbors = nearest_others(embedding_LD, row_L, [embedding_LD], num)
        neighbor_LK = neighbors.index_QK.cpu().numpy()
        voters = Graph(np.arange(len(node_L) + 1) * num, neighbor_LK.reshape(-1))
        vote_N = np.full(len(self._label_N), np.nan)
        vote_N[node_L] = neighbor_vote(voters, self._label_N[node_L])
        return self._scores(vote_N, model.truncation_remarks({"nodes": inputs}))

    def rivals(self, model: BenchmarkEncoder | None) -> Mapping[str, TaskScores]:
        """Let linked nodes vote, and the nearest random vectors."""
        random = RandomVectors()
        return {LINKED: self._scores(self._linked_vote_N), random.name: self.score(random)}

    def _scores(self, vote_N: Floats, remarks: Sequence[str] = ()) -> TaskScores:
        node_U = np.flatnonzero(~np.isnan(self._linked_vote_N))
        if not len(node_U):
            raise DataError(f"{self.labels}: no node with a label has a link to another one")
        return TaskScores.of_means(node_U.tolist(), vote_N[node_U], remarks=remarks)

    @cached_property
    def _linked(self) -> ProteinStore | LinkedTextStore:
        if open_graph(self.store).manifest["kind"] == ProteinStore.kind:
            return open_store(self.store, ProteinStore)
        return open_store(self.store, LinkedTextStore)

    @cached_property
    def _label_N(self) -> NDArray[np.int64]:
        return read_node_labels(self.labels, self._linked.keys).classes()[0]

    @cached_property
    def _linked_vote_N(self) -> Floats:
        return neighbor_vote(self._linked.graph, self._label_N)

    @cached_property
    def _inputs(self) -> list[str]:
        store = self._linked
        contents = store.inputs(store.input_fields[0], 0, store.num_rows)[1]
        return [content.decode() for content in contents.to_pylist()]
