"""The command that compares runs, given by name or folder, and writes a report."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raybio.cli import options as shared
from raybio.cli.console import stdout_console
from raybio.core.files import check_writable_folder
from raybio.runtime.run.options import runs_folder

if TYPE_CHECKING:
    from raybio.runtime.compare.compare import Comparison
    from raybio.runtime.compare.table import ResultTable

app = typer.Typer(add_completion=False)


SHOWN_TESTS = 12
MOST_COLUMNS = 8


@app.command()
def compare(
    run: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN RUN ...",
            help="name, folder, or a shell pattern of them; a sweep's folder: its trials",
        ),
    ],
    out: Annotated[Path, typer.Option(help="folder of the report")] = Path("comparison"),
    runs: shared.Runs = None,
    curves_only: Annotated[
        bool,
        typer.Option(
            "--curves-only", help="without final scores and tests: runs may have different data"
        ),
    ] = False,
) -> None:
    """Compare runs: settings that differ, final scores with paired tests, curves, and cost.

    Runs that differ only in seed or sentence set are repetitions: their mean is compared.

    Example: raybio compare first sweeps/lambda --out comparison/
    """
    check_writable_folder(out)
    folder, bucket = runs_folder(runs)
    names = None
    if bucket is not None:
        from raybio.runtime.spool.spool import refresh_matching

        names = refresh_matching(folder, bucket, run)
    from raybio.runtime.compare.compare import compare_runs
    from raybio.runtime.compare.comparison_report import write_comparison
    from raybio.runtime.compare.runs import given_runs

    comparison = compare_runs(
        given_runs(run, folder, same_data=not curves_only, names=names),
        with_scores=not curves_only,
    )
    write_comparison(comparison, out)
    _show(comparison, out)


def _show(comparison: "Comparison", out: Path) -> None:
    from rich.table import Table
    from rich.text import Text

    from raybio.runtime.compare.comparison_report import (
        cost_table,
        evaluations_table,
        settings_table,
    )
    from raybio.runtime.compare.run_test import tests_table
    from raybio.runtime.compare.table import lines_for_terminal

    tests = sorted(comparison.tests, key=lambda test: (test.p_holm is None, test.p_holm or 0.0))
    tables = {
        "Runs": cost_table(comparison),
        "Settings that differ": settings_table(comparison),
        # Evaluations during training are shown only if there are no final scores.
        "Evaluations during training": [] if comparison.rows else evaluations_table(comparison),
    }
    if tests:
        shown = tests[:SHOWN_TESTS]
        tables[_title_of_tests(comparison)] = _narrow(tests_table(shown, comparison.layout))
    console = stdout_console()
    for title, table in tables.items():
        if table and len(table[0]) > MOST_COLUMNS:
            console.print(f"{title}: {len(table) - 1:,} lines, too wide for here: see the report")
        elif table:
            drawn = Table(title=title)
            for name in table[0]:
                drawn.add_column(name, overflow="fold")  # cells are wrapped, never cut
            for cells in table[1:]:
                drawn.add_row(*map(Text, cells))
            console.print(drawn)
    for renderable in lines_for_terminal(_narrowed(comparison.scores, console.width)):
        console.print(renderable)
    for note in comparison.notes:
        console.print(f"note: {note}", markup=False, highlight=False, soft_wrap=True)
    console.print(
        f"report: {out / 'report.html'}, {out / 'report.md'}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def _title_of_tests(comparison: "Comparison") -> str:
    """Return the title: what was tested, which tests are shown, and what was not tested."""
    measures = ", ".join(comparison.layout.measures.values())
    num = len(comparison.tests)
    title = f"Tests of each two rows, in {measures} on {' and '.join(comparison.tested_splits)}"
    if num > SHOWN_TESTS:
        is_with_p = any(test.p_holm is not None for test in comparison.tests)
        first = f"the {SHOWN_TESTS} smallest p" if is_with_p else f"the first {SHOWN_TESTS}"
        title += f"; shown: {first} of {num}, the others are in the report"
    if comparison.untested_splits:
        title += (
            f"; not tested, since they are parts of these: {', '.join(comparison.untested_splits)}"
        )
    if comparison.by_seed:
        title += "; tests in pairs of seeds: see the report"
    return title


def _narrowed(table: "ResultTable", width: int) -> "ResultTable":
    """Return the table with the relations that fit a terminal of ``width`` characters.

    These are all relations, or those on the split that counts most, or none.
    """
    lines = table.relations_table
    needed = sum(3 + max(map(len, column)) for column in zip(*lines, strict=True)) + 1
    if needed <= width:
        return table
    last = table.layout.compared[-1]
    on_last = [each for each in table.relations if each.split == last]
    note = "The report shows relations to rivals and other runs on the other splits too"
    if len({each.model for each in on_last}) >= MOST_COLUMNS:
        on_last = []
        note = "The report shows relations to rivals and other runs, too wide for this terminal"
    return replace(table, relations=on_last, remarks=[*table.remarks, note])


def _narrow(table: list[list[str]]) -> list[list[str]]:
    """Drop the columns n and uncorrected p, which are in the report."""
    return [[*cells[:4], *cells[6:]] for cells in table]
