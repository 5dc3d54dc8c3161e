"""Graph convolutions against the matrix products of the paper."""

import numpy as np
import torch

from raybio.encoders.transformer import seeded_weights
from raybio.methods.relation_graphs.encoders.graph_encoder import GraphEncoder
from tests import graph_oracles


def convolved(encoder, feature_ND, head, tail):
    return encoder(feature_ND, torch.tensor(head), torch.tensor(tail)).detach().numpy()


def expected(encoder, feature_ND, adjacency_NN):
    weight_DD = graph_oracles.as_array(encoder.convolution.lin.weight).T
    bias_D = graph_oracles.as_array(encoder.convolution.bias)
    return graph_oracles.graph_convolution(
        feature_ND.double().numpy(), adjacency_NN, weight_DD, bias_D
    )


def built(**settings):
    with seeded_weights(3):
        encoder = GraphEncoder(3, **settings)
        torch.nn.init.normal_(encoder.convolution.bias)
    return encoder


def test_two_nodes_share_their_states_by_lambda():
    encoder, feature_ND = built(self_loop=0.8, activation="relu"), torch.randn(4, 3)
    found = convolved(encoder, feature_ND, [0, 1, 2, 3], [1, 0, 3, 2])
    adjacency = np.kron(np.eye(2), [[0.8, 0.2], [0.2, 0.8]])
    np.testing.assert_allclose(
        found, np.maximum(expected(encoder, feature_ND, adjacency), 0), atol=1e-6
    )


def test_both_nodes_may_be_one_word():
    encoder, feature_ND = built(self_loop=0.8, activation="relu"), torch.randn(1, 3).repeat(2, 1)
    found = convolved(encoder, feature_ND, [0, 1], [1, 0])
    np.testing.assert_allclose(
        found, np.maximum(expected(encoder, feature_ND, np.eye(2)), 0), atol=1e-6
    )


def test_subgraphs_are_normalized_on_both_sides():
    encoder, feature_ND = built(self_loop=None, activation="tanh"), torch.randn(5, 3)
    edges = [(0, 1), (1, 2), (0, 3)]
    both = [*edges, *((other, one) for one, other in edges)]
    found = convolved(encoder, feature_ND, [one for one, _ in both], [other for _, other in both])
    adjacency = graph_oracles.symmetric_adjacency(5, edges)
    np.testing.assert_allclose(found, np.tanh(expected(encoder, feature_ND, adjacency)), atol=1e-6)


def test_weights_are_kaiming_normal_and_biases_zero():
    with seeded_weights(0):
        encoder = GraphEncoder(256, self_loop=0.8, activation="relu")
    assert torch.equal(encoder.convolution.bias, torch.zeros(256))
    assert abs(encoder.convolution.lin.weight.std().item() - (2 / 256) ** 0.5) < 1e-3


def test_no_nodes_are_no_states():
    assert built(self_loop=0.8, activation="relu")(
        torch.zeros(0, 3), *(2 * [torch.zeros(0).long()])
    ).shape == (0, 3)
