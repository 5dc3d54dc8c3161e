"""The commands of the documentation, as its pages write them."""

import re
import shlex
from pathlib import Path

from raybio.methods import METHODS
from tests.paths import ROOT

BLOCK = re.compile(r"```sh\n(.*?)```", re.DOTALL)

VARIABLE = re.compile(r"""^(\w+)="([^"]*)"$|`([A-Z]+)` is `(--[^`]*)`""", re.MULTILINE)
"""Matches options that a page names: in a block of code, or in a sentence."""

LOOP = re.compile(r"^for (\w+) in (\w+) .*; do", re.MULTILINE)
"""Matches a loop of a block: its variable, and the first value."""

SHOWN = re.compile(r"^`([\w./]+)`:\n\n```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
"""Matches a file that a page shows: its name between backquotes, and its content."""

IN_TABLE = re.compile(r"`((?:raybio |python jobs/|\w+\.py )[^`]* --?\w[^`]*)`")
"""A command with options in a cell of a table. Without options it names a command only."""


def block_lines(text: str) -> list[str]:
    """Return the lines of the blocks of a page; one that goes on after a backslash is one line."""
    blocks = [block.replace("\\\n", " ") for block in BLOCK.findall(text)]
    return [_with_options(line, text) for block in blocks for line in block.splitlines()]


def table_lines(text: str) -> list[str]:
    """Return the commands with options in cells of the tables of a page."""
    lines = []
    for row in text.splitlines():
        if row.startswith("|"):
            for command in IN_TABLE.findall(row):
                job = command.partition(" ")[0]
                prefix = "python jobs/" if (ROOT / "jobs" / job).is_file() else ""
                lines.append(prefix + _with_options(command, text).replace(" ... ", " "))
    return lines


def _with_options(line: str, text: str) -> str:
    """Return a line with the options that the page names in place of their names.

    A variable of a loop takes its first value.
    """
    for variable, value in LOOP.findall(text):
        line = line.replace(f" ${variable} ", f" {value} ")
    for variable, value, word, options in VARIABLE.findall(text):
        name = f"${variable}" if variable else word
        line = line.replace(f" {name} ", f" {' '.join((value + options).split())} ")
    return line


def write_shown_files(folder: Path, text: str) -> list[str]:
    """Write the files that a page shows; return their names."""
    names = []
    for name, content in SHOWN.findall(text):
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content, encoding="utf-8")
        names.append(name)
    return names


def words_of(line: str) -> list[str] | None:
    """Return the words of ``raybio …`` or ``python jobs/X.py …`` in a line; None if it has neither."""
    start = re.search(r"(?:^|-- )\s*(raybio |python jobs/)", line)
    if start is None:
        return None
    words = shlex.split(line[start.end() :].replace("…", "x"), comments=True)
    return words if start.group(1) == "raybio " else as_raybio(words)


def as_raybio(words: list[str]) -> list[str]:
    """Return the words of ``raybio`` for those of a job."""
    job, arguments = words[0].removesuffix(".py"), words[1:]
    if not (ROOT / "jobs" / f"{job}.py").is_file():
        return [f"{job}.py", *arguments]
    if job == "contrastive_probe" and arguments and not arguments[0].startswith("-"):
        return ["evaluate", *arguments]
    return ["train", job, *arguments] if job in METHODS else [job, *arguments]


def commands(page: Path) -> list[list[str]]:
    """Return the words of each ``raybio …`` and ``python jobs/X.py …`` in blocks and tables of a page."""
    text = page.read_text(encoding="utf-8")
    found = [words_of(line) for line in (*block_lines(text), *table_lines(text))]
    return [words for words in found if words is not None]
