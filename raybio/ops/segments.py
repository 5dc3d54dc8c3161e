"""Binary search in many sorted rows at once.

Q queries, each into its own slice of one long array; no Python per query, no copy of the array.

Array types that the graph modules share.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Positions = NDArray[np.int64]


Predicate = Callable[[Positions], NDArray[np.bool_]]


def bisect(first_Q: Positions, length_Q: Positions, is_before: Predicate, last: int) -> Positions:
    """In each slice ``[first, first + length)``, the first position at which ``is_before`` no longer holds.

    Args:
        first_Q: starts of the slices.
        length_Q: their lengths, >= 0.
        is_before: for one position a query, whether what is sought lies behind it: True, then False, along a slice.
            It is also called, in vain, with positions of other slices, and with -1 where slices are empty.
        last: the largest position that ``is_before`` may be called with.
    """
    base_Q, rest_Q = first_Q.astype(np.int64), length_Q.astype(np.int64)
    longest = int(rest_Q.max(initial=0))
    if longest == 0:
        return base_Q
    while longest > 1:
        half_Q = rest_Q >> 1
        base_Q += half_Q * is_before(base_Q + half_Q - 1)
        rest_Q -= half_Q
        longest -= longest >> 1
    return base_Q + (is_before(np.minimum(base_Q, last)) & (rest_Q > 0))


Integers = NDArray[np.integer[Any]]


def lower_bound(
    array: Integers, first_Q: Positions, length_Q: Positions, value_Q: Integers
) -> Positions:
    """In each sorted slice ``array[first : first + length]``, the first position whose entry is >= ``value``."""
    return bisect(first_Q, length_Q, lambda position_Q: array[position_Q] < value_Q, len(array) - 1)


def indptr_from_lengths(length_R: ArrayLike) -> Positions:
    """Return the row pointers (R + 1,) of rows with these lengths: 0 and the running sums, int64."""
    return np.concatenate([[0], np.cumsum(length_R)]).astype(np.int64)


def expand(first_R: Positions, length_R: Positions) -> tuple[Positions, Positions]:
    """All positions of the slices ``[first, first + length)`` end to end, and the number of the slice of each."""
    owner = np.repeat(np.arange(len(first_R)), length_R)
    before_R = np.cumsum(length_R) - length_R
    return np.arange(int(length_R.sum())) + (first_R - before_R)[owner], owner
