"""The cost of runs: what trained ones took, and what the runs of a command will take.

A run's seconds are those from the first step of each start to its last report, evaluations
included. They lack the time until a start's first step, and what a killed start lost.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from raybio.core.config import changed_settings
from raybio.core.errors import RaybioError
from raybio.core.records import read_record
from raybio.methods import METHODS
from raybio.runtime.compare.labels import REPETITIONS
from raybio.runtime.run.duration import in_words
from raybio.runtime.run.folder import COMPLETE, RunFolder
from raybio.runtime.run.metrics_log import read_reports
from raybio.runtime.run.notices import read_starts
from raybio.runtime.run.parallel import concurrency
from raybio.runtime.run.result import finished_result
from raybio.runtime.run.spec import RunSpec
from raybio.store.store import open_store
from raybio.training.checkpoint import step_of_checkpoint

GPU = "cuda"

_NOT_OF_A_STEP = (
    *REPETITIONS,
    "schedule",
    "optim",
    "objective",
    "data",
    "evaluation",
    "encoder.source",
    "encoder.revision",
)
"""Settings, and sections, whose change leaves the time of a step about the same."""


@dataclass(frozen=True)
class RunCost:
    """What a run took.

    Attributes:
        name: of the run.
        steps: optimizer updates.
        seconds: of training and evaluation.
        workers: training workers.
        device: ``cuda`` or ``cpu``.
    """

    name: str
    steps: int
    seconds: float
    workers: int
    device: str


def cost_of(folder: RunFolder) -> RunCost | None:
    """Return what a run has taken so far; None before its first report."""
    starts = read_starts(folder.notices)
    reports = read_reports(folder.metrics)
    if not starts or not reports:
        return None
    outcome = read_record(folder.outcome, "outcome") or {}
    times_ms = [report["time_ms"] for report in reports]
    times_ms += [outcome["time_ms"]] if "time_ms" in outcome else []
    milliseconds = 0
    for number, start in enumerate(starts):
        begin_ms = start["time_ms"]
        is_last = number == len(starts) - 1
        end_ms = None if is_last else starts[number + 1]["time_ms"]
        of_start = [
            time_ms
            for time_ms in times_ms
            if time_ms >= begin_ms and (end_ms is None or time_ms < end_ms)
        ]
        milliseconds += max(of_start, default=begin_ms) - begin_ms
    return RunCost(
        name=folder.name,
        steps=reports[-1]["step"],
        seconds=milliseconds / 1000,
        workers=folder.read_launch().get("workers") or 1,
        device=starts[-1].get("device", "cpu"),
    )


def cost_in_words(costs: Iterable[RunCost | None]) -> str:
    """Return such as ``200 runs, 31 GPU-hours of training and evaluation``; empty without any."""
    known = [cost for cost in costs if cost is not None]
    if not known:
        return ""
    texts = []
    for unit, is_on_gpu in (("GPU", True), ("CPU-worker", False)):
        of_device = [cost for cost in known if (cost.device == GPU) == is_on_gpu]
        hours = sum(cost.seconds * cost.workers for cost in of_device) / 3600
        if of_device:
            number = f"{hours:.2g}" if hours < 100 else f"{hours:,.0f}"
            texts.append(f"{number} {unit}-hours")
    runs = "1 run" if len(known) == 1 else f"{len(known)} runs"
    return f"{runs}, {' and '.join(texts)} of training and evaluation"


def describe_plan(specs: Sequence[RunSpec]) -> list[str]:
    """Return what a command will train and what that takes, as lines; nothing is started.

    Args:
        specs: all runs of the command, checked and in steps.

    Raises:
        ClusterError: if a run does not fit the cluster.
    """
    left_by_name = {spec.name: _steps_left(spec) for spec in specs}
    lines = []
    for number, spec in enumerate(specs, start=1):
        left = left_by_name[spec.name]
        max_steps = spec.config.schedule.max_steps
        state = f"{max_steps:,} steps"
        if left == 0:
            state = "finished"
        elif left < max_steps:
            state = f"{left:,} of {max_steps:,} steps left"
        lines.append(f"{number:4}  {spec.name}: {state}")
    unfinished = [spec for spec in specs if left_by_name[spec.name] > 0]
    lines.append(f"{len(specs)} runs, {len(unfinished)} of them not finished")
    if not unfinished:
        return lines
    num_at_a_time, arithmetic = concurrency(unfinished, len(specs))
    lines.append(arithmetic)
    return [*lines, *_describe_time(unfinished, left_by_name, num_at_a_time)]


def _describe_time(
    unfinished: Sequence[RunSpec], left_by_name: dict[str, int], num_at_a_time: int
) -> list[str]:
    """Return lines about the time of unfinished runs, by what similar finished ones took."""
    measured_by_folder: dict[Path, list[RunFolder]] = {}
    seconds = 0.0
    origins: dict[str, RunCost] = {}
    unknown = []
    for spec in unfinished:
        if spec.runs not in measured_by_folder:
            measured_by_folder[spec.runs] = _finished_runs(spec.runs)
        cost = _similar(spec, measured_by_folder[spec.runs])
        if cost is None:
            unknown.append(spec.name)
            continue
        origins[cost.name] = cost
        seconds += cost.seconds / cost.steps * left_by_name[spec.name]
    lines = []
    if origins:
        names = ", ".join(f"{name} ({cost.device})" for name, cost in origins.items())
        num_known = len(unfinished) - len(unknown)
        whole = in_words(seconds / min(num_at_a_time, num_known))
        lines.append(
            f"{num_known} of them take about {whole}, {in_words(seconds)} one after the other, at "
            f"the rate of {names}"
        )
    if unknown:
        lines.append(
            f"{len(unknown)} of them are like no finished run in {unfinished[0].runs} (method, "
            "store, workers, settings of encoder, input and plan), so their time is unknown; train "
            "one with --no-baseline, or look at the time left after the first ones"
        )
    return lines


def _steps_left(spec: RunSpec) -> int:
    folder = spec.folder
    if finished_result(folder, spec.config) is not None:
        return 0
    max_steps: int = spec.config.schedule.max_steps
    newest = folder.newest_checkpoint
    done = 0 if newest is None else step_of_checkpoint(newest)
    # The last evaluation is left of a run that is trained.
    return max(max_steps - done, 1)


def _finished_runs(runs: Path) -> list[RunFolder]:
    """Return the folders of finished runs, which have trained."""
    folders = []
    for path in sorted(runs.iterdir()) if runs.is_dir() else ():
        if not path.is_dir() or path.name.startswith("."):
            continue
        try:
            folder = RunFolder(runs, path.name)
            outcome = read_record(folder.outcome, "outcome") or {}
        except RaybioError:
            # Whatever is wrong with another run is no reason to refuse these.
            continue
        if outcome.get("status") in COMPLETE and outcome.get("step"):
            folders.append(folder)
    return folders


def _similar(spec: RunSpec, finished: Sequence[RunFolder]) -> RunCost | None:
    """Return the cost of the finished run with the fewest other settings; None if none is alike."""
    digest = open_store(spec.store, METHODS[spec.method].store).digest
    best: RunCost | None = None
    fewest = None
    for folder in finished:
        try:
            identity = folder.read_identity() or {}
            if identity.get("method") != spec.method or identity.get("data_digest") != digest:
                continue
            lines = changed_settings(identity["config"], spec.config)
            changed = [line.split(":")[0] for line in lines]
            cost = cost_of(folder) if all(map(_keeps_time, changed)) else None
        except RaybioError:
            continue
        if cost is None or cost.steps == 0 or cost.workers != spec.compute.num_workers:
            continue
        if fewest is None or len(changed) < fewest:
            best, fewest = cost, len(changed)
    return best


def _keeps_time(path: str) -> bool:
    """Return whether a step takes about as long with another value of a setting."""
    return any(path == free or path.startswith(f"{free}.") for free in _NOT_OF_A_STEP)
