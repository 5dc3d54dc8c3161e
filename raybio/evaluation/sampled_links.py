"""Link retrieval on samples of a test graph, as SPPT's paper measures it on articles (Table 7; facts §6).

A test graph has a quarter of the nodes or less. Of each sample some nodes are drawn, all their neighbours join them,
and links among these are asked for. The links may be those of training: the measure is transductive.

Shape letters: N nodes, D embedding width.
"""

from typing import NamedTuple

import numpy as np
from torch import Tensor

from raybio.evaluation.link_retrieval import induced, neighbours_of
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


def sampled_link_scores(
    graph: Graph, embedding_ND: Tensor, *, trials: int = 5, samples: int = 100, nodes: int = 200, seed: int = 0
) -> dict[str, OverTrials]:
    """Mean of each of ``MEASURES`` over the samples of a trial, and then over trials.

    Args:
        graph: links among all nodes.
        embedding_ND: of all nodes.
        trials: test graphs.
        samples: of each.
        nodes: drawn for a sample, of those with a link in the test graph; all of these if there are fewer.
        seed: of the test graphs and samples: the same for every model.

    Raises:
        ValueError: if a test graph has no link.
    """
    value_TM = [
        _of_trial(graph, embedding_ND, samples, nodes, np.random.default_rng((seed, trial))) for trial in range(trials)
    ]
    mean_M, deviation_M = np.mean(value_TM, axis=0), np.std(value_TM, axis=0, ddof=1 if trials > 1 else 0)
    return {
        name: OverTrials(float(mean), float(deviation))
        for name, mean, deviation in zip(MEASURES, mean_M, deviation_M, strict=True)
    }


def _of_trial(graph: Graph, embedding_ND: Tensor, samples: int, nodes: int, rng: np.random.Generator) -> np.ndarray:
    node_S = nodes_of_test_graph(graph, rng)
    test_graph = induced(graph, node_S, np.zeros(len(node_S), np.int32))
    linked = np.flatnonzero(test_graph.degree_N > 0)
    if not len(linked):
        raise ValueError(f"a test graph of {len(node_S)} nodes has no link, want a larger graph")
    values = []
    for _ in range(samples):
        drawn = rng.choice(linked, min(nodes, len(linked)), replace=False)
        asked = np.unique(np.concatenate([drawn, neighbours_of(test_graph, drawn)]))
        links = induced(test_graph, asked, np.zeros(len(asked), np.int32))
        found = link_retrieval(embedding_ND[node_S[asked]], links.indptr, links.indices)
        values.append([getattr(found, name) for name in MEASURES])
    return np.mean(values, axis=0)
