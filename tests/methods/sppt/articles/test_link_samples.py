"""Link retrieval on samples of test graphs."""

import numpy as np
import pytest
import torch

from raybio.methods.sppt.articles.link_samples import (
    OverTrials,
    by_embeddings,
    draw_link_samples,
    draw_test_nodes,
    num_linked_test_nodes,
    over_trials,
    sampled_link_scores,
)
from raybio.methods.sppt.graph.csr import Graph


def scores_of(graph: Graph, embedding_ND: torch.Tensor, **sizes: int) -> dict[str, OverTrials]:
    return over_trials(
        [
            sampled_link_scores(one, by_embeddings(embedding_ND))
            for one in draw_link_samples(graph, **sizes)
        ]
    )


def cliques(num: int, size: int) -> Graph:
    edges = [
        (size * clique + a, size * clique + b)
        for clique in range(num)
        for a in range(size)
        for b in range(a + 1, size)
    ]
    return Graph.from_edges(np.array(edges), num * size)


def test_test_graphs_take_a_quarter_of_disjoint_pairs() -> None:
    pairs = cliques(4000, 2)
    nodes = draw_test_nodes(pairs, np.random.default_rng(0))
    assert len(nodes) / pairs.num_nodes == pytest.approx(0.25, abs=0.02)
    assert set((nodes ^ 1).tolist()) == set(nodes.tolist())  # partners are in the same part


def test_ends_of_a_link_that_chose_stay_together_and_no_node_is_in_two_parts() -> None:
    triangles = cliques(500, 3)
    nodes = draw_test_nodes(triangles, np.random.default_rng(1))
    counts = np.bincount(nodes // 3, minlength=500)
    # The first link of a triangle assigns two nodes. All neighbors of the third are then assigned.
    assert set(counts.tolist()) == {0, 2}


def test_perfect_embeddings_score_one_and_random_ones_little() -> None:
    graph = cliques(60, 5)
    near = 1e-3 * torch.randn(
        300, 60, generator=torch.Generator().manual_seed(0)
    )  # neighbors that tie share ranks
    perfect = torch.eye(60).repeat_interleave(5, dim=0) + near
    scores = scores_of(graph, perfect, trials=3, samples=4, nodes=20)
    assert all(
        one.mean == pytest.approx(1) and one.deviation == pytest.approx(0)
        for one in scores.values()
    )
    noise = torch.randn(300, 32, generator=torch.Generator().manual_seed(0))
    noisy = scores_of(graph, noise, trials=3, samples=4, nodes=20)
    assert all(one.mean < 0.5 and one.deviation > 0 for one in noisy.values())


def test_what_samples_are_drawn_from_is_counted() -> None:
    graph = cliques(40, 4)
    nodes = draw_test_nodes(graph, np.random.default_rng((4, 0)))
    members = np.bincount(nodes // 4, minlength=40)
    assert num_linked_test_nodes(graph, 4) == members[members > 1].sum() > 0


def test_every_model_gets_the_same_samples() -> None:
    graph = cliques(40, 4)
    noise = torch.randn(160, 8, generator=torch.Generator().manual_seed(0))
    first, second = (
        scores_of(graph, noise, trials=2, samples=3, nodes=10, seed=4) for _ in range(2)
    )
    assert first == second
    assert scores_of(graph, noise, trials=2, samples=3, nodes=10, seed=5) != first


def test_a_sample_has_neighbors_of_drawn_nodes_and_the_deviation_is_over_trials() -> None:
    graph = cliques(60, 3)
    noise = torch.randn(180, 4, generator=torch.Generator().manual_seed(0))
    alone, both = (
        scores_of(graph, noise, trials=num, samples=1, nodes=4, seed=3) for num in (1, 2)
    )
    for name, one in both.items():
        first = alone[name].mean
        second = 2 * one.mean - first
        assert one.deviation == pytest.approx(abs(first - second) / 2**0.5)
    # The first trial by hand: the test graph has two nodes of each triangle, so a drawn node brings
    # its partner.
    rng = np.random.default_rng((3, 0))
    nodes = draw_test_nodes(graph, rng)
    partners = [
        one
        for one in nodes.tolist()
        if sum(other // 3 == one // 3 for other in nodes.tolist()) == 2
    ]
    drawn = rng.choice([nodes.tolist().index(one) for one in partners], 4, replace=False)
    members = sorted(
        {other for one in nodes[drawn].tolist() for other in partners if other // 3 == one // 3}
    )
    ranks = []
    for one in members:
        others = [other for other in members if other != one]
        near = sorted(others, key=lambda other: float((noise[one] - noise[other]).norm()))
        ranks.append(1 + next(place for place, other in enumerate(near) if other // 3 == one // 3))
    assert alone["mrr"].mean == pytest.approx(np.mean([1 / rank for rank in ranks]))
    assert alone["lrap"].mean == pytest.approx(alone["mrr"].mean)  # each has one link


def test_a_graph_without_a_test_link_is_refused() -> None:
    with pytest.raises(ValueError, match="has no link, want a larger graph"):
        for seed in range(20):
            scores_of(cliques(1, 2), torch.zeros(2, 4), trials=1, samples=1, nodes=1, seed=seed)
