import numpy as np
import pytest

from raybio.methods.relation_graphs.annotations.tags import chunks
from tests import word_oracles

O, B0, I0, B1, I1 = range(5)  # noqa: E741


def found_in(tags, indptr):
    return [
        tuple(row)
        for row in np.stack(
            chunks(np.array(tags, dtype=np.int64), np.array(indptr)), axis=1
        ).tolist()
    ]


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ([B0, I0, I0, O], [(0, 3, 0)]),
        ([B0, B0, I0], [(0, 1, 0), (1, 3, 0)]),
        ([B0, I1, I1], [(0, 1, 0)]),
        ([B0, I1, I0], [(0, 1, 0)]),
        ([I0, I0, B1, I1], [(2, 4, 1)]),
        ([B0, O, I0], [(0, 1, 0)]),
        ([I1], []),
        ([], []),
    ],
)
def test_by_hand(tags, expected):
    assert found_in(tags, [0, len(tags)]) == expected


def test_a_chunk_ends_with_its_sentence():
    assert found_in([B0, I0, I0, I0, B1], [0, 0, 2, 2, 5, 5]) == [(0, 2, 0), (4, 5, 1)]


@pytest.mark.parametrize("seed", range(5))
def test_chunks_equal_the_loop(seed):
    rng = np.random.default_rng(seed)
    indptr = np.append(0, np.cumsum(rng.integers(0, 9, 100)))
    tags = rng.choice(7, indptr[-1], p=[0.1, 0.1, 0.3, 0.1, 0.2, 0.1, 0.1])
    assert found_in(tags, indptr) == word_oracles.chunks(tags.tolist(), indptr.tolist())


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="want integers >= 0"):
        chunks(np.array([0, -1]), np.array([0, 2]))
    with pytest.raises(ValueError, match="want integers >= 0"):
        chunks(np.zeros(2), np.array([0, 2]))
    with pytest.raises(ValueError, match="want 0 to 2, never back"):
        chunks(np.array([0, 1]), np.array([0, 2, 1, 2]))
    with pytest.raises(ValueError, match="from 0 to 1, want 0 to 2"):
        chunks(np.array([0, 1]), np.array([0, 1]))
    with pytest.raises(ValueError, match="indptr is float64"):
        chunks(np.array([0, 1]), np.array([0.0, 2.0]))
