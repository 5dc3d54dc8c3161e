"""Peak memory of some work, on the device that computes it."""

import ctypes
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import torch

T = TypeVar("T")

_PROCESS = Path("/proc/self")


def with_peak_bytes(work: Callable[[], T]) -> tuple[T, int | None]:
    """Return the result of ``work`` and its peak memory in bytes; None if it is not measured.

    On a GPU it is all that torch has allocated there, including the weights. On CPUs it is the
    growth of this process' resident memory, without what was loaded before; only Linux reports it.
    """
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        return work(), torch.cuda.max_memory_allocated()
    with suppress(AttributeError):  # not every C library has it
        # Return freed memory to the system, so that its next use counts as growth.
        ctypes.CDLL(None).malloc_trim(0)
    try:
        (_PROCESS / "clear_refs").write_text("5")  # the high-water mark starts anew
        before = _status_bytes("VmRSS")
    except OSError:
        return work(), None
    result = work()
    return result, _status_bytes("VmHWM") - before


def _status_bytes(name: str) -> int:
    # Not getrusage: there, the peak of a child process starts at its parent's.
    lines = (_PROCESS / "status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
