"""P38: processor time of the imports of a training worker, of ``raybio --help`` and of a process that collates.

Each is measured in processes of its own, whose files are in the page cache.
"""

import resource
import subprocess
import sys
from statistics import median

from _measure import NUM_PAIRS, report

GOALS = {"a worker": 2.5, "raybio --help": 0.8, "a collating process": 1.4}
"""Seconds."""


def commands() -> dict[str, list[str]]:
    python = [sys.executable, "-W", "ignore"]
    worker = "import raybio.runtime.run.worker, raybio.methods.sppt.proteins.system"
    # What a task of Ray Data unpickles is of these modules.
    collate = "import raybio.methods.sppt.collate, raybio.methods.sppt.proteins.collate, raybio.methods.sppt.proteins.store"
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
    by_name = commands()
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
