"""BIO tags of words, chunks of tags, and the word pairs that represent relations.

Shape letters: W words, R related pairs, S sentences, C chunks.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from raybio.core.arrays import Integers
from raybio.methods.relation_graphs.store import WordStore
from raybio.ops.segments import expand, indptr_from_lengths

OUTSIDE_TAG = 0
"""Number of the tag "O"."""


def tag_names(entity_types: Sequence[str]) -> tuple[str, ...]:
    """Return the tags by number: "O", and for each type t "B-" (1 + 2t) and "I-" (2 + 2t)."""
    return ("O", *(f"{letter}-{kind}" for kind in entity_types for letter in "BI"))


def tags_of(store: WordStore, row: int) -> np.ndarray:
    """Return the tag of each word of a sentence, int64 (W,); see ``tags_of_rows``."""
    return tags_of_rows(store, np.array([row]))


def tags_of_rows(store: WordStore, row_S: np.ndarray) -> np.ndarray:
    """Return the tag of each word of some sentences end to end, int64 (W,).

    Entities are written in the order of the file. As in the authors' preprocessing, a later entity
    overwrites an earlier one that it overlaps, whose rest may then begin with an "I-" tag.
    """
    start_E, end_E, type_E, owner_E = store.entities_of(row_S)
    pointers_S1 = indptr_from_lengths(store.indptr_N1[row_S + 1] - store.indptr_N1[row_S])
    first_E = pointers_S1[owner_E] + start_E
    word_K, entity_K = expand(first_E, end_E - start_E)
    tag_W = np.full(pointers_S1[-1], OUTSIDE_TAG, dtype=np.int64)
    # For a repeated index, numpy keeps the last value.
    tag_W[word_K] = 2 + 2 * type_E[entity_K] - (word_K == first_E[entity_K])
    return tag_W


def gold_pairs(store: WordStore, row: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (first (R,), second (R,), label (R,)), int64: the word pairs of relations.

    The first word is the last word of the tail entity, the second is the last word of the head
    entity, as in the authors' code: in ADE (drug, adverse effect). Triples are distinct, in the
    order of the file; both words may be the same.
    """
    _, end_E, _ = store.entities(row)
    head_P, tail_P, label_P = store.relations(row)
    triples = zip(
        (end_E[tail_P] - 1).tolist(), (end_E[head_P] - 1).tolist(), label_P.tolist(), strict=True
    )
    pair_R3 = np.array(list(dict.fromkeys(triples)), dtype=np.int64).reshape(-1, 3)
    return pair_R3[:, 0], pair_R3[:, 1], pair_R3[:, 2]


class Chunks(NamedTuple):
    """Chunks ``[start, end)`` of words of all sentences, and their types; ordered, disjoint."""

    start_C: NDArray[np.int64]
    end_C: NDArray[np.int64]
    type_C: NDArray[np.int64]


def chunks(tag_W: Integers, indptr_S1: Integers) -> Chunks:
    """Return the chunks of all sentences: each starts at a B and continues with I of its type.

    An I that does not follow a B or an I of its type in its sentence belongs to no chunk.

    Args:
        tag_W: 0 is O, 1 + 2t begins a chunk of type t, 2 + 2t is inside one.
        indptr_S1: where each sentence begins among the words, and where the last one ends.

    Raises:
        ValueError: if tags are not integers >= 0, or sentences do not cover them in order.
    """
    if tag_W.ndim != 1 or tag_W.dtype.kind not in "iu" or (len(tag_W) and tag_W.min() < 0):
        raise ValueError(f"tags are {tag_W.dtype} {tag_W.shape}, want integers >= 0, one a word")
    check_sentences(indptr_S1, len(tag_W))
    tag_W = tag_W.astype(np.int64)
    type_W = (tag_W - 1) >> 1  # -1 for O
    goes_on_W = (tag_W > 0) & (tag_W % 2 == 0)
    goes_on_W[1:] &= type_W[1:] == type_W[:-1]
    goes_on_W[indptr_S1[:-1][indptr_S1[:-1] < len(tag_W)]] = False
    start_C = np.flatnonzero(tag_W % 2 == 1)
    stop_X = np.append(np.flatnonzero(~goes_on_W), len(tag_W))
    return Chunks(start_C, stop_X[np.searchsorted(stop_X, start_C, side="right")], type_W[start_C])


def check_sentences(indptr_S1: Integers, num_words: int) -> None:
    """Check that sentences cover ``num_words`` words in order.

    Raises:
        ValueError: if they do not; it says what they cover.
    """
    if indptr_S1.ndim != 1 or not len(indptr_S1) or indptr_S1.dtype.kind not in "iu":
        raise ValueError(
            f"indptr is {indptr_S1.dtype} {indptr_S1.shape}, want integers, one more than sentences"
        )
    if indptr_S1[0] != 0 or indptr_S1[-1] != num_words or (indptr_S1[1:] < indptr_S1[:-1]).any():
        raise ValueError(
            f"indptr goes from {indptr_S1[0]} to {indptr_S1[-1]}, want 0 to {num_words}, never back"
        )
