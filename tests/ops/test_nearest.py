from pathlib import Path

import numpy as np
import pytest
import torch

from raybio.ops import nearest as module
from raybio.ops.nearest import largest, nearest, nearest_others
from tests import oracles
from tests.training.workers import run_workers


def vectors(kind, num_queries=23, num_candidates=1500, width=6):
    rng = np.random.default_rng(0)
    both = rng.normal(size=(num_queries + num_candidates, width))
    if kind == "grid":  # many equal distances
        both = rng.integers(-2, 3, both.shape).astype(float)
    elif kind == "copies":
        both = both[rng.integers(0, min(40, len(both)), len(both))]
    elif kind == "far from zero":  # what single precision without a shift would drown
        both = both + 1000
    elif kind == "one giant":
        both[num_queries] *= 1e6
    elif kind == "constant":
        both[:] = 0.1
    both = both.astype(np.float32)
    return torch.from_numpy(both[:num_queries]), torch.from_numpy(both[num_queries:])


KINDS = ["normal", "grid", "copies", "far from zero", "one giant", "constant"]


@pytest.mark.parametrize("num_candidates", [1, 12, 1500])
@pytest.mark.parametrize("kind", KINDS)
def test_the_nearest_and_their_order_equal_the_loop(kind, num_candidates, monkeypatch):
    monkeypatch.setattr(module, "_GROUP", 16)  # so that few candidates are many groups
    query, candidate = vectors(kind, num_candidates=num_candidates)
    result = nearest(query, candidate, 10, block_rows=7)
    assert result.index_QK.tolist() == oracles.nearest(query.numpy(), candidate.numpy(), 10)
    expected = ((query[:, None].double() - candidate[result.index_QK].double()) ** 2).sum(2)
    torch.testing.assert_close(
        -result.score_QK.double(), expected, rtol=1e-6, atol=1e-6 * float(expected.max()) ** 0.5
    )


@pytest.mark.parametrize("kind", ["normal", "grid"])
def test_cosines_equal_the_loop_and_zero_vectors_are_near_each_other_only(kind):
    query, candidate = vectors(kind)
    query[0] = candidate[7] = 0.0
    result = nearest(query, candidate, 10, metric="cosine")
    cosines = np.array([[oracles.cosine(q, c) for c in candidate.numpy()] for q in query.numpy()])
    cosines[0] = (candidate == 0).all(1)
    best = -np.sort(-cosines, axis=1)[:, :10]
    np.testing.assert_allclose(result.score_QK.numpy(), best, atol=1e-6)
    np.testing.assert_allclose(
        np.take_along_axis(cosines, result.index_QK.numpy(), 1), best, atol=1e-6
    )


def test_scaling_and_shifting_all_vectors_keeps_the_neighbors():
    query, candidate = vectors("normal")
    expected = nearest(query, candidate, 10).index_QK
    torch.testing.assert_close(nearest(query * 4 + 0.5, candidate * 4 + 0.5, 10).index_QK, expected)
    torch.testing.assert_close(nearest(query, candidate, 10, block_rows=1).index_QK, expected)


def test_distances_that_tie_in_single_precision_are_ranked_in_double():
    """Every query's distances differ by less than the error bound, so the proof must fail."""
    query, candidate = torch.zeros(3, 64), torch.ones(2000, 64) * 100
    candidate[:, 0] += torch.linspace(0.01, 0, 2000)
    candidate[::2] *= -1
    result = nearest(query, candidate, 10)
    assert result.index_QK.tolist() == oracles.nearest(query.numpy(), candidate.numpy(), 10)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"metric": "dot"}, "metric is 'dot', want 'euclidean' or 'cosine'"),
        ({"k": 0}, "k is 0 among 12 candidates"),
        ({"candidate_CD": torch.zeros(0, 4)}, "k is 3 among 0 candidates"),
        ({"candidate_CD": torch.zeros(5, 3)}, "queries are 4 wide, candidates 3"),
        (
            {"query_QD": torch.full((2, 4), torch.nan)},
            "2 of 2 embeddings of queries hold NaN or Inf",
        ),
    ],
)
def test_invalid_embeddings_and_settings_are_refused(change, message):
    arguments = {"query_QD": torch.zeros(2, 4), "candidate_CD": torch.zeros(12, 4), "k": 3} | change
    with pytest.raises(ValueError, match=message):
        nearest(**arguments)


def test_no_queries_give_an_empty_result():
    assert nearest(torch.zeros(0, 4), torch.zeros(12, 4), 3).index_QK.shape == (0, 3)


def in_parts(rank, collective, folder):
    query, candidate = vectors("grid")
    torch.save(nearest(query, candidate, 10, collective=collective).index_QK, folder / f"{rank}.pt")


def test_two_workers_give_the_result_of_one(tmp_path: Path):
    run_workers(in_parts, 2, tmp_path)
    expected = nearest(*vectors("grid"), 10).index_QK
    for rank in range(2):
        torch.testing.assert_close(torch.load(tmp_path / f"{rank}.pt", weights_only=True), expected)


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
@pytest.mark.parametrize("kind", ["normal", "grid", "copies"])
def test_nearest_others_in_blocks_are_the_nearest_without_the_row_itself(kind, metric):
    _, row_ND = vectors(kind, num_candidates=200)
    row_Q = torch.arange(0, 200, 7)
    found = nearest_others(row_ND[row_Q], row_Q, row_ND.split(37), 10, metric=metric)
    everything = nearest(row_ND[row_Q], row_ND, 200, metric=metric)
    for number, row in enumerate(row_Q.tolist()):
        others = everything.index_QK[number][everything.index_QK[number] != row]
        assert row not in found.index_QK[number]
        scores = dict(
            zip(
                everything.index_QK[number].tolist(),
                everything.score_QK[number].tolist(),
                strict=True,
            )
        )
        expected = [scores[other] for other in others[:10].tolist()]
        np.testing.assert_allclose(found.score_QK[number], expected, atol=1e-6)
    assert nearest_others(row_ND[:4], torch.arange(4), [row_ND[:4]], 10).index_QK.shape == (4, 3)


@pytest.mark.parametrize("num_candidates", [0, 1, 5, 639, 640, 1507])
def test_the_largest_scores_are_those_of_topk(num_candidates):
    score = torch.randn(9, num_candidates, generator=torch.Generator().manual_seed(0))
    score[0] = 0.5  # equal scores
    values, columns = largest(score, 10)
    assert torch.equal(values, score.topk(min(10, num_candidates)).values)
    assert torch.equal(score.gather(1, columns), values)
    assert all(len(set(row)) == len(row) for row in columns.tolist())
