"""P1: link retrieval itself beside argsort (1 k anchors, 50 k candidates) and scikit-learn (3 k x 3 k); d = 256.

All sides score and rank; ours returns all its measures.
"""

import numpy as np
import torch
import torch.nn.functional as F
from _measure import NUM_PAIRS, SMALL, compare
from gpu_figures import OneOf, random_links
from sklearn.metrics import label_ranking_average_precision_score

from raybio.methods.sppt.graph.csr import Graph
from raybio.methods.sppt.link_retrieval import embedding_scores, rank_links

NUM_ANCHORS, NUM_CANDIDATES = (50, 500) if SMALL else (1000, 50_000)
NUM_IN_SQUARE = 200 if SMALL else 3000
WIDTH, BLOCK = 256, 320


def by_argsort(row_ND: torch.Tensor, column_AL: np.ndarray) -> float:
    """LRAP of the links of the first rows, in fp32."""
    values = []
    for start in range(0, len(column_AL), BLOCK):
        end = min(start + BLOCK, len(column_AL))
        score = (row_ND[start:end] @ row_ND.T).numpy()
        score[np.arange(end - start), np.arange(start, end)] = -np.inf  # not its own candidate
        order = np.argsort(-score, axis=1, kind="stable")
        rank = np.empty_like(order)
        np.put_along_axis(rank, order, np.arange(1, len(row_ND) + 1)[None, :], axis=1)
        of_links = np.sort(np.take_along_axis(rank, column_AL[start:end], axis=1), axis=1)
        values.append((np.arange(1, of_links.shape[1] + 1) / of_links).mean(axis=1))
    return float(np.concatenate(values).mean())


def rectangle() -> None:
    generator = torch.Generator().manual_seed(0)
    row_ND = F.normalize(torch.randn(NUM_CANDIDATES, WIDTH, generator=generator), dim=1)
    for num_links in (1, 12):
        indptr, indices = random_links(NUM_CANDIDATES, NUM_ANCHORS, num_links)
        column_AL = indices.reshape(NUM_ANCHORS, num_links)
        # Each anchor's links are different, and none is the anchor.
        for anchor in range(NUM_ANCHORS):
            first = (anchor + 1 + 7 * anchor) % (NUM_CANDIDATES - num_links)
            column_AL[anchor] = (first + np.arange(num_links)) % NUM_CANDIDATES
            if anchor in column_AL[anchor]:
                column_AL[anchor] = (column_AL[anchor] + num_links) % NUM_CANDIDATES

        def ours(indptr: np.ndarray = indptr, column_AL: np.ndarray = column_AL) -> float:
            return rank_links(
                embedding_scores(row_ND, "dot", torch.float32),
                indptr,
                column_AL.ravel(),
                collective=OneOf(NUM_CANDIDATES // NUM_ANCHORS),
            ).lrap

        def peer(column_AL: np.ndarray = column_AL) -> float:
            return by_argsort(row_ND, column_AL)

        assert abs(ours() - peer()) < 1e-6
        note = (
            f"{NUM_ANCHORS:,} x {NUM_CANDIDATES:,} x {WIDTH}, {num_links} links an anchor, fp32; "
            "theirs: LRAP alone"
        )
        compare("P1", 'np.argsort(kind="stable")', ours, peer, pairs=NUM_PAIRS, note=note)


def square() -> None:
    num = NUM_IN_SQUARE
    rng = np.random.default_rng(0)
    chain = np.stack([np.arange(num), (np.arange(num) + 1) % num], axis=1)
    graph = Graph.from_edges(np.concatenate([rng.integers(0, num, (6 * num, 2)), chain]), num, None)
    embedding = torch.from_numpy(rng.normal(size=(num, WIDTH)))
    off_diagonal = ~np.eye(num, dtype=bool)
    truth = graph.has_edge(np.arange(num)[:, None], np.arange(num))[off_diagonal].reshape(
        num, num - 1
    )

    def by_scikit_learn() -> float:
        score = -torch.cdist(embedding, embedding).numpy()
        return label_ranking_average_precision_score(
            truth, score[off_diagonal].reshape(num, num - 1)
        )

    def ours() -> float:
        in_group = embedding_scores(embedding, "euclidean")
        return rank_links(in_group, graph.indptr, graph.indices).lrap

    assert abs(by_scikit_learn() - ours()) < 1e-6
    note = f"{num:,} x {num:,}, 14 links a node, fp64; theirs: LRAP alone; ours: all metrics, AP over all pairs included"
    peer = "sklearn label_ranking_average_precision_score"
    compare("P1", peer, ours, by_scikit_learn, pairs=NUM_PAIRS, note=note)


if __name__ == "__main__":
    rectangle()
    square()
