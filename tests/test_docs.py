"""The documentation: links lead somewhere, and the code of the example method is the example method."""

import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

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


def test_the_guide_for_contributors_shows_the_example_method_as_it_is_tested():
    guide = (ROOT / "docs" / "contributing.md").read_text(encoding="utf-8")
    for name in ("method.py", "loss.py", "system.py"):
        assert (ROOT / "tests" / "example_method" / name).read_text(encoding="utf-8") in guide


SUBCOMMANDS = {"evaluate", "prepare", "contrastive_probe"}
PREPARED_FIRST = {"--sentences", "--benchmark"}
"""Options of a sweep of contrastive_probe, which prepares its store before the search space is read."""

BLOCK = re.compile(r"```sh\n(.*?)```", re.DOTALL)


def commands(page: Path) -> list[list[str]]:
    """Return the words of each ``python jobs/X.py …`` in the code blocks of a page."""
    found = []
    for block in BLOCK.findall(page.read_text(encoding="utf-8")):
        for line in block.replace("\\\n", " ").splitlines():
            _, job, arguments = line.partition("python jobs/")
            if job:
                words = shlex.split(arguments.replace("…", "x"), comments=True)
                found.append(words)
    return found


@cache
def help_of(job: str, *subcommands: str) -> str:
    """Return what ``--help`` of a command prints."""
    command = [sys.executable, f"jobs/{job}.py", *subcommands, "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, (command, done.stderr)
    return done.stdout


def problems_of(words: list[str]) -> list[str]:
    """Return what a command of the documentation has that its job does not take."""
    job, arguments = words[0].removesuffix(".py"), words[1:]
    if not (ROOT / "jobs" / f"{job}.py").is_file():
        return [f"no job {job}"]
    takes_subcommand = job in SUBCOMMANDS and arguments and not arguments[0].startswith("-")
    # prepare.py download SOURCE
    num_subcommands = 2 if takes_subcommand and arguments[0] == "download" else 1
    text = help_of(job, *(arguments[:num_subcommands] if takes_subcommand else ()))
    known = set(re.findall(r"--[a-z][a-z-]*", text))
    if job == "sweep":
        known |= PREPARED_FIRST
    settings = set(re.findall(r"^  ([a-z_]+(?:\.[a-z0-9_]+)*)  ", text, re.MULTILINE))
    problems = []
    for word, value in zip(arguments, [*arguments[1:], ""], strict=False):
        option, _, rest = word.partition("=")
        if option.startswith("--") and option not in known:
            problems.append(f"{job}: no option {option}")
        setting = (rest or value).partition("=")[0]
        is_setting = option in ("--set", "--compare") and "$" not in setting
        if is_setting and settings and setting not in settings:
            problems.append(f"{job}: no setting {setting}")
        names_file = re.match(r"(search_spaces|docs)/[\w/.-]+$", word)
        if names_file and not (ROOT / word).is_file():
            problems.append(f"{job}: no file {word}")
    return problems


def test_every_command_of_the_documentation_is_one_that_its_job_takes():
    pages = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("raybio/**/README.md")]
    found = [(page, words) for page in pages for words in commands(page)]
    assert len(found) > 50
    assert problems_of(["sppt_protein.py", "--set", "optim.peak_lrr=1", "--stor", "x"]) != []
    wrong = {
        f"{page.relative_to(ROOT)}: {problem}"
        for page, words in found
        for problem in problems_of(words)
    }
    assert wrong == set()


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
