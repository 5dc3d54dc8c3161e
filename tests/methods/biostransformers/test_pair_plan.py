from collections import Counter

import numpy as np
import pytest
import torch

from raybio.core.batch import deal
from raybio.core.config import override_all
from raybio.core.errors import ConfigError, DataError
from raybio.methods.biostransformers import plan as plan_module
from raybio.methods.biostransformers.batches import PairBatch
from raybio.methods.biostransformers.collate import PairCollate
from raybio.methods.biostransformers.collector import ArticleCollector
from raybio.methods.biostransformers.config import ArticleConfig, PairPlanConfig, TextConfig
from raybio.methods.biostransformers.formats.tables import Article, to_batch
from raybio.methods.biostransformers.loss import other_terms_of_text, other_texts_of_term
from raybio.methods.biostransformers.plan import CHECK_TAGS, DroppingBatch, PairPlan, fill_window
from raybio.store.writer import Draft
from tests.ops.threads import in_threads

TERMS = [f"Term {number}" for number in range(12)] + ["Humans"]


def make_store(folder, num_articles=60, seed=0, validation_share=0.2, first_pmid=100, force=False):
    rng = np.random.default_rng(seed)
    articles = []
    for number in range(num_articles):
        terms = [TERMS[term] for term in rng.choice(12, int(rng.integers(0, 4)), replace=False)]
        terms += ["Humans"] * bool(rng.random() < 0.6)
        abstract = f"abstract of {number}" if rng.random() < 0.5 else ""
        articles.append(Article(first_pmid + number, f"title of {number}", abstract, terms))
    with Draft(folder, force=force) as draft:
        collector = ArticleCollector(draft.folder)
        collector.add(to_batch(articles))
        return collector.commit(draft, ArticleConfig(validation_share=validation_share), {})


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return make_store(tmp_path_factory.mktemp("articles") / "store")


def plan_of(store, **settings):
    return PairPlan(store, override_all(PairPlanConfig(global_batch_rows=6), settings), seed=3)


def all_pairs(store, fields=("title",), stopped=()):
    """The definition: every training article's every text with its every term."""
    names = store.term_names.to_pylist()
    pairs = set()
    for article in range(store.num_rows):
        if store.is_validation_N[article]:
            continue
        for number, field in enumerate(fields):
            if store.texts(field, np.array([article]))[0]:
                bounds = store.term_indptr_N1[article : article + 2]
                pairs |= {
                    (article, number, int(term))
                    for term in store.term_E[slice(*bounds)]
                    if names[term] not in stopped
                }
    return pairs


def pairs_of(rows):
    return list(
        zip(rows.article_B.tolist(), rows.field_B.tolist(), rows.term_B.tolist(), strict=True)
    )


@pytest.mark.parametrize("conflicts", ["mask", "reject"])
@pytest.mark.parametrize("fields", ["title", "title,abstract"])
def test_every_epoch_holds_every_pair_exactly_once(store, conflicts, fields):
    plan = plan_of(store, **{"conflicts": conflicts, "fields": fields, "window_steps": 4})
    pairs = all_pairs(store, tuple(fields.split(",")))
    assert plan.num_pairs == len(pairs)
    # Windows do not end where epochs do: whole epochs show in how often each pair occurs.
    num_windows = plan.num_pairs  # window_steps * batch * num_pairs is a whole number of epochs
    seen = Counter(pair for step in range(4 * num_windows) for pair in pairs_of(plan.rows(step)))
    assert seen.keys() == pairs
    assert set(seen.values()) == {4 * 6}


def has_term(store, article_A, term_G):
    """Whether each article has each term, bool (A, G)."""
    bounds = store.term_indptr_N1
    terms_A = [store.term_E[bounds[article] : bounds[article + 1]] for article in article_A]
    return np.array([np.isin(term_G, terms) for terms in terms_A])


def test_rejection_leaves_no_text_beside_a_term_of_its_article_unless_it_says_so(store):
    plan = plan_of(store, stop_terms="check_tags", window_steps=8)
    num_deferred = 0
    for step in range(40):
        rows = plan.rows(step)
        clash = has_term(store, rows.article_B, rows.term_B) & ~np.eye(len(rows), dtype=bool)
        fits = ~rows.is_forced_B
        assert not clash[np.ix_(fits, fits)].any()
        assert rows.was_deferred_B[rows.is_forced_B].all()
        num_deferred += rows.was_deferred_B.sum()
    assert num_deferred > 0


def test_pairs_that_fit_nowhere_are_few_and_spread_over_all_batches():
    """300 articles with 3 of 400 terms, and one frequent term, which has too many pairs."""
    rng = np.random.default_rng(0)
    terms_of = [
        rng.choice(400, 3, replace=False).tolist() + [400] * bool(number % 5)
        for number in range(300)
    ]
    pairs = [(article, term) for article, terms in enumerate(terms_of) for term in terms]
    pairs = [pairs[index] for index in rng.permutation(len(pairs))][:1024]
    article, term = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    chosen, deferred, forced = fill_window(term, [terms_of[one] for one in article], 16, 64)
    assert sorted(chosen.ravel().tolist()) == list(range(1024))
    num_common = term.count(400)
    assert forced.sum() <= 1.1 * num_common
    share_K = forced[chosen].mean(axis=1)
    assert share_K.max() < 2 * share_K.mean()
    assert abs(share_K[:8].mean() - share_K[8:].mean()) < 0.1
    assert deferred.sum() < 0.5 * 1024


def test_masked_batches_do_have_conflicts_that_rejection_avoids(store):
    plan = plan_of(store, conflicts="mask")
    clashes = [
        (has_term(store, rows.article_B, rows.term_B) & ~np.eye(len(rows), dtype=bool)).sum()
        for rows in map(plan.rows, range(20))
    ]
    assert sum(clashes) > 0


@pytest.mark.parametrize("conflicts", ["mask", "reject", "drop"])
def test_a_step_is_a_function_of_its_number(store, conflicts):
    settings = {"conflicts": conflicts, "window_steps": 4, "global_batch_rows": 4}
    plan, again = (plan_of(store, **settings) for _ in range(2))
    expected = [pairs_of(plan.rows(step)) for step in range(12)]
    for step in (11, 3, 7, 0):
        assert pairs_of(again.rows(step)) == expected[step]


def authors_batches(plan, store, num_batches):
    """The authors' filling of batches as a loop over single pairs of the stream."""
    size = plan.config.global_batch_rows
    mask = plan_of(store, conflicts="mask", global_batch_rows=2)
    stream = (pair for step in range(10**6) for pair in pairs_of(mask.rows(step)))
    batches, dropped = [], []
    for _ in range(num_batches):
        batch, num_dropped, pmids, meshes, targets = [], 0, set(), set(), set()
        while len(batch) < size:
            article, field, term = next(stream)
            bounds = store.term_indptr_N1[article : article + 2]
            all_terms = set(store.term_E[slice(*bounds)].tolist())
            pmid = int(store.pmid_N[article])
            if pmid not in pmids and term not in meshes and not all_terms & targets:
                batch.append((article, field, term))
                meshes |= all_terms
                targets.add(term)
            else:
                num_dropped += 1
            pmids.add(pmid)
        batches.append(batch)
        dropped.append(num_dropped)
    return batches, dropped


def test_dropping_fills_batches_as_the_authors_code(store):
    plan = plan_of(store, conflicts="drop", global_batch_rows=4)
    expected, num_dropped = authors_batches(plan, store, 30)
    assert sum(num_dropped) > 0
    rows = [plan.rows(step) for step in range(30)]
    assert [pairs_of(batch) for batch in rows] == expected
    assert [int(batch.num_dropped_B.sum()) for batch in rows] == num_dropped
    for batch in rows:
        clash = has_term(store, batch.article_B, batch.term_B) & ~np.eye(4, dtype=bool)
        assert not clash.any()
        assert not batch.is_forced_B.any()


def test_batches_of_consecutive_steps_are_filled_once(store, monkeypatch):
    starts = []
    fill = PairPlan._fill_dropping

    def counted(plan, start):
        starts.append(start)
        return fill(plan, start)

    monkeypatch.setattr(PairPlan, "_fill_dropping", counted)
    plan = plan_of(store, conflicts="drop", global_batch_rows=4)
    in_order = [pairs_of(plan.rows(step)) for step in range(10)]
    assert len(starts) == len(set(starts)) == 10
    assert pairs_of(plan.rows(3)) == in_order[3]
    assert pairs_of(plan_of(store, conflicts="drop", global_batch_rows=4).rows(9)) == in_order[9]


def test_a_batch_that_drops_pairs_counts_articles_it_was_offered():
    batch = DroppingBatch(3)
    # The term of pair 1 belongs to article 0. Its article is not offered again with pair 2.
    batch.offer([0, 1, 1, 2], [5, 6, 7, 8], [[5, 6], [6, 7], [6, 7], [8]])
    assert batch.chosen == [0, 3]
    assert not batch.is_full
    # Article 3 has the term of pair 0; pair 5 fills the batch, and pair 6 comes too late.
    batch.offer([3, 4, 5], [9, 10, 11], [[5, 9], [10], [11]])
    assert batch.chosen == [0, 3, 5]
    assert batch.is_full


def test_a_batch_that_dropping_cannot_fill_is_refused(store):
    """There are 13 terms, and a batch holds one pair of each at most."""
    plan = plan_of(store, conflicts="drop", global_batch_rows=14)
    with pytest.raises(ConfigError, match="plan.conflicts is drop, and only [0-9]+ of .* pairs"):
        plan.rows(0)


def test_a_batch_that_its_first_pairs_keep_from_being_filled_starts_one_pair_later(tmp_path):
    """Most of these batches hold 7 pairs of 10 terms, and some end with 6."""
    rng = np.random.default_rng(0)
    articles = []
    for number in range(200):
        chosen = rng.choice(10, int(rng.integers(1, 4)), replace=False)
        articles.append(Article(1 + number, f"title of {number}", "", [TERMS[t] for t in chosen]))
    with Draft(tmp_path / "store") as draft:
        collector = ArticleCollector(draft.folder)
        collector.add(to_batch(articles))
        store = collector.commit(draft, ArticleConfig(validation_share=0.1), {})
    plan = plan_of(store, conflicts="drop", global_batch_rows=7)
    end = 0
    num_dropped = []
    for step in range(40):
        batch = plan.rows(step)
        clash = has_term(store, batch.article_B, batch.term_B) & ~np.eye(7, dtype=bool)
        assert not clash.any()
        end += int(batch.num_dropped_B.sum()) + len(batch)
        num_dropped.append(int(batch.num_dropped_B[0]))
    assert plan._starts.start(40) == end
    # Only a batch that was begun again has dropped pairs before its first one.
    assert any(num_dropped)
    assert not all(num_dropped)


def test_a_field_that_is_named_twice_is_refused():
    with pytest.raises(ConfigError, match="got title,title, want each field once"):
        override_all(PairPlanConfig(), {"fields": "title,title"})


def test_filling_a_window_equals_its_definition():
    # Pairs 0 and 1 share an article; pair 2's article has pair 0's term; pair 3 is free.
    term, terms = [5, 6, 7, 8], [[5, 6], [5, 6], [5, 7], [8]]
    # By how many pairs' articles have a term, the order is 2, 3 (one each), 1 (two), 0 (three).
    chosen, deferred, forced = fill_window(term, terms, 2, 2)
    assert chosen.tolist() == [[1, 0], [2, 3]]
    assert deferred.tolist() == [True, False, False, False]
    assert forced.tolist() == [True, False, False, False]


def fill_by_definition(article, term, terms, num_batches, size):
    """Each pair in its order goes to the first batch without a conflict, its own batch first."""
    count = Counter(t for own in terms for t in own)
    batches = [[] for _ in range(num_batches)]
    rest = []
    for pair in sorted(range(len(article)), key=lambda pair: count[term[pair]]):
        own = pair // size
        for number in (*range(own, num_batches), *range(own)):
            conflicts = (
                article[other] == article[pair]
                or term[pair] in terms[other]
                or term[other] in terms[pair]
                for other in batches[number]
            )
            if len(batches[number]) < size and not any(conflicts):
                batches[number].append(pair)
                break
        else:
            rest.append(pair)
    slots = [number for number, pairs in enumerate(batches) for _ in range(size - len(pairs))]
    for pair, number in zip(rest, slots, strict=True):
        batches[number].append(pair)
    return batches, rest


@pytest.mark.parametrize("num_batches, size", [(1, 8), (5, 8), (40, 3)])
def test_windows_are_filled_as_by_definition(num_batches, size):
    rng = np.random.default_rng(num_batches)
    terms_of = [sorted(rng.choice(25, int(rng.integers(1, 4)), replace=False)) for _ in range(60)]
    article = rng.integers(0, 60, num_batches * size).tolist()
    term = [int(rng.choice(terms_of[one])) for one in article]
    terms = [[int(t) for t in terms_of[one]] for one in article]
    chosen, deferred, forced = fill_window(term, terms, num_batches, size)
    expected, rest = fill_by_definition(article, term, terms, num_batches, size)
    assert chosen.tolist() == expected
    assert np.flatnonzero(forced).tolist() == sorted(rest)
    moved = {
        pair for number, pairs in enumerate(expected) for pair in pairs if pair // size != number
    }
    assert np.flatnonzero(deferred).tolist() == sorted(moved | set(rest))
    assert rest and moved - set(rest) or num_batches == 1


def test_what_fits_nowhere_is_taken_all_the_same_and_marked():
    chosen, deferred, forced = fill_window([1, 2, 3, 4], [[1, 2, 3, 4]] * 4, 2, 2)
    assert sorted(chosen.ravel().tolist()) == [0, 1, 2, 3]
    assert forced.sum() == 2


def test_check_tags_are_left_out_and_frequent_terms_capped(store):
    assert "Humans" in CHECK_TAGS
    stopped = plan_of(store, stop_terms="check_tags")
    assert stopped.num_pairs == len(all_pairs(store, stopped=CHECK_TAGS))
    capped = plan_of(store, conflicts="mask", max_pairs_per_term=2, fields="title,abstract")
    seen = {pair for step in range(3 * capped.num_pairs) for pair in pairs_of(capped.rows(step))}
    assert max(Counter((field, term) for _, field, term in seen).values()) == 2
    assert seen <= all_pairs(store, ("title", "abstract"))


def test_a_plan_without_pairs_or_with_too_large_a_batch_is_refused(tmp_path, store):
    with pytest.raises(ConfigError, match="global_batch_rows is 5000, but there are only"):
        plan_of(store, global_batch_rows=5000)
    nothing = make_store(tmp_path / "store", validation_share=0.99)
    with pytest.raises(DataError, match="no training article has a title"):
        plan_of(nothing)


def split_words(texts):
    """A tokenizer for tests: the number in a text, between two marks."""
    tokens = [[1, 2 + int("".join(filter(str.isdigit, text)) or 0), 0] for text in texts]
    return np.concatenate(tokens).astype(np.uint16), np.arange(len(texts) + 1) * 3


@pytest.mark.parametrize("world", [1, 3])
def test_collation_gives_texts_terms_and_masks_by_definition(store, world):
    config = PairPlanConfig(global_batch_rows=10, fields=("title", "abstract"), conflicts="mask")
    collate = PairCollate.of(
        store, config, TextConfig(), split_words, 3, reading="numbers", num_steps=5
    )
    for step in range(5):
        rows = collate.plan.rows(step)
        names = store.term_names.to_pylist()
        terms_of = [
            set(store.term_E[store.term_indptr_N1[a] : store.term_indptr_N1[a + 1]].tolist())
            for a in rows.article_B
        ]
        clash = np.array(
            [[j != i and rows.term_B[j] in terms_of[i] for j in range(10)] for i in range(10)]
        )
        shards = [collate(step, rank, world) for rank in range(world)]
        batches = [PairBatch.from_arrays(arrays) for arrays in shards]
        worker_B = deal(collate.lengths(rows), world)
        parts = [np.flatnonzero(worker_B == rank) for rank in range(world)]
        # Pairs as they are gathered from the workers, one after the other.
        gathered_B = np.concatenate(parts)
        firsts = np.cumsum([0, *map(len, parts)])

        def masks(collective, batches=batches, firsts=firsts):
            batch = batches[collective.rank]
            own_N = torch.arange(10)[firsts[collective.rank] : firsts[collective.rank + 1]]
            return (
                other_terms_of_text(batch, own_N, collective),
                other_texts_of_term(batch, own_N, 10, collective),
            )

        masks_of_workers = in_threads(world, masks)
        for part, arrays, (ignore_NG, reverse_NG) in zip(
            parts, shards, masks_of_workers, strict=True
        ):
            size = len(part)
            np.testing.assert_array_equal(ignore_NG, clash[part][:, gathered_B])
            np.testing.assert_array_equal(reverse_NG, clash.T[part][:, gathered_B])
            numbers = arrays["token_T"].reshape(-1, 3)[:, 1] - 2
            assert numbers[:size].tolist() == (store.pmid_N[rows.article_B[part]] - 100).tolist()
            digits = [
                "".join(filter(str.isdigit, names[term])) or "0" for term in rows.term_B[part]
            ]
            assert numbers[size:].tolist() == [int(text) for text in digits]


def test_articles_with_one_pmid_are_one_article_and_the_last_record_counts(tmp_path):
    with Draft(tmp_path / "store") as draft:
        collector = ArticleCollector(draft.folder)
        collector.add(
            to_batch(
                [Article(7, "old", "", ["Gone", "B"]), Article(3, "three", "x", ["B", "A", "B"])]
            )
        )
        collector.add(to_batch([Article(7, "new", "text", ["C"])]))
        store = collector.commit(draft, ArticleConfig(), {})
    assert store.pmid_N.tolist() == [3, 7]
    assert store.texts("title", np.array([1, 0])) == ["new", "three"]
    assert store.texts("abstract", np.array([0, 1])) == ["x", "text"]
    assert store.term_names.to_pylist() == ["A", "B", "C"]
    assert store.term_indptr_N1.tolist() == [0, 2, 3]
    assert store.term_E.tolist() == [0, 1, 2]
    assert store.manifest["counts"]["article_terms"] == 3


def test_the_split_goes_by_pmid_alone_so_a_corpus_that_grows_keeps_it(tmp_path):
    small = make_store(tmp_path / "small", num_articles=40)
    large = make_store(tmp_path / "large", num_articles=60)
    assert small.is_validation_N.tolist() == large.is_validation_N[:40].tolist()
    assert 0 < small.is_validation_N.mean() < 0.5
    without_the_first = make_store(tmp_path / "late", num_articles=40, first_pmid=120)
    assert without_the_first.is_validation_N.tolist() == large.is_validation_N[20:].tolist()


def test_processes_of_a_machine_share_the_windows_that_one_has_planned(
    store, tmp_path, monkeypatch
):
    monkeypatch.setenv("RAYBIO_CACHE", str(tmp_path))
    monkeypatch.setattr(plan_module, "MIN_SHARED_PAIRS", 1)
    settings = {"conflicts": "reject", "window_steps": 4, "global_batch_rows": 4}
    own, planning, reading, other = (plan_of(store, **settings) for _ in range(4))
    expected = [own.rows(step) for step in range(40)]
    assert not list(tmp_path.rglob("*.npy"))

    def refuse(*_):
        raise AssertionError("planned twice")

    for step in range(40):
        assert_equal_pairs(planning.rows(step, is_shared=True), expected[step])
        with monkeypatch.context() as patch:
            patch.setattr(plan_module, "fill_window", refuse)
            assert_equal_pairs(reading.rows(step, is_shared=True), expected[step])
    # Old windows are removed, and planned again by who wants them.
    assert len(list(tmp_path.rglob("*.npy"))) == 4
    assert_equal_pairs(other.rows(0, is_shared=True), expected[0])
    # What a power loss has cut off is planned again.
    for path in tmp_path.rglob("*.npy"):
        path.write_bytes(path.read_bytes()[:100])
    again = plan_of(store, **settings)
    assert_equal_pairs(again.rows(39, is_shared=True), expected[39])
    # Another seed or batch has windows of its own.
    assert (
        len({plan._series for plan in (own, plan_of(store), PairPlan(store, own.config, 4))}) == 3
    )


def test_a_cache_that_cannot_be_written_changes_no_plan(store, tmp_path, monkeypatch, caplog):
    (tmp_path / "file").touch()
    monkeypatch.setenv("RAYBIO_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(plan_module, "MIN_SHARED_PAIRS", 1)
    plan, expected = (plan_of(store, window_steps=4) for _ in range(2))
    for step in range(9):
        assert_equal_pairs(plan.rows(step, is_shared=True), expected.rows(step))
    assert caplog.text.count("each process plans its own batches") == 1


def assert_equal_pairs(got, expected):
    for name in expected.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(got, name), getattr(expected, name))
        assert getattr(got, name).dtype == getattr(expected, name).dtype
