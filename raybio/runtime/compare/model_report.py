"""The report of models that a command evaluates, with the same tables as a run's report."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raybio.core.final_report import FinalReport, Stage, UnitScores
from raybio.core.records import write_record
from raybio.core.table_layout import TableLayout
from raybio.evaluation.run_plots import plot_final
from raybio.evaluation.unit_scores import TRAINED, write_unit_scores
from raybio.runtime.compare.differences import differences
from raybio.runtime.compare.runs import GivenRun, Group
from raybio.runtime.compare.table import ResultTable, write_table
from raybio.runtime.run.folder import RunFolder


@dataclass(frozen=True)
class EvaluatedModel(GivenRun):
    """A model whose evaluation is in memory; its ``folder`` is not a run and is not read.

    Attributes:
        report: its evaluation.
    """

    report: FinalReport

    @property
    def final_report(self) -> FinalReport:  # type: ignore[override]
        """The evaluation."""
        return self.report

    @property
    def unit_scores_by_stage(self) -> dict[Stage, dict[str, UnitScores]]:  # type: ignore[override]
        """Stage -> split -> scores of single units."""
        return {stage: dict(units) for stage, units in self.report.unit_scores.items()}


def write_model_report(
    label: str,
    report: FinalReport,
    layout: TableLayout,
    out: Path,
    settings: Mapping[str, Any],
) -> ResultTable:
    """Write a report, and return its table.

    ``report.json`` has the settings and all scores, ``table.md`` and ``table.json`` the table with
    the differences of the model from the other rows. ``unit_scores.npz`` has the scores of single
    units, ``plots/`` the table and the map.

    Args:
        label: name of the model's row.
        report: its evaluation; other rows may be other models.
        layout: layout of the tables.
        out: folder of the report.
        settings: settings that the scores depend on.
    """
    rows = {stage: scores for stage, scores in report.scores.items() if stage != TRAINED}
    rows[label] = report.scores[TRAINED]
    layout = layout.shown(rows.values())
    model = Group(label, [EvaluatedModel(label, RunFolder(out, "model"), report)])
    tests, relations, remarks = differences(model, [], layout)
    table = ResultTable(
        rows,
        layout,
        remarks=[*report.remarks, *remarks],
        tests=tests,
        relations=relations,
        sizes=report.sizes,
    )
    out.mkdir(parents=True, exist_ok=True)
    content = report.to_json()
    content.pop("embedding_map", None)
    content["scores"] = rows
    write_record(out / "report.json", "report", {"settings": dict(settings), **content})
    write_unit_scores(out / "unit_scores.npz", report.unit_scores)
    write_table(table, out)
    plot_final(report, out / "plots")
    return table
