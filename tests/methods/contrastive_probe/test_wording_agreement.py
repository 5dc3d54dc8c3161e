import numpy as np
import pytest

from raybio.methods.contrastive_probe.wording_agreement import agreement_beyond_heads
from tests import oracles


def predictions(
    seed: int, num_queries: int, num_names: int = 25, num_predicted: int = 10
) -> np.ndarray:
    """Distinct names a query, some queries with fewer than they might have."""
    rng = np.random.default_rng(seed)
    names = np.array([rng.permutation(num_names)[:num_predicted] for _ in range(num_queries)])
    names[:: num_queries // 3, -3:] = -1
    return names


def none_near(num_queries: int) -> np.ndarray:
    return np.empty((num_queries, 0), dtype=int)


def test_agreement_equals_the_loop_over_pairs_of_queries() -> None:
    relation = np.random.default_rng(0).integers(0, 3, 60)
    first, second = predictions(1, 60), predictions(2, 60)
    second[:30] = np.where(np.random.default_rng(3).random((30, 10)) < 0.5, first[:30], -1)
    near = predictions(4, 60, num_predicted=5)
    found = agreement_beyond_heads(relation, first, second, near, np.ones(4, dtype=bool))
    given = first.tolist(), second.tolist(), near.tolist()
    expected = [oracles.agreement(np.flatnonzero(relation == r).tolist(), *given) for r in range(3)]
    assert found[:3].tolist() == pytest.approx(expected)
    assert np.isnan(found[3])


def test_the_order_of_queries_and_of_names_does_not_matter() -> None:
    relation = np.repeat([0, 1], 15)
    first, second = predictions(1, 30, num_names=12), predictions(2, 30, num_names=12)
    near, both = predictions(3, 30, num_names=12, num_predicted=3), np.ones(2, dtype=bool)
    expected = agreement_beyond_heads(relation, first, second, near, both)
    order = np.random.default_rng(0).permutation(30)
    shuffled = agreement_beyond_heads(
        relation[order], first[order][:, ::-1], second[order], near[order], both
    )
    assert shuffled.tolist() == pytest.approx(expected.tolist())


def test_equal_predictions_for_all_queries_give_zero_agreement() -> None:
    """Its plain agreement is 1, which would choose a collapsed encoder before any other."""
    same = np.tile(np.arange(10), (20, 1))
    relation = np.zeros(20, dtype=int)
    assert agreement_beyond_heads(
        relation, same, same, none_near(20), np.ones(1, dtype=bool)
    ).tolist() == [0]
    own = np.arange(200).reshape(20, 10)
    assert agreement_beyond_heads(
        relation, own, own, none_near(20), np.ones(1, dtype=bool)
    ).tolist() == [1]


def test_predictions_that_depend_on_the_head_only_give_zero_agreement() -> None:
    """Plain agreement is 1 too: any wording of a query brings the names near its head."""
    own = np.arange(200).reshape(20, 10)
    relation, one = np.zeros(20, dtype=int), np.ones(1, dtype=bool)
    assert agreement_beyond_heads(relation, own, own, own, one).tolist() == [0]
    assert agreement_beyond_heads(relation, own, own, own[:, :4], one).tolist() == [
        pytest.approx(0.6)
    ]


def test_equal_wordings_and_a_single_query_give_nan() -> None:
    names = np.arange(30).reshape(3, 10)
    found = agreement_beyond_heads(
        np.array([0, 1, 1]), names, names, none_near(3), np.array([True, False])
    )
    assert found.tolist() == pytest.approx([1, np.nan], nan_ok=True)
    assert np.isnan(
        agreement_beyond_heads(
            np.array([0]), names[:1], names[:1], none_near(1), np.ones(1, dtype=bool)
        )
    ).all()
