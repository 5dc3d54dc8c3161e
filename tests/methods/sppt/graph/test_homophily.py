"""Homophily against loops, and the paper's theorems on graphs and embeddings."""

import itertools
from collections import Counter

import numpy as np
import pytest
from scipy.optimize import approx_fprime, linprog, minimize
from scipy.special import logsumexp, softmax

from raybio.methods.sppt.graph.csr import Graph
from raybio.methods.sppt.graph.homophily import (
    edge_homophily,
    homophily,
    neighbor_mean,
    neighbor_vote,
)


def random_graph(seed: int, num_nodes: int = 30, share: float = 0.12) -> Graph:
    rng = np.random.default_rng(seed)
    pairs = np.array(list(itertools.combinations(range(num_nodes), 2)))
    return Graph.from_edges(pairs[rng.random(len(pairs)) < share], num_nodes)


def all_links(graph: Graph) -> np.ndarray:
    """Which nodes are linked, bool (N, N)."""
    nodes = np.arange(graph.num_nodes)
    return graph.has_edge(nodes[:, None], nodes)


def neighbors(graph: Graph, node: int) -> list[int]:
    return graph.indices[graph.indptr[node] : graph.indptr[node + 1]].tolist()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("num_classes", [1, 2, 5])
def test_votes_are_those_of_a_loop(seed, num_classes):
    graph, rng = random_graph(seed), np.random.default_rng(seed)
    label_N = rng.integers(-1, num_classes, graph.num_nodes)
    value_N = np.where(rng.random(graph.num_nodes) < 0.3, np.nan, rng.normal(size=graph.num_nodes))
    chances, means, equal = [], [], []
    for node in range(graph.num_nodes):
        votes = Counter(label_N[other] for other in neighbors(graph, node) if label_N[other] >= 0)
        most = [label for label, count in votes.items() if count == max(votes.values())]
        chances.append(
            (label_N[node] in most) / len(most) if votes and label_N[node] >= 0 else np.nan
        )
        values = [
            value_N[other] for other in neighbors(graph, node) if not np.isnan(value_N[other])
        ]
        means.append(np.mean(values) if values else np.nan)
        equal += [
            label_N[node] == label_N[other]
            for other in neighbors(graph, node)
            if node < other and label_N[node] >= 0 and label_N[other] >= 0
        ]
    np.testing.assert_allclose(neighbor_vote(graph, label_N), chances)
    np.testing.assert_allclose(neighbor_mean(graph, value_N), means)
    assert homophily(graph, label_N) == pytest.approx(np.nanmean(chances))
    assert edge_homophily(graph, label_N) == pytest.approx(np.mean(equal))


def test_names_of_nodes_and_of_labels_do_not_matter():
    graph, rng = random_graph(3), np.random.default_rng(0)
    label_N = rng.integers(-1, 4, graph.num_nodes)
    place_N = rng.permutation(graph.num_nodes)
    edges = [
        (place_N[node], place_N[other])
        for node in range(graph.num_nodes)
        for other in neighbors(graph, node)
    ]
    renamed = np.array([2, 0, 3, 1, -1])[label_N]
    moved = np.empty_like(label_N)
    moved[place_N] = renamed
    again = neighbor_vote(Graph.from_edges(edges, graph.num_nodes), moved)
    np.testing.assert_allclose(again[place_N], neighbor_vote(graph, label_N))


def test_nothing_to_say_is_not_a_number():
    graph = Graph.from_edges([(0, 1)], 3)
    assert np.isnan(homophily(graph, np.array([-1, 2, 0]))) and np.isnan(
        edge_homophily(graph, np.array([-1, 2, 0]))
    )
    assert np.isnan(neighbor_mean(graph, np.array([np.nan, 1.0, 2.0]))).tolist() == [
        False,
        True,
        True,
    ]
    for wrong in (np.zeros(2, dtype=int), np.zeros(3), np.zeros((3, 1), dtype=int)):
        with pytest.raises(ValueError, match=r"want integers, one a node: \(3,\)"):
            homophily(graph, wrong)
    with pytest.raises(ValueError, match="values have shape"):
        neighbor_mean(graph, np.zeros(2))


def margin(position_ND: np.ndarray, graph: Graph) -> float:
    """Shortest unlinked distance minus longest linked distance: > 0 for an optimal embedding."""
    distance_NN = np.linalg.norm(position_ND[:, None] - position_ND[None], axis=2)
    linked_NN = all_links(graph)
    others_NN = ~linked_NN & ~np.eye(graph.num_nodes, dtype=bool)
    return float(distance_NN[others_NN].min() - distance_NN[linked_NN].max())


def in_one_less_dimension_than_nodes(graph: Graph) -> np.ndarray:
    """Points with two distances, the shorter between linked nodes: Gram matrix c I + A / 2."""
    linked_NN = all_links(graph).astype(float)
    gram_NN = graph.num_nodes * np.eye(graph.num_nodes) + linked_NN / 2
    center_NN = np.eye(graph.num_nodes) - 1 / graph.num_nodes
    values, vectors = np.linalg.eigh(center_NN @ gram_NN @ center_NN)
    return vectors[:, 1:] * np.sqrt(values[1:])


@pytest.mark.parametrize("width", [1, 2, 5])
def test_cliques_are_embedded_optimally_in_any_dimension(width):
    clique_N = np.repeat(np.arange(4), [3, 5, 2, 4])
    edges = [
        pair
        for pair in itertools.combinations(range(14), 2)
        if clique_N[pair[0]] == clique_N[pair[1]]
    ]
    position_ND = np.repeat(np.eye(1, width), 14, axis=0) * clique_N[:, None]
    assert margin(position_ND, Graph.from_edges(edges, 14)) > 0


@pytest.mark.parametrize("seed", range(5))
def test_every_graph_has_an_optimal_embedding_in_one_dimension_less_than_nodes(
    seed,
):
    graph = random_graph(seed, num_nodes=18, share=0.25)
    position_ND = in_one_less_dimension_than_nodes(graph)
    assert position_ND.shape[1] == 17
    assert margin(position_ND, graph) > 1e-6
    distance_NN = np.linalg.norm(position_ND[:, None] - position_ND[None], axis=2)
    linked_NN = all_links(graph)
    radius = (
        distance_NN[linked_NN].max() + distance_NN[~linked_NN & ~np.eye(18, dtype=bool)].min()
    ) / 2
    label_N = np.random.default_rng(seed).integers(0, 3, 18)
    found = []
    for node in range(18):
        votes = Counter(
            label_N[other]
            for other in range(18)
            if other != node and distance_NN[node, other] < radius
        )
        most = [label for label, count in votes.items() if count == max(votes.values())]
        if votes:
            found.append((label_N[node] in most) / len(most))
    assert np.mean(found) == pytest.approx(homophily(graph, label_N))


def best_margin_on_a_line(graph: Graph) -> float:
    """The best margin of points whose linked pairs are at most 1 apart, by linear programs."""
    found = []
    for order in itertools.permutations(range(graph.num_nodes)):
        rows, bounds = [], []
        for first, second in itertools.combinations(range(graph.num_nodes), 2):
            row = np.zeros(graph.num_nodes + 1)  # the points in order, and the margin
            row[[first, second]] = -1, 1
            if second == first + 1:
                rows, bounds = [*rows, -row], [*bounds, 0]
            if graph.has_edge(order[first], order[second]):
                rows, bounds = [*rows, row], [*bounds, 1]
            else:
                rows, bounds = (
                    [*rows, -row + np.eye(1, graph.num_nodes + 1, graph.num_nodes)[0]],
                    [*bounds, -1],
                )
        goal = -np.eye(1, graph.num_nodes + 1, graph.num_nodes)[0]
        limits = [(-10, 10)] * graph.num_nodes + [(-10, 10)]
        solved = linprog(goal, A_ub=np.array(rows), b_ub=bounds, bounds=limits)
        found.append(-solved.fun)
    return max(found)


def test_on_a_line_paths_have_an_optimal_embedding_and_k_2_2_has_none():
    path = Graph.from_edges([(0, 1), (1, 2), (2, 3)], 4)
    square = Graph.from_edges([(0, 2), (0, 3), (1, 2), (1, 3)], 4)  # K_{2,2}
    assert best_margin_on_a_line(path) > 0.5
    assert best_margin_on_a_line(square) <= 1e-9


class BipartiteDistances:
    """Distances between the nodes of K_{N,N}, and a smooth goal that an optimal embedding has."""

    def __init__(self, num_nodes: int, width: int) -> None:
        self.width = width
        nodes = range(2 * num_nodes)
        pairs = np.array(list(itertools.combinations(nodes, 2)))
        self.is_linked_P = (pairs[:, 0] < num_nodes) & (pairs[:, 1] >= num_nodes)
        self.first_P, self.second_P = pairs.T

    def __call__(self, flat: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the distances of linked and of unlinked nodes."""
        distance_P = np.linalg.norm(self.offset_PD(flat), axis=1)
        return distance_P[self.is_linked_P], distance_P[~self.is_linked_P]

    def offset_PD(self, flat: np.ndarray) -> np.ndarray:
        position_ND = flat.reshape(-1, self.width)
        return position_ND[self.first_P] - position_ND[self.second_P]

    def loss(self, flat: np.ndarray) -> tuple[float, np.ndarray]:
        """Return log Σ exp(s l) + log Σ exp(-s u) of linked l and unlinked u, and its gradient.

        s is 3600 divided by the mean of l, which takes the sums near the longest l and shortest u.
        """
        linked, unlinked = self(flat)
        sharp = 3600 / linked.mean()
        share_linked = softmax(sharp * linked)
        share_unlinked = softmax(-sharp * unlinked)
        by_sharp = share_linked @ linked - share_unlinked @ unlinked
        gradient_P = np.empty(len(self.first_P))
        gradient_P[self.is_linked_P] = sharp * (
            share_linked - by_sharp / (linked.mean() * len(linked))
        )
        gradient_P[~self.is_linked_P] = -sharp * share_unlinked
        offset_PD = self.offset_PD(flat)
        distance_P1 = np.linalg.norm(offset_PD, axis=1, keepdims=True)
        gradient_PD = gradient_P[:, None] * offset_PD / distance_P1
        gradient_ND = np.zeros((len(flat) // self.width, self.width))
        np.add.at(gradient_ND, self.first_P, gradient_PD)
        np.add.at(gradient_ND, self.second_P, -gradient_PD)
        value = logsumexp(sharp * linked) + logsumexp(-sharp * unlinked)
        return float(value), gradient_ND.ravel()


def largest_margin(num_nodes: int, width: int) -> float:
    """Largest ratio of shortest unlinked to longest linked distance of K_{N,N}, from 12 starts.

    An embedding is optimal if it is above 1.
    """
    distances = BipartiteDistances(num_nodes, width)
    rng = np.random.default_rng(0)
    margins = []
    for _ in range(12):
        start = rng.normal(size=2 * num_nodes * width)
        linked, unlinked = distances(minimize(distances.loss, start, jac=True).x)
        margins.append(float(unlinked.min() / linked.max()))
    return max(margins)


def test_the_gradient_of_the_search_is_that_of_finite_differences():
    distances = BipartiteDistances(3, 2)
    flat = np.random.default_rng(1).normal(size=12)
    differences = approx_fprime(flat, lambda at: distances.loss(at)[0], 1e-9)
    np.testing.assert_allclose(distances.loss(flat)[1], differences, rtol=1e-3, atol=1e-2)


@pytest.mark.nightly
@pytest.mark.parametrize("width", [1, 2])
def test_k_n_n_has_no_optimal_embedding_in_n_minus_1_dimensions(width):
    assert 0.9 < largest_margin(width + 1, width) < 1 + 1e-6


def test_the_same_search_finds_optimal_embeddings_where_there_are_some():
    assert largest_margin(2, 2) == pytest.approx(2**0.5, abs=1e-3)  # a square
    assert largest_margin(3, 4) > 1.2  # two triangles at right angles
