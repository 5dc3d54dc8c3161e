"""Tables of stored results: intervals over seeds and units, differences, and rivals' remarks."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from raybio.core.final_report import FinalReport, UnitScores
from raybio.core.records import read_record, write_record
from raybio.evaluation.unit_scores import stored_unit_scores, write_unit_scores
from raybio.methods import METHODS
from raybio.ops.significance import hierarchical_mean, hierarchical_test, holm
from raybio.runtime.compare.compare import compare_runs, write_comparison
from raybio.runtime.compare.runs import given_runs
from raybio.runtime.compare.table import (
    ResultTable,
    lines_for_terminal,
    write_joint_table,
    write_table,
)
from raybio.runtime.compare.variations import Variation, result_table, variants_of
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.metrics_log import MetricsLog
from raybio.runtime.run.result import Result
from raybio.runtime.run.spec import RunSpec

METHOD = METHODS["sppt_protein"]
LAYOUT = METHOD.table
MEASURES = tuple(LAYOUT.measures)
UNITS = np.arange(150)
HARDNESS = np.random.default_rng(0).uniform(0.1, 0.4, len(UNITS))
NOISE = np.random.default_rng(1).normal(0, 0.02, (20, len(UNITS)))


def store_run(
    folder: RunFolder,
    config: Any,
    values_by_stage: Mapping[str, np.ndarray],
    *,
    losses: Mapping[int, float] | None = None,
    facts: Mapping[str, Any] | None = None,
    without_units: tuple[str, ...] = (),
) -> Result:
    """What training leaves of a run; units of each stage have these values in all scores."""
    folder.open("sppt_protein", config, Path("store"), "d" * 64, ())
    log = MetricsLog(folder.metrics)
    for step, loss in (losses or {10: 1.0}).items():
        log.append(step, {"loss": loss, "epoch": step / 5})
    scores: dict[str, Any] = {"chance": {"val": {name: {"value": 0.05} for name in MEASURES}}}
    units = {}
    for stage, value_U in values_by_stage.items():
        value = float(value_U.mean())
        score = {"value": value, "low": value - 0.02, "high": value + 0.02}
        scores[stage] = {"val": dict.fromkeys(MEASURES, score)}
        if stage not in without_units:
            units[stage] = {"val": UnitScores(UNITS, dict.fromkeys(MEASURES, value_U))}
    content = {"status": "finished", "step": 10, "precision": "fp32", "final": {"scores": scores}}
    write_record(folder.result, "result", content | dict(facts or {}))
    write_unit_scores(folder.unit_scores, stored_unit_scores(units, LAYOUT))
    final = FinalReport.from_json({"scores": scores})
    return Result("finished", 10, "fp32", {}, final, {}, None, None, None, False, folder)


def stored_table(
    tmp_path: Path,
    num_seeds: int,
    *,
    weight: float = 0.3,
    rival: float = 0.1,
    better: float = 0.2,
    without_units: tuple[str, ...] = (),
) -> tuple[ResultTable, list[Result]]:
    """The table of λ = 0.5 (this run, better) and λ = 0.3, each with some seeds."""
    spec = RunSpec(
        method="sppt_protein",
        config=METHOD.demo,
        store=tmp_path / "store",
        name="first",
        runs=tmp_path / "runs",
    )
    variations = [Variation("objective.lambda_spml", (weight,))]
    if num_seeds > 1:
        variations.append(Variation("seed", tuple(range(num_seeds))))
    variants = variants_of(spec, variations)
    results = []
    for number, one in enumerate(variants):
        is_own = one.spec.config.objective.lambda_spml == METHOD.demo.objective.lambda_spml
        luck = 0.01 * one.spec.config.seed
        trained = HARDNESS + (better if is_own else 0.1) + luck + NOISE[number]
        values = {
            "degree": HARDNESS + rival + NOISE[18],
            "look-up": HARDNESS + NOISE[19],
            "initial": HARDNESS - 0.05 + luck,
            "trained": trained,
        }
        folder = RunFolder(tmp_path / "runs", one.spec.name)
        results.append(store_run(folder, one.spec.config, values, without_units=without_units))
    return result_table(variants, results), results


def units_of(results: list[Result], stage: str = "trained") -> np.ndarray:
    from raybio.evaluation.unit_scores import read_unit_scores

    return np.stack(
        [
            np.float32(read_unit_scores(one.folder.unit_scores)[stage]["val"].value_by_measure[m])
            for one in results
            for m in ("lrap",)
        ]
    ).astype(np.float64)


def test_one_seed_has_intervals_over_units_and_no_p(tmp_path: Path) -> None:
    table, _ = stored_table(tmp_path, 1)
    assert table.legend.startswith("95 % bootstrap intervals over units, one seed; ")
    assert "one seed: no test over seeds" in table.all_remarks
    assert {(test.two, test.p, test.p_holm) for test in table.tests} == {
        ("lambda_spml = 0.3", None, None),
        ("degree", None, None),
    }
    assert all(0 < test.low < test.difference < test.high for test in table.tests)
    header, body = table.difference_cells("val")
    assert header == ["difference", *LAYOUT.measures.values()]
    assert [cells[0] for cells in body] == [
        "lambda_spml = 0.5 (this run) minus lambda_spml = 0.3",
        "lambda_spml = 0.5 (this run) minus degree",
    ]
    assert all("p =" not in cell for cells in body for cell in cells)
    assert not [line for line in table.all_remarks if "reaches" in line or "passes" in line]


def test_three_seeds_have_intervals_over_seeds_and_units_and_a_corrected_p(tmp_path: Path) -> None:
    table, results = stored_table(tmp_path, 3)
    own = units_of(results[:3])
    other = units_of(results[3:])
    assert table.rows["lambda_spml = 0.5, 3 runs"]["val"]["lrap"]["num_runs"] == 3
    score = table.rows["lambda_spml = 0.5, 3 runs"]["val"]["lrap"]
    expected = hierarchical_mean(own, np.random.default_rng(0)).difference
    assert (score["value"], score["low"], score["high"]) == pytest.approx(expected, abs=1e-6)
    assert score["deviation"] == pytest.approx(own.mean(axis=1).std(ddof=1))
    assert score["low"] < score["value"] - score["deviation"]
    assert "of repetitions over seeds and units; ± standard deviation" in table.legend
    tests = {test.two: test for test in table.tests if test.measure == "lrap"}
    assert list(tests) == ["lambda_spml = 0.3, 3 runs", "degree"]
    found = hierarchical_test(own, other, np.random.default_rng(0))
    against = tests["lambda_spml = 0.3, 3 runs"]
    interval = (against.difference, against.low, against.high)
    assert interval == pytest.approx(found.difference, abs=1e-6)
    assert against.p == pytest.approx(found.p, rel=1e-5)
    rival = hierarchical_mean(own - units_of(results[:3], "degree"), np.random.default_rng(0))
    assert tests["degree"].p == pytest.approx(rival.p, rel=1e-5)
    assert [test.p_holm for test in table.tests] == holm([test.p for test in table.tests]).tolist()
    assert len(table.tests) == 2 * len(MEASURES)
    assert not [line for line in table.all_remarks if "no test" in line]


def test_two_seeds_have_an_interval_over_units_only_and_no_p(tmp_path: Path) -> None:
    table, _ = stored_table(tmp_path, 2)
    assert "of two runs over units only" in table.legend
    assert "fewer than 3 seeds on a side: no test over seeds" in table.all_remarks
    assert all(test.p is None for test in table.tests)


def test_equal_settings_have_p_one(tmp_path: Path) -> None:
    table, results = stored_table(tmp_path, 3)
    for first, second in zip(results[:3], results[3:], strict=True):
        second.folder.unit_scores.write_bytes(first.folder.unit_scores.read_bytes())
    variants = variants_of(
        RunSpec(
            method="sppt_protein",
            config=METHOD.demo,
            store=tmp_path / "store",
            name="first",
            runs=tmp_path / "runs",
        ),
        [Variation("objective.lambda_spml", (0.3,)), Variation("seed", (0, 1, 2))],
    )
    same = [test for test in result_table(variants, results).tests if "lambda" in test.two]
    assert [(test.difference, test.p, test.p_holm) for test in same] == [(0, 1, 1)] * len(MEASURES)


@pytest.mark.parametrize(("rival", "verb"), [(0.6, "passes"), (0.201, "reaches"), (0.1, None)])
@pytest.mark.parametrize("num_seeds", [1, 3])
def test_a_rival_that_passes_or_reaches_the_model_is_named(
    tmp_path: Path, rival: float, verb: str | None, num_seeds: int
) -> None:
    table, _ = stored_table(tmp_path, num_seeds, rival=rival)
    label = "lambda_spml = 0.5 (this run)" if num_seeds == 1 else "lambda_spml = 0.5, 3 runs"
    named = [line for line in table.all_remarks if line.startswith("degree ")]
    names = ", ".join(LAYOUT.measures.values())
    assert named == ([f"degree {verb} {label} on held-out links ({names})"] if verb else [])
    assert not [line for line in table.all_remarks if line.startswith(("look-up", "chance"))]


def test_seeds_that_disagree_are_not_above_a_rival_which_one_of_them_is(tmp_path: Path) -> None:
    """Seeds add 0, 0.01 and 0.02: by the first seed alone the rival passes, by all it reaches."""
    alone, _ = stored_table(tmp_path / "one", 1, rival=0.21)
    assert any(line.startswith("degree passes") for line in alone.all_remarks)
    several, _ = stored_table(tmp_path / "three", 3, rival=0.21)
    assert any(line.startswith("degree reaches") for line in several.all_remarks)


def test_a_rival_without_unit_scores_is_compared_by_its_interval(tmp_path: Path) -> None:
    table, _ = stored_table(tmp_path / "a", 1, rival=0.22, without_units=("degree",))
    assert any(line.startswith("degree reaches") for line in table.all_remarks)
    assert "degree" not in {test.two for test in table.tests}
    table, _ = stored_table(tmp_path / "b", 1, rival=0.6, without_units=("degree",))
    assert any(line.startswith("degree passes") for line in table.all_remarks)


def test_undefined_scores_have_no_interval_and_no_test(tmp_path: Path) -> None:
    undefined = HARDNESS * np.nan
    for number in range(2):
        folder = RunFolder(tmp_path, f"run{number}")
        values = {"degree": HARDNESS, "trained": undefined if number else HARDNESS}
        config = METHOD.config()
        store_run(folder, config.model_copy(update={"seed": number}), values)
    found = compare_runs(given_runs(["run*"], tmp_path))
    assert found.tests == []
    assert write_comparison(found, tmp_path / "out")
    assert "undefined" in (tmp_path / "out" / "report.md").read_text()


@pytest.mark.parametrize("num_seeds", [1, 3])
def test_a_single_unit_says_nothing_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_seeds: int
) -> None:
    """Its bootstrap has no width: any rival with another value would pass, or not reach."""
    module = sys.modules[__name__]
    monkeypatch.setattr(module, "UNITS", UNITS[:1])
    monkeypatch.setattr(module, "HARDNESS", HARDNESS[:1])
    monkeypatch.setattr(module, "NOISE", NOISE[:, :1])
    table, _ = stored_table(tmp_path, num_seeds, rival=0.6)
    assert {(test.verdict, test.p) for test in table.tests} == {("cannot be compared", None)}
    named = [line for line in table.all_remarks if line.startswith(("degree", "look-up"))]
    assert len(named) == 2
    assert all("cannot be compared with lambda_spml = 0.5" in line for line in named)
    text = str([table.difference_cells("val"), table.cells("val"), table.all_remarks])
    assert "nan" not in text and "no test over seeds" not in text


def test_no_rival_is_below_a_model_without_a_score(tmp_path: Path) -> None:
    spec = RunSpec(
        method="sppt_protein",
        config=METHOD.demo,
        store=tmp_path / "store",
        name="first",
        runs=tmp_path / "runs",
    )
    variants = variants_of(spec, [])
    values = {"degree": HARDNESS, "trained": HARDNESS * np.nan}
    result = store_run(RunFolder(tmp_path / "runs", "first"), METHOD.demo, values)
    remarks = result_table(variants, [result]).all_remarks
    assert any(line.startswith("degree cannot be compared with first") for line in remarks)


def test_the_files_of_a_table_and_the_terminal_have_differences_and_remarks(
    tmp_path: Path,
) -> None:
    table, results = stored_table(tmp_path, 3, rival=0.6)
    write_table(table, results[0].folder)
    text = (results[0].folder.path / "table.md").read_text()
    assert "Differences, held-out links (95 % bootstrap intervals of the paired differences" in text
    assert "p corrected for 8 tests (Holm)" in text
    assert (
        "degree passes lambda_spml = 0.5, 3 runs on held-out links (LRAP, nDCG, AP, MRR)." in text
    )
    content = read_record(results[0].folder.path / "table.json", "score table")
    assert content is not None
    assert len(content["differences"]) == len(table.tests)
    assert content["differences"][-1]["verdict"] == "degree is higher"
    assert content["remarks"] == table.all_remarks
    console = Console(width=80, record=True)
    for renderable in lines_for_terminal(table):
        console.print(renderable)
    shown = console.export_text()
    assert "…" not in shown
    assert shown.count("p = ") == len(table.tests)
    assert "degree passes" in shown


def test_the_joint_table_has_intervals_of_repetitions_and_the_remarks_of_each_part(
    tmp_path: Path,
) -> None:
    parts = {}
    for name, rival in (("a", 0.6), ("b", 0.1)):
        table, results = stored_table(tmp_path / name, 3, rival=rival)
        parts[name] = (table, results[0].folder)
    text = write_joint_table(parts, "val").read_text()
    row = next(line for line in text.splitlines() if line.startswith("| lambda_spml = 0.5, 3"))
    assert row.count("[") == row.count("±") == 2 * len(MEASURES)
    assert "a: degree passes lambda_spml = 0.5, 3 runs on held-out links" in text
    assert "b: degree" not in text


def test_a_comparison_of_finished_runs_names_the_rival_of_each_group(tmp_path: Path) -> None:
    stored_table(tmp_path, 3, rival=0.15)
    found = compare_runs(given_runs(["first*"], tmp_path / "runs"))
    named = [note for note in found.notes if note.startswith("degree")]
    assert len(named) == 1
    assert named[0].startswith("degree passes first.lambda_spml-0.3 (3 runs) on held-out links")
    write_comparison(found, tmp_path / "out")
    assert named[0] in (tmp_path / "out" / "report.md").read_text()


def test_untrained_rows_are_averaged_only_where_they_differ_by_seed(tmp_path: Path) -> None:
    table, _ = stored_table(tmp_path, 3)
    averaged = [label for label in table.rows if label.endswith(", 3 runs")]
    assert averaged == [
        "initial, 3 runs",
        "lambda_spml = 0.3, 3 runs",
        "lambda_spml = 0.5, 3 runs",
    ]
