"""P24: the 10 nearest of MedLAMA's 22,923 names for its 19,000 queries, by Euclidean distance, fp32, 768 and 384 wide.

Synthetic vectors with what embeddings of a transformer have: a large common part and a few strong directions.
"""

import numpy as np
import torch
from _measure import NUM_PAIRS, SMALL, interleaved, not_here, peak_growth_bytes, report

from raybio.ops.nearest import nearest

try:
    import faiss
    from sklearn.neighbors import NearestNeighbors
except ImportError as missing:
    not_here(f"{missing.name} is missing; install faiss-cpu and scikit-learn")

NUM_QUERIES, NUM_NAMES, K = (300, 9000, 10) if SMALL else (19_000, 22_923, 10)


def vectors(width: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    common = 3 * torch.randn(width, generator=generator)
    strength = torch.logspace(0.5, -1, width)
    both = common + strength * torch.randn(NUM_QUERIES + NUM_NAMES, width, generator=generator)
    return both[:NUM_QUERIES].clone(), both[NUM_QUERIES:].clone()


def check(mine: np.ndarray, theirs: np.ndarray, query: torch.Tensor, name: torch.Tensor) -> None:
    """Equal neighbors; where theirs differ they are as near, to the error of |a|^2 + |b|^2 - 2ab in fp32."""
    rows = np.flatnonzero((mine != theirs).any(axis=1))
    assert len(rows) < 0.05 * len(mine) + 5
    distances = [
        (query[rows, None].double() - name[torch.from_numpy(found[rows])].double()).square().sum(2)
        for found in (mine, theirs)
    ]
    torch.testing.assert_close(*distances, rtol=1e-4, atol=0)


def main() -> None:
    faiss.omp_set_num_threads(torch.get_num_threads())
    for width in (768, 384):
        query, name = vectors(width)

        def ours(query: torch.Tensor = query, name: torch.Tensor = name) -> np.ndarray:
            return nearest(query, name, K).index_QK.numpy()

        def by_faiss(query: torch.Tensor = query, name: torch.Tensor = name) -> np.ndarray:
            index = faiss.IndexFlatL2(name.shape[1])
            index.add(name.numpy())
            return index.search(query.numpy(), K)[1]

        def by_scikit_learn(query: torch.Tensor = query, name: torch.Tensor = name) -> np.ndarray:
            index = NearestNeighbors(n_neighbors=K, algorithm="brute").fit(name.numpy())
            return index.kneighbors(query.numpy(), return_distance=False)

        sides = {"ours": ours, "faiss IndexFlatL2": by_faiss, "sklearn brute": by_scikit_learn}
        for side in (by_faiss, by_scikit_learn):
            check(ours(), side().astype(np.int64), query, name)
        megabytes = {what: peak_growth_bytes(side) / 2**20 for what, side in sides.items()}
        rounds = np.array(interleaved(list(sides.values()), NUM_PAIRS))
        for place, peer in enumerate(list(sides)[1:], 1):
            ratio = rounds[:, place] / rounds[:, 0]
            note = (
                f"{NUM_QUERIES:,} x {NUM_NAMES:,} x {width}; theirs includes building the index; "
                f"peak growth {megabytes['ours']:.0f} MiB, theirs {megabytes[peer]:.0f} MiB"
            )
            report("P24", peer, float(np.median(ratio)), float(ratio.min()), note)


if __name__ == "__main__":
    main()
