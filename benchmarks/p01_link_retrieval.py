"""P1: exact ranks of the links of 1 k anchors among 50 k candidates, d = 256, fp32; every side scores and ranks.

Ours ranks a link among all candidates, faiss finds it only if it is among its first 100.
"""

import faiss
import numpy as np
import torch
import torch.nn.functional as F
from _measure import compare
from sklearn.metrics import label_ranking_average_precision_score

from raybio.methods.sppt.graph.csr import Graph
from raybio.methods.sppt.link_retrieval import link_retrieval
from raybio.ops.rank_counts import count_ranks

NUM_ANCHORS, NUM_CANDIDATES, WIDTH, BLOCK = (
    1000,
    50_000,
    256,
    320,
)  # the block that link_retrieval would take


def by_counting(
    anchors: torch.Tensor, candidates: torch.Tensor, columns: torch.Tensor
) -> np.ndarray:
    ranks = []
    for start in range(0, len(anchors), BLOCK):
        query_rows = columns[start : start + BLOCK]
        rows = torch.arange(len(query_rows)).repeat_interleave(query_rows.shape[1])
        counts = count_ranks(
            anchors[start : start + BLOCK] @ candidates.T, rows, query_rows.flatten()
        )
        ranks.append(counts.above_P + counts.tied_before_P)
    return torch.cat(ranks).view_as(columns).numpy()


def by_argsort(
    anchors: torch.Tensor, candidates: torch.Tensor, columns: torch.Tensor
) -> np.ndarray:
    ranks = []
    for start in range(0, len(anchors), BLOCK):
        score = (anchors[start : start + BLOCK] @ candidates.T).numpy()
        order = np.argsort(-score, axis=1, kind="stable")
        place = np.empty_like(order)
        np.put_along_axis(place, order, np.arange(len(candidates))[None, :], axis=1)
        ranks.append(np.take_along_axis(place, columns[start : start + BLOCK].numpy(), axis=1))
    return np.concatenate(ranks)


def check(
    mine: np.ndarray, by_sorting: np.ndarray, nearest: np.ndarray, columns: np.ndarray
) -> None:
    assert np.array_equal(mine, by_sorting)
    # faiss's own matrix product differs in the last bit, which may swap neighbors.
    for row, place in zip(*np.nonzero(mine < 90), strict=True):
        assert abs(nearest[row].tolist().index(columns[row, place]) - mine[row, place]) <= 2


def rectangle() -> None:
    generator = torch.Generator().manual_seed(0)
    candidates = F.normalize(torch.randn(NUM_CANDIDATES, WIDTH, generator=generator), dim=1)
    index = faiss.IndexFlatIP(WIDTH)
    index.add(candidates.numpy())
    for num_links in (1, 12):
        columns = torch.stack(
            [
                torch.randperm(NUM_CANDIDATES, generator=generator)[:num_links]
                for _ in range(NUM_ANCHORS)
            ]
        )
        # The first link of an anchor is near, the others are anywhere.
        noise = torch.randn(NUM_ANCHORS, WIDTH, generator=generator)
        problem = F.normalize(candidates[columns[:, 0]] + 0.1 * noise, dim=1), candidates, columns
        queries = problem[0].numpy()
        check(
            by_counting(*problem),
            by_argsort(*problem),
            index.search(queries, 100)[1],
            columns.numpy(),
        )
        sides = {
            'np.argsort(kind="stable")': lambda p=problem: by_argsort(*p),
            "faiss IndexFlatIP, k = 100": lambda q=queries: index.search(q, 100),
        }
        for name, peer in sides.items():
            note = f"1 k x 50 k x 256, {num_links} links an anchor"
            compare("P1", name, lambda p=problem: by_counting(*p), peer, note=note)


def square() -> None:
    num = 3000
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
        return link_retrieval(embedding, graph.indptr, graph.indices).lrap

    assert abs(by_scikit_learn() - ours()) < 1e-6
    note = "3 k x 3 k, 14 links a node, fp64; theirs: LRAP alone; ours: all metrics, AP over all pairs included"
    compare("P1", "sklearn label_ranking_average_precision_score", ours, by_scikit_learn, note=note)


if __name__ == "__main__":
    faiss.omp_set_num_threads(torch.get_num_threads())
    rectangle()
    square()
