"""Pairs by number, against the list of all of them; blocks, passes and bins of a few articles or pairs."""

import numpy as np
import pytest

from raybio.core.errors import StoreError
from raybio.core.randomness import hash_uniform
from raybio.methods.biostransformers import pair_index
from raybio.methods.biostransformers.pair_index import PairIndex
from raybio.methods.biostransformers.store import ArticleStore
from raybio.store.store import open_store
from tests.methods.biostransformers.test_pair_plan import make_store


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return make_store(tmp_path_factory.mktemp("articles") / "store", num_articles=203)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(pair_index, "ARTICLES_PER_BLOCK", 4)
    monkeypatch.setattr(pair_index, "ARTICLES_PER_PASS", 16)
    monkeypatch.setattr(pair_index, "PAIRS_PER_LOOKUP", 7)


def all_entries(store, field, is_stop_T=None, cap=None, priority_of=None):
    """The definition: a list of entries, of which the lowest priorities of a term are kept."""
    allowed = []
    num_by_term = {}
    for article in range(store.num_rows):
        if store.is_validation_N[article] or not store.texts(field, np.array([article]))[0]:
            continue
        for entry in range(*store.term_indptr_N1[article : article + 2].tolist()):
            term = int(store.term_E[entry])
            if is_stop_T is None or not is_stop_T[term]:
                allowed.append((article, entry, term))
    if cap is None:
        return [(article, entry) for article, entry, _ in allowed]
    kept = []
    for _, entry, term in sorted(allowed, key=lambda one: (priority_of(one[1]), one[1])):
        num_by_term[term] = num_by_term.get(term, 0) + 1
        if num_by_term[term] <= cap:
            kept.append(entry)
    return [(article, entry) for article, entry, _ in allowed if entry in kept]


def found_pairs(index):
    number = np.random.default_rng(0).permutation(len(index))
    article, entry, _ = index.look_up(number)
    pairs = dict(
        zip(number.tolist(), zip(article.tolist(), entry.tolist(), strict=True), strict=True)
    )
    return [pairs[one] for one in range(len(index))]


@pytest.mark.parametrize("field", ["title", "abstract"])
def test_pairs_are_those_of_the_list_in_its_order(store, monkeypatch, field):
    is_stop_T = np.isin(np.arange(len(store.term_names)), [0, 5, 12])
    for stops in (None, is_stop_T):
        index = PairIndex(store, field, stops)
        assert found_pairs(index) == all_entries(store, field, stops)
    # Read again after each look-up, as in a store that is too large to stay in memory.
    monkeypatch.setattr(pair_index, "RELEASED_BYTES", 0)
    assert found_pairs(index) == all_entries(store, field, is_stop_T)
    terms = index.terms_of(np.arange(store.num_rows))
    assert [len(of_article) for of_article in terms] == np.diff(store.term_indptr_N1).tolist()
    assert sum(terms, []) == store.term_E.tolist()
    nothing = PairIndex(store, "vernacular_title")
    assert len(nothing) == 0
    assert nothing.look_up(np.empty(0, np.int64))[0].tolist() == []


@pytest.mark.parametrize("cap", [1, 3, 20, 1000])
@pytest.mark.parametrize("max_bins", [1, 2, 256])
def test_frequent_terms_keep_the_pairs_of_lowest_priority(store, monkeypatch, cap, max_bins):
    monkeypatch.setattr(pair_index, "MAX_BINS", max_bins)
    is_stop_T = np.arange(len(store.term_names)) == 2
    index = PairIndex(store, "title", is_stop_T).capped(cap, key=9)
    expected = all_entries(
        store, "title", is_stop_T, cap, lambda entry: float(hash_uniform(9, entry))
    )
    assert found_pairs(index) == expected
    assert (index.cap is None) == (cap == 1000)


def test_among_equal_priorities_the_first_pairs_are_kept(store, monkeypatch):
    monkeypatch.setattr(pair_index, "hash_uniform", lambda key, entry_E: entry_E % 3 / 4)
    for cap in (1, 2, 5, 11):
        index = PairIndex(store, "title").capped(cap, key=0)
        expected = all_entries(store, "title", None, cap, lambda entry: entry % 3 / 4)
        assert found_pairs(index) == expected


def test_pairs_are_of_the_mapped_store_also_after_it_was_replaced(tmp_path):
    path = tmp_path / "store"
    before = make_store(path, num_articles=203)
    expected = all_entries(before, "title")
    before.map_all()
    make_store(path, num_articles=97, force=True)
    assert found_pairs(PairIndex(before, "title")) == expected
    opened = open_store(path, ArticleStore)
    make_store(path, num_articles=203, force=True)
    with pytest.raises(StoreError, match="it was prepared again since"):
        len(PairIndex(opened, "title"))
