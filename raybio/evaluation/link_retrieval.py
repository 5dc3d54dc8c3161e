"""Link retrieval: does the nearest neighbour in embedding space tell who is linked in the graph?

Two protocols. *Training links* is the paper's own (transductive: the model saw these links, and whatever is not among
them counts as unlinked, held-out partners too). *Held-out links* scores links that it never saw, and leaves each node's
training links out of its candidates, so that knowing those is no hindrance.

Shape letters: S nodes of an evaluation, D embedding width.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from pydantic import Field
from torch import Tensor

from raybio.config import BaseConfig
from raybio.evaluation.shares import exact_scores
from raybio.evaluation.unit_scores import UnitScores, sampled
from raybio.functional.bootstrap import bootstrap_intervals
from raybio.functional.chance import expected_average_precision, expected_ndcg, expected_reciprocal_rank
from raybio.functional.ranking import LinkRetrieval, link_retrieval
from raybio.graphs import Graph
from raybio.graphs.rows import expand
from raybio.protocols import Collective


class LinkEvaluationConfig(BaseConfig):
    """How link retrieval is measured, during training and at the end."""

    num_nodes_per_group: int = Field(
        50, ge=0, description="nodes drawn from each group, to which all their neighbours are added; 0: whole groups"
    )
    num_nodes_per_group_at_the_end: int = Field(
        0,
        ge=0,
        description="the same for a finished run's table; 0: whole groups, whose cost grows with their squares",
    )
    metric: Literal["euclidean", "cosine"] = Field("euclidean", description="what is near in embedding space")
    block_rows: int = Field(1024, ge=1, description="nodes whose candidates are scored at once")


@dataclass(frozen=True)
class LinkQuestions:
    """The nodes of an evaluation with the links among them.

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


def link_questions(graph: Graph, heldout_E2: np.ndarray, num_nodes_per_group: int, seed: int) -> LinkQuestions:
    """Choose the nodes of an evaluation.

    Args:
        graph: the training graph.
        heldout_E2: held-out links.
        num_nodes_per_group: nodes drawn from each group; all neighbours of each, along training and held-out links,
            join them (the authors' protocol), and the links among all of these are asked for. 0: every node.
        seed: of the draw.
    """
    heldout = Graph.from_edges(np.asarray(heldout_E2), graph.num_nodes, graph.group_N)
    if num_nodes_per_group == 0:
        return LinkQuestions(np.arange(graph.num_nodes), np.asarray(graph.group_N), graph, heldout)
    chance_N = np.random.default_rng(seed).random(graph.num_nodes)
    by_group = np.lexsort([chance_N, graph.group_N])
    group_sizes = np.bincount(graph.group_N)
    place_N = np.arange(graph.num_nodes) - np.repeat(np.cumsum(group_sizes) - group_sizes, group_sizes)
    drawn = by_group[place_N < num_nodes_per_group]
    node_S = np.unique(np.concatenate([drawn, neighbours_of(graph, drawn), neighbours_of(heldout, drawn)]))
    group_S = np.asarray(graph.group_N)[node_S]
    return LinkQuestions(node_S, group_S, induced(graph, node_S, group_S), induced(heldout, node_S, group_S))


def ask(
    questions: LinkQuestions, embedding_SD: Tensor, config: LinkEvaluationConfig, collective: Collective | None = None
) -> tuple[LinkRetrieval, LinkRetrieval | None]:
    """Retrieval of the training links and, where there are any, of the held-out links.

    Args:
        questions: nodes and links.
        embedding_SD: embeddings of the nodes, the same on every worker.
        config: metric and block size.
        collective: workers to divide the rows over.
    """
    settings: dict[str, Any] = {
        "group_N": questions.group_S,
        "metric": config.metric,
        "block_rows": config.block_rows,
        "collective": collective,
    }
    training, heldout = questions.training, questions.heldout
    seen = link_retrieval(embedding_SD, training.indptr, training.indices, **settings)
    if heldout.num_edges == 0:
        return seen, None
    return seen, link_retrieval(
        embedding_SD, heldout.indptr, heldout.indices, ignore=(training.indptr, training.indices), **settings
    )


def metrics_of(retrieval: LinkRetrieval, prefix: str) -> dict[str, float]:
    """The scalars of a retrieval under the names that reports and search spaces use."""
    return {
        f"{prefix}/link_lrap": retrieval.lrap,
        f"{prefix}/link_ndcg": retrieval.ndcg,
        f"{prefix}/link_average_precision": retrieval.average_precision,
        f"{prefix}/link_mrr": retrieval.mrr,
        f"{prefix}/link_recall_at_10": retrieval.recall_at[10],
    }


def evaluate_links(
    questions: LinkQuestions, embedding_SD: Tensor, config: LinkEvaluationConfig, collective: Collective | None = None
) -> dict[str, float]:
    """Metrics ``train/link_*`` (training links) and ``val/link_*`` (held-out links); arguments as for ``ask``."""
    seen, heldout = ask(questions, embedding_SD, config, collective)
    return metrics_of(seen, "train") | (metrics_of(heldout, "val") if heldout is not None else {})


def scores_with_intervals(
    seen: LinkRetrieval, heldout: LinkRetrieval | None, rng: np.random.Generator
) -> dict[str, dict[str, dict[str, float]]]:
    """``{"train" | "val": {metric: {"value", "low", "high"}}}`` with 95 % bootstrap intervals over the nodes asked."""
    retrievals = {"train": seen} | ({"val": heldout} if heldout is not None else {})
    return {
        name: {metric: interval._asdict() for metric, interval in bootstrap_intervals(retrieval, rng).items()}
        for name, retrieval in retrievals.items()
    }


def chance_scores(questions: LinkQuestions) -> dict[str, dict[str, dict[str, float]]]:
    """Return ``{"train" | "val": {metric: {"value"}}}`` of candidates in random order, exactly."""
    training, heldout, group_S = questions.training, questions.heldout, questions.group_S
    scores = {"train": exact_scores(link_chance(training, group_S))}
    if heldout.num_edges:
        scores["val"] = exact_scores(link_chance(heldout, group_S, ignored=training))
    return scores


def link_chance(links: Graph, group_S: np.ndarray, ignored: Graph | None = None) -> dict[str, float]:
    """Return the expected scores of link retrieval where all orders of the candidates are equally likely.

    A node with R links among its M candidates, the other nodes of its group that are not ignored, expects
    ``expected_average_precision(R, M)`` as LRAP, and so on. For the average precision all pairs of a group are one
    list, in which a link and its reverse tie: the pairs count once.

    Args:
        links: links among the nodes; those between groups are left out.
        group_S: group of each node.
        ignored: pairs that are neither candidates nor links.
    """
    num_nodes = links.num_nodes
    source_E = np.repeat(np.arange(num_nodes), links.degree_N)
    is_inside_E = group_S[source_E] == group_S[links.indices]
    _, number_S = np.unique(group_S, return_inverse=True)
    candidates_S = np.bincount(number_S)[number_S] - 1
    if ignored is not None:
        is_inside_E &= ~ignored.has_edge(source_E, links.indices)
        ignored_E = np.repeat(np.arange(num_nodes), ignored.degree_N)
        is_candidate_E = group_S[ignored_E] == group_S[ignored.indices]
        candidates_S = candidates_S - np.bincount(ignored_E[is_candidate_E], minlength=num_nodes)
    links_S = np.bincount(source_E[is_inside_E], minlength=num_nodes)
    is_anchor_S = links_S > 0
    anchors_G = np.bincount(number_S, is_anchor_S)
    pairs_G, links_G = np.bincount(number_S, candidates_S) / 2, np.bincount(number_S, links_S) / 2
    has_links_G = links_G > 0
    precision_G = expected_average_precision(links_G[has_links_G], pairs_G[has_links_G])
    links_A, candidates_A = links_S[is_anchor_S], candidates_S[is_anchor_S]
    return {
        "lrap": float(expected_average_precision(links_A, candidates_A).mean()),
        "ndcg": float(expected_ndcg(links_A, candidates_A).mean()),
        "average_precision": float(np.average(precision_G, weights=anchors_G[has_links_G])),
        "mrr": float(expected_reciprocal_rank(links_A, candidates_A).mean()),
    }


def node_scores(seen: LinkRetrieval, heldout: LinkRetrieval | None) -> dict[str, UnitScores]:
    """What each node that was asked adds to ``scores_with_intervals``, by the same names."""
    retrievals = {"train": seen} | ({"val": heldout} if heldout is not None else {})
    return {name: _node_scores(retrieval) for name, retrieval in retrievals.items()}


def _node_scores(retrieval: LinkRetrieval) -> UnitScores:
    _, group_A, size_G = np.unique(retrieval.group_A, return_inverse=True, return_counts=True)
    links_G = np.bincount(group_A, retrieval.num_links_A)
    values = {
        "lrap": retrieval.lrap_A,
        "ndcg": retrieval.ndcg_A,
        "mrr": retrieval.reciprocal_rank_A,
        # A group's precision is a ratio of sums over its links, and groups weigh as many anchors as they have.
        "average_precision": retrieval.precision_sum_A * (size_G / links_G)[group_A],
    }
    return sampled(retrieval.anchor_A, values)


def neighbours_of(graph: Graph, node_M: np.ndarray) -> np.ndarray:
    """All neighbours of some nodes, node after node."""
    position, _ = expand(graph.indptr[node_M].astype(np.int64), graph.degree_N[node_M].astype(np.int64))
    return np.asarray(graph.indices)[position].astype(np.int64)


def induced(graph: Graph, node_S: np.ndarray, group_S: np.ndarray) -> Graph:
    """The subgraph on sorted ``node_S``, renumbered 0..S-1."""
    degree_S = graph.degree_N[node_S].astype(np.int64)
    source_E = np.repeat(np.arange(len(node_S)), degree_S)
    target_E = neighbours_of(graph, node_S)
    place_E = np.searchsorted(node_S, target_E).clip(max=len(node_S) - 1)
    inside_E = node_S[place_E] == target_E
    return Graph.from_edges(np.stack([source_E[inside_E], place_E[inside_E]], axis=1), len(node_S), group_S)
