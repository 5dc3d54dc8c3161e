"""Words that the field does not use stay out of names and of what a user reads."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.paths import ROOT

IN_NAMES = re.compile(
    r"(?:^|_)(judge[ds]?|judgements?|told|tells|foretold|foretells|reckon(?:ed|s)?|kin|heir|"
    r"couples?|asked|asking|bank)(?:_|$)"
)
IN_TEXT = re.compile(
    r"\b(judge[ds]?|judging|judgements?|told|foretold|foretells?|reckon(?:s|ed)?|heir|"
    r"drawn together|held back|put up with|goes on from|to the bit|set aside|passed over|"
    r"side by side|facts §)\b",
    re.IGNORECASE,
)


def names_of(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, name) of all functions, classes, arguments, variables and attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.Name):
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Attribute):
            yield node.lineno, node.attr


def texts_of(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of all strings: messages, help and docstrings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def dialect(tree: ast.AST) -> list[tuple[int, str]]:
    """Return (line, word) of every word of the lists."""
    found = []
    for line, name in names_of(tree):
        snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
        found += [(line, word) for word in IN_NAMES.findall(snake)]
    for line, text in texts_of(tree):
        found += [(line, word) for word in IN_TEXT.findall(text)]
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
        tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
        problems += [f"{path.relative_to(ROOT)}:{line}: {word}" for line, word in dialect(tree)]
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
    for path in sorted(ROOT.glob("raybio/**/*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                paths_by_name.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    del paths_by_name["Config"]
    assert {name: paths for name, paths in paths_by_name.items() if len(paths) > 1} == {}
