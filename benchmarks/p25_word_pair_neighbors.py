"""P25: the 5 nearest of a corpus's pairs of words for each pair of others, beside faiss over the chains of all pairs.

Sentences as long as those of ADE, vectors around five centers as those of tagged words are, or around none. A whole
fold of ADE is 3,845 reference sentences and 427 queries, for which faiss needs half an hour of a core or more: a
slice of both is taken by default; ``--reference``, ``--query`` and ``--width`` give other sizes.
"""

import argparse
from statistics import median

import faiss
import numpy as np
import torch
from _measure import NUM_PAIRS, SMALL, interleaved, peak_growth_bytes, report

from raybio.methods.relation_graphs.annotations.word_pairs import WordPairs
from raybio.methods.relation_graphs.classifiers.nearest_pairs import nearest_pairs

K = 5


def sentences(num: int, width: int, spread: float | None, rng: np.random.Generator) -> WordPairs:
    """Words around five centers, four fifths of them around one; around none if ``spread`` is None."""
    length = rng.gamma(5, 21.2 / 5, num).astype(np.int64).clip(2, 97)
    row = rng.standard_normal((int(length.sum()), width), dtype=np.float32)
    if spread is not None:
        center = np.random.default_rng(0).standard_normal((5, width), dtype=np.float32)
        row = (
            center[rng.choice(5, len(row), p=[0.79, 0.06, 0.01, 0.06, 0.08])]
            + np.float32(spread) * row
        )
    return WordPairs(torch.from_numpy(row), torch.from_numpy(np.append(0, length.cumsum())))


def chains(words: WordPairs) -> np.ndarray:
    first, second = words.pairs()
    return torch.cat([words.row_WD[first], words.row_WD[second]], dim=1).numpy()


def measure(query: WordPairs, reference: WordPairs, kind: str) -> None:
    queries, known = chains(query), chains(reference)

    def ours() -> np.ndarray:
        return nearest_pairs(query, reference, k=K)[0].numpy()

    def by_faiss() -> np.ndarray:
        index = faiss.IndexFlatL2(known.shape[1])
        index.add(known)
        return index.search(queries, K)[0]

    # Theirs is |a|^2 + |b|^2 - 2ab in single precision.
    np.testing.assert_allclose(
        ours(), by_faiss(), rtol=1e-3, atol=1e-5 * float(np.square(known).sum(1).max())
    )
    megabytes = [peak_growth_bytes(side) / 2**20 for side in (ours, by_faiss)]
    ratios = [theirs / mine for mine, theirs in interleaved([ours, by_faiss], NUM_PAIRS)]
    note = (
        f"{query.num_pairs:,} x {reference.num_pairs:,} pairs of {reference.row_WD.shape[1]} wide words, {kind}; theirs includes "
        f"building the index, not the chains; peak growth {megabytes[0]:.0f} MiB, theirs {megabytes[1]:.0f} MiB"
    )
    report("P25", "faiss IndexFlatL2", median(ratios), min(ratios), note)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--reference", type=int, default=40 if SMALL else 400, help="reference sentences"
    )
    parser.add_argument("--query", type=int, default=4 if SMALL else 8, help="query sentences")
    parser.add_argument(
        "--width", type=int, default=32 if SMALL else 384, help="of a word's vector"
    )
    given = parser.parse_args()
    faiss.omp_set_num_threads(torch.get_num_threads())
    for spread, kind in ((None, "Gaussian"), (0.3, "clustered")):
        rng = np.random.default_rng(1)
        reference, query = (
            sentences(num, given.width, spread, rng) for num in (given.reference, given.query)
        )
        measure(query, reference, kind)


if __name__ == "__main__":
    main()
