"""The commands of the guides, run in the order of their pages, at tiny budgets."""

import itertools
import re
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from raybio.cli.main import app
from tests.documentation import block_lines, commands
from tests.guides import ELSEWHERE, GUIDES, commands_of
from tests.paths import ROOT
from tests.script_process import run_script

DOCS = ROOT / "docs"
RESUMING = {"--name", "--register", "--alias"}
"""Options that do not change a run."""

OF_ENCODERS = ("model", ":--", "initial", "random", "softmax", "ridge", "lambda_spml")
"""Rows of tutorials that depend on the encoder, which the tests make smaller, or on rounding."""


def test_every_page_with_commands_is_run_or_listed_with_a_reason() -> None:
    pages = {
        str(page.relative_to(DOCS))
        for page in DOCS.glob("**/*.md")
        if block_lines(page.read_text(encoding="utf-8"))
    }
    run = {page for guide in GUIDES.values() for page in guide.pages}
    assert run.isdisjoint(ELSEWHERE)
    assert run | ELSEWHERE.keys() == pages


@pytest.mark.parametrize("name", GUIDES)
def test_what_is_changed_or_not_run_is_on_the_pages(name: str) -> None:
    guide = GUIDES[name]
    commands_of(guide)
    for field in ("instead", "more", "not_run"):
        extended = replace(guide, **{field: {**getattr(guide, field), "no such part": ""}})
        with pytest.raises(AssertionError, match="no such part"):
            commands_of(extended)


@pytest.mark.parametrize("page", sorted(DOCS.glob("**/*.md")), ids=lambda page: page.stem)
def test_trainings_of_a_page_that_differ_have_names_of_their_own(page: Path) -> None:
    """The second one would be refused: its folder holds a run with other settings."""
    settings_by_run: dict[tuple[str, str], set[str]] = {}
    for words in commands(page):
        if words[0] != "train" or "--name" not in words:
            continue
        given = [f"{a} {b}" for a, b in itertools.pairwise(words) if a.startswith("--")]
        settings = {
            one for one in given if one.split()[0] not in {*RESUMING, "--compare", "--seeds"}
        }
        run = (words[words.index("--runs") + 1] if "--runs" in words else "runs", name_of(words))
        if settings:  # without any, the recorded ones hold
            assert settings_by_run.setdefault(run, settings) == settings, run


@pytest.mark.parametrize("name", GUIDES)
def test_every_command_of_a_guide_that_prepares_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = [words for _, words in commands_of(GUIDES[name]) if words[0] == "prepare"]
    if not prepared:
        pytest.skip("no command of these pages prepares")
    monkeypatch.chdir(tmp_path)
    GUIDES[name].write_inputs(tmp_path)
    for words in prepared:
        if "--workers" in words:
            continue  # starts Ray
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, (words, done.output, done.exception)
        if "--out" in words:
            assert Path(words[words.index("--out") + 1]).exists(), words


@pytest.mark.nightly
@pytest.mark.parametrize("name", GUIDES)
def test_every_command_of_a_guide_runs(name: str, tmp_path: Path, empty_database: Path) -> None:
    done = run_script("tests.run_guide", tmp_path, name, str(empty_database))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    for page in GUIDES[name].pages:
        text = (DOCS / page).read_text(encoding="utf-8")
        tutorial = text.partition("## Tutorial")[2]
        shown = cells_by_place(tutorial.partition("\n- ")[0], by_title=False)
        if shown:
            (run, *_) = re.findall(r"--name (\w+)", tutorial)
            markdown = (tmp_path / "runs" / run / "table.md").read_text(encoding="utf-8")
            printed = cells_by_place(markdown, by_title=True)
            assert shown.keys() <= printed.keys()
            for (row, column), cells in shown.items():
                if not row.startswith((*OF_ENCODERS, run)):
                    assert cells <= printed[row, column], (row, column)
        for path in re.findall(r"`((?:runs|sweeps)/[\w.-]+/[\w./-]+)`", text):
            assert list(tmp_path.glob(re.sub("NAME|HASH|SETTING|VALUE", "*", path))), path


def name_of(words: list[str]) -> str:
    """Return the name that a training gives its run."""
    return words[words.index("--name") + 1]


def cells_by_place(markdown: str, *, by_title: bool) -> dict[tuple[str, str], set[str]]:
    """Return the cells of all tables by row and column, without marks and bold type.

    A row may have several names. With ``by_title``, also by row and what the table's title names
    last: a table of a page may have a column for each split, which a run has a table for.
    """
    found: dict[tuple[str, str], set[str]] = {}
    title = ""
    for block in re.split(r"\n\n+", markdown):
        header, *rows = re.findall(r"^\| (.+) \|$", block, re.MULTILINE) or [""]
        if not header:
            title = block.partition(":")[0].rpartition(", ")[2]
        columns = header.split(" | ")[1:]
        for row in rows:
            name, *cells = row.replace("**", "").split(" | ")
            for one in re.sub(r" †| \(this run\)", "", name).split(", "):
                for column, cell in zip(columns, cells, strict=True):
                    found.setdefault((one, column), set()).add(cell)
                    if by_title:
                        found.setdefault((one, title), set()).add(cell)
    return found
