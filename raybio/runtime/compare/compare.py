"""Compare finished runs: settings that differ, scores with paired tests, curves and cost.

Compared runs have one method and one store. Tests over units speak of these trained models and
of other units like theirs; only repetitions show what another seed would bring.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from raybio.core.csv_table import write_csv
from raybio.core.final_report import SplitScores
from raybio.core.records import write_record
from raybio.core.table_layout import UNDEFINED, TableLayout
from raybio.evaluation.curves import CurvePoint, means_over_steps
from raybio.evaluation.plots import plot_curves
from raybio.evaluation.report import Section, write_report
from raybio.methods import METHODS
from raybio.runtime.compare.differences import relations_to_groups, relations_to_rivals
from raybio.runtime.compare.group_tests import seed_tests, unit_tests, untested
from raybio.runtime.compare.plots import plot_scores
from raybio.runtime.compare.relations import Relation, relations_legend, relations_title
from raybio.runtime.compare.run_test import RunTest, tests_table
from raybio.runtime.compare.runs import (
    GivenRun,
    Group,
    differing_settings,
    grouped,
    listed,
    same_training,
)
from raybio.runtime.compare.table import ResultTable, over_repetitions, untrained_label
from raybio.runtime.compare.unfinished import last_epoch, unfinished_reasons
from raybio.training.settings import COMPLETE

Table = list[list[str]]

REMARK_TESTS = (
    "On the units (nodes, texts, queries) that all runs were evaluated on, at most 10,000 of a "
    "split. With three seeds on both sides: the difference with the 95 % interval of a bootstrap "
    "over seeds and then units, and p of Student's t, corrected for all tests of the table (Holm). "
    "With fewer seeds: the interval over units only, and no p, since it would not show what other "
    "seeds bring. Dependent units, such as linked nodes, make intervals too narrow."
)

_CURVES_ONLY = "Curves only: over different data, evaluations cannot be compared"

WHY_UNTESTED = "These repeat or refine a tested split; more tests would raise every p."

REMARK_SEEDS = (
    "Paired by seed (and sentence set) over final scores: what another training would bring. With "
    "n seeds p is at least 2 / 2^n, 0.03 for six, and the correction multiplies it by the number "
    "of tests. Where that alone reaches 0.05, there are too few seeds to show anything. Comparing "
    "fewer runs at once means fewer tests."
)


@dataclass(frozen=True)
class Comparison:
    """A comparison of runs.

    Attributes:
        runs: the runs in the given order.
        groups: the same runs, with repetitions in one group.
        layout: how scores are shown.
        settings: path -> value of each run, for settings that differ.
        rows: label -> split -> score -> value and interval, of chance, of runs with a final
            evaluation, and of repetitions.
        tests: tests between groups over units.
        by_seed: tests between groups over seeds.
        relations: where rivals and other groups stand next to each group.
        curves: metric -> its rows, for metrics that all runs logged.
        notes: warnings for the reader.
        unfinished: label of a run whose training is not finished -> why.
    """

    runs: Sequence[GivenRun]
    groups: Sequence[Group]
    layout: TableLayout
    settings: Mapping[str, Sequence[Any]]
    rows: Mapping[str, Any]
    tests: Sequence[RunTest]
    by_seed: Sequence[RunTest]
    relations: Sequence[Relation]
    curves: Mapping[str, Sequence[CurvePoint]]
    notes: Sequence[str]
    unfinished: Mapping[str, str]

    @cached_property
    def scores(self) -> ResultTable:
        """The final scores."""
        return ResultTable(
            self.rows,
            self.layout,
            relations=self.relations,
            sizes=_sizes(self.runs),
            repeated=frozenset(
                run.label
                for group in _scored_groups(self.runs)
                if len(group.runs) > 1 and group.label in self.rows
                for run in group.runs
            ),
            unfinished=self.unfinished,
        )

    @property
    def tested_splits(self) -> list[str]:
        """Titles of the splits that are tested."""
        return [
            self.layout.splits[split]
            for split in self.layout.compared
            if any(test.split == split for test in self.tests)
        ]

    @property
    def untested_splits(self) -> list[str]:
        """Titles of the splits that are shown and not tested, since they repeat another one."""
        return [
            self.layout.splits[split]
            for split in self.scores.splits
            if split in self.layout.secondary
        ]


def compare_runs(runs: Sequence[GivenRun], *, with_scores: bool = True) -> Comparison:
    """Compare runs of one method.

    Args:
        runs: from ``given_runs``.
        with_scores: whether scores are compared, which wants runs over the same data.
    """
    groups = grouped(runs)
    settings = differing_settings(runs)
    layout = METHODS[runs[0].identity["method"]].table
    notes = _notes(runs, settings, with_scores)
    tests: list[RunTest] = []
    by_seed: list[RunTest] = []
    relations: list[Relation] = []
    rows: dict[str, Any] = {}
    scored = _scored_groups(runs)
    if with_scores:
        rows = _untrained_rows(scored)
        rows |= {run.label: run.scores for run in runs if run.scores}
        layout = layout.shown(rows.values())
        rows |= _rows_of_means(scored, layout)
        notes += untested([run for run in runs if not run.scores])
        tests, notes_of_tests = unit_tests(scored, layout)
        by_seed = seed_tests(scored, layout)
        notes += notes_of_tests
        for group in scored:
            relations += relations_to_rivals(group, layout)
            relations += relations_to_groups(group, tests)
    evaluated = [Group(run.label, [run]) for run in runs if run.scores]
    evaluated += [group for group in scored if group.label in rows and len(group.runs) > 1]
    return Comparison(
        runs=runs,
        groups=groups,
        layout=layout,
        settings=settings,
        rows=rows,
        tests=tests,
        by_seed=by_seed,
        relations=relations,
        curves=_curves(groups),
        notes=notes,
        unfinished=unfinished_reasons(evaluated),
    )


def _scored_groups(runs: Sequence[GivenRun]) -> list[Group]:
    """Group the runs with a final evaluation; one that was killed takes no test from the others."""
    return grouped([run for run in runs if run.scores])


def _notes(
    runs: Sequence[GivenRun], settings: Mapping[str, Sequence[Any]], with_scores: bool
) -> list[str]:
    """Return the warnings for the reader."""
    notes = [
        _note_of_unfinished(runs),
        None if with_scores else _CURVES_ONLY,
        *_notes_of_same_training(runs),
        _note_of_evaluation_settings(settings),
        _note_of_cut_inputs(runs),
        _note_of_remarks(runs) if with_scores else None,
        _note_of_queries(runs) if with_scores else None,
        _note_of_precision(runs),
    ]
    return [note for note in notes if note is not None]


def _note_of_unfinished(runs: Sequence[GivenRun]) -> str | None:
    unfinished = [f"{run.label} ({run.status})" for run in runs if run.status not in COMPLETE]
    return f"Not finished: {', '.join(unfinished)}" if unfinished else None


def _notes_of_same_training(runs: Sequence[GivenRun]) -> list[str]:
    notes = []
    for first, others in same_training(runs):
        labels = ", ".join(run.label for run in others)
        notes.append(
            f"{labels}: the settings and the seed of {first.label}, so the same training again and "
            "no other seed; a row of its own, in no mean"
        )
    return notes


def _note_of_evaluation_settings(settings: Mapping[str, Sequence[Any]]) -> str | None:
    paths = [path for path in settings if path.startswith("evaluation.")]
    if not paths:
        return None
    return (
        f"The runs were evaluated with different settings ({', '.join(paths)}): scores may mean "
        "different things"
    )


def _note_of_cut_inputs(runs: Sequence[GivenRun]) -> str | None:
    cut_by_label = {run.label: _cut_inputs(run) for run in runs}
    if not any(cut_by_label.values()):
        return None
    shown = {label: cut or "nothing" for label, cut in cut_by_label.items()}
    is_same = len(set(shown.values())) == 1
    cut = next(iter(shown.values())) if is_same else listed(shown)
    return f"Inputs were cut: {cut}"


def _note_of_remarks(runs: Sequence[GivenRun]) -> str | None:
    remarks_by_label = {}
    for run in runs:
        if run.final_report is not None and run.final_report.remarks:
            remarks_by_label[run.label] = "; ".join(run.final_report.remarks)
    return f"Evaluation: {listed(remarks_by_label)}" if remarks_by_label else None


def _note_of_queries(runs: Sequence[GivenRun]) -> str | None:
    queries_by_label = {}
    for run in runs:
        if run.final_report is not None:
            queries_by_label[run.label] = run.final_report.details.get("queries")
    queries = list(queries_by_label.values())
    if all(each == queries[0] for each in queries):
        return None
    return f"The final evaluations had different queries: {listed(queries_by_label)}"


def _note_of_precision(runs: Sequence[GivenRun]) -> str | None:
    precisions = {run.label: run.precision for run in runs if run.precision}
    if len(set(precisions.values())) < 2:
        return None
    return f"The runs computed with different precision: {listed(precisions)}"


def _untrained_rows(groups: Sequence[Group]) -> dict[str, Any]:
    """Return the rows of chance and rivals that are the same in all runs.

    Of those that depend on the seed, such as the encoder before training, the row is the mean over
    the seeds, if all groups have the same.
    """
    rows_by_run = [run.untrained for group in groups for run in group.runs if run.scores]
    rows = {}
    for name in rows_by_run[0] if rows_by_run else ():
        # Compared as text, since NaN is not equal to itself.
        is_shared = len({repr(rows_of_run.get(name)) for rows_of_run in rows_by_run}) == 1
        if is_shared and rows_by_run[0][name]:
            rows[name] = rows_by_run[0][name]
        elif not is_shared and all(name in rows_of_run for rows_of_run in rows_by_run):
            means = [_mean_of_untrained(group, name) for group in groups]
            if all(mean and repr(mean) == repr(means[0]) for mean in means):
                label = untrained_label(name, [run.untrained[name] for run in groups[0].runs])
                rows[label] = means[0]
    return rows


def _mean_of_untrained(group: Group, name: str) -> SplitScores:
    """Return the mean scores of an untrained model over repetitions; empty for a single run."""
    if len(group.runs) < 2:
        return {}
    return over_repetitions(
        [run.untrained[name] for run in group.runs],
        [run.unit_scores_by_stage.get(name, {}) for run in group.runs],
        METHODS[group.runs[0].identity["method"]].table.measures,
    )


def _rows_of_means(groups: Sequence[Group], layout: TableLayout) -> dict[str, SplitScores]:
    """Return the row of each group of repetitions: mean, deviation and interval."""
    rows = {}
    for group in groups:
        if len(group.runs) > 1:
            rows[group.label] = over_repetitions(
                [run.scores for run in group.runs],
                [run.unit_scores for run in group.runs],
                layout.measures,
            )
    return rows


def _sizes(runs: Sequence[GivenRun]) -> dict[str, str]:
    """Return what the scores of each split are means over, where all runs agree."""
    reports = [run.final_report for run in runs]
    sizes = [report.sizes for report in reports if report is not None]
    first = sizes[0] if sizes else {}
    return {
        split: size
        for split, size in first.items()
        if all(run_sizes.get(split) == size for run_sizes in sizes)
    }


def _cut_inputs(run: GivenRun) -> str:
    return "; ".join(rows["remark"] for rows in run.result.get("inputs", []) if rows["remark"])


def _curves(groups: Sequence[Group]) -> dict[str, list[CurvePoint]]:
    """Return curves over steps: evaluations first, then losses.

    Metrics of parts, such as ``val/acc_at_10/may_treat``, are left out.
    """
    runs = [run for group in groups for run in group.runs]
    logged = [
        dict.fromkeys(name for report in run.reports for name in report["metrics"]) for run in runs
    ]
    shared = [name for name in logged[0] if all(name in names for names in logged)]
    evaluations = [name for name in shared if name.count("/") == 1]
    losses = [name for name in shared if "/" not in name and "loss" in name]
    curves = {}
    for name in [*evaluations, *losses]:
        values_by_label = {group.label: [run.curve(name) for run in group.runs] for group in groups}
        curves[name] = means_over_steps(values_by_label)
    return curves


def write_comparison(comparison: Comparison, out: Path) -> list[Path]:
    """Write the report, its tables as CSV and its pictures; return the files."""
    out.mkdir(parents=True, exist_ok=True)
    plots = out / "plots"
    # Pictures of an earlier comparison may be of other runs.
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
