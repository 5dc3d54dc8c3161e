"""Width of tables on stdout."""

import io
import sys

import pytest
from rich.table import Table
from rich.text import Text

from raybio.cli.console import FILE_COLUMNS, stdout_console
from raybio.runtime.console import PrintableConsole


def printed(monkeypatch: pytest.MonkeyPatch, *, is_terminal: bool) -> str:
    class Output(io.StringIO):
        def isatty(self) -> bool:
            return is_terminal

    output = Output()
    monkeypatch.setattr(sys, "stdout", output)
    table = Table(*(f"measure {number}" for number in range(8)))
    table.add_row(*["12.345 [10.123, 14.567]"] * 8)
    console = stdout_console()
    console.print(table)
    return output.getvalue()


def test_figures_in_a_file_are_neither_cut_nor_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    text = printed(monkeypatch, is_terminal=False)
    assert text.count("12.345 [10.123, 14.567]") == 8
    # As wide as the table needs, not as wide as it may be.
    assert max(map(len, text.splitlines())) < FILE_COLUMNS / 2


def test_a_terminal_or_columns_decide_where_there_are_any(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for is_terminal in (False, True):
        text = printed(monkeypatch, is_terminal=is_terminal)
        assert len(text.splitlines()[0]) <= 80


@pytest.mark.parametrize("kind", [str, Text])
def test_control_characters_of_cells_and_lines_are_shown_whole(
    kind: type[str] | type[Text],
) -> None:
    output = io.StringIO()
    table = Table("id")
    table.add_row(kind("a\x1b[31mb"))
    console = PrintableConsole(file=output, force_terminal=True)
    console.print(table)
    console.print(kind("line\x1b[2J of c"), style="green", highlight=False)
    shown = output.getvalue()
    assert r"line\x1b[2J of c" in shown
    assert "\x1b[31m" not in shown and "\x1b[2J" not in shown
    # Strings are measured as they are shown; rich's texts are cut where a column is narrow.
    assert (r"a\x1b[31mb" in shown) == (kind is str)
    assert "\x1b[32m" in shown
