"""The wheel, installed into an empty folder: commands and Python work without the clone.

Dependencies are those of the tests; only raybio is the wheel's.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

from raybio.cli.main import Commands
from raybio.core.version import VERSION
from raybio.methods import METHODS
from raybio.store.store import Store
from tests.cli.test_main import ONLY_IN_A_CLONE
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

HELP = """
import json
import sys
import raybio
from raybio.cli.main import app
from typer.main import get_command
from typer.testing import CliRunner

assert raybio.__file__.startswith(sys.argv[1]), raybio.__file__
help_by_words = {}


def show(command, words):
    options = {name for parameter in command.params for name in parameter.opts}
    for option in ["--help", *({"--help-all"} & options)]:
        done = CliRunner().invoke(app, [*words, option], prog_name="raybio", terminal_width=200)
        assert done.exit_code == 0, (words, option, done.output, done.exception)
        help_by_words[" ".join([*words, option])] = done.output
    for name, inner in getattr(command, "commands", {}).items():
        show(inner, [*words, name])


show(get_command(app), [])
print(json.dumps(help_by_words))
"""
"""Prints the help of each command and group that the parser knows, in one process."""


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
    assert wheel.name.startswith(f"raybio-{VERSION}-")
    names = set(zipfile.ZipFile(wheel).namelist())
    wanted = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "raybio").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    wanted |= {f"raybio/search_spaces/{path.name}" for path in ROOT.glob("search_spaces/*.yaml")}
    assert wanted >= {"raybio/py.typed", *(f"raybio/search_spaces/{name}.yaml" for name in METHODS)}
    assert {name for name in names if ".dist-info/" not in name} == wanted


@pytest.fixture(scope="module")
def home(wheel: Path) -> Path:
    """Install the wheel into a folder of its own."""
    folder = wheel.parent / "site"
    options = ["--no-deps", "--no-index", "--disable-pip-version-check", "--target", str(folder)]
    call(sys.executable, "-m", "pip", "install", *options, str(wheel), cwd=wheel.parent)
    return folder


def test_the_help_of_every_installed_command_names_no_file_of_the_clone(
    home: Path, tmp_path: Path
) -> None:
    script = tmp_path / "help.py"
    script.write_text(HELP)
    empty = tmp_path / "empty"
    empty.mkdir()
    printed = call(sys.executable, str(script), str(home), cwd=empty, PYTHONPATH=str(home))
    help_by_words = json.loads(printed)
    for name in Commands.entries:
        assert f"{name} --help" in help_by_words
    for name in METHODS:
        assert f"train {name} --help-all" in help_by_words
    assert "prepare download string --help" in help_by_words
    named = set()
    for words, text in help_by_words.items():
        command = words.rpartition(" ")[0]
        assert re.search(rf"Usage: {re.escape(f'raybio {command}'.strip())}\s", text), words
        named |= {f"{words}: {match.group()}" for match in ONLY_IN_A_CLONE.finditer(text)}
    assert named == set()
    assert list(empty.iterdir()) == []


def test_an_installed_wheel_works_in_an_empty_folder(
    home: Path, tmp_path: Path, tiny_store: Store
) -> None:
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
