import numpy as np
import pytest
import torch

from raybio.methods.sppt import average_precision, scores
from raybio.methods.sppt.graph.csr import Graph
from raybio.methods.sppt.link_retrieval import CUTOFFS, LinkRetrieval
from raybio.methods.sppt.scores import bootstrap_intervals
from tests.methods.sppt.embedding_links import link_retrieval


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
        rows.append(
            [
                found.lrap_A[drawn].mean(),
                found.ndcg_A[drawn].mean(),
                found.reciprocal_rank_A[drawn].mean(),
                found.average_precision_A[drawn].mean(),
            ]
            + list(found.hits_AK[drawn].mean(axis=0) / CUTOFFS)
            + list(found.hits_AK[drawn].sum(axis=0) / found.num_links_A[drawn].sum())
        )
    low, high = np.percentile(rows, [2.5, 97.5], axis=0)
    names = ["lrap", "ndcg", "mrr", "average_precision"]
    names += [f"{name}_at_{k}" for name in ("precision", "recall") for k in CUTOFFS]
    assert list(intervals) == names
    # Recall is linearized: its ends differ from those of the ratio to second order.
    tolerances = [2e-3 if name.startswith("recall") else 1e-12 for name in names]
    for name, own_low, own_high, tolerance in zip(names, low, high, tolerances, strict=True):
        assert intervals[name].low == pytest.approx(own_low, abs=tolerance), name
        assert intervals[name].high == pytest.approx(own_high, abs=tolerance), name
    assert [intervals[name].value for name in names] == list(found.measures().values())


class Pairs:
    """All pairs of a few groups, of which anchors' pairs can be weighted."""

    def __init__(self, *, num_nodes, num_links, signal, seed, ties=False):
        rng = np.random.default_rng(seed)
        self.group_N = np.repeat(np.arange(len(num_nodes)), num_nodes)
        hidden_ND = rng.normal(size=(len(self.group_N), 3))
        self.embedding_ND = signal * hidden_ND + rng.normal(size=hidden_ND.shape)
        if ties:
            self.embedding_ND = self.embedding_ND.round()
        links = []
        for group, count in enumerate(num_links):
            member_M = np.flatnonzero(self.group_N == group)
            drawn_E2 = rng.choice(member_M, (20 * count, 2))
            drawn_E2 = drawn_E2[drawn_E2[:, 0] != drawn_E2[:, 1]]
            apart_E = np.linalg.norm(hidden_ND[drawn_E2[:, 0]] - hidden_ND[drawn_E2[:, 1]], axis=1)
            links.append(drawn_E2[np.argsort(apart_E)[:count]])
        self.graph = Graph.from_edges(np.concatenate(links), len(self.group_N), self.group_N)
        self.retrieval = link_retrieval(
            torch.from_numpy(self.embedding_ND),
            self.graph.indptr,
            self.graph.indices,
            group_N=self.group_N,
            block_rows=16,
        )
        self.lists = [self.pairs_of(group) for group in np.unique(self.group_N)]

    def pairs_of(self, group):
        """Return weight indices, links and ends of ties, by descending score."""
        member_M = np.flatnonzero(self.group_N == group)
        pair_P2 = np.array([[u, v] for u in member_M for v in member_M if u != v])
        apart_PD = self.embedding_ND[pair_P2[:, 0]] - self.embedding_ND[pair_P2[:, 1]]
        score_P = -(apart_PD**2).sum(axis=1).round(9)
        order_P = np.argsort(-score_P, kind="stable")
        row_P, column_P = pair_P2[order_P].T
        end_P = np.searchsorted(-score_P[order_P], -score_P[order_P], side="right") - 1
        num_anchors = np.count_nonzero(self.retrieval.group_A == group)
        return row_P, self.graph.has_edge(row_P, column_P), end_P, num_anchors

    def average_precision(self, weight_N):
        """Return it for the lists of all pairs, each weighted by its first node."""
        total = 0.0
        for row_P, is_link_P, end_P, num_anchors in self.lists:
            weight_P = weight_N[row_P]
            hits_P = (weight_P * is_link_P).cumsum()
            # Pairs of no weight at the top have no precision, and no weight either.
            listed_P = weight_P.cumsum()[end_P].clip(1e-300)
            precision_P = hits_P[end_P] / listed_P
            total += num_anchors * (weight_P * is_link_P) @ precision_P / hits_P[-1]
        return total / len(self.retrieval.group_A)


SMALL = {
    "no signal": {"num_nodes": [40, 25], "num_links": [60, 20], "signal": 0.0, "seed": 0},
    "signal": {"num_nodes": [40, 25], "num_links": [60, 20], "signal": 2.0, "seed": 1},
    "few links": {"num_nodes": [60], "num_links": [25], "signal": 1.0, "seed": 2},
    "ties": {"num_nodes": [50], "num_links": [60], "signal": 1.0, "seed": 3, "ties": True},
}

SMALL_GROUPS = {
    "two anchors": {"num_nodes": [20] * 40, "num_links": [1] * 40, "signal": 1.0, "seed": 0},
    "seven anchors": {"num_nodes": [20] * 24, "num_links": [5] * 24, "signal": 1.0, "seed": 0},
}
"""The average precision is linearized however few anchors a group has."""


@pytest.mark.parametrize("case", [*SMALL, *SMALL_GROUPS])
def test_intervals_of_average_precision_are_those_of_pairs_ranked_anew(case):
    """A brute-force bootstrap: all pairs of the drawn anchors in one list, ranked again."""
    pairs = Pairs(**(SMALL | SMALL_GROUPS)[case])
    found = pairs.retrieval
    interval = bootstrap_intervals(found, np.random.default_rng(0))["average_precision"]
    rng = np.random.default_rng(1)
    resampled = []
    for _ in range(1000):
        weight_N = np.ones(len(pairs.group_N))
        for group in np.unique(found.group_A):
            anchor_M = found.anchor_A[found.group_A == group]
            drawn_M = rng.choice(anchor_M, len(anchor_M))
            weight_N[anchor_M] = [np.count_nonzero(drawn_M == anchor) for anchor in anchor_M]
        resampled.append(pairs.average_precision(weight_N))
    low, high = np.percentile(resampled, [2.5, 97.5])
    assert interval.value == pytest.approx(pairs.average_precision(np.ones(len(weight_N))))
    assert interval.high - interval.low == pytest.approx(high - low, rel=0.15)
    # A resample draws some anchors twice, whose links then support each other: its mean is higher.
    assert interval.low == pytest.approx(low, abs=0.3 * (high - low))


@pytest.mark.parametrize("case", SMALL)
@pytest.mark.parametrize(("max_counted", "tolerance"), [(1000, 1e-4), (16, 0.05)])
def test_contributions_are_derivatives_with_respect_to_weights(
    monkeypatch, case, max_counted, tolerance
):
    """Counted at all scores of links exactly, and at 16 of them nearly."""
    monkeypatch.setattr(average_precision, "MAX_COUNTED", max_counted)
    pairs = Pairs(**SMALL[case])
    found = pairs.retrieval
    step = 1e-5
    for group in np.unique(found.group_A):
        is_own_A = found.group_A == group
        derivatives = []
        for anchor in found.anchor_A[is_own_A]:
            up, down = (np.ones(len(pairs.group_N)) for _ in range(2))
            up[anchor] += step
            down[anchor] -= step
            change = pairs.average_precision(up) - pairs.average_precision(down)
            derivatives.append(change / (2 * step) * len(found.group_A))
        expected = np.array(derivatives) - np.mean(derivatives)
        own = found.average_precision_A[is_own_A]
        error = np.abs(own - own.mean() - expected).max()
        assert error <= tolerance * np.abs(expected).max()


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


def test_single_anchors_have_no_interval():
    array = np.ones(2)
    found = LinkRetrieval(
        np.arange(2),
        np.arange(2),
        np.ones(2, int),
        array,
        array,
        array,
        array,
        np.ones((2, 5), int),
    )
    for interval in bootstrap_intervals(found, np.random.default_rng(0)).values():
        assert np.isfinite(interval.value)
        assert np.isnan([interval.low, interval.high]).all()


def test_intervals_of_very_many_anchors_are_those_of_many_resamples(monkeypatch):
    found = retrieval(num=800)
    resampled = bootstrap_intervals(found, np.random.default_rng(0), num_resamples=20_000)
    monkeypatch.setattr(scores, "MAX_RESAMPLED_UNITS", 100)
    closed_form, other_seed = (
        bootstrap_intervals(found, np.random.default_rng(seed)) for seed in (0, 1)
    )
    assert closed_form == other_seed
    assert list(closed_form) == list(resampled)
    for name, (value, low, high) in resampled.items():
        tolerance = 0.02 * (high - low) + 1e-12
        if name.startswith("precision_at"):
            # Resamples have whole numbers of hits.
            tolerance += 0.5 / len(found.anchor_A) / int(name.rpartition("_")[2])
        assert closed_form[name] == pytest.approx((value, low, high), abs=tolerance)


def test_intervals_are_resampled_if_one_anchor_dominates_a_score(monkeypatch):
    found = retrieval()
    found.reciprocal_rank_A[:] = 0
    found.reciprocal_rank_A[5] = 1
    resampled = bootstrap_intervals(found, np.random.default_rng(0))
    monkeypatch.setattr(scores, "MAX_RESAMPLED_UNITS", 100)
    intervals = bootstrap_intervals(found, np.random.default_rng(0))
    assert list(intervals) == list(resampled)
    assert intervals["mrr"] == resampled["mrr"]
    assert intervals["lrap"] != resampled["lrap"]
