"""How a row is measured: both sides in one process, in the order A B B A, after a warm-up; only ratios are kept."""

import contextlib
import json
import os
import platform
import resource
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NoReturn, Self

import psutil

SMALL = os.environ.get("RAYBIO_BENCH_SMALL") == "1"
"""Try the scripts out at a tiny size; their figures then mean nothing."""

NUM_PAIRS = 1 if SMALL else 5
NOT_HERE = 75
"""Exit status of a script whose peer or data are not on this machine; its row keeps its last results."""


def compare(
    row: str,
    peer_name: str,
    ours: Callable[[], Any],
    peer: Callable[[], Any],
    *,
    pairs: int = 5,
    note: str = "",
) -> dict[str, Any]:
    """Print and return one result line: the peer's time over ours, above 1 where we are faster.

    Whether the outputs are equal is the caller's to check before.
    """
    ratios = [
        peer_seconds / our_seconds for our_seconds, peer_seconds in interleaved([ours, peer], pairs)
    ]
    return report(row, peer_name, median(ratios), min(ratios), note)


def interleaved(
    sides: Sequence[Callable[[], Any]],
    rounds: int,
    clock: Callable[[Callable[[], Any]], float] | None = None,
) -> list[tuple[float, ...]]:
    """Mean seconds of each side in each round, after one call of each that does not count.

    A round goes there and back (A B B A; A B C C B A), so that a machine that slows down meanwhile slows all of them.
    """
    clock = clock or seconds_of
    for side in sides:
        side()
    found = []
    for _ in range(rounds):
        there = [clock(side) for side in sides]
        back = [clock(side) for side in reversed(sides)]
        found.append(tuple((one + two) / 2 for one, two in zip(there, reversed(back), strict=True)))
    return found


def report(
    row: str, peer: str, median_ratio: float | None, min_ratio: float | None, note: str
) -> dict[str, Any]:
    """Print one JSON line that ``run_all.py`` collects."""
    result = {
        "row": row,
        "peer": peer,
        "median_ratio": _three_digits(median_ratio),
        "min_ratio": _three_digits(min_ratio),
        "note": note,
    }
    print(json.dumps(result), flush=True)
    return result


def not_here(what: str) -> NoReturn:
    """Leave a script that cannot run on this machine, saying what is missing and where it comes from."""
    print(what, file=sys.stderr)
    sys.exit(NOT_HERE)


def seconds_of(work: Callable[[], Any]) -> float:
    """Seconds of one call, by the wall clock."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def core_seconds_of(work: Callable[[], Any]) -> float:
    """Processor time, which other processes on the machine do not stretch; meant for one thread."""
    start = time.process_time()
    work()
    return time.process_time() - start


class TreeClock:
    """Context that samples the processor time of this process and of all its descendants.

    Its own thread does not count. What a process uses after its last sample does not either.
    """

    EVERY_SECONDS = 0.1

    def __enter__(self) -> Self:
        self._samples: list[tuple[float, float]] = []
        self._seconds_by_process: dict[psutil.Process, float] = {}
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def seconds_at(self, wall_time: float) -> float:
        """Return the processor time up to a time of ``time.time()``, between samples by proportion."""
        after = next(i for i, (when, _) in enumerate(self._samples) if when >= wall_time)
        (since, low), (until, high) = self._samples[max(after - 1, 0)], self._samples[after]
        share = (wall_time - since) / (until - since) if until > since else 0.0
        return low + share * (high - low)

    @property
    def seconds(self) -> float:
        """The processor time from the first sample to the last."""
        return self._samples[-1][1] - self._samples[0][1]

    def _run(self) -> None:
        own = psutil.Process()
        while True:
            is_last = self._is_over.is_set()
            for process in (own, *own.children(recursive=True)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    times = process.cpu_times()
                    self._seconds_by_process[process] = times.user + times.system
            total = sum(self._seconds_by_process.values()) - time.thread_time()
            self._samples.append((time.time(), total))
            if is_last:
                return
            self._is_over.wait(self.EVERY_SECONDS)


def tree_seconds_of(work: Callable[[], Any]) -> float:
    """Processor time of this process and of all its descendants during one call."""
    with TreeClock() as clock:
        work()
    return clock.seconds


def peak_growth_bytes(work: Callable[[], Any]) -> int:
    """How far a call raises the resident memory of this process, at its peak, above what it held before."""
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
    before = _status_bytes("VmRSS")
    work()
    # At least a page: a small call may find its memory among what was freed before.
    return max(_status_bytes("VmHWM") - before, resource.getpagesize())


def _status_bytes(name: str) -> int:
    # Not getrusage: a child begins with its parent's peak there.
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name + ":"))


def _three_digits(ratio: float | None) -> float | None:
    return None if ratio is None else float(f"{ratio:.3g}")


def machine() -> str:
    """The number of CPUs that this process may use, and their name."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.split(":", 1)[1].strip()
            for line in info.read_text().splitlines()
            if line.startswith("model name")
        ]
        cpu = names[0] if names else cpu
    return f"{len(os.sched_getaffinity(0))} × {cpu}"
