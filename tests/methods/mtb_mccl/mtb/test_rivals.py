"""Rivals of MTB's retrieval of entity pairs."""

from pathlib import Path

import numpy as np

from raybio.methods.mtb_mccl.mtb.rivals import pair_rivals
from raybio.methods.mtb_mccl.mtb.system import build
from raybio.methods.mtb_mccl.pair_words import PairTfidf, PairWords
from raybio.training.collective import SingleProcess
from tests.methods.conformance_cases import tiny_config


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
