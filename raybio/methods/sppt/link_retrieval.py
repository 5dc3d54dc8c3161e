"""Link retrieval: rank nodes by nearness of embeddings, and score the ranks of linked nodes.

The measures follow McDermott et al. (Structure-inducing pre-training, appendix on the choice of λ)
and its code. The ranking is exact, needs bounded memory, and treats ties as ``LinkRetrieval``
states for each measure.

Shape letters: N nodes, D embedding width, A anchors (nodes with a link), P directed links,
K cut-offs or counted scores, B anchors of a block, U distinct scores of links.
"""

import heapq
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from raybio.core.arrays import Floats, Integers
from raybio.core.interfaces import Collective
from raybio.methods.sppt.average_precision import (
    average_precision_contributions,
    counted_thresholds,
)
from raybio.ops.rank_counts import SortedBlock, count_at_least, count_ranks, sort_if_cheap
from raybio.ops.scores import Metric, check_finite, entries_at_once, row_blocks, scorer
from raybio.ops.segments import expand
from raybio.training.collective import SingleProcess

_GROUPS_PER_WORKER = 4
"""A worker ranks a whole group if it can have this many of its size: then no one waits for long."""

_KEPT_ENTRIES = 1 << 27
"""Maximum number of scores of a group that are kept between its two passes."""

CUTOFFS = (1, 5, 10, 25, 100)
"""The cut-offs k of precision and recall at k."""

Pairs = tuple[Integers, Integers]
"""Rows and columns of pairs, in ascending order of row."""


@dataclass(frozen=True)
class LinkRetrieval:
    """Scores of each anchor, and their means.

    Nodes without a link are no anchors. Means run over anchors, so a group counts by its number of
    anchors. Recall runs over directed links.

    Attributes:
        anchor_A: node ids, by group and then by id.
        group_A: group of each anchor.
        num_links_A: number of links of each anchor.
        lrap_A: label ranking average precision: mean over links of (links that score at least as
            high) / (candidates that do).
        ndcg_A: normalized discounted cumulative gain, log2, over the whole list; ties in order of
            candidate index.
        reciprocal_rank_A: 1 / rank of the nearest link; ties share their average rank.
        average_precision_A: contribution to the average precision of all ordered pairs of the group
            in one list, linearized (``average_precision_contributions``).
        hits_AK: expected number of links among the first ``CUTOFFS[k]`` candidates, where all
            orders of tied candidates are equally likely (McSherry and Najork, 2008); a whole number
            where nothing ties across the cut-off.
    """

    anchor_A: Integers
    group_A: Integers
    num_links_A: Integers
    lrap_A: Floats
    ndcg_A: Floats
    reciprocal_rank_A: Floats
    average_precision_A: Floats
    hits_AK: Floats

    @classmethod
    def concatenate(cls, parts: Sequence["LinkRetrieval"]) -> "LinkRetrieval":
        """Return one retrieval with the anchors of all parts, in their order.

        Raises:
            ValueError: if there is no part.
        """
        if not parts:
            raise ValueError(
                "there is no link to retrieve: every link is ignored, crosses groups, or there "
                "was none"
            )
        return cls(
            *(
                np.concatenate([getattr(part, field.name) for part in parts])
                for field in fields(cls)
            )
        )

    def measures(self) -> dict[str, float]:
        """Return all means by name, ``lrap`` to ``recall_at_100``."""
        return {
            "lrap": self.lrap,
            "ndcg": self.ndcg,
            "mrr": self.mrr,
            "average_precision": self.average_precision,
            **{f"precision_at_{k}": value for k, value in self.precision_at.items()},
            **{f"recall_at_{k}": value for k, value in self.recall_at.items()},
        }

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
        """Average precision of a group's ordered pairs; mean over groups by anchors."""
        return float(self.average_precision_A.mean())

    @property
    def precision_at(self) -> dict[int, float]:
        """Mean over anchors of (links among the first k) / k, for each k of ``CUTOFFS``."""
        mean_K = self.hits_AK.mean(axis=0)
        return {k: float(mean / k) for k, mean in zip(CUTOFFS, mean_K, strict=True)}

    @property
    def recall_at(self) -> dict[int, float]:
        """Fraction of directed links among the first k of their anchor, for k in ``CUTOFFS``."""
        recall_K = self.hits_AK.sum(axis=0) / self.num_links_A.sum()
        return {k: float(recall) for k, recall in zip(CUTOFFS, recall_K, strict=True)}


_NOTHING = LinkRetrieval(
    anchor_A=np.zeros(0, np.int64),
    group_A=np.zeros(0, np.int64),
    num_links_A=np.zeros(0, np.int64),
    lrap_A=np.zeros(0),
    ndcg_A=np.zeros(0),
    reciprocal_rank_A=np.zeros(0),
    average_precision_A=np.zeros(0),
    hits_AK=np.zeros((0, len(CUTOFFS))),
)


def embedding_scores(
    embedding_ND: Tensor, metric: Metric, score_dtype: torch.dtype = torch.float64
) -> "InGroup":
    """Return the nearness of embeddings as scores for ``rank_links``.

    Args:
        embedding_ND: embeddings of all nodes, on the device that computes the scores.
        metric: "euclidean", "cosine" or "dot".
        score_dtype: ``torch.float32`` is twice as fast, but then equal distances may not tie.

    Raises:
        ValueError: for embeddings that are not finite.
    """
    check_finite(embedding_ND, "embeddings")

    def in_group(node_G: Integers) -> CandidateScores:
        node = torch.from_numpy(node_G).to(embedding_ND.device)
        return scorer(embedding_ND[node], metric, score_dtype)

    return in_group


class QueriedLinks(NamedTuple):
    """Links whose ranks are scored, as row pointers and other ends (``graph.csr.Graph``).

    Attributes:
        indptr: (N + 1,) row pointers of the links. Links between groups do not count.
        indices: (P,) other end of each link.
        ignore: (indptr, indices) of pairs that are neither candidates nor links: the training
            links, where held-out links are queried. None: every other node is a candidate.
    """

    indptr: Integers
    indices: Integers
    ignore: tuple[Integers, Integers] | None = None


def rank_links(
    in_group: "InGroup",
    indptr: Integers,
    indices: Integers,
    *,
    group_N: ArrayLike | None = None,
    block_rows: int = 1024,
    ignore: tuple[Integers, Integers] | None = None,
    collective: Collective | None = None,
) -> LinkRetrieval:
    """Rank the other nodes of each node's group by any scores, and score the ranks of its links.

    Arguments and errors as for ``QueriedLinks`` and ``rank_splits``.
    """
    queried = QueriedLinks(np.asarray(indptr), np.asarray(indices), ignore)
    (retrieval,) = rank_splits(
        in_group, [queried], group_N=group_N, block_rows=block_rows, collective=collective
    )
    return retrieval


def rank_splits(
    in_group: "InGroup",
    splits: Sequence[QueriedLinks],
    *,
    group_N: ArrayLike | None = None,
    block_rows: int = 1024,
    collective: Collective | None = None,
) -> list[LinkRetrieval]:
    """Return the retrieval of the links of each split, from scores that are computed once for all.

    Memory beyond the scores' own and the links: a few blocks of ``block_rows`` x (size of the
    largest group) numbers, ``entries_at_once`` numbers for a group of at most that many pairs, and
    512 bytes for each anchor of the largest group in each split (counts of its pairs, for the
    average precision).

    Args:
        in_group: nodes of a group -> scores of these nodes as candidates of each other, the same on
            every worker.
        splits: links of the same N nodes.
        group_N: (N,) group of each node; None: all nodes are one group.
        block_rows: maximum number of anchors that are scored at once.
        collective: workers, which divide the groups, and the rows of large groups. Every worker
            returns the whole result. Workers exchange results and sums with zeros, so nothing is
            rounded.

    Raises:
        ValueError: for arrays that do not fit together, or if a split has no link.
    """
    num_nodes = len(splits[0].indptr) - 1
    group = np.zeros(num_nodes, dtype=np.int64) if group_N is None else np.asarray(group_N)
    if len(group) != num_nodes:
        raise ValueError(
            f"group_N ({len(group)} entries) does not fit indptr ({len(splits[0].indptr)} entries, "
            f"want {len(group) + 1})"
        )
    # Nodes in order of group: a group is a range of positions.
    node_by_position = np.argsort(group, kind="stable")
    position_N = np.empty(num_nodes, dtype=np.int64)
    position_N[node_by_position] = np.arange(num_nodes)
    collective = collective or SingleProcess()
    ranges = _group_ranges(group[node_by_position])
    owners = _owners([end - first for first, end in ranges], collective.world)
    # Parts of groups that all workers rank, and of those that this worker ranks.
    shared: list[list[LinkRetrieval]] = [[] for _ in splits]
    own: list[list[LinkRetrieval]] = [[] for _ in splits]
    for (first, end), owner in zip(ranges, owners, strict=True):
        if owner not in (None, collective.rank):
            continue
        node_G = node_by_position[first:end]
        with_links = []
        parts_with_links = []
        for split, parts in zip(splits, shared if owner is None else own, strict=True):
            ignored = None
            pairs = group_pairs(split.indptr, split.indices, node_G, position_N, first)
            if split.ignore is not None:
                ignored = group_pairs(*split.ignore, node_G, position_N, first)
                pairs = _without(pairs, ignored, num_nodes)
            if len(pairs[0]):
                with_links.append(_GroupLinks(*pairs, ignored))
                parts_with_links.append(parts)
        if not with_links:
            continue
        workers = collective if owner is None else SingleProcess()
        ranking = GroupRanking(in_group(node_G), block_rows, workers)
        retrievals = rank_group(ranking, with_links, node_G, int(group[node_G[0]]))
        for parts, retrieval in zip(parts_with_links, retrievals, strict=True):
            parts.append(retrieval)
    return [
        _joined(shared_parts, own_parts, collective)
        for shared_parts, own_parts in zip(shared, own, strict=True)
    ]


def _owners(sizes: Sequence[int], world: int) -> list[int | None]:
    """Return the worker that ranks each group; None: its rows are divided over all workers.

    Groups are dealt by number of pairs, the largest first, each to the worker with the fewest.
    """
    num_pairs = [size * size for size in sizes]
    largest = sum(num_pairs) / world / _GROUPS_PER_WORKER
    owners: list[int | None] = [None] * len(sizes)
    load_by_worker = [(0, worker) for worker in range(world)]
    for index in sorted(range(len(sizes)), key=lambda index: -num_pairs[index]):
        if num_pairs[index] < largest:
            load, worker = heapq.heappop(load_by_worker)
            owners[index] = worker
            heapq.heappush(load_by_worker, (load + num_pairs[index], worker))
    return owners


def _joined(
    shared: Sequence[LinkRetrieval], own: Sequence[LinkRetrieval], collective: Collective
) -> LinkRetrieval:
    """Return one retrieval in order of groups.

    Args:
        shared: parts that every worker has.
        own: parts that only this worker has.
        collective: workers.
    """
    gathered = []
    for field in fields(LinkRetrieval):
        # A worker may have no part.
        own_A = [getattr(part, field.name) for part in (_NOTHING, *own)]
        local_A = torch.from_numpy(np.concatenate(own_A))
        gathered.append(collective.all_gather(local_A).row_MD.numpy())
    parts = [*shared, LinkRetrieval(*gathered)] if len(gathered[0]) else shared
    joined = LinkRetrieval.concatenate(parts)
    order_A = np.argsort(joined.group_A, kind="stable")
    return LinkRetrieval(*(getattr(joined, field.name)[order_A] for field in fields(joined)))


class CandidateScores(Protocol):
    """Scores of a group's candidates: an ``ops.scores.Scorer`` of embeddings, or any table."""

    @property
    def num_candidates(self) -> int:
        """Number of candidates N."""
        ...

    @property
    def device(self) -> torch.device:
        """Device on which scores are computed."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """Type of the scores."""
        ...

    def block(self, first: int, end: int) -> Tensor:
        """Return scores (end - first, N) of anchors ``[first, end)``; -inf for themselves."""
        ...


InGroup = Callable[[Integers], CandidateScores]
"""Nodes of a group -> scores of these nodes as candidates of each other."""


@dataclass(frozen=True)
class GroupRanking:
    """The scores that rank the candidates of one group.

    Attributes:
        candidates: scores of the candidates.
        block_rows: maximum number of anchors that are scored at once.
        collective: workers that divide the rows.
    """

    candidates: CandidateScores
    block_rows: int
    collective: Collective

    def blocks(self) -> Iterator["_Block"]:
        """Yield this worker's blocks."""
        size = self.candidates.num_candidates
        for start, end in row_blocks(
            size, size, self.block_rows, self.collective, self.candidates.device
        ):
            yield _Block(start, end, self.candidates.block(start, end))


class _Block(NamedTuple):
    """Scores (end - start, N) of anchors ``[start, end)``."""

    start: int
    end: int
    score_BN: Tensor


@dataclass(frozen=True)
class _GroupLinks:
    """The links of a split in one group: at least one.

    Attributes:
        row_P: anchor of each link, ascending.
        column_P: candidate that the anchor is linked to.
        ignored: pairs that are no candidates; None: every other node is a candidate.
    """

    row_P: Integers
    column_P: Integers
    ignored: Pairs | None

    def of(self, block: _Block) -> tuple[slice, Tensor, Tensor]:
        """Return the links of a block's anchors: their slice, rows in the block, columns."""
        links = slice(*np.searchsorted(self.row_P, [block.start, block.end]).tolist())
        return links, *_in_block((self.row_P[links], self.column_P[links]), block)

    @contextmanager
    def candidates_of(
        self, block: _Block, ordered: SortedBlock | None
    ) -> Iterator[tuple[Tensor, SortedBlock | None]]:
        """Lower the scores of ignored pairs to -inf within a ``with`` block.

        Args:
            block: scores.
            ordered: the same scores, which are not changed; their ignored pairs are.
        """
        if self.ignored is None:
            yield block.score_BN, ordered
            return
        pairs = slice(*np.searchsorted(self.ignored[0], [block.start, block.end]).tolist())
        row, column = _in_block((self.ignored[0][pairs], self.ignored[1][pairs]), block)
        score = block.score_BN[row, column]
        block.score_BN[row, column] = -torch.inf
        yield block.score_BN, None if ordered is None else ordered.ignoring(row, score)
        block.score_BN[row, column] = score


def _in_block(pairs: Pairs, block: _Block) -> tuple[Tensor, Tensor]:
    """Return the rows in the block and the columns of pairs, on the device of the scores."""
    row = torch.from_numpy(pairs[0] - block.start).to(block.score_BN.device)
    return row, torch.from_numpy(pairs[1]).to(block.score_BN.device)


def rank_group(
    ranking: GroupRanking, splits: Sequence[_GroupLinks], node_N: Integers, group: int
) -> list[LinkRetrieval]:
    """Score the ranks of a group's links, for each split.

    Args:
        ranking: scores of the candidates.
        splits: links of each split.
        node_N: node id of each candidate.
        group: number of the group.
    """
    # Every block is scored twice, for the scores of links and for counts; those of a small group
    # are kept instead.
    device = ranking.candidates.device
    is_small = len(node_N) ** 2 <= min(entries_at_once(device), _KEPT_ENTRIES)
    kept_blocks = list(ranking.blocks()) if is_small else None
    # Links of other workers stay 0, so that a sum joins them.
    link_scores = [
        torch.zeros(len(split.row_P), dtype=torch.float64, device=device) for split in splits
    ]
    for block in kept_blocks or ranking.blocks():
        for split, link_P in zip(splits, link_scores, strict=True):
            links, row_P, column_P = split.of(block)
            link_P[links] = block.score_BN[row_P, column_P].double()
    counts = [
        _PairCounts(split, ranking.collective.all_sum(link_P).cpu().numpy(), ranking.candidates)
        for split, link_P in zip(splits, link_scores, strict=True)
    ]
    for block in kept_blocks or ranking.blocks():
        # Once for all splits: sorting takes most of the time.
        ordered = sort_if_cheap(block.score_BN)
        for count in counts:
            count.add(block, ordered)
    return [_per_anchor(*count.result(ranking), node_N, group) for count in counts]


class _PairCounts:
    """Counts the pairs that score at least as high as the links of a split.

    Args:
        split: links of the split.
        score_P: score of each link.
        candidates: scores of all candidates, for their device and type.
    """

    def __init__(self, split: _GroupLinks, score_P: Floats, candidates: CandidateScores) -> None:
        device = candidates.device
        threshold_U, self._threshold_P = np.unique(score_P, return_inverse=True)
        self._split = split
        self._score_P = score_P
        self._row_A, self._anchor_P = np.unique(split.row_P, return_inverse=True)
        self._index_K = counted_thresholds(len(threshold_U))
        self._threshold_U = torch.from_numpy(threshold_U).to(device, candidates.dtype)
        self._counted_K = torch.from_numpy(self._index_K).to(device)
        self._num_pairs_U = torch.zeros(len(threshold_U), dtype=torch.int64, device=device)
        # int32: an anchor has fewer than 2^31 pairs, and all anchors of a group are in memory.
        shape = (len(self._row_A), len(self._index_K))
        self._num_pairs_AK = torch.zeros(shape, dtype=torch.int32, device=device)
        # One row each: above, at least, tied before.
        self._rank_3P = torch.zeros((3, len(score_P)), dtype=torch.int64, device=device)

    def add(self, block: _Block, ordered: SortedBlock | None) -> None:
        """Count the pairs of a block, whose scores may be sorted already."""
        links, row_P, column_P = self._split.of(block)
        low, high = np.searchsorted(self._row_A, [block.start, block.end])
        rows = torch.from_numpy(self._row_A[low:high] - block.start).to(block.score_BN.device)
        with self._split.candidates_of(block, ordered) as (score_BN, counted):
            ranks = count_ranks(score_BN, row_P, column_P, counted)
            at_least_U, at_least_BK = count_at_least(
                score_BN, self._threshold_U, self._counted_K, counted
            )
        self._rank_3P[:, links] = torch.stack(ranks)
        self._num_pairs_AK[low:high] = at_least_BK[rows].int()
        self._num_pairs_U += at_least_U

    def result(self, ranking: GroupRanking) -> tuple["_LinkRanks", Floats]:
        """Return ranks of links, and each anchor's contribution to the average precision (A,)."""
        precision_A = average_precision_contributions(
            self._anchor_P,
            self._threshold_P,
            ranking.collective.all_sum(self._num_pairs_U).cpu().numpy(),
            ranking.collective.all_sum(self._num_pairs_AK).cpu().numpy(),
            self._index_K,
        )
        rank_3P = ranking.collective.all_sum(self._rank_3P).cpu().numpy()
        return _LinkRanks(self._split.row_P, self._score_P, *rank_3P), precision_A


@dataclass(frozen=True)
class _LinkRanks:
    """Ranks of the links of a group.

    Attributes:
        row_P: anchor of each link, ascending.
        score_P: score of each link.
        above_P: candidates of the anchor with a higher score.
        at_least_P: candidates with a score as high or higher, the link's own included.
        tied_before_P: candidates with an equal score and a smaller index.
    """

    row_P: Integers
    score_P: Floats
    above_P: Integers
    at_least_P: Integers
    tied_before_P: Integers


def _per_anchor(
    link: _LinkRanks, average_precision_A: Floats, node_N: Integers, group: int
) -> LinkRetrieval:
    start_A = np.flatnonzero(np.diff(link.row_P, prepend=-1))
    num_links_A = np.diff(np.append(start_A, len(link.row_P)))
    rank_P = link.above_P + link.tied_before_P + 1
    ideal = np.cumsum(1 / np.log2(np.arange(2, num_links_A.max() + 2)))
    precision_at_link_P = _links_at_least(link.row_P, link.score_P) / link.at_least_P
    # The average rank falls with the score, so the nearest link has the lowest one.
    reciprocal_rank_P = 2 / (link.above_P + link.at_least_P + 1)
    # A link tied with T - 1 others behind A candidates has one of the ranks A + 1 to A + T, each as
    # likely.
    num_tied_P = link.at_least_P - link.above_P
    hit_chance_PK = (np.array(CUTOFFS) - link.above_P[:, None]) / num_tied_P[:, None]
    return LinkRetrieval(
        anchor_A=node_N[link.row_P[start_A]],
        group_A=np.full(len(start_A), group),
        num_links_A=num_links_A,
        lrap_A=np.add.reduceat(precision_at_link_P, start_A) / num_links_A,
        ndcg_A=np.add.reduceat(1 / np.log2(rank_P + 1), start_A) / ideal[num_links_A - 1],
        reciprocal_rank_A=np.maximum.reduceat(reciprocal_rank_P, start_A),
        average_precision_A=average_precision_A,
        hits_AK=np.add.reduceat(hit_chance_PK.clip(0, 1), start_A, axis=0),
    )


def _links_at_least(owner_P: Integers, score_P: Floats) -> Integers:
    """Return, for each link, how many links of its owner score at least as high."""
    order = np.lexsort([score_P, owner_P])
    owner = owner_P[order]
    score = score_P[order]
    is_owner_head = np.diff(owner, prepend=-1) != 0
    is_tie_head = is_owner_head | np.append(True, score[1:] != score[:-1])
    first_of_tie = np.maximum.accumulate(np.where(is_tie_head, np.arange(len(order)), 0))
    end_by_owner = np.append(np.flatnonzero(is_owner_head)[1:], len(order))
    owner_end = end_by_owner[np.cumsum(is_owner_head) - 1]
    count_P = np.empty_like(order)
    count_P[order] = owner_end - first_of_tie
    return count_P


def group_pairs(
    indptr: Integers, indices: Integers, node_G: Integers, position_N: Integers, first: int
) -> Pairs:
    """Return the pairs inside a group, numbered by position in the group.

    Args:
        indptr: (N + 1,) row pointers of the graph.
        indices: other end of each directed link.
        node_G: nodes of the group, which hold the positions from ``first`` on.
        position_N: position of each node.
        first: first position of the group.
    """
    start_G = indptr[node_G].astype(np.int64)
    entry_P, owner_P = expand(start_G, indptr[node_G + 1] - start_G)
    column_P = position_N[indices[entry_P]] - first
    is_inside_P = (column_P >= 0) & (column_P < len(node_G)) & (column_P != owner_P)
    return owner_P[is_inside_P], column_P[is_inside_P]


def _without(pairs: Pairs, ignored: Pairs, num_nodes: int) -> Pairs:
    """Return the pairs that are not ignored."""
    row_P, column_P = pairs
    is_kept_P = ~np.isin(row_P * num_nodes + column_P, ignored[0] * num_nodes + ignored[1])
    return row_P[is_kept_P], column_P[is_kept_P]


def _group_ranges(sorted_group_N: Integers) -> list[tuple[int, int]]:
    """Return (first position, end) of each group."""
    if len(sorted_group_N) == 0:
        return []
    head = np.flatnonzero(np.diff(sorted_group_N, prepend=sorted_group_N[:1] - 1)).tolist()
    return list(zip(head, [*head[1:], len(sorted_group_N)], strict=True))
