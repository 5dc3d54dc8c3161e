"""Rankings by words and letters; the loops over BM25 and TF-IDF stand with the zero-shot tasks."""

import numpy as np
import pytest
import torch
from sklearn.feature_extraction.text import TfidfVectorizer

from raybio.evaluation.lexical import (
    bm25_scores,
    character_scores,
    tfidf_scores,
    with_random_ties,
)
from raybio.ops.retrieval import Scores, retrieve

DOCUMENTS = ("cell death", "cell", "blood cells", "", "heart attack")
QUERIES = ("death of a cell", "cardiac arrest", "")


@pytest.mark.parametrize("scorer", [tfidf_scores, bm25_scores, character_scores])
def test_documents_without_a_word_are_equally_near_to_every_query(scorer):
    assert torch.equal(scorer(QUERIES, ("", "!")).block(0, 3)[:, 0], torch.zeros(3).double())
    nothing = scorer(QUERIES, ("", " "))
    assert (nothing.num_queries, nothing.num_candidates) == (3, 2)
    assert torch.equal(nothing.block(1, 3), torch.zeros(2, 2).double())


@pytest.mark.parametrize("scorer", [tfidf_scores, bm25_scores])
def test_an_empty_query_and_a_query_of_unseen_words_score_0_everywhere(scorer):
    score_QC = scorer(QUERIES, DOCUMENTS).block(0, 3)
    assert not score_QC[1:].any()
    assert score_QC[0, 0] > 0
    assert not score_QC[0, 2:].any()  # "cells" is another word than "cell"


def test_character_scores_are_cosines_of_the_sequences_of_2_to_4_characters():
    def grams(text: str) -> list[str]:
        found = []
        for word in text.lower().split():
            padded = f" {word} "
            for size in (2, 3, 4):
                found += [padded[at : at + size] for at in range(len(padded) - size + 1)]
        return found

    listed = [grams(one) for one in DOCUMENTS]
    idf = {
        gram: np.log((1 + len(listed)) / (1 + sum(gram in one for one in listed))) + 1
        for one in listed
        for gram in one
    }

    def vector(own: list[str]) -> dict[str, float]:
        return {g: (1 + np.log(own.count(g))) * idf[g] for g in set(own) if g in idf}

    def cosine(one: dict[str, float], other: dict[str, float]) -> float:
        product = sum(weight * other.get(gram, 0.0) for gram, weight in one.items())
        lengths = [np.sqrt(sum(w * w for w in own.values())) for own in (one, other)]
        return product / (lengths[0] * lengths[1]) if all(lengths) else 0.0

    expected = [
        [cosine(vector(grams(query)), vector(document)) for document in listed] for query in QUERIES
    ]
    score_QC = character_scores(QUERIES, DOCUMENTS).block(0, 3).numpy()
    assert score_QC == pytest.approx(np.array(expected), abs=1e-8)
    assert score_QC[0, 2] > 0  # "cells" begins as "cell" does
    whole = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), sublinear_tf=True)
    assert set(whole.fit(DOCUMENTS).vocabulary_) == set(idf)


def test_equal_scores_are_found_as_by_chance_whatever_the_size_of_blocks():
    """In the order of candidates, gold candidate 0 would always be first."""
    num_queries, num_candidates = 3000, 20
    equal = with_random_ties(
        Scores(
            lambda first, end: torch.full((end - first, num_candidates), 0.3),
            num_queries,
            num_candidates,
        )
    )
    gold = np.zeros(num_queries, np.int64)
    found = [
        retrieve(equal, np.arange(num_queries + 1), gold, block_rows=size) for size in (7, 1024)
    ]
    assert np.array_equal(found[0].rank_P, found[1].rank_P)
    for k in (1, 5, 10):
        assert found[0].recall_at(k) == pytest.approx(k / num_candidates, abs=0.03)


def test_ties_are_of_equal_scores_alone():
    score_QC = torch.tensor([[0.5, 0.5 + 1e-8, 0.1, 0.5, 0.5 - 1e-11]], dtype=torch.float64)
    tied = with_random_ties(Scores(lambda first, end: score_QC[first:end].clone(), 1, 5))
    order = tied.block(0, 1)[0].argsort(descending=True).tolist()
    assert order[0] == 1
    assert set(order[1:4]) == {0, 3, 4}
    assert order[4] == 2
