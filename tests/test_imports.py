"""The import rules of the tree, read from the syntax trees. ``docs/architecture.md`` states them in words."""

import ast
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import typer

import raybio
from raybio.store.store import Store
from tests.paths import ROOT
from tests.sources import nodes, package_trees, parse

LEVEL = {
    "core": 0,
    "ops": 1,
    "store": 2,
    "encoders": 2,
    "training": 3,
    "evaluation": 3,
    "methods": 4,
    "runtime": 5,
    "benchmark": 6,
    "experiments": 6,
    "cli": 7,
}
"""A layer imports those of lower levels. Layers of one level do not know each other."""

KERNEL = {layer for layer, level in LEVEL.items() if level < LEVEL["methods"]}
LIGHT = [
    "raybio",
    "raybio.methods",
    "raybio.core.config",
    "raybio.core.search_space",
    "raybio.cli.benchmark",
    "raybio.cli.compare",
    "raybio.cli.demo",
    "raybio.cli.embed",
    "raybio.cli.explore",
    "raybio.cli.export",
    "raybio.cli.evaluate",
    "raybio.cli.main",
    "raybio.cli.metrics_files",
    "raybio.cli.predict",
    "raybio.cli.preflight",
    "raybio.cli.prepare",
    "raybio.cli.push",
    "raybio.cli.sweep",
    "raybio.cli.train",
    "raybio.runtime.run.options",
    "raybio.runtime.tune.plan",
    "raybio.runtime.tune.trial",
]
"""What listing methods, ``--help``, a misspelt setting and ``--dry-run`` import."""


CORE_MAY_IMPORT = {"raybio", "numpy", "pydantic", "yaml", *sys.stdlib_module_names}
CORE_WITH_TORCH = {"raybio.core.batch", "raybio.core.interfaces", "raybio.core.digest"}
"""Tensors are part of what these define."""

IMPORTS_BY_NAME = {
    "raybio",
    "raybio.cli.lazy",
    "raybio.training.method",
    "raybio.benchmark.suite",
}
"""Import modules that a table of functions, commands or tasks names, or a ``Method``, which may be
another package's."""

IMPORTING = ("import_module", "__import__")
"""Functions that import a module by its name."""

HEAVY = {
    *(
        "torch",
        "transformers",
        "pyarrow",
        "ray",
        "mlflow",
        "matplotlib",
        "scipy",
        "sklearn",
        "faiss",
    ),
}


@cache
def modules() -> dict[str, ast.Module]:
    """Return the syntax tree of every module of raybio and of every job, by its name."""
    trees = {}
    for path, tree in package_trees().items():
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        trees[name] = tree
    return trees


def called_name(call: ast.Call) -> str:
    """Return the last name of what is called; empty where it has none."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def imports(tree: ast.AST, known: set[str]) -> Iterator[tuple[int, str]]:
    """Yield (line, module) of every import, those inside functions and by name included."""
    for node in nodes(tree):
        if isinstance(node, ast.Call) and called_name(node).endswith(IMPORTING):
            yield node.lineno, "(computed)"
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative imports are not used"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield node.lineno, whole if whole in known else str(node.module)


def broken_rules(module: str, tree: ast.AST, known: set[str]) -> list[str]:
    """Return what is wrong with the imports of a module."""
    _, layer, *rest = [*module.split("."), "", ""]
    problems = []
    for line, target in imports(tree, known):
        top, other, *other_rest = [*target.split("."), "", ""]
        where = f"{module}:{line} imports {target}"
        if top in ("ray", "mlflow") and layer != "runtime":
            problems.append(f"{where}: only raybio.runtime imports ray and mlflow")
        if target == "(computed)" and module not in IMPORTS_BY_NAME:
            problems.append(f"{where}: an import by name cannot be checked")
        is_light = layer == "core" and module not in CORE_WITH_TORCH
        if is_light and top not in {*CORE_MAY_IMPORT, "(computed)"}:
            problems.append(f"{where}: core imports the standard library, numpy, pydantic and yaml")
        if top in ("tests", "benchmarks", "jobs"):
            problems.append(f"{where}: the package does not import what stands around it")
        if top != "raybio" or layer not in LEVEL or other not in LEVEL:
            continue
        if LEVEL[other] > LEVEL[layer]:
            problems.append(f"{where}: imports only go down")
        elif LEVEL[other] == LEVEL[layer] and other != layer:
            problems.append(f"{where}: {layer} and {other} do not know each other")
        if layer == other == "methods" and rest[0] and rest[0] != other_rest[0]:
            problems.append(f"{where}: a method does not import another one")
        if layer == "runtime" and other == "methods" and other_rest[0]:
            problems.append(f"{where}: runtime imports the table raybio.methods alone")
    return problems


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return groups of modules that import each other, by removing modules that nobody waits for."""
    waiting = {module: set(targets) for module, targets in graph.items()}
    while free := [module for module, targets in waiting.items() if not targets & waiting.keys()]:
        for module in free:
            del waiting[module]
    return [sorted(waiting)] if waiting else []


def folder_of_method(module: str) -> str:
    """Return the folder of a method's module; empty at the method's top and elsewhere."""
    parts = module.split(".")
    return ".".join(parts[:4]) if parts[1:2] == ["methods"] and len(parts) > 4 else ""


def between_folders(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return which folders of a method the folders of that method import."""
    folders = defaultdict(set)
    for module, targets in graph.items():
        folder = folder_of_method(module)
        folders[folder] |= {folder_of_method(target) for target in targets} - {folder, ""}
    folders.pop("", None)
    return folders


def test_imports_go_down_and_methods_do_not_know_each_other():
    trees = modules()
    known = set(trees)
    problems = [
        problem for name, tree in trees.items() for problem in broken_rules(name, tree, known)
    ]
    graph = {
        name: {target for _, target in imports(tree, known) if target in known} - {name}
        for name, tree in trees.items()
    }
    # Importing a module imports its packages, whose __init__ is empty except for the table of methods.
    graph["raybio.methods"] = {name for name in graph["raybio.methods"] if name.endswith(".method")}
    assert problems == []
    assert cycles(graph) == []
    assert cycles(between_folders(graph)) == []


def test_every_module_is_in_a_layer_and_every_package_has_a_readme():
    layers = {name.split(".")[1] for name in modules() if name.count(".") and name[:6] == "raybio"}
    # ``python -m raybio`` calls the command line.
    assert layers == {*LEVEL, "__main__"}
    packages = {path.parent for path in (ROOT / "raybio").rglob("__init__.py")}
    assert [
        str(p.relative_to(ROOT)) for p in sorted(packages) if not (p / "README.md").exists()
    ] == []


def test_a_module_of_the_kernel_serves_more_than_one_method():
    trees = modules()
    users = defaultdict(set)
    for name, tree in trees.items():
        for _, target in imports(tree, set(trees)):
            users[target].add(name)
    lonely = []
    for name, tree in trees.items():
        parts = name.split(".")
        if len(parts) < 3 or parts[1] not in KERNEL or not tree.body:
            continue
        if any(
            isinstance(node, ast.If) and "__main__" in ast.dump(node.test) for node in tree.body
        ):
            continue  # a command, which users call
        # A command of one method counts as that method.
        using = {
            ("methods", user.split(".")[-1])
            if user.startswith("raybio.cli.commands.")
            else tuple(user.split(".")[1:3])
            for user in users[name]
        }
        if len(using) == 1 and next(iter(using))[0] == "methods":
            lonely.append(f"{name} serves {'.'.join(next(iter(using)))} alone: move it there")
        if not using:
            lonely.append(f"{name} serves nobody")
    assert lonely == []


RUN_COMMANDS = """
import contextlib, io, json, runpy, sys
from raybio.cli.main import main
sys.path.insert(0, "jobs")  # as Python does for a script
for words, code, heavy in json.loads(sys.argv[1]):
    script = words[0] if words[0].endswith(".py") else None
    sys.argv = words if script else ["raybio", *words]
    output = io.StringIO()
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            runpy.run_path(script, run_name="__main__") if script else main()
    except SystemExit as exit:
        assert exit.code == code, (words, exit.code, output.getvalue())
    loaded = sorted(set(heavy) & sys.modules.keys())
    assert not loaded, (words, loaded)
"""
"""Run commands one after the other in one process; stop at the first that loads a heavy module."""


def commands_before_a_start() -> Iterator[tuple[list[str], int]]:
    """Yield (words, exit code) of command lines that start nothing."""
    from raybio.cli import evaluate_models
    from raybio.cli.commands import (
        biostransformers,
        contrastive_probe,
        mtb_mccl,
        relation_graphs,
        sppt,
    )
    from raybio.cli.main import Commands
    from raybio.cli.train import Trainings

    for path in sorted((ROOT / "jobs").glob("*.py")):
        if path.stem != "launch":
            yield [str(path), "--help"], 0
    yield ["--help"], 0
    for name in Commands.entries:
        yield [name, "--help"], 0
    for name in Trainings.entries:
        yield ["train", name, "--help"], 0
        yield ["train", name, "--help-all"], 0
    of_methods = (biostransformers, contrastive_probe, mtb_mccl, relation_graphs, sppt)
    for module in (evaluate_models, *of_methods):
        for group in ("evaluate", "prepare"):
            for command in getattr(module, group, typer.Typer()).registered_commands:
                yield [group, command.callback.__name__.replace("_", "-"), "--help"], 0
    for name in ("string", "tree-of-life", "ogb-mag", "openalex", "pubmed"):
        yield ["prepare", "download", name, "--help"], 0
    for name in ("medlama", "hardness", "statistics"):
        yield ["prepare", name, "--help"], 0
    yield [str(ROOT / "jobs/contrastive_probe.py"), "probe", "--help"], 0
    yield ["train", "sppt_protein", "--set", "optim.peak_lrr=1"], 2
    yield ["train", "finetune", "scicit", "--data", "x"], 2
    for path in sorted((ROOT / "search_spaces").glob("*.yaml")):
        yield ["sweep", str(path), "--dry-run"], 0
        yield ["sweep", path.stem, "--set", "optim.peak_lrr=1"], 2


def refusals_of_models_and_stores(tiny_words: Store, folder: Path) -> Iterator[list[str]]:
    """Yield command lines that are refused once their paths are looked at."""
    from raybio.methods import METHODS

    (folder / "empty").mkdir()
    for name, method in METHODS.items():
        yield ["train", name, "--store", "nowhere"]
        if method.store.kind != tiny_words.kind:
            yield ["train", name, "--store", str(tiny_words.path)]
    yield ["evaluate", "relation-map", "--model", "./nowhere", "--store", "s", "--out", "o"]
    yield ["evaluate", "word-maps", "--relations", "./nowhere", "--store", "s", "--out", "o"]
    yield ["prepare", "pairs", "--input", "no*", "--out", "s"]
    empty = str(folder / "empty")
    yield ["train", "relation_graphs", "--store", str(tiny_words.path), "--init", empty]
    out = ["--out", str(folder / "report")]
    yield ["benchmark", "tfdif", *out]
    yield ["benchmark", "random", "--suite", "biomedicla", *out]
    for text in ("tasks: [", "tasks: [{task: label, name: own}]", "tasks: []"):
        suite = folder / f"{len(text)}.yaml"
        suite.write_text(text)
        yield ["benchmark", "random", "--suite", str(suite), *out]
    head = folder / "head"
    head.mkdir()
    (head / "head.json").write_text("{}")
    predict = ["predict", str(head), "--input"]
    yield [*predict, str(suite), "--out", str(folder / "new.csv")]
    yield [*predict, str(folder / "nowhere.tsv"), "--out", str(folder / "new.tsv")]
    embed = ["embed", "--run", "mine", "--input", str(suite), "--out"]
    yield [*embed, str(folder / "new.csv")]
    yield ["search", "query", empty, "--text", "MKT", "--model", empty]
    nowhere = ["--store", "nowhere"]
    yield ["evaluate", "relation-map", "--model", "some/hub-id", *nowhere, "--out", "o"]
    yield ["evaluate", "relation-probe", "--model", "some/hub-id", *nowhere]
    yield ["evaluate", "word-maps", "--relations", "runs/cldr", *nowhere, "--out", "o"]


def run(*arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=1500
    )
    assert done.returncode == 0, done.stderr


def test_modules_behind_help_and_refusals_import_nothing_heavy():
    imported = "; ".join(f"import {module}" for module in LIGHT)
    run(f"import sys; {imported}; assert not {HEAVY} & sys.modules.keys(), sys.modules.keys()")


def test_raybio_has_the_functions_that_it_lists_and_no_others() -> None:
    seen_by_type_checkers = {target for _, target in imports(modules()["raybio"], set(modules()))}
    lazy = raybio._MODULES
    assert {*lazy.values()} == {name for name in seen_by_type_checkers if ".runtime." in name}
    assert {*lazy, "__version__"} == {*raybio.__all__} <= {*dir(raybio)}
    assert [getattr(raybio, name).__module__ for name in lazy] == [*lazy.values()]
    with pytest.raises(AttributeError, match="'raybio' has no attribute 'trian'"):
        raybio.trian  # noqa: B018


def test_help_a_misspelt_setting_and_a_dry_run_load_nothing_heavy(
    tiny_words: Store, tmp_path: Path
):
    commands = [(*command, sorted(HEAVY)) for command in commands_before_a_start()]
    heavy = sorted(HEAVY - {"pyarrow"})  # stores are opened with it
    commands += [(words, 2, heavy) for words in refusals_of_models_and_stores(tiny_words, tmp_path)]
    run(RUN_COMMANDS, json.dumps(commands))


WATCHED = """
import json, os, sys
from raybio.cli.main import main
words, first = json.loads(sys.argv[1])
class Watched:
    encoding = "utf-8"
    lines = []
    def write(self, text):
        self.lines.append(text)
        return len(text)
    def flush(self): pass
    def isatty(self): return False
class EndAtTorch:
    def find_spec(self, name, *_):
        if name == "torch":
            os._exit(0 if Watched.lines[:1] == [first] else 4)
sys.meta_path.insert(0, EndAtTorch())
sys.stdout = Watched()
sys.argv = ["raybio", *words]
try: main()
finally: os._exit(3)
"""
"""Run a command up to the import of torch, which must come, and after its first line."""


def test_a_dry_run_with_a_store_prints_a_line_before_it_loads_torch(
    tiny_store: Store, tmp_path: Path
):
    store = str(tiny_store.path)
    given = ["--recipe", "small", "--set", "plan.global_batch_rows=16", "--dry-run"]
    given += ["--store", store]
    first = f"checking the trials against {store}"
    budget = ["--budget", "max_steps=200", "--budget", "grace_steps=200"]
    run(WATCHED, json.dumps([["sweep", "sppt_protein", *given, *budget], first]))
    first = "dry run: checking the settings against the store"
    runs = ["--runs", str(tmp_path)]
    run(WATCHED, json.dumps([["train", "sppt_protein", *given, *runs], first]))


def test_the_help_and_the_version_of_raybio_import_no_command():
    for option in ("--help", "--version", "swep"):
        run(
            "import sys; sys.argv = ['raybio', *sys.argv[1:]]\n"
            "from raybio.cli.main import Commands, main\n"
            "try: main()\n"
            "except SystemExit: pass\n"
            "loaded = {name for name in sys.modules if name.startswith('raybio.methods')}\n"
            "commands = {entry.load.args[0] for entry in Commands.entries.values()}\n"
            "loaded |= commands & sys.modules.keys()\n"
            f"assert not ({HEAVY} & sys.modules.keys()) | loaded, loaded",
            option,
        )


def defined_names(tree: ast.Module) -> set[str]:
    """Return the names that a module can give to others."""
    return {
        name
        for node in nodes(tree)
        for name in (
            getattr(node, "name", None),
            getattr(node, "asname", None),
            node.id if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else None,
        )
        if isinstance(name, str)
    }


def missing_names(tree: ast.AST) -> list[str]:
    """Return what a script imports from raybio that is not there."""
    return [
        f"line {node.lineno}: {node.module}.{alias.name}"
        for node in nodes(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "raybio"
        for alias in node.names
        if f"{node.module}.{alias.name}" not in modules()
        and alias.name not in defined_names(modules().get(str(node.module), ast.Module([], [])))
    ]


@pytest.mark.parametrize("script", sorted((ROOT / "benchmarks").glob("*.py")), ids=lambda p: p.name)
def test_a_script_of_the_benchmarks_imports_names_that_are_there(script: Path) -> None:
    """No type checker reads them, and most run only in the second tier."""
    assert missing_names(parse(script)) == []


def test_the_rules_find_what_they_should():
    wrong = {
        "raybio.store.x": "def f():\n    from raybio.encoders import text",
        "raybio.core.x": "from raybio.ops import vectors",
        "raybio.training.x": "import ray.train",
        "raybio.methods.sppt.x": "from raybio.methods.mtb_mccl.config import Config",
        "raybio.runtime.x": "from raybio.methods.sppt.table import LINK_RETRIEVAL",
        "raybio.cli.x": "from mlflow import MlflowClient",
        "jobs.x": "import ray",
        "raybio.core.y": "import torch",
        "raybio.evaluation.x": "importlib.import_module(name)",
    }
    right = {
        "raybio.runtime.x": "import ray\nfrom raybio.methods import METHODS",
        "raybio.methods.sppt.x": "from raybio.methods.sppt.config import PlanConfig",
        "raybio.cli.x": "from raybio.runtime.run.folder import RunFolder",
    }
    for module, code in wrong.items():
        assert broken_rules(module, ast.parse(code), set()), module
    for module, code in right.items():
        assert broken_rules(module, ast.parse(code), set()) == [], module
    assert missing_names(ast.parse("from raybio.training.loop import fit, fitted")) == [
        "line 1: raybio.training.loop.fitted"
    ]
    assert cycles({"a": {"b"}, "b": {"a"}, "c": {"a"}}) != []
    assert cycles({"a": {"b"}, "b": set()}) == []
    method = "raybio.methods.a"
    down = {f"{method}.x.one": {f"{method}.y.one", f"{method}.store"}, f"{method}.y.two": set()}
    assert cycles(between_folders(down)) == []
    assert cycles(between_folders(down | {f"{method}.y.two": {f"{method}.x.two"}})) != []


def test_a_store_is_opened_in_python_without_the_libraries_of_models(tiny_words: Store) -> None:
    """They took seconds."""
    code = f"import sys, raybio; assert raybio.open_store({str(tiny_words.path)!r}).num_rows"
    libraries = HEAVY - {"pyarrow"}
    run(f"{code}; assert not {libraries} & sys.modules.keys(), sys.modules.keys()")
