"""The cost of several runs: of trained ones, and the expected cost of the runs of a command."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from raybio.core.config import changed_settings
from raybio.core.errors import RaybioError
from raybio.core.records import read_record
from raybio.core.text import count_of
from raybio.methods import METHODS
from raybio.runtime.compare.setting_names import REPETITIONS
from raybio.runtime.run.cost import GPU, RunCost, cost_of, hours_in_words
from raybio.runtime.run.duration import in_a_row, in_words
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.parallel import Concurrency, Placement, concurrency
from raybio.runtime.run.result import finished_result
from raybio.runtime.run.spec import RunSpec
from raybio.store.store import open_store
from raybio.training.checkpoint import step_of_checkpoint
from raybio.training.settings import COMPLETE

_NOT_OF_A_STEP = (
    *REPETITIONS,
    "schedule.max_steps",
    "schedule.max_epochs",
    "schedule.keep_best",
    "optim",
    "objective",
    "data",
    "evaluation",
    "encoder.source",
    "encoder.revision",
)
"""Settings and sections that hardly affect the time of a step."""


def cost_in_words(costs: Iterable[RunCost | None]) -> str:
    """Return a text such as ``200 runs, 31 GPU-hours of training and evaluation``.

    It is empty without any costs.
    """
    known = [cost for cost in costs if cost is not None]
    if not known:
        return ""
    texts = []
    for is_on_gpu in (True, False):
        device_costs = [cost for cost in known if (cost.device == GPU) == is_on_gpu]
        if device_costs:
            hours = sum(cost.worker_hours for cost in device_costs)
            texts.append(hours_in_words(hours, device_costs[0].device))
    return f"{count_of(len(known), 'run')}, {' and '.join(texts)} of training and evaluation"


def describe_plan(specs: Sequence[RunSpec]) -> list[str]:
    """Describe, in lines, the runs that a command will train and their cost; start nothing.

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
    lines.append(f"{count_of(len(specs), 'run')}, {len(unfinished) or 'none'} not finished")
    if not unfinished:
        return lines
    plan = concurrency(unfinished, len(specs))
    lines.append(plan.explanation)
    return [*lines, *_describe_time(unfinished, left_by_name, plan)]


def describe_sweep_time(trial: RunSpec, steps: Sequence[int], runs: Path) -> str:
    """Describe how long a sweep takes, estimated from a similar finished run.

    Args:
        trial: one of its trials.
        steps: steps of each trial, including those that repeat the best settings.
        runs: folder of runs in which a similar one is searched.
    """
    similar = _similar(trial, Placement(None, None), _finished_runs(runs))
    if similar is None:
        return (
            f"no finished run in {runs} is similar to a trial (method, store, settings of encoder, "
            "input, plan and evaluations), so the time is unknown; look at what the first trial "
            "says"
        )
    cost = similar.cost
    seconds = [cost.seconds_of(num_steps) for num_steps in steps]
    one_trial = "a trial" if len(set(steps)) == 1 else "the longest trial"
    hours = hours_in_words(sum(seconds) * cost.workers / 3600, cost.device)
    return (
        f"{one_trial} takes about {in_words(max(seconds))}, {count_of(len(steps), 'trial')} "
        f"{hours}, at the rate of {similar.in_words}"
    )


def _describe_time(
    unfinished: Sequence[RunSpec], left_by_name: dict[str, int], plan: Concurrency
) -> list[str]:
    """Return lines about the time of unfinished runs, estimated from similar finished ones."""
    measured_by_folder: dict[Path, list[RunFolder]] = {}
    seconds = []
    hours_by_device: dict[str, float] = defaultdict(float)
    origins: dict[str, str] = {}
    unknown = []
    for spec, placement in zip(unfinished, plan.placements, strict=True):
        if spec.runs not in measured_by_folder:
            measured_by_folder[spec.runs] = _finished_runs(spec.runs)
        similar = _similar(spec, placement, measured_by_folder[spec.runs])
        if similar is None:
            unknown.append(spec.name)
            continue
        cost = similar.cost
        origins[cost.name] = similar.in_words
        run_seconds = cost.seconds_of(left_by_name[spec.name])
        seconds.append(round(run_seconds))
        hours_by_device[cost.device] += run_seconds * cost.workers / 3600
    lines = []
    if origins:
        names = ", ".join(origins.values())
        num_known = len(unfinished) - len(unknown)
        whole = in_words(in_a_row(seconds, plan.num_at_a_time))
        hours = " and ".join(hours_in_words(each, name) for name, each in hours_by_device.items())
        verb = "takes" if num_known == 1 else "take"
        lines.append(f"{num_known} of them {verb} about {whole}, {hours}, at the rate of {names}")
    if unknown:
        lines.append(
            f"no finished run in {unfinished[0].runs} is similar to {len(unknown)} of them "
            "(method, store, workers, device, threads, settings of encoder, input, plan and "
            "evaluations), so their time is unknown; look at the time left after the first ones"
        )
    return lines


def _steps_left(spec: RunSpec) -> int:
    folder = spec.folder
    if finished_result(folder, spec.config) is not None:
        return 0
    max_steps: int = spec.config.schedule.max_steps
    newest = folder.newest_checkpoint
    done = 0 if newest is None else step_of_checkpoint(newest)
    # A run that is fully trained still needs its last evaluation.
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
            # A problem with another run must not affect these.
            continue
        if outcome.get("status") in COMPLETE and outcome.get("step"):
            folders.append(folder)
    return folders


class _Similar(NamedTuple):
    """The cost of a finished run that resembles one to come.

    Attributes:
        cost: its cost.
        is_evaluated_alike: its evaluations have the same settings, so they take as long.
    """

    cost: RunCost
    is_evaluated_alike: bool

    @property
    def in_words(self) -> str:
        """Name of the run, its device, and what may make its time another one."""
        difference = "" if self.is_evaluated_alike else ", whose evaluation has other settings"
        return f"{self.cost.name} ({self.cost.device}){difference}"


def _similar(spec: RunSpec, placement: Placement, finished: Sequence[RunFolder]) -> _Similar | None:
    """Return the finished run with the most similar settings; None if none is similar.

    One whose evaluation has the same settings is preferred: evaluations may take longer than
    training.

    Args:
        spec: the run.
        placement: where the run will be trained.
        finished: folders of finished runs.
    """
    digest = open_store(spec.store, METHODS[spec.method].store).digest
    best: _Similar | None = None
    fewest: tuple[bool, int] | None = None
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
        if placement.device not in (None, cost.device):
            continue
        threads = {placement.threads, cost.threads} - {None}
        if cost.device != GPU and len(threads) > 1:
            continue
        is_evaluated_alike = not any(_is_within(path, "evaluation") for path in changed)
        difference = (not is_evaluated_alike, len(changed))
        if fewest is None or difference < fewest:
            best = _Similar(cost, is_evaluated_alike)
            fewest = difference
    return best


def _keeps_time(path: str) -> bool:
    """Return whether a setting hardly affects the time of a step."""
    return any(_is_within(path, free) for free in _NOT_OF_A_STEP)


def _is_within(path: str, section: str) -> bool:
    return path == section or path.startswith(f"{section}.")
