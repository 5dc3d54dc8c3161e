"""Entities as runs of BIO tags (facts §6.2). W words, S sentences, C chunks."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.integer[Any]]


class Chunks(NamedTuple):
    """Words ``[start, end)`` of all sentences end to end, and their types, in order of words; none overlap."""

    start_C: NDArray[np.int64]
    end_C: NDArray[np.int64]
    type_C: NDArray[np.int64]


def chunks(tag_W: Integers, indptr_S1: Integers) -> Chunks:
    """The chunks of all sentences: each starts at a B and goes on while tags are I of its type.

    An I that does not follow a B or an I of its type, in its sentence, belongs to nothing.

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
    """Refuse sentences that do not cover ``num_words`` words in order.

    Raises:
        ValueError: saying what they cover.
    """
    if indptr_S1.ndim != 1 or not len(indptr_S1) or indptr_S1.dtype.kind not in "iu":
        raise ValueError(f"indptr is {indptr_S1.dtype} {indptr_S1.shape}, want integers, one more than sentences")
    if indptr_S1[0] != 0 or indptr_S1[-1] != num_words or (indptr_S1[1:] < indptr_S1[:-1]).any():
        raise ValueError(f"indptr goes from {indptr_S1[0]} to {indptr_S1[-1]}, want 0 to {num_words}, never back")
