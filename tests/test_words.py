"""Words that the field does not use stay out of names and of what a user reads."""

import ast
import re
from functools import cache
from pathlib import Path

from tests.paths import ROOT
from tests.sources import no_collections, package_trees, parse

IN_NAMES = re.compile(
    r"(?:^|_)(judge[ds]?|judgements?|told|tells|foretold|foretells|reckon(?:ed|s)?|kin|heir|"
    r"couples?|asked|asking|bank)(?:_|$)"
)
IN_TEXT = re.compile(
    r"\b(judge[ds]?|judging|judgements?|told|foretold|foretells?|reckon(?:s|ed)?|heir|"
    r"drawn together|held back|put up with|goes on from|to the bit|set aside|passed over|"
    r"side by side|so many|but for|return such as|facts §)\b",
    re.IGNORECASE,
)

NAME_FIELD = {
    ast.FunctionDef: "name",
    ast.AsyncFunctionDef: "name",
    ast.ClassDef: "name",
    ast.Name: "id",
    ast.arg: "arg",
    ast.Attribute: "attr",
}
"""Field of the name in each kind of node that has one."""


@cache
def words_of_name(name: str) -> list[str]:
    """Return the words of ``IN_NAMES`` in the name of a function, class, argument or variable."""
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    return IN_NAMES.findall(snake)


def words_of_text(text: str) -> list[str]:
    """Return the words of ``IN_TEXT`` in a message, a help text or a docstring."""
    return IN_TEXT.findall(text)


def dialect(tree: ast.AST) -> list[tuple[int, str]]:
    """Return (line, word) of every word of the lists."""
    found = []
    for node in ast.walk(tree):
        field = NAME_FIELD.get(type(node))
        if field is not None:
            found += [(node.lineno, word) for word in words_of_name(getattr(node, field))]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found += [(node.lineno, word) for word in words_of_text(node.value)]
    return found


def test_names_and_texts_are_in_the_words_of_the_field():
    problems = []
    paths = [
        path
        for folder in ("raybio", "jobs", "tests", "benchmarks")
        for path in ROOT.glob(f"{folder}/**/*.py")
        if path != Path(__file__)  # the list of the words
    ]
    for path in sorted(paths):
        # Trees of tests and benchmarks are not kept: nobody else needs them.
        with no_collections():
            found = dialect(package_trees().get(path) or parse(path))
        problems += [f"{path.relative_to(ROOT)}:{line}: {word}" for line, word in found]
    assert problems == []


def test_pages_are_in_the_words_of_the_field():
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("raybio/**/*.md")]
    problems = []
    for page in sorted(pages):
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
            problems += [
                f"{page.relative_to(ROOT)}:{number}: {word}" for word in IN_TEXT.findall(line)
            ]
    assert problems == []


def test_the_rule_finds_what_it_should():
    assert dialect(ast.parse("class JudgedRun: ...")) == [(1, "judged")]
    assert dialect(ast.parse("print('records that were set aside')")) == [(1, "set aside")]
    assert dialect(ast.parse("bank_ND = tokens_told")) == [(1, "bank"), (1, "told")]
    assert dialect(ast.parse("query_ND = banked = 'evaluated'")) == []


def test_a_class_name_has_one_meaning() -> None:
    """``Config`` is the settings of each method; private classes are known in their file alone."""
    paths_by_name: dict[str, list[str]] = {}
    for path, tree in package_trees().items():
        if not path.is_relative_to(ROOT / "raybio"):
            continue
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                paths_by_name.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    del paths_by_name["Config"]
    assert {name: paths for name, paths in paths_by_name.items() if len(paths) > 1} == {}
