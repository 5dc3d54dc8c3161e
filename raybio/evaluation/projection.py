"""Two-dimensional maps of embeddings.

Shape letters: N rows, S rows of the sample, D width.
"""

from typing import NamedTuple

import numpy as np


class Projection(NamedTuple):
    """A map of a sample of rows.

    Attributes:
        row_S: the rows, ascending.
        position_S2: their coordinates, float32.
    """

    row_S: np.ndarray
    position_S2: np.ndarray


def embedding_map(
    embedding_ND: np.ndarray,
    rng: np.random.Generator,
    *,
    max_rows: int = 2000,
    perplexity: float = 30.0,
) -> Projection:
    """Compute t-SNE coordinates (van der Maaten and Hinton, 2008) of a uniform sample of rows.

    It is scikit-learn's, started from the first two principal components. The same generator state
    gives the same map on the same machine. Neighborhoods are meaningful in such a map; distances
    between far points and sizes of clusters are not.

    Args:
        embedding_ND: embeddings, finite.
        rng: draws the sample and seeds t-SNE.
        max_rows: size of the sample, if there are more rows.
        perplexity: effective number of neighbors; at most a third of the rows.

    Raises:
        ValueError: for fewer than 4 rows, fewer than 2 columns, or embeddings that are not finite.
    """
    num_rows = len(embedding_ND)
    if embedding_ND.ndim != 2 or num_rows < 4 or embedding_ND.shape[1] < 2:
        raise ValueError(
            f"got embeddings of shape {embedding_ND.shape}; want at least 4 rows of 2 numbers for "
            "a map"
        )
    row_S = np.sort(rng.choice(num_rows, min(num_rows, max_rows), replace=False))
    sample_SD = np.asarray(embedding_ND[row_S], np.float32)
    if not np.isfinite(sample_SD).all():
        raise ValueError(
            "embeddings hold NaN or infinity; look at the run's losses before drawing a map"
        )
    # It takes a second to import, which a refused setting need not wait for.
    from sklearn.manifold import TSNE

    method = TSNE(
        perplexity=min(perplexity, (len(row_S) - 1) / 3),
        init="pca" if sample_SD.std() > 0 else "random",
        random_state=int(rng.integers(2**31)),
        n_jobs=1,
    )
    return Projection(row_S, method.fit_transform(sample_SD).astype(np.float32))
