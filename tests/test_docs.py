"""The documentation: links lead somewhere, and the code of the example method is the example method."""

import re
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


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


def test_pages_are_found():
    assert Path("README.md") in {page.relative_to(ROOT) for page in PAGES}
