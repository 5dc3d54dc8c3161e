"""The table of final evaluations: a row for each model, scores with intervals, and differences.

Repetitions are shown as mean ± standard deviation, with an interval over seeds and units.
"""

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from raybio.core.files import replace_text
from raybio.core.final_report import Score, SplitScores, Stage, UnitScores
from raybio.core.markdown import markdown_table
from raybio.core.records import write_record
from raybio.core.table_layout import UNDEFINED, UNFINISHED, TableLayout, unfinished_remarks
from raybio.evaluation.plots import plot_comparison, plot_table
from raybio.evaluation.unit_scores import (
    MIN_SEEDS,
    independent_draws,
    interval_over_runs,
    same_units,
)
from raybio.ops.significance import mean_over_seeds
from raybio.runtime.compare.relations import (
    Relation,
    relations_legend,
    relations_table,
    relations_title,
    verdicts,
)
from raybio.runtime.compare.run_test import RunTest
from raybio.runtime.compare.runs import listed
from raybio.runtime.run.folder import RunFolder

JOINT_SPLIT = "test"
"""The split that the joint table of several comparisons shows."""


@dataclass(frozen=True)
class ResultTable:
    """Scores with intervals, a row for each model.

    Attributes:
        rows: label -> its scores; for repetitions see ``over_repetitions``.
        layout: names of splits and scores, and how they are shown.
        precision_by_run: name of a run -> ``fp32`` or ``bf16``, for runs with ``precision: auto``.
        remarks: lines below the table, such as the inputs that were cut.
        tests: differences between rows.
        relations: how rivals and compared runs compare with this run.
        sizes: split -> number of links or units that its scores are means over.
        repeated: labels of single runs whose mean is a row too. Files show them, the terminal
            does not.
        unfinished: label of a row whose training is not finished -> reason.
    """

    rows: Mapping[str, SplitScores]
    layout: TableLayout
    precision_by_run: Mapping[str, str] = field(default_factory=dict)
    remarks: Sequence[str] = ()
    tests: Sequence[RunTest] = ()
    relations: Sequence[Relation] = ()
    sizes: Mapping[str, str] = field(default_factory=dict)
    repeated: frozenset[str] = frozenset()
    unfinished: Mapping[str, str] = field(default_factory=dict)

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

        Scores are in percent unless the layout lists them as plain.
        """
        body = []
        for label, scores in self.rows.items():
            if split in scores:
                cells = [
                    self.layout.cell(scores[split][name], name) for name in self.layout.measures
                ]
                mark = UNFINISHED if label in self.unfinished else ""
                body.append([label + mark, *cells])
        return ["model", *self.layout.measures.values()], body

    def difference_cells(self, split: str) -> tuple[list[str], list[list[str]]]:
        """Return header and cells of the differences in a split; no cells without any.

        A cell has the difference, its interval and the corrected p-value, if there is one.
        """
        tests_by_pair: dict[str, dict[str, RunTest]] = {}
        for test in self.tests:
            if test.split == split:
                pair = f"{test.one} minus {test.two}"
                tests_by_pair.setdefault(pair, {})[test.measure] = test
        body = []
        for pair, test_by_measure in tests_by_pair.items():
            cells = [
                self._difference(test_by_measure[name]) if name in test_by_measure else UNDEFINED
                for name in self.layout.measures
            ]
            body.append([pair, *cells])
        return ["difference", *self.layout.measures.values()], body

    def title(self, split: str) -> str:
        """Return the title of the table of a split."""
        title = f"{self.layout.title}, {self.layout.splits[split]}"
        return f"{title}: {self.sizes[split]}" if split in self.sizes else title

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
        text = "95 % bootstrap intervals over units"
        nums = {score["num_runs"] for score in scores if "num_runs" in score}
        num_seeds = {
            score["num_runs"]
            for score in scores
            if "deviation" in score and "num_draws" not in score
        }
        num_sets = {score["num_draws"] for score in scores if "num_draws" in score}
        if not nums:
            text += ", one seed"
        if any(num >= MIN_SEEDS for num in num_seeds):
            text += ", of repetitions over seeds and units"
        if any(num < MIN_SEEDS for num in num_seeds):
            text += ", of two runs over units only"
        if any(num >= MIN_SEEDS for num in num_sets):
            text += ", of runs on several sets over sets and units"
        if any(num < MIN_SEEDS for num in num_sets):
            text += ", of runs on two sets over units only"
        if nums:
            text += "; ± standard deviation over runs"
        text += f"; {', '.join(percent)} in %"
        if "chance" in self.rows:
            text += f"; chance: {self.layout.chance}"
        for oracle, about in self.layout.oracles.items():
            if oracle in self.rows:
                text += f"; {oracle}: {about}"
        return text

    @property
    def all_remarks(self) -> list[str]:
        """Lines below the table, without a full stop."""
        remarks = [*self.remarks, *precision_conflict(self.precision_by_run)]
        remarks += verdicts(self.relations, self.layout)
        return remarks + unfinished_remarks(self.unfinished)

    @property
    def relations_table(self) -> list[list[str]]:
        """Header and rows of the relations; empty without any."""
        return relations_table(self.relations, self.layout)

    @property
    def relations_caption(self) -> str:
        """Title and legend of the relations."""
        return f"{relations_title(self.relations)} ({relations_legend(self.relations)})"

    @property
    def of_settings(self) -> "ResultTable":
        """The table without the single runs whose mean is a row."""
        return replace(
            self,
            rows={label: row for label, row in self.rows.items() if label not in self.repeated},
            unfinished={
                label: reason
                for label, reason in self.unfinished.items()
                if label not in self.repeated
            },
            repeated=frozenset(),
        )

    @property
    def difference_legend(self) -> str:
        """A description of the cells of differences."""
        text = "95 % bootstrap intervals of the paired differences"
        num_tests = max((test.num_tests for test in self.tests), default=0)
        if num_tests:
            text += f", over seeds and units; p corrected for {num_tests} tests (Holm)"
        return text if num_tests else f"{text}, over units"

    def _difference(self, test: RunTest) -> str:
        scale, digits = self.layout.scale(test.measure)
        p = "" if test.p_holm is None else f", p = {test.p_holm:.2g}"
        return f"{test.difference_text(digits, scale)}{p}"


def precision_conflict(precision_by_run: Mapping[str, str]) -> list[str]:
    """Return a remark about runs whose precision differs; empty otherwise."""
    if len(set(precision_by_run.values())) < 2:
        return []
    return [
        "The runs were computed in different precision, so scores differ by that too: "
        f"{listed(precision_by_run)}"
    ]


def untrained_label(stage: Stage, scores_of_runs: Sequence[SplitScores]) -> str:
    """Return the label of the row of an untrained model, from its scores in repetitions of a run.

    If they depend on the seed, the row is their mean, with the number of runs in its label.
    """
    # Compared as text, since NaN is not equal to itself.
    is_same = len({repr(scores) for scores in scores_of_runs}) == 1
    return stage if is_same else f"{stage}, {len(scores_of_runs)} runs"


def over_repetitions(
    scores_of_runs: Sequence[SplitScores],
    units_of_runs: Sequence[Mapping[str, UnitScores]] = (),
    measures: Collection[str] = (),
    draw_R: Sequence[Hashable] = (),
) -> SplitScores:
    """Return the mean of each score that all runs have, with the number of runs.

    If all runs have unit scores, ``low`` and ``high`` are the 95 % interval, over seeds and units
    for three or more runs, and ``deviation`` is the standard deviation (n - 1) over runs. Otherwise
    they are one standard deviation around the mean. If runs share draws, the interval is over the
    draws, and ``num_draws`` is their number.

    Args:
        scores_of_runs: scores of each run.
        units_of_runs: unit scores of each run, by split.
        measures: measures with an interval.
        draw_R: the draw that each run shares with others, as in ``independent_draws``; empty: none.
    """
    means: dict[str, dict[str, Score]] = {}
    for split in scores_of_runs[0]:
        if not all(split in scores for scores in scores_of_runs):
            continue
        units = [scores[split] for scores in units_of_runs if split in scores]
        is_same = len(units) == len(scores_of_runs) and same_units(units)
        means[split] = {}
        for measure in scores_of_runs[0][split]:
            values = [scores[split][measure]["value"] for scores in scores_of_runs]
            known = (
                is_same
                and measure in measures
                and all(measure in scores.value_by_measure for scores in units)
            )
            means[split][measure] = _over_runs(values, units if known else (), measure, draw_R)
    return means


def _over_runs(
    values: Sequence[float],
    units: Sequence[UnitScores],
    measure: str,
    draw_R: Sequence[Hashable],
) -> Score:
    average, deviation, num_runs = mean_over_seeds(values)
    score: dict[str, float] = {"value": average, "num_runs": num_runs}
    if not units:
        return score | {"low": average - deviation, "high": average + deviation}
    _, low, high = interval_over_runs(values, units, measure, draw_R=draw_R)
    num_draws = len(independent_draws(draw_R)) if draw_R else num_runs
    if num_draws < num_runs:
        score["num_draws"] = num_draws
    return score | {"low": low, "high": high, "deviation": deviation}


def write_table(table: ResultTable, folder: Path) -> list[Path]:
    """Write ``table.md``, ``table.json`` and the plots of the table; return the files.

    No files are written if the store has no held-out rows.
    """
    json_path = folder / "table.json"
    content = {
        "scores": table.rows,
        "differences": [asdict(test) | {"verdict": test.verdict} for test in table.tests],
        "relations": [asdict(relation) for relation in table.relations],
        "sizes": table.sizes,
        "unfinished": table.unfinished,
        "remarks": table.all_remarks,
    }
    write_record(json_path, "score table", content)
    splits = {split: table.layout.splits[split] for split in table.splits}
    if not splits:
        return []
    markdown_path = folder / "table.md"
    paths = [json_path, markdown_path]
    sections = []
    for split in splits:
        title = table.title(split)
        header, body = table.cells(split)
        sections.append(f"{title}\n\n{markdown_table(header, body)}\n")
        differences = table.difference_cells(split)
        if differences[1]:
            legend = f"Differences, {table.layout.splits[split]} ({table.difference_legend})"
            sections.append(f"{legend}\n\n{markdown_table(*differences)}\n")
        paths.append(plot_table(header, body, folder / "plots" / f"table-{split}.png", title=title))
    if table.relations:
        header, *body = table.relations_table
        sections.append(f"{table.relations_caption}\n\n{markdown_table(header, body)}\n")
    plot = folder / "plots" / "comparison.png"
    paths.append(plot_comparison(table.rows, splits, table.layout.measures, plot))
    remarks = [f"{remark}." for remark in (table.legend, *table.all_remarks)]
    replace_text(markdown_path, "\n\n".join([*sections, *remarks]) + "\n")
    return paths


def write_joint_table(tables: Mapping[str, tuple[ResultTable, RunFolder]]) -> Path:
    """Write ``joint_table.md`` into the first folder: models' test scores in several comparisons.

    It has a column for each comparison and measure. Rows are joined by the settings in their
    labels; a comparison without varied settings has the row "this run". For repetitions only the
    means are shown. Differences are in the table of each comparison.

    Args:
        tables: name of a comparison -> its table and folder.
    """
    columns: list[tuple[str, dict[str, str]]] = []
    for name, (table, folder) in tables.items():
        columns += _columns(name, table, folder)
    labels = dict.fromkeys(label for _, cells in columns for label in cells)
    rows = [[label, *(cells.get(label, "-") for _, cells in columns)] for label in labels]
    header = ["model", *(head for head, _ in columns)]
    first, folder = next(iter(tables.values()))
    precision_by_run: dict[str, str] = {}
    for table, _ in tables.values():
        precision_by_run |= table.precision_by_run
    sizes = {table.sizes.get(JOINT_SPLIT) for table, _ in tables.values()}
    titled = first if len(sizes) == 1 else replace(first, sizes={})
    parts = [titled.title(JOINT_SPLIT), markdown_table(header, rows), f"{first.legend}."]
    relations = [
        replace(relation, model=name)
        for name, (table, _) in tables.items()
        for relation in table.relations
        if relation.split == JOINT_SPLIT
    ]
    if relations:
        header, *body = relations_table(relations, first.layout)
        parts += [f"{relations_title(relations)}", markdown_table(header, body)]
        parts.append(f"{relations_legend(relations)}.")
    parts += [f"{remark}." for remark in precision_conflict(precision_by_run)]
    # One remark about different precisions covers all comparisons.
    remarks_by_name = {
        name: replace(table, precision_by_run={}).all_remarks for name, (table, _) in tables.items()
    }
    every = list(dict.fromkeys(remark for own in remarks_by_name.values() for remark in own))
    shared = [remark for remark in every if all(remark in own for own in remarks_by_name.values())]
    for name, remarks in remarks_by_name.items():
        parts += [f"{name}: {remark}." for remark in remarks if remark not in shared]
    parts += [f"{remark}." for remark in shared]
    path = folder.path / "joint_table.md"
    replace_text(path, "\n\n".join(parts) + "\n")
    return path


def _columns(name: str, table: ResultTable, folder: RunFolder) -> list[tuple[str, dict[str, str]]]:
    """Return heading and cells by row label of each measure of a comparison."""
    shown = replace(table.of_settings, unfinished={})
    (_, *measures), body = shown.cells(JOINT_SPLIT)
    columns = []
    for number, measure in enumerate(measures, start=1):
        cells = {}
        for row in body:
            label = "this run" if row[0] == folder.name else row[0].removesuffix(" (this run)")
            cells[label] = row[number] + (UNFINISHED if row[0] in table.unfinished else "")
        columns.append((name if len(measures) == 1 else f"{name}, {measure}", cells))
    return columns


def lines_for_terminal(table: ResultTable) -> Sequence[Any]:
    """Return the table as rich renderables: one for each split, and one of the relations.

    Single runs whose mean is a row are omitted.
    """
    from rich.table import Table
    from rich.text import Text

    table = table.of_settings
    renderables: list[Any] = []
    for split in table.splits:
        titled = [(table.title(split), *table.cells(split))]
        header, body = table.difference_cells(split)
        if body:
            titled.append((f"Differences, {table.layout.splits[split]}", header, body))
        for title, names, rows in titled:
            # rich breaks a title that is wider than its table at any character.
            drawn = Table(title=title, min_width=min(len(title), 80))
            for number, name in enumerate(names):
                # An interval gets its own line, so that the table fits in 80 columns uncut.
                drawn.add_column(name, justify="left" if number == 0 else "right", overflow="fold")
            for cells in rows:
                drawn.add_row(
                    *(cell.replace(" [", "\n[").replace("], p", "],\np") for cell in cells)
                )
            renderables.append(drawn)
    if not renderables:
        return []
    legends = [f"Scores: {table.legend}."]
    if table.tests:
        legends.append(f"Differences: {table.difference_legend}.")
    if table.relations:
        renderables.append(_drawn_relations(table))
        legends.append(f"{relations_title(table.relations)}: {relations_legend(table.relations)}.")
    return [*renderables, *map(Text, legends), *map(Text, table.all_remarks)]


def _drawn_relations(table: ResultTable) -> Any:
    """Return the table of relations as a rich renderable."""
    from rich.table import Table
    from rich.text import Text

    header, *rows = table.relations_table
    drawn = Table(title=relations_title(table.relations))
    for name in header:
        drawn.add_column(name, overflow="fold")
    for cells in rows:
        drawn.add_row(*map(Text, cells))
    return drawn
