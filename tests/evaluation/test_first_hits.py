import math

import numpy as np
import pytest

from raybio.evaluation.first_hits import NEVER, FirstHits, first_of_ranked, first_of_written, fold
from raybio.functional.retrieval import Retrieval


def test_accuracies_are_shares_of_queries_by_relation_their_mean_and_all_together():
    first_Q = np.array([0, 3, NEVER, 0, 12])
    hits = FirstHits("m", "x", first_Q, np.array([0, 0, 0, 2, 2]), (1, 10))
    np.testing.assert_array_equal(hits.by_relation(1, 4), [1 / 3, math.nan, 1 / 2, math.nan])
    np.testing.assert_array_equal(hits.by_relation(10, 3), [2 / 3, math.nan, 1 / 2])
    assert hits.macro(1) == pytest.approx((1 / 3 + 1 / 2) / 2)  # relations without queries have no say
    interval = hits.micro(10, np.random.default_rng(0))
    assert interval.value == pytest.approx(3 / 5)
    assert interval.low <= interval.value <= interval.high


def test_the_first_hit_of_a_ranking_is_the_best_of_a_querys_gold():
    retrieval = Retrieval(np.array([0, 2, 2, 3]), np.array([7, 4, 0]), 10)
    assert first_of_ranked(retrieval).tolist() == [4, NEVER, 0]


def test_written_answers_are_right_letter_for_letter_or_without_case_and_outer_blanks():
    answers = [["fever", "Asthma "], ["", "x"], []]
    gold = [["asthma", "cough"], ["asthma"], ["asthma"]]
    assert first_of_written(answers, gold).tolist() == [NEVER] * 3
    assert first_of_written(answers, gold, fold).tolist() == [1, NEVER, NEVER]
