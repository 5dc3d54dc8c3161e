"""Mask average, restricted candidates, and the hybrid with an encoder, against loops."""

import numpy as np
import pytest
import torch

from raybio.methods.contrastive_probe.baselines.mask_average import (
    hybrid_scores,
    mask_average_scores,
    restricted_scores,
)
from raybio.ops.retrieval import Scores, retrieve

NAMES = [(3,), (1, 4, 4), (0, 2), (2, 0), (), (5, 5)]


def log_prob(num_queries=5, vocabulary_size=6, seed=0):
    logits_QV = torch.from_numpy(
        np.random.default_rng(seed).normal(size=(num_queries, vocabulary_size))
    )
    return logits_QV.log_softmax(1).float()


def fixed(score_QC):
    return Scores(lambda first, end: score_QC[first:end].clone(), *score_QC.shape)


def test_the_score_of_a_name_is_the_mean_log_probability_of_its_pieces():
    log_prob_QV = log_prob()
    score_QC = mask_average_scores(lambda first, end: log_prob_QV[first:end], 5, NAMES, 6).block(
        1, 4
    )
    for row, query in enumerate(range(1, 4)):
        for column, pieces in enumerate(NAMES):
            values = [float(log_prob_QV[query, piece]) for piece in pieces]
            expected = sum(values) / len(values) if values else -np.inf
            assert float(score_QC[row, column]) == pytest.approx(expected, abs=1e-6)


def test_names_with_the_same_pieces_tie_and_come_in_order_of_index():
    log_prob_QV = log_prob(40)
    scores = mask_average_scores(lambda first, end: log_prob_QV[first:end], 40, NAMES, 6)
    ranks = retrieve(scores, np.arange(0, 81, 2), np.tile([2, 3], 40)).rank_P.reshape(40, 2)
    assert (ranks[:, 1] == ranks[:, 0] + 1).all()


def test_the_score_of_a_name_does_not_depend_on_its_length():
    """The authors' padded mean of logits would separate names of one piece and of many."""
    log_prob_QV = log_prob()
    scores = mask_average_scores(lambda first, end: log_prob_QV[first:end], 5, [(3,), (3,) * 20], 6)
    score_QC = scores.block(0, 5)
    torch.testing.assert_close(score_QC[:, 0], score_QC[:, 1], rtol=1e-12, atol=0)


def test_candidates_of_other_relations_come_last():
    score_QC = torch.from_numpy(np.random.default_rng(1).normal(size=(4, 6)))
    is_candidate_RC = np.array([[1, 1, 0, 0, 0, 0], [0, 0, 1, 1, 1, 1]], dtype=bool)
    relation_Q = np.array([0, 1, 1, 0])
    restricted_QC = restricted_scores(fixed(score_QC), relation_Q, is_candidate_RC).block(0, 4)
    for query in range(4):
        for candidate in range(6):
            allowed = is_candidate_RC[relation_Q[query], candidate]
            expected = float(score_QC[query, candidate]) if allowed else -np.inf
            assert float(restricted_QC[query, candidate]) == expected
    assert torch.equal(
        restricted_scores(fixed(score_QC), relation_Q, is_candidate_RC).block(2, 4),
        restricted_QC[2:],
    )


IS_SINGLE = np.array([True, False, True, True, False, True, True])


def random_scores(seed, scale=1.0):
    return torch.from_numpy(
        np.random.default_rng(seed).normal(loc=seed, scale=scale, size=(5, len(IS_SINGLE)))
    )


@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
def test_single_tokens_get_a_convex_combination_on_the_encoders_scale(weight):
    encoder_QC, mask_QC = random_scores(1), random_scores(9, scale=4.0)
    mixed_QC = hybrid_scores(fixed(encoder_QC), fixed(mask_QC), IS_SINGLE, weight).block(0, 5)
    for encoder_C, mask_C, mixed_C in zip(
        encoder_QC.numpy(), mask_QC.numpy(), mixed_QC.numpy(), strict=True
    ):
        single = encoder_C[IS_SINGLE]
        of_mask = mask_C[IS_SINGLE]
        expected_C = encoder_C.copy()
        standard = (of_mask - of_mask.mean()) / of_mask.std()
        expected_C[IS_SINGLE] = (1 - weight) * single + weight * (
            single.mean() + single.std() * standard
        )
        np.testing.assert_allclose(mixed_C, expected_C, atol=1e-12)


def test_scale_and_shift_of_the_mask_scores_do_not_matter():
    encoder_QC, mask_QC = random_scores(1), random_scores(2)
    one = hybrid_scores(fixed(encoder_QC), fixed(mask_QC), IS_SINGLE, 0.5).block(0, 5)
    other = hybrid_scores(fixed(encoder_QC), fixed(mask_QC * 50 - 7), IS_SINGLE, 0.5).block(0, 5)
    torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_constant_mask_scores_keep_multi_token_candidates_and_give_no_nan():
    encoder_QC = random_scores(1)
    mixed_QC = hybrid_scores(
        fixed(encoder_QC), fixed(torch.zeros_like(encoder_QC)), IS_SINGLE, 1.0
    ).block(0, 5)
    assert torch.equal(mixed_QC[:, ~IS_SINGLE], encoder_QC[:, ~IS_SINGLE])
    mean_Q1 = encoder_QC[:, IS_SINGLE].mean(1, keepdim=True)
    torch.testing.assert_close(mixed_QC[:, IS_SINGLE], mean_Q1.expand(-1, int(IS_SINGLE.sum())))


def test_without_single_tokens_the_scores_are_the_encoders():
    encoder_QC = random_scores(1)
    none = np.zeros(len(IS_SINGLE), dtype=bool)
    assert torch.equal(
        hybrid_scores(fixed(encoder_QC), fixed(random_scores(2)), none, 0.7).block(0, 5), encoder_QC
    )


def test_a_weight_or_scores_that_do_not_fit_are_refused():
    encoder_QC = random_scores(1)
    with pytest.raises(ValueError, match=r"weight is 1\.5"):
        hybrid_scores(fixed(encoder_QC), fixed(encoder_QC), IS_SINGLE, 1.5)
    with pytest.raises(ValueError, match="same queries and candidates"):
        hybrid_scores(fixed(encoder_QC), fixed(encoder_QC[:2]), IS_SINGLE, 0.5)
