"""Give mutated command lines to ``raybio``, in this process and the folder it is in.

The words are those of the documentation's commands. No work begins: trainings and sweeps get
``--dry-run``, and an audit hook stops whatever connects to a server or starts a process.
"""

import json
import os
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from matplotlib import font_manager  # noqa: F401, lists the fonts by a process
from typer.testing import CliRunner

from raybio.cli.app import run_app
from raybio.cli.main import app
from raybio.runtime.preflight import preflight
from tests.documentation import commands, write_shown_files
from tests.paths import ROOT

PIECES = [
    "", " ", "-", "--", "--no-such-option", "-x", "=", ",", ":", "a=b", "0", "-1", "1.5", "nan", "inf", "-inf",
    "1e999", "9" * 25, "9" * 5000, "null", "true", "[]", "{}", "[" * 300, "{a: 1}", "&a *a", "!!python/x", "*", "?",
    "[a", "%s", "{x}", "~", ".", "\n", "\r", "\t", "\x1b[31m", "\x07", "\x7f", "\x85", "\u2028", "\u202e", "é\U0001f9ec",
    "\udcff", "'", '"', "\\", "x" * 300,
]  # fmt: skip
"""Values and parts of values; ``\\udcff`` is how Python reads a byte that is no UTF-8. No word of a system has a NUL."""

SECONDS = 300
"""After which a command hangs."""

NUM_UNTIL_STEADY = 2000
"""Inputs after which the commands have imported what they need."""


class WorkBeganError(BaseException):
    """The command was accepted, and would work now. No handler of ``Exception`` catches it."""


CHANGED_PATHS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("os.mkdir", "os.remove", "os.rmdir", "os.truncate", "os.chmod"), (0,)),
    **dict.fromkeys(("shutil.rmtree", "sqlite3.connect"), (0,)),
    **dict.fromkeys(("os.symlink", "os.link"), (1,)),
    "os.rename": (0, 1),
}
"""Audit events, and which of their arguments are paths that change."""


def refuse_work(event: str, arguments: tuple[Any, ...]) -> None:
    """Stop what would start work or write elsewhere: an audit hook."""
    if event in ("socket.connect", "subprocess.Popen", "os.fork", "os.posix_spawn", "os.exec"):
        raise WorkBeganError(event)
    changed_paths = [arguments[position] for position in CHANGED_PATHS.get(event, ())]
    if event == "open":
        path, _, flags = arguments
        if isinstance(path, str | bytes) and flags & (os.O_WRONLY | os.O_RDWR):
            changed_paths = [path]
    for path in changed_paths:
        absolute = os.path.abspath(os.fsdecode(path))
        own = (os.getcwd(), os.environ["HOME"], os.environ["TMPDIR"], os.devnull)
        # Modules that are imported late may be compiled now.
        if not absolute.startswith(own) and "__pycache__" not in absolute:
            raise AssertionError(f"{event} of {absolute}, outside of {own}")


def refuse_checks(*arguments: Any, **options: Any) -> None:
    raise WorkBeganError("preflight")


def changed(words: list[str], others: list[str], rng: np.random.Generator) -> list[str]:
    """Return the words of a command with one change."""
    words = list(words)
    at = int(rng.integers(len(words)))
    piece = PIECES[int(rng.integers(len(PIECES)))]
    name, equals, value = words[at].partition("=")
    cut = int(rng.integers(len(words[at]) + 1))
    new: list[list[str]] = [
        [],
        [words[at]] * 2,
        [others[int(rng.integers(len(others)))]],
        [piece],
        [words[at], piece],
        [words[at][:cut] + piece + words[at][cut:]],
        [words[at][:cut] + words[at][cut + 1 :]],
        [name + equals + (piece if equals else "=" + piece)],
        [f"{name}{equals}{value},{piece}"],
    ]
    words[at : at + 1] = new[int(rng.integers(len(new)))]
    if rng.random() < 0.1 and len(words) > 1:
        first, second = rng.integers(len(words), size=2)
        words[first], words[second] = words[second], words[first]
    return words


def without_work(words: list[str]) -> list[str]:
    """Return a command with ``--dry-run``, where no other word can take it as its value."""
    if words[0] in ("train", "demo"):
        return [*words[:2], "--dry-run", *words[2:]]
    if words[0] == "sweep":
        return [words[0], "--dry-run", *words[1:]]
    return words


def exit_code(words: list[str]) -> tuple[int, str]:
    """Return how a command ends, -1 if its work begins, and what it prints."""
    code: Any = None
    with CliRunner().isolation() as (*_, output):
        try:
            run_app(app, words)
        except SystemExit as stop:
            code = stop.code
        except WorkBeganError:
            code = -1
        text = output.getvalue().decode(errors="replace")
    return code, text


def too_long(*_: object) -> None:
    raise AssertionError(f"no end after {SECONDS} s")


def main(num_inputs: str, seed: str) -> None:
    """Print how often each exit code was met, and by how many MiB the resident set grew after ``NUM_UNTIL_STEADY``.

    Args:
        num_inputs: mutated commands; 0: one of each command of the documentation.
        seed: of the changes.
    """
    folder = Path.cwd()
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    for name in ("your_data.md", "benchmark.md"):
        write_shown_files(folder, (ROOT / "docs" / name).read_text(encoding="utf-8"))
    # Buckets are reached by a library that no audit hook sees.
    sound = [words for page in pages for words in commands(page) if "://" not in " ".join(words)]
    others = [word for words in sound for word in words]
    rng = np.random.default_rng(int(seed))
    signal.signal(signal.SIGALRM, too_long)
    preflight.preflight = refuse_checks  # type: ignore[assignment]
    sys.addaudithook(refuse_work)
    codes: Counter[int] = Counter()
    resident_bytes = []
    number_of_inputs = int(num_inputs) or len(sound)
    for number in range(number_of_inputs):
        words = sound[number % len(sound)]
        for _ in range(int(rng.integers(1, 4))):
            words = changed(words, others, rng) or ["train"]
        words = without_work(words)
        signal.alarm(SECONDS)
        try:
            code, text = exit_code(words)
        except Exception as error:
            raise AssertionError(f"input {number}: {words!r}") from error
        signal.alarm(0)
        if code not in (-1, 0, 2) or "Traceback" in text:
            raise AssertionError(f"input {number}: {words!r} ends with {code}: {text[-3000:]!r}")
        codes[code] += 1
        if number >= NUM_UNTIL_STEADY or number + 1 == number_of_inputs:
            resident_bytes.append(psutil.Process().memory_info().rss)
    growth_mib = (resident_bytes[-1] - resident_bytes[0]) / 2**20
    print(json.dumps({"codes": codes, "growth_mib": growth_mib}))


if __name__ == "__main__":
    main(*sys.argv[1:])
