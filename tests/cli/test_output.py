"""Output that nobody reads, closed pipes and full disks, in processes of their own; letters that it does not take."""

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from raybio.cli.output import guarded_output

pytestmark = pytest.mark.usefixtures("answered_hangup")

SCRIPT = r"""
import errno, json, os, signal, sys, time
from pathlib import Path
import typer
from raybio.cli.app import run_app
from raybio.core.errors import RaybioError, StopFileError
from raybio.core.files import replace_text
from raybio.runtime.cluster.stop_signals import StopSignals

class Stopped(RaybioError):
    exit_code = 129

app = typer.Typer()

@app.command()
def run() -> None:
    print("first line", flush=True)
    sys.stdin.read()
    with StopSignals(Path("stop")) as signals:
        signals.is_starting = False
        for _ in range(3):
            print("a line of a run", file=sys.stderr, flush=True)
            print("another", flush=True)
        Path("seen.json").write_text(json.dumps([signals.caught, Path("stop").exists()]))
    if signals.caught:
        raise Stopped("stopped")

@app.command()
def short() -> None:
    sys.stdin.read()
    print("first line", flush=True)

@app.command()
def full() -> None:
    raise OSError(errno.ENOSPC, "No space left on device", os.path.abspath("run.json"))

@app.command()
def away(how: str, verbose: bool = False) -> None:
    try:
        raise ConnectionError("errno 111\x1b[31m")
    except ConnectionError as error:
        if how == "chained":
            raise RaybioError("the server is away") from error
        if how == "stopped":
            raise StopFileError("ended by a stop file") from error
        raise RaybioError("the server is away") from None

@app.command()
def broken() -> None:
    raise ValueError("a\x1b[31mb")

run_app(app, sys.argv[1:])
"""


def start(folder: Path, command: str, prefix: tuple[str, ...] = ()) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*prefix, sys.executable, "-c", SCRIPT, command],
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


@pytest.mark.parametrize("is_ignored", [False, True], ids=["", "nohup"])
def test_a_run_whose_output_nobody_reads_stops_in_order_but_under_nohup(
    tmp_path: Path, is_ignored: bool
) -> None:
    """As ``raybio train ... 2>&1 | head -1``."""
    process = start(tmp_path, "run", ("nohup",) if is_ignored else ())
    while process.stdout.readline() != b"first line\n":
        pass
    process.stdout.close()
    process.stdin.close()
    assert process.wait() == (0 if is_ignored else 129)
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert seen == ([[], False] if is_ignored else [[signal.SIGHUP], True])


def test_a_command_that_is_no_run_ends_as_before(tmp_path: Path) -> None:
    process = start(tmp_path, "short")
    process.stdout.close()
    process.stdin.close()
    assert process.wait() == 1


def test_progress_for_a_full_disk_is_dropped_and_its_error_is_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT]
    with open("/dev/full", "w") as full:
        done = subprocess.run([*command, "full"], cwd=tmp_path, stderr=full, check=False)
        assert done.returncode == 2
        done = subprocess.run(
            [*command, "run"],
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=full,
            check=False,
        )
        assert done.returncode == 0
    assert json.loads((tmp_path / "seen.json").read_text()) == [[], False]
    done = subprocess.run(
        [*command, "full"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    free = os.statvfs(tmp_path).f_bsize
    assert free
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"DiskError: {tmp_path}/run.json: No space left on device; ")
    assert line.endswith(" bytes are free there. Make room, then give the same command again")


@pytest.mark.parametrize("how", ["chained", "hidden"])
def test_verbose_adds_the_traceback_and_the_cause_of_an_error(tmp_path: Path, how: str) -> None:
    command = [sys.executable, "-c", SCRIPT, "away", how]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "RaybioError: the server is away\n")
    done = subprocess.run(
        [*command, "--verbose"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert r"ConnectionError: errno 111\x1b[31m" in lines
    assert lines[-1] == "RaybioError: the server is away"
    assert done.stdout == ""


def test_a_run_that_was_stopped_has_no_traceback(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, "away", "stopped", "--verbose"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "StopFileError: ended by a stop file\n")


def test_an_error_that_nobody_foresaw_keeps_its_traceback_with_printable_text(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-c", SCRIPT, "broken"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    first, *_, last = done.stderr.splitlines()
    assert first == "Traceback (most recent call last):"
    assert last == r"ValueError: a\x1b[31mb"


@pytest.mark.parametrize(
    ("encoding", "written"), [("utf-8", "é \\udcff\n"), ("ascii", "\\xe9 \\udcff\n")]
)
def test_letters_that_an_output_does_not_take_are_escaped(
    monkeypatch: pytest.MonkeyPatch, encoding: str, written: str
) -> None:
    """Python reads a byte of a file's name that is no UTF-8 as half of a character."""
    content = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(content, encoding))
    with guarded_output():
        print("é \udcff", flush=True)
    assert content.getvalue().decode(encoding) == written
