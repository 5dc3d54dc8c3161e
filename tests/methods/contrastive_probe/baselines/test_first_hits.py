import numpy as np

from raybio.methods.contrastive_probe.baselines.evaluate import (
    NEVER,
    first_of_ranked,
    first_of_written,
    fold,
)
from raybio.ops.retrieval import Retrieval


def test_the_first_hit_of_a_ranking_is_the_best_of_a_querys_gold():
    retrieval = Retrieval(np.array([0, 2, 2, 3]), np.array([7, 4, 0]), 10)
    assert first_of_ranked(retrieval).tolist() == [4, NEVER, 0]


def test_written_answers_are_right_letter_for_letter_or_without_case_and_outer_blanks():
    answers = [["fever", "Asthma "], ["", "x"], []]
    gold = [["asthma", "cough"], ["asthma"], ["asthma"]]
    assert first_of_written(answers, gold).tolist() == [NEVER] * 3
    assert first_of_written(answers, gold, fold).tolist() == [1, NEVER, NEVER]
