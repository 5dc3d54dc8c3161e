"""The quality of embeddings, beside the scores of tasks: isotropy, uniformity and alignment.

Shape letters: N rows of a corpus, P pairs of rows that belong together, D embedding width.
"""

from torch import Tensor

from raybio.ops.spread import alignment, embedding_spread, uniformity


def corpus_quality(rows: str, embedding_ND: Tensor) -> dict[str, float]:
    """Return mean cosine, effective rank and uniformity of a corpus; none of a single row.

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


def pair_quality(pairs: str, first_PD: Tensor, second_PD: Tensor) -> dict[str, float]:
    """Return the alignment of pairs, such as "held-out links"; none without pairs."""
    if not len(first_PD):
        return {}
    return {f"alignment of {pairs} (lower is better)": alignment(first_PD, second_PD)}
