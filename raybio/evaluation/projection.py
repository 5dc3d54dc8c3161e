"""Two-dimensional maps of embeddings, for the eye.

Shape letters: N rows, S rows of the sample, D width.
"""

from typing import NamedTuple

import numpy as np


class EmbeddingMap(NamedTuple):
    """Which rows were drawn (S,), ascending, and where they lie (S, 2), float32."""

    row_S: np.ndarray
    position_S2: np.ndarray


def embedding_map(
    embedding_ND: np.ndarray,
    rng: np.random.Generator,
    *,
    max_rows: int = 2000,
    perplexity: float = 30.0,
) -> EmbeddingMap:
    """T-SNE (van der Maaten and Hinton, 2008) of a uniform sample of rows.

    By scikit-learn, started from the first two principal components. The same generator state gives the same map on the
    same machine. Neighbourhoods mean something in it; distances between far points and sizes of clusters do not.

    Args:
        embedding_ND: embeddings, finite.
        rng: draws the sample and seeds the method.
        max_rows: rows beyond this are left out, at random.
        perplexity: about the number of neighbours that count; lowered to a third of the rows where there are few.

    Raises:
        ValueError: for fewer than 4 rows, fewer than 2 columns, or embeddings that are not finite.
    """
    num_rows = len(embedding_ND)
    if embedding_ND.ndim != 2 or num_rows < 4 or embedding_ND.shape[1] < 2:
        raise ValueError(
            f"got embeddings of shape {embedding_ND.shape}; want at least 4 rows of 2 numbers for a map"
        )
    row_S = np.sort(rng.choice(num_rows, min(num_rows, max_rows), replace=False))
    sample_SD = np.asarray(embedding_ND[row_S], np.float32)
    if not np.isfinite(sample_SD).all():
        raise ValueError(
            "embeddings hold NaN or infinity; look at the run's losses before drawing a map"
        )
    from sklearn.manifold import (
        TSNE,  # a second to import, which a mistyped setting need not wait for
    )

    method = TSNE(
        perplexity=min(perplexity, (len(row_S) - 1) / 3),
        init="pca" if sample_SD.std() > 0 else "random",
        random_state=int(rng.integers(2**31)),
        n_jobs=1,
    )
    return EmbeddingMap(row_S, method.fit_transform(sample_SD).astype(np.float32))
