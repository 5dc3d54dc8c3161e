"""Link retrieval on samples of test graphs: the measure on articles of McDermott et al., Table 7.

A test graph has at most about a quarter of the nodes. A sample consists of some drawn nodes and all
their neighbors in the test graph; the evaluation retrieves the links among them. The measure is
transductive: these links may be training links.

Shape letters: N nodes, S nodes of a test graph, A nodes of a sample, T trials, M measures,
D embedding width.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from raybio.core.randomness import derive_seed
from raybio.methods.sppt.articles.store import LinkedTextStore
from raybio.methods.sppt.graph.csr import Graph
from raybio.methods.sppt.graph.subgraphs import induced_subgraph, neighbors_of
from raybio.methods.sppt.link_retrieval import LinkRetrieval, embedding_scores, rank_links
from raybio.methods.sppt.rivals import Rival, RivalScores
from raybio.methods.sppt.scores import link_chance

MEASURES = ("lrap", "ndcg", "average_precision", "mrr")

SPLIT_SHARES = (0.5, 0.25, 0.25)
"""Probabilities of the train, validation and test split for a pair of unassigned nodes."""

TEST = 2
"""Index of the test split in ``SPLIT_SHARES``."""

RANDOM_WIDTH = 768
"""Width of the random baseline's vectors, as in the paper."""


class OverTrials(NamedTuple):
    """Mean and sample standard deviation over trials."""

    mean: float
    deviation: float


class LinkSample(NamedTuple):
    """Nodes of a test graph and the links among them.

    Attributes:
        node_A: node numbers in the whole graph.
        links: links among these nodes, which are renumbered in the order of ``node_A``.
    """

    node_A: np.ndarray
    links: Graph


def draw_link_samples(
    graph: Graph, *, trials: int = 5, samples: int = 100, nodes: int = 200, seed: int = 0
) -> list[list[LinkSample]]:
    """Return the samples of each trial. They depend on graph and seed only, not on a model.

    Args:
        graph: links among all nodes.
        trials: number of test graphs.
        samples: samples of each test graph.
        nodes: nodes drawn for a sample among the linked nodes of the test graph, at most all.
        seed: seed of the test graphs and samples.

    Raises:
        ValueError: if a test graph has no link.
    """
    return [
        _draw_trial(graph, samples, nodes, np.random.default_rng((seed, trial)))
        for trial in range(trials)
    ]


def sampled_link_scores(
    samples: Sequence[LinkSample], retrieve: Callable[[LinkSample], LinkRetrieval]
) -> list[float]:
    """Return the mean of each of ``MEASURES`` over the samples of a trial.

    Args:
        samples: samples of one test graph.
        retrieve: returns the retrieval of the links of a sample.
    """
    scores = [retrieve(sample) for sample in samples]
    return [float(np.mean([getattr(score, name) for score in scores])) for name in MEASURES]


def by_embeddings(embedding_ND: Tensor) -> Callable[[LinkSample], LinkRetrieval]:
    """Return the retrieval of a sample's links by embeddings of all nodes of the whole graph."""

    def retrieve(sample: LinkSample) -> LinkRetrieval:
        in_group = embedding_scores(embedding_ND[sample.node_A], "euclidean")
        return rank_links(in_group, sample.links.indptr, sample.links.indices)  # type: ignore[arg-type]

    return retrieve


def by_rival(rival: Rival, device: torch.device) -> Callable[[LinkSample], LinkRetrieval]:
    """Return the retrieval of a sample's links by a rival that knows all nodes of the graph."""

    def retrieve(sample: LinkSample) -> LinkRetrieval:
        def in_group(node_G: np.ndarray) -> RivalScores:
            node_N = sample.node_A[node_G]
            return RivalScores(rival.in_group(node_N), node_N, device)

        return rank_links(in_group, sample.links.indptr, sample.links.indices)  # type: ignore[arg-type]

    return retrieve


def sampled_link_chance(trials: Sequence[Sequence[LinkSample]]) -> dict[str, float]:
    """Return the expected scores of random rankings, averaged over samples and trials."""
    chance_TM = []
    for samples in trials:
        chances = [
            link_chance(sample.links, np.zeros(sample.links.num_nodes, np.int64))
            for sample in samples
        ]
        chance_TM.append([np.mean([chance[name] for chance in chances]) for name in MEASURES])
    return dict(zip(MEASURES, np.mean(chance_TM, axis=0).tolist(), strict=True))


def over_trials(value_TM: ArrayLike) -> dict[str, OverTrials]:
    """Return mean and deviation over trials by measure. The deviation of a single trial is 0."""
    values = np.asarray(value_TM, np.float64)
    deviation_M = values.std(axis=0, ddof=1 if len(values) > 1 else 0)
    numbers = zip(MEASURES, values.mean(axis=0).tolist(), deviation_M.tolist(), strict=True)
    return {name: OverTrials(mean, deviation) for name, mean, deviation in numbers}


def whole_graph(store: LinkedTextStore) -> Graph:
    """Return the graph of all links of a store, held-out links included."""
    graph = store.graph
    source_E = np.repeat(np.arange(graph.num_nodes), graph.degree_N)
    edge_E2 = np.concatenate([np.stack([source_E, graph.indices], axis=1), store.heldout])
    return Graph.from_edges(edge_E2, graph.num_nodes)


def random_vectors(num_nodes: int, seed: int) -> Tensor:
    """Return the random baseline's embeddings (N, 768)."""
    generator = torch.Generator().manual_seed(derive_seed(seed, "random-vectors") % 2**63)
    return torch.randn(num_nodes, RANDOM_WIDTH, generator=generator)


def draw_test_nodes(graph: Graph, rng: np.random.Generator) -> np.ndarray:
    """Return the nodes of a test graph (S,), ascending.

    Links are visited in random order. A link with two unassigned ends draws one split for both.
    """
    source_E = np.repeat(np.arange(graph.num_nodes), graph.degree_N)
    target_E = np.asarray(graph.indices)
    once = np.flatnonzero(source_E < target_E)  # each undirected link once
    once = rng.permutation(once)
    split_E = rng.choice(len(SPLIT_SHARES), size=len(once), p=SPLIT_SHARES)
    split_N = [-1] * graph.num_nodes
    links = zip(source_E[once].tolist(), target_E[once].tolist(), split_E.tolist(), strict=True)
    for u, v, split in links:
        if split_N[u] < 0 and split_N[v] < 0:
            split_N[u] = split
            split_N[v] = split
    return np.flatnonzero(np.array(split_N) == TEST)


def num_linked_test_nodes(graph: Graph, seed: int, trial: int = 0) -> int:
    """Return the number of nodes with a link in a trial's test graph, which samples draw from."""
    node_S = draw_test_nodes(graph, np.random.default_rng((seed, trial)))
    test_graph = induced_subgraph(graph, node_S, np.zeros(len(node_S), np.int32))
    return int((test_graph.degree_N > 0).sum())


def _draw_trial(
    graph: Graph, samples: int, nodes: int, rng: np.random.Generator
) -> list[LinkSample]:
    node_S = draw_test_nodes(graph, rng)
    test_graph = induced_subgraph(graph, node_S, np.zeros(len(node_S), np.int32))
    linked = np.flatnonzero(test_graph.degree_N > 0)
    if not len(linked):
        raise ValueError(f"a test graph of {len(node_S)} nodes has no link, want a larger graph")
    drawn_samples = []
    for _ in range(samples):
        drawn = rng.choice(linked, min(nodes, len(linked)), replace=False)
        members = np.unique(np.concatenate([drawn, neighbors_of(test_graph, drawn)]))
        links = induced_subgraph(test_graph, members, np.zeros(len(members), np.int32))
        drawn_samples.append(LinkSample(node_S[members], links))
    return drawn_samples
