"""Evaluation by link retrieval: choose the nodes, retrieve their links, report metrics.

*Training links* is the protocol of McDermott et al. and transductive: the model has seen these
links, and every other pair counts as unlinked, also a held-out one. *Held-out links* scores links
that the model has never seen. A node's training links are then no candidates, so that knowing them
is no disadvantage.

Shape letters: S nodes of an evaluation, M nodes, E links, D embedding width.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
from torch import Tensor

from raybio.core.interfaces import Collective
from raybio.methods.sppt.config import LinkEvaluationConfig
from raybio.methods.sppt.graph.csr import Graph
from raybio.methods.sppt.graph.subgraphs import induced_subgraph, neighbors_of
from raybio.methods.sppt.link_retrieval import (
    InGroup,
    LinkRetrieval,
    QueriedLinks,
    embedding_scores,
    rank_splits,
)

QUERY_SEED = 0
"""Seed of the nodes of an evaluation."""


class LinkSplit(NamedTuple):
    """Links that are scored together.

    Attributes:
        links: the links.
        ignored: pairs that are neither candidates nor links; None: every other node of the group
            is a candidate.
    """

    links: Graph
    ignored: Graph | None


@dataclass(frozen=True)
class LinkQueries:
    """The nodes of an evaluation and the links among them.

    Attributes:
        node_S: store rows, sorted.
        group_S: their groups; candidates of a node are the other nodes of its group.
        training: links among them that the model was trained on.
        heldout: links among them that were kept out of training.
        parts: parts of the held-out links, by name.
        num_left_out: number of neighbors of the drawn nodes that ``max_neighbors`` excludes.
    """

    node_S: np.ndarray
    group_S: np.ndarray
    training: Graph
    heldout: Graph
    parts: Mapping[str, Graph] = field(default_factory=dict)
    num_left_out: int = 0

    @cached_property
    def splits(self) -> dict[str, LinkSplit]:
        """The links by split: ``train``, ``val`` and its parts.

        Where held-out links are scored, training links are no candidates, nor are the held-out
        links of other parts.
        """
        splits = {"train": LinkSplit(self.training, None)}
        if self.heldout.num_edges == 0:
            return splits
        splits["val"] = LinkSplit(self.heldout, self.training)
        known_E2 = np.concatenate([_links_of(self.training), _links_of(self.heldout)])
        for name, part in self.parts.items():
            if part.num_edges:
                others_E2 = known_E2[~part.has_edge(known_E2[:, 0], known_E2[:, 1])]
                ignored = Graph.from_edges(others_E2, part.num_nodes, self.group_S)
                splits[name] = LinkSplit(part, ignored)
        return splits


def _links_of(graph: Graph) -> np.ndarray:
    """Return the directed links (L, 2)."""
    source_L = np.repeat(np.arange(graph.num_nodes), graph.degree_N)
    return np.stack([source_L, np.asarray(graph.indices)], axis=1)


def draw_link_queries(
    graph: Graph,
    heldout_E2: np.ndarray,
    num_nodes_per_group: int,
    parts: Mapping[str, np.ndarray] | None = None,
    num_groups: int = 0,
    max_neighbors: int = 0,
) -> LinkQueries:
    """Choose the nodes of an evaluation; all runs over a store get the same.

    A node that ``max_neighbors`` excludes is neither an anchor nor a candidate, and links to it are
    not scored. Nodes with the most links lose neighbors first, drawn uniformly over training and
    held-out links, so they are scored on a sample of their links; nodes with few links keep all of
    theirs. No drawn node is excluded for having many links.

    Args:
        graph: the training graph.
        heldout_E2: held-out links.
        num_nodes_per_group: nodes drawn from each group. Their neighbors, along training and
            held-out links, are added (as in the authors' code); the links among all of these are
            queried. 0: every node.
        parts: held-out links that are also scored by themselves, by name.
        num_groups: number of groups drawn from those with training links; nodes of other groups are
            excluded. 0: all groups.
        max_neighbors: maximum number of nodes that are added as neighbors to the drawn ones; 0:
            all.
    """
    graph_by_part = {
        name: Graph.from_edges(np.asarray(link_E2), graph.num_nodes, graph.group_N)
        for name, link_E2 in (parts or {}).items()
    }
    heldout = Graph.from_edges(np.asarray(heldout_E2), graph.num_nodes, graph.group_N)
    is_drawn_N = _drawn_groups(graph, num_groups)
    if num_nodes_per_group == 0 and is_drawn_N.all():
        node_N = np.arange(graph.num_nodes)
        return LinkQueries(node_N, np.asarray(graph.group_N), graph, heldout, graph_by_part)
    rng = np.random.default_rng(QUERY_SEED)
    random_N = rng.random(graph.num_nodes)
    node_by_group = np.lexsort([random_N, graph.group_N])
    group_sizes = np.bincount(graph.group_N)
    group_starts = np.cumsum(group_sizes) - group_sizes
    rank_in_group = np.arange(graph.num_nodes) - np.repeat(group_starts, group_sizes)
    num_drawn = num_nodes_per_group or graph.num_nodes
    drawn = node_by_group[(rank_in_group < num_drawn) & is_drawn_N[node_by_group]]
    neighbors, num_left_out = _neighbors(graph, heldout, drawn, max_neighbors, rng)
    node_S = np.sort(np.concatenate([drawn, neighbors]))
    group_S = np.asarray(graph.group_N)[node_S]
    training = induced_subgraph(graph, node_S, group_S)
    inside = {name: induced_subgraph(part, node_S, group_S) for name, part in graph_by_part.items()}
    inside_heldout = induced_subgraph(heldout, node_S, group_S)
    return LinkQueries(node_S, group_S, training, inside_heldout, inside, num_left_out)


def _neighbors(
    graph: Graph,
    heldout: Graph,
    drawn: np.ndarray,
    max_neighbors: int,
    rng: np.random.Generator,
) -> tuple[np.ndarray, int]:
    """Return neighbors that are not drawn themselves, and the number of excluded neighbors.

    Each node in turn adds one neighbor, drawn without replacement, until there are enough.

    Args:
        graph: the training graph.
        heldout: held-out links, which are followed too.
        drawn: the nodes whose neighbors are added.
        max_neighbors: maximum number of neighbors; 0: all.
        rng: draws them.
    """
    sides = (graph, heldout)
    neighbor_E = np.concatenate([neighbors_of(side, drawn) for side in sides])
    is_new_E = ~np.isin(neighbor_E, drawn)
    neighbors, number_E = np.unique(neighbor_E[is_new_E], return_inverse=True)
    if max_neighbors == 0 or len(neighbors) <= max_neighbors:
        return neighbors, 0
    owners = [np.repeat(np.arange(len(drawn)), side.degree_N[drawn]) for side in sides]
    owner_E = np.concatenate(owners)[is_new_E]
    random_E = rng.random(len(owner_E))
    by_owner = np.lexsort([random_E, owner_E])
    size_D = np.bincount(owner_E, minlength=len(drawn))
    turn_E = np.empty(len(owner_E), np.int64)
    turn_E[by_owner] = np.arange(len(owner_E)) - np.repeat(np.cumsum(size_D) - size_D, size_D)
    in_turn_E = number_E[np.lexsort([random_E, turn_E])]
    kept, first = np.unique(in_turn_E, return_index=True)
    chosen = kept[np.argsort(first)[:max_neighbors]]
    return neighbors[chosen], len(neighbors) - max_neighbors


def _drawn_groups(graph: Graph, num_groups: int) -> np.ndarray:
    """Return whether each node (N,) is in a drawn group.

    Groups are drawn from those with training links: without one, there is nothing to retrieve.
    """
    group_N = np.asarray(graph.group_N)
    if num_groups == 0 or num_groups >= len(np.unique(group_N)):
        return np.ones(graph.num_nodes, bool)
    groups = np.unique(group_N[graph.degree_N > 0])
    num_groups = min(num_groups, len(groups))
    drawn = np.random.default_rng([QUERY_SEED, 1]).choice(groups, num_groups, replace=False)
    return np.isin(group_N, drawn)


def rank_queries(
    queries: LinkQueries,
    in_group: InGroup,
    *,
    block_rows: int,
    collective: Collective | None,
) -> dict[str, LinkRetrieval]:
    """Return the retrieval of the links of each split by any scores; see ``rank_splits``."""
    retrievals = rank_splits(
        in_group,
        [
            QueriedLinks(
                links.indptr,
                links.indices,
                None if ignored is None else (ignored.indptr, ignored.indices),
            )
            for links, ignored in queries.splits.values()
        ],
        group_N=queries.group_S,
        block_rows=block_rows,
        collective=collective,
    )
    return dict(zip(queries.splits, retrievals, strict=True))


def retrieve_links(
    queries: LinkQueries,
    embedding_SD: Tensor,
    config: LinkEvaluationConfig,
    collective: Collective | None = None,
) -> dict[str, LinkRetrieval]:
    """Return the retrieval of the links of each split by embeddings.

    Args:
        queries: nodes and links.
        embedding_SD: embeddings of the nodes, the same on every worker.
        config: metric and block size.
        collective: workers that divide the rows.
    """
    in_group = embedding_scores(embedding_SD, config.metric)
    return rank_queries(queries, in_group, block_rows=config.block_rows, collective=collective)


def evaluate_links(
    queries: LinkQueries,
    embedding_SD: Tensor,
    config: LinkEvaluationConfig,
    collective: Collective | None = None,
) -> dict[str, float]:
    """Return metrics ``train/link_*`` (training links) and ``val/link_*`` (held-out links).

    Arguments as for ``retrieve_links``.
    """
    metrics: dict[str, float] = {}
    for name, retrieval in retrieve_links(queries, embedding_SD, config, collective).items():
        metrics |= link_metrics(retrieval, name)
    return metrics


def link_metrics(retrieval: LinkRetrieval, prefix: str) -> dict[str, float]:
    """Return the means of a retrieval under the names that logs and search spaces use."""
    return {f"{prefix}/link_{measure}": value for measure, value in retrieval.measures().items()}
