import numpy as np
import pytest
import torch

from raybio.methods.biostransformers.term_retrieval import (
    draw_term_queries,
    retrieve_terms,
    term_metrics,
    term_scores,
    true_positives,
)

INDPTR = np.array([0, 2, 3, 3, 5])
TERM = np.array([0, 2, 1, 0, 1], dtype=np.int32)


def test_queries_are_the_articles_with_terms_both_ways():
    queries = draw_term_queries(np.arange(4), INDPTR, TERM, 4, num_articles=0, seed=0)
    assert queries.row_Q.tolist() == [0, 1, 3]
    assert queries.indptr.tolist() == [0, 2, 3, 5]
    indptr, texts = queries.reversed
    assert [texts[indptr[t] : indptr[t + 1]].tolist() for t in range(4)] == [
        [0, 2],
        [1, 2],
        [0],
        [],
    ]


def test_a_sample_is_drawn_once_for_a_seed():
    rows = np.arange(4)
    one = draw_term_queries(rows, INDPTR, TERM, 4, num_articles=2, seed=1)
    assert (
        one.row_Q.tolist()
        == draw_term_queries(rows, INDPTR, TERM, 4, num_articles=2, seed=1).row_Q.tolist()
    )
    assert len(one.row_Q) == 2


def test_an_encoder_that_knows_the_terms_finds_them_all():
    queries = draw_term_queries(np.arange(4), INDPTR, TERM, 4, 0, 0)
    terms = torch.eye(4)
    texts = torch.stack([terms[[0, 2]].sum(0), terms[1], terms[[0, 1]].sum(0)])
    found = retrieve_terms(queries, texts, terms, block_rows=2)
    metrics = term_metrics(found)
    assert metrics["val/text_to_term_r_precision"] == 1
    assert metrics["val/text_to_term_recall_at_1"] == pytest.approx((0.5 + 1 + 0.5) / 3)
    assert true_positives(found)["text_to_term"] == {
        str(k): hits
        for k, hits in zip(
            (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000),
            (3, *[5] * 12),
            strict=True,
        )
    }


def test_random_vectors_score_at_chance():
    rng = np.random.default_rng(0)
    num_texts, num_terms = 400, 50
    indptr = np.arange(num_texts + 1)
    queries = draw_term_queries(
        np.arange(num_texts),
        indptr,
        rng.integers(0, num_terms, num_texts).astype(np.int32),
        num_terms,
        0,
        0,
    )
    generator = torch.Generator().manual_seed(0)
    texts, terms = (torch.randn(size, 64, generator=generator) for size in (num_texts, num_terms))
    scores = term_scores(retrieve_terms(queries, texts, terms, 64), rng)["text_to_term"][
        "recall_at_10"
    ]
    assert scores["low"] < 10 / num_terms < scores["high"]
