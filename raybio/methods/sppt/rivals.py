"""Rivals of link retrieval: rankings that need no training of an encoder.

A trained encoder has learned something about the links only if it ranks candidates better than all
of these:

- ``degree``: candidates with many training links first, the same for every anchor; pairs of all
  anchors by (1 + degree of the anchor) * degree of the candidate (preferential attachment, in the
  same review as the next).
- ``common neighbors``: candidates that share many neighbors with the anchor (Liben-Nowell and
  Kleinberg, "The link-prediction problem for social networks").
- content: cosine of TF-IDF vectors over n-grams of the tokens that the encoder reads.
- ``look-up``: candidates whose relatives have training links with the anchor's relatives. For
  proteins, these are interologs (Walhout et al. 2000).
- ``composition``, where contents are residues: candidates that have training links with the anchor
  between nodes of like compositions; see ``near_compositions``.

``look-up`` and ``composition`` know the training links of the whole graph, even if the nodes of the
evaluation are a sample. They compare each evaluated node with every node of the graph. If these are
more than ``MAX_PAIRS_ACROSS_GROUPS`` pairs, they compare it with the nodes of its own group; if
those are more than ``MAX_COMPARED_PAIRS`` pairs, with the evaluated nodes only; and if those are
too many as well, both rivals are skipped. ``limits`` reports each of these cases.

Equal scores are ranked in random order.

Shape letters: S nodes of an evaluation, N nodes of the graph, K nodes whose links are known, G
nodes of a group, B anchors of a block, F n-grams, T tokens, V kinds of tokens, M nearest nodes or
columns of a product, R rows of a tile, E entries of a sparse matrix.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from raybio.core.arrays import Floats, distinct
from raybio.core.interfaces import Collective
from raybio.core.randomness import derive_seed, hash_uniform
from raybio.methods.sppt.collate import ReadRows
from raybio.methods.sppt.evaluate import LinkQueries, rank_queries
from raybio.methods.sppt.graph.csr import Graph
from raybio.methods.sppt.link_retrieval import LinkRetrieval
from raybio.ops.nearest import nearest
from raybio.ops.segments import tiles

LOOK_UP = "look-up"

RELATED = 0.2
"""Smallest cosine of TF-IDF vectors of relatives."""

NUM_NEAREST = 64
"""Nodes of the nearest compositions whose links count, the node itself among them."""

MAX_COMPARED_PAIRS = 20_000_000_000
"""Pairs of nodes whose contents are compared: minutes of one core for proteins, an hour for
texts."""

MAX_PAIRS_ACROSS_GROUPS = 1_000_000_000
"""Pairs that are compared although most are of different groups, such as species."""

_ROWS_AT_ONCE = 1 << 14
"""Rows whose tokens are read at once."""

_ENTRIES_AT_ONCE = 1 << 21
"""Scores of a tile: a sparse product of texts is nearly dense and takes 12 bytes each."""

DIGITS = 6
"""Scores that agree to this number of decimals tie."""

BlockScores = Callable[[slice], Floats]
"""Anchors of a group -> scores (B, G) of its candidates; higher is nearer."""


class Rival(NamedTuple):
    """A ranking of candidates.

    Attributes:
        name: name of its row in tables.
        in_group: nodes of a group, as indices of S -> scores in that group.
    """

    name: str
    in_group: Callable[[np.ndarray], BlockScores]


def link_rivals(
    queries: LinkQueries,
    graph: Graph,
    read: ReadRows,
    content: str,
    content_ngram: int,
    *,
    composition: bool,
    collective: Collective,
) -> dict[str, Callable[[], Rival]]:
    """Return the rivals of an evaluation by name; what one reads is computed when it is called.

    All workers call the same rivals in the same order.

    Args:
        queries: nodes and links.
        graph: the whole training graph.
        read: reader of rows as tokens.
        content: name of the rival that compares contents.
        content_ngram: tokens of its n-grams.
        composition: whether ``composition`` is one of them.
        collective: workers that divide the search for relatives.
    """
    adjacency = cache(lambda: _adjacency(graph))
    # Vectors of the evaluated nodes take gigabytes: look-up is the last one that reads them.
    tfidf = cache(lambda: ngram_tfidf(read, queries.node_S, content_ngram))

    def degree() -> Rival:
        degree_S = np.asarray(graph.degree_N, np.float64)[queries.node_S]
        return Rival("degree", lambda node_G: _attachment(degree_S[node_G]))

    def common_neighbors() -> Rival:
        neighbor_SN = adjacency()[queries.node_S]
        return Rival("common neighbors", _Products(neighbor_SN, neighbor_SN))

    def by_content() -> Rival:
        return Rival(content, _Products(tfidf(), tfidf()))

    rivals = {"degree": degree, "common neighbors": common_neighbors, content: by_content}
    node_K = _known_nodes(queries, graph)
    if node_K is None:
        return rivals
    row_S = np.searchsorted(node_K, queries.node_S)
    group_K = np.asarray(graph.group_N)[node_K]
    known_links = cache(lambda: adjacency()[node_K][:, node_K])

    def look_up() -> Rival:
        if len(node_K) > len(queries.node_S):
            tfidf_KF = ngram_tfidf(read, node_K, content_ngram)
        else:
            tfidf_KF = tfidf()
        tfidf.cache_clear()
        relative_SK = relatives(tfidf_KF, group_K, row_S, collective)
        del tfidf_KF
        return Rival(LOOK_UP, _evidence(known_links(), relative_SK, row_S))

    def by_composition() -> Rival:
        near_SK = near_compositions(token_shares(read, node_K), group_K, row_S)
        return Rival("composition", _evidence(known_links(), near_SK, row_S))

    rivals[LOOK_UP] = look_up
    if composition:
        rivals["composition"] = by_composition
    return rivals


def limits(queries: LinkQueries, graph: Graph, *, composition: bool) -> list[str]:
    """Return remarks on nodes that ``look-up`` and ``composition`` do not see; empty if none.

    Args:
        queries: nodes and links.
        graph: the whole training graph.
        composition: whether ``composition`` is one of the rivals.
    """
    node_K = _known_nodes(queries, graph)
    if node_K is None:
        left_out = "look-up or composition: they" if composition else "look-up: it"
        return [
            f"no {left_out} would compare more than {MAX_COMPARED_PAIRS:,} pairs of nodes. "
            "Evaluate fewer nodes (evaluation.num_nodes_per_group_at_the_end)"
        ]
    remarks = []
    if len(node_K) < graph.num_nodes:
        rivals = "look-up and composition know" if composition else "look-up knows"
        remarks.append(
            f"{rivals} the links among the {len(node_K):,} evaluated nodes only, of "
            f"{graph.num_nodes:,}"
        )
    num_groups = len(np.unique(np.asarray(graph.group_N)[node_K]))
    if num_groups > 1 and not _is_across_groups(len(queries.node_S), len(node_K)):
        rivals = "look-up and composition compare" if composition else "look-up compares"
        remarks.append(
            f"{rivals} nodes of the same group only: of all {num_groups:,} groups there are more "
            f"than {MAX_PAIRS_ACROSS_GROUPS:,} pairs of nodes"
        )
    return remarks


def _known_nodes(queries: LinkQueries, graph: Graph) -> np.ndarray | None:
    """Return the nodes, ascending, with which the evaluated ones are compared; None: too many."""
    for node_K in (np.arange(graph.num_nodes), queries.node_S):
        group_K = np.asarray(graph.group_N)[node_K]
        if _num_compared(queries.group_S, group_K) <= MAX_COMPARED_PAIRS:
            return node_K
    return None


def _is_across_groups(num_evaluated: int, num_known: int) -> bool:
    """Return whether nodes are compared with those of other groups, too."""
    return num_evaluated * num_known <= MAX_PAIRS_ACROSS_GROUPS


def _num_compared(group_S: np.ndarray, group_K: np.ndarray) -> int:
    """Return the number of pairs that ``_compared`` yields."""
    if _is_across_groups(len(group_S), len(group_K)):
        return len(group_S) * len(group_K)
    num_groups = int(group_K.max()) + 1
    sizes = [np.bincount(group, minlength=num_groups) for group in (group_S, group_K)]
    return int(sizes[0] @ sizes[1])


def rank_by_rival(
    rival: Rival,
    queries: LinkQueries,
    *,
    block_rows: int,
    device: torch.device,
    collective: Collective | None,
) -> dict[str, LinkRetrieval]:
    """Return the retrieval of the links of each split.

    Args:
        rival: the ranking.
        queries: nodes and links.
        block_rows: maximum number of anchors that are scored at once.
        device: device that counts ranks; scores are computed on the CPU.
        collective: workers that divide the anchors.
    """

    def in_group(node_G: np.ndarray) -> RivalScores:
        return RivalScores(rival.in_group(node_G), node_G, device)

    return rank_queries(queries, in_group, block_rows=block_rows, collective=collective)


@dataclass(frozen=True)
class RivalScores:
    """The scores of a group as ``CandidateScores``: rounded, with ties in random order.

    Attributes:
        scores: scores of the candidates, in an array that may be overwritten.
        node_G: nodes of the group, which decide the order of ties.
        device: device of the scores.
        dtype: type of the scores.
    """

    scores: BlockScores
    node_G: np.ndarray
    device: torch.device
    dtype: torch.dtype = torch.float64

    @property
    def num_candidates(self) -> int:
        """Number of nodes of the group."""
        return len(self.node_G)

    def block(self, first: int, end: int) -> Tensor:
        """Return scores (end - first, G) of anchors ``[first, end)``; -inf for themselves."""
        score_BG = self.scores(slice(first, end))
        np.round(score_BG, DIGITS, out=score_BG)
        # A pair and its reverse tie alike, and no draw depends on the size of blocks.
        drawn_G = hash_uniform(derive_seed(0, "order of ties"), self.node_G)
        for rows in tiles(end - first, len(drawn_G), _ENTRIES_AT_ONCE):
            drawn_RG = (drawn_G[first:end][rows, None] + drawn_G) % 1
            drawn_RG *= 0.5 * 10.0**-DIGITS
            score_BG[rows] += drawn_RG
        own_B = np.arange(first, end)
        score_BG[own_B - first, own_B] = -np.inf
        return torch.from_numpy(score_BG).to(self.device)


@dataclass(frozen=True)
class NgramVectors:
    """TF-IDF vectors (N, F) of length 1, which are computed from counts for the rows that are read.

    Every worker holds all rows, at 8 bytes for each n-gram of a row: 4 GB for the Tree of life.

    Attributes:
        count_NF: how often each n-gram is in each row, in float32.
        rarity_F: 1 + log((1 + N) / (1 + rows with the n-gram)).
        length_N: length of (1 + log count) * rarity of each row.
    """

    count_NF: sp.csr_matrix
    rarity_F: Floats
    length_N: Floats

    def __getitem__(self, row_R: np.ndarray) -> sp.csr_matrix:
        """Return the vectors (R, F) of some rows, in float64."""
        count_RF = self.count_NF[row_R]
        weight_E = 1 + np.log(count_RF.data, dtype=np.float64)
        weight_E *= self.rarity_F[count_RF.indices]
        weight_E /= np.repeat(self.length_N[row_R], np.diff(count_RF.indptr))
        return sp.csr_matrix((weight_E, count_RF.indices, count_RF.indptr), shape=count_RF.shape)


@dataclass(frozen=True)
class _Products:
    """Scores ``left @ middle @ right.T - minus`` of sparse matrices, a block of a group at a time.

    Without ``middle``, F and M are the same. The product with it has many more entries than its
    factors, so that only a tile of it is in memory.
    """

    left_SF: sp.csr_matrix | NgramVectors
    right_SM: sp.csr_matrix | NgramVectors
    middle_FM: sp.csr_matrix | None = None
    minus_SS: sp.csr_matrix | None = None

    def __call__(self, node_G: np.ndarray) -> BlockScores:
        """Return the scores in a group."""
        left_GF = self.left_SF[node_G]
        right_MG = self.right_SM[node_G].T.tocsr()
        minus_GG = None if self.minus_SS is None else self.minus_SS[node_G][:, node_G]

        def scores(anchors: slice) -> Floats:
            """Return the scores (B, G) of a block of anchors."""
            left_BF = left_GF[anchors]
            num_rows = left_BF.shape[0]
            score_BG = np.empty((num_rows, len(node_G)))
            for rows in tiles(num_rows, len(node_G), _ENTRIES_AT_ONCE):
                left_RM = left_BF[rows]
                if self.middle_FM is not None:
                    left_RM = left_RM @ self.middle_FM
                (left_RM @ right_MG).toarray(out=score_BG[rows])
            if minus_GG is not None:
                minus_BG = minus_GG[anchors].tocoo()
                score_BG[minus_BG.row, minus_BG.col] -= minus_BG.data
            return score_BG

        return scores


def _evidence(link_KK: sp.csr_matrix, like_SK: sp.csr_matrix, row_S: np.ndarray) -> _Products:
    """Return scores of pairs (i, j): the sum over links (a, b) of like(i, a) like(j, b).

    A link is listed in both directions. It must not be evidence for itself, so its own terms are
    subtracted: like(i, i) like(j, j), and like(i, j) like(j, i) for its other direction.

    Args:
        link_KK: the known links.
        like_SK: similarity of the evaluated nodes to all nodes.
        row_S: position of the evaluated nodes in K.
    """
    like_SS = like_SK[:, row_S]
    link_SS = link_KK[row_S][:, row_S]
    reversed_SS = like_SS.multiply(like_SS.T)
    itself_SS = sp.diags(like_SS.diagonal())
    own_SS = (itself_SS @ link_SS @ itself_SS + link_SS.multiply(reversed_SS)).tocsr()
    own_SS.sum_duplicates()
    return _Products(like_SK, like_SK, link_KK, own_SS)


def ngram_tfidf(read: ReadRows, row_N: np.ndarray, num_tokens: int) -> NgramVectors:
    """Return TF-IDF vectors over the n-grams of tokens of rows.

    Sublinear term frequencies, as usual for texts. A row that is shorter than an n-gram has the
    zero vector. Tokens are read in blocks of rows, whose counts are freed while they are joined.
    """
    counts = []
    ngrams = []
    for start in range(0, len(row_N), _ROWS_AT_ONCE):
        count_RF, ngram_Fn = _ngram_counts(read, row_N[start : start + _ROWS_AT_ONCE], num_tokens)
        counts.append(count_RF)
        ngrams.append(ngram_Fn)
    # The n-grams of all blocks, in order of their tokens.
    _, column_E = np.unique(np.concatenate(ngrams), axis=0, return_inverse=True)
    ends = np.cumsum([len(ngram_Fn) for ngram_Fn in ngrams])
    columns = np.split(column_E.ravel().astype(np.int32), ends[:-1])
    rows_with_F = np.zeros(int(column_E.max(initial=0)) + 1)
    for count_RF, column_F in zip(counts, columns, strict=True):
        rows_with_F[column_F] += np.bincount(count_RF.indices, minlength=len(column_F))
    rarity_F = 1 + np.log((1 + len(row_N)) / (1 + rows_with_F))
    indptr_N1 = np.append(0, np.cumsum(np.concatenate([np.diff(count.indptr) for count in counts])))
    # Rows of more than 2^31 n-grams in all need the wider type, for both arrays.
    index_E = np.empty(indptr_N1[-1], sp.get_index_dtype(maxval=int(indptr_N1[-1])))
    joined_E = np.empty(len(index_E), np.float32)
    squares = []
    end = len(index_E)
    while counts:
        count_RF = counts.pop()
        entries = slice(end - count_RF.nnz, end)
        end = entries.start
        index_E[entries] = columns.pop()[count_RF.indices]
        joined_E[entries] = count_RF.data
        weight_E = (1 + np.log(count_RF.data, dtype=np.float64)) * rarity_F[index_E[entries]]
        row_E = np.repeat(np.arange(count_RF.shape[0]), np.diff(count_RF.indptr))
        squares.append(np.bincount(row_E, weight_E**2, minlength=count_RF.shape[0]))
    shape = (len(row_N), len(rows_with_F))
    count_NF = sp.csr_matrix((joined_E, index_E, indptr_N1), shape=shape)
    return NgramVectors(count_NF, rarity_F, np.sqrt(np.concatenate(squares[::-1])))


def _ngram_counts(
    read: ReadRows, row_R: np.ndarray, num_tokens: int
) -> tuple[sp.csr_matrix, np.ndarray]:
    """Return the counts (R, F) of the n-grams of some rows, and the tokens (F, n) of each."""
    token_T, indptr_R1, is_special_T = read(row_R)
    owner_T = np.repeat(np.arange(len(row_R)), np.diff(indptr_R1))[~is_special_T]
    kinds, word_T = np.unique(token_T[~is_special_T], return_inverse=True)
    # Number the n-grams by their tokens, one more token per round; renumbering keeps codes small.
    ngram_T = word_T.astype(np.int64)
    word_Fn = np.arange(len(kinds))[:, None]
    for length in range(2, num_tokens + 1):
        longer_T = ngram_T[:-1] * len(kinds) + word_T[length - 1 :]
        code_F, ngram_T = np.unique(longer_T, return_inverse=True)
        word_Fn = np.column_stack([word_Fn[code_F // len(kinds)], code_F % len(kinds)])
    # N-grams that cross rows do not count.
    num_ngrams = len(ngram_T)
    is_inside_T = owner_T[:num_ngrams] == owner_T[num_tokens - 1 :]
    kept_F, column_T = np.unique(ngram_T[is_inside_T], return_inverse=True)
    count_RF = sp.csr_matrix(
        (np.ones(len(column_T), np.float32), (owner_T[:num_ngrams][is_inside_T], column_T)),
        shape=(len(row_R), len(kept_F)),
    )
    return count_RF, kinds[word_Fn[kept_F]]


def relatives(
    tfidf_KF: NgramVectors, group_K: np.ndarray, row_S: np.ndarray, collective: Collective
) -> sp.csr_matrix:
    """Return the cosines (S, K) of relatives, at least ``RELATED``, and 1 of each node with itself.

    Relatives may be of other groups, such as other species, if these are at most
    ``MAX_PAIRS_ACROSS_GROUPS`` pairs.

    Args:
        tfidf_KF: vectors of all nodes.
        group_K: their groups.
        row_S: nodes whose relatives are looked for.
        collective: workers that divide these nodes. Each gets all cosines.
    """
    rows = [np.zeros(0, np.int32)]
    columns = [np.zeros(0, np.int32)]
    values = [np.zeros(0)]
    for query_Q, node_G in _compared(row_S, group_K):
        own_Q = np.array_split(query_Q, collective.world)[collective.rank]
        if not len(own_Q):
            continue
        vector_FG = tfidf_KF[node_G].T.tocsr()
        for tile in tiles(len(own_Q), len(node_G), _ENTRIES_AT_ONCE):
            query_R = own_Q[tile]
            cosine_RG = (tfidf_KF[row_S[query_R]] @ vector_FG).tocoo()
            row_P = query_R[cosine_RG.row]
            column_P = node_G[cosine_RG.col]
            is_related_P = (cosine_RG.data >= RELATED) & (row_S[row_P] != column_P)
            rows.append(row_P[is_related_P].astype(np.int32))
            columns.append(column_P[is_related_P].astype(np.int32))
            values.append(cosine_RG.data[is_related_P])
    row_E, column_E, value_E = (
        collective.all_gather(torch.from_numpy(np.concatenate(parts))).row_MD.numpy()
        for parts in (rows, columns, values)
    )
    related_SK = sp.csr_matrix((value_E, (row_E, column_E)), shape=(len(row_S), len(group_K)))
    itself_SK = sp.csr_matrix(
        (np.ones(len(row_S)), (np.arange(len(row_S)), row_S)), shape=related_SK.shape
    )
    return related_SK + itself_SK


def token_shares(read: ReadRows, row_N: np.ndarray) -> Floats:
    """Return the share (N, V) of each kind of token among the tokens of a row."""
    counts = []
    kinds = []
    for start in range(0, len(row_N), _ROWS_AT_ONCE):
        count_RF, kind_F1 = _ngram_counts(read, row_N[start : start + _ROWS_AT_ONCE], 1)
        counts.append(count_RF)
        kinds.append(kind_F1[:, 0])
    kind_V = distinct(np.concatenate(kinds))
    share_NV = np.zeros((len(row_N), len(kind_V)))
    first = 0
    for count_RF, kind_F in zip(counts, kinds, strict=True):
        share_RV = share_NV[first : first + count_RF.shape[0]]
        share_RV[:, np.searchsorted(kind_V, kind_F)] = count_RF.toarray()
        first += len(share_RV)
    share_NV /= share_NV.sum(axis=1, keepdims=True).clip(min=1.0)
    return share_NV


def near_compositions(share_KV: Floats, group_K: np.ndarray, row_S: np.ndarray) -> sp.csr_matrix:
    """Return the kernel (S, K) of the ``NUM_NEAREST`` nearest compositions of each node, else 0.

    The kernel is exp(-|x - y|^2 / (2 width^2)) of Euclidean distances. The width uses no held-out
    link: it is half the median, over nodes, of the distance to the farthest of the nearest nodes.
    There the kernel is exp(-2), so little is cut off.

    Args:
        share_KV: compositions of all nodes.
        group_K: their groups; with more than ``MAX_PAIRS_ACROSS_GROUPS`` pairs, the nearest are of
            the same group.
        row_S: nodes whose nearest compositions are wanted.
    """
    vector_KV = torch.from_numpy(share_KV).float()
    rows = []
    columns = []
    squares = []
    farthest_S = np.zeros(len(row_S))
    for query_Q, node_G in _compared(row_S, group_K):
        neighbors = nearest(vector_KV[row_S[query_Q]], vector_KV[node_G], NUM_NEAREST)
        square_QM = -neighbors.score_QK.double().numpy()
        rows.append(np.repeat(query_Q, square_QM.shape[1]))
        columns.append(node_G[neighbors.index_QK.numpy().ravel()])
        squares.append(square_QM.ravel())
        farthest_S[query_Q] = np.sqrt(square_QM[:, -1])
    # If all are copies, the width is 0: a copy counts as 1, and all else as 0.
    width = max(float(np.median(farthest_S)) / 2, np.finfo(np.float32).tiny)
    kernel = np.exp(-np.concatenate(squares) / width / width / 2)
    pairs = (np.concatenate(rows), np.concatenate(columns))
    return sp.csr_matrix((kernel, pairs), shape=(len(row_S), len(share_KV)))


def _compared(row_S: np.ndarray, group_K: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield positions in S, and the nodes K that these are compared with: all, or their group's."""
    if _is_across_groups(len(row_S), len(group_K)):
        yield np.arange(len(row_S)), np.arange(len(group_K))
        return
    group_S = group_K[row_S]
    order_S = np.argsort(group_S, kind="stable")
    order_K = np.argsort(group_K, kind="stable")
    for group in np.unique(group_S):
        blocks = []
        for order, groups in ((order_S, group_S), (order_K, group_K)):
            low, high = np.searchsorted(groups, [group, group + 1], sorter=order)
            blocks.append(order[low:high])
        yield blocks[0], blocks[1]


def _adjacency(graph: Graph) -> sp.csr_matrix:
    """Return the training links as a matrix (N, N) of zeros and ones."""
    entries = (np.ones(len(graph.indices)), np.asarray(graph.indices), np.asarray(graph.indptr))
    return sp.csr_matrix(entries, shape=(graph.num_nodes, graph.num_nodes))


def _attachment(degree_G: Floats) -> BlockScores:
    """Return (1 + degree of the anchor) * degree of the candidate: an anchor may have no link."""
    return lambda rows: np.outer(1 + degree_G[rows], degree_G)
