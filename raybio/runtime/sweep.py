"""A sweep, seen from the driver: many trials of one system, which Ray Tune starts and stops, and what they found.

    sweeps/NAME/
        sweep.json          what must not change between two starts: space, base configuration, store
        trials/trial-.../   each trial's folder, as any run's
        best.yaml           the winner's whole configuration, for the system's own job
        result.json         the leaderboard; also as leaderboard.csv

A sweep that is started again goes on from its trials' folders alone (``trial``), never from Tune's own snapshot.
"""

import csv
import math
import signal
import uuid
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml
from ray.tune import Stopper

from raybio.config import Config
from raybio.data.store import open_store
from raybio.errors import ClusterError, RaybioError
from raybio.runtime.cluster import DATA_CPUS_PER_WORKER, Total, started
from raybio.runtime.follow_trials import ORDER, Followed, status_of
from raybio.runtime.run_folder import RunFolder, read_json, write_json
from raybio.runtime.stop_signals import StopSignals
from raybio.runtime.suggest import num_trials, planned, scheduler, searcher
from raybio.runtime.track import Tracker, tracking_uri
from raybio.runtime.train import InterruptedRunError
from raybio.runtime.trial import TrialOrder, best_of, evaluations, run_trial
from raybio.search_space import SearchSpace, Settings
from raybio.systems import SYSTEMS
from raybio.training.loop import free_settings
from raybio.training.settings import TrainingConfig

MAX_TRIAL_FAILURES = 3
FREE_SETTINGS = ("space.budget.num_trials", "space.budget.max_concurrent_trials", "space.budget.num_repeated")
"""What may change when a sweep goes on."""


class _Identity(Config):
    space: dict[str, Any]
    base: dict[str, Any]


@dataclass(frozen=True)
class SweepRequest:
    """What to sweep over, where, and with how much.

    Attributes:
        space: the search space.
        base: the configuration that trials' settings are put on.
        store: path of the prepared store.
        name: the sweep's name; the same name goes on with the same sweep.
        sweeps: folder of all sweeps.
        tracking: MLflow tracking URI; None: ``mlflow.db`` beside ``sweeps``.
        workers: training workers of a trial.
        cpus_per_worker: logical CPUs of each, and the threads that it computes with.
        gpus_per_worker: GPUs of each; a fraction lets trials share one.
        verbose: show Ray's own logs.
    """

    space: SearchSpace
    base: TrainingConfig
    store: Path
    name: str
    sweeps: Path
    tracking: str | None = None
    workers: int = 1
    cpus_per_worker: float = 1
    gpus_per_worker: float = 0
    verbose: bool = False


@dataclass(frozen=True)
class TrialRecord:
    """What came of one trial.

    Attributes:
        name: of its folder.
        settings: what it changed.
        status: ``finished``, ``stopped by the scheduler``, ``failed`` or ``interrupted``.
        values: (step, metric) of its evaluations.
        best_step: the best of them; None without an evaluation.
        best_value: its metric.
        seconds: its training took.
        error: why it failed.
    """

    name: str
    settings: Settings
    status: str
    values: list[tuple[int, float]] = field(default_factory=list)
    best_step: int | None = None
    best_value: float | None = None
    seconds: float = 0.0
    error: str = ""


def demand(order: TrialOrder) -> dict[str, float]:
    """CPUs and GPUs of a trial, all its workers and what Ray Data needs beside them included."""
    beside = DATA_CPUS_PER_WORKER if order.workers > 1 else 0
    return {
        "CPU": order.workers * (order.cpus_per_worker + beside),
        "GPU": order.workers * order.gpus_per_worker,
    }


def concurrency(order: TrialOrder, total: Total) -> int:
    """How many trials have room at the same time.

    Raises:
        ClusterError: with the arithmetic, if not one has.
    """
    wanted = demand(order)
    fitting = [
        math.floor(have / need + 1e-9)
        for have, need in ((total.num_cpus, wanted["CPU"]), (total.num_gpus, wanted["GPU"]))
        if need
    ]
    if not fitting or min(fitting) < 1:
        raise ClusterError(
            f"a trial of {order.workers} workers needs {wanted['CPU']:g} CPUs and {wanted['GPU']:g} GPUs, and the "
            f"cluster has {total.num_cpus:g} and {total.num_gpus:g}: no trial could ever start. Ask for less with "
            "--workers, --cpus-per-worker or --gpus-per-worker"
        )
    return min([*fitting, order.space.budget.max_concurrent_trials])


def sweep(request: SweepRequest) -> list[TrialRecord]:
    """Start a sweep, or go on with the one of that name; returns its trials, the best first.

    The winner's configuration is in ``best.yaml``, the leaderboard in ``result.json``.

    Raises:
        CheckpointError: if the sweep of that name has another space, base or store.
        ClusterError: if no trial has room, or Ray cannot start.
        ConfigError: for a bad name or tracking URI, or settings that do not fit the store.
        InterruptedRunError: if SIGINT or SIGTERM asked the sweep to end; the same command goes on from there.
        StoreError: if the store is missing, damaged or of another kind.
    """
    folder, entry = RunFolder(request.sweeps, request.name), SYSTEMS[request.space.system]
    uri = tracking_uri(request.tracking, request.sweeps)
    store = open_store(request.store, entry.store, verify=True)
    order = TrialOrder(
        base=request.base,
        space=request.space,
        store=str(Path(request.store).absolute()),
        trials=str(folder.path / "trials"),
        workers=request.workers,
        cpus_per_worker=request.cpus_per_worker,
        gpus_per_worker=request.gpus_per_worker,
    )
    for settings in planned(request.space):
        entry.check(order.config(settings), store)
    folder.make()
    with folder.lock("driver", timeout_seconds=5):
        identity = _Identity(space=request.space.to_mapping(), base=request.base.to_mapping())
        folder.open(request.space.system, identity, Path(order.store), store.digest, FREE_SETTINGS)
        tracker = Tracker(folder, uri, request.space.system, identity.to_mapping(), store.digest)
        tracker.start()
        status, signals = "FAILED", StopSignals(folder.stop)
        try:
            with signals:
                names = _tuned(request, order, folder, Followed(folder, order, tracker, store.digest), signals)
            records = leaderboard(order, names)
            write_results(folder, order, records)
            status = "KILLED" if signals.caught else "FINISHED"
        finally:
            tracker.finish(status)
    if signals.caught:
        name = signal.Signals(signals.caught[0]).name
        raise InterruptedRunError(signals.caught[0], f"{name}: the same command goes on with the sweep")
    return records


def _tuned(
    request: SweepRequest, order: TrialOrder, folder: RunFolder, followed: Followed, signals: StopSignals
) -> list[str]:
    """Let Ray Tune work through the sweep; returns the names of its trials, in the order of their start."""
    earlier = read_json(folder.path / ORDER) or []
    # Its State API is what frees the resources of trials that are stopped.
    with started(threads=max(1, math.floor(order.cpus_per_worker)), with_dashboard=True, verbose=request.verbose) as total:
        signals.install()
        signals.is_starting = False
        import ray.tune

        at_once = concurrency(order, total)
        wanted = demand(order)
        print(f"{at_once} trials at a time: {wanted['CPU']:g} CPUs and {wanted['GPU']:g} GPUs each, of {total.num_cpus:g} and {total.num_gpus:g}")
        own = {"CPU": 0.01} if order.workers > 1 else {name: have for name, have in wanted.items() if have}
        tuner = ray.tune.Tuner(
            ray.tune.with_resources(ray.tune.with_parameters(run_trial, order=order), own),
            tune_config=ray.tune.TuneConfig(
                search_alg=searcher(order.space, earlier),
                scheduler=scheduler(order.space),
                num_samples=max(num_trials(order.space), len(earlier)),
                max_concurrent_trials=at_once,
            ),
            run_config=ray.tune.RunConfig(
                # A new name each time: trials go on from their own folders.
                name=f"{request.name}-{uuid.uuid4().hex[:8]}",
                storage_path=str(folder.ray),
                failure_config=ray.tune.FailureConfig(max_failures=MAX_TRIAL_FAILURES),
                callbacks=[followed],
                stop=_Stop(signals),
                verbose=0,
            ),
        )
        tuner.fit()
    followed.close(was_interrupted=bool(signals.caught))
    return followed.names


class _Stop(Stopper):
    """Ends all trials once a signal has come."""

    def __init__(self, signals: StopSignals) -> None:
        self.signals = signals

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return bool(self.signals.caught)

    def stop_all(self) -> bool:
        return bool(self.signals.caught)


def leaderboard(order: TrialOrder, settings: list[Settings], was_interrupted: bool) -> list[TrialRecord]:
    """The trials, the best first; those without an evaluation last."""
    records = [_record(order, one, was_interrupted) for one in settings]
    sign = 1 if order.space.mode == "max" else -1
    return sorted(records, key=lambda one: -math.inf if one.best_value is None else sign * one.best_value, reverse=True)


def _record(order: TrialOrder, settings: Settings, was_interrupted: bool) -> TrialRecord:
    folder = order.folder(settings)
    values = evaluations(folder, order.space.metric)
    best = best_of(values, order.space.mode)
    return TrialRecord(
        name=folder.name,
        settings=settings,
        status=status_of(folder, was_interrupted),
        values=values,
        best_step=None if best is None else best.step,
        best_value=None if best is None else best.value,
        seconds=(read_json(folder.path / "trial.json") or {}).get("seconds", 0.0),
        error=(read_json(folder.failure) or {}).get("message", ""),
    )


def best_config(order: TrialOrder, record: TrialRecord) -> TrainingConfig:
    """The whole configuration of a trial, ending at its best step where the learning rate does not depend on the end.

    Run by the system's own job it trains what the trial trained, so the metric at that step is the same.
    """
    config = order.config(record.settings)
    if "schedule.max_steps" in free_settings(config) and record.best_step is not None:
        config = override(config, "schedule.max_steps", record.best_step)
    return config


def write_results(folder: RunFolder, order: TrialOrder, records: list[TrialRecord]) -> None:
    """``result.json``, ``leaderboard.csv`` and the winner's ``best.yaml``."""
    space = order.space
    content = {"metric": space.metric, "mode": space.mode, "trials": [asdict(one) for one in records]}
    write_json(folder.result, content)
    header = ["place", "trial", space.metric, "best_step", "status", "last_step", "worker_hours", *space.space]
    with (folder.path / "leaderboard.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        for place, one in enumerate(records, start=1):
            last = one.values[-1][0] if one.values else 0
            hours = f"{order.workers * one.seconds / 3600:.4f}"
            chosen = [one.settings.get(path, "") for path in space.space]
            writer.writerow([place, one.name, one.best_value, one.best_step, one.status, last, hours, *chosen])
    if records and records[0].best_value is not None:
        mapping = best_config(order, records[0]).to_mapping()
        (folder.path / "best.yaml").write_text(yaml.safe_dump(mapping, sort_keys=False, allow_unicode=True), "utf-8")
