"""Rivals of term retrieval against loops."""

import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from raybio.evaluation.lexical import tfidf_scores
from raybio.methods.biostransformers import rivals as rivals_module
from raybio.methods.biostransformers import store as article_store
from raybio.methods.biostransformers.collector import ArticleCollector
from raybio.methods.biostransformers.config import ArticleConfig
from raybio.methods.biostransformers.formats.tables import Article, to_batch
from raybio.methods.biostransformers.rivals import (
    FREQUENT,
    nearest_scores,
    retrieve_by_nearest,
    retrieve_by_rivals,
)
from raybio.methods.biostransformers.store import ArticleStore
from raybio.methods.biostransformers.term_retrieval import draw_term_queries, term_chance
from raybio.store.writer import Draft
from tests import oracles
from tests.ops.threads import in_threads

NAME = "biostransformers"
TERMS = ("Heart Failure", "Humans", "Liver", "Mice")
TEXTS = ("the failing heart: heart failure", "liver of mice", "a liver, a heart", "")
INDPTR = np.array([0, 2, 4, 6, 7])
TERM = np.array([0, 1, 2, 3, 0, 2, 1], np.int32)


def found_by_rivals(texts=TEXTS, terms=TERMS, counts=(1, 9, 2, 2), block_rows=2):
    queries = draw_term_queries(np.arange(4), INDPTR, TERM, len(terms), 0, 0)
    return dict(retrieve_by_rivals(queries, texts, terms, np.array(counts), block_rows))


def words(text: str) -> list[str]:
    return re.findall(r"\b\w\w+\b", text.lower())


def best_and_worst_ranks(score_C, gold) -> list[tuple[int, int]]:
    """Return the first and the last rank of each gold candidate among equal scores."""
    ranks = []
    for one in gold:
        above = sum(score > score_C[one] for score in score_C)
        ranks.append((above, sum(score >= score_C[one] for score in score_C) - 1))
    return ranks


def test_bm25_ranks_terms_for_texts_and_texts_for_terms_as_the_loop():
    found = found_by_rivals()["BM25"]
    of_text = np.split(TERM, INDPTR[1:-1])
    of_term = [[q for q in range(4) if term in of_text[q]] for term in range(4)]
    for direction, queries, documents, gold in (
        ("text_to_term", TEXTS, TERMS, of_text),
        ("term_to_text", TERMS, TEXTS, of_term),
    ):
        listed = [words(one) for one in documents]
        bounds = []
        for query, own in zip(queries, gold, strict=True):
            score = np.round(oracles.bm25(words(query), listed, 1.2, 0.75), 9)
            bounds += best_and_worst_ranks(score, own)
        ranks = found[direction].rank_P.tolist()
        assert all(low <= r <= high for r, (low, high) in zip(ranks, bounds, strict=True))
        assert any(low == high for low, high in bounds)


def random_texts(rng: np.random.Generator, number: int) -> list[str]:
    """Texts of few words, so that some are equally near to others and some to none."""
    return [
        " ".join(f"word{word}" for word in rng.integers(0, 12, rng.integers(0, 5)))
        for _ in range(number)
    ]


@pytest.mark.parametrize("per_block", [1, 100, 10_000])
def test_nearest_articles_give_their_terms_as_the_loop(
    per_block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rivals_module, "NUM_NEAREST", 3)
    monkeypatch.setattr(rivals_module, "SIMILARITIES_PER_BLOCK", per_block)
    rng = np.random.default_rng(0)
    texts = random_texts(rng, 30)
    training = random_texts(rng, 40)
    term_RC = sparse.csr_matrix((rng.random((40, 6)) < 0.3).astype(float))
    found_QC = nearest_scores(texts, training, term_RC).toarray()
    similarities = tfidf_scores(texts, training).block(0, 30).numpy()
    for text, score_C in enumerate(found_QC):
        nearest = sorted(range(40), key=lambda row: (-similarities[text][row], row))[:3]
        expected = [0.0] * 6
        for row in nearest:
            for term in range(6):
                expected[term] += similarities[text][row] * term_RC[row, term]
        assert score_C.tolist() == pytest.approx(expected)
    queries = draw_term_queries(np.arange(4), INDPTR, TERM, 6, 0, 0)
    found = retrieve_by_nearest(queries, texts[:4], training, term_RC, 2)
    for direction, score, gold, indptr in (
        ("text_to_term", found_QC[:4], queries.indices, queries.indptr),
        ("term_to_text", found_QC[:4].T, *queries.reversed[::-1]),
    ):
        bounds = []
        for query, (first, end) in enumerate(itertools.pairwise(indptr)):
            bounds += best_and_worst_ranks(np.round(score[query], 9), gold[first:end])
        ranks = found[direction].rank_P.tolist()
        assert all(low <= rank <= high for rank, (low, high) in zip(ranks, bounds, strict=True))


@pytest.mark.parametrize("world", [2, 50])
def test_workers_divide_the_search_for_nearest_articles(
    world: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    texts = random_texts(rng, 30)
    training = random_texts(rng, 40)
    term_RC = sparse.csr_matrix((rng.random((40, 6)) < 0.3).astype(float))
    alone = nearest_scores(texts, training, term_RC).toarray()
    num_searched = []
    search = np.argpartition

    def counted(key_BR: np.ndarray, *arguments: Any, **options: Any) -> np.ndarray:
        num_searched.append(len(key_BR))
        return search(key_BR, *arguments, **options)

    monkeypatch.setattr(np, "argpartition", counted)
    results = in_threads(
        world, lambda collective: nearest_scores(texts, training, term_RC, collective)
    )
    for result in results:
        assert np.array_equal(result.toarray(), alone)
    assert sum(num_searched) == len(texts)


def test_fewer_training_articles_than_neighbors_all_count() -> None:
    terms = sparse.csr_matrix(np.eye(2))
    found = nearest_scores(["liver cells", "heart"], ["liver cells", "brain"], terms)
    assert found.toarray() == pytest.approx(np.array([[1.0, 0.0], [0.0, 0.0]]))


def test_training_articles_are_drawn_of_many_and_have_texts(
    tiny_articles: ArticleStore,
) -> None:
    """With a bound far below the articles, the rows are drawn before they are looked at."""
    every = tiny_articles.training_rows("title", 10**6)
    has_text_N = tiny_articles.has_text_N("title")
    assert every.tolist() == np.flatnonzero(~tiny_articles.is_validation_N & has_text_N).tolist()
    for at_most in (3, len(every) - 1):
        some = tiny_articles.training_rows("title", at_most)
        assert 0 < len(some) <= at_most and set(some) <= set(every)
        assert np.array_equal(some, tiny_articles.training_rows("title", at_most))
    term_RC = tiny_articles.terms_of(every).toarray()
    for row, term_C in zip(every, term_RC, strict=True):
        start, end = tiny_articles.term_indptr_N1[row : row + 2]
        assert np.flatnonzero(term_C).tolist() == tiny_articles.term_E[start:end].tolist()


def test_frequent_terms_are_first_for_every_text_and_rank_no_texts():
    found = found_by_rivals()[FREQUENT]
    assert found.keys() == {"text_to_term"}
    ranks = np.split(found["text_to_term"].rank_P, INDPTR[1:-1])
    assert [ranks[0][0], ranks[0][1], ranks[3][0]] == [3, 0, 0]
    assert sorted(ranks[1]) == [1, 2]  # both have two articles


def test_texts_of_unseen_words_are_ranked_at_chance():
    rng = np.random.default_rng(0)
    num_texts, num_terms = 4000, 25
    term = rng.integers(0, 3, num_texts).astype(np.int32)  # the first terms alone
    queries = draw_term_queries(
        np.arange(num_texts), np.arange(num_texts + 1), term, num_terms, 0, 0
    )
    texts = ["" if number % 2 else f"unseen{number}" for number in range(num_texts)]
    terms = [f"term{number}" for number in range(num_terms)]
    rivals = dict(retrieve_by_rivals(queries, texts, terms, np.ones(num_terms), 512))
    for name in ("TF-IDF", "BM25", FREQUENT):
        found = rivals[name]["text_to_term"]
        chance = term_chance({"text_to_term": found})["text_to_term"]
        for k in (1, 10):
            assert found.recall_at(k) == pytest.approx(
                chance[f"recall_at_{k}"]["value"], abs=0.03
            ), (name, k)


def test_terms_are_counted_in_training_articles_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(article_store, "ARTICLES_PER_BLOCK", 10)
    articles = [Article(n, f"title {n}", "", ["A"] if n % 3 else ["B"]) for n in range(1, 200)]
    with Draft(tmp_path / "store") as draft:
        collector = ArticleCollector(draft.folder)
        collector.add(to_batch(articles))
        store = collector.commit(draft, ArticleConfig(validation_share=0.3), {})
    expected = [0, 0]
    for row in np.flatnonzero(~store.is_validation_N):
        for term in store.term_E[store.term_indptr_N1[row] : store.term_indptr_N1[row + 1]]:
            expected[term] += 1
    assert 0 < sum(expected) < 199
    assert store.num_training_articles_T().tolist() == expected
