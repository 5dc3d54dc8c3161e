"""P35: a block of anchors scored and ranked by evaluation, beside an fp32 matrix product of its shape.

Ours scores 256 anchors against 60 k candidates, 768 wide, so that equal distances tie (fp64, a tile at a time), and counts
the ranks of 12 links an anchor. The second line retrieves the links of 8 k nodes, average precision over all pairs
included, which scores every block twice. Memory is what the call adds, over that of the embeddings.
"""

from collections.abc import Callable
from statistics import median

import numpy as np
import torch
from _measure import NUM_PAIRS, SMALL, core_seconds_of, interleaved, peak_growth_bytes, report

from raybio.methods.sppt.graph.csr import Graph
from raybio.methods.sppt.link_retrieval import embedding_scores, rank_links
from raybio.ops.rank_counts import count_ranks
from raybio.ops.retrieval import cosine_scores, retrieve
from raybio.ops.scores import scorer

WIDTH = 64 if SMALL else 768
NUM_CANDIDATES, BLOCK, NUM_LINKS = (2000, 128, 12) if SMALL else (60_000, 256, 12)
NUM_NODES = 600 if SMALL else 8000


def show(name: str, ours: Callable[[], object], product: Callable[[], object], note: str) -> None:
    ratios = [
        theirs / mine for mine, theirs in interleaved([ours, product], NUM_PAIRS, core_seconds_of)
    ]
    report("P35", name, median(ratios), min(ratios), note)


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    embedding = torch.randn(NUM_CANDIDATES, WIDTH, generator=generator)
    row = torch.arange(BLOCK).repeat_interleave(NUM_LINKS)
    column = torch.stack(
        [torch.randperm(NUM_CANDIDATES, generator=generator)[:NUM_LINKS] for _ in range(BLOCK)]
    ).flatten()

    prepared = scorer(embedding, "euclidean", torch.float64)

    def ranks() -> torch.Tensor:
        return count_ranks(prepared.block(0, BLOCK), row, column).above_P

    # The distances themselves agree with the ranks.
    distance = torch.cdist(embedding[:BLOCK].double(), embedding.double())
    distance.fill_diagonal_(torch.inf)
    own = distance[row, column]
    expected = torch.tensor(
        [int((distance[r] < d).sum()) for r, d in zip(row.tolist(), own, strict=True)]
    )
    assert torch.equal(ranks(), expected)
    shape = f"{BLOCK} x {NUM_CANDIDATES:,} x {WIDTH}"
    show(
        "fp32 matrix product",
        ranks,
        lambda: embedding[:BLOCK] @ embedding.T,
        f"{shape}, {NUM_LINKS} links an anchor; ratio of product over ours",
    )
    nodes = embedding[:NUM_NODES].clone()
    rng = np.random.default_rng(0)
    graph = Graph.from_edges(rng.integers(0, NUM_NODES, (6 * NUM_NODES, 2)), NUM_NODES, None)

    def products() -> None:
        for start in range(0, NUM_NODES, 1024):
            nodes[start : start + 1024] @ nodes.T

    show(
        "fp32 matrix products",
        lambda: rank_links(embedding_scores(nodes, "euclidean"), graph.indptr, graph.indices),
        products,
        f"{NUM_NODES:,} x {NUM_NODES:,} x {WIDTH}, all measures, average precision over all pairs included",
    )
    # Blocks have a fixed size: they shrink beside embeddings, as their number grows.
    embeddings = 4 * embedding.numel()
    queries = embedding[:BLOCK].clone()
    gold = np.arange(BLOCK)

    def retrieval() -> None:
        retrieve(cosine_scores(queries, embedding), np.arange(BLOCK + 1), gold)

    ratio = embeddings / peak_growth_bytes(retrieval)
    report(
        "P35",
        "memory of the embeddings",
        ratio,
        ratio,
        f"cosine retrieval, {shape}; it adds {1 / ratio:.1f} times the embeddings",
    )


if __name__ == "__main__":
    main()
