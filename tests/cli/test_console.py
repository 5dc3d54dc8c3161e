"""Width of tables on stdout."""

import io
import sys

import pytest
from rich.table import Table

from raybio.cli.console import FILE_COLUMNS, stdout_console


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
