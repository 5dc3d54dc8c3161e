"""Words as vectors of their characters and of their two neighbors, without an encoder.

Shape letters: W words, V distinct words of a store, U of training, F sequences of characters,
D width.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from raybio.methods.relation_graphs.store import WordStore

MAX_WIDTH = 64
"""Width of the vector of a single word."""

NEIGHBOR_WEIGHT = 0.5
"""Weight of the words before and after a word, relative to its own."""


@dataclass(frozen=True)
class CharacterVectors:
    """Vectors of the words of sentences, from characters of each word and of its two neighbors.

    A word's own vector is the TF-IDF of its sequences of 2 to 4 characters, lower-cased, projected
    to the first 64 singular directions of the training words (latent semantic analysis). The
    vectors of the words before and after it are appended at half the length; zeros at the ends of a
    sentence.

    Attributes:
        store: the sentences.
        rows: training sentences, whose words give the directions.
    """

    store: WordStore
    rows: np.ndarray

    def embed(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return the vectors (W, 3 D) of the words of sentences, for pairs and for tags."""
        vectors = [np.zeros((0, 3 * self._vector_VD.shape[1]), np.float32)]
        for row in rows.tolist():
            own_WD = self._vector_VD[self.store.sentence(row)]
            before_WD = np.zeros_like(own_WD)
            behind_WD = np.zeros_like(own_WD)
            before_WD[1:] = NEIGHBOR_WEIGHT * own_WD[:-1]
            behind_WD[:-1] = NEIGHBOR_WEIGHT * own_WD[1:]
            vectors.append(np.concatenate([own_WD, before_WD, behind_WD], axis=1))
        word_WD = torch.from_numpy(np.concatenate(vectors))
        return word_WD, word_WD

    @cached_property
    def _vector_VD(self) -> np.ndarray:
        from sklearn.decomposition import TruncatedSVD
        from sklearn.feature_extraction.text import TfidfVectorizer

        words = [str(word) for word in self.store.words]
        sentences = [self.store.sentence(row) for row in self.rows.tolist()]
        trained = [words[word] for word in np.unique(np.concatenate(sentences)).tolist()]
        vectorizer = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), sublinear_tf=True)
        trained_UF = vectorizer.fit_transform(trained)
        vector_VF = vectorizer.transform(words)
        width = min(MAX_WIDTH, *trained_UF.shape)
        directions = TruncatedSVD(width, random_state=0).fit(trained_UF)
        # Equal words, such as "a" and "A", leave directions that only rounding decides.
        is_kept_D = directions.singular_values_ > 1e-6 * directions.singular_values_[0]
        return directions.transform(vector_VF)[:, is_kept_D].astype(np.float32)
