"""What single methods need is imported where it is used, and named where it is missing."""

import subprocess
import sys

import pytest

from raybio.core.errors import ConfigError
from raybio.core.extras import from_extra
from tests.paths import ROOT

WORKER = """
import importlib, sys
for name in ("mlflow", "numba", "lmdb", "torch_geometric"):
    sys.modules[name] = None
import raybio.runtime.run.worker
from raybio.core.errors import ConfigError
from raybio.methods import METHODS
for method in METHODS.values():
    importlib.import_module(method.system)
from raybio.methods.relation_graphs.encoders.graph_encoder import graph_convolution
try:
    graph_convolution()
except ConfigError as error:
    print(error)
"""


def test_workers_and_methods_load_without_mlflow_and_extras() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WORKER], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == ("torch-geometric is not installed: pip install 'raybio[graphs]'\n")


def test_a_missing_extra_is_named() -> None:
    with (
        pytest.raises(ConfigError, match=r"^lmdb is not installed: pip install 'raybio\[tape\]'$"),
        from_extra("lmdb", "tape"),
    ):
        import no_such_module_anywhere  # noqa: F401
