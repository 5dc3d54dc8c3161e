"""Expected scores equal the mean over all orders."""

from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest

from raybio.ops.chance import (
    expected_average_precision,
    expected_hit,
    expected_ndcg,
    expected_recall,
    expected_reciprocal_rank,
)

SIZES = [
    (relevant, candidates) for candidates in range(1, 8) for relevant in range(1, candidates + 1)
]


def over_all_orders(
    score: Callable[[tuple[int, ...]], float], relevant: int, candidates: int
) -> float:
    """Return the mean over all orders of a score of the ranks (from 1) of relevant candidates."""
    return float(
        np.mean([score(ranks) for ranks in combinations(range(1, candidates + 1), relevant)])
    )


def average_precision(ranks: tuple[int, ...]) -> float:
    return float(np.mean([(number + 1) / rank for number, rank in enumerate(ranks)]))


def ndcg(ranks: tuple[int, ...]) -> float:
    ideal = sum(1 / np.log2(rank + 1) for rank in range(1, len(ranks) + 1))
    return float(sum(1 / np.log2(rank + 1) for rank in ranks) / ideal)


@pytest.mark.parametrize(("relevant", "candidates"), SIZES)
def test_expectations_are_means_over_all_orders(relevant: int, candidates: int) -> None:
    def mean(score: Callable[[tuple[int, ...]], float]) -> float:
        return pytest.approx(over_all_orders(score, relevant, candidates), abs=1e-12)

    assert expected_average_precision(relevant, candidates) == mean(average_precision)
    assert expected_reciprocal_rank(relevant, candidates) == mean(lambda ranks: 1 / ranks[0])
    assert expected_ndcg(relevant, candidates) == mean(ndcg)
    for k in (1, 3, 9):
        assert expected_recall(k, candidates) == mean(
            lambda ranks, k=k: sum(r <= k for r in ranks) / len(ranks)
        )
        assert expected_hit(k, relevant, candidates) == mean(
            lambda ranks, k=k: float(ranks[0] <= k)
        )


def test_expectations_are_elementwise_and_finite_for_many_candidates() -> None:
    relevant, candidates = np.array([1, 2, 5]), np.array([1000, 10**9, 10**6])
    for expected in (expected_average_precision, expected_reciprocal_rank):
        result = expected(relevant, candidates)
        assert result.shape == (3,)
        assert ((result > 0) & (result < 0.01)).all()
    assert expected_hit(10, 0, 50) == 0
    assert expected_hit(10, np.array([1, 50]), 50) == pytest.approx([0.2, 1.0])
