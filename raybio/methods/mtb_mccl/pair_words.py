"""Entity pairs as bags of words from their documents, without an encoder.

A pair is described by the types of both entities, the words of their mentions, and the words
around and between the two mentions that are nearest to each other. Words are tokens of the
encoder's tokenizer, so a bag holds only what the encoder reads, and for example no blanked names.

Shape letters: P pairs, S tokens of a document, M mentions, C links of mentions to entities, F
features, W words of one pair.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
import scipy.sparse as sp
from sklearn.feature_extraction.text import TfidfTransformer

from raybio.core.arrays import distinct
from raybio.methods.mtb_mccl.batches import Pairs
from raybio.methods.mtb_mccl.documents.collate import DocumentReader
from raybio.methods.mtb_mccl.documents.markers import NOT_READ, MarkedDocument
from raybio.ops.segments import indptr_from_lengths

WINDOW = 10
"""Number of tokens on either side of a mention that count as around it."""

MAX_BETWEEN = 40
"""Mentions that are further apart, in tokens, have no words between them."""

_TYPES, _HEAD, _TAIL, _AROUND_HEAD, _AROUND_TAIL, _BETWEEN = range(6)
_NUM_ROLES = 6


@dataclass(frozen=True)
class PairWords:
    """The words of pairs, with their roles; a word in two roles is two features.

    Attributes:
        indptr_P1: words of pair p are ``feature_W[indptr_P1[p] : indptr_P1[p + 1]]``.
        feature_W: number of each word in its role, int64.
        type_P: number of the types of head and tail.
    """

    indptr_P1: np.ndarray
    feature_W: np.ndarray
    type_P: np.ndarray

    @classmethod
    def read(
        cls,
        reader: DocumentReader,
        pairs: Mapping[int, Pairs],
        is_blank: Callable[[int], np.ndarray | None] = lambda row: None,
    ) -> Self:
        """Read the words of pairs, in the order of ``embed_pairs``.

        Args:
            reader: reads documents for the encoder.
            pairs: document -> (head, tail) of its pairs.
            is_blank: document -> bool (E,), True for entities to be blanked; None blanks none.
        """
        nothing = np.zeros(0, np.int64)
        parts = [nothing]
        types = [nothing]
        for row, (head_P, tail_P) in pairs.items():
            document = _Document(reader, row, reader.marked(row, is_blank(row)))
            types.append(document.types(head_P, tail_P))
            for head, tail in zip(head_P.tolist(), tail_P.tolist(), strict=True):
                parts.append(document.features(head, tail))
        indptr_P1 = indptr_from_lengths([len(part) for part in parts[1:]])
        return cls(indptr_P1, np.concatenate(parts), np.concatenate(types))

    @property
    def num_pairs(self) -> int:
        """P."""
        return len(self.indptr_P1) - 1


@dataclass(frozen=True)
class PairTfidf:
    """TF-IDF vectors of pairs over the features that some pairs have.

    Attributes:
        feature_F: numbers of the features, ascending.
        weights: the fitted inverse document frequencies.
    """

    feature_F: np.ndarray
    weights: TfidfTransformer

    @classmethod
    def fit(cls, words: PairWords) -> Self:
        """Fit inverse document frequencies over pairs; term frequencies are sublinear."""
        feature_F = distinct(words.feature_W)
        weights = TfidfTransformer(sublinear_tf=True).fit(_counts(words, feature_F))
        return cls(feature_F, weights)

    def vectors(self, words: PairWords) -> sp.csr_matrix:
        """Return vectors (P, F) of length 1; 0 for a pair without a known feature."""
        count_PF = _counts(words, self.feature_F)
        # scikit-learn refuses a matrix without rows.
        return self.weights.transform(count_PF).tocsr() if words.num_pairs else count_PF


def _counts(words: PairWords, feature_F: np.ndarray) -> sp.csr_matrix:
    """Return how often each pair has each feature (P, F); others are ignored."""
    pair_W = np.repeat(np.arange(words.num_pairs), np.diff(words.indptr_P1))
    column_W = np.searchsorted(feature_F, words.feature_W)
    is_known_W = column_W < len(feature_F)
    is_known_W[is_known_W] = feature_F[column_W[is_known_W]] == words.feature_W[is_known_W]
    entries = (np.ones(int(is_known_W.sum())), (pair_W[is_known_W], column_W[is_known_W]))
    return sp.csr_matrix(entries, shape=(words.num_pairs, len(feature_F)))


class _Document:
    """The words of a document, by position.

    Attributes:
        id_S: token ids with markers.
        is_plain_S: True for tokens outside all mentions.
        positions: positions of the opening markers of each entity's mentions that are read.
        type_E: type of each entity.
    """

    def __init__(self, reader: DocumentReader, row: int, marked: MarkedDocument) -> None:
        self.id_S = marked.id_S
        self.is_plain_S = marked.is_plain_S
        self.type_E = reader.store.types(row)
        self.num_types = len(reader.store.entity_types)
        mention_C, entity_C = reader.store.links(row)
        position_C = marked.position_M[mention_C]
        self.positions = [
            np.sort(position_C[(entity_C == entity) & (position_C != NOT_READ)])
            for entity in range(len(self.type_E))
        ]
        closing_S = np.flatnonzero(self.id_S == reader.markers.closing_id)
        self.closing_S = np.append(closing_S, len(self.id_S))

    def types(self, head_P: np.ndarray, tail_P: np.ndarray) -> np.ndarray:
        """Return one number (P,) for the types of head and tail."""
        return self.type_E[head_P].astype(np.int64) * self.num_types + self.type_E[tail_P]

    def features(self, head: int, tail: int) -> np.ndarray:
        """Return the features (W,) of a pair; entities that are not read have their type only."""
        parts = [_numbered(self.types(np.array([head]), np.array([tail])), _TYPES)]
        head_M = self.positions[head]
        tail_M = self.positions[tail]
        for position_M, role in ((head_M, _HEAD), (tail_M, _TAIL)):
            names = [np.zeros(0, np.int64), *map(self._name, position_M.tolist())]
            # Count each word of a name once, however often the entity is mentioned.
            parts.append(_numbered(np.unique(np.concatenate(names)), role))
        if len(head_M) and len(tail_M):
            distance_MM = np.abs(head_M[:, None] - tail_M)
            nearest = np.unravel_index(distance_MM.argmin(), distance_MM.shape)
            first = int(head_M[nearest[0]])
            second = int(tail_M[nearest[1]])
            parts.append(_numbered(self._plain(first - WINDOW, first + WINDOW), _AROUND_HEAD))
            parts.append(_numbered(self._plain(second - WINDOW, second + WINDOW), _AROUND_TAIL))
            if abs(first - second) <= MAX_BETWEEN:
                start, stop = sorted((first, second))
                parts.append(_numbered(self._plain(start, stop), _BETWEEN))
        return np.concatenate(parts)

    def _name(self, position: int) -> np.ndarray:
        """Return the tokens of a mention, up to the first closing marker."""
        stop = self.closing_S[np.searchsorted(self.closing_S, position)]
        return self.id_S[position + 1 : stop]

    def _plain(self, start: int, stop: int) -> np.ndarray:
        """Return the tokens outside all mentions in ``[start, stop)``."""
        window = slice(max(start, 0), stop)
        return self.id_S[window][self.is_plain_S[window]]


def _numbered(id_W: np.ndarray, role: int) -> np.ndarray:
    return id_W.astype(np.int64) * _NUM_ROLES + role
