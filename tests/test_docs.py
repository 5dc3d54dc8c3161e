"""The documentation: links lead somewhere, and the code of the example method is the example method."""

import re
import shlex
from functools import cache
from pathlib import Path

import yaml
from typer.testing import CliRunner

from raybio.cli.main import Commands, app
from raybio.core.search_space_file import SHIPPED
from raybio.methods import METHODS
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


GROUPS = {"train", "evaluate", "prepare", "search"}
PREPARED_FIRST = {"--sentences", "--benchmark"}
"""Options of a sweep of contrastive_probe, which prepares its store before the search space is read."""

BLOCK = re.compile(r"```sh\n(.*?)```", re.DOTALL)


IN_TABLE = re.compile(r"^\|.*\| `(raybio train [^`]+)` \|$", re.MULTILINE)
"""The command at the end of a table's row."""


def commands(page: Path) -> list[list[str]]:
    """Return the words of each ``raybio …`` and ``python jobs/X.py …`` in blocks and tables of a page."""
    found = []
    text = page.read_text(encoding="utf-8")
    lines = [
        line for block in BLOCK.findall(text) for line in block.replace("\\\n", " ").splitlines()
    ]
    lines += IN_TABLE.findall(text)
    for line in lines:
        start = re.search(r"(?:^|-- )\s*(raybio |python jobs/)", line)
        if start:
            arguments = line[start.end() :].replace("…", "x")
            words = shlex.split(arguments, comments=True)
            found.append(words if start.group(1) == "raybio " else as_raybio(words))
    return found


def as_raybio(words: list[str]) -> list[str]:
    """Return the words of ``raybio`` for those of a job."""
    job, arguments = words[0].removesuffix(".py"), words[1:]
    if not (ROOT / "jobs" / f"{job}.py").is_file():
        return [f"{job}.py", *arguments]
    if job == "contrastive_probe" and arguments and not arguments[0].startswith("-"):
        return ["evaluate", *arguments]
    return ["train", job, *arguments] if job in METHODS else [job, *arguments]


@cache
def help_of(*words: str) -> str:
    """Return what the complete help of a command prints."""
    option = "--help-all" if words[0] == "train" and len(words) > 1 else "--help"
    return CliRunner().invoke(app, [*words, option], catch_exceptions=False).output


def problems_of(words: list[str]) -> list[str]:
    """Return what a command of the documentation has that it does not take."""
    if words[0] not in Commands.entries:
        return [f"no command {words[0]}"]
    num_words = 1
    if words[0] in GROUPS and words[1:] and not words[1].startswith("-"):
        # raybio prepare download SOURCE
        num_words = 3 if words[1] == "download" else 2
    job, arguments = " ".join(words[:num_words]), words[num_words:]
    text = help_of(*words[:num_words])
    known = set(re.findall(r"--[a-z][a-z-]*", text)) | {"--help-all"}
    if job in ("sweep", "train contrastive_probe"):
        known |= PREPARED_FIRST
    if job == "train finetune":
        known |= {"--data"}
    has_name = job == "sweep" and arguments and re.fullmatch(r"[a-z_]+", arguments[0])
    if has_name and not (SHIPPED / f"{arguments[0]}.yaml").is_file():
        return [f"no search space {arguments[0]}"]
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
    assert problems_of(["sweep", "no_space"]) == ["no search space no_space"]
    assert problems_of(["no_job.py"]) == ["no command no_job.py"]
    assert problems_of(["train", "sppt_protein", "--set", "optim.peak_lrr=1", "--stor", "x"]) != []
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
