"""The cost of a run: seconds, worker-hours and GPU-hours.

The seconds of a run go from the first step of each start to its last report, evaluations included.
They exclude the time until a start's first step, and work that a killed start lost.
"""

from dataclasses import dataclass

from raybio.core.records import read_record
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.metrics_log import read_reports
from raybio.runtime.run.notices import read_starts

GPU = "cuda"


@dataclass(frozen=True)
class RunCost:
    """The cost of a run.

    Attributes:
        name: name of the run.
        steps: optimizer updates.
        seconds: seconds of training and evaluation.
        workers: training workers.
        device: ``cuda`` or ``cpu``.
        final_seconds: the part of ``seconds`` after the last report: the final evaluation.
        threads: threads of each worker; None: not recorded.
    """

    name: str
    steps: int
    seconds: float
    workers: int
    device: str
    final_seconds: float = 0.0
    threads: int | None = None

    @property
    def worker_hours(self) -> float:
        """Hours of all workers together; GPU-hours for a run on GPUs, since each worker has one."""
        return self.seconds * self.workers / 3600

    def seconds_of(self, steps: int) -> float:
        """Return the seconds of ``steps`` steps at this rate, and of a final evaluation."""
        rate = (self.seconds - self.final_seconds) / self.steps
        return rate * steps + self.final_seconds


def cost_of(folder: RunFolder, until_ms: int | None = None) -> RunCost | None:
    """Return the cost of a run so far; None before its first report.

    Args:
        folder: the run's folder.
        until_ms: end time in ms since 1970, for a run that has not written its outcome yet.
    """
    starts = read_starts(folder.notices)
    reports = read_reports(folder.metrics)
    if not starts or not reports:
        return None
    outcome = read_record(folder.outcome, "outcome") or {}
    times_ms = [report["time_ms"] for report in reports]
    final_ms = 0
    end_of_run_ms = outcome.get("time_ms", until_ms)
    if end_of_run_ms is not None:
        # A start that only repeats the final evaluation has no reports.
        final_ms = end_of_run_ms - max(times_ms[-1], starts[-1]["time_ms"])
        times_ms.append(end_of_run_ms)
    launch = folder.read_launch()
    milliseconds = 0
    for number, start in enumerate(starts):
        begin_ms = start["time_ms"]
        is_last = number == len(starts) - 1
        end_ms = None if is_last else starts[number + 1]["time_ms"]
        milliseconds_of_start = [
            time_ms
            for time_ms in times_ms
            if time_ms >= begin_ms and (end_ms is None or time_ms < end_ms)
        ]
        milliseconds += max(milliseconds_of_start, default=begin_ms) - begin_ms
    return RunCost(
        name=folder.name,
        steps=reports[-1]["step"],
        seconds=milliseconds / 1000,
        workers=launch.get("workers") or 1,
        device=starts[-1].get("device", "cpu"),
        final_seconds=final_ms / 1000,
        threads=launch.get("threads_per_worker"),
    )


def hours_in_words(hours: float, device: str) -> str:
    """Return a text such as ``3.1 GPU-hours``.

    Args:
        hours: hours of workers.
        device: their device, ``cuda`` or ``cpu``.
    """
    number = f"{hours:.2g}" if hours < 100 else f"{hours:,.0f}"
    return f"{number} {'GPU' if device == GPU else 'CPU-worker'}-hours"
