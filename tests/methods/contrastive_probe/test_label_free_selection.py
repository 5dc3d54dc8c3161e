import numpy as np
import pytest

from raybio.methods.contrastive_probe.label_free_selection import (
    BEST,
    BEST_BY_RELATION,
    BY_AGREEMENT,
    BY_HELD_OUT,
    BY_RELATION_AGREEMENT,
    LAST_CANDIDATE,
    select_candidates,
    selected_accuracy,
)
from tests import oracles


@pytest.mark.parametrize("seed", range(5))
def test_selection_equals_the_loop_and_ties_go_to_the_earlier_candidate(seed: int) -> None:
    rng = np.random.default_rng(seed)
    accuracy, agreement = rng.integers(0, 4, (2, 6, 5)) / 4  # so coarse that there are ties
    agreement[:, 2], accuracy[:, 4] = np.nan, np.nan
    held_out = rng.integers(0, 3, 6) / 3
    found = select_candidates(accuracy, agreement, held_out, {"step 150": 2})
    overall = oracles.first_of_the_highest_means(agreement.tolist())
    expected = {
        BY_HELD_OUT: [held_out.tolist().index(held_out.max())] * 5,
        BY_AGREEMENT: [overall] * 5,
        BY_RELATION_AGREEMENT: oracles.first_of_the_highest(agreement.tolist(), otherwise=overall),
        LAST_CANDIDATE: [5] * 5,
        "step 150": [2] * 5,
        BEST: [oracles.first_of_the_highest_means(accuracy.tolist())] * 5,
    }
    expected[BEST_BY_RELATION] = oracles.first_of_the_highest(
        accuracy.tolist(), otherwise=expected[BEST][0]
    )
    assert {rule: chosen.tolist() for rule, chosen in found.items()} == expected
    assert list(found) == list(expected)
    each = [
        accuracy[place, relation]
        for relation, place in enumerate(expected[BY_RELATION_AGREEMENT])
        if relation != 4
    ]
    assert selected_accuracy(found[BY_RELATION_AGREEMENT], accuracy) == pytest.approx(sum(each) / 4)


def test_label_free_rules_ignore_gold() -> None:
    rng = np.random.default_rng(0)
    agreement, held_out = rng.random((6, 5)), rng.random(6)
    one, two = (select_candidates(rng.random((6, 5)), agreement, held_out) for _ in range(2))
    for rule in (BY_AGREEMENT, BY_RELATION_AGREEMENT, BY_HELD_OUT):
        assert one[rule].tolist() == two[rule].tolist()
    assert one[BEST_BY_RELATION].tolist() != two[BEST_BY_RELATION].tolist()


def test_missing_signals_and_undefined_agreement_have_no_rule() -> None:
    agreement = np.full((4, 2), np.nan)
    agreement[0] = 0.5
    found = select_candidates(np.random.default_rng(0).random((4, 2)), agreement)
    assert found.keys().isdisjoint({BY_HELD_OUT, BY_AGREEMENT, BY_RELATION_AGREEMENT})
    assert list(select_candidates(np.zeros((2, 1)), held_out_S=np.array([0.1, 0.2]))) == [
        BY_HELD_OUT,
        LAST_CANDIDATE,
        BEST,
        BEST_BY_RELATION,
    ]
