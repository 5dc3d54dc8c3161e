"""The table of final evaluations: a row for each model, scores with intervals.

Repetitions are shown as mean ± standard deviation. Scores are also drawn against numeric settings,
as in Figures 1, 2 and 4 of Zhou et al. (2023): temperatures, labels, proxies.

Final scores against a setting that is a number, as in MCCL's Figures 1, 2 and 4: temperatures,
labels, proxies.
"""

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from raybio.core.markdown import markdown_table
from raybio.core.records import write_record
from raybio.core.table_layout import TableLayout
from raybio.evaluation.plots import plot_comparison, plot_table
from raybio.ops.significance import SeedMean, mean_over_seeds
from raybio.runtime.compare.labels import label_of, shown
from raybio.runtime.compare.plots import plot_scores_by_setting
from raybio.runtime.run.folder import RunFolder

Score = Mapping[str, float]
"""``value``, ``low`` and ``high``; of repetitions one deviation around the mean, and their number
as ``num_runs``.

A score that is computed, such as chance, has its ``value`` alone.
"""


UNDEFINED = "undefined"
"""Cell of a score that has no value, such as the rank correlation of a constant predictor."""


Scores = Mapping[str, Mapping[str, Score]]
"""Split -> name of a score -> score."""


@dataclass(frozen=True)
class ResultTable:
    """Scores with intervals, a row a model.

    Attributes:
        rows: label -> its scores.
        layout: names of splits and scores, and how they are shown.
        precision_by_run: ``fp32`` or ``bf16`` of each run that left it to the machine, by the run's
            name.
        remarks: lines below the table: what was cut of the inputs.
    """

    rows: Mapping[str, Scores]
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
                body.append(
                    [
                        label,
                        *(self._cell(scores[split][name], name) for name in self.layout.measures),
                    ]
                )
        return ["model", *self.layout.measures.values()], body

    def title(self, split: str) -> str:
        """What the table of a split shows."""
        return f"{self.layout.title}, {self.layout.splits[split]}"

    @property
    def legend(self) -> str:
        """What stands in its cells."""
        percent = [
            name for key, name in self.layout.measures.items() if key not in self.layout.plain
        ]
        spreads = [
            score
            for row in self.rows.values()
            for split in row.values()
            for score in split.values()
        ]
        has_spreads = any("num_runs" in score for score in spreads)
        spread = "; ± standard deviation over runs" if has_spreads else ""
        chance = f"; chance: {self.layout.chance}" if "chance" in self.rows else ""
        return f"95 % bootstrap intervals{spread}; {', '.join(percent)} in %{chance}"

    @property
    def all_remarks(self) -> list[str]:
        """Lines below the table that a reader has to know, without a full stop."""
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
        value, low, high = (
            f"{scale * score[part]:.{digits}f}" for part in ("value", "low", "high")
        )
        return f"{value} [{low}, {high}]"


def precision_conflict(precision_by_run: Mapping[str, str]) -> list[str]:
    """Return a remark about runs whose precision differs though none was set; empty otherwise."""
    if len(set(precision_by_run.values())) < 2:
        return []
    listed = ", ".join(f"{run}: {precision}" for run, precision in precision_by_run.items())
    return [
        f"The runs were computed in different precision, so scores differ by that too: {listed}"
    ]


def over_repetitions(of_runs: Sequence[Scores]) -> Scores:
    """Mean and standard deviation (n - 1) of each score that all of two or more runs have."""
    first = of_runs[0]
    return {
        split: {
            name: _spread([scores[split][name]["value"] for scores in of_runs])
            for name in first[split]
        }
        for split in first
        if all(split in scores for scores in of_runs)
    }


def _spread(values: Sequence[float]) -> Score:
    mean, deviation, num_runs = mean_over_seeds(values)
    return {"value": mean, "low": mean - deviation, "high": mean + deviation, "num_runs": num_runs}


def write_table(table: ResultTable, folder: RunFolder) -> list[Path]:
    """Write ``table.md``, ``table.json`` and the plots of the table; return the files.

    There are none if the store has no held-out rows.
    """
    splits = {split: table.layout.splits[split] for split in table.splits}
    paths = [folder.path / "table.json", folder.path / "table.md"]
    write_record(paths[0], "score table", {"scores": table.rows})
    sections = []
    for split in splits:
        header, body = table.cells(split)
        sections.append(f"{table.title(split)}\n\n{markdown_table(header, body)}\n")
        paths.append(
            plot_table(header, body, folder.plots / f"table-{split}.png", title=table.title(split))
        )
    if not splits:
        return []
    paths.append(
        plot_comparison(table.rows, splits, table.layout.measures, folder.plots / "comparison.png")
    )
    remarks = [f"{remark}." for remark in (table.legend, *table.all_remarks)]
    paths[1].write_text("\n\n".join([*sections, *remarks]) + "\n", encoding="utf-8")
    return paths


def write_joint_table(
    found: Mapping[str, tuple[ResultTable, RunFolder]], split: str = "test"
) -> Path:
    """Write ``joint_table.md`` into the first folder: one column for each comparison and score.

    Rows are joined by the settings that they are called after; a comparison without any has "this
    run". Where there are repetitions, their means alone.
    """
    columns: list[tuple[str, dict[str, str]]] = []
    for name, (table, folder) in found.items():
        means = {
            label: row
            for label, row in table.rows.items()
            if "num_runs" in next(iter(row[split].values()))
        }
        (_, *measures), body = replace(table, rows=means or table.rows).cells(split)
        labels = [
            "this run" if row[0] == folder.name else row[0].removesuffix(" (this run)")
            for row in body
        ]
        for place, measure in enumerate(measures, start=1):
            head = name if len(measures) == 1 else f"{name}, {measure}"
            columns.append(
                (head, {label: row[place] for label, row in zip(labels, body, strict=True)})
            )
    models = dict.fromkeys(label for _, cells in columns for label in cells)
    joined = [[label, *(cells.get(label, "-") for _, cells in columns)] for label in models]
    (first, folder), heads = next(iter(found.values())), [head for head, _ in columns]
    path = folder.path / "joint_table.md"
    precision_by_run = {
        run: name for table, _ in found.values() for run, name in table.precision_by_run.items()
    }
    parts = [first.title(split), markdown_table(["model", *heads], joined), f"{first.legend}."]
    parts += [f"{remark}." for remark in precision_conflict(precision_by_run)]
    path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return path


def lines_for_terminal(table: ResultTable) -> Sequence[Any]:
    """The table as rich renderables, one a split."""
    from rich.table import Table
    from rich.text import Text

    renderables: list[Any] = []
    for split in table.splits:
        header, body = table.cells(split)
        drawn = Table(title=f"{table.title(split)} ({table.legend})")
        for number, name in enumerate(header):
            # An interval has a line of its own, so that 80 columns are enough; nothing is ever cut
            # off.
            drawn.add_column(name, justify="left" if number == 0 else "right", overflow="fold")
        for cells in body:
            drawn.add_row(*(cell.replace(" [", "\n[") for cell in cells))
        renderables.append(drawn)
    return [*renderables, *map(Text, table.all_remarks)] if renderables else renderables


MIN_VALUES = 3
"""Two values are a difference, and stand in the table."""


@dataclass(frozen=True)
class SettingsScores:
    """A run, or runs that repeat each other.

    Attributes:
        value_by_path: the settings in which it was chosen to differ from the others.
        scores: of its final evaluation; of repetitions means, see ``over_repetitions``.
    """

    value_by_path: Mapping[str, Any]
    scores: Scores


def write_setting_plots(
    scores_by_settings: Sequence[SettingsScores], layout: TableLayout, folder: RunFolder
) -> list[Path]:
    """Write scores against each setting with three numbers or more, as CSV and picture.

    They show the last split that runs are judged by and all have, a line for each combination of
    the other settings. Files of an earlier comparison are deleted. Returns the paths.
    """
    for earlier in (*folder.path.glob("scores-by-*.csv"), *folder.plots.glob("scores-by-*.png")):
        earlier.unlink()
    splits = [
        split for split in layout.compared if all(split in one.scores for one in scores_by_settings)
    ]
    paths = []
    for setting in _numeric(scores_by_settings) if splits else []:
        score_by_line = _lines(scores_by_settings, setting, splits[-1])
        rows = [
            (splits[-1], line, shown(value), measure, *_numbers(scores[measure]))
            for line, scores_by_value in score_by_line.items()
            for value, scores in scores_by_value.items()
            for measure in layout.measures
        ]
        paths.append(folder.path / f"scores-by-{setting}.csv")
        with paths[-1].open("w", newline="", encoding="utf-8") as file:
            header = ("split", "label", setting, "measure", "runs", "value", "low", "high")
            csv.writer(file).writerows([header, *rows])
        title = f"{layout.title}, {layout.splits[splits[-1]]}"
        picture = folder.plots / f"scores-by-{setting}.png"
        paths.append(
            plot_scores_by_setting(
                score_by_line, layout.measures, picture, title=title, setting=setting
            )
        )
    return paths


def _numeric(scores_by_settings: Sequence[SettingsScores]) -> list[str]:
    """The settings that are a number everywhere, and not everywhere one of two."""
    found = []
    for path in scores_by_settings[0].value_by_path if scores_by_settings else ():
        values = [one.value_by_path.get(path) for one in scores_by_settings]
        are_numbers = all(
            isinstance(value, int | float) and not isinstance(value, bool) for value in values
        )
        if are_numbers and len(set(values)) >= MIN_VALUES:
            found.append(path)
    return found


def _lines(
    scores_by_settings: Sequence[SettingsScores], setting: str, split: str
) -> dict[str, dict[float, Mapping[str, Any]]]:
    """The other settings -> value of the setting, ascending -> scores."""
    lines: dict[str, dict[float, Mapping[str, Any]]] = {}
    for one in scores_by_settings:
        others = {path: value for path, value in one.value_by_path.items() if path != setting}
        lines.setdefault(label_of(others), {})[one.value_by_path[setting]] = one.scores[split]
    return {line: dict(sorted(scores_by_value.items())) for line, scores_by_value in lines.items()}


def _numbers(score: Mapping[str, float]) -> tuple[int, float, float, float]:
    """Runs, value and where its spread ends."""
    return int(score.get("num_runs", 1)), score["value"], score["low"], score["high"]
