"""Rivals of link retrieval: rankings that need no training of an encoder.

A trained encoder has learned something of the links only where it ranks candidates better than all
of these:

- ``degree``: candidates with many training links first, the same for every anchor; pairs of all
  anchors by (1 + degree of the anchor) * degree of the candidate (preferential attachment, in the
  same review as the next).
- ``common neighbors``: candidates that share many neighbors with the anchor (Liben-Nowell and
  Kleinberg, "The link-prediction problem for social networks").
- content: cosine of TF-IDF vectors over n-grams of the tokens that the encoder reads.
- ``look-up``: candidates whose relatives have training links with the anchor's relatives. Of
  proteins, these are interologs (Walhout et al. 2000).
- ``composition``, where contents are residues: candidates that have training links with the anchor
  between nodes of like compositions; see ``near_compositions``.

Equal scores are ranked in random order.

Shape letters: S nodes of an evaluation, N nodes of the graph, G nodes of a group, B anchors of a
block, F n-grams, T tokens, V kinds of tokens, K nearest nodes.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from sklearn.feature_extraction.text import TfidfTransformer
from torch import Tensor

from raybio.core.interfaces import Collective
from raybio.core.randomness import derive_seed, hash_uniform
from raybio.methods.sppt.collate import ReadRows
from raybio.methods.sppt.evaluate import LinkQueries, rank_splits
from raybio.methods.sppt.graph.csr import Graph
from raybio.methods.sppt.link_retrieval import LinkRetrieval
from raybio.ops.nearest import nearest

RELATED = 0.2
"""Smallest cosine of TF-IDF vectors of relatives."""

NUM_NEAREST = 64
"""Nodes of the nearest compositions whose links count, the node itself among them."""

MAX_NODES_ACROSS_GROUPS = 20_000
"""With more nodes, relatives and compositions are looked for in a node's own group: time grows with
the square."""

DIGITS = 6
"""Scores that agree to so many decimals tie."""

Floats = NDArray[np.float64]
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
) -> Iterator[Rival]:
    """Yield the rivals of an evaluation.

    Args:
        queries: nodes and links.
        graph: the whole training graph.
        read: reader of rows as tokens.
        content: name of the rival that compares contents.
        content_ngram: tokens of its n-grams.
        composition: whether to yield ``composition``.
    """
    neighbor_SN = _adjacency(graph)[queries.node_S]
    degree_S = np.asarray(graph.degree_N, np.float64)[queries.node_S]
    yield Rival("degree", lambda node_G: _attachment(degree_S[node_G]))
    yield Rival("common neighbors", _Products(neighbor_SN, neighbor_SN))
    tfidf_SF = ngram_tfidf(read, queries.node_S, content_ngram)
    yield Rival(content, _Products(tfidf_SF, tfidf_SF))
    related_SS = relatives(tfidf_SF, queries.group_S)
    link_SS = neighbor_SN[:, queries.node_S]
    yield Rival("look-up", _evidence(link_SS, related_SS))
    if composition:
        share_SV = token_shares(read, queries.node_S)
        near_SS = near_compositions(share_SV, queries.group_S)
        yield Rival("composition", _evidence(link_SS, near_SS))


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
        block_rows: most anchors that are scored at once.
        device: device that counts ranks; scores are computed on the CPU.
        collective: workers that divide the anchors.
    """

    def in_group(node_G: np.ndarray) -> RivalScores:
        return RivalScores(rival.in_group(node_G), node_G, device)

    return rank_splits(queries, in_group, block_rows=block_rows, collective=collective)


@dataclass(frozen=True)
class RivalScores:
    """The scores of a group as ``CandidateScores``: rounded, with ties in random order.

    Attributes:
        scores: scores of the candidates.
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
        score_BG = np.round(self.scores(slice(first, end)), DIGITS)
        # A pair and its reverse tie alike, and no draw depends on the size of blocks.
        drawn_G = hash_uniform(derive_seed(0, "order of ties"), self.node_G)
        drawn_BG = (drawn_G[first:end, None] + drawn_G) % 1
        score_BG += drawn_BG * 0.5 * 10.0**-DIGITS
        own_B = np.arange(first, end)
        score_BG[own_B - first, own_B] = -np.inf
        return torch.from_numpy(score_BG).to(self.device)


@dataclass(frozen=True)
class _Products:
    """Scores ``left @ right.T - minus`` of sparse matrices, a group and a block at a time."""

    left_SF: sp.csr_matrix
    right_SF: sp.csr_matrix
    minus_SS: sp.csr_matrix | None = None

    def __call__(self, node_G: np.ndarray) -> BlockScores:
        """Return the scores in a group."""
        left_GF = self.left_SF[node_G]
        right_FG = self.right_SF[node_G].T.tocsr()
        minus_GG = None if self.minus_SS is None else self.minus_SS[node_G][:, node_G]

        def scores(rows: slice) -> Floats:
            product_BG = (left_GF[rows] @ right_FG).toarray()
            return product_BG if minus_GG is None else product_BG - minus_GG[rows].toarray()

        return scores


def _evidence(link_SS: sp.csr_matrix, like_SS: sp.csr_matrix) -> _Products:
    """Return scores of pairs (i, j): the sum over links (a, b) of like(i, a) like(j, b).

    A link is listed in both directions. It is no evidence for itself: that would be like(i, i)
    like(j, j), and like(i, j) like(j, i) by its other direction.
    """
    reversed_SS = like_SS.multiply(like_SS.T)
    itself_SS = sp.diags(like_SS.diagonal())
    own_SS = itself_SS @ link_SS @ itself_SS + link_SS.multiply(reversed_SS)
    return _Products(like_SS @ link_SS, like_SS, own_SS.tocsr())


def ngram_tfidf(read: ReadRows, row_S: np.ndarray, num_tokens: int) -> sp.csr_matrix:
    """Return TF-IDF vectors (S, F) of length 1 over the n-grams of tokens of rows.

    Sublinear term frequencies, as usual for texts. A row that is shorter than an n-gram has the
    zero vector.
    """
    token_T, indptr_S1, is_special_T = read(row_S)
    owner_T = np.repeat(np.arange(len(row_S)), np.diff(indptr_S1))[~is_special_T]
    word_T = np.unique(token_T[~is_special_T], return_inverse=True)[1].astype(np.int64)
    num_words = int(word_T.max(initial=0)) + 1
    ngram_T = word_T
    first_T = owner_T
    for length in range(2, num_tokens + 1):
        # One position shorter at each length; numbers stay small enough for any n.
        ngram_T = ngram_T[:-1] * num_words + word_T[length - 1 :]
        ngram_T = np.unique(ngram_T, return_inverse=True)[1]
        first_T = first_T[:-1]
    is_inside_T = first_T == owner_T[num_tokens - 1 :]
    _, column_T = np.unique(ngram_T[is_inside_T], return_inverse=True)
    shape = (len(row_S), int(column_T.max(initial=0)) + 1)
    count_SF = sp.csr_matrix(
        (np.ones(len(column_T)), (first_T[is_inside_T], column_T)), shape=shape
    )
    return TfidfTransformer(sublinear_tf=True).fit_transform(count_SF).tocsr()


def relatives(tfidf_SF: sp.csr_matrix, group_S: np.ndarray) -> sp.csr_matrix:
    """Return the cosines (S, S) of relatives, at least ``RELATED``, and 1 of each node with itself.

    Relatives may be of other groups, such as other species, if there are at most
    ``MAX_NODES_ACROSS_GROUPS`` nodes.
    """
    num_nodes = tfidf_SF.shape[0]
    rows = [np.arange(num_nodes)]
    columns = [np.arange(num_nodes)]
    values = [np.ones(num_nodes)]
    for node_G in _compared(group_S):
        vector_FG = tfidf_SF[node_G].T.tocsr()
        for first in range(0, len(node_G), 512):
            node_B = node_G[first : first + 512]
            cosine_BG = (tfidf_SF[node_B] @ vector_FG).tocoo()
            row_P = node_B[cosine_BG.row]
            column_P = node_G[cosine_BG.col]
            is_related_P = (cosine_BG.data >= RELATED) & (row_P != column_P)
            rows.append(row_P[is_related_P])
            columns.append(column_P[is_related_P])
            values.append(cosine_BG.data[is_related_P])
    pairs = (np.concatenate(rows), np.concatenate(columns))
    return sp.csr_matrix((np.concatenate(values), pairs), shape=(num_nodes, num_nodes))


def token_shares(read: ReadRows, row_S: np.ndarray) -> Floats:
    """Return the share (S, V) of each kind of token among the tokens of a row."""
    token_T, indptr_S1, is_special_T = read(row_S)
    owner_T = np.repeat(np.arange(len(row_S)), np.diff(indptr_S1))[~is_special_T]
    kinds, kind_T = np.unique(token_T[~is_special_T], return_inverse=True)
    count_SV = np.zeros((len(row_S), len(kinds)))
    np.add.at(count_SV, (owner_T, kind_T), 1.0)
    return count_SV / count_SV.sum(axis=1, keepdims=True).clip(min=1.0)


def near_compositions(share_SV: Floats, group_S: np.ndarray) -> sp.csr_matrix:
    """Return the kernel (S, S) of the ``NUM_NEAREST`` nearest compositions of each node, else 0.

    exp(-|x - y|^2 / (2 width^2)) of Euclidean distances. The width needs no held-out link: it is
    half the median, over nodes, of the distance to the farthest of the nearest. There the kernel is
    exp(-2), so that little is cut off.

    Args:
        share_SV: compositions.
        group_S: groups; with more than ``MAX_NODES_ACROSS_GROUPS`` nodes, the nearest are of the
            same group.
    """
    num_nodes = len(share_SV)
    vector_SV = torch.from_numpy(share_SV).float()
    rows = []
    columns = []
    squares = []
    farthest_S = np.zeros(num_nodes)
    for node_G in _compared(group_S):
        vector_GV = vector_SV[node_G]
        found = nearest(vector_GV, vector_GV, NUM_NEAREST)
        square_GK = -found.score_QK.double().numpy()
        rows.append(np.repeat(node_G, square_GK.shape[1]))
        columns.append(node_G[found.index_QK.numpy().ravel()])
        squares.append(square_GK.ravel())
        farthest_S[node_G] = np.sqrt(square_GK[:, -1])
    # Of copies only, the width is 0: a copy counts as 1, and all else as 0.
    width = max(float(np.median(farthest_S)) / 2, np.finfo(np.float32).tiny)
    kernel = np.exp(-np.concatenate(squares) / width / width / 2)
    pairs = (np.concatenate(rows), np.concatenate(columns))
    return sp.csr_matrix((kernel, pairs), shape=(num_nodes, num_nodes))


def _compared(group_S: np.ndarray) -> Iterator[np.ndarray]:
    """Yield nodes that are compared with each other: all, or those of each group."""
    if len(group_S) <= MAX_NODES_ACROSS_GROUPS:
        yield np.arange(len(group_S))
        return
    order = np.argsort(group_S, kind="stable")
    yield from np.split(order, np.flatnonzero(np.diff(np.asarray(group_S)[order])) + 1)


def _adjacency(graph: Graph) -> sp.csr_matrix:
    """Return the training links as a matrix (N, N) of zeros and ones."""
    entries = (np.ones(len(graph.indices)), np.asarray(graph.indices), np.asarray(graph.indptr))
    return sp.csr_matrix(entries, shape=(graph.num_nodes, graph.num_nodes))


def _attachment(degree_G: Floats) -> BlockScores:
    """Return (1 + degree of the anchor) * degree of the candidate: an anchor may have no link."""
    return lambda rows: np.outer(1 + degree_G[rows], degree_G)
