"""The losses of relation-aware embeddings against their printed form."""

import numpy as np
import pytest
import torch

from raybio.methods.relation_graphs.loss import pairwise_cosine, same_tag_loss, true_graph_loss
from raybio.ops.grouped import grouped_logsumexp, grouped_mean
from tests import graph_oracles


def test_the_true_graph_is_the_first_of_each_anchor():
    similarity_G = torch.tensor([0.9, -0.2, 0.3, 0.1, 0.8, 0.5], dtype=torch.float64)
    anchor_G = torch.tensor([0, 0, 0, 1, 1, 2])
    loss_A = true_graph_loss(similarity_G, anchor_G, 3, temperature=0.1)
    expected = [
        graph_oracles.softmax_loss(part, 0.1) for part in ([0.9, -0.2, 0.3], [0.1, 0.8], [0.5])
    ]
    torch.testing.assert_close(loss_A, torch.tensor(expected, dtype=torch.float64))
    assert loss_A[2] == 0  # without a false graph nothing is to be told apart


def test_further_false_graphs_stand_in_the_denominator_alone():
    similarity_G, anchor_G = torch.tensor([0.9, -0.2, 0.4]).double(), torch.tensor([0, 0, 1])
    more_AN = torch.tensor([[0.5, -torch.inf], [-torch.inf, 0.2]]).double()
    loss_A = true_graph_loss(similarity_G, anchor_G, 2, temperature=0.2, more_AN=more_AN)
    expected = [
        graph_oracles.softmax_loss([0.9, -0.2, 0.5], 0.2),
        graph_oracles.softmax_loss([0.4, 0.2], 0.2),
    ]
    torch.testing.assert_close(loss_A, torch.tensor(expected).double())


def test_no_anchor_has_no_loss():
    assert true_graph_loss(
        torch.zeros(0), torch.zeros(0, dtype=torch.long), 0, temperature=0.1
    ).shape == (0,)


@pytest.mark.parametrize("seed", range(3))
def test_samples_of_the_words_own_tag_are_drawn_near(seed):
    rng = np.random.default_rng(seed)
    words, others = rng.normal(size=(7, 5)), rng.normal(size=(11, 5))
    tags = np.array([0, 1, 2, -1, 1, 0, 3])
    samples, sample_tags = rng.integers(-1, 11, (7, 6)), rng.integers(0, 3, (7, 6))
    sample_tags[samples < 0] = -1
    loss_W, is_anchor_W = same_tag_loss(
        *(torch.from_numpy(one) for one in (words, tags, others, samples, sample_tags)),
        temperature=0.1,
    )
    expected = graph_oracles.same_tag_losses(words, tags, others, samples, sample_tags, 0.1)
    assert is_anchor_W.tolist() == [one is not None for one in expected]
    torch.testing.assert_close(loss_W, torch.tensor([one or 0.0 for one in expected]).double())
    assert not is_anchor_W[3] and not is_anchor_W[6]  # no word; no sample of its tag


def test_words_without_a_positive_give_no_gradient_and_no_nan():
    word_WD = torch.randn(2, 4, requires_grad=True)
    nobody = torch.full((2, 3), -1)
    loss_W, is_anchor_W = same_tag_loss(
        word_WD, torch.tensor([1, -1]), word_WD, nobody, nobody, temperature=0.1
    )
    loss_W.sum().backward()
    assert not is_anchor_W.any()
    assert torch.equal(word_WD.grad, torch.zeros(2, 4))


def test_cosine_of_pairs_and_of_a_zero_vector():
    one, other = torch.tensor([[3.0, 4.0], [0.0, 0.0]]), torch.tensor([[4.0, 3.0], [1.0, 0.0]])
    torch.testing.assert_close(pairwise_cosine(one, other), torch.tensor([0.96, 0.0]))


def test_groups_need_not_stand_together_and_may_be_empty():
    value_CD, group_C = torch.tensor([[1.0, 5.0], [2.0, 7.0], [3.0, 9.0]]), torch.tensor([2, 0, 2])
    torch.testing.assert_close(
        grouped_mean(value_CD, group_C, 3), torch.tensor([[2.0, 7.0], [0.0, 0.0], [2.0, 7.0]])
    )
    found = grouped_logsumexp(value_CD, group_C, 3)
    torch.testing.assert_close(found[2], torch.logsumexp(value_CD[[0, 2]], 0))
    torch.testing.assert_close(found[:2], torch.tensor([[2.0, 7.0], [0.0, 0.0]]))
