"""Apply each mutant of ``mutants.toml`` to a copy of the tree and run the tests that must notice it.

    python tests/mutants/run.py [--only WORDS]... [--again]

A mutant is killed if one of its tests fails (which passes without it), and survives if all pass. It is
hung if its tests do not end in time, and pass in time without it, right afterwards. Tests run in forks of a process that has imported the sources, in which the changed functions are replaced;
processes that tests start read the changed file. Results are kept in ``build/mutants/results.json`` and
hold as long as the mutant, its file and its tests stay as they are.
"""

import argparse
import contextlib
import fcntl
import gc
import hashlib
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
LIST = Path(__file__).parent / "mutants.toml"
BUILD = ROOT / "build" / "mutants"
LIMIT_SECONDS = 300.0
"""Tests that take longer hang. A mutant is hung only if they do not take longer without it."""

KILLED = "killed by "
HUNG = "hung: unchanged, its tests pass"
SURVIVED = "SURVIVED"
OUTCOMES = (KILLED, HUNG, SURVIVED)
"""Beginnings of the outcomes that hold as long as a mutant, its file and its tests stay as they are."""

PYTEST = (
    *("-q", "-m", "", "-p", "no:cacheprovider", "-p", "xdist", "-p", "pytest_timeout"),
    # Those of conftest.py, which are imported before pytest begins.
    *("-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning"),
)
"""Options; other plugins are not looked for, which takes longer than most tests."""


class Mutant(NamedTuple):
    """A change of one place, and the tests (files or node ids) that must notice it."""

    name: str
    file: str
    old: str
    new: str
    tests: list[str]

    def apply(self, text: str) -> str:
        """Return the text with the change.

        Raises:
            ValueError: if the old text does not occur once, or is the new one.
        """
        count = text.count(self.old)
        if count != 1 or self.old == self.new:
            raise ValueError(f"{self.name}: {self.file} has the old text {count} times, want once")
        return text.replace(self.old, self.new)

    @property
    def digest(self) -> str:
        """Digest of all that the result depends on, as far as the list names it."""
        files = sorted({self.file, *(test.partition("::")[0] for test in self.tests)})
        parts = [*self[:4], *self.tests, *((ROOT / name).read_text() for name in files)]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def read_mutants() -> list[Mutant]:
    """Return the list; a mutant without a file or tests has those of the one before it."""
    mutants: list[Mutant] = []
    shared: dict[str, object] = {}
    for entry in tomllib.loads(LIST.read_text())["mutant"]:
        shared |= {name: entry[name] for name in ("file", "tests") if name in entry}
        mutants.append(Mutant(**(entry | shared)))
    return mutants


def copy_tree(target: Path) -> None:
    """Copy what git tracks or does not ignore, and compile it."""
    shutil.rmtree(target, ignore_errors=True)
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    subprocess.run([sys.executable, "-m", "compileall", "-q", "raybio", "tests"], cwd=target)


class FailedTests:
    """A plugin of pytest that writes the ids of tests that fail into a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.names: list[str] = []

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and report.nodeid not in self.names:
            self.names.append(report.nodeid)
            self.path.write_text(json.dumps(self.names))


def import_sources(tree: Path) -> list[FunctionType]:
    """Import what all tests need, from a copy of the repository; return all functions."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    os.environ["PYTHONPATH"] = sys.path[0] = str(tree)
    for name in ("pytest", "transformers", "tests.conftest", "tests.runtime_fixtures"):
        importlib.import_module(name)
    assert str(sys.modules["raybio"].__file__).startswith(str(tree)), "another raybio is imported"
    functions = [each for each in gc.get_objects() if type(each) is FunctionType]
    # Forks share the memory: their collector leaves it alone.
    gc.freeze()
    return functions


def replace_functions(functions: list[FunctionType], path: Path, text: str) -> int:
    """Give functions of an imported file the code that they have in another text of it.

    Returns:
        How many functions have other code then.
    """
    code_by_name = {}
    pending = [compile(text, str(path), "exec")]
    while pending:
        code = pending.pop()
        code_by_name[code.co_qualname, code.co_freevars] = code
        pending += [each for each in code.co_consts if isinstance(each, CodeType)]
    num_changed = 0
    for function in functions:
        old = function.__code__
        new = code_by_name.get((old.co_qualname, old.co_freevars))
        if old.co_filename == str(path) and new is not None and new != old:
            function.__code__ = new
            num_changed += 1
    return num_changed


def run_tests(
    tree: Path,
    tests: list[str],
    log: Path,
    *options: str,
    change: Callable[[], None] | None = None,
) -> tuple[int | None, list[str]]:
    """Run tests of a tree in a fork of this process.

    Args:
        tree: a copy of the repository.
        tests: files or ids.
        log: takes what pytest prints.
        options: of pytest.
        change: called in the fork before pytest begins.

    Returns:
        pytest's exit status, None if it hangs; and the ids of tests that failed.
    """
    failed = log.with_suffix(".json")
    failed.write_text("[]")
    child = os.fork()
    if child == 0:
        os.setsid()
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.chdir(tree)
        if change is not None:
            change()
        # Compiled files of a mutant would outlive it.
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        sys.dont_write_bytecode = True
        import pytest

        status = pytest.main([*PYTEST, *options, *tests], plugins=[FailedTests(failed)])
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    try:
        until = time.monotonic() + LIMIT_SECONDS
        while time.monotonic() < until:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status), json.loads(failed.read_text())
            time.sleep(0.05)
        return None, []
    finally:
        # Also what the tests have started.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)


def run_mutant(tree: Path, mutant: Mutant, functions: list[FunctionType], log: Path) -> str:
    """Return one of ``OUTCOMES``, with the test that failed, or what went wrong."""
    path = tree / mutant.file
    text = path.read_text()
    times = path.stat()
    changed = mutant.apply(text)
    path.write_text(changed)

    def change() -> None:
        files = {getattr(module, "__file__", None) for module in sys.modules.values()}
        if str(path) in files:
            assert replace_functions(functions, path, changed), "want a change in a function"

    try:
        status, failed = run_tests(tree, mutant.tests, log, "-x", change=change)
    finally:
        path.write_text(text)
        # Its compiled file is valid again.
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    if status is None:
        # A loaded machine is slow with and without the mutant.
        status, _ = run_tests(tree, mutant.tests, log.with_suffix(".unchanged.log"), "-x")
        return HUNG if status == 0 else "ERROR: its tests hang, and do not pass without it either"
    if status == 0:
        return SURVIVED
    if status == 1 and failed:
        return f"{KILLED}{failed[0]}"
    return f"ERROR: pytest ended with {status}, see {log}"


def summary(outcome_by_name: dict[str, str]) -> tuple[str, list[str]]:
    """Return the line with the sums, and the names of mutants that nothing has noticed."""
    outcomes = outcome_by_name.values()
    num_killed = sum(outcome.startswith(KILLED) for outcome in outcomes)
    num_hung = sum(outcome.startswith(HUNG) for outcome in outcomes)
    lost = [
        name for name, outcome in outcome_by_name.items() if not outcome.startswith((KILLED, HUNG))
    ]
    return f"{len(outcomes)} mutants, {num_killed} killed, {num_hung} hung, {len(lost)} lost", lost


def main() -> int:
    """Run the mutants that have no result yet; print all; return 1 if one is not noticed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--only", action="append", help="mutants whose name or file has these words"
    )
    parser.add_argument("--again", action="store_true", help="run also those that have a result")
    options = parser.parse_args()
    mutants = [
        mutant
        for mutant in read_mutants()
        if not options.only
        or any(words in f"{mutant.name} {mutant.file}" for words in options.only)
    ]
    BUILD.mkdir(parents=True, exist_ok=True)
    lock = os.open(BUILD, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print(f"another process runs mutants in {BUILD}")
        return 2
    results_path = BUILD / "results.json"
    results = json.loads(results_path.read_text()) if results_path.exists() else {}
    results = {digest: each for digest, each in results.items() if each.startswith(OUTCOMES)}
    digests = {mutant.name: mutant.digest for mutant in mutants}
    todo = [each for each in mutants if options.again or digests[each.name] not in results]
    if todo:
        tree = BUILD / "tree"
        copy_tree(tree)
        functions = import_sources(tree)
    for number, mutant in enumerate(todo):
        since = time.monotonic()
        digest = digests[mutant.name]
        outcome = run_mutant(tree, mutant, functions, BUILD / f"{digest[:16]}.log")
        seconds = time.monotonic() - since
        print(f"{number + 1}/{len(todo)} {seconds:4.0f} s  {mutant.name}: {outcome}", flush=True)
        if outcome.startswith(OUTCOMES):
            results[digest] = outcome
            results_path.write_text(json.dumps(results, indent=1))
    killers = {results.get(digests[mutant.name], "").partition(KILLED)[2] for mutant in todo} - {""}
    if killers:
        print(f"\n{len(killers)} tests that failed, without a mutant ...", flush=True)
        _, failed = run_tests(tree, sorted(killers), BUILD / "unchanged.log")
        results = {
            digest: outcome
            for digest, outcome in results.items()
            if outcome.partition(KILLED)[2] not in failed
        }
        results_path.write_text(json.dumps(results, indent=1))
    outcomes = {
        mutant.name: results.get(digests[mutant.name], "ERROR: no result") for mutant in mutants
    }
    print()
    for name, outcome in outcomes.items():
        print(f"{name:<76} {outcome}")
    sums, lost = summary(outcomes)
    print(f"\n{sums}", *lost, sep="\n")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
