"""Slices of one long array: row pointers, positions, and binary search in many slices at once.

Nothing loops over slices in Python, and nothing copies the array.

Shape letters: R rows or slices, Q queries, each into a slice of its own.
"""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from raybio.core.arrays import Integers

Positions = NDArray[np.int64]


Predicate = Callable[[Positions], NDArray[np.bool_]]


def bisect(first_Q: Positions, length_Q: Positions, is_before: Predicate, last: int) -> Positions:
    """Return each slice's first position at which ``is_before`` is False.

    A slice is ``[first, first + length)``.

    Args:
        first_Q: starts of the slices.
        length_Q: lengths of the slices, >= 0.
        is_before: takes one position per query and returns whether the target lies behind it: first
            True, then False along a slice. It is also called with positions of other slices, and
            with -1 for empty slices; those results are ignored.
        last: the largest position that ``is_before`` may be called with.
    """
    base_Q = first_Q.astype(np.int64)
    rest_Q = length_Q.astype(np.int64)
    longest = int(rest_Q.max(initial=0))
    if longest == 0:
        return base_Q
    while longest > 1:
        half_Q = rest_Q >> 1
        base_Q += half_Q * is_before(base_Q + half_Q - 1)
        rest_Q -= half_Q
        longest -= longest >> 1
    return base_Q + (is_before(np.minimum(base_Q, last)) & (rest_Q > 0))


def lower_bound(
    array: Integers, first_Q: Positions, length_Q: Positions, value_Q: Integers
) -> Positions:
    """Return the first position in each sorted slice of ``array`` whose entry is >= ``value``."""
    return bisect(first_Q, length_Q, lambda position_Q: array[position_Q] < value_Q, len(array) - 1)


def tiles(num_rows: int, entries_per_row: int, num_entries: int) -> Iterator[slice]:
    """Yield slices that cover all rows, each of at most ``num_entries`` entries where possible."""
    rows = max(1, num_entries // max(entries_per_row, 1))
    for start in range(0, num_rows, rows):
        yield slice(start, min(start + rows, num_rows))


def indptr_from_lengths(length_R: ArrayLike) -> Positions:
    """Return the row pointers (R + 1,) of rows with these lengths: 0, then the running sums."""
    return np.concatenate([[0], np.cumsum(length_R)]).astype(np.int64)


def positions_within(length_R: Integers) -> Positions:
    """Return the positions 0 to length - 1 of each row, end to end."""
    before_R = np.cumsum(length_R) - length_R
    return np.arange(int(length_R.sum())) - np.repeat(before_R, length_R)


def expand(first_R: Positions, length_R: Positions) -> tuple[Positions, Positions]:
    """Return all positions of slices ``[first, first + length)``, and the slice of each."""
    owner = np.repeat(np.arange(len(first_R)), length_R)
    before_R = np.cumsum(length_R) - length_R
    return np.arange(int(length_R.sum())) + (first_R - before_R)[owner], owner


def entries_of_rows(indptr_R1: Positions, row_M: Positions) -> tuple[Positions, Positions]:
    """Return the positions of all entries of rows ``row_M``, and the index in ``row_M`` of each."""
    start_M = indptr_R1[row_M].astype(np.int64)
    return expand(start_M, indptr_R1[row_M + 1] - start_M)


def take_segments(
    value_T: Integers, indptr_R1: Positions, row_M: Positions
) -> tuple[Integers, Positions]:
    """Return the values of rows ``row_M`` end to end, and their row pointers (M + 1,)."""
    entry_T, _ = entries_of_rows(indptr_R1, row_M)
    return value_T[entry_T], indptr_from_lengths(indptr_R1[row_M + 1] - indptr_R1[row_M])
