"""Unit scores: stored, sampled and compared in pairs."""

from pathlib import Path

import numpy as np
import pytest

from raybio.core.errors import DataError
from raybio.core.final_report import UnitScores
from raybio.core.table_layout import TableLayout
from raybio.core.unit_counts import MEAN_OF_RATIOS, RATIO, UnitCounts
from raybio.evaluation import unit_scores
from raybio.evaluation.unit_scores import (
    MIN_DOMINATED_UNITS,
    DominantUnit,
    independent_draws,
    interval_over_runs,
    paired_difference,
    read_unit_scores,
    sample_counts,
    sample_units,
    stored_unit_scores,
    untrained_difference,
    write_unit_scores,
)
from raybio.ops.significance import RunGroup


def scores(value_U: np.ndarray) -> UnitScores:
    return UnitScores(np.arange(len(value_U)), {"hit": value_U})


def runs_of(difficulty: np.ndarray, mean: float, rng: np.random.Generator) -> list[UnitScores]:
    """Three seeds that differ by themselves, on units that differ much more."""
    luck = rng.normal(0, 0.02, 3)
    return [scores(difficulty + mean + one + rng.normal(0, 0.3, len(difficulty))) for one in luck]


def test_a_planted_difference_is_significant_and_equal_means_are_so_no_more_often_than_p() -> None:
    rng = np.random.default_rng(0)
    difficulty = rng.normal(size=300)  # much larger than the difference: only pairs can show it
    better = runs_of(difficulty, 0.15, rng)
    compared = paired_difference(better, runs_of(difficulty, 0.0, rng), "hit")
    assert compared.num_units == 300
    assert 0 < compared.difference.low < 0.15 < compared.difference.high < 0.3
    assert compared.p is not None and compared.p < 0.01
    found = [
        paired_difference(runs_of(difficulty, 0.0, rng), runs_of(difficulty, 0.0, rng), "hit")
        for _ in range(100)
    ]
    assert sum(one.p < 0.05 for one in found) <= 10
    assert sum(one.difference.low > 0 or one.difference.high < 0 for one in found) <= 10
    same = paired_difference(better, better, "hit")
    assert same.p == 1
    assert same.difference.value == 0


def test_a_sample_that_does_not_vary_says_nothing_of_a_difference_in_tables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(unit_scores, "MAX_UNITS", 50)
    hits = np.random.default_rng(0).random(50)
    runs = [scores(hits) for _ in range(3)]
    for compare in (paired_difference, untrained_difference):
        for shown, is_known in ((2e-6, False), (0.0, True)):
            found = compare(runs, runs, "hit", shown)
            assert found.difference.value == shown
            assert np.isnan(found.difference.low) != is_known
            assert (found.p is None) != is_known


def test_interval_and_p_of_a_sample_are_those_of_the_difference_in_tables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(1)
    difficulty = rng.normal(size=300)
    first, second = runs_of(difficulty, 0.0, rng), runs_of(difficulty, 0.0, rng)
    alone = paired_difference(first, second, "hit")
    assert paired_difference(first, second, "hit", 1.0) == alone  # all units are kept
    monkeypatch.setattr(unit_scores, "MAX_UNITS", 300)
    for difference in (paired_difference, untrained_difference):
        own = difference(first, second, "hit")
        moved = difference(first, second, "hit", 1.0)
        assert moved.difference.value == pytest.approx(1)
        assert moved.difference.low - 1 == pytest.approx(own.difference.low - own.difference.value)
        assert own.p is not None and own.p > 0.05
        assert moved.p is not None and moved.p < 0.01


def test_seeds_that_differ_widen_the_interval_which_units_alone_do_not_show() -> None:
    rng = np.random.default_rng(2)
    difficulty = rng.normal(size=300)
    alike = [scores(difficulty + mean) for mean in (0.1, 0.1, 0.1)]
    unlike = [scores(difficulty + mean) for mean in (-0.2, 0.1, 0.4)]
    zero = [scores(difficulty) for _ in range(3)]
    narrow = paired_difference(alike, zero, "hit")
    wide = paired_difference(unlike, zero, "hit")
    assert narrow.difference.value == pytest.approx(wide.difference.value)
    assert narrow.difference.low == pytest.approx(narrow.difference.high)
    assert narrow.p < 1e-6 and wide.p > 0.2
    # Student's interval; the seeds of one side alone vary, with two degrees of freedom.
    half = 4.303 * np.std([-0.2, 0.1, 0.4], ddof=1) / np.sqrt(3)
    assert (wide.difference.high - wide.difference.low) / 2 == pytest.approx(half, rel=0.35)


@pytest.mark.parametrize("num", [1, 2])
def test_with_fewer_than_three_seeds_on_a_side_there_is_an_interval_over_units_and_no_p(
    num: int,
) -> None:
    rng = np.random.default_rng(1)
    runs = rng.random((8, 40))
    few = [scores(run) for run in runs[:num]]
    more = [scores(run) for run in runs[3:]]
    for first, second in ((few, more), (more, few)):
        found = paired_difference(first, second, "hit")
        assert found.p is None
        means = [np.mean([one.value_by_measure["hit"] for one in side]) for side in (first, second)]
        assert found.difference.value == pytest.approx(means[0] - means[1])
        assert found.difference.low < found.difference.value < found.difference.high


def test_runs_on_different_units_are_refused() -> None:
    one, two = scores(np.ones(4)), UnitScores(np.array([0, 1, 2, 4]), {"hit": np.zeros(4)})
    with pytest.raises(ValueError, match="different units"):
        paired_difference([one], [two], "hit")


def test_all_runs_keep_the_same_sample_of_many_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unit_scores, "MAX_UNITS", 10)
    unit_U = np.arange(100, 125)
    one, two = (sample_units(unit_U, {"hit": unit_U * factor}) for factor in (1.0, 2.0))
    assert len(one.unit_U) == 10
    assert one.unit_U.tolist() == sorted(one.unit_U) == two.unit_U.tolist()
    assert one.value_by_measure["hit"].tolist() == one.unit_U.tolist()
    assert two.value_by_measure["hit"].tolist() == (2 * one.unit_U).tolist()


def test_written_scores_are_read_back_and_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "unit_scores.npz"
    assert read_unit_scores(path) == {}
    write_unit_scores(path, {})
    assert not path.exists()
    write_unit_scores(
        path,
        {"trained": {"val": scores(np.array([0.5, 1 / 3])), "train": scores(np.array([1.0]))}},
    )
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    found = read_unit_scores(path)["trained"]
    assert found.keys() == {"val", "train"}
    assert found["val"].unit_U.tolist() == [0, 1]
    assert found["val"].value_by_measure["hit"].tolist() == [0.5, 1 / 3]
    content = path.read_bytes()
    for damaged in (b"", b"no archive", content[:-30], content.replace(b"\x93NUMPY", b"\x93NUMPX")):
        path.write_bytes(damaged)
        if damaged != content:
            with pytest.raises(DataError, match=r"unit_scores\.npz: cannot be read"):
                read_unit_scores(path)


def test_rivals_are_kept_in_float32_on_the_units_and_measures_that_tables_compare(
    tmp_path: Path,
) -> None:
    layout = TableLayout("T", {"hit": "hit"}, {"val": "v", "part": "p"}, secondary={"part"})
    value_U = np.random.default_rng(0).random(50)
    of_model = UnitScores(np.arange(50), {"hit": value_U, "more": value_U})
    elsewhere = UnitScores(np.arange(1, 51), {"hit": value_U})
    stored = stored_unit_scores(
        {
            "a/b, 3-mers": {"val": of_model, "part": of_model},
            "elsewhere": {"val": elsewhere},
            "trained": {"val": of_model, "part": of_model},
        },
        layout,
    )
    assert stored["trained"] == {"val": of_model, "part": of_model}
    path = tmp_path / "unit_scores.npz"
    write_unit_scores(path, stored)
    found = read_unit_scores(path)
    assert {stage: list(splits) for stage, splits in found.items()} == {
        "trained": ["val", "part"],
        "a/b, 3-mers": ["val"],
    }
    (measure,) = found["a/b, 3-mers"]["val"].value_by_measure.items()
    assert (measure[0], measure[1].dtype) == ("hit", np.float32)
    assert found["a/b, 3-mers"]["val"].unit_U.tolist() == list(range(50))
    assert found["trained"]["val"].value_by_measure["more"].tolist() == value_U.tolist()
    # Only the precision differs: that is no difference.
    same = untrained_difference(
        [found["trained"]["val"]] * 3, [found["a/b, 3-mers"]["val"]] * 3, "hit"
    )
    assert (same.difference, same.p) == ((0, 0, 0), 1)


def test_a_rival_of_one_run_has_an_interval_and_of_three_runs_a_p() -> None:
    rng = np.random.default_rng(0)
    difficulty = rng.normal(size=300)
    runs = runs_of(difficulty, 0.15, rng)
    rival = scores(difficulty)
    one = untrained_difference(runs[:1], [rival], "hit")
    assert one.p is None and one.difference.low > 0
    three = untrained_difference(runs, [rival] * 3, "hit")
    assert three.p < 0.05 and 0 < three.difference.low < 0.15 < three.difference.high
    # An untrained model that depends on the seed is compared run by run.
    shift = np.array([-1.0, 0.0, 1.0])
    shifted = [
        scores(run.value_by_measure["hit"] + by) for run, by in zip(runs, shift, strict=True)
    ]
    own = [scores(difficulty + by) for by in shift]
    by_run = untrained_difference(shifted, own, "hit")
    assert by_run.difference == pytest.approx(three.difference, abs=1e-6)
    with pytest.raises(ValueError, match="different units"):
        untrained_difference(runs[:1], [UnitScores(np.arange(1, 301), {"hit": difficulty})], "hit")


def test_the_interval_of_runs_lies_around_their_score_and_is_over_seeds_from_three_runs() -> None:
    value_U = np.random.default_rng(1).random(200)
    runs = [scores(value_U + by) for by in (-0.1, 0.0, 0.1)]
    two = interval_over_runs([0.4, 0.5], runs[:2], "hit")
    three = interval_over_runs([0.4, 0.5, 0.6], runs, "hit")
    assert two.value == pytest.approx(0.45) and three.value == pytest.approx(0.5)
    over_units = 2 * 1.96 * value_U.std() / np.sqrt(200)
    assert two.high - two.low == pytest.approx(over_units, rel=0.1)
    # Student's t of three, and the units.
    over_seeds = 2 * 4.303 * 0.1 / np.sqrt(3)
    assert three.high - three.low == pytest.approx(np.hypot(over_seeds, over_units), rel=0.15)
    undefined = interval_over_runs([0.5, np.nan], [runs[0], scores(value_U * np.nan)], "hit")
    assert np.isnan(undefined.value) and np.isnan(undefined.low)


SETS = [0, 0, 0, 1, 1, 1, 2, 2, 2]
"""Sentence sets of nine runs: three seeds on each."""


def test_runs_on_several_sets_are_draws_of_sets_and_runs_on_one_set_are_draws_of_seeds() -> None:
    assert independent_draws(SETS) == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert independent_draws([4, 4, 4]) == independent_draws([0, 1, 2]) == [[0], [1], [2]]
    runs = [UnitCounts(np.array([number, 2.0 * number])) for number in range(9)]
    drawn = RunGroup(runs, draws=independent_draws(SETS)).of_samples(np.eye(2))
    assert drawn.T.tolist() == [[1, 2], [4, 8], [7, 14]]
    # A set with one run weighs less; the mean stays that of the runs.
    unequal = RunGroup(runs[:4], draws=independent_draws(SETS[:4])).of_samples(np.eye(2))
    assert unequal.mean(axis=1) == pytest.approx([1.5, 3.0])
    assert unequal[0, 1] == pytest.approx(1.5 + 1 / 2 * (3 - 1.5))


def test_equal_seeds_on_each_set_say_no_more_than_one_seed_on_each() -> None:
    rng = np.random.default_rng(0)
    of_sets = [scores(rng.random(60) + by) for by in (-0.1, 0.0, 0.2)]
    nine = [of_sets[number] for number in SETS]
    zeros = [scores(np.zeros(60))]
    one_each = paired_difference(of_sets, 3 * zeros, "hit")
    found = paired_difference(nine, 9 * zeros, "hit", draws=(SETS, SETS))
    assert found.difference == pytest.approx(one_each.difference)
    assert found.p == pytest.approx(one_each.p)
    one_each = untrained_difference(of_sets, 3 * zeros, "hit")
    found = untrained_difference(nine, 9 * zeros, "hit", draw_R=SETS)
    assert found.difference == pytest.approx(one_each.difference)
    assert found.p == pytest.approx(one_each.p)
    # Two sets say nothing of a third, however many seeds they have.
    of_two = paired_difference(of_sets[:2] * 3, 3 * zeros, "hit", draws=([0, 1] * 3, ()))
    assert of_two.p is None


def test_intervals_of_runs_on_several_sets_cover_the_mean_of_all_sets() -> None:
    rng = np.random.default_rng(3)
    num_tests = 300
    num_covering = 0
    num_rejected = 0
    for _ in range(num_tests):
        level_R = rng.normal(0, 1, 3)[SETS] + rng.normal(0, 0.3, 9)
        runs = [scores(level + rng.normal(0, 1, 40)) for level in level_R]
        found = untrained_difference(runs, [scores(np.zeros(40))] * 9, "hit", draw_R=SETS)
        num_covering += found.difference.low <= 0 <= found.difference.high
        num_rejected += found.p is not None and found.p < 0.05
    assert num_covering >= 0.9 * num_tests
    assert num_rejected <= 0.08 * num_tests


def f1_scores(count_U2: np.ndarray) -> UnitScores:
    """Scores of documents with counts (2 x correct, predicted + gold)."""
    return sample_counts({"f1": UnitCounts(count_U2, RATIO)})


def test_counts_are_read_back_with_their_statistic_and_an_unknown_one_is_refused(
    tmp_path: Path,
) -> None:
    rng = np.random.default_rng(0)
    by_class = UnitCounts(rng.integers(0, 9, (6, 2, 3)), MEAN_OF_RATIOS)
    units = sample_counts({"f1": by_class, "hit": UnitCounts(rng.random(6))})
    path = tmp_path / "unit_scores.npz"
    layout = TableLayout("T", {"f1": "F1", "hit": "hit"}, {"val": "v"})
    by_stage = {stage: {"val": units} for stage in ("trained", "rival")}
    write_unit_scores(path, stored_unit_scores(by_stage, layout))
    for found in read_unit_scores(path).values():
        counts = found["val"].counts("f1")
        assert counts.statistic == MEAN_OF_RATIOS
        np.testing.assert_array_equal(counts.count_U, by_class.count_U)
        assert counts.value == by_class.value
        assert found["val"].counts("hit").statistic == "mean"
    unknown = UnitScores(units.unit_U, {"f1": rng.random(6)}, {"f1": "median"})
    write_unit_scores(path, {"trained": {"val": unknown}})
    with pytest.raises(DataError, match="statistic median was written by a newer version"):
        read_unit_scores(path)


def test_a_run_of_an_older_version_is_compared_by_its_linearized_values() -> None:
    rng = np.random.default_rng(0)
    total_U = np.full(200, 10)
    sides = [f1_scores(np.stack([rng.binomial(10, p, 200), total_U], axis=1)) for p in (0.6, 0.5)]
    new = paired_difference(sides[:1], sides[1:], "f1")
    old = scores(sides[1].value_by_measure["f1"][:, 0] / 10)
    mixed = paired_difference(
        sides[:1], [UnitScores(old.unit_U, {"f1": old.value_by_measure["hit"]})], "f1"
    )
    # Equal wholes: the linearized value is the share.
    assert mixed.difference == pytest.approx(new.difference)


def test_a_document_that_dominates_a_difference_is_named_with_the_difference_without_it() -> None:
    rng = np.random.default_rng(0)
    size_U = np.full(40, 10)
    size_U[7] = 100
    first_U2 = np.stack([rng.binomial(size_U, 0.4), size_U], axis=1)
    second_U2 = np.stack([rng.binomial(size_U, 0.4), size_U], axis=1)
    first_U2[7, 0], second_U2[7, 0] = 80, 20
    others = np.arange(40) != 7
    without = [side_U2[others].sum(axis=0) for side_U2 in (first_U2, second_U2)]
    expected = without[0][0] / without[0][1] - without[1][0] / without[1][1]
    names = np.arange(100, 140)
    first, second = (f1_scores(side).named(names) for side in (first_U2, second_U2))
    found = paired_difference([first], [second], "f1")
    assert found.dominant is not None and found.dominant.unit == 107
    assert found.dominant.difference == pytest.approx(expected, abs=1e-12)
    back = untrained_difference([second], [first], "f1")
    assert back.dominant == pytest.approx(DominantUnit(107, -expected), abs=1e-6)
    # Of few units, one often has most of the variance by chance.
    few = [f1_scores(side[: MIN_DOMINATED_UNITS - 1]) for side in (first_U2, second_U2)]
    assert paired_difference(few[:1], few[1:], "f1").dominant is None
    # Large, but as everywhere else.
    first_U2[7, 0] = second_U2[7, 0] = 40
    alike = [f1_scores(side) for side in (first_U2, second_U2)]
    assert paired_difference(alike[:1], alike[1:], "f1").dominant is None
    same = paired_difference([first], [first], "f1")
    assert same.dominant is None
