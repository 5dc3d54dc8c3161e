"""The scripts that set up a node: in a HOME of their own, with an old python3 in front."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from raybio.core.plain_yaml import parse_yaml
from tests.paths import ROOT

CLUSTER_FILES = [
    "cluster.yaml",
    "deploy/gcp.yaml",
    "deploy/azure.yaml",
    "deploy/own_machines.yaml",
]
TOOLS = [
    "bash",
    "cat",
    "chmod",
    "dirname",
    "env",
    "grep",
    "hostname",
    "mv",
    "rm",
    "sed",
    "sh",
    "sort",
    "uname",
]
OLD_PYTHON = """#!/bin/sh
[ "$1" = --version ] && echo "Python 3.6.9" && exit 0
echo "the machine's own python3 is 3.6.9" >&2
exit 99
"""


def write_tool(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def node(tmp_path) -> Path:
    """A machine: a home with what Ray copies there, and the tools of every Ubuntu."""
    for name in TOOLS:
        link = tmp_path / "tools" / name
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(shutil.which(name))
    write_tool(tmp_path / "tools" / "python3", OLD_PYTHON)
    home = tmp_path / "home"
    shutil.copytree(ROOT / "deploy", home / "raybio" / "deploy")
    for name in ("pyproject.toml", "constraints.txt", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, home / "raybio")
    (home / ".ray").mkdir()
    (home / ".ray" / "auth_token").write_text("token\n")
    (home / ".aws").mkdir()
    (home / ".aws" / "credentials").touch()
    (tmp_path / "pci").mkdir()
    return tmp_path


def give_uv(node: Path) -> None:
    uv = Path(sys.executable).parent / "uv"
    assert uv.is_file(), "pip install -e '.[dev]' brings uv"
    (node / "home" / ".local" / "bin").mkdir(parents=True)
    (node / "home" / ".local" / "bin" / "uv").symlink_to(uv)


def give_python(node: Path) -> None:
    """Put a Python 3.11 next to the old one, as machines with several have it."""
    (node / "tools" / "python3.11").symlink_to(os.path.realpath(sys.executable))


def give_device(node: Path, driver: str | None, status: int = 0) -> None:
    """Put an NVIDIA device into the machine; None: without a driver."""
    (node / "pci" / "0000:00:1e.0").mkdir(parents=True)
    (node / "pci" / "0000:00:1e.0" / "vendor").write_text("0x10de\n")
    if driver is not None:
        # What nvidia-smi prints of a machine with two of them.
        answer = f"#!/bin/sh\necho '{driver}'\necho '{driver}'\nexit {status}\n"
        write_tool(node / "tools" / "nvidia-smi", answer)


def run(node: Path, command: str, **environment: str) -> subprocess.CompletedProcess:
    """Run a command as Ray does: in a new shell that reads .bashrc; downloads are refused."""
    known = {"HOME": str(node / "home"), "PCI_DEVICES": str(node / "pci"), "UV_OFFLINE": "1"}
    # A login shell takes the PATH of this machine's /etc/profile.
    path = f"export PATH={shlex.quote(str(node / 'tools'))}"
    shell = ["bash", "--login", "-c", "-i", f"{path}; source ~/.bashrc 2>/dev/null; ({command})"]
    return subprocess.run(
        shell,
        env=known | environment,
        cwd=node / "home",
        capture_output=True,
        text=True,
        timeout=1500,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )


def refusal(done: subprocess.CompletedProcess) -> str:
    """Return the one line with which a script refuses."""
    assert done.returncode != 0, done.stdout
    (line,) = re.findall(r"^(?:setup_node|check_driver)\.sh: .+$", done.stderr, re.MULTILINE)
    return line


CHECK = "bash ~/raybio/deploy/check_driver.sh"
SETUP = "bash ~/raybio/deploy/setup_node.sh"


@pytest.mark.parametrize(
    ("build", "driver"),
    [
        ("cu126", "525.60.13"),
        ("cu126", "580.95.05"),
        ("cu128", "1000.1"),
        ("cu130", "580.65.06"),
        ("cpu", None),
    ],
)
def test_a_driver_that_runs_the_build_passes(node, build, driver):
    give_device(node, driver)
    done = run(node, f"{CHECK} {build}")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("build", "driver", "said"),
    [
        ("cu130", "570.133.20", ["570.133.20 found", "want 580.65.06", "cu126 runs from"]),
        ("cu126", "470.256.02", ["470.256.02 found", "want 525.60.13"]),
        ("cu126", "525.60.9", ["525.60.9 found", "want 525.60.13"]),
        ("cu126", None, ["no driver", "want 525.60.13", "machine image"]),
        ("cu126", "[N/A]", ["reports the driver '[N/A]'"]),
        ("cu118", "580.95.05", ["got build 'cu118'", "cu126"]),
        ("", "580.95.05", ["got build ''"]),
    ],
)
def test_a_driver_that_does_not_run_the_build_is_refused_before_anything_is_installed(
    node, build, driver, said
):
    give_device(node, driver)
    give_uv(node)
    line = refusal(run(node, f"{SETUP} '{build}' RAYBIO_RUNS=s3://mine/runs"))
    assert [text for text in said if text not in line] == []
    assert not (node / "home" / "venv").exists()


def test_a_driver_that_does_not_answer_is_refused_with_its_own_words(node):
    give_device(node, "Failed to initialize NVML: Driver/library version mismatch", status=18)
    line = refusal(run(node, f"{CHECK} cu126"))
    assert "Driver/library version mismatch" in line
    assert "reboot" in line


def test_a_machine_without_a_device_needs_no_driver(node):
    done = run(node, f"{CHECK} cu126")
    assert done.returncode == 0
    assert "no NVIDIA device" in done.stdout


@pytest.mark.parametrize(
    ("variable", "said"),
    [
        ("RAYBIO_RUNS=s3://YOUR-BUCKET/runs", "Write your own value"),
        ("RAYBIO_RUNS", "want NAME=VALUE"),
        ("RAYBIO_RUNS=", "want NAME=VALUE"),
        ("2=3", "want NAME=VALUE"),
    ],
)
def test_an_example_that_was_not_replaced_is_refused_before_anything_is_installed(
    node, variable, said
):
    give_uv(node)
    assert said in refusal(run(node, f"{SETUP} cpu {variable}"))
    assert not (node / "home" / "venv").exists()


@pytest.mark.parametrize("name", CLUSTER_FILES)
def test_the_commands_of_a_cluster_file_end_with_python_3_11_or_one_refusal(node, name):
    cluster = parse_yaml((ROOT / name).read_text())
    commands = cluster["setup_commands"]
    # As it stands, the file names a bucket that is nobody's.
    unchanged = [run(node, command) for command in commands]
    assert sum(done.returncode != 0 for done in unchanged) == 1
    assert "YOUR-" in refusal(next(done for done in unchanged if done.returncode != 0))

    commands = [re.sub(r"YOUR-[A-Z0-9-]+", "mine", command) for command in commands]
    (setup,) = [command for command in commands if "setup_node.sh" in command]
    # No uv, and no way to it.
    assert "uv" in refusal(run(node, setup))
    give_uv(node)
    # uv, and neither Python 3.11 nor a way to it.
    line = refusal(run(node, setup))
    assert "Python 3.11" in line
    assert "the machine's own: Python 3.6.9" in line
    # Python 3.11, and no way to packages.
    give_python(node)
    assert "packages cannot be installed" in refusal(run(node, setup))
    done = run(node, "~/venv/bin/python --version")
    assert done.stdout.startswith("Python 3.11.")


SMALL_PACKAGE = """
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"
[project]
name = "raybio"
version = "0.1.0"
[project.optional-dependencies]
gpu = []
aws = []
methods = []
[tool.setuptools.packages.find]
include = ["raybio*"]
"""


@pytest.mark.nightly
def test_a_node_gets_the_environment_and_each_update_of_the_code(node):
    """With a package without dependencies in place of raybio; setuptools is downloaded."""
    give_uv(node)
    give_python(node)
    home = node / "home"
    (home / ".bashrc").write_text("[[ $- == *i* ]] || return\nexport OWN=kept\n")
    (home / "raybio" / "pyproject.toml").write_text(SMALL_PACKAGE)
    code = home / "raybio" / "raybio" / "__init__.py"
    code.parent.mkdir()
    certificates = {name: os.environ[name] for name in os.environ if name.startswith("SSL_CERT")}
    online = {"UV_OFFLINE": "0", **certificates}
    # An environment of another Python is replaced.
    write_tool(home / "venv" / "bin" / "python", OLD_PYTHON)
    (home / "venv" / "pyvenv.cfg").write_text("version = 3.6.9\n")

    for value in ("1", "2"):
        code.write_text(f"VALUE = {value}\n")
        variables = f"RAYBIO_RUNS=s3://mine/runs{value} 'GREETING=a b; c'"
        done = run(node, f"{SETUP} cpu {variables}", **online)
        assert done.returncode == 0, done.stderr
        assert "Python 3.11." in done.stdout
        show = 'python -c "import raybio; print(raybio.VALUE)"; uv --version'
        shown = run(node, f'echo "$RAYBIO_RUNS,$GREETING,$RAY_AUTH_MODE,$OWN"; {show}', **online)
        expected = [f"s3://mine/runs{value},a b; c,token,kept", value]
        assert shown.stdout.splitlines()[:2] == expected, shown.stderr
        assert shown.stdout.splitlines()[2].startswith("uv ")
    assert (home / ".bashrc").read_text().count("raybio_environment") == 1


def test_the_tests_and_the_nodes_use_the_same_uv():
    script = (ROOT / "deploy" / "setup_node.sh").read_text()
    (version,) = re.findall(r"^uv_version=(\S+)$", script, re.MULTILINE)
    assert f'"uv=={version}"' in (ROOT / "pyproject.toml").read_text()
    assert f"uv=={version}\n" in (ROOT / "constraints.txt").read_text()
    assert f"uv=={version} " in (ROOT / "deploy" / "kuberay" / "Dockerfile").read_text()
