"""Rivals of MTB's retrieval of entity pairs."""

from pathlib import Path

import numpy as np
import pytest

from raybio.methods.mtb_mccl.mtb.rivals import pair_rivals
from raybio.methods.mtb_mccl.mtb.scores import pair_scores, query_units
from raybio.methods.mtb_mccl.mtb.system import build
from raybio.methods.mtb_mccl.pair_words import PairTfidf, PairWords
from raybio.ops.retrieval import Retrieval
from raybio.training.collective import SingleProcess
from tests.methods.conformance_cases import tiny_config
from tests.methods.mtb_mccl.several_relations import labeled_store


def words_of(features: list[list[int]], types: list[int]) -> PairWords:
    sizes = [len(part) for part in features]
    return PairWords(
        np.cumsum([0, *sizes]),
        np.concatenate([np.array(part) for part in features]),
        np.array(types),
    )


def test_candidates_are_ranked_by_types_or_by_cosines_and_ties_at_random() -> None:
    rng = np.random.default_rng(0)
    candidate = words_of([rng.integers(0, 12, 5).tolist() for _ in range(40)], [0, 1] * 20)
    query = words_of([rng.integers(0, 12, 5).tolist() for _ in range(30)], [1, 0, 2] * 10)
    scores = dict(pair_rivals(query, candidate))
    by_type = scores["entity types"].block(0, 30).numpy()
    np.testing.assert_allclose(by_type, query.type_P[:, None] == candidate.type_P[None], atol=1e-6)
    tfidf = PairTfidf.fit(candidate)
    cosine_QC = (tfidf.vectors(query) @ tfidf.vectors(candidate).T).toarray()
    by_words = scores["TF-IDF"].block(0, 30).numpy()
    np.testing.assert_allclose(by_words, cosine_QC, atol=2e-6)
    for score_QC in (by_type, by_words):
        assert all(len(np.unique(row)) == 40 for row in score_QC)  # no ties are left
    # A query without a candidate of its types finds any of them first.
    assert len(set(by_type[2::3].argmax(1).tolist())) > 3
    # Blocks draw what the whole draws.
    for name, whole in scores.items():
        np.testing.assert_array_equal(
            np.concatenate([whole.block(0, 7), whole.block(7, 30)]), whole.block(0, 30), name
        )


def test_equal_candidates_are_found_by_chance() -> None:
    equal = words_of([[1, 2]] * 100, [0] * 100)
    for _, scores in pair_rivals(equal, equal):
        score_QC = scores.block(0, 100).numpy()
        first_Q = (score_QC > np.diagonal(score_QC)[:, None]).sum(1)
        assert 35 < first_Q.mean() < 65


def evaluator_of(store: Path, **settings: object):
    return build(tiny_config("mtb_pretrain", **settings), store).final_evaluate.__self__


def test_the_final_table_shows_rivals_that_see_no_blanked_name(tiny_documents) -> None:
    config = {"evaluation.num_pairs": 10, "pairs.held_out_share": 0.3, "evaluation.blank_rate": 1.0}
    evaluator = evaluator_of(tiny_documents.path, **config)
    report = evaluator.final_report(evaluator.initial_encoder(), SingleProcess())
    assert list(report.scores) == ["chance", "entity types", "TF-IDF", "initial", "trained"]
    for name in ("entity types", "TF-IDF"):
        assert report.scores[name].keys() == report.scores["trained"].keys() == {"train", "val"}
        assert report.scores[name]["val"]["mrr"]["value"] < 1
    # Names give pairs away.
    seen = evaluator_of(tiny_documents.path, **config | {"evaluation.blank_rate": 0.0})
    by_name = dict(seen.rivals("cpu", SingleProcess()))["TF-IDF"].scores
    for split, measures in by_name.items():
        assert measures["mrr"]["value"] > report.scores["TF-IDF"][split]["mrr"]["value"]
    other = evaluator_of(
        tiny_documents.path, **config | {"optim.peak_lr": 0.5, "objective.temperature": 0.5}
    )
    for name, found in other.rivals("cpu", SingleProcess()):
        assert found.scores == report.scores[name]


def test_runs_that_blank_other_shares_in_training_are_evaluated_on_the_same_texts(
    tiny_documents,
) -> None:
    scores = []
    for rate in (0.0, 0.5, 1.0):
        config = {"pairs.held_out_share": 0.3, "blanks.blank_rate": rate}
        evaluator = evaluator_of(tiny_documents.path, **config)
        report = evaluator.final_report(evaluator.initial_encoder(), SingleProcess())
        assert report.scores["TF-IDF"]["val"]["mrr"]["value"] < 1
        scores.append(report.scores)
    assert scores[0] == scores[1] == scores[2]


def test_both_orders_of_a_pair_are_one_unit_where_relations_are_directed(tmp_path) -> None:
    store, _ = labeled_store(tmp_path)
    assert store.is_directed
    evaluator = evaluator_of(store.path, **{"pairs.held_out_share": 0.5})
    retrieval, id_Q, _ = evaluator._retrieve(evaluator.initial_encoder(), "val", SingleProcess())
    report = evaluator.final_report(evaluator.initial_encoder(), SingleProcess())
    unit_scores = report.unit_scores["trained"]["val"]
    pairs = evaluator._queries("val").key_Q2.tolist()
    assert len(unit_scores.unit_U) == len(pairs) == len(id_Q) / 2
    # The two rows of a pair follow each other in no fixed order: look them up.
    best_Q = np.minimum.reduceat(retrieval.rank_P, retrieval.indptr[:-1])
    mrr_by_pair: dict[tuple[int, ...], list[float]] = {}
    size = len(store.entity_keys)
    for number, best in zip(id_Q.tolist(), best_Q.tolist(), strict=True):
        mrr_by_pair.setdefault(tuple(sorted(divmod(number, size))), []).append(1 / (1 + best))
    for number, mrr in zip(unit_scores.unit_U, unit_scores.value_by_measure["mrr"], strict=True):
        rows = mrr_by_pair[tuple(sorted(divmod(int(number), size)))]
        assert len(rows) == 2 and mrr == pytest.approx(np.mean(rows))
    shown = report.scores["trained"]["val"]["mrr"]
    means = np.array([np.mean(rows) for rows in mrr_by_pair.values()])
    assert shown["value"] == pytest.approx(means.mean())


def test_a_query_that_comes_twice_narrows_no_interval() -> None:
    rank_Q = np.random.default_rng(0).integers(0, 20, 30)
    id_Q = np.arange(30) * 100 + 50  # head 0 to 29, tail 50
    once = Retrieval(np.arange(31), rank_Q, 40)
    reversed_Q = 50 * 100 + np.arange(30)
    twice = Retrieval(np.arange(61), np.tile(rank_Q, 2), 40)
    scores = [
        pair_scores(retrieval, query_units(ids, 100), np.random.default_rng(0))
        for retrieval, ids in ((once, id_Q), (twice, np.concatenate([id_Q, reversed_Q])))
    ]
    assert scores[0].keys() == scores[1].keys()
    for name, interval in scores[0].items():
        assert interval == pytest.approx(scores[1][name])


def test_units_are_in_the_order_of_the_queries_and_may_have_several() -> None:
    units = query_units(np.array([3 * 10 + 1, 2 * 10 + 7, 1 * 10 + 3, 7 * 10 + 2, 2 * 10 + 7]), 10)
    assert units.id_U.tolist() == [31, 27]
    assert units.unit_Q.tolist() == [0, 1, 0, 1, 1]


def test_units_of_the_scores_are_the_entity_pairs(tiny_documents) -> None:
    config = {"evaluation.num_pairs": 4, "pairs.held_out_share": 0.5}
    units = []
    for seed in range(2):
        evaluator = evaluator_of(tiny_documents.path, seed=seed, **config)
        report = evaluator.final_report(evaluator.initial_encoder(), SingleProcess())
        unit_U = report.unit_scores["trained"]["val"].unit_U
        for name in ("entity types", "TF-IDF"):
            np.testing.assert_array_equal(report.unit_scores[name]["val"].unit_U, unit_U)
        pairs = {tuple(pair) for pair in evaluator._queries("val").key_Q2.tolist()}
        size = len(tiny_documents.entity_keys)
        assert {tuple(sorted(divmod(unit, size))) for unit in unit_U.tolist()} == pairs
        units.append(unit_U.tolist())
    assert units[0] == units[1]
