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
TORCH_LOADS = {"torch.load", "torch.serialization.load"}
FORBIDDEN_CALLS = {
    "eval", "exec", "yaml.load", "yaml.unsafe_load", "yaml.full_load", "numpy.fromfile",
    "pandas.read_pickle", "os.system", "faiss.read_index", "torch.jit.load", "torch.hub.load",
}  # fmt: skip
FORBIDDEN_MODULES = {"torch.package"}
POSITION_OF_ALLOW_PICKLE = {"numpy.load": 2, "numpy.lib.format.read_array": 1}
FLAGS = {"allow_pickle", "trust_remote_code", "shell"}
"""Keywords that must be absent or a literal ``False``."""


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, dotted name) of every import: modules, and each name that is taken out of one."""
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield node.lineno, f"{node.module or ''}.{alias.name}"


def modules_by_name(tree: ast.AST) -> dict[str, str]:
    """Return the dotted name for each name that the file's imports bind."""
    bound = {"np": "numpy", "pd": "pandas"}
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            bound |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                bound[alias.asname or alias.name] = f"{node.module or ''}.{alias.name}"
    return bound


def is_forbidden(name: str) -> bool:
    """Return whether a function can run what it reads, whatever its arguments are."""
    is_model = name.startswith("mlflow.") and name.endswith(".load_model")
    return is_model or name in FORBIDDEN_CALLS


def is_unpickler(name: str) -> bool:
    """Return whether any part of a dotted name is a module that unpickles."""
    is_module = any(f"{name}.".startswith(f"{module}.") for module in FORBIDDEN_MODULES)
    return is_module or not UNPICKLERS.isdisjoint(name.split("."))


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
        # By another name, its calls would not be seen to be of that module.
        if is_unpickler(target)
        or is_forbidden(target)
        or target in TORCH_LOADS | POSITION_OF_ALLOW_PICKLE.keys()
    ]
    bound = modules_by_name(tree)
    for node in nodes(tree):
        if isinstance(node, ast.Attribute) and is_unpickler(node.attr):
            problems.append(where(path, node.lineno, f"{dotted(node)} can run what it reads"))
        if isinstance(node, ast.Dict):
            # It may be given as keywords.
            given = {
                getattr(key, "value", None): value
                for key, value in zip(node.keys, node.values, strict=True)
            }
            problems += [where(path, node.lineno, text) for text in wrong_flags("a dict", given)]
        if isinstance(node, ast.Call):
            problems += [where(path, node.lineno, text) for text in wrong_call(node, bound)]
    return problems


def wrong_flags(name: str, given: dict[object, ast.expr]) -> Iterator[str]:
    """Yield what is wrong with keyword arguments of a call."""
    for flag in sorted(FLAGS & given.keys()):
        if getattr(given[flag], "value", "computed") is not False:
            yield f"{name} with {flag}"


def wrong_call(node: ast.Call, bound: dict[str, str]) -> Iterator[str]:
    """Yield what is wrong with a call.

    Args:
        node: the call.
        bound: as ``modules_by_name``.
    """
    first, dot, rest = dotted(node.func).partition(".")
    name = bound.get(first, first) + dot + rest
    given: dict[object, ast.expr] = {keyword.arg: keyword.value for keyword in node.keywords}
    position = POSITION_OF_ALLOW_PICKLE.get(name)
    if position is not None and (
        len(node.args) > position or any(isinstance(each, ast.Starred) for each in node.args)
    ):
        given["allow_pickle"] = node.args[-1] if len(node.args) <= position else node.args[position]
    yield from wrong_flags(name, given)
    weights_only = getattr(given.get("weights_only"), "value", None)
    if name in TORCH_LOADS and weights_only is not True:
        yield f"{name} without weights_only=True"
    loader = node.args[1] if len(node.args) > 1 else given.get("Loader")
    is_plain_yaml = name == "yaml.load" and loader and dotted(loader) == "_PlainLoader"
    if is_forbidden(name) and not is_plain_yaml:
        yield name
    if name.split(".")[-1] in ("import_module", "__import__") and node.args:
        module = getattr(node.args[0], "value", "")
        if isinstance(module, str) and is_unpickler(module):
            yield f"imports {module}, which can run what it reads"


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
        ("from ray import cloudpickle", True),
        ("import ray.cloudpickle", True),
        ("import ray\nray.cloudpickle.loads(b)", True),
        ("reader = ray.cloudpickle.loads", True),
        ("importlib.import_module('pickle')", True),
        ("mlflow.pyfunc.load_model(p)", True),
        ("from mlflow import pytorch\npytorch.load_model(p)", True),
        ("from mlflow.sklearn import load_model", True),
        ("from raybio.methods.sppt.proteins.checkpoint import load_model\nload_model(p)", False),
        ("torch.serialization.load(p)", True),
        ("import torch as t\nt.load(p)", True),
        ("from torch import load", True),
        ("from torch import package", True),
        ("from torch import nn", False),
        ("from yaml import load", True),
        ("from yaml import SafeLoader", False),
        ("yaml.load(text, _PlainLoader)", False),
        ("yaml.load(text, Loader)", True),
        ("np.load(p, 'r', True)", True),
        ("np.load(p, 'r', False)", False),
        ("np.load(p, 'r')", False),
        ("np.load(*given)", True),
        ("from numpy import load as read", True),
        ("AutoModel.from_pretrained(p, trust_remote_code=flag)", True),
        ("AutoModel.from_pretrained(p, **{'trust_remote_code': True})", True),
        ("options = {'trust_remote_code': True}", True),
        ("options = dict(allow_pickle=True)", True),
        ("options = {'trust_remote_code': False, **more}", False),
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
