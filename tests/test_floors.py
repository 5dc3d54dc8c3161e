"""The house rules, read from the syntax tree: imports only go down, and nothing unpickles."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FLOOR_BY_UNIT = {
    "raybio": 0,
    "raybio.core.errors": 0,
    "raybio.core.config": 0,
    "raybio.core.search_space": 0,
    "raybio.core.markdown": 0,
    "raybio.core.files": 0,
    "raybio.functional": 1,
    "raybio.methods.sppt.graph.csr": 1,
    "raybio.core.batch": 1,
    "raybio.methods.relation_graphs.batches": 1,
    "raybio.core.interfaces": 1,
    "raybio.data": 2,
    "raybio.encoders": 2,
    "raybio.objectives": 2,
    "raybio.evaluation": 2,
    "raybio.retrieval": 2,
    "raybio.training": 3,
    "raybio.methods": 4,
    "raybio.runtime": 5,
    "jobs": 6,
}
SIBLINGS_ARE_STRANGERS = {2}
FLOOR_0_MAY_IMPORT = {"pydantic", "yaml", "raybio", *sys.stdlib_module_names}
UNPICKLERS = {"pickle", "_pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal", "skops"}
READS_PICKLES = "raybio/data/tape_lmdb.py"
FORBIDDEN_CALLS = {
    "eval", "exec", "yaml.load", "yaml.unsafe_load", "yaml.full_load", "np.fromfile", "numpy.fromfile",
    "pd.read_pickle", "pandas.read_pickle", "os.system", "faiss.read_index", "torch.jit.load", "torch.package",
}  # fmt: skip

SOURCES = sorted([*ROOT.glob("raybio/**/*.py"), *ROOT.glob("jobs/**/*.py")])
BENCHMARKS = sorted(ROOT.glob("benchmarks/**/*.py"))
TESTS = sorted(ROOT.glob("tests/**/*.py"))
TREES = {path: ast.parse(path.read_text(), str(path)) for path in [*SOURCES, *BENCHMARKS, *TESTS]}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def unit_of(module: str) -> str:
    """The longest named part of the house that holds ``module``."""
    unit = module
    while unit not in FLOOR_BY_UNIT and "." in unit:
        unit = unit.rpartition(".")[0]
    return unit


def imported(path: Path, tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, module) of every import, those inside functions and by name included."""
    package = (
        module_name(path) if path.name == "__init__.py" else module_name(path).rpartition(".")[0]
    )
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                start = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*start, base] if base else start)
            yield node.lineno, base
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and dotted(node.func).rpartition(".")[2] in {
            "import_module",
            "__import__",
        }:
            name = node.args[0] if node.args else None
            yield node.lineno, name.value if isinstance(name, ast.Constant) else "(computed)"


def dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def where(path: Path, line: int, text: str) -> str:
    return f"{path.relative_to(ROOT)}:{line}: {text}"


def upward_imports(path: Path, tree: ast.AST) -> list[str]:
    unit = unit_of(module_name(path))
    problems = []
    for line, target in imported(path, tree):
        top = target.split(".")[0]
        if top in {"ray", "mlflow"} and unit != "raybio.runtime":
            problems.append(
                where(path, line, f"{target}: only raybio.runtime knows ray and mlflow")
            )
        if top in {"tests", "benchmarks"} or (top == "jobs" and unit != "jobs"):
            problems.append(
                where(path, line, f"{target}: the house does not know what stands around it")
            )
        if target == "(computed)":
            problems.append(where(path, line, "an import whose name is computed cannot be checked"))
        if FLOOR_BY_UNIT[unit] == 0 and top not in FLOOR_0_MAY_IMPORT:
            problems.append(
                where(
                    path, line, f"{target}: floor 0 knows the standard library, pydantic and yaml"
                )
            )
        other = unit_of(target)
        if top != "raybio" or other == unit:
            continue
        here, there = FLOOR_BY_UNIT[unit], FLOOR_BY_UNIT.get(other, 99)
        if there > here:
            problems.append(where(path, line, f"floor {here} imports {target} of floor {there}"))
        elif there == here and here in SIBLINGS_ARE_STRANGERS:
            problems.append(where(path, line, f"{unit} imports its sibling {other}"))
    return problems


def unpickling(path: Path, tree: ast.AST) -> list[str]:
    problems = [
        where(path, line, f"imports {target}, which can run what it reads")
        for line, target in imported(path, tree)
        if target.split(".")[0] in UNPICKLERS
    ]
    for node in ast.walk(tree):
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


def test_every_module_stands_on_a_known_floor():
    strangers = [
        str(path.relative_to(ROOT))
        for path in SOURCES
        if unit_of(module_name(path)) not in FLOOR_BY_UNIT
    ]
    unnamed = [
        str(p.relative_to(ROOT))
        for p in SOURCES
        if module_name(p).count(".") and unit_of(module_name(p)) == "raybio"
    ]
    assert strangers + unnamed == []


@pytest.mark.parametrize("path", SOURCES, ids=module_name)
def test_imports_only_go_down(path):
    assert upward_imports(path, TREES[path]) == []


@pytest.mark.parametrize(
    ("module", "code", "is_wrong"),
    [
        ("raybio/data/x.py", "def f():\n    from raybio.encoders import y", True),
        ("raybio/data/x.py", "from ..training import step", True),
        ("raybio/data/x.py", "from raybio import systems", True),
        ("raybio/data/x.py", "import importlib\nimportlib.import_module('ray')", True),
        ("raybio/training/x.py", "def f():\n    import ray.train", True),
        ("raybio/systems/x.py", "from mlflow import MlflowClient", True),
        ("raybio/config.py", "import numpy", True),
        ("jobs/x.py", "import ray", True),
        (
            "raybio/data/x.py",
            "from . import y\nfrom raybio.methods.sppt.graph.csr import Graph\nfrom raybio.core.errors import DataError",
            False,
        ),
        ("raybio/runtime/x.py", "import ray\nfrom raybio.methods import METHODS", False),
        ("raybio/protocols.py", "from raybio.core.batch import Batch", False),
    ],
)
def test_the_rule_about_imports_finds_what_it_should(module, code, is_wrong):
    assert bool(upward_imports(ROOT / module, ast.parse(code))) == is_wrong


def test_the_systems_import_neither_ray_nor_mlflow_nor_what_training_has_no_use_for():
    """Every training worker waits for these imports."""
    unwanted = {"ray", "mlflow", "matplotlib", "sklearn", "scipy.stats", "faiss"}
    code = f"import sys, raybio.methods; print(sorted({unwanted} & sys.modules.keys()))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=1500
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("path", [*SOURCES, *BENCHMARKS], ids=module_name)
def test_nothing_that_is_read_can_run_code(path):
    found = unpickling(path, TREES[path])
    if path == ROOT / READS_PICKLES:
        # Others write them, and a list of names says what they may ask for; its tests have one that asks for more.
        assert len(found) == 1 and "find_class" in path.read_text()
    else:
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
    assert bool(unpickling(ROOT / "raybio/data/x.py", ast.parse(code))) == is_wrong


def test_every_folder_says_what_lives_in_it():
    folders = {path.parent for path in SOURCES if path.parent != ROOT / "raybio"} | {
        ROOT / "tests",
        ROOT / "benchmarks",
    }
    assert [
        str(folder.relative_to(ROOT))
        for folder in sorted(folders)
        if not (folder / "README.md").is_file()
    ] == []


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
