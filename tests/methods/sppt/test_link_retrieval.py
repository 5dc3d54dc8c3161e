from collections import Counter
from dataclasses import fields

import numpy as np
import pytest
import torch
from sklearn.metrics import (
    average_precision_score,
    label_ranking_average_precision_score,
    ndcg_score,
)

from raybio.methods.sppt import link_retrieval as ranking
from raybio.methods.sppt.graph.csr import Graph
from raybio.methods.sppt.link_retrieval import CUTOFFS
from raybio.ops import rank_counts
from tests import oracles
from tests.methods.sppt.embedding_links import link_retrieval
from tests.ops.threads import in_threads

METRICS = ("lrap", "ndcg", "mrr", "average_precision")


def scores(embedding, metric):
    wide = np.asarray(embedding, dtype=np.float64)
    if metric == "euclidean":
        # Minus the squared distance by differences: exact for small integers, symmetric, and
        # ordered as the distance.
        return -((wide[:, None, :] - wide[None, :, :]) ** 2).sum(axis=2)
    if metric == "cosine":
        length = np.linalg.norm(wide, axis=1, keepdims=True)
        wide = np.concatenate([wide / np.where(length, length, 1), length == 0], axis=1)
    return np.einsum("id,jd->ij", wide, wide)


def embeddings(kind, num=60, seed=0):
    rng = np.random.default_rng(seed)
    if kind == "normal":
        return rng.normal(size=(num, 8)).astype(np.float32)
    if kind == "grid":  # many equal distances between unequal points
        return rng.integers(0, 3, (num, 2)).astype(np.float32)
    if kind == "copies":
        return (rng.normal(size=(num // 4, 300)).astype(np.float32) * 30)[
            rng.integers(0, num // 4, num)
        ]
    if kind == "constant":
        return np.full((num, 5), 0.1, dtype=np.float32)
    if kind == "far from the origin":
        return (rng.normal(size=(num, 4)) + 100).astype(np.float32)
    if kind == "one giant":
        vectors = rng.normal(size=(num, 4)).astype(np.float32)
        vectors[3] *= 1e6
        return vectors
    raise AssertionError(kind)


def problem(num=60, num_groups=3, num_links=200, seed=0, scattered=False):
    rng = np.random.default_rng(seed)
    group = np.sort(rng.integers(0, num_groups, num)) * 7
    if scattered:
        group = rng.permutation(group)
    edge = rng.integers(0, num - 4, (num_links, 2))  # the last nodes have no link
    return Graph.from_edges(edge, num, group), group


def matrices(graph, group, score, ignored=None):
    nodes = np.arange(len(group))
    linked = graph.has_edge(nodes[:, None], nodes)
    members = [np.flatnonzero(group == number) for number in np.unique(group)]
    ignore = None if ignored is None else ignored.has_edge(nodes[:, None], nodes)
    parts = [[matrix[np.ix_(m, m)] for m in members] for matrix in (score, linked)]
    return *parts, None if ignore is None else [ignore[np.ix_(m, m)] for m in members]


def assert_equal(found, expected, tolerance=1e-9):
    for name in METRICS:
        assert getattr(found, name) == pytest.approx(expected[name], abs=tolerance), name
    for k in CUTOFFS:
        assert found.precision_at[k] == pytest.approx(expected[f"precision_at_{k}"], abs=tolerance)
        assert found.recall_at[k] == pytest.approx(expected[f"recall_at_{k}"], abs=tolerance)


@pytest.mark.parametrize(
    "kind", ["normal", "grid", "copies", "constant", "far from the origin", "one giant"]
)
@pytest.mark.parametrize("metric", ["euclidean", "cosine", "dot"])
@pytest.mark.parametrize(("block_rows", "sorts_scores"), [(1024, True), (7, True), (7, False)])
def test_retrieval_equals_the_loop(monkeypatch, kind, metric, block_rows, sorts_scores):
    # False: as on a GPU.
    monkeypatch.setattr(rank_counts, "_sorts_scores", lambda _: sorts_scores)
    if block_rows == 7:
        monkeypatch.setattr(
            ranking, "entries_at_once", lambda _device: 0
        )  # blocks are scored twice
    embedding = embeddings(kind)
    graph, group = problem()
    score = scores(embedding, metric)
    if metric == "cosine":
        score = np.round(score, 13)  # ties that the oracle's own noise would break
    found = link_retrieval(
        torch.from_numpy(embedding),
        graph.indptr,
        graph.indices,
        group_N=group,
        metric=metric,
        block_rows=block_rows,
    )
    assert_equal(found, oracles.link_retrieval(*matrices(graph, group, score)))


@pytest.mark.parametrize("sorts_scores", [True, False])
@pytest.mark.parametrize("compare_at_most", [0, 3, 1000])
@pytest.mark.parametrize("kind", ["normal", "grid", "copies"])
def test_all_ways_of_counting_agree_with_the_definition(
    monkeypatch, sorts_scores, compare_at_most, kind
):
    monkeypatch.setattr(rank_counts, "_sorts_scores", lambda _: sorts_scores)
    monkeypatch.setattr(rank_counts, "_max_compared", lambda _: compare_at_most)
    monkeypatch.setattr(rank_counts, "_ENTRIES_AT_ONCE", 100)
    graph, _ = problem()
    row_P = np.repeat(np.arange(60), np.diff(graph.indptr))
    column_P = graph.indices.astype(np.int64)
    score_NN = scores(embeddings(kind), "euclidean")
    np.fill_diagonal(score_NN, -np.inf)
    own_P = score_NN[row_P, column_P][:, None]
    is_before_PN = np.arange(60) < column_P[:, None]
    expected = (
        (score_NN[row_P] > own_P).sum(1),
        (score_NN[row_P] >= own_P).sum(1),
        ((score_NN[row_P] == own_P) & is_before_PN).sum(1),
    )
    block = torch.from_numpy(score_NN)
    pairs = torch.from_numpy(row_P), torch.from_numpy(column_P)
    for more in ((), (rank_counts.sort_block(block),)):
        found = rank_counts.count_ranks(block, *pairs, *more)
        for counts, wanted in zip(found, expected, strict=True):
            assert counts.tolist() == wanted.tolist()


@pytest.mark.parametrize("kind", ["normal", "grid", "copies"])
def test_ignored_entries_are_not_counted_in_scores_that_were_sorted_with_them(kind):
    graph, _ = problem()
    row_P = torch.arange(60).repeat_interleave(torch.from_numpy(np.diff(graph.indptr)))
    column_P = torch.from_numpy(graph.indices.astype(np.int64))
    block = torch.from_numpy(scores(embeddings(kind), "euclidean"))
    block.fill_diagonal_(-torch.inf)
    ordered = rank_counts.sort_block(block)
    ignored_I = torch.arange(0, len(row_P), 3)
    row_I, column_I = row_P[ignored_I], column_P[ignored_I]
    counted = ordered.ignoring(row_I, block[row_I, column_I])
    block[row_I, column_I] = -torch.inf
    is_link_P = torch.ones(len(row_P), dtype=torch.bool)
    is_link_P[ignored_I] = False
    links = row_P[is_link_P], column_P[is_link_P]
    expected = rank_counts.count_ranks(block, *links)
    for counts, wanted in zip(
        rank_counts.count_ranks(block, *links, counted), expected, strict=True
    ):
        assert counts.tolist() == wanted.tolist()
    threshold_U = torch.unique(block[links])
    index_K = torch.arange(0, len(threshold_U), 3)
    for counts, wanted in zip(
        rank_counts.count_at_least(block, threshold_U, index_K, counted),
        rank_counts.count_at_least(block, threshold_U, index_K),
        strict=True,
    ):
        assert counts.tolist() == wanted.tolist()


@pytest.mark.parametrize("kind", ["normal", "grid", "constant"])
@pytest.mark.parametrize("sorts_scores", [True, False])
def test_entries_above_thresholds_are_counted_as_by_comparing_each(monkeypatch, kind, sorts_scores):
    monkeypatch.setattr(rank_counts, "_sorts_scores", lambda _: sorts_scores)
    monkeypatch.setattr(rank_counts, "_ENTRIES_AT_ONCE", 200)
    block = torch.from_numpy(scores(embeddings(kind), "euclidean"))
    block.fill_diagonal_(-torch.inf)
    threshold_U = torch.unique(torch.cat([block.flatten()[1:50], torch.tensor([-3.5, 1.0])]))
    expected_BU = torch.stack([(block >= threshold).sum(1) for threshold in threshold_U], 1)
    ordered = rank_counts.sort_if_cheap(block)
    assert (ordered is not None) == sorts_scores
    index_K = torch.arange(0, len(threshold_U), 3)
    found_U, by_row_BK = rank_counts.count_at_least(block, threshold_U, index_K, ordered)
    assert found_U.tolist() == expected_BU.sum(0).tolist()
    assert by_row_BK.tolist() == expected_BU[:, index_K].tolist()


@pytest.mark.parametrize("kind", ["normal", "copies", "grid"])
def test_ignored_pairs_are_neither_candidates_nor_links(kind):
    embedding = embeddings(kind)
    graph, group = problem()
    ignored, _ = problem(seed=1)
    found = link_retrieval(
        torch.from_numpy(embedding),
        graph.indptr,
        graph.indices,
        group_N=group,
        ignore=(ignored.indptr, ignored.indices),
        block_rows=11,
    )
    expected = oracles.link_retrieval(
        *matrices(graph, group, scores(embedding, "euclidean"), ignored)
    )
    assert_equal(found, expected)


@pytest.mark.parametrize("kind", ["normal", "copies", "grid"])
def test_retrieval_equals_scikit_learn(kind):
    num = 80
    embedding = embeddings(kind, num)
    edge = np.random.default_rng(2).integers(0, num, (400, 2))
    graph = Graph.from_edges(
        np.concatenate([edge, [[u, (u + 1) % num] for u in range(num)]]), num, None
    )
    linked = graph.has_edge(np.arange(num)[:, None], np.arange(num))
    off_diagonal = ~np.eye(num, dtype=bool)
    score = np.sqrt(-scores(embedding, "euclidean"))
    truth, score = (
        linked[off_diagonal].reshape(num, num - 1),
        -score[off_diagonal].reshape(num, num - 1),
    )
    found = link_retrieval(torch.from_numpy(embedding), graph.indptr, graph.indices)
    assert found.lrap == pytest.approx(
        label_ranking_average_precision_score(truth, score), abs=1e-6
    )
    assert found.average_precision == pytest.approx(
        average_precision_score(truth.ravel(), score.ravel()), abs=1e-6
    )
    if kind == "normal":  # scikit-learn breaks ties in another way
        assert found.ndcg == pytest.approx(ndcg_score(truth, score - score.min()), abs=1e-6)


def test_all_ties_give_the_density_as_precision():
    graph, _ = problem(num=60, num_links=300)
    nodes = np.unique(graph.indices)
    graph = Graph.from_edges(np.searchsorted(nodes, _edges(graph)), len(nodes), None)
    num = len(nodes)
    found = link_retrieval(torch.full((num, 3), 7.3), graph.indptr, graph.indices)
    density = 2 * graph.num_edges / (num * (num - 1))
    assert found.lrap == pytest.approx(density, abs=1e-12)
    assert found.average_precision == pytest.approx(density, abs=1e-12)
    assert found.mrr == pytest.approx(2 / num, abs=1e-12)
    for k in (1, 5, 10, 25):
        assert found.precision_at[k] == pytest.approx(density, abs=1e-12)
        assert found.recall_at[k] == pytest.approx(k / (num - 1), abs=1e-12)


@pytest.mark.parametrize("metric", ["euclidean", "cosine", "dot"])
def test_the_rounding_noise_of_a_collapsed_encoder_is_not_ranked(metric):
    """Linked nodes share their noise, as texts of one length do: ranked, it would retrieve them."""
    group_size, num = 5, 60
    edge = [[u, v] for u in range(num) for v in range(u) if u // group_size == v // group_size]
    graph = Graph.from_edges(edge, num, None)
    noise = torch.randn(
        num // group_size, 8, generator=torch.Generator().manual_seed(0)
    ).repeat_interleave(group_size, 0)
    point = torch.tensor([0.3, -1.7, 0.8, 2.5, -0.1, 0.0, 1.1, -0.6])
    found = link_retrieval(point + 2e-7 * noise, graph.indptr, graph.indices, metric=metric)
    density = (group_size - 1) / (num - 1)
    assert found.lrap == pytest.approx(density, abs=1e-12)
    assert found.average_precision == pytest.approx(density, abs=1e-12)
    assert found.mrr == pytest.approx(2 / num, abs=1e-12)
    apart = link_retrieval(point + 1e-3 * noise, graph.indptr, graph.indices, metric=metric)
    assert apart.lrap > 2 * density  # small differences that are no noise are ranked
    if metric != "dot":
        assert apart.lrap == 1.0


def test_cliques_on_points_are_retrieved_perfectly():
    group_size, num = 5, 20
    edge = [[u, v] for u in range(num) for v in range(u) if u // group_size == v // group_size]
    graph = Graph.from_edges(edge, num, None)
    found = link_retrieval(
        torch.eye(4).repeat_interleave(group_size, 0), graph.indptr, graph.indices
    )
    assert (found.lrap, found.average_precision, found.recall_at[5]) == (1.0, 1.0, 1.0)
    assert [found.precision_at[k] for k in (1, 5, 10)] == [1.0, 0.8, 0.4]
    assert found.ndcg == 1.0


def test_single_precision_is_the_same_where_nothing_ties():
    graph, group = problem()
    embedding = torch.from_numpy(embeddings("normal"))
    wide, single = (
        link_retrieval(embedding, graph.indptr, graph.indices, group_N=group, score_dtype=dtype)
        for dtype in (torch.float64, torch.float32)
    )
    for name in METRICS:
        assert getattr(single, name) == pytest.approx(getattr(wide, name), abs=1e-6)


def test_renumbering_the_nodes_changes_nothing_where_nothing_ties():
    graph, group = problem()
    embedding = torch.from_numpy(embeddings("normal"))
    order = np.random.default_rng(3).permutation(60)
    position = np.argsort(order)
    moved = Graph.from_edges(position[_edges(graph)], 60, group[order])
    one = link_retrieval(embedding, graph.indptr, graph.indices, group_N=group)
    two = link_retrieval(embedding[order], moved.indptr, moved.indices, group_N=group[order])
    for name in METRICS:
        assert getattr(two, name) == pytest.approx(getattr(one, name), abs=1e-12)


def test_per_anchor_results_name_their_anchors():
    graph, group = problem(scattered=True)
    found = link_retrieval(
        torch.from_numpy(embeddings("normal")), graph.indptr, graph.indices, group_N=group
    )
    own_links = [
        sum(group[v] == group[u] for v in graph.indices[graph.indptr[u] : graph.indptr[u + 1]])
        for u in range(60)
    ]
    assert found.num_links_A.tolist() == [own_links[u] for u in found.anchor_A]
    assert found.group_A.tolist() == group[found.anchor_A].tolist()
    assert sorted(found.anchor_A.tolist()) == [u for u in range(60) if own_links[u]]


@pytest.mark.parametrize("world", [2, 3, 20])
@pytest.mark.parametrize("kind", ["normal", "copies"])
def test_rows_divided_over_workers_give_exactly_the_result_of_one(monkeypatch, world, kind):
    if world == 3:
        monkeypatch.setattr(
            ranking, "entries_at_once", lambda _device: 0
        )  # blocks are scored twice
    graph, group = problem()
    embedding = torch.from_numpy(embeddings(kind))
    ignored, _ = problem(seed=1, num_links=30)
    settings = {"group_N": group, "ignore": (ignored.indptr, ignored.indices), "block_rows": 5}
    alone = link_retrieval(embedding, graph.indptr, graph.indices, **settings)
    results = in_threads(
        world,
        lambda collective: link_retrieval(
            embedding, graph.indptr, graph.indices, collective=collective, **settings
        ),
    )
    for result in results:
        for name in vars(alone):
            assert np.array_equal(getattr(result, name), getattr(alone, name)), name


@pytest.mark.parametrize("world", [1, 2, 7])
def test_small_groups_are_dealt_to_workers_and_large_ones_are_divided(world):
    sizes = np.random.default_rng(0).integers(1, 50, 300).tolist()
    owners = ranking._owners(sizes, world)
    load = np.bincount(owners, np.square(sizes), minlength=world)
    assert load.sum() == np.square(sizes).sum()
    assert load.max() - load.min() <= max(sizes) ** 2
    assert ranking._owners([*sizes, 2000], world) == [*owners, None]
    assert ranking._owners([30, 30, 20], world) == [None, None, None if world > 1 else 0]


def exchanges_for(num_groups):
    """Return how often three workers exchange tensors to rank the links of a graph."""
    exchanges = Counter()
    graph, group = problem(num=600, num_groups=num_groups, num_links=20_000)
    embedding = torch.from_numpy(embeddings("normal", num=600))

    def counted(name, exchange):
        def call(*arguments):
            exchanges[name] += 1
            return exchange(*arguments)

        return call

    def rank(collective=None):
        if collective is not None:
            for name in ("all_sum", "all_gather"):
                setattr(collective, name, counted(name, getattr(collective, name)))
        return link_retrieval(
            embedding, graph.indptr, graph.indices, group_N=group, collective=collective
        )

    alone = rank()
    for result in in_threads(3, rank):
        assert np.array_equal(result.lrap_A, alone.lrap_A)
    return exchanges


def test_the_number_of_exchanges_does_not_grow_with_that_of_groups():
    once_a_field = {"all_gather": 3 * len(fields(ranking.LinkRetrieval))}
    assert exchanges_for(100) == once_a_field
    assert exchanges_for(200) == once_a_field


@pytest.mark.parametrize("is_kept", [True, False])
def test_splits_share_the_scores_and_have_the_results_of_each_alone(monkeypatch, is_kept):
    if not is_kept:
        monkeypatch.setattr(ranking, "entries_at_once", lambda _device: 0)
    graph, group = problem()
    others, _ = problem(seed=1, num_links=30)
    embedding = torch.from_numpy(embeddings("copies"))
    known = (others.indptr, others.indices)
    splits = [
        ranking.QueriedLinks(graph.indptr, graph.indices),
        ranking.QueriedLinks(graph.indptr, graph.indices, known),
        ranking.QueriedLinks(*known),
    ]
    settings = {"group_N": group, "block_rows": 5}
    alone = [
        link_retrieval(embedding, indptr, indices, ignore=ignore, **settings)
        for indptr, indices, ignore in splits
    ]
    scored = Counter()
    in_group = ranking.embedding_scores(embedding, "euclidean")

    class Counted:
        def __init__(self, node_G):
            self.node_G = node_G
            self.scores = in_group(node_G)
            self.num_candidates = len(node_G)
            self.device, self.dtype = self.scores.device, self.scores.dtype

        def block(self, first, end):
            scored.update(self.node_G[first:end].tolist())
            return self.scores.block(first, end)

    together = ranking.rank_splits(Counted, splits, **settings)
    for one, other in zip(alone, together, strict=True):
        for name in vars(one):
            assert np.array_equal(getattr(one, name), getattr(other, name)), name
    assert set(scored.values()) == {1 if is_kept else 2}


def test_memory_stays_within_some_blocks(monkeypatch):
    largest = []
    plain = ranking.count_ranks
    monkeypatch.setattr(
        ranking,
        "count_ranks",
        lambda block, *args: largest.append(block.numel()) or plain(block, *args),
    )
    graph, _ = problem(num=500, num_links=3000)
    link_retrieval(
        torch.randn(500, 4, generator=torch.Generator().manual_seed(0)),
        graph.indptr,
        graph.indices,
        block_rows=16,
    )
    assert max(largest) == 16 * 500


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_embeddings_that_are_not_finite_are_refused(bad):
    graph, group = problem()
    embedding = torch.from_numpy(embeddings("normal"))
    embedding[4, 2] = bad
    with pytest.raises(
        ValueError, match=r"1 of 60 embeddings hold NaN or Inf \(the first: row 4\)"
    ):
        link_retrieval(embedding, graph.indptr, graph.indices, group_N=group)


def test_questions_without_an_answer_are_refused():
    graph, group = problem()
    embedding = torch.from_numpy(embeddings("normal"))
    with pytest.raises(ValueError, match="no link to retrieve"):
        link_retrieval(embedding, graph.indptr, graph.indices, ignore=(graph.indptr, graph.indices))
    with pytest.raises(ValueError, match="no link to retrieve"):
        link_retrieval(embedding, graph.indptr, graph.indices, group_N=np.arange(60))
    with pytest.raises(ValueError, match="does not fit"):
        link_retrieval(embedding, graph.indptr, graph.indices, group_N=group[:-1])
    with pytest.raises(ValueError, match="'euclidean', 'cosine' or 'dot'"):
        link_retrieval(embedding, graph.indptr, graph.indices, metric="l1")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("kind", ["normal", "grid", "copies", "constant"])
def test_a_gpu_gives_the_result_of_the_cpu(kind):
    graph, group = problem()
    embedding = torch.from_numpy(embeddings(kind))
    one, two = (
        link_retrieval(embedding.to(device), graph.indptr, graph.indices, group_N=group)
        for device in ("cpu", "cuda")
    )
    for name in METRICS:
        assert getattr(two, name) == pytest.approx(getattr(one, name), abs=1e-12)


def _edges(graph):
    return np.stack([np.repeat(np.arange(graph.num_nodes), graph.degree_N), graph.indices], axis=1)
