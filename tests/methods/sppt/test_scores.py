import numpy as np
import pytest
import torch

from raybio.methods.sppt.graph.csr import Graph
from raybio.methods.sppt.link_retrieval import CUTOFFS, LinkRetrieval, link_retrieval
from raybio.methods.sppt.scores import bootstrap_intervals


def retrieval(num=400, seed=0):
    rng = np.random.default_rng(seed)
    group = np.arange(num) // 100
    edge = rng.integers(0, 100, (num * 3, 2)) + rng.integers(0, num // 100, num * 3)[:, None] * 100
    graph = Graph.from_edges(edge, num, group)
    return link_retrieval(
        torch.from_numpy(rng.normal(size=(num, 6))), graph.indptr, graph.indices, group_N=group
    )


def test_intervals_equal_a_loop_over_resamples():
    found = retrieval(num=200)
    intervals = bootstrap_intervals(found, np.random.default_rng(1), num_resamples=30)
    rng, rows = np.random.default_rng(1), []
    for _ in range(30):
        uniform, drawn = rng.random(len(found.group_A)), []
        for position, number in enumerate(found.group_A):
            members = np.flatnonzero(found.group_A == number)
            drawn.append(members[int(uniform[position] * len(members))])
        precision = 0.0
        for number in np.unique(found.group_A):
            mine = [anchor for anchor in drawn if found.group_A[anchor] == number]
            precision += (
                len(mine) * found.precision_sum_A[mine].sum() / found.num_links_A[mine].sum()
            )
        rows.append(
            [
                found.lrap_A[drawn].mean(),
                found.ndcg_A[drawn].mean(),
                found.reciprocal_rank_A[drawn].mean(),
            ]
            + [precision / len(drawn)]
            + list(found.hits_AK[drawn].mean(axis=0) / CUTOFFS)
            + list(found.hits_AK[drawn].sum(axis=0) / found.num_links_A[drawn].sum())
        )
    low, high = np.percentile(rows, [2.5, 97.5], axis=0)
    names = ["lrap", "ndcg", "mrr", "average_precision"]
    names += [f"{name}_at_{k}" for name in ("precision", "recall") for k in CUTOFFS]
    assert list(intervals) == names
    assert [intervals[name].low for name in names] == pytest.approx(low.tolist(), abs=1e-12)
    assert [intervals[name].high for name in names] == pytest.approx(high.tolist(), abs=1e-12)
    assert [intervals[name].value for name in names] == list(found.measures().values())


def test_values_lie_inside_and_equal_seeds_give_equal_intervals():
    found = retrieval()
    one, two = (bootstrap_intervals(found, np.random.default_rng(5)) for _ in range(2))
    assert one == two
    # Groups have 100 nodes, so the first 100 candidates are all of them.
    assert one.pop("recall_at_100") == (1.0, 1.0, 1.0)
    assert all(interval.low < interval.value < interval.high for interval in one.values())


def test_the_width_is_that_of_the_normal_approximation():
    found = retrieval()
    interval = bootstrap_intervals(found, np.random.default_rng(5), num_resamples=2000)["mrr"]
    spread = np.sqrt(
        sum(
            (found.group_A == g).sum() * found.reciprocal_rank_A[found.group_A == g].var()
            for g in range(4)
        )
    )
    assert interval.high - interval.low == pytest.approx(
        2 * 1.96 * spread / len(found.group_A), rel=0.1
    )


def test_equal_anchors_give_an_interval_of_no_width():
    array = np.ones(5)
    found = LinkRetrieval(
        np.arange(5),
        np.zeros(5, int),
        np.ones(5, int),
        array,
        array,
        array,
        array,
        np.ones((5, 5), int),
    )
    intervals = bootstrap_intervals(found, np.random.default_rng(0), num_resamples=10)
    for name, interval in intervals.items():
        value = 1 / int(name.rpartition("_")[2]) if name.startswith("precision_at") else 1.0
        assert interval == (value, value, value)
