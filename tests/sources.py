"""The syntax trees of the sources, for the tests that check them."""

import ast
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from tests.paths import ROOT


@contextmanager
def no_collections() -> Iterator[None]:
    """Collect no cycles: a million new nodes would be visited again and again, and none is in a cycle."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@cache
def package_trees() -> dict[Path, ast.Module]:
    """Return the syntax tree of every module of raybio and of every job, by its path, sorted."""
    paths = sorted([*(ROOT / "raybio").rglob("*.py"), *(ROOT / "jobs").rglob("*.py")])
    with no_collections():
        return {path: parse(path) for path in paths}


def parse(path: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


@cache
def nodes(tree: ast.AST) -> list[ast.AST]:
    """Return the nodes of a tree in the order of ``ast.walk``; they are kept for the next caller."""
    with no_collections():
        return list(ast.walk(tree))
