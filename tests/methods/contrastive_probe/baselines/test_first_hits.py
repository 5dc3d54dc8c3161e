import numpy as np

from raybio.methods.contrastive_probe.baselines.first_hits import (
    NO_HIT,
    first_hits_of_ranked,
    first_hits_of_texts,
    fold,
)
from raybio.ops.retrieval import Retrieval


def test_the_first_hit_of_a_ranking_is_the_best_of_a_querys_gold():
    retrieval = Retrieval(np.array([0, 2, 2, 3]), np.array([7, 4, 0]), 10)
    assert first_hits_of_ranked(retrieval).tolist() == [4, NO_HIT, 0]


def test_generated_answers_are_compared_letter_for_letter_or_without_case_and_outer_spaces():
    answers = [["fever", "Asthma "], ["", "x"], []]
    gold = [["asthma", "cough"], ["asthma"], ["asthma"]]
    assert first_hits_of_texts(answers, gold).tolist() == [NO_HIT] * 3
    assert first_hits_of_texts(answers, gold, fold).tolist() == [1, NO_HIT, NO_HIT]
