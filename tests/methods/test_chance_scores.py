"""The chance rows of retrieval: exact expectations, compared with the means over many random orders."""

from typing import Any

import numpy as np
import pytest

from raybio.methods.biostransformers.term_retrieval import term_chance
from raybio.methods.contrastive_probe.accuracy import (
    NUM_PREDICTED,
    chance_scores,
    evaluate_predictions,
)
from raybio.methods.contrastive_probe.benchmark.probe_benchmark import ProbeBenchmark
from raybio.methods.contrastive_probe.config import ProbeConfig
from raybio.methods.mtb_mccl.mtb.scores import pair_chance, pair_metrics
from raybio.methods.sppt.graph.csr import Graph
from raybio.methods.sppt.scores import link_chance
from raybio.ops.retrieval import Retrieval
from tests import oracles

LINKS = [(0, 1), (1, 2), (2, 3), (0, 4), (5, 6), (6, 7), (3, 5)]
"""Of two groups: nodes 0 to 4, and 5 to 7; the last link joins both groups and does not count."""
IGNORED = [(0, 2), (5, 7)]
GROUP_S = np.array([0] * 5 + [1] * 3)


def adjacency(edges: list[tuple[int, int]]) -> np.ndarray:
    is_linked = np.zeros((8, 8), dtype=bool)
    for one, other in edges:
        is_linked[one, other] = is_linked[other, one] = True
    return is_linked


@pytest.mark.parametrize("ignored", [[], IGNORED])
def test_link_chance_is_the_mean_over_random_scores_of_pairs(
    ignored: list[tuple[int, int]],
) -> None:
    rng = np.random.default_rng(0)
    cutoffs = (1, 5, 10, 25, 100)
    names = ["lrap", "ndcg", "average_precision", "mrr"]
    names += [f"{name}_at_{k}" for name in ("precision", "recall") for k in cutoffs]
    sums = dict.fromkeys(names, 0.0)
    for _ in range(1500):
        precision, anchors = [], []
        for group in (slice(0, 5), slice(5, 8)):
            size = group.stop - group.start
            score = np.triu(rng.random((size, size)), 1)
            linked, left_out = adjacency(LINKS)[group, group], adjacency(ignored)[group, group]
            found = list(oracles.retrieval_of_group(score + score.T, linked, left_out).values())
            anchors += found
            total = sum(one["precision_sum"] for one in found) / sum(
                one["num_links"] for one in found
            )
            precision += [total] * len(found)
        sums["lrap"] += np.mean([one["lrap"] for one in anchors]) / 1500
        sums["ndcg"] += np.mean([one["ndcg"] for one in anchors]) / 1500
        sums["mrr"] += np.mean([one["reciprocal_rank"] for one in anchors]) / 1500
        sums["average_precision"] += np.mean(precision) / 1500
        num_links = sum(one["num_links"] for one in anchors)
        for k in cutoffs:
            hits = sum(one["hits"][k] for one in anchors)
            sums[f"precision_at_{k}"] += hits / k / len(anchors) / 1500
            sums[f"recall_at_{k}"] += hits / num_links / 1500
    left_out_graph = Graph.from_edges(ignored, 8) if ignored else None
    found_chance = link_chance(Graph.from_edges(LINKS, 8), GROUP_S, left_out_graph)
    assert found_chance == pytest.approx(sums, rel=0.02)


def random_retrieval(num_queries: int, num_candidates: int) -> Retrieval:
    """Queries with 1, 2 or 3 gold candidates, in random order."""
    rng = np.random.default_rng(0)
    sizes = np.arange(num_queries) % 3 + 1
    ranks = [np.sort(rng.choice(num_candidates, size, replace=False)) for size in sizes]
    return Retrieval(np.concatenate([[0], np.cumsum(sizes)]), np.concatenate(ranks), num_candidates)


def test_chance_of_terms_and_of_pairs_is_what_random_orders_give() -> None:
    found = random_retrieval(20_000, 30)
    terms = term_chance({"text_to_term": found})["text_to_term"]
    for k in (1, 10, 100):
        assert terms[f"recall_at_{k}"]["value"] == pytest.approx(found.recall_at(k), abs=0.01)
    assert terms["r_precision"]["value"] == pytest.approx(found.macro_r_precision, abs=0.01)
    pairs = {f"pair_{name}": score["value"] for name, score in pair_chance(found).items()}
    assert pairs == pytest.approx(pair_metrics(found), abs=0.01)


BENCHMARK = ProbeBenchmark(
    relations=("r", "s"),
    prompts=("[X] r [Y].", "[X] s [Y]."),
    names=tuple("abcdefghijkl"),
    is_tail_C=np.isin(np.arange(12), [0, 1, 2, 3, 5]),
    relation_Q=np.array([0, 0, 1], np.int16),
    head_Q=np.array([0, 5, 2], np.int32),
    indptr_Q1=np.array([0, 1, 3, 5]),
    answer_P=np.array([1, 2, 5, 0, 3], np.int32),
    cuis=tuple("abcdefghijkl"),
    cui_indptr_C1=np.arange(13),
    cui_E=np.array([0, 0, *range(2, 12)], np.int32),
)
"""Two relations, three queries, 12 names; names 0 and 1 share a concept."""


@pytest.mark.parametrize("candidates", ["all", "tails", "relation"])
@pytest.mark.parametrize("exclude_head", [False, True])
@pytest.mark.parametrize("match", ["name", "cui"])
def test_chance_of_a_probe_is_what_random_names_give(
    candidates: Any, exclude_head: bool, match: Any
) -> None:
    config = ProbeConfig(candidates=candidates, exclude_head=exclude_head, match=match)
    rng = np.random.default_rng(0)
    pools = {
        "all": [np.arange(12)] * 3,
        "tails": [np.flatnonzero(BENCHMARK.is_tail_C)] * 3,
        "relation": [
            np.flatnonzero(BENCHMARK.is_tail_RC[relation]) for relation in BENCHMARK.relation_Q
        ],
    }[candidates]
    draws = []
    for _ in range(500):
        predicted_QK = np.full((3, NUM_PREDICTED), -1)
        for query, pool in enumerate(pools):
            order = rng.permutation(
                pool[pool != BENCHMARK.head_Q[query]] if exclude_head else pool
            )[:NUM_PREDICTED]
            predicted_QK[query, : len(order)] = order
        found = evaluate_predictions(BENCHMARK, predicted_QK, match)
        draws.append({f"acc_at_{k}": found.macro(k) for k in (1, 5, 10)})
        draws[-1] |= {f"micro_acc_at_{k}": found.micro(k) for k in (1, 5, 10)}
    means = {name: np.mean([one[name] for one in draws]) for name in draws[0]}
    chance = {name: score["value"] for name, score in chance_scores(BENCHMARK, config).items()}
    assert chance == pytest.approx(means, abs=0.03)
