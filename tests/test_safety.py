"""What the sources must not contain: calls that run what they read, paths of one machine, unfinished work."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.paths import ROOT
from tests.sources import nodes, package_trees, parse

UNPICKLERS = {"pickle", "_pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal", "skops"}
READS_PICKLES = "raybio/methods/sppt/downstream/formats/tape_lmdb.py"
FORBIDDEN_CALLS = {
    "eval", "exec", "yaml.load", "yaml.unsafe_load", "yaml.full_load", "np.fromfile", "numpy.fromfile",
    "pd.read_pickle", "pandas.read_pickle", "os.system", "faiss.read_index", "torch.jit.load", "torch.package",
}  # fmt: skip


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, module) of every import."""
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, node.module or ""


def dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def test_all_consoles_show_control_characters() -> None:
    """``PrintableConsole`` is rich's console with that; rich's own is named as a type alone."""
    made = [
        where(path, node.lineno, "use PrintableConsole")
        for path, tree in package_trees().items()
        for node in nodes(tree)
        if isinstance(node, ast.Call) and dotted(node.func).split(".")[-1] == "Console"
    ]
    assert made == []


def where(path: Path, line: int, text: str) -> str:
    return f"{path.relative_to(ROOT)}:{line}: {text}"


def unpickling(path: Path, tree: ast.AST) -> list[str]:
    problems = [
        where(path, line, f"imports {target}, which can run what it reads")
        for line, target in imported(tree)
        if target.split(".")[0] in UNPICKLERS
    ]
    for node in nodes(tree):
        if not isinstance(node, ast.Call):
            continue
        name = dotted(node.func)
        keywords = {
            keyword.arg: getattr(keyword.value, "value", "computed") for keyword in node.keywords
        }
        if name == "torch.load" and keywords.get("weights_only") is not True:
            problems.append(where(path, node.lineno, "torch.load without weights_only=True"))
        if keywords.get("allow_pickle", False) is not False:
            problems.append(where(path, node.lineno, f"{name} with allow_pickle"))
        if keywords.get("trust_remote_code", False) is True:
            problems.append(where(path, node.lineno, f"{name} with trust_remote_code=True"))
        if keywords.get("shell", False) is not False:
            problems.append(where(path, node.lineno, f"{name} with shell"))
        loader = (
            node.args[1]
            if len(node.args) > 1
            else next((k.value for k in node.keywords if k.arg == "Loader"), None)
        )
        if name in FORBIDDEN_CALLS and not (
            name == "yaml.load" and dotted(loader or node) == "_PlainLoader"
        ):
            problems.append(where(path, node.lineno, name))
    return problems


def test_nothing_that_is_read_can_run_code():
    found = []
    benchmarks = {path: parse(path) for path in sorted(ROOT.glob("benchmarks/*.py"))}
    for path, tree in (package_trees() | benchmarks).items():
        problems = unpickling(path, tree)
        if path == ROOT / READS_PICKLES:
            # Others write them, and a list of names says what they may ask for; its tests have one that asks for more.
            assert len(problems) == 1 and "find_class" in path.read_text()
            continue
        found += problems
    assert found == []


@pytest.mark.parametrize(
    ("code", "is_wrong"),
    [
        ("import pickle", True),
        ("def f():\n    from joblib import load", True),
        ("torch.load(p)", True),
        ("torch.load(p, weights_only=False)", True),
        ("torch.load(p, weights_only=flag)", True),
        ("torch.load(p, weights_only=True)", False),
        ("np.load(p, allow_pickle=True)", True),
        ("np.load(p, allow_pickle=False)", False),
        ("AutoModel.from_pretrained(p, trust_remote_code=True)", True),
        ("yaml.load(p, Loader=yaml.Loader)", True),
        ("subprocess.run(c, shell=True)", True),
        ("model.eval()", False),
    ],
)
def test_the_rule_about_unpickling_finds_what_it_should(code, is_wrong):
    assert bool(unpickling(ROOT / "raybio/store/x.py", ast.parse(code))) == is_wrong


def test_the_text_names_no_machine_and_leaves_nothing_undone():
    # Joined here, so that this file does not find itself.
    machine = re.compile(
        r"(?<![\w.~}-])/(?:" + "|".join(["work", "home", "root", "Users", "mnt"]) + r")/\w"
    )
    undone = re.compile(r"\b(?:" + "|".join(["TO" + "DO", "FIX" + "ME", "HA" + "CK"]) + r")\b")
    suffixes = {".py", ".md", ".yaml", ".toml", ".txt", ".cfg", ".sh"}
    folders = ["raybio", "jobs", "tests", "benchmarks", "search_spaces", "docs", ".ci"]
    files = [
        path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in suffixes
    ]
    files += [
        path
        for path in ROOT.iterdir()
        if path.is_file() and path.name in {"Makefile", ".rayignore"}
    ]
    files += [path for path in ROOT.iterdir() if path.is_file() and path.suffix in suffixes]
    problems = []
    for path in files:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if machine.search(line) or undone.search(line):
                problems.append(where(path, number, line.strip()))
    assert problems == []


def test_no_file_is_a_symbolic_link() -> None:
    """Not every copy of a repository keeps links: one became a file of 16 bytes."""
    folders = ["raybio", "jobs", "search_spaces", "docs", "deploy", "tests", "benchmarks"]
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    assert paths
    assert [path for path in paths if path.is_symlink()] == []
