"""The quality of embeddings, reported with the scores of tasks: isotropy, uniformity and alignment.

Shape letters: N and M rows of corpora, P pairs of rows that belong together, D embedding width.
"""

import numpy as np
import torch
from torch import Tensor

from raybio.core.arrays import Integers
from raybio.ops.embedding_geometry import alignment, embedding_spread, uniformity


def corpus_quality(rows: str, embedding_ND: Tensor) -> dict[str, float]:
    """Return mean cosine, effective rank and uniformity of a corpus; empty for a single row.

    Args:
        rows: what a row is, in the plural, such as "nodes".
        embedding_ND: embeddings of the corpus.
    """
    if len(embedding_ND) < 2:
        return {}
    spread = embedding_spread(embedding_ND)
    return {
        f"mean cosine of two {rows}": spread.mean_cosine,
        f"effective rank of {rows}": spread.effective_rank,
        f"uniformity of {rows} (lower is better)": uniformity(embedding_ND),
    }


def pair_quality(
    pairs: str, first_ND: Tensor, second_MD: Tensor, first_P: Integers, second_P: Integers
) -> dict[str, float]:
    """Return the alignment of pairs; empty without pairs.

    Args:
        pairs: what the pairs are, such as "held-out links".
        first_ND: embeddings of first items.
        second_MD: embeddings of second items.
        first_P: row of the first item of each pair.
        second_P: row of its second item.
    """
    if not len(first_P):
        return {}
    pair_P2 = torch.from_numpy(np.stack([first_P, second_P], axis=1).astype(np.int64))
    value = alignment(first_ND, second_MD, pair_P2.to(first_ND.device))
    return {f"alignment of {pairs} (lower is better)": value}
