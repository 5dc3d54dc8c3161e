"""P38: processor time of the imports of a training worker, of ``raybio --help`` and of a process that collates.

Each is measured in processes of its own, whose files are in the page cache; beside it the libraries that it cannot do
without, imported alone: no code of ours is faster than they are.
"""

import resource
import subprocess
import sys
from statistics import median
from typing import NamedTuple

from _measure import NUM_PAIRS, report

PYTHON = (sys.executable, "-W", "ignore")


class Import(NamedTuple):
    """A process that ends once it has imported what it needs.

    Attributes:
        goal: seconds.
        command: the process.
        libraries: its libraries; None: none that are slow.
    """

    goal: float
    command: tuple[str, ...]
    libraries: str | None


IMPORTS = {
    "a worker": Import(
        2.5,
        (*PYTHON, "-c", "import raybio.runtime.run.worker, raybio.methods.sppt.proteins.system"),
        "import torch, transformers.modeling_utils, ray.train.torch",
    ),
    "raybio --help": Import(0.8, (*PYTHON, "-m", "raybio.cli.main", "--help"), None),
    # What a task of Ray Data unpickles is of these modules.
    "a collating process": Import(
        1.4,
        (
            *PYTHON,
            "-c",
            "import raybio.methods.sppt.collate, raybio.methods.sppt.proteins.collate, "
            "raybio.methods.sppt.proteins.store",
        ),
        "import torch, pyarrow",
    ),
}


def child_seconds(command: tuple[str, ...]) -> float:
    """Return the processor time of a process and of those that it waited for."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def main() -> None:
    command_by_name = {}
    for name, each in IMPORTS.items():
        command_by_name[name] = each.command
        if each.libraries is not None:
            command_by_name[f"libraries of {name}"] = (*PYTHON, "-c", each.libraries)
    for command in command_by_name.values():
        child_seconds(command)
    seconds_by_name: dict[str, list[float]] = {name: [] for name in command_by_name}
    for _ in range(NUM_PAIRS):
        for name, command in command_by_name.items():
            seconds_by_name[name].append(child_seconds(command))
    for name, each in IMPORTS.items():
        seconds = seconds_by_name[name]
        note = f"{median(seconds):.2f} s of processor time, {max(seconds):.2f} at most"
        if each.libraries is not None:
            alone = median(seconds_by_name[f"libraries of {name}"])
            note += f"; {each.libraries.removeprefix('import ')} alone {alone:.2f} s"
        report(
            "P38",
            f"goal: {each.goal} s, {name}",
            each.goal / median(seconds),
            each.goal / max(seconds),
            note,
        )


if __name__ == "__main__":
    main()
