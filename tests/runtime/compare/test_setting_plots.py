"""Scores against a numeric setting: which pictures there are, and the numbers that they show."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.image import imread

from raybio.core.config import override_all
from raybio.core.final_report import FinalReport
from raybio.core.records import read_record
from raybio.methods import METHODS
from raybio.methods.mtb_mccl.documents.store import DocumentStore
from raybio.runtime.compare.plots import plot_scores_by_setting
from raybio.runtime.compare.setting_plots import SettingsScores, write_setting_plots
from raybio.runtime.compare.variations import (
    Variant,
    Variation,
    compare,
    score_rows,
    scores_by_settings,
    variants_of,
)
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.result import Result
from raybio.runtime.run.spec import RunSpec
from tests.methods.conformance_cases import tiny_config
from tests.runtime.compare.test_differences import UNITS, store_run

ENTRY = METHODS["relation_finetune"]
PROXIES = Variation("objective.num_proxies", (4, 0))


def tiny_variants(tmp_path: Path, *variations: Variation) -> list[Variant]:
    request = RunSpec(
        method="relation_finetune",
        config=ENTRY.demo,
        store=tmp_path / "store",
        name="first",
        runs=tmp_path,
    )
    return variants_of(request, variations)


def written(
    tmp_path: Path, variants: list[Variant], value: Callable[[Variant], float]
) -> dict[str, list[list[str]]]:
    """File -> rows, of runs whose scores have this value in the test and half of it in the
    validation documents.
    """
    results = []
    for one in variants:
        by_split = {
            split: {
                measure: {"value": share, "low": share - 0.25, "high": share + 0.25}
                for measure in ENTRY.table.measures
            }
            for split, share in (("dev", value(one) / 2), ("test", value(one)))
        }
        final = FinalReport(scores={"initial": {}, "trained": by_split})
        folder = RunFolder(tmp_path, one.spec.name)
        results.append(
            Result("finished", 1, "fp32", {}, final, {}, None, None, None, False, folder)
        )
    results[0].folder.make()
    paths = write_setting_plots(
        scores_by_settings(variants, results, score_rows(variants, results)),
        ENTRY.table,
        results[0].folder,
    )
    assert all(path.exists() for path in paths)
    tables = {}
    for table, picture in zip(paths[::2], paths[1::2], strict=True):
        assert (picture.name, picture.parent.name) == (f"{table.stem}.png", "plots")
        with table.open(newline="") as file:
            tables[table.name] = list(csv.reader(file))
    return tables


def test_a_setting_with_three_numbers_is_shown_in_their_order_with_the_spread_of_each(
    tmp_path: Path,
) -> None:
    tables = written(
        tmp_path,
        tiny_variants(tmp_path, PROXIES),
        lambda one: one.spec.config.objective.num_proxies / 4,
    )
    (table,) = tables.values()
    assert table[0] == [
        "split",
        "label",
        "objective.num_proxies",
        "measure",
        "runs",
        "value",
        "low",
        "high",
        "deviation",
    ]
    assert table[1::4] == [
        ["test", "", "0", "f1", "1", "0.0", "-0.25", "0.25", ""],
        ["test", "", "1", "f1", "1", "0.25", "0.0", "0.5", ""],
        ["test", "", "4", "f1", "1", "1.0", "0.75", "1.25", ""],
    ]
    assert [row[3] for row in table[1:5]] == list(ENTRY.table.measures)


def test_each_combination_of_the_others_is_a_line_and_repetitions_are_its_points(
    tmp_path: Path,
) -> None:
    variants = tiny_variants(
        tmp_path, PROXIES, Variation("objective.kind", ("supcon",)), Variation("seed", (1,))
    )
    assert len(variants) == 12
    tables = written(
        tmp_path,
        variants,
        lambda one: 0.5 * one.spec.config.seed + (one.spec.config.objective.kind == "supcon"),
    )
    assert list(tables) == ["scores-by-objective.num_proxies.csv"]
    rows = [row for row in tables["scores-by-objective.num_proxies.csv"] if row[3] == "f1"]
    assert [row[1:3] for row in rows] == [
        [f"kind = {kind}", num] for kind in ("mccl", "supcon") for num in "014"
    ]
    assert {row[4] for row in rows} == {"2"}
    # Without scores of units there are no intervals.
    assert {(row[6], row[7]) for row in rows} == {("", "")}
    assert [float(row[5]) for row in rows] == 3 * [0.25] + 3 * [1.25]
    assert [float(row[8]) for row in rows] == pytest.approx(6 * [0.5**1.5])


def test_points_of_repetitions_have_the_intervals_of_the_table(tmp_path: Path) -> None:
    variants = tiny_variants(tmp_path, PROXIES, Variation("seed", (1, 2)))
    rng = np.random.default_rng(0)
    results = []
    for variant in variants:
        values = rng.uniform(0.2, 0.8, len(UNITS))
        folder = RunFolder(tmp_path, variant.spec.name)
        config = variant.spec.config
        stages = {"trained": values}
        results.append(
            store_run(folder, config, stages, splits=("test",), method="relation_finetune")
        )
    rows = score_rows(variants, results)
    scores = scores_by_settings(variants, results, rows)
    table, _ = write_setting_plots(scores, ENTRY.table, results[0].folder)
    with table.open(newline="") as file:
        points = [row for row in csv.DictReader(file) if row["measure"] == "f1"]
    assert len(points) == 3
    for point in points:
        of_table = rows[f"num_proxies = {point['objective.num_proxies']}, 3 runs"]["test"]["f1"]
        for name in ("value", "low", "high", "deviation"):
            assert float(point[name]) == pytest.approx(of_table[name])
        assert of_table["high"] - of_table["value"] != pytest.approx(of_table["deviation"])


def test_each_of_two_numeric_settings_is_shown_with_a_line_for_each_value_of_the_other(
    tmp_path: Path,
) -> None:
    fractions = Variation("data.label_fraction", (0.01, 0.1))
    tables = written(tmp_path, tiny_variants(tmp_path, PROXIES, fractions), lambda _: 0.5)
    assert list(tables) == [
        "scores-by-objective.num_proxies.csv",
        "scores-by-data.label_fraction.csv",
    ]
    labels = [list(dict.fromkeys(row[1] for row in table[1:])) for table in tables.values()]
    assert labels == [
        ["label_fraction = 1", "label_fraction = 0.01", "label_fraction = 0.1"],
        ["num_proxies = 1", "num_proxies = 4", "num_proxies = 0"],
    ]


@pytest.mark.parametrize(
    ("system", "shown"), [("finetune", "test"), ("sppt_mag", "val"), ("relation_finetune", "test")]
)
def test_the_last_split_that_is_no_part_of_another_is_shown(
    tmp_path: Path, system: str, shown: str
) -> None:
    layout = METHODS[system].table
    scores = dict.fromkeys(layout.measures, {"value": 0.5, "low": 0.4, "high": 0.6})
    runs = [
        SettingsScores({"optim.peak_lr": rate}, dict.fromkeys(layout.splits, scores))
        for rate in (1e-5, 2e-5, 3e-5)
    ]
    folder = RunFolder(tmp_path, "first")
    folder.make()
    table, _ = write_setting_plots(runs, layout, folder)
    with table.open(newline="") as file:
        _, *rows = csv.reader(file)
    assert {(row[0], row[4]) for row in rows} == {(shown, "1")}


@pytest.mark.parametrize(
    "variation",
    [
        Variation("objective.num_proxies", (0,)),  # two numbers
        Variation("objective.kind", ("ce", "supcon")),  # words
        Variation("seed", (1, 2, 3)),  # repetitions
        Variation("data.is_coarse", (True,)),
    ],
)
def test_other_settings_have_no_picture_and_those_of_an_earlier_comparison_are_deleted(
    tmp_path: Path, variation: Variation
) -> None:
    written(tmp_path, tiny_variants(tmp_path, PROXIES), lambda _: 0.5)
    folder = RunFolder(tmp_path, "first")
    assert len(list(folder.path.rglob("scores-by-*"))) == 2
    assert written(tmp_path, tiny_variants(tmp_path, variation), lambda _: 0.5) == {}
    assert list(folder.path.rglob("scores-by-*")) == []


def test_runs_without_a_final_evaluation_have_no_picture(tmp_path: Path) -> None:
    variants = tiny_variants(tmp_path, PROXIES)
    results = [
        Result(
            "stopped", 1, "fp32", {}, None, {}, None, None, None, False, RunFolder(tmp_path, "x")
        )
        for _ in variants
    ]
    assert scores_by_settings(variants, results, score_rows(variants, results)) == []
    assert write_setting_plots([], ENTRY.table, results[0].folder) == []


@pytest.mark.parametrize(
    ("values", "scale", "named"),
    [
        ((0.01, 0.05, 0.1, 1.0), "log", ["0.01", "0.05", "0.1", "1"]),
        ((0, 1, 2, 100), "linear", ["0", "100"]),
        ((1, 2, 10, 20), "linear", ["1", "10", "20"]),
        ((0.0001, 0.00011, 0.0002, 0.01), "log", ["0.0001", "0.01"]),
    ],
)
def test_the_axis_is_logarithmic_where_positive_values_span_more_than_a_factor_of_20(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    values: tuple[float, ...],
    scale: str,
    named: list[str],
) -> None:
    drawn, errorbar = set(), Axes.errorbar

    def seen(axes: Axes, *given: Any, **more: Any) -> Any:
        drawn.add(axes)
        return errorbar(axes, *given, **more)

    monkeypatch.setattr(Axes, "errorbar", seen)
    score = {"f1": {"value": 0.5, "low": 0.4, "high": 0.7}}
    lines = {f"line {number}": dict.fromkeys(values, score) for number in range(10)}
    path = plot_scores_by_setting(
        lines, {"f1": "F1"}, tmp_path / "a.png", title="Relations", setting="x"
    )
    (axes,) = drawn
    assert axes.get_xscale() == scale
    assert [text.get_text() for text in axes.get_xticklabels()] == named
    lines_drawn = [(line.get_marker(), line.get_linestyle()) for line, *_ in axes.containers]
    assert len(set(lines_drawn)) == len(lines_drawn) == 10
    assert imread(path).shape[1] == 800


@pytest.mark.nightly
def test_a_comparison_of_real_runs_draws_them_and_sends_the_files_to_mlflow(
    ray_cluster: None, runs: Path, tiny_documents: DocumentStore
) -> None:
    from mlflow import MlflowClient

    config = override_all(
        tiny_config("relation_finetune"), {"schedule.max_steps": 2, "plan.global_batch_rows": 4}
    )
    request = RunSpec(
        method="relation_finetune",
        config=config,
        store=tiny_documents.path,
        name="proxies",
        runs=runs,
    )
    result, table = compare(request, [Variation("objective.num_proxies", (0, 2))])
    assert table.splits == ["dev", "test"]
    with (result.folder.path / "scores-by-objective.num_proxies.csv").open(newline="") as file:
        found = [(row[2], float(row[5])) for row in csv.reader(file) if row[3] == "f1"]
    f1 = {
        label: scores["test"]["f1"]["value"]
        for label, scores in table.rows.items()
        if "num_proxies" in label
    }
    names = ["num_proxies = 0", "num_proxies = 1 (this run)", "num_proxies = 2"]
    assert found == [(str(number), f1[name]) for number, name in enumerate(names)]
    uri = read_record(result.folder.tracking, "tracking")["uri"]
    sent = {file.path for file in MlflowClient(uri).list_artifacts(result.mlflow_run_id)}
    assert {
        "table.json",
        "scores-by-objective.num_proxies.csv",
        "scores-by-objective.num_proxies.png",
    } <= sent
