"""The graph network over frozen embeddings: its arithmetic, what it learns, and what it cannot."""

import numpy as np
import pytest
import torch

from raybio.methods.sppt.evaluate import draw_link_queries
from raybio.methods.sppt.gnn_rival import gnn_rival, propagate, propagation, train_gnn
from raybio.methods.sppt.graph.csr import Graph
from raybio.methods.sppt.rivals import Rival, rank_by_rival
from raybio.training.collective import SingleProcess

NUM_NODES = 60
CIRCLES = 6
"""Communities, which features say nothing of."""


@pytest.fixture(scope="module")
def links() -> np.ndarray:
    rng = np.random.default_rng(0)
    pairs = np.array([(i, j) for i in range(NUM_NODES) for j in range(i)])
    alike = pairs[:, 0] % CIRCLES == pairs[:, 1] % CIRCLES
    return rng.permutation(pairs[alike])


def heldout_mrr(training_E2: np.ndarray, heldout_E2: np.ndarray) -> tuple[float, float]:
    """Return the mean reciprocal ranks of the network's ranking, and of a random one."""
    graph = Graph.from_edges(training_E2, NUM_NODES, np.zeros(NUM_NODES, np.int64))
    feature_ND = torch.randn(NUM_NODES, 8, generator=torch.Generator().manual_seed(1))
    queries = draw_link_queries(graph, heldout_E2, 0)
    trained = gnn_rival(feature_ND, graph, queries.node_S, SingleProcess(), seed=3)
    drawn_SS = np.random.default_rng(4).normal(size=(NUM_NODES, NUM_NODES))
    assert len(queries.node_S) == NUM_NODES
    random = Rival("random", lambda node_G: lambda anchors: drawn_SS[anchors].copy())
    trained_mrr, random_mrr = (
        float(
            rank_by_rival(
                rival, queries, block_rows=16, device=torch.device("cpu"), collective=None
            )["val"].reciprocal_rank_A.mean()
        )
        for rival in (trained, random)
    )
    return trained_mrr, random_mrr


def test_two_layers_are_the_sums_over_neighbors(links: np.ndarray) -> None:
    graph = Graph.from_edges(links[:40], NUM_NODES, np.zeros(NUM_NODES, np.int64))
    dense_NN = np.eye(NUM_NODES)
    for head, tail in links[:40].tolist():
        dense_NN[head, tail] = dense_NN[tail, head] = 1
    degree_N = dense_NN.sum(1)
    expected_NN = np.zeros_like(dense_NN)
    for head in range(NUM_NODES):
        for tail in range(NUM_NODES):
            size = np.sqrt(degree_N[head] * degree_N[tail])
            expected_NN[head, tail] = dense_NN[head, tail] / size
    weight_NN = propagation(graph)
    np.testing.assert_allclose(weight_NN.to_dense().numpy(), expected_NN, atol=1e-6)
    rng = np.random.default_rng(2)
    feature_ND, first_DH, second_HH = (
        rng.normal(size=size) for size in ((NUM_NODES, 5), (5, 7), (7, 7))
    )
    expected_NH = expected_NN @ np.maximum(expected_NN @ feature_ND @ first_DH, 0) @ second_HH
    tensors = [
        torch.from_numpy(each).float() for each in (expected_NN @ feature_ND, first_DH, second_HH)
    ]
    found_NH = propagate(tensors[0], weight_NN, *tensors[1:])
    np.testing.assert_allclose(found_NH.numpy(), expected_NH, atol=1e-4)


def test_held_out_links_are_found_and_after_shuffling_by_chance(links: np.ndarray) -> None:
    """Features are noise: only the training links say which nodes belong together."""
    num_heldout = len(links) // 5
    heldout_E2, training_E2 = links[:num_heldout], links[num_heldout:]
    trained, random = heldout_mrr(training_E2, heldout_E2)
    assert trained > 2 * random
    known = {tuple(sorted(pair)) for pair in heldout_E2.tolist()}
    others = [(i, j) for i in range(NUM_NODES) for j in range(i) if (j, i) not in known]
    differences = []
    for seed in range(3):
        drawn = np.random.default_rng(seed).permutation(np.array(others))[: len(training_E2)]
        trained, random = heldout_mrr(drawn, heldout_E2)
        differences.append(trained - random)
    assert abs(np.mean(differences)) < 0.06


def test_a_seed_gives_the_same_states(links: np.ndarray) -> None:
    graph = Graph.from_edges(links, NUM_NODES, np.zeros(NUM_NODES, np.int64))
    feature_ND = torch.randn(NUM_NODES, 8, generator=torch.Generator().manual_seed(1))
    states = [train_gnn(feature_ND, graph, seed=seed, num_steps=3) for seed in (1, 1, 2)]
    assert torch.equal(states[0], states[1])
    assert not torch.equal(states[0], states[2])
