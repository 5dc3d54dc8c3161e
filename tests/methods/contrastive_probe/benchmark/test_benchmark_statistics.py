import json

import pytest

from raybio.core.errors import DataError
from raybio.methods.contrastive_probe.benchmark.hardness import read_hardness
from raybio.methods.contrastive_probe.benchmark.medlama import read_medlama
from raybio.methods.contrastive_probe.benchmark.probe_benchmark import ProbeQuery, build_benchmark
from raybio.methods.contrastive_probe.benchmark.statistics import (
    benchmark_statistics,
    statistics_markdown,
)
from tests.paths import SHARED_DATA

RELEASED = SHARED_DATA / "medlama"
real = pytest.mark.skipif(not RELEASED.exists(), reason="../shared/data/medlama is not there")
EASY = ProbeQuery("may_treat", "Aspirin", ["Aspirin", "acute pain"], [("Aspirin", "C1")])
HARD = ProbeQuery("may_treat", "Honey", ["acute pain"], [("Honey", "C2")])
OTHER = ProbeQuery("occurs_after", "Aspirin", ["sleep of the just"], [("Aspirin", "C1")])


def test_a_benchmark_is_counted_by_relation_and_by_length_of_answers():
    data = benchmark_statistics(
        build_benchmark([EASY, HARD, OTHER], {}), build_benchmark([HARD], {})
    )
    assert {name: data[name] for name in data if name.startswith("num_")} == {
        "num_relations": 2,
        "num_queries": 3,
        "num_hard_queries": 1,
        "num_triples": 4,
        "num_names": 4,
        "num_heads": 2,
        "num_tails": 3,
        "num_queries_with_head_among_answers": 1,
    }
    assert data["share_by_length"] == {1: 0.25, 2: 0.5, 4: 0.25}
    assert data["answers_per_query"] == pytest.approx(4 / 3)
    assert data["letters_per_answer"] == pytest.approx(((7 + 10) / 2 + 10 + 17) / 3)
    assert data["relations"] == [
        {"relation": "may_treat", "full": 2, "hard": 1, "triples": 3, "heads": 2, "tails": 2},
        {"relation": "occurs_after", "full": 1, "hard": 0, "triples": 1, "heads": 1, "tails": 1},
    ]
    assert json.loads(json.dumps(data))["published"]["MedLAMA"]["letters_per_answer"] == 20.88


def test_counts_of_a_tokenizer_replace_words():
    data = benchmark_statistics(
        build_benchmark([EASY], {}), count_tokens=lambda names: [len(name) for name in names]
    )
    assert (data["unit"], data["share_by_length"]) == ("tokens", {7: 0.5, 10: 0.5})


def test_published_rows_are_shown_next_to_ours_and_marked():
    shown = statistics_markdown(benchmark_statistics(build_benchmark([EASY, HARD], {})))
    assert "| this benchmark | 1 | 2 | 1.5 | 9.25 |  |" in shown
    assert "| MedLAMA (published) | 19 | 19,000 | 2.3 | 20.88 | 2.6% |" in shown
    assert "| LAMA (published) | 41 | 41,000 | 1 | 7.11 | 100.0% |" in shown
    assert "| may_treat | 2 |  | 3 | 2 | 2 |" in shown
    assert "| 2 | 66.7% |" in shown
    in_tokens = benchmark_statistics(
        build_benchmark([EASY, HARD], {}), count_tokens=lambda names: [1 for _ in names]
    )
    assert "| mine | 1 | 2 | 1.5 | 9.25 | 100.0% |" in statistics_markdown(in_tokens, "mine")


def test_lengths_beyond_99_percent_of_the_answers_share_a_row():
    data = benchmark_statistics(build_benchmark([EASY, HARD], {}))
    data["share_by_length"] = {1: 0.5, 2: 0.49, 3: 0.008, 52: 0.002}
    shown = statistics_markdown(data)
    assert "| 2 | 49.0% |\n| 3 or more | 1.0% |" in shown
    assert "52" not in shown


def test_a_score_that_is_no_number_is_named_with_file_and_line(tmp_path):
    header = "head_cui,head_name,rel,tail_names,tail_cuis,avg_match,avg_rouge_l\n"
    (tmp_path / "may_treat_1.csv").write_text(f"{header}C1,Aspirin,may_treat,Pain,C2,0.0,none\n")
    with pytest.raises(DataError, match=r"may_treat_1\.csv, line 2: .*want numbers for avg_match"):
        list(read_hardness(tmp_path))


@real
def test_the_released_sets_have_the_counts_of_the_papers_figure():
    data = benchmark_statistics(read_medlama(RELEASED), read_medlama(RELEASED, "hard"))
    assert (data["num_hard_queries"], data["num_triples"]) == (15_329, 43_647)
    assert data["letters_per_answer"] == pytest.approx(
        data["published"]["MedLAMA"]["letters_per_answer"], abs=0.005
    )
    assert data["share_by_length"][1] == pytest.approx(0.143, abs=5e-4)
    by_relation = {counts["relation"]: counts for counts in data["relations"]}
    assert by_relation["gene_product_encoded_by_gene"] == {
        "relation": "gene_product_encoded_by_gene",
        "full": 1000,
        "hard": 649,
        "triples": 3032,
        "heads": 1000,
        "tails": 1018,
    }


@real
def test_the_released_scores_are_those_of_the_legacy_switch_and_the_clean_ones_move_97_queries():
    queries = list(read_hardness(RELEASED))
    assert (
        sum(query.legacy.avg_match == query.stored.avg_match for query in queries)
        == len(queries)
        == 19_000
    )
    near = sum(abs(query.legacy.avg_rouge_l - query.stored.avg_rouge_l) < 1e-3 for query in queries)
    assert near == 18_997
    assert (
        sum(abs(query.clean.avg_rouge_l - query.stored.avg_rouge_l) < 1e-3 for query in queries)
        == 18_770
    )
    assert sum(query.clean.avg_match != query.stored.avg_match for query in queries) == 321
    assert sum(query.stored.is_hard for query in queries) == 15_329
    assert all(query.legacy.is_hard == query.stored.is_hard for query in queries)
    # In 93 queries the head contains a tail that the spaces had hidden; in 4 a name repeats words.
    assert sum(query.clean.is_hard for query in queries) == 15_240
    assert sum(query.stored.is_hard and not query.clean.is_hard for query in queries) == 93
    assert sum(query.clean.is_hard and not query.stored.is_hard for query in queries) == 4
    assert sum(query.is_disputed for query in queries) == 97
    assert (
        sum(query.legacy._replace(avg_match=query.clean.avg_match).is_hard for query in queries)
        == 15_236
    )
