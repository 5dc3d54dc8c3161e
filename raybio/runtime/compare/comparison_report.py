"""The report of a comparison: its tables, as Markdown and CSV, and its pictures."""

import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from raybio.core.csv_table import write_csv
from raybio.core.records import write_record
from raybio.core.table_layout import UNDEFINED
from raybio.evaluation.curves import CurvePoint
from raybio.evaluation.plots import plot_curves
from raybio.evaluation.report import Section, write_report
from raybio.runtime.compare.compare import Comparison
from raybio.runtime.compare.plots import plot_scores
from raybio.runtime.compare.relations import relations_legend, relations_title
from raybio.runtime.compare.run_test import RunTest, tests_table
from raybio.runtime.compare.runs import GivenRun
from raybio.runtime.compare.unfinished import last_epoch

Table = list[list[str]]

REMARK_TESTS = (
    "On the units (nodes, texts, queries) that all runs were evaluated on, at most 10,000 of a "
    "split. With three seeds on both sides: the difference with the 95 % interval of a bootstrap "
    "over seeds and then units, and p of both errors, each with Student's t and its own degrees of "
    "freedom (Behrens-Fisher), corrected for all tests of the table (Holm). With fewer seeds: the "
    "interval over units only, and no p, since it would not show what other seeds bring. Dependent "
    "units, such as linked nodes, make intervals too narrow."
)

WHY_UNTESTED = "These repeat or refine a tested split; more tests would raise every p."

REMARK_SEEDS = (
    "Paired by seed (and sentence set) over final scores: what another training would bring. "
    "Intervals are of Student's t, and p is of permutations. With n seeds p is at least 2 / 2^n, "
    "0.03 for six, and the correction multiplies it by the number of tests. Where that alone "
    "reaches 0.05, there are too few seeds to show anything. Comparing fewer runs at once means "
    "fewer tests."
)


def write_comparison(comparison: Comparison, out: Path) -> list[Path]:
    """Write the report, its tables as CSV and its pictures; return the files."""
    out.mkdir(parents=True, exist_ok=True)
    plots = out / "plots"
    # Delete pictures of an earlier comparison, which may show other runs.
    for earlier in [*plots.glob("scores-*.png"), *plots.glob("curve-*.png")]:
        earlier.unlink()
    score_plots = {
        split: plot_scores(
            {
                label: scores[split]
                for label, scores in comparison.scores.of_settings.rows.items()
                if split in scores
            },
            comparison.layout.measures,
            plots / f"scores-{split}.png",
            title=comparison.scores.title(split),
        )
        for split in comparison.scores.splits
    }
    curve_plots = {
        metric: plot_curves(points, plots / f"curve-{metric.replace('/', '-')}.png", title=metric)
        for metric, points in comparison.curves.items()
    }
    sections = _sections(comparison, score_plots, curve_plots)
    data = {
        "runs": {run.label: str(run.folder.path) for run in comparison.runs},
        "groups": {group.label: [run.label for run in group.runs] for group in comparison.groups},
        "notes": comparison.notes,
        "unfinished": comparison.unfinished,
        "settings": {
            path: dict(zip(_labels(comparison), values, strict=True))
            for path, values in comparison.settings.items()
        },
        "scores": comparison.rows,
        "relations": [asdict(relation) for relation in comparison.relations],
        "tests": [asdict(test) | {"verdict": test.verdict} for test in comparison.tests],
        "tests_by_seed": [asdict(test) | {"verdict": test.verdict} for test in comparison.by_seed],
        "cost": {run.label: _cost(run) for run in comparison.runs},
    }
    write_record(out / "report.json", "comparison", data)
    written = [*write_report("Comparison of runs", sections, out), out / "report.json"]
    return (
        written + _write_csv(comparison, data, out) + [*score_plots.values(), *curve_plots.values()]
    )


def _write_csv(comparison: Comparison, data: Mapping[str, Any], out: Path) -> list[Path]:
    scores = [
        [label, split, measure, score["value"], score.get("low"), score.get("high")]
        for label, run_scores in comparison.rows.items()
        for split, split_scores in run_scores.items()
        for measure, score in split_scores.items()
    ]
    tests = [list(test.values()) for test in [*data["tests"], *data["tests_by_seed"]]]
    tables: dict[str, list[list[Any]]] = {
        "settings": [
            ["setting", *_labels(comparison)],
            *([path, *values] for path, values in comparison.settings.items()),
        ],
        "scores": [["run", "split", "score", "value", "low", "high"], *scores],
        "tests": [[*RunTest.__dataclass_fields__, "verdict"], *tests],
        "cost": [
            ["run", *_cost(comparison.runs[0])],
            *([label, *cost.values()] for label, cost in data["cost"].items()),
        ],
        "curves": [
            ["metric", "runs_of", "step", "runs", "mean", "deviation"],
            *([metric, *row] for metric, rows in comparison.curves.items() for row in rows),
        ],
    }
    for name, rows in tables.items():
        write_csv(out / f"{name}.csv", rows)
    return [out / f"{name}.csv" for name in tables]


def _sections(
    comparison: Comparison, score_plots: Mapping[str, Path], curve_plots: Mapping[str, Path]
) -> list[Section]:
    sections = [Section("Runs", comparison.notes, cost_table(comparison))]
    text = [] if comparison.settings else ["All settings are the same."]
    sections.append(Section("Settings that differ", text, settings_table(comparison)))
    for split, path in score_plots.items():
        header, body = comparison.scores.cells(split)
        title = comparison.scores.title(split)
        remark = f"{comparison.scores.legend}."
        remarks = [f"{line}." for line in comparison.scores.all_remarks]
        sections.append(Section(title, [remark, *remarks], [header, *body], [(path, title)]))
    if comparison.relations:
        sections.append(
            Section(
                relations_title(comparison.relations),
                [f"{relations_legend(comparison.relations)}."],
                comparison.scores.relations_table,
            )
        )
    remark_tests = REMARK_TESTS
    if comparison.untested_splits:
        remark_tests += f" Not tested: {', '.join(comparison.untested_splits)}. {WHY_UNTESTED}"
    for title, remark, tests in (
        ("Tests over seeds and units", remark_tests, comparison.tests),
        ("Tests in pairs of seeds", REMARK_SEEDS, comparison.by_seed),
    ):
        if tests:
            sections.append(Section(title, [remark], tests_table(tests, comparison.layout)))
    evaluations = evaluations_table(comparison)
    if evaluations:
        text = [
            "At the last evaluated step that all have; of several runs mean ± standard deviation."
        ]
        sections.append(Section("Evaluations during training", text, evaluations))
    pictures = [(path, f"{metric} over steps") for metric, path in curve_plots.items()]
    text = [] if pictures else ["The runs logged no metric in common."]
    return [*sections, Section("Curves", text, (), pictures)]


def _labels(comparison: Comparison) -> list[str]:
    return [run.label for run in comparison.runs]


def settings_table(comparison: Comparison) -> Table:
    """Return a row for each setting that differs, a column for each run; empty if none does."""
    if not comparison.settings:
        return []
    rows = [[path, *map(_shown, values)] for path, values in comparison.settings.items()]
    return [["setting", *_labels(comparison)], *rows]


def _shown(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def evaluations_table(comparison: Comparison) -> Table:
    """Return a row for each evaluation metric at the last evaluated step that all groups have."""
    rows = []
    for metric, points in comparison.curves.items():
        if "/" not in metric:
            continue
        steps_by_group = [
            {point.step for point in points if point.label == group.label}
            for group in comparison.groups
        ]
        shared = set.intersection(*steps_by_group)
        if shared:
            step = max(shared)
            values = [_point_text(point) for point in points if point.step == step]
            rows.append([metric, f"{step:,}", *values])
    if not rows:
        return []
    return [["metric", "step", *(group.label for group in comparison.groups)], *rows]


def _point_text(point: CurvePoint) -> str:
    if math.isnan(point.mean):
        return UNDEFINED
    deviation = f" ± {point.deviation:.2g}" if point.num_runs > 1 else ""
    return f"{point.mean:.4g}{deviation}"


def cost_table(comparison: Comparison) -> Table:
    """Return a row for each run: its status and its cost."""
    header = ["run", "status", "step", "epochs"]
    header += ["seconds of training", "tokens/s", "workers", "precision"]
    rows = []
    for run in comparison.runs:
        cost = _cost(run)
        rows.append(
            [
                run.label,
                cost["status"],
                f"{cost['step']:,}",
                "" if cost["epochs"] is None else f"{cost['epochs']:.3g}",
                f"{cost['seconds']:,.0f}",
                f"{cost['tokens_per_second']:,.0f}",
                str(cost["workers"] or ""),
                cost["precision"] or "",
            ]
        )
    return [header, *rows]


def _cost(run: GivenRun) -> dict[str, Any]:
    """Return status and cost of a run.

    Seconds are those of training steps, without evaluations, checkpoints and interruptions.
    """
    seconds = 0.0
    tokens = 0.0
    last_step = 0
    for report in run.reports:
        steps_per_second = report["metrics"].get("steps_per_second")
        if steps_per_second:
            interval = (report["step"] - last_step) / steps_per_second
            seconds += interval
            tokens += interval * report["metrics"].get("tokens_per_second", 0.0)
            last_step = report["step"]
    return {
        "status": run.status,
        "step": run.reports[-1]["step"],
        "epochs": last_epoch(run.reports),
        "seconds": seconds,
        "tokens_per_second": tokens / seconds if seconds else 0.0,
        "workers": run.folder.read_launch().get("workers"),
        "precision": run.precision,
    }
