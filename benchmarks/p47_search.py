"""P47: ``raybio search`` among 300,000 vectors of width 384 beside exact search by faiss, one thread, processor time.

Synthetic vectors with what embeddings of a transformer have: they lie near a surface of few dimensions (20, the image
of a random network with one hidden layer) around a large common part. New queries come from the same distribution, 1,000
in a call; the note has the ratio for one query a call. Their recall is measured here against the peer's results.
"""

import shutil
import tempfile
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from _measure import NUM_PAIRS, SMALL, core_seconds_of, interleaved, not_here, report

import raybio
from raybio.runtime.search.build import build_index, describe_index

try:
    import faiss
except ImportError:
    not_here("faiss is missing; install raybio[cpu]")

NUM_ROWS = 3000 if SMALL else 300_000
NUM_QUERIES = 50 if SMALL else 1000
WIDTH, HIDDEN, DIMENSIONS, K = 384, 256, 20, 10


def vectors(num: int) -> np.ndarray:
    generator = torch.Generator().manual_seed(0)
    inner = torch.randn(DIMENSIONS, HIDDEN, generator=generator) / DIMENSIONS**0.5
    outer = torch.randn(HIDDEN, WIDTH, generator=generator) / HIDDEN**0.5
    common = 0.5 * torch.randn(WIDTH, generator=generator)
    position = torch.randn(num, DIMENSIONS, generator=generator)
    noise = 0.05 * torch.randn(num, WIDTH, generator=generator)
    vector = common + torch.tanh(position @ inner) @ outer + noise
    return torch.nn.functional.normalize(vector).numpy()


def main() -> None:
    torch.set_num_threads(1)
    both = vectors(NUM_ROWS + NUM_QUERIES)
    candidates, queries = both[:NUM_ROWS], both[NUM_ROWS:]
    folder = Path(tempfile.mkdtemp(prefix="p47-"))
    try:
        column = pa.FixedSizeListArray.from_arrays(pa.array(candidates.reshape(-1)), WIDTH)
        keys = [str(row) for row in range(NUM_ROWS)]
        pq.write_table(pa.table({"key": keys, "embedding": column}), folder / "embeddings.parquet")
        # At full size the command decides by itself that the index is not exact.
        limit = {"exact_at_most": NUM_ROWS // 3} if SMALL else {}
        store = build_index(folder / "embeddings.parquet", folder / "index", **limit)
        opening = median(
            core_seconds_of(lambda: raybio.open_index(folder / "index")) for _ in range(NUM_PAIRS)
        )
        index = raybio.open_index(folder / "index")
    finally:
        shutil.rmtree(folder)
    exact = faiss.IndexFlatIP(WIDTH)
    exact.add(candidates)
    true = exact.search(queries, K)[1]
    found = np.array([[int(key) for key in keys] for keys in index.search(queries, K).keys])
    hits = [len({*a} & {*b}) for a, b in zip(true.tolist(), found.tolist(), strict=True)]
    recall = sum(hits) / true.size
    single = [
        lambda: [index.search(query[None], K) for query in queries[:50]],
        lambda: [exact.search(query[None], K) for query in queries[:50]],
    ]
    batch = [lambda: index.search(queries, K), lambda: exact.search(queries, K)]
    one_by_one = [
        peer / ours for ours, peer in interleaved(single, NUM_PAIRS, clock=core_seconds_of)
    ]
    ratios = [peer / ours for ours, peer in interleaved(batch, NUM_PAIRS, clock=core_seconds_of)]
    note = (
        f"recall@{K} {recall:.3f} of new queries; {describe_index(store)}; one query a call "
        f"{median(one_by_one):.3g}×; opened in {opening:.2g} s of one core, after imports"
    )
    report("P47", "faiss IndexFlatIP", median(ratios), min(ratios), note)


if __name__ == "__main__":
    main()
