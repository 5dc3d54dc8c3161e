import numpy as np
import pytest

from raybio.methods.contrastive_probe.benchmark.hardness import (
    Overlap,
    longest_common_subsequence,
    name_overlap,
    rouge_l_f1,
)
from tests import oracles


@pytest.mark.parametrize("seed", range(30))
def test_the_longest_common_subsequence_equals_exhaustive_search(seed):
    rng = np.random.default_rng(seed)
    first, second = (
        [str(word) for word in rng.choice(list("abcd"), int(rng.integers(0, 9)))] for _ in range(2)
    )
    assert longest_common_subsequence(first, second) == oracles.longest_common_subsequence(
        first, second
    )
    assert longest_common_subsequence(second, first) == longest_common_subsequence(first, second)


def test_rouge_l_counts_words_in_order_with_gaps():
    # LCS "the cell": P = 2/4, R = 2/3.
    assert rouge_l_f1("the large T cell", "the cell line") == pytest.approx(
        2 * (1 / 2) * (2 / 3) / (1 / 2 + 2 / 3)
    )
    assert rouge_l_f1("cell the", "the cell") == pytest.approx(0.5)
    assert rouge_l_f1("a b", "a b") == 1
    assert (
        rouge_l_f1("a", "b")
        == rouge_l_f1("", "b")
        == rouge_l_f1("a", " ")
        == rouge_l_f1(".", "a", legacy=True)
        == 0
    )


def test_legacy_divides_by_distinct_words_and_splits_at_full_stops():
    assert rouge_l_f1("in in", "in a", legacy=True) == pytest.approx(2 * 1 * 0.5 / 1.5)
    assert rouge_l_f1("in in", "in a") == pytest.approx(0.5)
    assert rouge_l_f1("1.2", "2", legacy=True) == pytest.approx(2 / 3)
    assert rouge_l_f1("1.2", "2") == 0


def test_scores_are_means_over_tails_and_ignore_case():
    assert name_overlap("Dengue virus vaccine", ["dengue", "Virus vaccine", "Fever"]) == (
        pytest.approx(2 / 3),
        pytest.approx((2 * (1 / 3) / (4 / 3) + 2 * (2 / 3) / (5 / 3)) / 3),
    )
    with pytest.raises(ValueError, match="no tails"):
        name_overlap("Dengue", [])


def test_legacy_keeps_the_spaces_around_the_separator():
    # " b " and " c" as they come from "a || b || c": the head begins with neither.
    assert name_overlap("b c", ["a", "b", "c"], legacy=True).avg_match == pytest.approx(1 / 3)
    assert name_overlap("b c", ["a", "b", "c"]).avg_match == pytest.approx(2 / 3)
    assert name_overlap("b c", ["b"], legacy=True).avg_match == 1


def test_a_score_of_exactly_a_tenth_is_hard():
    assert Overlap(0.1, 0.0).is_hard
    assert Overlap(1 / 10, 0.3 / 3).is_hard
    assert not Overlap(0.0, 0.1 + 1e-6).is_hard
    assert not Overlap(0.2, 0.0).is_hard
