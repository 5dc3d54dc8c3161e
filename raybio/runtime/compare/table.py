"""The table of final evaluations: a row for each model, scores with intervals.

Repetitions are shown as mean ± standard deviation.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from raybio.core.final_report import Score, SplitScores
from raybio.core.markdown import markdown_table
from raybio.core.records import write_record
from raybio.core.table_layout import TableLayout
from raybio.evaluation.plots import plot_comparison, plot_table
from raybio.ops.significance import Interval, SeedMean, mean_over_seeds
from raybio.runtime.run.folder import RunFolder

UNDEFINED = "undefined"
"""Cell of a score that has no value, such as the rank correlation of a constant predictor."""


@dataclass(frozen=True)
class ResultTable:
    """Scores with intervals, a row for each model.

    Attributes:
        rows: label -> its scores. Those of repetitions have their number as ``num_runs``, and one
            standard deviation around the mean as ``low`` and ``high``.
        layout: names of splits and scores, and how they are shown.
        precision_by_run: ``fp32`` or ``bf16`` of each run that left it to the machine, by the run's
            name.
        remarks: lines below the table, such as the inputs that were cut.
    """

    rows: Mapping[str, SplitScores]
    layout: TableLayout
    precision_by_run: Mapping[str, str] = field(default_factory=dict)
    remarks: Sequence[str] = ()

    @property
    def splits(self) -> list[str]:
        """Splits that any row has."""
        return [
            split
            for split in self.layout.splits
            if any(split in scores for scores in self.rows.values())
        ]

    def cells(self, split: str) -> tuple[list[str], list[list[str]]]:
        """Return header and cells of a split: value and 95 % interval.

        Scores are in percent where the layout does not list them as plain.
        """
        body = []
        for label, scores in self.rows.items():
            if split in scores:
                cells = [self._cell(scores[split][name], name) for name in self.layout.measures]
                body.append([label, *cells])
        return ["model", *self.layout.measures.values()], body

    def title(self, split: str) -> str:
        """Return the title of the table of a split."""
        return f"{self.layout.title}, {self.layout.splits[split]}"

    @property
    def legend(self) -> str:
        """A description of the cells."""
        percent = [
            name for key, name in self.layout.measures.items() if key not in self.layout.plain
        ]
        scores = [
            score
            for row in self.rows.values()
            for split in row.values()
            for score in split.values()
        ]
        text = "95 % bootstrap intervals"
        if any("num_runs" in score for score in scores):
            text += "; ± standard deviation over runs"
        text += f"; {', '.join(percent)} in %"
        if "chance" in self.rows:
            text += f"; chance: {self.layout.chance}"
        return text

    @property
    def all_remarks(self) -> list[str]:
        """Lines below the table, without a full stop."""
        return [*self.remarks, *precision_conflict(self.precision_by_run)]

    def _cell(self, score: Score, name: str) -> str:
        scale, digits = (1, 3) if name in self.layout.plain else (100, 2)
        if math.isnan(score["value"]):
            return UNDEFINED
        if "num_runs" in score:
            spread = SeedMean(
                score["value"], score["high"] - score["value"], int(score["num_runs"])
            )
            return spread.text(digits=digits, scale=scale)
        if "low" not in score:
            return f"{scale * score['value']:.{digits}f}"
        interval = Interval(score["value"], score["low"], score["high"])
        return interval.text(digits=digits, scale=scale)


def precision_conflict(precision_by_run: Mapping[str, str]) -> list[str]:
    """Return a remark about runs whose precision differs though none was set; empty otherwise."""
    if len(set(precision_by_run.values())) < 2:
        return []
    listed = ", ".join(f"{run}: {precision}" for run, precision in precision_by_run.items())
    return [
        f"The runs were computed in different precision, so scores differ by that too: {listed}"
    ]


def over_repetitions(scores_of_runs: Sequence[SplitScores]) -> SplitScores:
    """Return mean and standard deviation (n - 1) of each score that all of several runs have."""
    first = scores_of_runs[0]
    means: dict[str, dict[str, Score]] = {}
    for split in first:
        if all(split in scores for scores in scores_of_runs):
            means[split] = {
                name: _spread([scores[split][name]["value"] for scores in scores_of_runs])
                for name in first[split]
            }
    return means


def _spread(values: Sequence[float]) -> Score:
    mean, deviation, num_runs = mean_over_seeds(values)
    return {"value": mean, "low": mean - deviation, "high": mean + deviation, "num_runs": num_runs}


def write_table(table: ResultTable, folder: RunFolder) -> list[Path]:
    """Write ``table.md``, ``table.json`` and the plots of the table; return the files.

    There are none if the store has no held-out rows.
    """
    json_path = folder.path / "table.json"
    write_record(json_path, "score table", {"scores": table.rows})
    splits = {split: table.layout.splits[split] for split in table.splits}
    if not splits:
        return []
    markdown_path = folder.path / "table.md"
    paths = [json_path, markdown_path]
    sections = []
    for split in splits:
        title = table.title(split)
        header, body = table.cells(split)
        sections.append(f"{title}\n\n{markdown_table(header, body)}\n")
        paths.append(plot_table(header, body, folder.plots / f"table-{split}.png", title=title))
    plot = folder.plots / "comparison.png"
    paths.append(plot_comparison(table.rows, splits, table.layout.measures, plot))
    remarks = [f"{remark}." for remark in (table.legend, *table.all_remarks)]
    markdown_path.write_text("\n\n".join([*sections, *remarks]) + "\n", encoding="utf-8")
    return paths


def write_joint_table(
    tables: Mapping[str, tuple[ResultTable, RunFolder]], split: str = "test"
) -> Path:
    """Write ``joint_table.md`` into the first folder: the same models in several comparisons.

    It has a column for each comparison and measure. Rows are joined by the settings in their
    labels; a comparison without varied settings has the row "this run". Of repetitions only the
    means are shown.

    Args:
        tables: name of a comparison -> its table and folder.
        split: the split that is shown.
    """
    columns: list[tuple[str, dict[str, str]]] = []
    for name, (table, folder) in tables.items():
        columns += _columns(name, table, folder, split)
    labels = dict.fromkeys(label for _, cells in columns for label in cells)
    rows = [[label, *(cells.get(label, "-") for _, cells in columns)] for label in labels]
    header = ["model", *(head for head, _ in columns)]
    first, folder = next(iter(tables.values()))
    precision_by_run: dict[str, str] = {}
    for table, _ in tables.values():
        precision_by_run |= table.precision_by_run
    parts = [first.title(split), markdown_table(header, rows), f"{first.legend}."]
    parts += [f"{remark}." for remark in precision_conflict(precision_by_run)]
    path = folder.path / "joint_table.md"
    path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return path


def _columns(
    name: str, table: ResultTable, folder: RunFolder, split: str
) -> list[tuple[str, dict[str, str]]]:
    """Return heading and cells by row label of each measure of a comparison."""
    means = {
        label: row
        for label, row in table.rows.items()
        if "num_runs" in next(iter(row[split].values()))
    }
    (_, *measures), body = replace(table, rows=means or table.rows).cells(split)
    columns = []
    for number, measure in enumerate(measures, start=1):
        cells = {}
        for row in body:
            label = "this run" if row[0] == folder.name else row[0].removesuffix(" (this run)")
            cells[label] = row[number]
        columns.append((name if len(measures) == 1 else f"{name}, {measure}", cells))
    return columns


def lines_for_terminal(table: ResultTable) -> Sequence[Any]:
    """Return the table as rich renderables, one for each split."""
    from rich.table import Table
    from rich.text import Text

    renderables: list[Any] = []
    for split in table.splits:
        header, body = table.cells(split)
        drawn = Table(title=f"{table.title(split)} ({table.legend})")
        for number, name in enumerate(header):
            # An interval has a line of its own, so that 80 columns are enough; nothing is cut off.
            drawn.add_column(name, justify="left" if number == 0 else "right", overflow="fold")
        for cells in body:
            drawn.add_row(*(cell.replace(" [", "\n[") for cell in cells))
        renderables.append(drawn)
    return [*renderables, *map(Text, table.all_remarks)] if renderables else renderables
