"""Compare finished runs: settings that differ, scores with paired tests, curves and cost.

Compared runs have one method and one store. Tests over units generalize to similar units, for these
trained models; only repetitions show the effect of another seed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from raybio.core.final_report import SplitScores
from raybio.core.table_layout import TableLayout
from raybio.evaluation.curves import CurvePoint, means_over_steps
from raybio.methods import METHODS
from raybio.runtime.compare.differences import (
    few_units,
    relations_to_groups,
    relations_to_rivals,
)
from raybio.runtime.compare.group_tests import seed_tests, unit_tests, untested
from raybio.runtime.compare.relations import Relation
from raybio.runtime.compare.run_test import RunTest
from raybio.runtime.compare.runs import (
    GivenRun,
    Group,
    differing_settings,
    grouped,
    listed,
    same_training,
)
from raybio.runtime.compare.table import (
    ResultTable,
    over_repetitions,
    precision_conflict,
    untrained_label,
)
from raybio.runtime.compare.unfinished import unfinished_reasons
from raybio.training.settings import COMPLETE

_CURVES_ONLY = "Curves only: over different data, evaluations cannot be compared"


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
        relations: how rivals and other groups compare with each group.
        curves: metric -> its rows, for metrics that all runs logged.
        notes: warnings for the reader.
        unfinished: label of a run whose training is not finished -> reason.
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
        with_scores: whether scores are compared, which requires runs over the same data.
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
        notes += few_units(scored, layout)
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
    """Group the runs with a final evaluation, so that an unfinished one does not prevent tests."""
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
        *precision_conflict({run.label: run.precision for run in runs if run.precision}),
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


def _untrained_rows(groups: Sequence[Group]) -> dict[str, Any]:
    """Return the rows of chance and rivals that are the same in all runs.

    Rows that depend on the seed, such as the encoder before training, are means over the seeds, if
    all groups have the same seeds.
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
        group.draws,
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
                group.draws,
            )
    return rows


def _sizes(runs: Sequence[GivenRun]) -> dict[str, str]:
    """Return the sizes of each split that its scores are means over, if all runs agree."""
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

    Metrics of parts, such as ``val/acc_at_10/may_treat``, are omitted.
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
