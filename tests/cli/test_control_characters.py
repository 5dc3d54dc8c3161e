"""Control characters in data files and arguments do not reach the terminal, but raybio's colors do."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.script_process import run_script

PREPARE = ["prepare", "proteins", "--taxid", "9606", "--proteins", "p.fasta", "--out", "store"]
FOREIGN_IDS = "a\x1b[31m1\tb\x1b[2J"
SHOWN_IDS = r"e.tsv:121 (a\x1b[31m1 b\x1b[2J)"


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    records = [f">p{number}\nMKTAYIAKQR{'A' * number}\n" for number in range(40)]
    (tmp_path / "p.fasta").write_text("".join(records))
    links = [
        f"p{number}\tp{(7 * number + step) % 40}" for number in range(40) for step in (1, 2, 3)
    ]
    (tmp_path / "e.tsv").write_text("\n".join([*links, FOREIGN_IDS]) + "\n")
    return tmp_path


def on_terminal(folder: Path, *arguments: str) -> str:
    """Return what a command shows on a terminal, on stdout and stderr."""
    ours, theirs = os.openpty()
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    process = subprocess.Popen(
        [sys.executable, "-m", "raybio.cli.main", *arguments],
        cwd=folder,
        env=environment | {"TERM": "xterm-256color", "COLUMNS": "120"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    shown = bytearray()
    try:
        while block := os.read(ours, 65536):
            shown += block
    except OSError:
        pass  # Linux: all writers have closed it
    finally:
        os.close(ours)
        process.wait()
    return shown.decode()


def test_ids_of_a_file_are_shown_and_colors_stay(sources: Path) -> None:
    command = [*PREPARE, "--edges", "e.tsv"]
    done = run_script("raybio.cli.main", sources, *command)
    assert done.returncode == 0
    assert SHOWN_IDS in done.stdout
    assert "\x1b" not in done.stdout + done.stderr
    shown = on_terminal(sources, *command, "--force")
    assert SHOWN_IDS in shown
    assert "\x1b[33mskipped:\x1b[0m" in shown
    assert "\x1b[31m" not in shown and "\x1b[2J" not in shown


def test_a_path_in_an_error_and_one_that_typer_refuses_are_shown(sources: Path) -> None:
    done = run_script("raybio.cli.main", sources, *PREPARE, "--edges", "no\x1b[31m.tsv")
    assert done.returncode == 2
    assert done.stderr.startswith(r"ConfigError: --edges no\x1b[31m.tsv: no such file")
    shown = on_terminal(sources, *PREPARE, "more\x1b[31m.tsv")
    assert r"(more\x1b[31m.tsv)" in shown and "\x1b" not in shown
    # Errors of other command lines keep typer's colors.
    assert "\x1b[31m" in on_terminal(sources, *PREPARE, "more.tsv")
