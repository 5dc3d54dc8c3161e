"""Means over folds beside the published ones."""

import pytest

from raybio.methods.relation_graphs.fold_report import PUBLISHED, fold_table, over_folds

SCORES = {
    "untuned": {1: {"ner_f1": 0.5, "re_f1": 0.1, "other": 1.0}, 2: {"ner_f1": 0.7, "re_f1": 0.1}},
    "cldr": {
        1: {"ner_f1": 0.9, "re_f1": 0.8, "graph_accuracy": 1.0},
        2: {"ner_f1": 0.8, "re_f1": 0.6},
    },
}


def test_mean_and_deviation_of_a_sample_over_the_folds():
    found = over_folds(SCORES["untuned"])
    assert found["ner_f1"] == pytest.approx((0.6, 0.02**0.5))
    assert found["re_f1"] == pytest.approx((0.1, 0.0))
    assert set(found) == {"ner_f1", "re_f1"}


def test_a_measure_that_a_fold_lacks_is_no_mean():
    assert "graph_accuracy" not in over_folds(SCORES["cldr"])


def test_a_single_fold_has_no_deviation():
    assert over_folds({3: {"ner_f1": 0.5}}) == {"ner_f1": (0.5, 0.0)}


def test_the_table_has_a_row_a_model_and_the_papers_if_requested():
    lines = fold_table(SCORES, ["the paper: CLGS"]).splitlines()
    assert lines[0].startswith("|  | folds | NER | RE | RE, legacy |")
    assert lines[2].startswith("| untuned | 2 | 60.00 ± 14.14 | 10.00 ± 0.00 |  |")
    assert lines[3].startswith("| cldr | 2 | 85.00 ± 7.07 |")
    assert lines[4].startswith("| the paper: CLGS | 10 |") and lines[4].endswith(
        "| 58.09 | 91.23 |"
    )
    assert fold_table(SCORES).splitlines()[
        4
    ] == "" and "In percent, mean ± standard deviation" in fold_table(SCORES)
    assert len(PUBLISHED) == 3
