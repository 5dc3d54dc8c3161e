import os
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest

from raybio.core.randomness import derive_seed, hash_uniform, keyed_permutation


@pytest.mark.parametrize("num_rows", [1, 2, 3, 4, 5, 7, 16, 17, 100, 1000, 65_537])
def test_a_permutation_hits_every_row_once(num_rows):
    permuted = keyed_permutation(np.arange(num_rows), num_rows=num_rows, key=11)
    assert permuted.dtype == np.int64
    assert np.array_equal(np.sort(permuted), np.arange(num_rows))


def test_the_image_of_an_index_does_not_depend_on_the_other_indices():
    permutation = keyed_permutation(np.arange(1000), num_rows=1000, key=3)
    assert [
        int(keyed_permutation([i], num_rows=1000, key=3)[0]) for i in range(0, 1000, 97)
    ] == permutation[::97].tolist()
    assert (
        keyed_permutation(np.arange(6).reshape(2, 3), num_rows=1000, key=3).tolist()
        == permutation[:6].reshape(2, 3).tolist()
    )


def test_a_value_that_falls_outside_several_times_falls_inside_in_the_end():
    """Of 7 rows the cipher's range is 9: with many keys, some values fall outside twice."""
    for key in range(200):
        permuted = keyed_permutation(np.arange(7), num_rows=7, key=key)
        assert sorted(permuted.tolist()) == list(range(7))


def test_over_many_keys_every_position_is_equally_likely():
    num_rows, num_keys = 12, 6000
    count = np.zeros((num_rows, num_rows))
    for key in range(num_keys):
        count[
            np.arange(num_rows), keyed_permutation(np.arange(num_rows), num_rows=num_rows, key=key)
        ] += 1
    expected = num_keys / num_rows
    # 121 degrees of freedom: mean 121, standard deviation 15.6.
    assert ((count - expected) ** 2 / expected).sum() < 121 + 6 * 15.6


def test_adjacent_indices_and_adjacent_keys_are_uncorrelated():
    num_rows = 1 << 20
    first = keyed_permutation(np.arange(20_000), num_rows=num_rows, key=1)
    second = keyed_permutation(np.arange(20_000), num_rows=num_rows, key=2)
    for series in (np.diff(first), first - second):
        assert abs(np.abs(series).mean() / num_rows - 1 / 3) < 0.01
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.03
    assert abs(np.corrcoef(first[:-1], first[1:])[0, 1]) < 0.03


def test_the_largest_ranges_work():
    num_rows = 2**62 - 1
    permuted = keyed_permutation(np.array([0, 1, num_rows - 1]), num_rows=num_rows, key=2**70)
    assert len(set(permuted.tolist())) == 3
    assert permuted.min() >= 0
    assert permuted.max() < num_rows


@pytest.mark.parametrize(("index", "num_rows"), [([-1], 5), ([5], 5), ([0], 0)])
def test_an_index_out_of_range_is_refused(index, num_rows):
    with pytest.raises(ValueError, match="want"):
        keyed_permutation(index, num_rows=num_rows, key=0)


def test_no_index_gives_no_row():
    assert keyed_permutation(np.zeros(0, dtype=np.int64), num_rows=5, key=0).tolist() == []


def test_uniforms_equal_a_loop_over_scalars():
    def mix(word):
        word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) % 2**64
        return word ^ (word >> 31)

    def uniform(key, *counters):
        state = mix(key % 2**64)
        for counter in counters:
            state = mix(((state + 0x9E3779B97F4A7C15) % 2**64) ^ (counter % 2**64))
        return (state >> 11) * 2.0**-53

    row, column = np.arange(-3, 4)[:, None], np.arange(5)[None, :]
    drawn = hash_uniform(99, row, 7, column)
    assert drawn.shape == (7, 5)
    assert drawn.tolist() == [[uniform(99, r, 7, c) for c in range(5)] for r in range(-3, 4)]


def test_uniforms_are_uniform_and_uncorrelated_along_each_counter():
    drawn = hash_uniform(5, np.arange(1000)[:, None], np.arange(1000)[None, :])
    assert drawn.min() >= 0
    assert drawn.max() < 1
    count, _ = np.histogram(drawn, bins=100, range=(0, 1))
    assert ((count - 10_000) ** 2 / 10_000).sum() < 99 + 6 * 14.1
    for left, right in [(drawn[1:], drawn[:-1]), (drawn[:, 1:], drawn[:, :-1]), (drawn, drawn.T)]:
        assert abs(np.corrcoef(left.ravel(), right.ravel())[0, 1]) < 0.005


def test_key_counters_and_their_order_all_matter():
    draws = [
        hash_uniform(*arguments).item()
        for arguments in [(1, 2), (2, 1), (1, 2, 0), (1, 0, 2), (1,), (2,)]
    ]
    assert len(set(draws)) == len(draws)
    with pytest.raises(TypeError, match="integers"):
        hash_uniform(1, np.array([0.5]))


def test_seeds_depend_on_every_part_and_its_type():
    seeds = [
        derive_seed(*parts)
        for parts in [("a", "b"), ("ab",), ("a", "b", ""), (1,), ("1",), (1, 2), (12,), ()]
    ]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert derive_seed(np.int64(5)) == derive_seed(5)
    with pytest.raises(TypeError, match="an int or a str"):
        derive_seed(0.5)


def test_nothing_depends_on_the_hash_seed_of_python():
    script = (
        "from raybio.core.randomness import *; import numpy as np;"
        "print(derive_seed('mask', 3), hash_uniform(7, np.arange(3)), "
        "keyed_permutation([0, 1], num_rows=9, key=4))"
    )
    printed = [
        subprocess.run(
            [sys.executable, "-c", script],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("0", "1")
    ]
    assert all(first == second for first, second in pairwise(printed))
    assert (
        derive_seed("mask", 3) == 8181994690296458752
    )  # frozen: a change would break every resume
