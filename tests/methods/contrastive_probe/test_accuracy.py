import numpy as np
import pytest
import torch

from raybio.methods.contrastive_probe.accuracy import (
    ProbeOutcome,
    answer_lengths,
    evaluate_predictions,
    is_correct,
    predict_names,
)
from raybio.methods.contrastive_probe.config import ProbeConfig
from raybio.ops.nearest import nearest
from tests import oracles
from tests.methods.contrastive_probe.small_benchmark import benchmark_of, random_benchmark


def search(query, candidate, k):
    return nearest(query, candidate, k).index_QK


def embeddings(benchmark, seed=0, width=3):
    generator = torch.Generator().manual_seed(seed)
    rows = len(benchmark.relation_Q), len(benchmark.names)
    return tuple(torch.randint(-3, 4, (num, width), generator=generator).float() for num in rows)


def slow_predictions(benchmark, query, name, config):
    """One query after the other, one name after the other."""
    found = []
    answers = [
        set(part.tolist()) for part in np.split(benchmark.answer_P, benchmark.indptr_Q1[1:-1])
    ]
    for q in range(len(query)):
        allowed = set(range(len(name)))
        if config.candidates == "tails":
            allowed = set().union(*answers)
        if config.candidates == "relation":
            same = np.flatnonzero(benchmark.relation_Q == benchmark.relation_Q[q])
            allowed = set().union(*(answers[other] for other in same))
        if config.exclude_head:
            allowed -= {int(benchmark.head_Q[q])}
        order = oracles.nearest(query[q : q + 1].numpy(), name.numpy(), len(name))[0]
        found.append([c for c in order if c in allowed][:10])
    return [row + [-1] * (10 - len(row)) for row in found]


def slow_first_hits(benchmark, predicted, match):
    cuis = [
        {
            int(cui)
            for cui in benchmark.cui_E[benchmark.cui_indptr_C1[c] : benchmark.cui_indptr_C1[c + 1]]
        }
        for c in range(len(benchmark.names))
    ]
    first = []
    for q, row in enumerate(predicted):
        gold = benchmark.answer_P[benchmark.indptr_Q1[q] : benchmark.indptr_Q1[q + 1]].tolist()
        concepts = set().union(*(cuis[c] for c in gold)) if match == "cui" else set()
        hits = [
            place for place, c in enumerate(row) if c >= 0 and (c in gold or cuis[c] & concepts)
        ]
        first.append(hits[0] if hits else 10)
    return first


@pytest.mark.parametrize("exclude_head", [False, True])
@pytest.mark.parametrize("candidates", ["all", "tails", "relation"])
@pytest.mark.parametrize("num_names", [40, 7])
def test_predictions_equal_the_loop_for_every_set_of_candidates(
    candidates, exclude_head, num_names
):
    benchmark = random_benchmark(num_names=num_names)
    config = ProbeConfig(candidates=candidates, exclude_head=exclude_head)
    query, name = embeddings(benchmark)
    assert predict_names(benchmark, query, name, config, search).tolist() == slow_predictions(
        benchmark, query, name, config
    )


@pytest.mark.parametrize("match", ["name", "cui"])
def test_correct_predictions_equal_the_loop(match):
    benchmark = random_benchmark()
    predicted = predict_names(
        benchmark, *embeddings(benchmark), ProbeConfig(exclude_head=True), search
    )
    found = evaluate_predictions(benchmark, predicted, match)
    assert found.first_hit_Q.tolist() == slow_first_hits(benchmark, predicted, match)
    by_cui, by_name = (
        is_correct(benchmark, predicted, "cui"),
        is_correct(benchmark, predicted, "name"),
    )
    assert (by_cui & by_name == by_name).all() and by_cui.sum() > by_name.sum()


def test_means_over_relations_and_over_queries_skip_relations_without_queries():
    found = ProbeOutcome(("a", "b", "c"), np.array([0, 0, 0, 2]), np.array([0, 4, 10, 10]))
    assert found.by_relation(1).tolist() == pytest.approx([1 / 3, np.nan, 0], nan_ok=True)
    assert (found.macro(5), found.micro(5)) == pytest.approx((1 / 3, 1 / 2))
    for mean in ("macro", "micro"):
        interval = found.interval(5, mean, np.random.default_rng(0))
        assert interval.value == pytest.approx(getattr(found, mean)(5))
        assert 0 <= interval.low < interval.value < interval.high <= 1


def test_accuracy_by_length_of_the_answers_in_characters():
    names = ["aa", "bbbb", "c" * 12, "d" * 70]
    queries = [
        ("may_treat", "aa", ["bbbb", "aa"]),
        ("may_treat", "aa", ["c" * 12]),
        ("may_treat", "bbbb", ["d" * 70]),
    ]
    benchmark = benchmark_of(queries, names)
    assert answer_lengths(benchmark).tolist() == [3, 12, 70]
    bins = evaluate_predictions(benchmark, np.array([[0], [3], [3]])).by_length(
        1, answer_lengths(benchmark)
    )
    assert [(one.first, one.num_queries, one.accuracy) for one in bins] == [
        (0, 1, 1),
        (10, 1, 0),
        (60, 1, 1),
    ]


def test_a_constant_encoder_scores_chance():
    """Each of 40 names answers one query, and ties are in order of names: 10 of 40 at k = 10."""
    names = [f"n{number:02d}" for number in range(40)]
    benchmark = benchmark_of([("may_treat", "n00", [name]) for name in names], names)
    predicted = predict_names(
        benchmark, torch.full((40, 5), 0.1), torch.full((40, 5), 0.1), ProbeConfig(), search
    )
    found = evaluate_predictions(benchmark, predicted)
    assert [found.micro(k) for k in (1, 5, 10)] == [1 / 40, 5 / 40, 10 / 40]


def test_a_query_whose_only_answer_is_its_head_is_correct_unless_heads_are_excluded():
    benchmark = benchmark_of([("may_treat", "x", ["x"])], ["x", "y"])
    query, name = torch.zeros(1, 2), torch.tensor([[0.0, 0.0], [1.0, 0.0]])
    hits = []
    for exclude_head in (False, True):
        predicted = predict_names(
            benchmark, query, name, ProbeConfig(exclude_head=exclude_head), search
        )
        hits.append(evaluate_predictions(benchmark, predicted).micro(10))
    assert hits == [1, 0]


def test_a_name_without_concepts_is_still_correct_as_a_name():
    benchmark = benchmark_of([("may_treat", "x", ["y"])], ["x", "y"], {"x": [], "y": []})
    assert is_correct(benchmark, np.array([[1, 0, -1]]), "cui").tolist() == [[True, False, False]]


def test_a_paired_test_separates_a_better_model_from_a_worse_one():
    relation_Q = np.repeat([0, 1], 50)
    good = ProbeOutcome(("a", "b"), relation_Q, np.zeros(100, int))
    bad = ProbeOutcome(("a", "b"), relation_Q, np.where(np.arange(100) % 4 == 0, 0, 10))
    test = good.test(bad, 1, "macro", np.random.default_rng(0))
    assert test.difference == pytest.approx(good.macro(1) - bad.macro(1))
    assert test.p < 0.001
    assert good.test(good, 1, "micro", np.random.default_rng(0)).p == 1
    other = ProbeOutcome(("a", "b"), relation_Q[::-1], np.zeros(100, int))
    with pytest.raises(ValueError, match="over different queries"):
        good.test(other, 1, "micro", np.random.default_rng(0))


def test_embeddings_of_another_benchmark_are_refused():
    benchmark = random_benchmark()
    with pytest.raises(ValueError, match="59 and 40 embeddings for 60 queries and 40 names"):
        predict_names(benchmark, torch.zeros(59, 2), torch.zeros(40, 2), ProbeConfig(), search)
