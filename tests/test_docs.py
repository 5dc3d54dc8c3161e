"""The documentation: links lead somewhere, and the code of the example method is the example method."""

import argparse
import ast
import importlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from raybio.cli.lazy import chosen_app
from raybio.cli.main import Commands, app
from raybio.core.config import load, merge, override_all
from raybio.core.errors import RaybioError
from raybio.core.fields import fields
from raybio.core.recipes import recipe_named
from raybio.core.search_space_file import SHIPPED
from raybio.methods import METHODS
from raybio.training.settings import TrainingConfig
from tests.documentation import BLOCK, commands
from tests.paths import ROOT

PAGES = [
    *ROOT.glob("*.md"),
    *ROOT.glob("docs/**/*.md"),
    *ROOT.glob("raybio/**/README.md"),
    *ROOT.glob("*/README.md"),
]
LINK = re.compile(r"\]\((?!https?://|#)([^)#\s]+)(?:#[^)]*)?\)")


def test_every_relative_link_leads_to_a_file():
    broken = []
    for page in PAGES:
        text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        broken += [
            f"{page.relative_to(ROOT)}: {target}"
            for target in LINK.findall(text)
            if not (page.parent / target).exists()
        ]
    assert broken == []


def tiers_of(path: Path) -> set[str]:
    """Return the tiers that the tests of a file run in."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    of_module = [
        ast.unparse(node) for node in tree.body if ast.unparse(node).startswith("pytestmark")
    ]
    tiers = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            marks = " ".join([*of_module, *map(ast.unparse, node.decorator_list)])
            # Some parameters of such a test are in the first tier, the others in the second.
            if "first_tier" in marks:
                tiers |= {"first tier", "second tier"}
            tiers.add("second tier" if "nightly" in marks else "first tier")
    return tiers


def test_each_test_of_a_fault_is_in_the_tier_that_the_page_says():
    """So that the dates of the page, one for each tier, hold for each row."""
    files: dict[str, list[Path]] = {}
    for path in ROOT.glob("tests/**/test_*.py"):
        files.setdefault(path.name, []).append(path)
    page = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in page.splitlines() if line[:2] == "| "]
    faults = [row for row in rows if len(row) == 4 and "fault" not in row[0].split()[:1]]
    assert len(faults) > 25
    wrong = []
    for fault, _, *cells in faults:
        named = [re.findall(r"test_\w+\.py", cell) for cell in cells]
        if not any(named):
            wrong.append(f"{fault}: no test")
        for tier, names in zip(("first tier", "second tier"), named, strict=True):
            wrong += [
                f"{fault}: {name} has no test of the {tier}"
                for name in names
                if not any(tier in tiers_of(path) for path in files.get(name, []))
            ]
    assert wrong == []


def test_the_readme_of_a_package_names_each_of_its_modules():
    # Modules that have the same name and purpose in each method are described once.
    guide = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    of_each_method = set(re.findall(r"\w+\.py", guide.partition("same file names")[2]))
    unnamed = []
    for page in ROOT.glob("raybio/**/README.md"):
        named = set(re.findall(r"\w+\.py", page.read_text(encoding="utf-8")))
        if page.is_relative_to(ROOT / "raybio" / "methods"):
            named |= of_each_method
        modules = {module.name for module in page.parent.glob("*.py")} - {"__init__.py"}
        unnamed += [f"{page.parent.relative_to(ROOT)}/{name}" for name in sorted(modules - named)]
    assert unnamed == []


def test_the_guide_for_contributors_shows_the_example_method_as_it_is_tested():
    guide = (ROOT / "docs" / "contributing.md").read_text(encoding="utf-8")
    for name in ("method.py", "loss.py", "system.py"):
        assert (ROOT / "tests" / "example_method" / name).read_text(encoding="utf-8") in guide


def test_the_site_has_every_page_of_the_documentation_in_its_menu():
    def pages(menu):
        for entry in menu:
            if isinstance(entry, dict):
                (entry,) = entry.values()
            if isinstance(entry, str):
                yield entry
            else:
                yield from pages(entry)

    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    listed = list(pages(site["nav"]))
    made = {page for page in listed if page in ("index.md", "api.md") or "repository/" in page}
    docs = ROOT / "docs"
    assert sorted(set(listed) - made) == sorted(
        str(page.relative_to(docs)) for page in docs.glob("**/*.md")
    )
    assert all((ROOT / page.removeprefix("repository/")).exists() for page in made if "/" in page)


PREPARED_FIRST = ("--sentences", "--benchmark", "--data")
"""Options that prepare a store before the others are parsed: of sweeps and some trainings."""

PLACEHOLDER = re.compile(r"\$|^x$|^[A-Z]+$")
"""Matches a value that stands for another one."""

UsageError = typer.BadParameter.__mro__[1]
"""Base of the errors of typer's parser, which has no public name of its own."""


def parsed(words: list[str]) -> tuple[Any, dict[str, Any]]:
    """Parse a command as ``raybio`` does, without its stores; return it and its values.

    Raises:
        UsageError: for what the command does not take: an option, a value out of range, a
            missing argument.
        ConfigError: for a value that a parser of an option refuses.
    """
    chosen, rest = chosen_app(app, words)
    command: Any = get_command(chosen)
    context = typer.Context(command, info_name=words[0])
    while isinstance(command, TyperGroup):
        _, command, rest = command.resolve_command(context, rest)
        context = typer.Context(command, info_name=words[0], parent=context)
    # The commands' own ``parse_args`` prepare stores first.
    with context.scope(cleanup=False):
        TyperCommand.parse_args(command, context, list(rest))
    return command, context.params


def without_prepared(words: list[str]) -> list[str]:
    """Return the words of a training or sweep without those that name what it prepares first."""
    if words[:2] == ["train", "finetune"] and words[2:] and not words[2].startswith("-"):
        words = [*words[:2], *words[3:]]
    if words[0] not in ("train", "sweep"):
        return words
    kept = []
    for before, word in zip(["", *words], words, strict=False):
        if word not in PREPARED_FIRST and before not in PREPARED_FIRST:
            kept.append(word)
    return kept


def config_of(method: str, values: Mapping[str, Any]) -> TrainingConfig:
    """Return the configuration of a training's options."""
    entry = METHODS[method]
    config = entry.config()
    if values.get("recipe") not in (None, "demo"):
        config = merge(entry.config, recipe_named(values["recipe"], entry.recipes).settings, config)
    file = values.get("config")
    if file is not None and (ROOT / file).is_file():
        config = load(entry.config, ROOT / file, config)
    given = dict(text.split("=", 1) for text in values.get("settings") or ())
    given = {name: value for name, value in given.items() if not PLACEHOLDER.search(value)}
    return override_all(config, given)


def problems_of(words: list[str]) -> list[str]:
    """Return what a command of the documentation has that it does not take."""
    if words[0] not in Commands.entries:
        return [f"no command {words[0]}"]
    name = " ".join(words[:2])
    try:
        _, values = parsed(without_prepared(words))
        method = words[1] if words[0] == "train" and len(words) > 1 else values.get("method")
        if words[0] in ("sweep", "preflight") and values.get("space") is not None:
            space = str(values["space"])
            path = SHIPPED / f"{space}.yaml" if re.fullmatch("[a-z_]+", space) else ROOT / space
            if not path.is_file():
                return [f"no search space {space}"] if path.is_relative_to(SHIPPED) else []
            method = yaml.safe_load(path.read_text(encoding="utf-8"))["method"]
        if isinstance(method, str) and method in METHODS:
            config_of(method, values)
            known = {field.path for field in fields(METHODS[method].config)}
            compared = [text.partition("=")[0] for text in values.get("compare_with") or ()]
            unknown = set(compared) - known - {"model"}
            if unknown := {each for each in unknown if not PLACEHOLDER.search(each)}:
                return [f"{name}: no setting {', '.join(sorted(unknown))}"]
    except typer.Exit:
        return []  # of --help
    except UsageError as error:
        return [f"{name}: {error}"]
    except RaybioError as error:
        return [f"{name}: {error}"]
    names_file = re.compile(r"(search_spaces|docs)/[\w/.-]+$")
    return [
        f"{name}: no file {word}"
        for word in words
        if names_file.match(word) and not (ROOT / word).is_file()
    ]


def test_every_command_of_the_documentation_is_one_that_its_job_takes():
    pages = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("raybio/**/README.md")]
    found = [(page, words) for page in pages for words in commands(page)]
    assert len(found) > 50
    assert problems_of(["sweep", "no_space"]) == ["no search space no_space"]
    assert problems_of(["no_job.py"]) == ["no command no_job.py"]
    for wrong in (
        "train sppt_protein --set optim.peak_lrr=1",
        "train sppt_protein --set optim.peak_lr=-1",
        "train sppt_protein --compare optim.peak_lrr=1",
        "train sppt_protein --stor x",
        "train sppt_protein --workers 0",
        "train sppt_protein --seeds two",
        "train sppt_protein --recipe none",
        "sweep sppt_protein --set optim.peak_lrr=1",
        "evaluate links --store s",
        "embed --input a",
        "prepare proteins --out a --min-score nan",
        "search query",
    ):
        assert problems_of(wrong.split()) != [], wrong
    wrong = {
        f"{page.relative_to(ROOT)}: {problem}"
        for page, words in found
        for problem in problems_of(words)
    }
    assert wrong == set()


BENCHMARK = re.compile(r"(?:^|[\s`])benchmarks/(\w+)\.py\b([^`\n]*)")
"""Matches a script of benchmarks and its arguments, in a line of a block or between backquotes."""


def benchmark_commands(page: Path) -> list[tuple[str, list[str]]]:
    """Return script and arguments of each command of ``benchmarks/`` in a page."""
    text = page.read_text(encoding="utf-8")
    blocks = [block.replace("\\\n", " ") for block in BLOCK.findall(text)]
    sentences = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    spans = [" ".join(span.split()) for span in re.findall(r"`[^`]+`", sentences)]
    return [
        (script, shlex.split(arguments, comments=True))
        for part in (*blocks, *spans)
        for script, arguments in BENCHMARK.findall(part)
    ]


class ParsedError(Exception):
    """Ends a script when its arguments are parsed."""


def benchmark_problems(
    script: str, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> list[str]:
    """Return what a command of ``benchmarks/`` has that the script does not take."""
    if not (ROOT / "benchmarks" / f"{script}.py").is_file():
        return [f"no script {script}.py"]
    if not words:
        return []  # the name of the script
    words = ["finetune" if word == "METHOD" else word for word in words]
    parse_args = argparse.ArgumentParser.parse_args

    def stop_when_parsed(parser: argparse.ArgumentParser, _: Any = None) -> None:
        raise ParsedError(parse_args(parser, words))

    with monkeypatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")  # as of a script
        patch.setattr(argparse.ArgumentParser, "parse_args", stop_when_parsed)
        try:
            importlib.import_module(f"benchmarks.{script}").main()
        except ParsedError as error:
            values = error.args[0]
        except SystemExit:
            return [f"{script}.py: {capsys.readouterr().err.strip().splitlines()[-1]}"]
        else:
            return [f"{script}.py takes no arguments"]
    if script != "rivals" or "store" not in values:
        return []
    if str(values.store).endswith("…"):
        # A training prepares the store in a folder below the one that it names after the data.
        return [f"rivals.py: --store {values.store} is the folder around a store"]
    values.set = [text for text in values.set if not PLACEHOLDER.search(text.partition("=")[2])]
    if values.config is not None:
        values.config = ROOT / values.config
        if not values.config.is_relative_to(ROOT / "docs"):
            values.config = None  # of a run
    try:
        importlib.import_module("benchmarks.rivals").config_of(values)
    except RaybioError as error:
        return [f"rivals.py: {error}"]
    return []


def test_every_command_of_a_benchmark_in_the_documentation_is_one_that_its_script_takes(
    monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    # The guide to the tests names files of tests.
    pages = {*PAGES, *ROOT.glob("benchmarks/*.md")} - {ROOT / "tests" / "README.md"}
    found = {
        (page, script, tuple(words)) for page in pages for script, words in benchmark_commands(page)
    }
    assert len([words for _, _, words in found if words]) > 8
    for wrong in (
        "no_script --out x",
        "rivals table no_method --store x",
        "rivals table finetune",
        "rivals table finetune --store x --set encoder.no_setting=1",
        "rivals table finetune --store stores/acl_arc-…",
        "gpu_evidence --out x --no-option",
    ):
        script, *words = wrong.split()
        assert benchmark_problems(script, words, monkeypatch, capsys) != [], wrong
    problems = {
        f"{page.relative_to(ROOT)}: {problem}"
        for page, script, words in found
        for problem in benchmark_problems(script, list(words), monkeypatch, capsys)
    }
    assert problems == set()


@pytest.mark.nightly
def test_the_site_builds_strictly(tmp_path: Path) -> None:
    for module in ("latex2mathml", "mkdocs", "material", "mkdocstrings"):
        pytest.importorskip(module, reason="the site needs the extra docs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "index.html").is_file()
    # Formulas are shown without a script.
    assert "<mfrac>" in (tmp_path / "methods" / "sppt.html").read_text(encoding="utf-8")


def test_the_help_of_every_command_has_an_example_that_the_command_takes() -> None:
    def examples(command: Any, name: str) -> None:
        for inner, one in getattr(command, "commands", {}).items():
            examples(one, f"{name} {inner}".strip())
        if not hasattr(command, "commands"):
            found = re.search(r"Example: raybio (.+)$", " ".join((command.help or "").split()))
            example_by_command[name] = found.group(1) if found else ""

    example_by_command: dict[str, str] = {}
    examples(get_command(app), "")
    assert len(example_by_command) > 50
    wrong = {
        name: example
        for name, example in example_by_command.items()
        if not example.startswith(f"{name} ") or problems_of(shlex.split(example))
    }
    assert wrong == {}


def test_the_pages_state_the_limit_of_bad_records_that_all_commands_have() -> None:
    def defaults(command: Any) -> None:
        for inner in getattr(command, "commands", {}).values():
            defaults(inner)
        found.update(
            each.default
            for each in command.params
            if "--max-bad-share" in getattr(each, "opts", ())
        )

    found: set[Any] = set()
    defaults(get_command(app))
    assert found == {0.1}
    for page in ("your_data.md", "getting_started.md", "methods/mtb_mccl.md"):
        text = " ".join((ROOT / "docs" / page).read_text(encoding="utf-8").split())
        assert re.search(r"`--max-bad-share`[^.]*0\.1\b", text), page


def test_every_environment_variable_of_the_sources_is_in_the_table() -> None:
    guide = (ROOT / "docs" / "getting_started.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| `(RAYBIO_[A-Z_]+)` \|", guide, re.MULTILINE))
    used = set()
    for folder in ("raybio", "jobs", "benchmarks", "deploy"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", ".sh", ".yaml"):
                used |= set(re.findall(r"\bRAYBIO_[A-Z_]+", path.read_text(encoding="utf-8")))
    assert listed == used


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


def test_pages_are_found():
    assert Path("README.md") in {page.relative_to(ROOT) for page in PAGES}


def test_the_guides_of_all_papers_have_the_same_sections_in_the_same_order() -> None:
    sections = {
        guide.stem: re.findall(r"^## (.+)$", guide.read_text(encoding="utf-8"), re.MULTILINE)
        for guide in sorted((ROOT / "docs" / "methods").glob("*.md"))
    }
    assert len(sections) == 5
    assert {guide: found for guide, found in sections.items() if found != sections["sppt"]} == {}


def unknown_settings(guide: str, text: str) -> list[str]:
    """Return what the second column of the tables under "Settings" names and no method of the guide has."""
    known = {
        field.path
        for method in METHODS.values()
        if method.config.__module__.split(".")[2] == guide
        for field in fields(method.config)
    }
    section = text.partition("\n## Settings\n")[2].partition("\n## ")[0]
    named = []
    for row in section.splitlines():
        cells = row.split("|")
        if len(cells) != 6:  # symbol, setting, default, published
            continue
        group = ""
        for name in re.findall(r"`([a-z_.]+)`", cells[2]):
            # `objective.positive_weight`, `negative_weight`: the second is of the same group.
            path = name if "." in name else f"{group}.{name}"
            group = path.rpartition(".")[0]
            named.append(path)
    assert named, guide
    return [path for path in named if path not in known]


def test_the_settings_of_the_symbols_in_the_guides_are_settings_of_their_methods() -> None:
    row = "\n## Settings\n| τ | `objective.temperature`, `temprature` | 0.05 | 0.05 |\n"
    assert unknown_settings("biostransformers", row) == ["objective.temprature"]
    for guide in sorted((ROOT / "docs" / "methods").glob("*.md")):
        text = guide.read_text(encoding="utf-8")
        assert unknown_settings(guide.stem, text) == []
        formula = text.partition("\n## Formula\n")[2].partition("\n## ")[0]
        assert "```math\n" in formula, guide.stem
