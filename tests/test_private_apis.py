"""The private names of other packages that raybio uses: an upgrade of one needs a look at each.

They are read from the syntax trees: modules and names with a leading underscore that are imported,
attributes with one that raybio defines nowhere, and private methods of other packages' classes that
a subclass overrides. A new use fails here: do without it, or add it to ``KNOWN``.
"""

import ast
import importlib
from collections.abc import Iterator

from tests.paths import ROOT
from tests.sources import nodes, package_trees

DOCUMENTED = {"_asdict", "_replace", "_fields", "_make", "_exit"}
"""Names that are public in spite of their underscore: of named tuples, and ``os._exit``."""

KNOWN = {
    # Ray: authentication by token is switched on after ray was imported.
    "ray._raylet.Config",
    # Ray: preflight predicts what ``ray job submit`` uploads, by Ray's own rules.
    "ray._private.ray_constants.DASHBOARD_CLIENT_MAX_SIZE",
    "ray._private.ray_constants.RAY_RUNTIME_ENV_IGNORE_GITIGNORE",
    "ray._private.ray_constants.get_runtime_env_default_excludes",
    "ray._private.runtime_env.packaging._dir_travel",
    "ray._private.runtime_env.packaging._get_excludes",
    # Ray Data: the output queue of a stream, by which it pauses.
    "._output_node",
    # Ray Train: a node's end is announced; the public call is a barrier of all workers.
    "ray.train.v2._internal.execution.context.get_train_context",
    # Ray core: the same for trials, which Ray Train does not start. (ray._private.state)
    "._private",
    # Ray Tune: brackets by settings, and population-based training that ends at the last step.
    "._brackets",
    "._rungs",
    "._trial_info",
    "._trial_state",
    "PopulationBasedTraining._exploit",
    # Ray Tune: a progress reporter that prints nothing.
    "TrialProgressCallback._print",
    # transformers: how attention is computed, and whether a model can be given another way.
    "._supports_sdpa",
    "._attn_implementation",
    # torch: one kernel for all gradients, and for all parameters of a bucket.
    "._foreach_mul_",
    "._foreach_copy_",
    # torch: a size that a compiled graph takes as it comes, as its documentation says to declare it.
    "._dynamo",
    # torch: attention with dropout over packed sequences, which ``varlen_attn`` has no argument for.
    "._flash_attention_forward",
    # torch: whether the running backward pass reaches a parameter, as register_multi_grad_hook asks
    # with a hook more for each.
    "._C",
    "._will_engine_execute_node",
}


def is_private(name: str) -> bool:
    """Return whether a name has one leading underscore and is not documented."""
    return name.startswith("_") and not name.startswith("__") and name not in DOCUMENTED


def has_private_part(path: str) -> bool:
    """Return whether a part of a dotted path is private."""
    return any(is_private(part) for part in path.split("."))


def imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield (local name, dotted path) of each import that is not raybio's."""
    for node in nodes(tree):
        if isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("raybio"):
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.asname or alias.name, alias.name


def defined(tree: ast.AST) -> Iterator[str]:
    """Yield every name that a module defines: functions, classes, variables and attributes."""
    for node in nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def private_names(tree: ast.AST, own: set[str]) -> Iterator[str]:
    """Yield the private names of other packages in a module; ``own`` are those raybio defines."""
    path_by_name = dict(imported(tree))
    yield from filter(has_private_part, path_by_name.values())
    for node in nodes(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in own:
            yield f".{node.attr}"
        elif isinstance(node, ast.ClassDef):
            yield from overridden(node, path_by_name)


def overridden(node: ast.ClassDef, path_by_name: dict[str, str]) -> Iterator[str]:
    """Yield the private methods of another package's class that a subclass overrides."""
    own = [item.name for item in node.body if isinstance(item, ast.FunctionDef)]
    private = list(filter(is_private, own))
    for base in map(ast.unparse, node.bases):
        module, _, name = path_by_name.get(base, "").rpartition(".")
        if module and private:
            parent = getattr(importlib.import_module(module), name)
            for method in private:
                if hasattr(parent, method):
                    yield f"{name}.{method}"


def test_private_names_of_other_packages_are_the_known_ones():
    package = ROOT / "raybio"
    trees = [tree for path, tree in package_trees().items() if path.is_relative_to(package)]
    own = {name for tree in trees for name in defined(tree)}
    assert {name for tree in trees for name in private_names(tree, own)} == KNOWN


def test_the_search_finds_private_names():
    code = """
import mlflow._internal.client
from threading import Thread
from ray._private.state import nodes
from ray.train import _checkpoint
from raybio.core import _own
model._tied_weights_keys
self._mine
pair._asdict()
class Ours(Thread):
    def _bootstrap(self): ...
    def _new(self): ...
"""
    assert sorted(private_names(ast.parse(code), {"_mine"})) == [
        "._tied_weights_keys",
        "Thread._bootstrap",
        "mlflow._internal.client",
        "ray._private.state.nodes",
        "ray.train._checkpoint",
    ]
