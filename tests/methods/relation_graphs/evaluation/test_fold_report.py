"""Means over folds beside the published ones."""

import math

import pytest

from raybio.methods.relation_graphs.evaluation.fold_report import (
    MEASURES,
    PUBLISHED,
    RIVALS,
    fold_differences,
    fold_table,
    over_folds,
    reached_rows,
)
from raybio.ops.significance import holm, t_mean

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
        "| 58.09 | 91.23 |  |  |  |"
    )
    assert fold_table(SCORES).splitlines()[
        4
    ] == "" and "In percent, mean ± standard deviation" in fold_table(SCORES)
    assert len(PUBLISHED) == 4


def folds(ner: list[float], re: list[float]) -> dict[int, dict[str, float]]:
    pairs = enumerate(zip(ner, re, strict=True), start=1)
    return {fold: {"ner_f1": first, "re_f1": second} for fold, (first, second) in pairs}


FOUR = {
    "chance": folds([0.1] * 4, [0.0] * 4),
    "untuned": folds([0.5, 0.6, 0.4, 0.5], [0.50, 0.60, 0.40, 0.55]),
    "cldr": folds([0.7, 0.78, 0.61, 0.72], [0.52, 0.58, 0.41, 0.54]),
    "clgs": folds([0.7, 0.75, 0.6, 0.7], [0.4, 0.5, 0.3, math.nan]),
}


def test_a_score_that_a_fold_does_not_define_is_undefined() -> None:
    scores = {
        "untuned": {1: {"ner_f1": 0.5, "re_f1": float("nan")}, 2: {"ner_f1": 0.7, "re_f1": 0.1}}
    }
    assert (
        fold_table(scores).splitlines()[2].startswith("| untuned | 2 | 60.00 ± 14.14 | undefined |")
    )


def test_a_score_that_a_fold_lacks_has_no_mean_and_the_fold_is_named() -> None:
    own = {fold: scores | {"graph_accuracy": 0.9} for fold, scores in FOUR["clgs"].items()}
    del own[3]["graph_accuracy"]
    text = fold_table({"cldr": FOUR["cldr"], "clgs": own})
    remark = (
        f"clgs: no mean of {MEASURES['graph_accuracy']}, which fold 3 of the store cannot have."
    )
    assert remark in text.splitlines()
    assert text.count("no mean of") == 1


def test_rows_of_unfinished_trainings_have_a_dagger_and_the_reason() -> None:
    scores = {"cldr": FOUR["cldr"], "cldr, fixed settings": FOUR["clgs"], "clgs": FOUR["clgs"]}
    lines = fold_table(scores, unfinished={"cldr": "1.5 of 20 published epochs"}).splitlines()
    labels = [line.split(" | ")[0] for line in lines[2:5]]
    assert labels == ["| cldr †", "| cldr, fixed settings †", "| clgs"]
    assert lines[-1] == "† training not finished, 1.5 of 20 published epochs: cldr."


def test_differences_are_fold_by_fold_and_corrected_together():
    found = fold_differences(FOUR)
    assert [(one.one, one.two, one.measure) for one in found] == [
        ("cldr", "untuned", "ner_f1"),
        ("cldr", "untuned", "re_f1"),
        ("cldr", "clgs", "ner_f1"),
    ]
    by_fold = [[0.2, 0.18, 0.21, 0.22], [0.02, -0.02, 0.01, -0.01], [0.0, 0.03, 0.01, 0.02]]
    tests = [t_mean(values, overlap=1 / 3) for values in by_fold]
    for one, test, p in zip(found, tests, holm([test.p for test in tests]), strict=True):
        assert one.difference == pytest.approx(test.difference)
        assert one.p_holm == pytest.approx(p)


def test_the_table_has_intervals_differences_and_where_the_untuned_encoder_reaches():
    text = fold_table(FOUR)
    row = next(line for line in text.splitlines() if line.startswith("| cldr | 4 |"))
    _, low, high = t_mean([0.7, 0.78, 0.61, 0.72], overlap=1 / 3).difference
    assert f"± 7.04 [{100 * low:.2f}, {100 * high:.2f}]" in row
    assert "| cldr minus untuned | +20.25 [" in text
    assert "untuned is not clearly different from cldr in RE (strict)." in text.splitlines()
    assert "untuned is not clearly different from cldr in NER" not in text
    assert "corrected for 3 tests (Holm)" in text


def test_models_that_are_equal_on_all_folds_have_p_one():
    same = fold_differences({"cldr": FOUR["cldr"], "clgs": FOUR["cldr"]})
    assert {(one.difference, one.p_holm) for one in same} == {((0, 0, 0), 1)}
    assert fold_differences({"chance": FOUR["chance"]}) == []


def test_without_a_trained_model_there_are_no_differences() -> None:
    assert fold_differences({"chance": FOUR["cldr"], "untuned": FOUR["cldr"]}) == []


def test_the_overlap_of_trainings_is_that_of_all_folds() -> None:
    """Three of ten folds share as much of their training as all ten do."""
    ten = {fold: {"ner_f1": 0.5 + 0.01 * fold} for fold in range(1, 11)}
    three = {fold: {"ner_f1": 0.4 + 0.02 * fold} for fold in range(1, 4)}
    (of_three,) = fold_differences({"chance": ten, "cldr": three, "clgs": ten})
    values = [three[fold]["ner_f1"] - ten[fold]["ner_f1"] for fold in range(1, 4)]
    assert of_three.difference == t_mean(values, overlap=1 / 9).difference


def test_every_trained_model_is_compared_with_rivals_and_fixed_settings_are_only_read() -> None:
    scores = {
        "chance": FOUR["chance"],
        "look-up": folds([0.2] * 4, [0.45, 0.55, 0.35, 0.45]),
        "character 2-4-grams": folds([0.2] * 4, [0.1] * 4),
        "untuned": FOUR["untuned"],
        "untuned, fixed settings": folds([0.9] * 4, [0.9] * 4),
        "cldr": FOUR["cldr"],
        "cldr, fixed settings": folds([0.1] * 4, [0.1] * 4),
        "clgs": folds([0.6, 0.7, 0.5, 0.6], [0.4, 0.5, 0.3, 0.4]),
    }
    found = fold_differences(scores)
    assert [one.two for one in found if one.measure == "re_f1"] == [*RIVALS, "clgs"]
    assert {one.one for one in found} == {"cldr"}
    assert reached_rows(scores) == [
        "untuned is not clearly different from cldr in RE (strict).",
        "look-up is higher than clgs in RE (strict).",
        "untuned is higher than clgs in RE (strict).",
    ]
    text = fold_table(scores)
    assert "| cldr, fixed settings | 4 | 10.00 ± 0.00" in text
    assert "look-up is higher than clgs in RE (strict)." in text.splitlines()
    assert "minus cldr, fixed" not in text
