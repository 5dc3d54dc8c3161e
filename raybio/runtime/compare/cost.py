"""The cost of several runs: of trained ones, and the expected cost of the runs of a command."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from raybio.core.config import flatten
from raybio.core.errors import RaybioError
from raybio.core.records import read_record
from raybio.core.text import count_of
from raybio.methods import METHODS
from raybio.runtime.compare.setting_names import REPETITIONS, present_settings
from raybio.runtime.run.cost import GPU, RunCost, cost_of, hours_in_words
from raybio.runtime.run.duration import in_a_row, in_words
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.result import finished_result
from raybio.runtime.run.shares import Concurrency, Placement, concurrency
from raybio.runtime.run.spec import RunSpec
from raybio.runtime.tune.length import trainings_left
from raybio.runtime.tune.plan import numbered, planned
from raybio.runtime.tune.trial import SweepSpec
from raybio.store.store import open_store
from raybio.training.checkpoint import step_of_checkpoint
from raybio.training.settings import COMPLETE

_FREE = (
    *REPETITIONS,
    "graph.repeat",
    "graph.noise",
    "encoder.revision",
    "optim",
    "schedule.max_steps",
    "schedule.max_epochs",
    "schedule.log_every_steps",
    "schedule.evaluate_every_epochs",
    "schedule.checkpoint_every_steps",
    "schedule.keep_checkpoints",
    "schedule.keep_best",
    "schedule.early_stopping_metric",
    "schedule.early_stopping_patience",
)
"""Settings and sections that hardly affect the time of a step or an evaluation."""

_NAMED = ("objective", "data", "evaluation")
"""Sections that hardly affect the time of a step, but may affect that of an evaluation.

An estimate names the settings in which its run differs.
"""

_ANYWHERE = Placement(None, None)


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
    estimate = _estimate_plan(unfinished, plan, _finished_runs({spec.runs for spec in specs}))
    unknown = _describe_unknown(estimate, str(unfinished[0].runs))
    return [*lines, plan.explanation, *_describe_time(estimate, plan), *unknown]


def describe_time(specs: Sequence[RunSpec]) -> list[str]:
    """Describe, in lines, how long the unfinished runs of a command take that resemble others.

    A single unfinished run is not described.

    Raises:
        ClusterError: if a run does not fit the cluster.
    """
    unfinished = [spec for spec in specs if _steps_left(spec) > 0]
    if len(unfinished) < 2:
        return []
    finished = _finished_runs({spec.runs for spec in unfinished})
    # Whether they fit may need a connection to the cluster, in vain if no run is similar.
    if not _estimate([(spec, 0, _ANYWHERE) for spec in unfinished], finished).seconds:
        return []
    plan = concurrency(unfinished, len(specs))
    return _describe_time(_estimate_plan(unfinished, plan, finished), plan)


def describe_sweep(spec: SweepSpec, runs: Path) -> list[str]:
    """Describe, in lines, the trials of a grid and their cost; see ``describe_sweep_time``."""
    trials = planned(spec.space, spec.check)
    summary = f"{len(trials)} trials of {spec.space.budget.max_steps:,} steps at most"
    return [*numbered(spec, trials), summary, *describe_sweep_time(spec, runs, names_unknown=True)]


def describe_sweep_time(spec: SweepSpec, runs: Path, *, names_unknown: bool = False) -> list[str]:
    """Describe, in lines, how long the trials of a sweep take that have not ended.

    Args:
        spec: the sweep.
        runs: folder of runs. A similar one is searched in it, and in the trials of all sweeps.
        names_unknown: add a line about the trials whose time is not known.
    """
    compute = spec.run.compute
    device = None
    if compute.gpus_per_worker is not None:
        device = GPU if compute.gpus_per_worker else "cpu"
    # Without a number of CPUs, trials share the cluster.
    placement = Placement(device, None if compute.cpus_per_worker is None else spec.threads)
    trainings = [
        (spec.worker_spec(trial).run, num_steps, placement)
        for trial, num_steps in trainings_left(spec)
    ]
    estimate = _estimate(trainings, _finished_runs([runs, *spec.run.runs.glob("*/trials")]))
    lines = []
    if estimate.seconds:
        duration = in_words(max(estimate.seconds))
        one_trial = "a trial" if len(set(estimate.seconds)) == 1 else "the longest trial"
        num_trials = count_of(len(estimate.seconds), "trial")
        lines.append(f"{one_trial} takes about {duration}, {num_trials} {estimate.cost}")
    if names_unknown:
        lines += _describe_unknown(estimate, f"{runs} and {spec.run.runs}")
    return lines


def _estimate_plan(
    specs: Sequence[RunSpec], plan: Concurrency, finished: Sequence["_Finished"]
) -> "_Estimate":
    placed = zip(specs, plan.placements, strict=True)
    return _estimate([(spec, _steps_left(spec), placement) for spec, placement in placed], finished)


def _describe_time(estimate: "_Estimate", plan: Concurrency) -> list[str]:
    if not estimate.seconds:
        return []
    whole = in_words(in_a_row(estimate.seconds, plan.num_at_a_time))
    verb = "takes" if len(estimate.seconds) == 1 else "take"
    return [f"{len(estimate.seconds)} of them {verb} about {whole}, {estimate.cost}"]


class _Estimate(NamedTuple):
    """The expected cost of runs.

    Attributes:
        seconds: seconds of each run that resembles a finished one.
        cost: their hours and the finished runs, as text.
        num_unknown: number of the other runs.
        nearest: the finished run that resembles one of the others most; None: none has its store.
    """

    seconds: list[int]
    cost: str
    num_unknown: int
    nearest: "_Similar | None"


def _estimate(
    runs: Sequence[tuple[RunSpec, int, Placement]], finished: Sequence["_Finished"]
) -> _Estimate:
    """Return the expected cost of runs, each with its steps left and where it is trained.

    At the rate of runs with the same evaluations it is an upper bound: a final evaluation counts
    for each run, and runs share some of its rows.
    """
    seconds = []
    others: list[_Similar] = []
    hours_by_device: dict[str, float] = defaultdict(float)
    differences: dict[str, set[str]] = defaultdict(set)
    for spec, num_steps, placement in runs:
        similar = _most_similar(spec, placement, finished)
        if similar is None:
            continue
        if similar.refusals:
            others.append(similar)
            continue
        cost = similar.cost
        seconds.append(round(cost.seconds_of(num_steps)))
        hours_by_device[cost.device] += seconds[-1] * cost.workers / 3600
        differences[f"{cost.name} ({cost.device})"].update(similar.differences)
    hours = " and ".join(hours_in_words(each, name) for name, each in hours_by_device.items())
    origins = []
    for name, paths in differences.items():
        differs = f", which differs in {', '.join(sorted(paths))}" if paths else ""
        origins.append(name + differs)
    bound = "" if any(differences.values()) else " at most"
    rate = f"{hours}{bound}, at the rate of {'; '.join(origins)}"
    nearest = min(others, key=lambda similar: len(similar.refusals), default=None)
    return _Estimate(seconds, rate, len(runs) - len(seconds), nearest)


def _describe_unknown(estimate: _Estimate, folders: str) -> list[str]:
    if not estimate.num_unknown:
        return []
    nearest = ""
    if estimate.nearest is not None:
        name = f"{estimate.nearest.cost.name} ({estimate.nearest.cost.device})"
        nearest = f" (the nearest, {name}, differs in {', '.join(estimate.nearest.refusals)})"
    return [
        f"no finished run in {folders} is similar to {estimate.num_unknown} of them{nearest}, so "
        "their time is unknown until the first ones train"
    ]


def _steps_left(spec: RunSpec) -> int:
    folder = spec.folder
    if finished_result(folder, spec.config) is not None:
        return 0
    max_steps: int = spec.config.schedule.max_steps
    newest = folder.newest_checkpoint
    done = 0 if newest is None else step_of_checkpoint(newest)
    # A run that is fully trained still needs its last evaluation.
    return max(max_steps - done, 1)


@dataclass(frozen=True)
class _Finished:
    """A finished run, and its ``run.json``.

    What many runs are compared with is read once.
    """

    folder: RunFolder
    identity: dict[str, Any]

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Dotted path -> value of its settings."""
        return present_settings(self.identity["method"], self.identity["config"])

    @cached_property
    def cost(self) -> RunCost | None:
        """Its cost; None: not known."""
        try:
            return cost_of(self.folder)
        except RaybioError:
            return None


def _finished_runs(folders: Iterable[Path]) -> list[_Finished]:
    """Return the finished runs of some folders, which have trained."""
    paths = [path for folder in sorted(folders) if folder.is_dir() for path in folder.iterdir()]
    finished = []
    for path in sorted(paths):
        if not path.is_dir() or path.name.startswith("."):
            continue
        try:
            folder = RunFolder(path.parent, path.name, option=None)
            outcome = read_record(folder.outcome, "outcome") or {}
            identity = folder.read_identity()
        except RaybioError:
            # A problem with another run must not affect these.
            continue
        if identity and outcome.get("status") in COMPLETE and outcome.get("step"):
            finished.append(_Finished(folder, identity))
    return finished


class _Similar(NamedTuple):
    """A finished run with few differences from one to come.

    Attributes:
        cost: its cost.
        differences: settings that differ, and may change the time of evaluations.
        refusals: settings and resources that differ, and change the time of a step. Without any,
            the runs are similar.
    """

    cost: RunCost
    differences: list[str]
    refusals: list[str]


def _most_similar(
    spec: RunSpec, placement: Placement, finished: Sequence[_Finished]
) -> _Similar | None:
    """Return the most similar finished run; None if none has the same method and store.

    One whose evaluation has the same settings is preferred: evaluations may take longer than
    training.

    Args:
        spec: the run.
        placement: where the run will be trained.
        finished: finished runs.
    """
    digest = open_store(spec.store, METHODS[spec.method].store).digest
    settings = flatten(spec.config.to_mapping())
    best: _Similar | None = None
    fewest: tuple[int, bool, int] | None = None
    for run in finished:
        if run.identity.get("method") != spec.method or run.identity.get("data_digest") != digest:
            continue
        paths = sorted(settings.keys() | run.settings.keys())
        changed = [path for path in paths if run.settings.get(path) != settings.get(path)]
        differences = [path for path in changed if not _is_within(path, _FREE)]
        refusals = [path for path in differences if not _is_within(path, _NAMED)]
        is_evaluated_otherwise = any(_is_within(path, ("evaluation",)) for path in changed)
        # The cost can only add refusals, and takes long to read.
        if fewest is not None and (len(refusals), is_evaluated_otherwise, len(changed)) >= fewest:
            continue
        cost = run.cost
        if cost is None or cost.steps == 0:
            continue
        if cost.workers != spec.compute.num_workers:
            refusals.append("workers")
        if placement.device not in (None, cost.device):
            refusals.append("device")
        elif cost.device != GPU and len({placement.threads, cost.threads} - {None}) > 1:
            refusals.append("threads")
        difference = (len(refusals), is_evaluated_otherwise, len(changed))
        if fewest is None or difference < fewest:
            best = _Similar(cost, differences, refusals)
            fewest = difference
    return best


def _is_within(path: str, sections: Sequence[str]) -> bool:
    return any(path == section or path.startswith(f"{section}.") for section in sections)
