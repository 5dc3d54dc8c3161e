"""Measures of retrieval: those of sentence-transformers, and their expectation for random orders."""

import math
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch

from raybio.core.errors import ConfigError
from raybio.evaluation.retrieval import (
    CUTOFFS,
    RETRIEVAL,
    chance_measures,
    query_measures,
    retrieval_report,
)
from raybio.ops.retrieval import Retrieval, Scores, retrieve


def scores_of(score_QC: np.ndarray) -> Scores:
    score = torch.from_numpy(score_QC)
    return Scores(lambda first, end: score[first:end].clone(), *score.shape)


def by_loop(score_C: np.ndarray, ids: list[str], gold: set[str]) -> dict[str, float]:
    """The definitions, a document at a time; equal scores in order of id."""
    ranking = sorted(ids, key=lambda name: (-score_C[ids.index(name)], name))
    found = [name in gold for name in ranking]
    gain = sum(1 / math.log2(rank + 2) for rank, hit in enumerate(found[:10]) if hit)
    ideal = sum(1 / math.log2(rank + 2) for rank in range(min(10, len(gold))))
    first = next((rank for rank, hit in enumerate(found[:10]) if hit), None)
    precisions = [
        sum(found[: rank + 1]) / (rank + 1) for rank, hit in enumerate(found[:100]) if hit
    ]
    expected = {
        "ndcg_at_10": gain / ideal,
        "mrr_at_10": 0.0 if first is None else 1 / (first + 1),
        "map_at_100": sum(precisions) / min(100, len(gold)),
    }
    for k in CUTOFFS:
        hits = sum(found[:k])
        expected |= {
            f"accuracy_at_{k}": float(hits > 0),
            f"precision_at_{k}": hits / k,
            f"recall_at_{k}": hits / len(gold),
        }
    return expected


class Table:
    """Embeddings by text, with which the evaluator of sentence-transformers is called."""

    def __init__(self, vector_by_text: dict[str, torch.Tensor]) -> None:
        self.vector_by_text = vector_by_text

    def encode_query(self, texts: list[str], **_: Any) -> torch.Tensor:
        return torch.stack([self.vector_by_text[text] for text in texts])

    encode_document = encode_query


@pytest.mark.parametrize("num_documents", [4, 250])
def test_measures_are_those_of_sentence_transformers_with_many_ties(num_documents: int) -> None:
    rng = np.random.default_rng(num_documents)
    ids = sorted(f"d{number}" for number in range(num_documents))
    query_ids = [f"q{number}" for number in range(30)]
    # Small whole numbers: scores are exact in any precision, and most of them tie.
    vectors = {name: torch.from_numpy(rng.integers(-2, 3, 3)).float() for name in ids + query_ids}
    gold = {
        name: set(rng.choice(ids, rng.integers(1, min(150, num_documents) + 1), replace=False))
        for name in query_ids
    }
    score_QC = (
        torch.stack([vectors[name] for name in query_ids]).double()
        @ torch.stack([vectors[name] for name in ids]).double().T
    )
    indptr = np.cumsum([0, *(len(gold[name]) for name in query_ids)])
    indices = np.array([ids.index(each) for name in query_ids for each in gold[name]])
    found = query_measures(retrieve(scores_of(score_QC.numpy()), indptr, indices))
    for number, name in enumerate(query_ids):
        expected = by_loop(score_QC[number].numpy(), ids, gold[name])
        of_query = {measure: values[number] for measure, values in found.items()}
        assert of_query == pytest.approx(expected, abs=1e-12)
    evaluation = pytest.importorskip("sentence_transformers.sentence_transformer.evaluation")
    from sentence_transformers.util import dot_score

    evaluator = evaluation.InformationRetrievalEvaluator(
        {name: name for name in query_ids},
        {name: name for name in rng.permutation(ids).tolist()},
        gold,
        accuracy_at_k=list(CUTOFFS),
        precision_recall_at_k=list(CUTOFFS),
        score_functions={"dot": dot_score},
    )
    theirs = evaluator.compute_all_metrics(Table(vectors))["dot"]
    for measure, values in found.items():
        name, _, k = measure.partition("_at_")
        assert values.mean() == pytest.approx(theirs[f"{name}@k"][int(k)], abs=1e-6), measure


@pytest.mark.parametrize("rank", [0, 9, 10, 99, 100])
def test_a_relevant_document_at_a_cut_off_does_not_count(rank: int) -> None:
    found = query_measures(Retrieval(np.array([0, 1]), np.array([rank]), 200))
    assert found["mrr_at_10"] == (1 / (1 + rank) if rank < 10 else 0)
    assert found["ndcg_at_10"] == (pytest.approx(1 / math.log2(rank + 2)) if rank < 10 else 0)
    assert found["map_at_100"] == (1 / (1 + rank) if rank < 100 else 0)
    for k in CUTOFFS:
        assert found[f"accuracy_at_{k}"] == (rank < k)


@pytest.mark.parametrize(("num_gold", "num_documents"), [(1, 1), (1, 5), (3, 5), (5, 5), (2, 6)])
def test_chance_is_the_mean_over_all_orders(num_gold: int, num_documents: int) -> None:
    orders = [
        query_measures(
            Retrieval(np.array([0, num_gold]), np.array(order[:num_gold]), num_documents)
        )
        for order in permutations(range(num_documents))
    ]
    expected = {name: np.mean([each[name] for each in orders]) for name in orders[0]}
    assert chance_measures(np.array([num_gold]), num_documents) == pytest.approx(expected)


def test_chance_beyond_the_cut_offs_is_what_random_orders_give() -> None:
    rng = np.random.default_rng(0)
    num_gold_U, num_documents = np.array([1, 15, 130]), 300
    indptr = np.cumsum([0, *num_gold_U])
    means = []
    for _ in range(1000):
        ranks = [rng.permutation(num_documents)[:num_gold] for num_gold in num_gold_U]
        values = query_measures(Retrieval(indptr, np.concatenate(ranks), num_documents))
        means.append([value_U.mean() for value_U in values.values()])
    chance = chance_measures(num_gold_U, num_documents)
    assert list(chance.values()) == pytest.approx(np.mean(means, axis=0), abs=0.02)


def test_a_report_has_the_rivals_and_other_models_above_the_first_one() -> None:
    documents = ["aspirin pain", "lithium tremor", "kinase receptor", ""]
    queries = ["what does lithium cause", "aspirin"]
    right = scores_of(np.array([[0, 1, 0, 0], [1, 0, 0, 0]], np.float64))
    wrong = scores_of(-np.array([[0, 1, 0, 0], [1, 0, 0, 0]], np.float64))
    task = (documents, queries, np.array([0, 1, 2]), np.array([1, 0]))
    models = {"runs/own": lambda *_: right, "other": lambda *_: wrong}
    report = retrieval_report(models, *task, unit_U=np.array([0, 7]))
    assert list(report.scores) == ["chance", "TF-IDF", "BM25", "other", "trained"]
    values = {
        stage: of_stage["queries"]["mrr_at_10"]["value"]
        for stage, of_stage in report.scores.items()
    }
    harmonic = (1 + 1 / 2 + 1 / 3 + 1 / 4) / 4
    expected = {"chance": harmonic, "TF-IDF": 1, "BM25": 1, "other": 1 / 4, "trained": 1}
    assert values == pytest.approx(expected)
    assert report.unit_scores["other"]["queries"].unit_U.tolist() == [0, 7]
    assert report.unit_scores["trained"]["queries"].value_by_measure["mrr_at_10"].tolist() == [1, 1]
    assert report.sizes == {"queries": "2 queries, 4 documents, 2 relevant pairs"}
    assert RETRIEVAL.measures.keys() <= report.scores["trained"]["queries"].keys()
    with pytest.raises(ConfigError, match="--model BM25: is the name of another row"):
        retrieval_report({"BM25": lambda *_: right}, *task, unit_U=np.arange(2))
