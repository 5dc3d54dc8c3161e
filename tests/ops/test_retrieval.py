import numpy as np
import pytest
import torch

from raybio.ops import retrieval as module
from raybio.ops.nearest import nearest
from raybio.ops.retrieval import (
    Retrieval,
    Scores,
    cached_scores,
    cosine_scores,
    distance_scores,
    retrieve,
    retrieve_by_each,
    vector_scores,
)
from tests import oracles
from tests.ops.threads import in_threads


def vectors(kind, seed=0):
    """17 queries and 40 candidates."""
    rng = np.random.default_rng(seed)
    if kind == "normal":
        both = rng.normal(size=(57, 8))
    elif kind == "grid":  # many equal cosines between unequal vectors, and zero candidates
        both = rng.integers(-1, 2, (57, 2)).astype(float)
        both[:17][(both[:17] == 0).all(1)] = 1.0
    elif kind == "copies":
        both = rng.normal(size=(9, 300))[rng.integers(0, 9, 57)]
    elif kind == "constant":
        both = np.full((57, 5), 0.1)
    elif kind == "nearly parallel":
        both = rng.normal(size=(57, 4)) * 1e-3 + 1
    both = both.astype(np.float32)
    return torch.from_numpy(both[:17]), torch.from_numpy(both[17:])


def csr(sets):
    """Return the row pointers and the concatenated items of the sets."""
    indptr = np.cumsum([0, *map(len, sets)])
    return indptr, np.array([item for items in sets for item in items], dtype=np.int64)


def gold_sets(seed=0, num_queries=17, num_candidates=40):
    """Queries with none to all candidates as gold, in random order."""
    rng = np.random.default_rng(seed)
    sizes = [0, num_candidates, *rng.integers(0, 9, num_queries - 2)]
    return [rng.permutation(num_candidates)[:size].tolist() for size in sizes]


def cosines(query, candidate):
    return np.round([[oracles.cosine(q, c) for c in candidate.numpy()] for q in query.numpy()], 13)


@pytest.mark.parametrize("block_rows", [1024, 5])
@pytest.mark.parametrize("kind", ["normal", "grid", "copies", "constant", "nearly parallel"])
def test_ranks_and_r_precision_equal_the_loop(kind, block_rows):
    query, candidate = vectors(kind)
    gold = gold_sets()
    indptr, indices = csr(gold)
    retrieved = retrieve(cosine_scores(query, candidate), indptr, indices, block_rows=block_rows)
    score = cosines(query, candidate)
    assert retrieved.rank_P.tolist() == oracles.gold_ranks(score, gold)
    expected = oracles.r_precision(score, gold)
    assert retrieved.r_precision_Q.tolist() == pytest.approx(
        [np.nan if v is None else v for v in expected], nan_ok=True
    )
    evaluated = [value for value in expected if value is not None]
    assert retrieved.macro_r_precision == pytest.approx(sum(evaluated) / len(evaluated))
    hits = sum(
        value * len(gold_of_query)
        for value, gold_of_query in zip(expected, gold, strict=True)
        if gold_of_query
    )
    assert retrieved.r_hits_Q.sum() == pytest.approx(hits)


@pytest.mark.parametrize("kind", ["normal", "grid", "copies", "constant"])
def test_ranks_by_distance_and_their_reciprocal_mean_equal_the_loop(kind):
    query, candidate = vectors(kind)
    gold = gold_sets()
    retrieved = retrieve(vector_scores(query, candidate, "euclidean"), *csr(gold))
    score = np.round(
        [[-oracles.distance(q, c) for c in candidate.numpy()] for q in query.numpy()], 9
    )
    assert retrieved.rank_P.tolist() == oracles.gold_ranks(score, gold)
    assert retrieved.mean_reciprocal_rank == pytest.approx(
        oracles.mean_reciprocal_rank(score, gold)
    )


@pytest.mark.parametrize("k", [1, 3, 40])
def test_hits_at_k_equal_the_loop(k):
    query, candidate = vectors("normal")
    gold = gold_sets()
    indptr, indices = csr(gold)
    retrieved = retrieve(cosine_scores(query, candidate), indptr, indices)
    top_k = np.argsort(-cosines(query, candidate), axis=1, kind="stable")[:, :k].tolist()
    hits = [len(set(top) & set(items)) for top, items in zip(top_k, gold, strict=True)]
    assert retrieved.hits_at(k).tolist() == hits
    assert retrieved.true_positives_at(k) == sum(hits)
    recalls = [hit / len(items) for hit, items in zip(hits, gold, strict=True) if items]
    assert retrieved.recall_at(k) == pytest.approx(sum(recalls) / len(recalls))


def test_a_constant_encoder_gives_the_first_candidates_by_index():
    gold = [[0, 1], [2, 1], [38, 39]]
    indptr, indices = csr(gold)
    retrieved = retrieve(cosine_scores(torch.ones(3, 4), torch.ones(40, 4)), indptr, indices)
    assert retrieved.rank_P.tolist() == [0, 1, 2, 1, 38, 39]
    assert retrieved.r_precision_Q.tolist() == [1.0, 0.5, 0.0]


def test_the_length_of_a_vector_does_not_matter():
    query, candidate = vectors("normal")
    indptr, indices = csr(gold_sets())
    first = retrieve(cosine_scores(query, candidate), indptr, indices)
    second = retrieve(
        cosine_scores(query * 1e-6, candidate * torch.arange(1, 41)[:, None]), indptr, indices
    )
    assert first.rank_P.tolist() == second.rank_P.tolist()


@pytest.mark.parametrize("world", [2, 3, 30])
@pytest.mark.parametrize("kind", ["normal", "copies"])
def test_queries_divided_over_workers_give_exactly_the_ranks_of_one(world, kind):
    query, candidate = vectors(kind)
    indptr, indices = csr(gold_sets())
    scores = cosine_scores(query, candidate)
    alone = retrieve(scores, indptr, indices)
    for result in in_threads(
        world, lambda workers: retrieve(scores, indptr, indices, block_rows=2, collective=workers)
    ):
        assert result.rank_P.tolist() == alone.rank_P.tolist()


def test_memory_stays_within_a_block(monkeypatch):
    largest = []
    plain = module.count_ranks
    monkeypatch.setattr(
        module,
        "count_ranks",
        lambda block, *args: largest.append(block.numel()) or plain(block, *args),
    )
    generator = torch.Generator().manual_seed(0)
    query, candidate = (torch.randn(size, 4, generator=generator) for size in (300, 500))
    retrieve(cosine_scores(query, candidate), np.arange(301), np.arange(300), block_rows=16)
    assert max(largest) == 16 * 500


def test_scores_of_any_origin_are_ranked_and_blocks_without_gold_are_not_scored():
    score, scored = torch.tensor([[1.0, 3.0, 2.0]] * 4), []

    def block(first, end):
        scored.append((first, end))
        return score[first:end].clone()

    retrieved = retrieve(
        Scores(block, 4, 3), np.array([0, 0, 0, 1, 3]), np.array([2, 0, 1]), block_rows=2
    )
    assert retrieved.rank_P.tolist() == [1, 2, 0]
    assert scored == [(2, 4)]


def test_arrays_that_do_not_fit_together_are_refused():
    query, candidate = vectors("normal")
    scores = cosine_scores(query, candidate)
    indptr, indices = csr([[1]] * 17)
    with pytest.raises(ValueError, match="do not fit indptr"):
        retrieve(cosine_scores(query[:-1], candidate), indptr, indices)
    with pytest.raises(ValueError, match="want 0 <= candidate < 40"):
        retrieve(scores, indptr, indices + 39)
    with pytest.raises(ValueError, match="must rise from 0"):
        retrieve(scores, indptr, indices[:-1])
    with pytest.raises(ValueError, match="same gold candidate twice"):
        retrieve(scores, *csr([[1, 1]] + [[]] * 16))
    with pytest.raises(ValueError, match="want one encoder"):
        cosine_scores(query, candidate[:, :3])
    with pytest.raises(ValueError, match="no query has a gold candidate"):
        Retrieval(np.zeros(3, int), np.zeros(0, int), 40)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_embeddings_that_are_not_finite_are_refused(bad):
    query, candidate = vectors("normal")
    candidate[4, 2] = bad
    with pytest.raises(ValueError, match=r"1 of 40 embeddings of candidates .* row 4\)"):
        cosine_scores(query, candidate)


def test_scores_of_nan_are_refused_and_would_rank_first():
    score_QC = torch.tensor([[1.0, 3.0, 2.0], [torch.nan, 1.0, -torch.inf]])
    scores = Scores(lambda first, end: score_QC[first:end].clone(), 2, 3)
    with pytest.raises(ValueError, match="scores of queries 0 to 1 hold NaN"):
        retrieve(scores, *csr([[0], [0]]))
    score_QC[1, 0] = -torch.inf
    assert retrieve(scores, *csr([[0], [2]])).rank_P.tolist() == [2, 2]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("kind", ["normal", "grid", "copies", "constant"])
def test_a_gpu_gives_the_ranks_of_the_cpu(kind):
    query, candidate = vectors(kind)
    indptr, indices = csr(gold_sets())
    on_cpu = retrieve(cosine_scores(query, candidate), indptr, indices)
    on_gpu = retrieve(cosine_scores(query.cuda(), candidate.cuda()), indptr, indices)
    assert on_cpu.rank_P.tolist() == on_gpu.rank_P.tolist()


@pytest.mark.parametrize("kind", ["normal", "grid", "copies", "constant", "nearly parallel"])
def test_distances_equal_the_loop_and_have_the_order_of_nearest(kind):
    query, candidate = vectors(kind)
    score = distance_scores(query, candidate).block(2, 17)
    expected = [
        [-oracles.distance(q, c) for c in candidate.numpy().astype(float)]
        for q in query[2:].numpy()
    ]
    np.testing.assert_allclose(score.numpy(), expected, atol=1e-5)
    order = score.argsort(dim=1, descending=True, stable=True)
    assert torch.equal(order, nearest(query, candidate, 40).index_QK[2:])


def test_several_scores_are_ranked_as_each_alone_and_cached_blocks_are_computed_once():
    query, candidate = vectors("grid")
    indptr, indices = csr(gold_sets())
    evaluated = []
    plain = distance_scores(query, candidate)
    counted = Scores(
        lambda first, end: evaluated.append((first, end)) or plain.block(first, end), 17, 40
    )
    shared = cached_scores(counted)
    # Overwriting a block must not change the cached one.
    negative = Scores(lambda first, end: shared.block(first, end).neg_(), 17, 40)
    retrieved = retrieve_by_each([negative, shared, negative], indptr, indices, block_rows=5)
    assert evaluated == [(0, 5), (5, 10), (10, 15), (15, 17)]
    negated = Scores(lambda first, end: -plain.block(first, end), 17, 40)
    for retrieval, scores in zip(retrieved, (negated, plain, negated), strict=True):
        alone = retrieve(scores, indptr, indices)
        assert retrieval.rank_P.tolist() == alone.rank_P.tolist()


def test_scores_of_different_shapes_and_no_scores_are_refused():
    query, candidate = vectors("normal")
    indptr, indices = csr(gold_sets())
    both = [distance_scores(query, candidate), distance_scores(query, candidate[:9])]
    for several in (both, []):
        with pytest.raises(ValueError, match="want at least one kind, all of one shape"):
            retrieve_by_each(several, indptr, indices)
