"""Evaluation by link retrieval: choose the nodes, retrieve their links, report metrics.

*Training links* is the protocol of McDermott et al. and transductive: the model has seen these
links, and every other pair counts as unlinked, also a held-out one. *Held-out links* scores links
that the model has never seen. A node's training links are then no candidates, so that knowing them
is no disadvantage.

Shape letters: S nodes of an evaluation, M nodes, E links, D embedding width.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from raybio.core.interfaces import Collective
from raybio.methods.sppt.config import LinkEvaluationConfig
from raybio.methods.sppt.graph.csr import Graph
from raybio.methods.sppt.graph.subgraphs import induced_subgraph, neighbors_of
from raybio.methods.sppt.link_retrieval import LinkRetrieval, link_retrieval


@dataclass(frozen=True)
class LinkQueries:
    """The nodes of an evaluation and the links among them.

    Attributes:
        node_S: store rows, sorted.
        group_S: their groups; candidates of a node are the other nodes of its group.
        training: links among them that the model was trained on.
        heldout: links among them that were kept out of training.
    """

    node_S: np.ndarray
    group_S: np.ndarray
    training: Graph
    heldout: Graph


def draw_link_queries(
    graph: Graph, heldout_E2: np.ndarray, num_nodes_per_group: int, seed: int
) -> LinkQueries:
    """Choose the nodes of an evaluation.

    Args:
        graph: the training graph.
        heldout_E2: held-out links.
        num_nodes_per_group: nodes drawn from each group. All their neighbors, along training and
            held-out links, are added (as in the authors' code); the links among all of these are
            queried. 0: every node.
        seed: seed of the draw.
    """
    heldout = Graph.from_edges(np.asarray(heldout_E2), graph.num_nodes, graph.group_N)
    if num_nodes_per_group == 0:
        return LinkQueries(np.arange(graph.num_nodes), np.asarray(graph.group_N), graph, heldout)
    random_N = np.random.default_rng(seed).random(graph.num_nodes)
    node_by_group = np.lexsort([random_N, graph.group_N])
    group_sizes = np.bincount(graph.group_N)
    group_starts = np.cumsum(group_sizes) - group_sizes
    rank_in_group = np.arange(graph.num_nodes) - np.repeat(group_starts, group_sizes)
    drawn = node_by_group[rank_in_group < num_nodes_per_group]
    node_S = np.unique(
        np.concatenate([drawn, neighbors_of(graph, drawn), neighbors_of(heldout, drawn)])
    )
    group_S = np.asarray(graph.group_N)[node_S]
    training = induced_subgraph(graph, node_S, group_S)
    return LinkQueries(node_S, group_S, training, induced_subgraph(heldout, node_S, group_S))


def retrieve_links(
    queries: LinkQueries,
    embedding_SD: Tensor,
    config: LinkEvaluationConfig,
    collective: Collective | None = None,
) -> tuple[LinkRetrieval, LinkRetrieval | None]:
    """Return the retrieval of the training links and, if there are any, of the held-out links.

    Args:
        queries: nodes and links.
        embedding_SD: embeddings of the nodes, the same on every worker.
        config: metric and block size.
        collective: workers that divide the rows.
    """
    settings: dict[str, Any] = {
        "group_N": queries.group_S,
        "metric": config.metric,
        "block_rows": config.block_rows,
        "collective": collective,
    }
    training = queries.training
    heldout = queries.heldout
    of_training = link_retrieval(embedding_SD, training.indptr, training.indices, **settings)
    if heldout.num_edges == 0:
        return of_training, None
    of_heldout = link_retrieval(
        embedding_SD,
        heldout.indptr,
        heldout.indices,
        ignore=(training.indptr, training.indices),
        **settings,
    )
    return of_training, of_heldout


def evaluate_links(
    queries: LinkQueries,
    embedding_SD: Tensor,
    config: LinkEvaluationConfig,
    collective: Collective | None = None,
) -> dict[str, float]:
    """Return metrics ``train/link_*`` (training links) and ``val/link_*`` (held-out links).

    Arguments as for ``retrieve_links``.
    """
    training, heldout = retrieve_links(queries, embedding_SD, config, collective)
    metrics = link_metrics(training, "train")
    if heldout is not None:
        metrics |= link_metrics(heldout, "val")
    return metrics


def link_metrics(retrieval: LinkRetrieval, prefix: str) -> dict[str, float]:
    """Return the means of a retrieval under the names that logs and search spaces use."""
    return {f"{prefix}/link_{measure}": value for measure, value in retrieval.measures().items()}
