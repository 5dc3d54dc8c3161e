"""The command ``raybio``: what stands in its help, near matches, completion, and names of files."""

import ast
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from raybio.cli.app import run_app
from raybio.cli.main import Commands, app
from raybio.core.errors import ConfigError
from raybio.core.fields import fields
from raybio.core.search_space_file import SHIPPED, load_search_space
from raybio.core.version import VERSION
from raybio.methods import METHODS
from tests.jobs.test_options import apps, commands_of
from tests.paths import ROOT
from tests.script_process import Done, run_script
from tests.sources import nodes, package_trees


def raybio(folder: Path, *arguments: str, **environment: str) -> Done:
    return run_script("raybio.cli.main", folder, *arguments, COLUMNS="200", **environment)


def test_the_version_is_that_of_the_package(tmp_path: Path) -> None:
    shown = raybio(tmp_path, "--version")
    assert (shown.returncode, shown.stdout) == (0, f"raybio {VERSION}\n")
    as_module = run_script("raybio", tmp_path, "--version")
    assert (as_module.returncode, as_module.stdout) == (0, shown.stdout)
    # Where the package gets it from, and those who cite it or build images of it.
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["dynamic"] == ["version"]
    source = project["tool"]["setuptools"]["dynamic"]["version"]
    assert source == {"attr": "raybio.core.version.VERSION"}
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == VERSION
    for path in ("docs/cluster.md", "deploy/kuberay/Dockerfile", "deploy/kuberay/rayjob.yaml"):
        tags = re.findall(r"/raybio:([\w.]+)", (ROOT / path).read_text(encoding="utf-8"))
        assert set(tags) == {VERSION}, path


def test_help_lists_every_command_and_every_method(tmp_path: Path) -> None:
    shown = raybio(tmp_path, "--help").stdout
    for name, entry in Commands.entries.items():
        assert re.search(rf"\b{name} +{re.escape(entry.summary)}", shown)
    shown = raybio(tmp_path, "train", "--help").stdout
    for name, method in METHODS.items():
        assert re.search(rf"\b{name} +{re.escape(method.about)}", shown)


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (["swep"], "sweep"),
        (["train", "sppt_protien"], "sppt_protein"),
        (["evaluate", "zero-shott"], "zero-shot"),
        (["prepare", "download", "strin"], "string"),
        (["demo", "sppt_protien", "--dry-run"], "sppt_protein"),
        (["sweep", "sppt_protien", "--dry-run"], "sppt_protein"),
    ],
)
def test_a_mistyped_command_is_refused_with_the_nearest_one(
    words: list[str], near: str, tmp_path: Path
) -> None:
    refused = raybio(tmp_path, *words)
    assert refused.returncode == 2
    assert f"Did you mean {near!r}" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["stderr", "stdout"]


def test_help_shows_five_settings_and_an_example_and_says_where_the_others_are() -> None:
    for name, method in METHODS.items():
        known = {field.path: field for field in fields(method.config)}
        assert len(set(method.first_settings)) == 5
        assert set(method.first_settings) <= known.keys()
        short = CliRunner().invoke(app, ["train", name, "--help"], terminal_width=200).output
        listed = re.findall(r"^  ([a-z_.0-9]+)  \S", short, re.MULTILINE)
        assert listed == list(method.first_settings)
        flat = re.sub(r"[\s│]+", " ", short)
        assert f"Example: raybio train {name} " in flat
        if name == "finetune":
            # A trained encoder would collapse at the demo's rate.
            assert "--init MODEL --set optim.peak_lr=0.0001" in flat
        assert "--tracking-uri" not in short
        assert f"raybio train {name} --help-all" in flat
        complete = CliRunner().invoke(app, ["train", name, "--help-all"]).output
        assert "--tracking-uri" in complete
        for path in known:
            assert f"\n  {path}  " in complete


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("raybio sw", {"sweep"}),
        ("raybio train sppt_m", {"sppt_mag"}),
        ("raybio train finetune --dry", {"--dry-run"}),
        ("raybio evaluate zero", {"zero-shot"}),
        ("raybio sweep sppt_protein --budg", {"--budget"}),
    ],
)
def test_a_shell_completes_commands_methods_and_options(
    line: str, wanted: set[str], tmp_path: Path
) -> None:
    done = raybio(
        tmp_path,
        _RAYBIO_COMPLETE="complete_bash",
        COMP_WORDS=line,
        COMP_CWORD=str(len(line.split()) - 1),
    )
    assert set(done.stdout.split()) == wanted, done


def test_search_spaces_come_with_the_package_and_a_file_of_that_name_is_read_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert {path.stem for path in SHIPPED.glob("*.yaml")} == set(METHODS)
    assert SHIPPED.resolve() == (ROOT / "search_spaces").resolve()
    configs = {name: method.config for name, method in METHODS.items()}
    assert load_search_space("sppt_mag", configs).method == "sppt_mag"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sppt_mag").write_text("method: finetune\nspace: 3\n")
    with pytest.raises(ConfigError, match="sppt_mag: space: got 3"):
        load_search_space("sppt_mag", configs)
    with pytest.raises(ConfigError, match="none.yaml"):
        load_search_space("none.yaml", configs)


@cache
def texts_of_users() -> dict[str, list[str]]:
    """Return the texts in the package that users may read: constants that are no docstrings, by file."""
    found = {}
    for path, tree in package_trees().items():
        if not path.is_relative_to(ROOT / "raybio"):
            continue
        is_command = "cli" in path.parts
        others = {
            id(node.value)
            for node in nodes(tree)
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        }
        if is_command:  # the docstring of a command is its help
            others -= {
                id(node.body[0].value)
                for node in nodes(tree)
                if isinstance(node, ast.FunctionDef) and isinstance(node.body[0], ast.Expr)
            }
        found[str(path.relative_to(ROOT))] = [
            _joined(node)
            for node in nodes(tree)
            if isinstance(node, ast.Constant | ast.JoinedStr) and id(node) not in others
        ]
    for path in sorted((ROOT / "raybio").rglob("*.yaml")):
        found[str(path.relative_to(ROOT))] = [path.read_text(encoding="utf-8")]
    return found


def _joined(node: ast.Constant | ast.JoinedStr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    parts = [part.value if isinstance(part, ast.Constant) else "{}" for part in node.values]
    return "".join(map(str, parts))


ONLY_IN_A_CLONE = re.compile(
    r"(?<!api/)\b(jobs|docs|search_spaces|deploy|tests|benchmarks)/|\b\w+\.py\b|\.toml\b"
)
COMMAND = re.compile(rf"\braybio ((?:{'|'.join(Commands.entries)})\b(?: [a-z_-]+\b(?![=.]))*)")


def test_no_text_names_a_file_that_an_installed_user_does_not_have() -> None:
    named = {
        f"{file}: {match.group()}"
        for file, texts in texts_of_users().items()
        for text in texts
        for match in ONLY_IN_A_CLONE.finditer(text)
    }
    assert ONLY_IN_A_CLONE.search("Prepare one with jobs/prepare.py.")
    assert named == set()


def test_every_command_that_a_text_names_exists() -> None:
    known = set()
    for words, command_app in apps():
        known.add(words)
        known |= {words.split()[0]}
        known |= {
            f"{words} {'download ' * (callback.__module__ == 'raybio.cli.download')}"
            + name.replace("_", "-")
            for name, callback in commands_of(command_app)
        }
    groups = {"prepare", "evaluate", "train"}
    named = {
        match.group(1)
        for texts in texts_of_users().values()
        for text in texts
        for match in COMMAND.finditer(re.sub(r"\s+", " ", text))
    }
    assert len(named) > 10
    wrong = set()
    for command in named:
        words = command.split()
        num_words = 1
        if words[0] in groups:
            num_words = 3 if words[1:2] == ["download"] else 2
        wanted = " ".join(words[:num_words])
        if wanted not in known:
            wrong.add(command)
    assert wrong == set()


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("embed --input a --out b --model m --precision fp16", ["fp16", "fp32", "tf32", "bf16"]),
        ("search index --embeddings a --out b --metric dot", ["dot", "cosine", "euclidean"]),
        ("explore m --pooling max", ["max", "cls", "mean"]),
        ("evaluate relation-map --model m --store s --out b --split trial", ["trial", "dev"]),
        (
            "evaluate probe --model m --benchmark b --out o --match letters",
            ["letters", "name", "cui"],
        ),
        ("evaluate baselines --model m --benchmark b --decode left", ["left", "confidence"]),
        ("prepare proteins --out a --held-out homolgy", ["homolgy", "random", "homology"]),
        ("train sppt_protein --device tpu", ["tpu", "auto", "cpu", "gpu"]),
        ("train sppt_synthetic --graph torrus", ["torrus", "cliques", "torus", "structural"]),
    ],
)
def test_a_word_that_is_no_choice_is_refused_with_the_choices(
    command: str,
    words: list[str],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        run_app(app, command.split())
    assert stop.value.code == 2
    message = capsys.readouterr().err
    assert f"Invalid value for '{command.split()[-2]}': " in message
    assert [word for word in words if word not in message] == []
    assert not list(tmp_path.iterdir())


def test_an_error_of_the_system_is_one_line_and_verbose_adds_the_traceback(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = tmp_path / "runs" / "a" / "run.json"
    folder.mkdir(parents=True)
    for more in ([], ["--verbose"]):
        with pytest.raises(SystemExit) as stop:
            run_app(
                app, ["train", "sppt_protein", "--name", "a", "--runs", f"{tmp_path}/runs", *more]
            )
        assert stop.value.code == 2
        *traceback, line = capsys.readouterr().err.splitlines()
        assert line.startswith("IsADirectoryError: [Errno 21] Is a directory: ")
        assert f"{folder}'" in line
        assert line.endswith(". --verbose shows where it happened") != bool(more)
        assert ("Traceback (most recent call last):" in traceback) == bool(more)


def test_a_name_of_a_file_that_is_too_long_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        run_app(app, ["predict", "run", "--input", "new.csv", "--out", "x" * 300])
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("DiskError: xxx")
    assert line.endswith("File name too long. Give a shorter name")
