"""Comparing runs: which are meant, which may be compared, and what the report says of differences
that are known.
"""

import csv
import json
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from raybio.cli.compare import compare
from raybio.core.config import override, override_all
from raybio.core.errors import ConfigError
from raybio.core.final_report import UnitScores
from raybio.core.location import BucketPath
from raybio.core.records import read_record, write_record
from raybio.evaluation import unit_scores
from raybio.evaluation.curves import CurvePoint
from raybio.evaluation.plots import plot_curves
from raybio.evaluation.unit_scores import write_unit_scores
from raybio.methods import METHODS
from raybio.runtime.compare.compare import Comparison, compare_runs
from raybio.runtime.compare.comparison_report import (
    cost_table,
    evaluations_table,
    settings_table,
    write_comparison,
)
from raybio.runtime.compare.group_tests import MIN_PAIRED_SEEDS
from raybio.runtime.compare.plots import plot_scores
from raybio.runtime.compare.run_test import LEVEL
from raybio.runtime.compare.runs import given_runs
from raybio.runtime.run.driver import train
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.metrics_log import MetricsLog
from raybio.runtime.run.result import Result
from raybio.runtime.run.spec import RunSpec
from raybio.store.bucket import BucketFolder
from tests.paths import ROOT
from tests.script_process import run_script

SYSTEM = "sppt_protein"
MEASURES = tuple(METHODS[SYSTEM].table.measures)
CURVE = {0: 0.1, 10: 0.2}
UNITS = np.arange(200)
SCORE = {"value": 0.5, "low": 0.4, "high": 0.6}


def write_run(
    runs: Path,
    name: str,
    values: np.ndarray | None,
    settings: Mapping[str, Any] | None = None,
    digest: str = "d" * 64,
    method: str = SYSTEM,
    curve: Mapping[int, float] = CURVE,
    units: np.ndarray = UNITS,
    splits: tuple[str, ...] = ("val",),
    chance: float | None = None,
) -> RunFolder:
    """What training leaves of a run whose units have ``values`` in all scores; None: a trial,
    without an evaluation.
    """
    folder = RunFolder(runs, name)
    config = override_all(METHODS[method].config(), dict(settings or {}))
    folder.open(method, config, Path("store"), digest, ())
    log = MetricsLog(folder.metrics)
    for step, value in curve.items():
        rates = {"tokens_per_second": 100.0, "steps_per_second": 2.0} if step else {}
        log.append(
            step, {"loss": 1 - value, "val/link_mrr": value, "val/link_mrr/part": value} | rates
        )
    if values is not None:
        scores = {
            name: {"value": float(values.mean()), "low": 0.0, "high": 1.0} for name in MEASURES
        }
        final = {"scores": {"trained": dict.fromkeys(splits, scores)}}
        if chance is not None:
            by_chance = {name: {"value": chance} for name in MEASURES}
            final["scores"]["chance"] = dict.fromkeys(splits, by_chance)
        write_record(
            folder.result,
            "result",
            {"status": "finished", "step": 10, "precision": "fp32", "final": final},
        )
        of_units = UnitScores(units, dict.fromkeys(MEASURES, values))
        write_unit_scores(folder.unit_scores, {"trained": dict.fromkeys(splits, of_units)})
    return folder


def compared(runs: Path, *names: str, **how: Any) -> Comparison:
    return compare_runs(given_runs(names or ["*"], runs), **how)


def test_copies_of_runs_that_a_bucket_no_longer_has_are_not_compared(tmp_path: Path) -> None:
    copies = tmp_path / "copies"
    for name in ("first", "second", "gone"):
        write_run(copies, name, UNITS / len(UNITS))
    runs = given_runs(["*"], copies, names={"first", "second"})
    assert [run.label for run in runs] == ["first", "second"]
    with pytest.raises(ConfigError, match="RUN gone: no run of that name"):
        given_runs(["first", "gone"], copies, names={"first", "second"})
    elsewhere = write_run(tmp_path / "local", "gone", UNITS / len(UNITS))
    assert len(given_runs(["first", str(elsewhere.path)], copies, names={"first"})) == 2


def test_runs_of_a_method_that_is_not_installed_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METHODS, "my_plugin", METHODS[SYSTEM])
    for name in ("first", "second"):
        write_run(tmp_path, name, UNITS / len(UNITS), method="my_plugin")
    assert compared(tmp_path).rows
    monkeypatch.delitem(METHODS, "my_plugin")
    with pytest.raises(
        ConfigError, match="RUN first: 'my_plugin' is no method; .*Install the pack"
    ):
        compared(tmp_path)


def noisy(seed: int, mean: float = 0.5) -> np.ndarray:
    """Units that differ more from each other than runs do."""
    hardness = np.random.default_rng(99).uniform(-0.3, 0.3, len(UNITS))
    return mean + hardness + np.random.default_rng(seed).normal(0, 0.1, len(UNITS))


def write_seeds(folder: Path, name: str, first: int, mean: float, weight: float) -> None:
    for seed in range(3):
        settings = {"objective.lambda_spml": weight, "seed": seed}
        write_run(folder, f"{name}{seed}", noisy(first + seed, mean), settings)


def test_a_planted_difference_is_found_and_equal_runs_do_not_differ(tmp_path: Path) -> None:
    write_seeds(tmp_path, "a", 1, 0.5, 0.1)
    write_seeds(tmp_path, "better", 11, 0.57, 0.2)
    write_seeds(tmp_path, "same", 21, 0.5, 0.3)
    write_seeds(tmp_path, "twin", 1, 0.5, 0.4)
    found = compared(tmp_path)
    assert len(found.tests) == 6 * len(MEASURES)
    verdicts = {(test.one[:1], test.two[:1]): test.verdict for test in found.tests}
    assert verdicts == {
        ("a", "b"): "better0 (3 runs) is higher",
        ("b", "s"): "better0 (3 runs) is higher",
        ("b", "t"): "better0 (3 runs) is higher",
        ("a", "s"): "not shown",
        ("a", "t"): "not shown",
        ("s", "t"): "not shown",
    }
    for test in found.tests:
        assert test.p <= test.p_holm <= min(1, len(found.tests) * test.p)
        assert test.low <= test.difference <= test.high
        if {test.one[:1], test.two[:1]} == {"a", "t"}:
            assert (test.difference, test.p) == (0, 1)
    (first,) = [
        test
        for test in found.tests
        if (test.one[:1], test.two[:1], test.measure) == ("a", "b", "mrr")
    ]
    means = [
        np.mean([noisy(seed, mean).mean() for seed in seeds])
        for seeds, mean in (((1, 2, 3), 0.5), ((11, 12, 13), 0.57))
    ]
    assert first.difference == pytest.approx(means[0] - means[1])
    assert first.low < -0.07 < first.high < 0


def test_rows_without_training_that_all_runs_share_come_first(tmp_path: Path) -> None:
    for number, name in enumerate(("a", "b")):
        folder = write_run(tmp_path, name, noisy(number), {"seed": number}, chance=0.1)
        result = read_record(folder.result, "result")
        scores = result["final"]["scores"]
        trained = scores.pop("trained")
        own = {name: {"value": 0.2 + 0.1 * number} for name in MEASURES}
        scores |= {"degree": scores["chance"], "initial": {"val": own}, "trained": trained}
        write_record(folder.result, "result", result)
    found = compared(tmp_path)
    assert list(found.rows)[:2] == ["chance", "degree"]
    assert "initial" not in found.rows  # it depends on the seed


def test_the_table_begins_with_chance_where_the_runs_were_evaluated_alike(tmp_path: Path) -> None:
    write_run(tmp_path, "a", noisy(1), {"seed": 1}, chance=0.1)
    write_run(tmp_path, "b", noisy(2), {"seed": 2}, chance=0.1)
    found = compared(tmp_path)
    assert list(found.rows) == ["chance", "a", "b", "a (2 runs)"]
    assert found.rows["chance"]["val"]["mrr"] == {"value": 0.1}
    write_comparison(found, tmp_path / "comparison")
    assert "| chance | " in (tmp_path / "comparison" / "report.md").read_text()
    assert "chance,val,mrr,0.1,," in (tmp_path / "comparison" / "scores.csv").read_text()
    write_run(tmp_path, "c", noisy(3), {"objective.lambda_spml": 0.7}, chance=0.2)
    assert list(compared(tmp_path).rows) == ["a", "b", "c", "a (2 runs)"]


def test_chance_that_looks_like_a_difference_alone_is_not_believed_among_many_tests(
    tmp_path: Path,
) -> None:
    by_seed = {seed: noisy(seed) for seed in range(40)}
    means = {seed: values.mean() for seed, values in by_seed.items()}
    for seed in (max(means, key=means.__getitem__), min(means, key=means.__getitem__), 0, 1, 2):
        for repeat in range(3):
            rng = np.random.default_rng([seed, repeat])
            values = by_seed[seed] + rng.normal(0, 0.01, len(UNITS))
            settings = {"objective.lambda_spml": seed / 100, "seed": repeat}
            write_run(tmp_path, f"run{seed}-{repeat}", values, settings)
    tests = compared(tmp_path).tests
    assert len(tests) == 10 * len(MEASURES)
    assert min(test.p for test in tests) < 0.05
    assert {test.verdict for test in tests if test.p > 0.05 / len(tests)} == {"not shown"}


def test_an_undefined_score_is_shown_as_such_and_not_tested(tmp_path: Path) -> None:
    """NaN, as the rank correlation of a constant predictor: no number, no interval, no test, and a
    note.
    """
    undefined = np.full(len(UNITS), np.nan)
    for number, (name, values) in enumerate(
        {"a": noisy(1), "b": noisy(2), "constant": undefined}.items()
    ):
        folder = write_run(tmp_path, name, values, {"objective.lambda_spml": number / 10})
    result = read_record(folder.result, "result")
    of_split = result["final"]["scores"]["trained"]["val"]
    nowhere = {name: dict.fromkeys(one, math.nan) for name, one in of_split.items()}
    result["final"]["scores"]["trained"]["val"] = nowhere
    write_record(folder.result, "result", result)
    found = compared(tmp_path)
    assert {(test.one, test.two) for test in found.tests} == {("a", "b")}
    assert any("a or constant is undefined: no test" in note for note in found.notes)
    header, body = found.scores.cells("val")
    assert body[-1] == ["constant", *["undefined"] * (len(header) - 1)]
    assert "nan" not in body[0][1]
    files = write_comparison(found, tmp_path / "out")
    assert "undefined" in next(file for file in files if file.name == "report.md").read_text()


def test_splits_that_are_not_compared_are_shown_and_not_tested(tmp_path: Path) -> None:
    for number, name in enumerate(("a", "b")):
        settings = {"objective.lambda_spml": number / 10}
        write_run(tmp_path, name, noisy(number), settings, splits=("train", "val", "samples"))
    found = compared(tmp_path)
    assert found.scores.splits == ["train", "val", "samples"]
    assert [test.split for test in found.tests] == ["train"] * len(MEASURES) + ["val"] * len(
        MEASURES
    )


def test_seeds_whose_epochs_have_other_numbers_of_steps_are_one_group(tmp_path: Path) -> None:
    """With ``data.label_fraction`` each seed draws its own documents, and so has its own epoch."""
    for seed, steps in enumerate((127, 127, 123)):
        settings = {
            "seed": seed,
            "schedule.max_epochs": 16,
            "schedule.max_steps": steps,
            "schedule.evaluate_every_epochs": 2,
            "schedule.evaluate_every_steps": steps // 8,
        }
        write_run(tmp_path, f"run{seed}", noisy(seed), settings)
    write_run(tmp_path, "other", noisy(3), {"schedule.max_steps": 123})
    assert [group.label for group in compared(tmp_path).groups] == ["other", "run0 (3 runs)"]


def test_seeds_of_the_same_settings_are_one_group_and_are_paired_by_seed(tmp_path: Path) -> None:
    num = 9
    for seed in range(num):
        luck = 0.005 * seed  # of the seed, in both
        write_run(
            tmp_path,
            f"low{seed}",
            noisy(seed, 0.5 + luck),
            {"seed": seed},
            curve={0: 0.1, 10: 0.2 + luck},
        )
        settings = {"seed": seed, "objective.lambda_spml": 0.7}
        write_run(
            tmp_path,
            f"top{seed}",
            noisy(50 + seed, 0.56 + luck),
            settings,
            curve={0: 0.1, 10: 0.5 + luck},
        )
    found = compared(tmp_path)
    assert [group.label for group in found.groups] == ["low0 (9 runs)", "top0 (9 runs)"]
    assert (
        {test.verdict for test in found.tests}
        == {test.verdict for test in found.by_seed}
        == {"top0 (9 runs) is higher"}
    )
    assert len(found.tests) == len(found.by_seed) == len(MEASURES)
    for test in found.by_seed:
        assert (test.num, test.difference) == (num, pytest.approx(-0.06, abs=0.02))
        assert test.p == pytest.approx(
            2 / 2**num, abs=0.002
        )  # all signs alike: the smallest that they can give
        first, second = (
            [run.scores[test.split][test.measure]["value"] for run in group.runs]
            for group in found.groups
        )
        interval = stats.ttest_rel(first, second).confidence_interval()
        assert (test.low, test.high) == pytest.approx((interval.low, interval.high))
    metric, step, *cells = next(row for row in evaluations_table(found) if row[0] == "val/link_mrr")
    assert (step, cells) == ("10", ["0.22 ± 0.014", "0.52 ± 0.014"])
    report = (write_comparison(found, tmp_path / "out")[0]).read_text()
    mean, deviation = (np.mean, np.std)
    values = [noisy(seed, 0.5 + 0.005 * seed).mean() for seed in range(num)]
    cell = f"{100 * mean(values):.2f} ± {100 * deviation(values, ddof=1):.2f} ["
    assert f"| low0 (9 runs) | {cell}" in report
    # The least p of seven, times the number of tests, is above the level: whatever the runs had
    # given would not do.
    seven = compared(tmp_path, "low[0-6]", "top*")
    assert 2 / 2**7 * len(seven.by_seed) > LEVEL > 2 / 2**7
    assert {test.verdict for test in seven.by_seed} == {"too few seeds to show"}
    # With five in common not even a single test could say anything, and there is none.
    five = compared(tmp_path, "low[0-4]", "top*")
    assert five.by_seed == []
    assert [group.label for group in five.groups] == ["low0 (5 runs)", "top0 (9 runs)"]


def test_no_test_over_seeds_is_made_whose_outcome_is_known_beforehand() -> None:
    assert 2 / 2**MIN_PAIRED_SEEDS < LEVEL <= 2 / 2 ** (MIN_PAIRED_SEEDS - 1)


def test_differing_settings_have_a_column_for_each_run_and_new_ones_their_default(
    tmp_path: Path,
) -> None:
    write_run(tmp_path, "one", noisy(1), {"objective.lambda_spml": 0.25})
    old = write_run(tmp_path, "two", noisy(2), {"optim.peak_lr": 1.25e-4})
    identity = read_record(old.identity, "run")
    del identity["config"]["evaluation"]["block_rows"]
    write_record(old.identity, "run", identity)
    default = METHODS[SYSTEM].config()
    found = compared(tmp_path)
    assert found.settings == {
        "objective.lambda_spml": [0.25, default.objective.lambda_spml],
        "optim.peak_lr": [default.optim.peak_lr, 1.25e-4],
    }
    header, *rows = settings_table(found)
    assert header == ["setting", "one", "two"]
    assert ["optim.peak_lr", f"{default.optim.peak_lr:.6g}", "0.000125"] in rows


def test_auto_is_no_difference_to_the_precision_that_it_came_to(tmp_path: Path) -> None:
    write_run(tmp_path, "run", noisy(1), {"precision": "auto"})
    trial = write_run(tmp_path, "trial", None, {"precision": "fp32"})
    write_record(trial.outcome, "outcome", {"status": "finished", "precision": "fp32"})
    found = compared(tmp_path)
    assert found.settings == {}
    assert [row[-1] for row in cost_table(found)[1:]] == ["fp32", "fp32"]


def test_runs_are_named_by_name_path_or_pattern_and_each_counts_once(tmp_path: Path) -> None:
    runs, trials = tmp_path / "läufe [1]", tmp_path / "sweeps" / "s" / "trials"
    for name in ("a", "b.seed-1", "b.seed-2"):
        write_run(runs, name, noisy(1))
    write_run(trials, "a", None)
    (runs / "no run").mkdir()
    labels = [run.label for run in given_runs(["b.*", "a", str(runs / "a"), "b.seed-2"], runs)]
    assert labels == ["b.seed-1", "b.seed-2", "a"]
    both = given_runs(["a", f"{trials}/*"], runs)
    assert [run.label for run in both] == ["läufe [1]/a", "sweeps/s/trials/a"]


def test_a_run_in_a_renamed_folder_is_compared(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_run(tmp_path, name, noisy(1))
    (tmp_path / "b").rename(tmp_path / "my run")
    runs = given_runs(["a", str(tmp_path / "my run")], tmp_path)
    assert [run.label for run in runs] == ["a", "my run"]


def test_what_cannot_be_compared_is_refused_with_what_to_do(tmp_path: Path) -> None:
    write_run(tmp_path, "a", noisy(1))
    write_run(tmp_path, "elsewhere", noisy(1), digest="e" * 64)
    write_run(tmp_path, "biostransformers", noisy(1), method="biostransformers")
    write_run(tmp_path, "silent", noisy(1), curve={})
    write_run(tmp_path / "sweep" / "trials", "trial-1", None, curve={})
    write_record(
        tmp_path / "sweep" / "run.json",
        "run",
        {"method": SYSTEM, "config": {"space": {}, "base": {}}},
    )
    for names, message in (
        (
            ["a", "nobody"],
            r"RUN nobody: no run of that name in .*"
            r"there are a, biostransformers, elsewhere, silent, sweep ",
        ),
        (["a"], r"got 1 run \(a\), want at least two"),
        (["a", "./a"], "want at least two that differ"),
        (
            ["a", "biostransformers"],
            r"different methods .*a: sppt_protein, biostransformers: biostransformers",
        ),
        (
            ["a", "elsewhere"],
            r"scores over different data.*a: store \(dddddddd\), "
            r"elsewhere: store \(eeeeeeee\).*--curves-only",
        ),
        (["a", "silent"], "silent: has reported nothing yet"),
        (["a", "sweep"], "RUN sweep: is a sweep, none of whose trials has reported anything yet"),
    ):
        with pytest.raises(ConfigError, match=message):
            given_runs(names, tmp_path)
    found = compare_runs(
        given_runs(["a", "elsewhere"], tmp_path, same_data=False), with_scores=False
    )
    assert (found.tests, found.rows) == ([], {})
    assert found.curves["val/link_mrr"] == [
        (name, step, 1, v, 0) for name in ("a", "elsewhere") for step, v in CURVE.items()
    ]
    assert "Curves only" in found.notes[0]


def test_a_sweep_means_its_trials_that_have_reported_anything(tmp_path: Path) -> None:
    write_run(tmp_path, "a", noisy(1))
    sweep = RunFolder(tmp_path / "sweeps", "lambda")
    sweep.make()
    write_record(sweep.path / "run.json", "run", {"config": {"space": {}}})
    trials = sweep.path / "trials"
    write_run(trials, "trial-1", None, {"objective.lambda_spml": 0.25})
    write_run(trials, "trial-2", None, {"objective.lambda_spml": 0.75})
    write_run(trials, "trial-3", None, {"objective.lambda_spml": 0.5}, curve={})
    runs = given_runs(["a", str(sweep.path)], tmp_path)
    assert [run.label for run in runs] == ["a", "trial-1", "trial-2"]


def test_runs_over_other_data_repeat_nothing(tmp_path: Path) -> None:
    write_run(tmp_path, "a", noisy(1))
    write_run(tmp_path, "other", noisy(1), digest="e" * 64)
    write_run(tmp_path, "other-seed", noisy(2), {"seed": 1}, digest="e" * 64)
    runs = given_runs(["*"], tmp_path, same_data=False)
    found = compare_runs(runs, with_scores=False)
    assert [group.label for group in found.groups] == ["a", "other (2 runs)"]
    assert not [note for note in found.notes if "same training" in note]


def test_of_the_same_training_a_finished_run_comes_first(tmp_path: Path) -> None:
    write_run(tmp_path, "a-killed", None).record_precision("fp32")
    write_run(tmp_path, "b-finished", noisy(1))
    write_run(tmp_path, "c-seed", noisy(2), {"seed": 1})
    found = compared(tmp_path)
    assert [group.label for group in found.groups] == ["a-killed", "b-finished (2 runs)"]
    assert found.rows["b-finished (2 runs)"]["val"]["mrr"]["num_runs"] == 2
    (note,) = [note for note in found.notes if "same training" in note]
    assert note.startswith("a-killed: the settings and the seed of b-finished, so the same")


def test_a_killed_run_takes_no_test_from_the_other_seeds(tmp_path: Path) -> None:
    write_seeds(tmp_path, "a", 0, 0.8, 0.1)
    write_seeds(tmp_path, "b", 10, 0.5, 0.7)
    before = compared(tmp_path)
    assert before.tests and before.relations
    killed = write_run(tmp_path, "a3", None, {"objective.lambda_spml": 0.1, "seed": 3})
    killed.record_precision("fp32")
    found = compared(tmp_path)
    assert (found.tests, found.relations) == (before.tests, before.relations)
    assert found.rows == before.rows
    assert found.rows["a0 (3 runs)"]["val"]["mrr"]["num_runs"] == 3
    assert found.scores.repeated == before.scores.repeated
    # Its curve and cost are shown with the others'.
    assert [group.label for group in found.groups] == ["a0 (4 runs)", "b0 (3 runs)"]
    assert "Not tested in pairs: a3; they have no final evaluation" in "\n".join(found.notes)


def test_differences_of_a_sample_of_units_are_those_of_the_scores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value, weight in (("a", 0.9, 0.5), ("b", 0.7, 0.7)):
        folder = write_run(tmp_path, name, noisy(ord(name)), {"objective.lambda_spml": weight})
        record = dict(read_record(folder.result, "result"))
        for score in record["final"]["scores"]["trained"]["val"].values():
            score["value"] = value
        write_record(folder.result, "result", record)
    of_units = compared(tmp_path).tests[0]
    assert of_units.difference == pytest.approx(0, abs=0.03)
    monkeypatch.setattr(unit_scores, "MAX_UNITS", len(UNITS))
    of_scores = compared(tmp_path).tests[0]
    assert of_scores.difference == pytest.approx(0.2)
    assert of_scores.low - 0.2 == pytest.approx(of_units.low - of_units.difference)
    assert of_scores.high - 0.2 == pytest.approx(of_units.high - of_units.difference)


def test_a_run_called_like_a_row_without_training_replaces_no_row(tmp_path: Path) -> None:
    write_run(tmp_path, "chance", noisy(1), chance=0.05)
    write_run(tmp_path, "other", noisy(2), {"objective.lambda_spml": 0.7}, chance=0.05)
    found = compared(tmp_path)
    assert list(found.rows) == ["chance", "chance (run)", "other"]
    assert found.rows["chance"]["val"]["mrr"]["value"] == 0.05
    assert {test.one for test in found.tests} == {"chance (run)"}


def test_notes_say_what_was_not_tested_and_what_differs_in_evaluation(tmp_path: Path) -> None:
    write_run(tmp_path, "a", noisy(1))
    earlier = write_run(tmp_path, "earlier", noisy(2), {"evaluation.metric": "cosine", "seed": 1})
    earlier.unit_scores.unlink()
    write_record(
        earlier.result, "result", read_record(earlier.result, "result") | {"precision": "bf16"}
    )
    write_run(
        tmp_path,
        "other-units",
        noisy(3),
        {"seed": 2, "objective.lambda_spml": 0.7},
        units=UNITS + 1,
    )
    write_run(tmp_path, "trial", None, {"seed": 3, "optim.peak_lr": 1e-5})
    found = compared(tmp_path)
    assert found.tests == []
    assert found.rows.keys() == {"a", "earlier", "other-units"}
    assert found.notes == [
        "Not finished: trial (not ended yet)",
        "The runs were evaluated with different settings (evaluation.metric): scores may mean "
        "different things",
        "The runs were computed in different precision, so scores differ by that too: "
        "a: fp32, earlier: bf16, other-units: fp32",
        "Not tested in pairs: trial; they have no final evaluation (unfinished runs and trials of "
        "sweeps have none)",
        "Not tested in pairs: earlier; they have no scores of single units (unit_scores.npz)",
        "a and other-units were evaluated on different units (val): no test",
    ]


@pytest.mark.parametrize("num_seeds", [1, 6])
def test_runs_with_other_queries_are_not_tested(tmp_path: Path, num_seeds: int) -> None:
    """Neither on units, nor in pairs of seeds."""
    for name, field in (("a", "title"), ("b", "abstract")):
        for seed in range(num_seeds):
            settings = {"objective.lambda_spml": len(field) / 10, "seed": seed}
            folder = write_run(tmp_path, f"{name}{seed}", noisy(seed), settings)
            result = read_record(folder.result, "result")
            result["final"]["queries"] = {"field": field}
            write_record(folder.result, "result", result)
    found = compared(tmp_path)
    assert found.tests == []
    runs = f" ({num_seeds} runs)" if num_seeds > 1 else ""
    note = f"a0{runs} and b0{runs} were evaluated with different queries: no test"
    assert note in found.notes


def test_the_page_holds_its_pictures_and_needs_nothing_else(tmp_path: Path) -> None:
    write_run(tmp_path, "a", noisy(1), {"objective.lambda_spml": 0.1})
    write_run(
        tmp_path, "b", noisy(2), {"encoder.source": "<script>&", "objective.lambda_spml": 0.2}
    )
    out = tmp_path / "out"
    (out / "plots").mkdir(parents=True)
    (out / "plots" / "curve-of-another.png").touch()
    (out / "mine.txt").write_text("mine")
    files = write_comparison(compared(tmp_path), out)
    assert {path.relative_to(out).as_posix() for path in files} == {
        path.relative_to(out).as_posix() for path in out.rglob("*.*") if path.name != "mine.txt"
    }
    page = (out / "report.html").read_text()
    assert '<meta name="viewport" content="width=device-width' in page
    assert re.findall(r'(?:src|href)="(?!data:image/png;base64,)', page) == []
    assert "http" not in page and "url(" not in page
    assert (
        page.count("<img") == page.count('<img alt="') == len(list((out / "plots").iterdir())) == 3
    )
    assert "<script" not in page and "&lt;script&gt;&amp;" in page
    with (out / "tests.csv").open(newline="") as file:
        tests = list(csv.DictReader(file))
    data = json.loads((out / "report.json").read_text())
    differences = [one["difference"] for one in data["tests"]]
    assert [float(one["difference"]) for one in tests] == differences != []
    assert {one["p_holm"] for one in tests} == {""}  # one seed a side
    with (out / "curves.csv").open(newline="") as file:
        rows = [row for row in csv.reader(file) if row[0] == "val/link_mrr"]
    assert rows == [
        ["val/link_mrr", name, str(step), "1", str(v), "0.0"]
        for name in "ab"
        for step, v in CURVE.items()
    ]
    assert data["cost"]["a"] | {"workers": None} == {
        "status": "finished",
        "step": 10,
        "epochs": None,
        "seconds": 5.0,
        "tokens_per_second": 100.0,
        "workers": None,
        "precision": "fp32",
    }


def test_a_report_deletes_nobodys_pictures_and_takes_no_runs_folder(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "runs", "a", noisy(1))
    write_run(tmp_path / "runs", "b", noisy(2))
    mine = tmp_path / "notes" / "plots" / "mine.png"
    mine.parent.mkdir(parents=True)
    mine.touch()
    compare(["a", "b"], out=tmp_path / "notes", runs=tmp_path / "runs")
    assert mine.exists()
    with pytest.raises(ConfigError, match="holds a run or a sweep.*choose another folder"):
        compare(["a", "b"], out=folder.path, runs=tmp_path / "runs")
    assert not (folder.path / "report.md").exists()


def test_no_two_of_many_lines_look_alike_without_color(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib.axes import Axes

    drawn = []
    plot = Axes.plot
    monkeypatch.setattr(
        Axes, "plot", lambda *args, **style: drawn.append(style) or plot(*args, **style)
    )
    plot_curves(
        [CurvePoint(f"run {n}", step, 1, n, 0.0) for n in range(20) for step in range(3)],
        tmp_path / "p.png",
    )
    assert len({(style["marker"], style["linestyle"]) for style in drawn}) == 20
    # Names as long as they may be leave room for the panels: matplotlib would warn.
    long = {f"{number}{'x' * 99}": dict.fromkeys(MEASURES, SCORE) for number in range(5)}
    plot_scores(long, METHODS[SYSTEM].table.measures, tmp_path / "scores.png", title="")
    plot_curves([CurvePoint(label, 0, 1, 0.5, 0.0) for label in long], tmp_path / "long.png")


@pytest.mark.nightly
def test_the_job_compares_real_runs(unbroken: Result, request_two: RunSpec, tmp_path: Path) -> None:
    config = override(request_two.config, "objective.lambda_spml", 0)
    other = train(replace(request_two, config=config, name="without-the-graph"))
    names = [unbroken.folder.name, str(other.folder.path)]
    done = run_script(
        ROOT / "jobs" / "compare.py",
        tmp_path,
        *names,
        "--runs",
        str(request_two.runs),
        COLUMNS="200",
    )
    assert done.returncode == 0, done.stderr
    assert "objective.lambda_spml" in done.stdout
    assert "comparison/report.html" in done.stdout
    data = json.loads((tmp_path / "comparison" / "report.json").read_text())
    assert data["settings"] == {"objective.lambda_spml": {"unbroken": 0.5, "without-the-graph": 0}}
    # Which unit moves such a small difference most is a matter of chance.
    assert all("moves the difference" in note for note in data["notes"])
    assert {each["row"] for each in data["relations"]} >= {
        "degree",
        "unbroken",
        "without-the-graph",
    }
    assert data["scores"]["chance"] == unbroken.final.scores["chance"]
    for name, result in (("unbroken", unbroken), ("without-the-graph", other)):
        assert data["scores"][name] == result.final.scores["trained"]
        assert data["cost"][name]["step"] == 24
        assert data["cost"][name]["tokens_per_second"] > 0
        assert data["cost"][name]["workers"] == 2
    assert len(data["tests"]) == 2 * len(MEASURES)
    for test in data["tests"]:
        ours, theirs = (
            data["scores"][name][test["split"]][test["measure"]]["value"] for name in data["runs"]
        )
        assert test["difference"] == pytest.approx(ours - theirs)
    report = (tmp_path / "comparison" / "report.md").read_text()
    assert "| val/link_mrr | 24 |" in report
    assert "unit_scores" not in read_record(other.folder.result, "result")["final"]
    with pytest.raises(ConfigError, match="want at least two"):
        given_runs(["unbroken"], Path(request_two.runs))


def test_one_run_against_one_has_an_interval_and_no_p(tmp_path: Path) -> None:
    write_run(tmp_path, "a", noisy(1), {"objective.lambda_spml": 0.1})
    write_run(tmp_path, "b", noisy(2, 0.9), {"objective.lambda_spml": 0.2})
    found = compared(tmp_path)
    assert {(test.p, test.p_holm, test.verdict) for test in found.tests} == {
        (None, None, "too few seeds to test")
    }
    assert all(test.high < 0 for test in found.tests)
    report = write_comparison(found, tmp_path / "out")[0].read_text()
    assert "| – | – | too few seeds to test |" in report


def test_runs_in_a_bucket_are_compared_like_local_ones(
    tmp_path: Path, bucket: BucketPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYBIO_CACHE", str(tmp_path / "disk"))
    local = tmp_path / "runs"
    for name, mean in (("a", 0.5), ("b", 0.57), ("other", 0.4)):
        write_run(local, name, noisy(1, mean), {"objective.lambda_spml": mean})
    folder = BucketFolder(bucket / "runs")
    for path in local.rglob("*"):
        if path.is_file():
            folder.upload(path, path.relative_to(local).as_posix())
    compare(["a", "b"], out=tmp_path / "local", runs=local)
    compare(["[ab]"], out=tmp_path / "there", runs=bucket / "runs")
    reports = [(tmp_path / name / "report.md").read_text() for name in ("local", "there")]
    assert reports[0] == reports[1]
    # What is not named is not fetched.
    assert {path.parent.name for path in (tmp_path / "disk").rglob("run.json")} == {"a", "b"}
    with pytest.raises(ConfigError, match="no run of that name"):
        compare(["nothing", "b"], out=tmp_path / "none", runs=bucket / "runs")


def test_a_unit_that_dominates_a_difference_is_named_below_the_table(tmp_path: Path) -> None:
    values = noisy(0)
    write_run(tmp_path, "plain", values)
    one_unit = 20.0 * (UNITS[3] == UNITS)
    write_run(tmp_path, "lucky", values + 0.01 + one_unit, {"objective.lambda_spml": 0.3})
    found = compared(tmp_path)
    (note,) = [note for note in found.notes if "than all others" in note]
    one, two = (group.label for group in found.groups)
    assert note.startswith(
        f"{one} minus {two} (val): unit {UNITS[3]} moves the difference more than all others "
        "together; without it "
    )
    sign = -1 if one.startswith("plain") else 1
    for test in found.tests:
        assert test.dominant_unit == UNITS[3]
        assert test.without_dominant == pytest.approx(sign * 0.01)


def test_runs_of_an_older_version_are_compared_and_said_to_have_linearized_units(
    tmp_path: Path,
) -> None:
    write_run(tmp_path, "old", noisy(0))
    new = write_run(tmp_path, "new", noisy(1), {"objective.lambda_spml": 0.3})
    assert not [note for note in compared(tmp_path).notes if "older raybio" in note]
    before = compared(tmp_path).tests
    # The same scores, as ratios of equal wholes.
    count_U2 = np.stack([noisy(1), np.ones(len(UNITS))], axis=1)
    ratios = UnitScores(UNITS, dict.fromkeys(MEASURES, count_U2), dict.fromkeys(MEASURES, "ratio"))
    write_unit_scores(new.unit_scores, {"trained": {"val": ratios}})
    found = compared(tmp_path)
    (note,) = [note for note in found.notes if "older raybio" in note]
    assert note.endswith("an older raybio, which stored linearized contributions of units")
    for test, same in zip(found.tests, before, strict=True):
        assert (test.difference, test.low, test.high) == pytest.approx(
            (same.difference, same.low, same.high)
        )
