"""Compare finished runs: settings that differ, scores with paired tests, curves and cost.

Compared runs have one method and one store. Tests over units speak of these trained models and
of other units like theirs; only repetitions show what another seed would bring.

What is compared must have been asked the same: one method, one store. Tests of units speak of these
trained models and other units like theirs; what another seed would bring is told by repetitions
alone.
"""

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from raybio.core.records import write_record
from raybio.core.table_layout import TableLayout
from raybio.evaluation.report import Section, write_report
from raybio.methods import METHODS
from raybio.runtime.compare.curves import means_over_steps
from raybio.runtime.compare.plots import Row, plot_overlaid, plot_scores
from raybio.runtime.compare.runs import GivenRun, Group, differing_settings, grouped
from raybio.runtime.compare.table import UNDEFINED, ResultTable
from raybio.runtime.compare.tests import RunTest, seed_tests, unit_tests
from raybio.runtime.run.folder import COMPLETE

Table = list[list[str]]


REMARK_TESTS = (
    "Paired, over the units (nodes, texts, queries) that both were asked, at most 10,000 of a "
    "split and the same ones in all runs: the difference with its 95 % bootstrap interval, and p "
    "of the two-sided permutation test, corrected for all tests of this table (Holm). It says "
    "whether these trained models differ, not what other seeds would bring; units that hang "
    "together, such as linked nodes, make p smaller than it should be."
)


REMARK_SEEDS = (
    "Paired by seed (and sentence set), over final scores: what training anew would bring. n seeds "
    "cannot bring p below 2 / 2^n, 0.03 for six, and the correction, as above, multiplies it by "
    "the number of tests: where that alone comes to 0.05, there are too few seeds to show "
    "anything. Fewer runs in one comparison are fewer tests."
)


@dataclass(frozen=True)
class Comparison:
    """All that is told of some runs.

    Attributes:
        runs: as they were given.
        groups: the same, repetitions together.
        layout: how scores are shown.
        settings: path -> each run's value, where they differ.
        rows: label -> split -> score -> value and interval, of chance and of runs with a final
            evaluation.
        tests: between groups, over units.
        by_seed: between groups, over seeds.
        curves: metric -> its rows, of metrics that all runs logged.
        notes: what a reader has to know.
    """

    runs: Sequence[GivenRun]
    groups: Sequence[Group]
    layout: TableLayout
    settings: Mapping[str, Sequence[Any]]
    rows: Mapping[str, Any]
    tests: Sequence[RunTest]
    by_seed: Sequence[RunTest]
    curves: Mapping[str, Sequence[Row]]
    notes: Sequence[str]

    @property
    def scores(self) -> ResultTable:
        """The final scores."""
        return ResultTable(self.rows, self.layout)


def compare_runs(runs: Sequence[GivenRun], *, with_scores: bool = True) -> Comparison:
    """Put runs of one method side by side; without scores what was asked may have differed."""
    groups, settings = grouped(runs), differing_settings(runs)
    layout = METHODS[runs[0].identity["method"]].table
    notes = _notes(runs, settings, with_scores)
    tests, by_seed, rows = list[RunTest](), list[RunTest](), dict[str, Any]()
    if with_scores:
        rows = _chance_row(runs) | {run.label: run.scores for run in runs if run.scores}
        tests, untested = unit_tests(groups, layout)
        by_seed = seed_tests(groups, layout)
        notes += untested
    return Comparison(runs, groups, layout, settings, rows, tests, by_seed, _curves(groups), notes)


def _notes(
    runs: Sequence[GivenRun], settings: Mapping[str, Sequence[Any]], with_scores: bool
) -> list[str]:
    unfinished = [f"{run.label} ({run.status})" for run in runs if run.status not in COMPLETE]
    notes = [f"Not finished: {', '.join(unfinished)}"] if unfinished else []
    if not with_scores:
        notes.append(
            "Curves only: where runs are over different data, their evaluations asked different "
            "things"
        )
    if asked := [path for path in settings if path.startswith("evaluation.")]:
        notes.append(
            f"The runs were not evaluated alike ({', '.join(asked)} differ): scores may mean "
            "different things"
        )
    cut_by_label = {run.label: _cut_inputs(run) for run in runs}
    if any(cut_by_label.values()):
        notes.append(
            "Inputs were cut: "
            f"{_listed({label: cut or 'nothing' for label, cut in cut_by_label.items()})}"
        )
    asked_by_label = {
        run.label: run.final_report.details.get("asked")
        for run in runs
        if with_scores and run.final_report is not None
    }
    if any(one != asked_by_label[next(iter(asked_by_label))] for one in asked_by_label.values()):
        notes.append(f"The final evaluations asked different things: {_listed(asked_by_label)}")
    precisions = {run.label: run.precision for run in runs if run.precision}
    if len(set(precisions.values())) > 1:
        notes.append(f"The runs computed with different precision: {_listed(precisions)}")
    return notes


def _chance_row(runs: Sequence[GivenRun]) -> dict[str, Any]:
    """Return the row "chance", or nothing where the runs were not evaluated alike."""
    found = [run.chance for run in runs if run.scores]
    # Text, since NaN is not equal to itself.
    is_shared = len({repr(chance) for chance in found}) == 1
    return {"chance": found[0]} if is_shared and found[0] else {}


def _cut_inputs(run: GivenRun) -> str:
    return "; ".join(one["remark"] for one in run.result.get("inputs", []) if one["remark"])


def _listed(by_label: Mapping[str, Any]) -> str:
    return ", ".join(f"{label}: {one}" for label, one in by_label.items())


def _curves(groups: Sequence[Group]) -> dict[str, list[Row]]:
    """Return curves over steps: evaluations first, then losses.

    Metrics of parts, such as ``val/acc_at_10/may_treat``, are left out.
    """
    runs = [run for group in groups for run in group.runs]
    logged = [
        dict.fromkeys(name for report in run.reports for name in report["metrics"]) for run in runs
    ]
    shared = [name for name in logged[0] if all(name in names for names in logged)]
    names = [name for name in shared if name.count("/") == 1]
    names += [name for name in shared if "/" not in name and "loss" in name]
    return {
        name: means_over_steps(
            {group.label: [run.curve(name) for run in group.runs] for group in groups}
        )
        for name in names
    }


def write_comparison(found: Comparison, out: Path) -> list[Path]:
    """Write the report, its tables as CSV and its pictures; return the files."""
    out.mkdir(parents=True, exist_ok=True)
    plots = out / "plots"
    for earlier in [*plots.glob("scores-*.png"), *plots.glob("curve-*.png")]:
        earlier.unlink()  # an earlier comparison's, perhaps of other runs
    score_plots = {
        split: plot_scores(
            {label: scores[split] for label, scores in found.rows.items() if split in scores},
            found.layout.measures,
            plots / f"scores-{split}.png",
            title=found.scores.title(split),
        )
        for split in found.scores.splits
    }
    curve_plots = {
        metric: plot_overlaid(rows, plots / f"curve-{metric.replace('/', '-')}.png", title=metric)
        for metric, rows in found.curves.items()
    }
    sections = _sections(found, score_plots, curve_plots)
    data = {
        "runs": {run.label: str(run.folder.path) for run in found.runs},
        "groups": {group.label: [run.label for run in group.runs] for group in found.groups},
        "notes": found.notes,
        "settings": {
            path: dict(zip(_labels(found), values, strict=True))
            for path, values in found.settings.items()
        },
        "scores": found.rows,
        "tests": [asdict(test) | {"verdict": test.verdict} for test in found.tests],
        "tests_by_seed": [asdict(test) | {"verdict": test.verdict} for test in found.by_seed],
        "cost": {run.label: _cost(run) for run in found.runs},
    }
    write_record(out / "report.json", "comparison", data)
    written = [*write_report("Comparison of runs", sections, out), out / "report.json"]
    return written + _write_csv(found, data, out) + [*score_plots.values(), *curve_plots.values()]


def _write_csv(found: Comparison, data: Mapping[str, Any], out: Path) -> list[Path]:
    scores = [
        [label, split, measure, score["value"], score.get("low"), score.get("high")]
        for label, of_run in found.rows.items()
        for split, of_split in of_run.items()
        for measure, score in of_split.items()
    ]
    tests = [list(one.values()) for one in [*data["tests"], *data["tests_by_seed"]]]
    tables: dict[str, list[list[Any]]] = {
        "settings": [
            ["setting", *_labels(found)],
            *([path, *values] for path, values in found.settings.items()),
        ],
        "scores": [["run", "split", "score", "value", "low", "high"], *scores],
        "tests": [[*RunTest.__dataclass_fields__, "verdict"], *tests],
        "cost": [
            ["run", *_cost(found.runs[0])],
            *([label, *cost.values()] for label, cost in data["cost"].items()),
        ],
        "curves": [
            ["metric", "runs_of", "step", "runs", "mean", "deviation"],
            *([metric, *row] for metric, rows in found.curves.items() for row in rows),
        ],
    }
    for name, rows in tables.items():
        with (out / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(rows)
    return [out / f"{name}.csv" for name in tables]


def _sections(
    found: Comparison, score_plots: Mapping[str, Path], curve_plots: Mapping[str, Path]
) -> list[Section]:
    sections = [Section("Runs", found.notes, cost_table(found))]
    text = [] if found.settings else ["All settings are the same."]
    sections.append(Section("Settings that differ", text, settings_table(found)))
    for split, path in score_plots.items():
        header, body = found.scores.cells(split)
        title = found.scores.title(split)
        percent = [
            name for key, name in found.layout.measures.items() if key not in found.layout.plain
        ]
        remark = f"With 95 % bootstrap intervals over units; {', '.join(percent)} in %."
        sections.append(Section(title, [remark], [header, *body], [(path, title)]))
        if repeated := _repeated(found, split):
            text = [
                "Mean ± standard deviation over runs that differ in seed or sentence set alone."
            ]
            sections.append(Section(f"{title}: repetitions", text, repeated))
    if found.tests:
        sections.append(
            Section(
                "Paired tests over units", [REMARK_TESTS], tests_table(found.tests, found.layout)
            )
        )
    if found.by_seed:
        sections.append(
            Section(
                "Paired tests over seeds", [REMARK_SEEDS], tests_table(found.by_seed, found.layout)
            )
        )
    if on_the_way := evaluations_table(found):
        text = [
            "At the last evaluated step that all have; of several runs mean ± standard deviation."
        ]
        sections.append(Section("Evaluations during training", text, on_the_way))
    pictures = [(path, f"{metric} over steps") for metric, path in curve_plots.items()]
    text = [] if pictures else ["The runs logged no metric in common."]
    return [*sections, Section("Curves", text, (), pictures)]


def _labels(found: Comparison) -> list[str]:
    return [run.label for run in found.runs]


def settings_table(found: Comparison) -> Table:
    """A row a setting that differs, a column a run; empty if none does."""
    if not found.settings:
        return []
    rows = [[path, *map(_shown, values)] for path, values in found.settings.items()]
    return [["setting", *_labels(found)], *rows]


def _shown(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def tests_table(tests: Sequence[RunTest], layout: TableLayout) -> Table:
    """A row a test."""
    rows = []
    for test in tests:
        unit, digits = (1.0, 3) if test.measure in layout.plain else (100.0, 2)
        difference, low, high = (
            f"{unit * value:+.{digits}f}" for value in (test.difference, test.low, test.high)
        )
        name = f"{layout.measures[test.measure]}, {layout.splits[test.split]}"
        ps = [f"{test.p:.4f}", f"{test.p_holm:.4f}"]
        rows.append(
            [
                name,
                test.one,
                test.two,
                f"{difference} [{low}, {high}]",
                f"{test.num:,}",
                *ps,
                test.verdict,
            ]
        )
    return [["score", "one", "two", "one minus two", "n", "p", "p (Holm)", "verdict"], *rows]


def evaluations_table(found: Comparison) -> Table:
    """A row an evaluation metric, a column a group, at the last evaluated step that all have."""
    rows = []
    for metric, of_metric in found.curves.items():
        steps = [{row[1] for row in of_metric if row[0] == group.label} for group in found.groups]
        if "/" in metric and (shared := set.intersection(*steps)):
            last = [row for row in of_metric if row[1] == max(shared)]
            rows.append(
                [metric, f"{max(shared):,}", *(_mean(row[3], row[4], row[2]) for row in last)]
            )
    return [["metric", "step", *(group.label for group in found.groups)], *rows] if rows else []


def _repeated(found: Comparison, split: str) -> Table:
    rows = []
    for group in found.groups:
        scores = [run.scores[split] for run in group.runs if split in run.scores]
        if len(group.runs) > 1 and len(scores) == len(group.runs):
            values = {
                name: [one[name]["value"] for one in scores] for name in found.layout.measures
            }
            rows.append(
                [group.label, *(_mean(mean(of), stdev(of), len(of)) for of in values.values())]
            )
    return [["runs", *found.layout.measures.values()], *rows] if rows else []


def _mean(value: float, deviation: float, num: int) -> str:
    if math.isnan(value):
        return UNDEFINED
    return f"{value:.4g} ± {deviation:.2g}" if num > 1 else f"{value:.4g}"


def cost_table(found: Comparison) -> Table:
    """A row a run: how it stands and what it cost."""
    rows = []
    for run in found.runs:
        cost = _cost(run)
        rows.append(
            [
                run.label,
                *(
                    cost["status"],
                    f"{cost['step']:,}",
                    f"{cost['seconds']:,.0f}",
                    f"{cost['tokens_per_second']:,.0f}",
                ),
                *(str(cost["workers"] or ""), cost["precision"] or ""),
            ]
        )
    return [
        ["run", "status", "step", "seconds of training", "tokens/s", "workers", "precision"],
        *rows,
    ]


def _cost(run: GivenRun) -> dict[str, Any]:
    """Evaluations, checkpoints and times in which nothing ran are no training."""
    seconds = tokens = 0.0
    last_step = 0
    for report in run.reports:
        if rate := report["metrics"].get("steps_per_second"):
            here = (report["step"] - last_step) / rate
            seconds += here
            tokens += here * report["metrics"].get("tokens_per_second", 0.0)
            last_step = report["step"]
    return {
        "status": run.status,
        "step": run.reports[-1]["step"],
        "seconds": seconds,
        "tokens_per_second": tokens / seconds if seconds else 0.0,
        "workers": run.folder.read_launch().get("workers"),
        "precision": run.precision,
    }
