"""Link retrieval on samples of a test graph, as SPPT's paper measures it on articles (Table 7; facts §6).

A test graph has a quarter of the nodes or less. Of each sample some nodes are drawn, all their neighbours join them,
and links among these are asked for. The links may be those of training: the measure is transductive.

Shape letters: N nodes, D embedding width.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from raybio.evaluation.link_retrieval import induced, link_chance, neighbours_of
from raybio.functional.ranking import link_retrieval
from raybio.graphs import Graph

TEST = 2
SHARES = (0.5, 0.25, 0.25)
"""Of pairs of nodes that neither part has yet: training, validation, test."""

MEASURES = ("lrap", "ndcg", "average_precision", "mrr")


class OverTrials(NamedTuple):
    """Mean and standard deviation (of a sample) over trials."""

    mean: float
    deviation: float


class LinkSample(NamedTuple):
    """Nodes of a test graph that are asked for the links among them.

    Attributes:
        node_A: which they are.
        links: among them, numbered in their order.
    """

    node_A: np.ndarray
    links: Graph


def nodes_of_test_graph(graph: Graph, rng: np.random.Generator) -> np.ndarray:
    """Nodes of a test graph: in random order, links whose ends are in no part yet choose one for both."""
    source_E = np.repeat(np.arange(graph.num_nodes), graph.degree_N)
    target_E = np.asarray(graph.indices)
    once = np.flatnonzero(source_E < target_E)
    once = rng.permutation(once)
    part_E = rng.choice(len(SHARES), size=len(once), p=SHARES)
    part_N = [-1] * graph.num_nodes
    for u, v, part in zip(source_E[once].tolist(), target_E[once].tolist(), part_E.tolist(), strict=True):
        if part_N[u] < 0 and part_N[v] < 0:
            part_N[u] = part_N[v] = part
    return np.flatnonzero(np.array(part_N) == TEST)


def linked_of_test_graph(graph: Graph, seed: int, trial: int = 0) -> int:
    """Nodes with a link in a test graph, the first one unless told: what samples are drawn from."""
    node_S = nodes_of_test_graph(graph, np.random.default_rng((seed, trial)))
    return int((induced(graph, node_S, np.zeros(len(node_S), np.int32)).degree_N > 0).sum())


def draw_link_samples(
    graph: Graph, *, trials: int = 5, samples: int = 100, nodes: int = 200, seed: int = 0
) -> list[list[LinkSample]]:
    """The samples of each trial, a test graph of its own; every model is asked the same.

    Args:
        graph: links among all nodes.
        trials: test graphs.
        samples: of each.
        nodes: drawn for a sample, of those with a link in the test graph; all of these if there are fewer.
        seed: of the test graphs and samples.

    Raises:
        ValueError: if a test graph has no link.
    """
    return [_of_trial(graph, samples, nodes, np.random.default_rng((seed, trial))) for trial in range(trials)]


def sampled_link_scores(samples: Sequence[LinkSample], embedding_ND: Tensor) -> list[float]:
    """Mean of each of ``MEASURES`` over the samples of a trial, for embeddings of all nodes."""
    found = [
        link_retrieval(embedding_ND[one.node_A], one.links.indptr, one.links.indices)  # type: ignore[arg-type]
        for one in samples
    ]
    return [float(np.mean([getattr(one, name) for one in found])) for name in MEASURES]


def sampled_link_chance(trials: Sequence[Sequence[LinkSample]]) -> dict[str, float]:
    """Return the mean over trials, and over their samples, of what random orders give."""
    found = []
    for samples in trials:
        of_trial = [link_chance(one.links, np.zeros(one.links.num_nodes, np.int64)) for one in samples]
        found.append([np.mean([chance[name] for chance in of_trial]) for name in MEASURES])
    return dict(zip(MEASURES, np.mean(found, axis=0).tolist(), strict=True))


def over_trials(value_TM: ArrayLike) -> dict[str, OverTrials]:
    """Mean and deviation over trials, by the name of the measure; a deviation of 0 of a single trial."""
    values = np.asarray(value_TM, np.float64)
    deviation_M = values.std(axis=0, ddof=1 if len(values) > 1 else 0)
    numbers = zip(MEASURES, values.mean(axis=0).tolist(), deviation_M.tolist(), strict=True)
    return {name: OverTrials(mean, deviation) for name, mean, deviation in numbers}


def _of_trial(graph: Graph, samples: int, nodes: int, rng: np.random.Generator) -> list[LinkSample]:
    node_S = nodes_of_test_graph(graph, rng)
    test_graph = induced(graph, node_S, np.zeros(len(node_S), np.int32))
    linked = np.flatnonzero(test_graph.degree_N > 0)
    if not len(linked):
        raise ValueError(f"a test graph of {len(node_S)} nodes has no link, want a larger graph")
    drawn_samples = []
    for _ in range(samples):
        drawn = rng.choice(linked, min(nodes, len(linked)), replace=False)
        asked = np.unique(np.concatenate([drawn, neighbours_of(test_graph, drawn)]))
        links = induced(test_graph, asked, np.zeros(len(asked), np.int32))
        drawn_samples.append(LinkSample(node_S[asked], links))
    return drawn_samples
