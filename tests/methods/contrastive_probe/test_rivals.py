"""Rivals of the probe against loops over queries and names."""

import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer

from raybio.core.final_report import CHARACTERS
from raybio.methods.contrastive_probe.accuracy import chance_scores, evaluate_predictions
from raybio.methods.contrastive_probe.config import ProbeConfig
from raybio.methods.contrastive_probe.rivals import (
    ORACLE_PRIOR,
    predict_by_rivals,
    prior_scores,
)
from raybio.methods.contrastive_probe.run_probe import write_probe_report
from tests.encoders.tiny_text import save_tiny
from tests.methods.contrastive_probe.small_benchmark import benchmark_of, random_benchmark

NAME = "contrastive_probe"


def slow_prior(benchmark, query: int) -> list[int]:
    """Count the other queries of the relation that each name answers."""
    counts = [0] * len(benchmark.names)
    complete = benchmark.complete or benchmark
    own = query
    if benchmark.index_in_complete_Q is not None:
        own = int(benchmark.index_in_complete_Q[query])
    for other in range(len(complete.relation_Q)):
        if other != own and complete.relation_Q[other] == benchmark.relation_Q[query]:
            for name in complete.answers(other).tolist():
                counts[name] += 1
    return counts


def allowed_names(benchmark, config: ProbeConfig, query: int) -> set[int]:
    allowed = set(range(len(benchmark.names)))
    if config.candidates == "tails":
        allowed = set(np.flatnonzero(benchmark.is_tail_C).tolist())
    if config.candidates == "relation":
        allowed = set(np.flatnonzero(benchmark.is_tail_RC[benchmark.relation_Q[query]]).tolist())
    return allowed - ({int(benchmark.head_Q[query])} if config.exclude_head else set())


def assert_are_the_best(predicted_K, scores, allowed) -> None:
    """Equal scores may stand in any order."""
    found = [name for name in predicted_K if name >= 0]
    assert len(found) == min(10, len(allowed)) == len(set(found))
    assert set(found) <= allowed
    expected = sorted((scores[name] for name in allowed), reverse=True)[: len(found)]
    assert [scores[name] for name in found] == pytest.approx(expected)


@pytest.mark.parametrize("exclude_head", [False, True])
@pytest.mark.parametrize("candidates", ["all", "tails", "relation"])
@pytest.mark.parametrize("is_sample", [False, True])
def test_the_oracle_prior_counts_the_other_queries_of_the_relation(
    candidates, exclude_head, is_sample
):
    benchmark = random_benchmark()
    if is_sample:
        benchmark = benchmark.sample(5, seed=1)
    config = ProbeConfig(candidates=candidates, exclude_head=exclude_head)
    predicted_QK = predict_by_rivals(benchmark, config)[ORACLE_PRIOR]
    for query, predicted_K in enumerate(predicted_QK.tolist()):
        counts = slow_prior(benchmark, query)
        assert prior_scores(benchmark).block(query, query + 1)[0].tolist() == counts
        assert_are_the_best(predicted_K, counts, allowed_names(benchmark, config, query))


def test_no_query_finds_its_answer_by_its_own_gold():
    """Each name answers one query, so the others say nothing of it: their names come first."""
    names = [f"n{number:02d}" for number in range(40)]
    benchmark = benchmark_of([("may_treat", "n00", [name]) for name in names], names)
    predicted_QK = predict_by_rivals(benchmark, ProbeConfig())[ORACLE_PRIOR]
    assert evaluate_predictions(benchmark, predicted_QK).micro(10) == 0


def test_names_are_ranked_by_the_likeness_of_their_characters_to_the_query():
    names = sorted(["lung", "lung cancer", "brain", "brain tumor", "may", "q"])
    queries = [
        ("may_treat", "lung cancer", ["lung"]),
        ("occurs_after", "brain tumor", ["brain"]),
    ]
    benchmark = benchmark_of(queries, names)
    vectorizer = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), sublinear_tf=True)
    name_CV = vectorizer.fit_transform(names).toarray()
    texts = ["lung cancer may treat  .", "brain tumor occurs after  ."]
    score_QC = vectorizer.transform(texts).toarray() @ name_CV.T
    for config in (ProbeConfig(), ProbeConfig(exclude_head=True)):
        predicted_QK = predict_by_rivals(benchmark, config)[CHARACTERS]
        for query, predicted_K in enumerate(predicted_QK.tolist()):
            allowed = allowed_names(benchmark, config, query)
            assert_are_the_best(predicted_K, score_QC[query], allowed)


def test_names_without_a_common_character_are_found_at_chance():
    names = [f"{letter}{letter}" for letter in "abcdefghijklmnopqrstuvwxyzäöüß0123456789"]
    queries = [("may_treat", "zz", ["aa"])] * 1500
    benchmark = benchmark_of(queries, sorted(names))
    reworded = type(benchmark)(
        **{**vars(benchmark), "prompts": ("[X] … [Y]",) * len(benchmark.relations)}
    )
    predicted_QK = predict_by_rivals(reworded, ProbeConfig(exclude_head=True))[CHARACTERS]
    found = evaluate_predictions(reworded, predicted_QK)
    chance = chance_scores(reworded, ProbeConfig(exclude_head=True))
    for k in (1, 5, 10):
        assert found.micro(k) == pytest.approx(chance[f"micro_acc_at_{k}"]["value"], abs=0.04)


def test_the_report_of_a_probe_has_the_rivals_below_chance(tmp_path: Path) -> None:
    folder = tmp_path / "benchmark" / "2021AA"
    folder.mkdir(parents=True)
    rows = ["head_cui,head_name,rel,tail_names,tail_cuis"]
    rows += [f"C{n},drug {n},may_treat,pain,C99" for n in range(12)]
    (folder / "may_treat_12.csv").write_text("\n".join(rows))
    model = save_tiny(tmp_path / "tiny")
    out = tmp_path / "report"
    write_probe_report([model], [tmp_path / "benchmark"], out, ProbeConfig())
    (query_set,) = json.loads((out / "report.json").read_text())["sets"]
    assert [rival["label"] for rival in query_set["rivals"]] == [CHARACTERS, ORACLE_PRIOR]
    # All 12 queries have one answer, which the others give away.
    assert query_set["rivals"][1]["micro"]["1"]["value"] == 1
    table = (out / "tables" / "scores_full_set.csv").read_text().splitlines()
    labels = [line.split(",")[0] for line in table]
    assert labels == ["model", "chance", CHARACTERS, ORACLE_PRIOR, "tiny"]
    by_relation = (out / "tables" / "by_relation_full_set_acc_1.csv").read_text()
    assert by_relation.startswith(f"relation,{CHARACTERS},{ORACLE_PRIOR},tiny")
    # Published figures are those of MedLAMA, which this is not.
    assert not (out / "tables" / "table_3_approaches_full_set.csv").exists()
