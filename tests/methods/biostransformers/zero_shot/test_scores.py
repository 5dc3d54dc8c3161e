import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from raybio.core.errors import DataError
from raybio.evaluation.lexical import BASELINES, bm25_scores, tfidf_scores
from raybio.methods.biostransformers.zero_shot.ranking import RetrievalTask, YesNoTask
from raybio.methods.biostransformers.zero_shot.report import (
    PUBLISHED_ZERO_SHOT,
    report_data,
    report_markdown,
)
from raybio.methods.biostransformers.zero_shot.scores import encoder_scorer, evaluate_task
from raybio.ops.retrieval import Scores
from tests import oracles

DOCUMENTS = (
    "Aspirin inhibits platelets; aspirin is old.",
    "Statins lower cholesterol in the blood.",
    "Blood platelets and aspirin.",
    "Statins lower cholesterol in the blood.",
    "A cell.",
    "Nothing of the kind, nothing at all, nothing.",
)
QUERIES = ("aspirin platelets aspirin", "cholesterol of the blood", "zebra")


def task(gold=((0, 2), (1, 3), (5,)), queries=QUERIES, documents=DOCUMENTS, dataset="PubMedQA"):
    return RetrievalTask.of("toy", dataset, queries, documents, gold, "Find it.")


def random_encoder(texts, width=64):
    """Another direction for each text, whatever it says."""
    return torch.stack(
        [torch.randn(width, generator=torch.Generator().manual_seed(_hash(text))) for text in texts]
    )


def letters(texts):
    """How often each letter stands in a text."""
    return (
        torch.tensor(
            [
                [text.lower().count(letter) for letter in "abcdefghijklmnopqrstuvwxyz"]
                for text in texts
            ]
        )
        * 1.0
    )


def _hash(text):
    return sum(ord(letter) * 31**place for place, letter in enumerate(text)) % 2**61


def words(text):
    return re.findall(r"\b\w\w+\b", text.lower())


def numbered(num, num_gold, seed=0):
    """``num`` queries and documents whose texts say nothing; gold by lot."""
    rng = np.random.default_rng(seed)
    gold = [rng.choice(num, num_gold, replace=False).tolist() for _ in range(num)]
    return task(gold, [f"query {q}" for q in range(num)], [f"document {d}" for d in range(num)])


def test_bm25_equals_the_loop():
    score = bm25_scores(QUERIES, DOCUMENTS).block(0, 3).numpy()
    expected = [
        oracles.bm25(words(query), [words(one) for one in DOCUMENTS], 1.2, 0.75)
        for query in QUERIES
    ]
    assert score == pytest.approx(np.array(expected), abs=1e-8)


def test_tfidf_equals_the_loop():
    """scikit-learn's idf: log((1 + documents) / (1 + documents with the word)) + 1."""
    listed = [words(one) for one in DOCUMENTS]
    vocabulary = sorted({word for one in listed for word in one})

    def vector(own):
        idf = [math.log(7 / (1 + sum(word in one for one in listed))) + 1 for word in vocabulary]
        counts = [own.count(word) for word in vocabulary]
        return np.array(
            [(1 + math.log(c)) * w if c else 0.0 for c, w in zip(counts, idf, strict=True)]
        )

    score = tfidf_scores(QUERIES, DOCUMENTS).block(0, 3).numpy()
    expected = [
        [oracles.cosine(vector(words(query)), vector(one)) for one in listed] for query in QUERIES
    ]
    assert score == pytest.approx(np.array(expected), abs=1e-8)


@pytest.mark.parametrize("scores", [tfidf_scores, bm25_scores])
def test_blocks_are_rows_of_the_whole_and_equal_documents_tie(scores):
    block = scores(QUERIES, DOCUMENTS).block
    assert torch.equal(torch.cat([block(0, 1), block(1, 3)]), block(0, 3))
    assert torch.equal(block(0, 3)[:, 1], block(0, 3)[:, 3])


@pytest.mark.parametrize("block_rows", [1, 1024])
@pytest.mark.parametrize("scorer", [tfidf_scores, bm25_scores, encoder_scorer(letters)])
def test_micro_is_the_r_precision_of_the_loop(scorer, block_rows):
    gold = [(0, 2), (1, 3, 4), (5,), ()]
    query_rows = task(gold, [*QUERIES, "blood cell"])
    result = evaluate_task(
        query_rows, {"one": scorer}, np.random.default_rng(0), block_rows=block_rows
    ).scorers[0]
    score = scorer(query_rows.queries, query_rows.documents).block(0, 4).numpy()
    shares = oracles.r_precision(score, gold)[:3]
    assert result.macro.value == pytest.approx(sum(shares) / 3)
    assert result.micro.value == pytest.approx(
        sum(s * len(g) for s, g in zip(shares, gold[:3], strict=True)) / 6
    )
    assert result.micro.low <= result.micro.value <= result.micro.high


def test_a_constant_encoder_finds_the_first_documents():
    constant = encoder_scorer(lambda texts: torch.ones(len(texts), 3))
    result = evaluate_task(
        task(gold=[(0, 1), (2, 1), (5,)]), {"constant": constant}, np.random.default_rng(0)
    ).scorers[0]
    assert result.micro.value == pytest.approx(3 / 5)
    assert result.macro.value == pytest.approx((1 + 0.5 + 0) / 3)


@pytest.mark.parametrize("num_gold", [1, 30])
def test_a_random_encoder_is_at_chance(num_gold):
    query_rows = numbered(300, num_gold)
    result = evaluate_task(
        query_rows, {"random": encoder_scorer(random_encoder)}, np.random.default_rng(1)
    )
    assert result.chance == pytest.approx((num_gold / 300, num_gold / 300))
    assert abs(result.scorers[0].micro.value - result.chance.micro) < 4 * math.sqrt(
        num_gold / 300 / 300 / num_gold
    )


def test_chance_is_the_mean_over_all_orders_of_the_documents():
    query_rows = task(gold=[(0,), (1, 2, 3), ()])
    rng, micro, macro = np.random.default_rng(0), [], []
    for _ in range(1500):
        order = rng.random((3, 6))
        scores = Scores(lambda first, end, order=order: torch.from_numpy(order[first:end]), 3, 6)
        hits = query_rows.count_hits(scores, 1024)
        micro.append(hits.hits_U.sum() / hits.total_U.sum())
        macro.append((hits.hits_U / hits.total_U).mean())
    assert query_rows.chance() == pytest.approx((np.mean(micro), np.mean(macro)), abs=0.01)


def test_systems_that_differ_are_distinguished_and_equal_ones_are_not():
    query_rows = numbered(200, 2)
    row_by_text = {text: row for row, text in enumerate(query_rows.documents)}

    def knowing(texts):
        """Queries lie where their gold lies."""
        vectors = torch.zeros(len(texts), 200)
        for row, text in enumerate(texts):
            gold = (
                [row_by_text[text]]
                if text in row_by_text
                else query_rows.indices[2 * row : 2 * row + 2]
            )
            vectors[row, gold] = 1.0
        return vectors

    blind = encoder_scorer(random_encoder)
    scorers = {"blind": blind, "knowing": encoder_scorer(knowing), "blind again": blind}
    first, knowing, again = evaluate_task(query_rows, scorers, np.random.default_rng(0)).scorers
    assert (first.micro_test, first.macro_test) == (None, None)
    assert knowing.micro.value == knowing.macro.value == 1.0
    assert knowing.micro_test.difference == pytest.approx(1 - first.micro.value)
    assert knowing.micro_test.p == knowing.macro_test.p == pytest.approx(1 / 10_001)
    assert (again.micro_test.p, again.macro_test.p) == (1.0, 1.0)
    assert (again.micro, again.macro) == (first.micro, first.macro)


def test_an_interval_does_not_depend_on_other_scorers():
    alone = evaluate_task(task(), {"BM25": bm25_scores}, np.random.default_rng(3)).scorers[0]
    among = evaluate_task(task(), BASELINES, np.random.default_rng(3)).scorers[1]
    assert (alone.micro, alone.macro) == (among.micro, among.macro)


def pairs(is_yes, num=None):
    num = num or len(is_yes)
    return YesNoTask(
        "toy",
        "BioASQ",
        tuple(f"q{q}" for q in range(num)),
        tuple(f"d{q}" for q in range(num)),
        "Yes?",
        np.array(is_yes),
    )


@pytest.mark.parametrize("block_rows", [1, 3, 1024])
def test_yes_is_said_of_the_best_pairs(block_rows):
    score = torch.full((7, 7), 99.0, dtype=torch.float64)  # pairs with others' texts do not count
    score.fill_diagonal_(0)
    score.diagonal().copy_(torch.tensor([0.9, 0.1, 0.5, 0.5, 0.5, 0.2, 0.7]))
    query_rows = pairs(
        [True, True, False, True, True, False, False]
    )  # said of 0, 6, 2, 3: ties by index
    scorer = {
        "given": lambda _queries, _documents: Scores(
            lambda first, end: score[first:end].clone(), 7, 7
        )
    }
    result = evaluate_task(
        query_rows, scorer, np.random.default_rng(0), block_rows=block_rows
    ).scorers[0]
    assert result.micro.value == pytest.approx(2 * 2 / (4 + 4))
    assert (result.macro, result.macro_test) == (None, None)
    assert query_rows.chance() == (4 / 7, None)


def test_tasks_that_ask_nothing_are_refused():
    with pytest.raises(DataError, match="not all empty"):
        task(gold=[(), (), ()])
    with pytest.raises(DataError, match="3 queries with 2 sets"):
        task(gold=[(1,), (2,)])
    with pytest.raises(DataError, match="at least one yes"):
        pairs([False, False])
    with pytest.raises(DataError, match="want one each"):
        pairs([True], num=2)
    with pytest.raises(ValueError, match="at least one scorer"):
        evaluate_task(task(), {}, np.random.default_rng(0))


def test_embeddings_that_are_not_finite_are_refused():
    broken = encoder_scorer(lambda texts: torch.full((len(texts), 3), torch.nan))
    with pytest.raises(ValueError, match="has training diverged"):
        evaluate_task(task(), {"broken": broken}, np.random.default_rng(0))


def test_the_report_is_plain_json_and_a_table_a_task():
    results = [
        evaluate_task(
            query_rows, {"letters": encoder_scorer(letters)} | BASELINES, np.random.default_rng(0)
        )
        for query_rows in (task(), task(dataset="my own"))
    ]
    results.append(
        evaluate_task(
            pairs([True, False, True]),
            {"letters": encoder_scorer(letters)},
            np.random.default_rng(0),
        )
    )
    results[0] = replace(results[0], num_trained_on={"letters": 0})
    data = json.loads(json.dumps(report_data(results, {"seed": 0}), allow_nan=False))
    assert [one["scorer"] for one in data["tasks"][0]["scorers"]] == ["letters", "TF-IDF", "BM25"]
    assert data["tasks"][0]["scorers"][1]["micro"]["value"] == results[0].scorers[1].micro.value
    assert data["tasks"][0]["scorers"][0]["micro_test"] is None
    assert data["tasks"][2]["scorers"][0]["macro"] is None
    assert data["tasks"][0]["num_trained_on"] == {"letters": 0}
    first, second, third = report_markdown(results, {"seed": 0}).split("\n## ")[1:4]
    for text in (first, second):
        assert "Find it. (3 queries, 6 documents, 5 gold)" in text
        assert re.search(
            r"\| TF-IDF \| \d\.\d{3} \[\d\.\d{3}, \d\.\d{3}\] \| .* \| \d\.\d{4} \| \d\.\d{4} \|",
            text,
        )
        assert "| chance | 0.300 | 0.278 |" in text
    assert "Of its 0 articles, 0 were in the training set of letters." in first
    assert "was trained on" not in second
    assert (
        first.count("(published)")
        == third.count("(published)")
        == len(PUBLISHED_ZERO_SHOT["PubMedQA"])
    )
    assert "| S-PubMedBERT (published) | 0.729 |" in first
    assert "(published)" not in second


def test_the_published_fine_tuned_models_carry_the_remark_that_they_cannot_be_compared():
    text = report_markdown([], {"seed": 0})
    assert "accuracies" in text
    assert re.search(r"not comparable\s+with the zero-shot tables", text)
    assert "| PubMedQA | 0.516 | 0.528 | 0.602 | 0.574 | 0.491 | 0.484 | 0.558 |" in text
