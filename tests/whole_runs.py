"""Whole runs that tests train in their own process, and damages of the files that they leave."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from raybio.core.records import read_record, write_record
from raybio.methods import METHODS
from raybio.runtime.run.checks import check_spec
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.run_loop import Training, train_single_process
from raybio.runtime.run.spec import RunSpec
from raybio.training.loop import changeable_settings


def open_run(spec: RunSpec) -> str:
    """Make or check the folder of a run, as the driver does; return the digest of its store."""
    folder = RunFolder(spec.runs, spec.name)
    digest = check_spec(spec)
    folder.open(
        spec.method, spec.config, Path(spec.store), digest, changeable_settings(spec.config)
    )
    launch = {"tracking": spec.tracking, "is_length_accepted": spec.accepts_long_run}
    write_record(folder.launch, "launch", spec.compute.to_record() | launch)
    return digest


def train_here(spec: RunSpec, *, stop_at: int | None = None) -> dict[str, Any]:
    """Train an opened run from its newest checkpoint; return its outcome.

    Args:
        spec: the run.
        stop_at: step after which it is stopped; None: its last one.
    """
    folder = RunFolder(spec.runs, spec.name)
    for path in (folder.stop, folder.outcome, folder.result):
        path.unlink(missing_ok=True)
    system = METHODS[spec.method].build(spec.config, spec.store)
    training = Training(
        system=system, config=spec.config, folder=folder, device="cpu", precision="fp32"
    )
    for report in train_single_process(training):
        if report.step == stop_at:
            folder.stop.touch()
    return read_record(folder.outcome, "outcome") or {}


def cut(tenths: int) -> Callable[[Path], None]:
    """Return a function that leaves this many tenths of a file."""

    def damage(path: Path) -> None:
        content = path.read_bytes()
        path.write_bytes(content[: len(content) * tenths // 10])

    return damage


def flip_a_byte(path: Path) -> None:
    """Change one bit of the byte in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
