"""Stateless randomness: permutations, uniforms and seeds as functions of a key and of counters.

A generator must be consumed in order, so its draws depend on all other draws and on the number of
workers. A hash of (key, counters) does not: any worker computes any draw, in any order, on any
machine, without state.
"""

import hashlib
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)

_FACTORS = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB

_MASK = 2**64 - 1

_NUM_ROUNDS = 6


def hash_uniform(key: int, *counters: ArrayLike) -> NDArray[np.float64]:
    """Return uniforms in [0, 1), one for each element of the broadcast integer ``counters``.

    Equal keys and counters give equal draws; the order of the counters matters. A draw has 53
    random bits.

    Raises:
        TypeError: for counters that are not integers.
    """
    return (_hash(key, *counters) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def keyed_permutation(index_N: ArrayLike, *, num_rows: int, key: int) -> NDArray[np.int64]:
    """Return the images of indices under the permutation of ``range(num_rows)`` chosen by ``key``.

    It takes O(1) memory: a generalized Feistel network on Z_a x Z_b with a * b just above
    ``num_rows`` (Black and Rogaway, 2002, "Ciphers with arbitrary finite domains"). Values outside
    the range are encrypted again until they fall inside (cycle walking), which makes it a bijection
    of the range.

    Args:
        index_N: indices in [0, num_rows), any shape.
        num_rows: size of the range, >= 1 and < 2**62.
        key: chooses the permutation.

    Raises:
        ValueError: for an index out of range.
        TypeError: for indices that are not integers.
    """
    index = np.asarray(index_N)
    if num_rows < 1 or num_rows >= 2**62:
        raise ValueError(f"num_rows is {num_rows}, want 1 <= num_rows < 2**62")
    if index.dtype.kind not in "iu" and index.size:
        raise TypeError(f"index_N has dtype {index.dtype}, want integers")
    if index.size and (int(index.min()) < 0 or int(index.max()) >= num_rows):
        raise ValueError(f"index_N spans [{index.min()}, {index.max()}], want [0, {num_rows})")
    left_size = int(np.sqrt(num_rows))
    while left_size * left_size < num_rows:
        left_size += 1
    right_size = -(-num_rows // left_size)
    flat = _feistel(index.astype(np.uint64).ravel(), left_size, right_size, key)
    outside = np.flatnonzero(flat >= num_rows)
    while len(outside):
        walked = _feistel(flat[outside], left_size, right_size, key)
        flat[outside] = walked
        outside = outside[walked >= num_rows]
    return flat.astype(np.int64).reshape(index.shape)


def shuffled_epochs(
    first: int, num: int, *, num_rows: int, seed: int, name: str
) -> NDArray[np.int64]:
    """Return items ``first`` to ``first + num - 1`` of an endless stream of shuffled epochs.

    Each epoch is a permutation of all rows, so it holds each row exactly once. Every batch cut from
    the stream is full, even if the batch size does not divide the epoch.

    Args:
        first: position in the stream.
        num: number of items.
        num_rows: rows of an epoch.
        seed: the run's seed.
        name: name of the stream, so that two streams of one run differ.
    """
    position = np.arange(first, first + num, dtype=np.int64)
    epoch, offset = np.divmod(position, num_rows)
    drawn = np.empty(num, dtype=np.int64)
    for number in np.unique(epoch).tolist():
        here = epoch == number
        drawn[here] = keyed_permutation(
            offset[here], num_rows=num_rows, key=derive_seed(seed, name, number)
        )
    return drawn


def derive_seed(*parts: int | str) -> int:
    """Return a seed in [0, 2**63) that depends on ``parts`` alone, not on PYTHONHASHSEED.

    Raises:
        TypeError: for a part that is neither an int nor a str.
    """
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        if isinstance(part, bool) or not isinstance(part, int | np.integer | str):
            raise TypeError(f"a part of a seed is {part!r}, want an int or a str")
        text = ("s" if isinstance(part, str) else "i") + str(part)
        digest.update(f"{len(text.encode())}:{text}".encode())
    return int.from_bytes(digest.digest(), "little") >> 1


def _feistel(
    flat: NDArray[np.uint64], left_size: int, right_size: int, key: int
) -> NDArray[np.uint64]:
    left, right = np.divmod(flat, np.uint64(right_size))
    for number in range(_NUM_ROUNDS):
        if number % 2 == 0:
            left = (left + _hash(key, number, right) % np.uint64(left_size)) % np.uint64(left_size)
        else:
            right = (right + _hash(key, number, left) % np.uint64(right_size)) % np.uint64(
                right_size
            )
    return left * np.uint64(right_size) + right


def _hash(key: int, *counters: ArrayLike) -> NDArray[np.uint64]:
    word = _mix_int(key & _MASK)
    first = 0
    # Leading plain numbers are hashed in Python: numpy takes a hundred times as long for each.
    while first < len(counters) and isinstance(counters[first], int):
        counter = int(counters[first]) & _MASK  # type: ignore[arg-type]
        word = _mix_int(((word + int(_GOLDEN)) & _MASK) ^ counter)
        first += 1
    state: NDArray[np.uint64] = np.asarray([word], dtype=np.uint64)
    for array in counters[first:]:
        state = _mix((state + _GOLDEN) ^ _as_words(array))
    return state.reshape(np.broadcast_shapes(*(np.shape(counter) for counter in counters)))


def _as_words(counter: Any) -> NDArray[np.uint64]:
    array = np.asarray(counter)
    if array.dtype.kind not in "iub" and array.size:
        raise TypeError(f"a counter has dtype {array.dtype}, want integers")
    return np.atleast_1d(array).astype(np.uint64)


def _mix(word: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply the finalizer of splitmix64 (Steele et al., 2014), a bijection that mixes all bits."""
    word = (word ^ (word >> np.uint64(30))) * np.uint64(_FACTORS[0])
    word = (word ^ (word >> np.uint64(27))) * np.uint64(_FACTORS[1])
    return word ^ (word >> np.uint64(31))


def _mix_int(word: int) -> int:
    """Apply ``_mix`` to one number."""
    word = ((word ^ (word >> 30)) * _FACTORS[0]) & _MASK
    word = ((word ^ (word >> 27)) * _FACTORS[1]) & _MASK
    return word ^ (word >> 31)
