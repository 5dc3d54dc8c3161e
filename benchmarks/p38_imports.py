"""P38: processor time of the imports of a training worker, of ``raybio --help`` and of a process that collates.

Each is measured in processes of its own, whose files are in the page cache; a collating process unpickles what a task of
Ray Data gets, and collates a step.
"""

import pickle
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from _measure import NUM_PAIRS, report
from demo_steps import DemoStep

GOALS = {"a worker": 2.5, "raybio --help": 0.8, "a collating process": 1.4}
"""Seconds."""


def commands(pickled: Path) -> dict[str, list[str]]:
    python = [sys.executable, "-W", "ignore"]
    worker = "import raybio.runtime.run.worker, raybio.methods.sppt.proteins.system"
    collate = f"import pickle; pickle.load(open({str(pickled)!r}, 'rb'))(0, 0, 1)"
    imports = (
        [*python, "-c", worker],
        [*python, "-m", "raybio.cli.main", "--help"],
        [*python, "-c", collate],
    )
    return dict(zip(GOALS, imports, strict=True))


def child_seconds(command: list[str]) -> float:
    """Return the processor time of a process and of those that it waited for."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        pickled = Path(folder) / "collate"
        pickled.write_bytes(pickle.dumps(DemoStep("sppt_protein", Path(folder)).system.collate))
        by_name = commands(pickled)
        for command in by_name.values():
            child_seconds(command)
        seconds_by_name: dict[str, list[float]] = {name: [] for name in by_name}
        for _ in range(NUM_PAIRS):
            for name, command in by_name.items():
                seconds_by_name[name].append(child_seconds(command))
    for name, seconds in seconds_by_name.items():
        goal = GOALS[name]
        note = f"{median(seconds):.2f} s of processor time, {max(seconds):.2f} at most"
        report("P38", f"goal: {goal} s, {name}", goal / median(seconds), goal / max(seconds), note)


if __name__ == "__main__":
    main()
