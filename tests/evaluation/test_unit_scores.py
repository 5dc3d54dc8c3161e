"""Unit scores: stored, sampled and compared in pairs."""

from pathlib import Path

import numpy as np
import pytest

from raybio.core.errors import DataError
from raybio.core.final_report import UnitScores
from raybio.evaluation import unit_scores
from raybio.evaluation.unit_scores import (
    paired_difference,
    read_unit_scores,
    sample_units,
    write_unit_scores,
)


def scores(value_U: np.ndarray) -> UnitScores:
    return UnitScores(np.arange(len(value_U)), {"hit": value_U})


def test_a_planted_difference_is_significant_and_equal_means_are_so_no_more_often_than_p() -> None:
    rng = np.random.default_rng(0)
    difficulty = rng.normal(size=300)  # much larger than the difference: only pairs can show it
    better = scores(difficulty + rng.normal(0.1, 0.3, 300))
    worse = scores(difficulty + rng.normal(0.0, 0.3, 300))
    compared = paired_difference([better], [worse], "hit")
    assert compared.num_units == 300
    assert 0 < compared.difference.low < 0.1 < compared.difference.high
    assert compared.p < 0.001
    num_alarms = 0
    for _ in range(60):
        first = scores(difficulty + rng.normal(0, 0.3, 300))
        second = scores(difficulty + rng.normal(0, 0.3, 300))
        num_alarms += paired_difference([first], [second], "hit").p < 0.05
    assert num_alarms <= 8
    assert paired_difference([better], [better], "hit").p == 1
    assert paired_difference([better], [better], "hit").difference == (0, 0, 0)


def test_repetitions_are_averaged_for_each_unit() -> None:
    rng = np.random.default_rng(1)
    runs = rng.random((5, 40))
    together = paired_difference(
        [scores(run) for run in runs[:3]], [scores(run) for run in runs[3:]], "hit"
    )
    assert together == paired_difference(
        [scores(runs[:3].mean(axis=0))], [scores(runs[3:].mean(axis=0))], "hit"
    )


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
        path, {"val": scores(np.array([0.5, 1 / 3])), "train": scores(np.array([1.0]))}
    )
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    found = read_unit_scores(path)
    assert found.keys() == {"val", "train"}
    assert found["val"].unit_U.tolist() == [0, 1]
    assert found["val"].value_by_measure["hit"].tolist() == [0.5, 1 / 3]
    content = path.read_bytes()
    for damaged in (b"", b"no archive", content[:-30], content.replace(b"\x93NUMPY", b"\x93NUMPX")):
        path.write_bytes(damaged)
        if damaged != content:
            with pytest.raises(DataError, match=r"unit_scores\.npz: cannot be read"):
                read_unit_scores(path)
