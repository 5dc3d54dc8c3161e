"""Scripts run as from a command line, in forks of a server that has imported most of what they need."""

import os
import runpy
import sys
import warnings
from pathlib import Path
from typing import NamedTuple

from tests.training.workers import forkserver


class Done(NamedTuple):
    returncode: int | None
    stdout: str
    stderr: str


def run_script(script: Path | str, folder: Path, *arguments: str, **environment: str) -> Done:
    """Run a file, or a module by its name, in ``folder`` to its end; ``environment`` is added to that of the tests."""
    process = forkserver().Process(
        target=_run, args=(script, folder, arguments, os.environ | environment)
    )
    process.start()
    try:
        process.join()
    finally:
        process.kill()  # where the test's time is over
    return Done(process.exitcode, (folder / "stdout").read_text(), (folder / "stderr").read_text())


def _run(
    script: Path | str, folder: Path, arguments: tuple[str, ...], environment: dict[str, str]
) -> None:
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    os.environ |= environment
    os.chdir(folder)
    sys.argv = [str(script), *arguments]
    warnings.simplefilter("ignore")
    if isinstance(script, str):
        runpy.run_module(script, run_name="__main__", alter_sys=True)
        return
    sys.path.insert(0, str(script.parent))
    runpy.run_path(str(script), run_name="__main__")
