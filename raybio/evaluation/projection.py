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


class MapSample(NamedTuple):
    """Rows that a map will show.

    Attributes:
        row_S: the rows, ascending.
        sample_SD: their embeddings, float32.
        seed: seed of t-SNE.
    """

    row_S: np.ndarray
    sample_SD: np.ndarray
    seed: int

    def lay_out(self, perplexity: float = 30.0) -> Projection:
        """Compute t-SNE coordinates (van der Maaten and Hinton, 2008), in seconds to minutes.

        It is scikit-learn's, started from the first two principal components. The same sample gives
        the same map on the same machine. Neighborhoods are meaningful in such a map; distances
        between far points and sizes of clusters are not.

        Args:
            perplexity: effective number of neighbors; at most a third of the rows.
        """
        # It takes a second to import, which a refused setting need not wait for.
        from sklearn.manifold import TSNE

        method = TSNE(
            perplexity=min(perplexity, (len(self.row_S) - 1) / 3),
            # Equal rows have no principal components.
            init="pca" if (self.sample_SD != self.sample_SD[0]).any() else "random",
            random_state=self.seed,
            n_jobs=1,
        )
        return Projection(self.row_S, method.fit_transform(self.sample_SD).astype(np.float32))


def embedding_map(
    embedding_ND: np.ndarray, rng: np.random.Generator, *, max_rows: int = 2000
) -> Projection:
    """Return the t-SNE map of a uniform sample of rows; see ``map_sample``."""
    return map_sample(embedding_ND, rng, max_rows=max_rows).lay_out()


def map_sample(
    embedding_ND: np.ndarray, rng: np.random.Generator, *, max_rows: int = 2000
) -> MapSample:
    """Draw a uniform sample of rows for a map.

    Args:
        embedding_ND: embeddings, finite.
        rng: draws the sample and seeds t-SNE.
        max_rows: size of the sample, if there are more rows.

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
    return MapSample(row_S, sample_SD, seed=int(rng.integers(2**31)))
