"""The wheel, installed into an empty folder: commands and Python work without the clone.

Dependencies are those of the tests; only raybio is the wheel's.
"""

import os
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

from raybio.core.version import VERSION
from raybio.methods import METHODS
from raybio.store.store import Store
from tests.minilm import WHY_NOT, minilm_folder
from tests.paths import ROOT

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(
        int(version("setuptools").partition(".")[0]) < 77, reason="building wants setuptools 77"
    ),
]

ENCODE = """
import sys
import raybio
from transformers import AutoModel, AutoTokenizer

folder, home = sys.argv[1:]
assert raybio.__file__.startswith(home), raybio.__file__
texts = ["Asthma in early life.", "Hypersensitivity"]
tokens = AutoTokenizer.from_pretrained(folder)(texts, padding=True, return_tensors="pt")
state_NLD = AutoModel.from_pretrained(folder)(**tokens).last_hidden_state
mask_NL1 = tokens["attention_mask"][..., None]
mean_ND = (state_NLD * mask_NL1).sum(dim=1) / mask_NL1.sum(dim=1)
plain_ND = (mean_ND / mean_ND.norm(dim=1, keepdim=True)).detach().numpy()
difference = abs(raybio.load(folder).encode(texts) - plain_ND).max()
assert difference < 1e-5, difference
"""


def call(*command: str, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        command,
        cwd=cwd,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    assert done.returncode == 0, (command, done.stdout[-2000:], done.stderr[-2000:])
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from a copy of the sources: a build leaves files behind."""
    folder = tmp_path_factory.mktemp("wheel")
    sources = folder / "sources"
    sources.mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, sources)
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("raybio", "search_spaces"):
        shutil.copytree(ROOT / name, sources / name, ignore=ignored)
    options = ["--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    call(sys.executable, "-m", "pip", "wheel", ".", *options, "-w", str(folder), cwd=sources)
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_holds_the_package_and_its_data_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    wanted = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "raybio").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    wanted |= {f"raybio/search_spaces/{path.name}" for path in ROOT.glob("search_spaces/*.yaml")}
    assert wanted >= {"raybio/py.typed", *(f"raybio/search_spaces/{name}.yaml" for name in METHODS)}
    assert {name for name in names if ".dist-info/" not in name} == wanted


def test_an_installed_wheel_works_in_an_empty_folder(
    wheel: Path, tmp_path: Path, tiny_store: Store
) -> None:
    home = tmp_path / "site"
    options = ["--no-deps", "--no-index", "--disable-pip-version-check", "--target", str(home)]
    call(sys.executable, "-m", "pip", "install", *options, str(wheel), cwd=tmp_path)
    empty = tmp_path / "empty"
    empty.mkdir()

    def raybio(*arguments: str) -> str:
        script = str(home / "bin" / "raybio")
        return call(sys.executable, script, *arguments, cwd=empty, PYTHONPATH=str(home))

    assert raybio("--version") == f"raybio {VERSION}\n"
    trials = raybio("sweep", "sppt_protein", "--dry-run")
    assert "\n12 trials of " in trials
    recipes = raybio(
        "train", "sppt_protein", "--recipe", "small", "--dry-run", "--store", str(tiny_store.path)
    )
    assert "2 runs, 2 not finished" in recipes
    assert list(empty.iterdir()) == []
    assert "2 runs, 2 not finished" in raybio("demo", "--dry-run")
    assert [path.name for path in empty.iterdir()] == ["stores"]
    script = tmp_path / "encode.py"
    script.write_text(ENCODE)
    if minilm_folder() is None:
        pytest.skip(WHY_NOT)
    model = [str(minilm_folder()), str(home)]
    call(sys.executable, "-W", "ignore", str(script), *model, cwd=empty, PYTHONPATH=str(home))
