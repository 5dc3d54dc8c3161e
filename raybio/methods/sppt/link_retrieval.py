"""Link retrieval: how well nearness of embeddings tells who is linked, exactly, in bounded memory.

N nodes, D embedding width, A anchors (nodes with a link), P directed links, K cut-offs. Definitions follow the SPPT
authors' evaluation, with ties treated as written at ``LinkRetrieval``.

Link retrieval: does the nearest neighbour in embedding space tell who is linked in the graph?

Two protocols. *Training links* is the paper's own (transductive: the model saw these links, and whatever is not among
them counts as unlinked, held-out partners too). *Held-out links* scores links that it never saw, and leaves each node's
training links out of its candidates, so that knowing those is no hindrance.

Shape letters: S nodes of an evaluation, D embedding width.

How far the figures of a link retrieval would move with other anchors.

A anchors, G groups.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from raybio.core.interfaces import Collective
from raybio.evaluation.evaluator import UnitScores, exact_scores, sampled
from raybio.methods.sppt.config import LinkEvaluationConfig
from raybio.methods.sppt.graph.csr import Graph
from raybio.ops.chance import expected_average_precision, expected_ndcg, expected_reciprocal_rank
from raybio.ops.rank_counts import count_at_least, count_ranks
from raybio.ops.scores import ENTRIES_AT_ONCE, Metric, check_finite, row_blocks, scorer
from raybio.ops.segments import expand
from raybio.ops.significance import Interval

CUTOFFS = (1, 5, 10, 25, 100)


Integers = NDArray[np.integer[Any]]


Floats = NDArray[np.float64]


@dataclass(frozen=True)
class LinkRetrieval:
    """Link retrieval per anchor, and its means.

    Nodes without a link are no anchors. Means run over anchors, which weights groups by their number of anchors;
    recall runs over directed links.

    Attributes:
        anchor_A: node ids, by group and then by id.
        group_A: their groups.
        num_links_A: links of each.
        lrap_A: label ranking average precision: mean over links of (links that score at least as high) / (candidates
            that do).
        ndcg_A: normalised discounted cumulative gain, log2, over the whole list; ties in order of candidate index.
        reciprocal_rank_A: 1 / rank of the nearest link; ties share their average rank.
        precision_sum_A: sum over the anchor's links of the precision at their score, when all ordered pairs of the
            group are ranked in one list.
        hits_AK: links among the first ``CUTOFFS[k]`` candidates; ties in order of candidate index.
    """

    anchor_A: Integers
    group_A: Integers
    num_links_A: Integers
    lrap_A: Floats
    ndcg_A: Floats
    reciprocal_rank_A: Floats
    precision_sum_A: Floats
    hits_AK: Integers

    @property
    def lrap(self) -> float:
        """Mean label ranking average precision."""
        return float(self.lrap_A.mean())

    @property
    def ndcg(self) -> float:
        """Mean nDCG."""
        return float(self.ndcg_A.mean())

    @property
    def mrr(self) -> float:
        """Mean reciprocal rank of the nearest link."""
        return float(self.reciprocal_rank_A.mean())

    @property
    def average_precision(self) -> float:
        """Average precision over all ordered pairs of a group (micro), mean over groups weighted by anchors."""
        start = np.flatnonzero(np.diff(self.group_A, prepend=self.group_A[0] - 1))
        precision_G = np.add.reduceat(self.precision_sum_A, start) / np.add.reduceat(
            self.num_links_A, start
        )
        return float(np.average(precision_G, weights=np.diff(np.append(start, len(self.group_A)))))

    @property
    def recall_at(self) -> dict[int, float]:
        """Share of all directed links that are among the first k of their anchor, for each k of ``CUTOFFS``."""
        return {
            k: float(self.hits_AK[:, place].sum() / self.num_links_A.sum())
            for place, k in enumerate(CUTOFFS)
        }


def link_retrieval(
    embedding_ND: Tensor,
    indptr: Integers,
    indices: Integers,
    *,
    group_N: ArrayLike | None = None,
    metric: Metric = "euclidean",
    block_rows: int = 1024,
    ignore: tuple[Integers, Integers] | None = None,
    collective: Collective | None = None,
    score_dtype: torch.dtype = torch.float64,
) -> LinkRetrieval:
    """Rank, for each node, the other nodes of its group by nearness, and score the ranks of its links.

    Memory beyond the embeddings and links: some blocks of ``block_rows`` x (size of the largest group) numbers.

    Args:
        embedding_ND: embeddings, on the device that is to do the work.
        indptr: (N + 1,) rows of links, as in ``raybio.methods.sppt.graph.csr.Graph``. Links between groups are left out.
        indices: (P,) their other ends.
        group_N: (N,) group of each node; None: all are one group.
        metric: "euclidean", "cosine" or "dot".
        block_rows: anchors scored at once, at most.
        ignore: (indptr, indices) of pairs that are neither candidates nor links: training links, when held-out links
            are asked for.
        collective: divides the rows over workers, each of which must hold all embeddings. Every worker returns the
            whole result. Only sums with zeros cross the wire, so nothing is lost or rounded.
        score_dtype: ``torch.float32`` is twice as fast, but then equal distances may not tie.

    Raises:
        ValueError: for embeddings that are not finite, arrays that do not fit together, or if there is no link.
    """
    indptr, indices, num_nodes = np.asarray(indptr), np.asarray(indices), len(embedding_ND)
    group = np.zeros(num_nodes, dtype=np.int64) if group_N is None else np.asarray(group_N)
    _check(embedding_ND, indptr, group)
    order = np.argsort(group, kind="stable")
    head = (
        np.flatnonzero(np.diff(group[order], prepend=group[order[:1]] - 1))
        if num_nodes
        else np.zeros(0, np.int64)
    )
    place_N = np.empty(num_nodes, dtype=np.int64)
    place_N[order] = np.arange(num_nodes)
    parts = []
    for first, end in zip(head.tolist(), [*head[1:].tolist(), num_nodes], strict=False):
        row_P, column_P = _pairs(indptr, indices, order[first:end], place_N, first)
        ignored = (
            None
            if ignore is None
            else _pairs(ignore[0], ignore[1], order[first:end], place_N, first)
        )
        if ignored is not None:
            is_asked_P = ~np.isin(row_P * num_nodes + column_P, ignored[0] * num_nodes + ignored[1])
            row_P, column_P = row_P[is_asked_P], column_P[is_asked_P]
        if len(row_P):
            node = torch.from_numpy(order[first:end]).to(embedding_ND.device)
            candidates = scorer(embedding_ND[node], metric, score_dtype)
            work = _Work(candidates, row_P, column_P, ignored, block_rows, collective)
            parts.append(_retrieve(work, order[first:end], int(group[order[first]])))
    if not parts:
        raise ValueError(
            "there is no link to retrieve: every link is ignored, crosses groups, or there was none"
        )
    return LinkRetrieval(
        *(np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(LinkRetrieval))
    )


class ScoresBlocks(Protocol):
    """What ranks candidates: a ``Scorer`` of embeddings, or a table of scores."""

    @property
    def num_candidates(self) -> int:
        """N."""
        ...

    @property
    def device(self) -> torch.device:
        """Where scores are computed."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """Of the scores."""
        ...

    def block(self, first: int, end: int) -> Tensor:
        """Scores (end - first, N) of the candidates for anchors ``[first, end)``; -inf for the anchor itself."""
        ...


@dataclass(frozen=True)
class _Work:
    """One group: its links (P) in order of row, pairs to ignore, and which rows this worker scores."""

    candidates: ScoresBlocks
    row_P: Integers
    column_P: Integers
    ignored: tuple[Integers, Integers] | None
    block_rows: int
    collective: Collective | None

    def blocks(self) -> Iterator[tuple[int, int, Tensor]]:
        """(first row, end, scores) of this worker's blocks."""
        size = self.candidates.num_candidates
        for start, end in row_blocks(size, size, self.block_rows, self.collective):
            score_BN = self.candidates.block(start, end)
            if self.ignored is not None:
                low, high = np.searchsorted(self.ignored[0], [start, end])
                row, column = (
                    torch.from_numpy(side[low:high]).to(score_BN.device) for side in self.ignored
                )
                score_BN[row - start, column] = -torch.inf
            yield start, end, score_BN

    def sum(self, tensor: Tensor) -> Tensor:
        """Sum over workers."""
        return tensor if self.collective is None else self.collective.all_sum(tensor)


def _retrieve(work: _Work, node_N: Integers, group: int) -> LinkRetrieval:
    device = work.candidates.device
    # One row each: score, above, at least, tied before. Other workers' links stay 0, so that sums put them together.
    link_4P = torch.zeros((4, len(work.row_P)), dtype=torch.float64, device=device)
    # Blocks are scored twice, but a group of one block keeps it.
    held = (
        list(work.blocks())
        if len(node_N) <= work.block_rows and len(node_N) ** 2 <= ENTRIES_AT_ONCE
        else None
    )
    for start, end, score_BN in held or work.blocks():
        low, high = np.searchsorted(work.row_P, [start, end])
        row_P = torch.from_numpy(work.row_P[low:high] - start).to(device)
        column_P = torch.from_numpy(work.column_P[low:high]).to(device)
        link_4P[0, low:high] = score_BN[row_P, column_P].double()
        link_4P[1:, low:high] = torch.stack(count_ranks(score_BN, row_P, column_P)).double()
    link_4P = work.sum(link_4P)
    score_P = link_4P[0].cpu().numpy()
    threshold_U, place_P = np.unique(score_P, return_inverse=True)
    threshold = torch.from_numpy(threshold_U).to(device, work.candidates.dtype)
    pairs_U = torch.zeros(len(threshold_U), dtype=torch.int64, device=device)
    for _, _, score_BN in held or work.blocks():
        pairs_U += count_at_least(score_BN, threshold)
    pairs_P = work.sum(pairs_U).cpu().numpy()[place_P]
    precision_P = _links_at_least(np.zeros_like(work.row_P), score_P) / pairs_P
    above_P, at_least_P, tied_before_P = link_4P[1:].cpu().numpy().astype(np.int64)
    return _per_anchor(
        work.row_P, node_N, group, score_P, precision_P, above_P, at_least_P, tied_before_P
    )


def _per_anchor(
    row_P: Integers,
    node_N: Integers,
    group: int,
    score_P: Floats,
    precision_P: Floats,
    above_P: Integers,
    at_least_P: Integers,
    tied_before_P: Integers,
) -> LinkRetrieval:
    start_A = np.flatnonzero(np.diff(row_P, prepend=-1))
    num_links_A = np.diff(np.append(start_A, len(row_P)))
    rank_P = above_P + tied_before_P + 1
    ideal = np.cumsum(1 / np.log2(np.arange(2, num_links_A.max() + 2)))
    return LinkRetrieval(
        anchor_A=node_N[row_P[start_A]],
        group_A=np.full(len(start_A), group),
        num_links_A=num_links_A,
        lrap_A=np.add.reduceat(_links_at_least(row_P, score_P) / at_least_P, start_A) / num_links_A,
        ndcg_A=np.add.reduceat(1 / np.log2(rank_P + 1), start_A) / ideal[num_links_A - 1],
        # The average rank falls with the score, so the best one is that of the nearest link.
        reciprocal_rank_A=np.maximum.reduceat(2 / (above_P + at_least_P + 1), start_A),
        precision_sum_A=np.add.reduceat(precision_P, start_A),
        hits_AK=np.add.reduceat(
            (rank_P[:, None] <= np.array(CUTOFFS)).astype(np.int64), start_A, axis=0
        ),
    )


def _links_at_least(owner_P: Integers, score_P: Floats) -> Integers:
    """For each link, how many links of its owner score at least as high."""
    order = np.lexsort([score_P, owner_P])
    owner, score = owner_P[order], score_P[order]
    is_owner_head = np.diff(owner, prepend=-1) != 0
    is_tie_head = is_owner_head | np.append(True, score[1:] != score[:-1])
    first_of_tie = np.maximum.accumulate(np.where(is_tie_head, np.arange(len(order)), 0))
    owner_end = np.append(np.flatnonzero(is_owner_head)[1:], len(order))[
        np.cumsum(is_owner_head) - 1
    ]
    count_P = np.empty_like(order)
    count_P[order] = owner_end - first_of_tie
    return count_P


def _pairs(
    indptr: Integers, indices: Integers, node_G: Integers, place_N: Integers, first: int
) -> tuple[Integers, Integers]:
    """Links inside the group of ``node_G``, which holds the places from ``first`` on; places count from there."""
    start_G = indptr[node_G].astype(np.int64)
    position, owner = expand(start_G, indptr[node_G + 1] - start_G)
    column = place_N[indices[position]] - first
    is_inside = (column >= 0) & (column < len(node_G)) & (column != owner)
    return owner[is_inside], column[is_inside]


def _check(embedding_ND: Tensor, indptr: Integers, group_N: Integers) -> None:
    num_nodes = len(embedding_ND)
    if len(indptr) != num_nodes + 1 or len(group_N) != num_nodes:
        raise ValueError(
            f"{num_nodes} embeddings do not fit indptr ({len(indptr)} entries, want {num_nodes + 1}) "
            f"and group_N ({len(group_N)} entries, want {num_nodes})"
        )
    check_finite(embedding_ND, "embeddings")


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


def link_questions(
    graph: Graph, heldout_E2: np.ndarray, num_nodes_per_group: int, seed: int
) -> LinkQuestions:
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
    place_N = np.arange(graph.num_nodes) - np.repeat(
        np.cumsum(group_sizes) - group_sizes, group_sizes
    )
    drawn = by_group[place_N < num_nodes_per_group]
    node_S = np.unique(
        np.concatenate([drawn, neighbours_of(graph, drawn), neighbours_of(heldout, drawn)])
    )
    group_S = np.asarray(graph.group_N)[node_S]
    return LinkQuestions(
        node_S, group_S, induced(graph, node_S, group_S), induced(heldout, node_S, group_S)
    )


def ask(
    questions: LinkQuestions,
    embedding_SD: Tensor,
    config: LinkEvaluationConfig,
    collective: Collective | None = None,
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
        embedding_SD,
        heldout.indptr,
        heldout.indices,
        ignore=(training.indptr, training.indices),
        **settings,
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
    questions: LinkQuestions,
    embedding_SD: Tensor,
    config: LinkEvaluationConfig,
    collective: Collective | None = None,
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
        name: {
            metric: interval._asdict()
            for metric, interval in bootstrap_intervals(retrieval, rng).items()
        }
        for name, retrieval in retrievals.items()
    }


def chance_scores(questions: LinkQuestions) -> dict[str, dict[str, dict[str, float]]]:
    """Return ``{"train" | "val": {metric: {"value"}}}`` of candidates in random order, exactly."""
    training, heldout, group_S = questions.training, questions.heldout, questions.group_S
    scores = {"train": exact_scores(link_chance(training, group_S))}
    if heldout.num_edges:
        scores["val"] = exact_scores(link_chance(heldout, group_S, ignored=training))
    return scores


def link_chance(
    links: Graph, group_S: np.ndarray, ignored: Graph | None = None
) -> dict[str, float]:
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
    position, _ = expand(
        graph.indptr[node_M].astype(np.int64), graph.degree_N[node_M].astype(np.int64)
    )
    return np.asarray(graph.indices)[position].astype(np.int64)


def induced(graph: Graph, node_S: np.ndarray, group_S: np.ndarray) -> Graph:
    """The subgraph on sorted ``node_S``, renumbered 0..S-1."""
    degree_S = graph.degree_N[node_S].astype(np.int64)
    source_E = np.repeat(np.arange(len(node_S)), degree_S)
    target_E = neighbours_of(graph, node_S)
    place_E = np.searchsorted(node_S, target_E).clip(max=len(node_S) - 1)
    inside_E = node_S[place_E] == target_E
    return Graph.from_edges(
        np.stack([source_E[inside_E], place_E[inside_E]], axis=1), len(node_S), group_S
    )


def bootstrap_intervals(
    retrieval: LinkRetrieval, rng: np.random.Generator, *, num_resamples: int = 1000
) -> dict[str, Interval]:
    """95 % percentile intervals of ``lrap``, ``ndcg``, ``average_precision`` and ``mrr``.

    Anchors are drawn with replacement within their group, so groups keep their weights. What is held fixed: the
    candidates, and for the average precision also the precision at each link's score, so that a resample's average
    precision is a ratio (sum of precisions / number of links, per group) and no pair is ranked anew. The intervals
    speak of the choice of anchors alone: not of training seeds, nor of anchors that share links.

    Args:
        retrieval: what ``link_retrieval`` returned.
        rng: draws the resamples.
        num_resamples: how many.
    """
    start_G = np.flatnonzero(np.diff(retrieval.group_A, prepend=retrieval.group_A[0] - 1))
    size_G = np.diff(np.append(start_G, len(retrieval.group_A)))
    first_A, size_A = np.repeat(start_G, size_G), np.repeat(size_G, size_G)
    means_A3 = np.stack([retrieval.lrap_A, retrieval.ndcg_A, retrieval.reciprocal_rank_A], axis=1)
    ratio_A2 = np.stack(
        [retrieval.precision_sum_A, retrieval.num_links_A.astype(np.float64)], axis=1
    )
    resampled = np.empty((num_resamples, 4))
    for number in range(num_resamples):
        # One draw an anchor: float64 uniforms times sizes below 2**31 pick members evenly.
        drawn_A = first_A + (rng.random(len(first_A)) * size_A).astype(np.int64)
        resampled[number, :3] = means_A3[drawn_A].mean(axis=0)
        resampled[number, 3] = _average_precision(ratio_A2[drawn_A], start_G, size_G)
    low, high = np.percentile(resampled, [2.5, 97.5], axis=0)
    values = {
        "lrap": retrieval.lrap,
        "ndcg": retrieval.ndcg,
        "mrr": retrieval.mrr,
        "average_precision": retrieval.average_precision,
    }
    return {
        name: Interval(value, float(low[place]), float(high[place]))
        for place, (name, value) in enumerate(values.items())
    }


def _average_precision(
    ratio_A2: NDArray[np.float64], start_G: NDArray[np.int64], size_G: NDArray[np.int64]
) -> float:
    sum_G2 = np.add.reduceat(ratio_A2, start_G, axis=0)
    return float(np.average(sum_G2[:, 0] / sum_G2[:, 1], weights=size_G))
