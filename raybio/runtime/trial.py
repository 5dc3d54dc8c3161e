"""One trial of a sweep: a run whose evaluations are told to Ray Tune as they come.

A trial's folder is named after its configuration, so the same settings find what they left: a sweep that is started
again tells Tune of the steps that are on disk and goes on from the newest checkpoint. Whatever the scheduler would have
decided, it decides again.
"""

import math
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raybio.config import fingerprint, override_all
from raybio.data.store import open_store
from raybio.errors import ClusterError, ConfigError, RaybioError
from raybio.runtime.metrics_log import MetricsLog, MetricsTail, read_reports
from raybio.runtime.run_folder import RunFolder, read_json, write_json
from raybio.runtime.train import TrainRequest, train
from raybio.search_space import SearchSpace, Settings
from raybio.systems import SYSTEMS
from raybio.training.settings import TrainingConfig

OBJECTIVE = "objective"
"""What Tune compares: the best value of the metric over the trial's evaluated steps so far."""

WRITER_LOCK_SECONDS = 60.0


@dataclass(frozen=True)
class TrialOrder:
    """What every trial of a sweep shares; plain values, so that it travels.

    Attributes:
        base: the configuration that settings are put on.
        space: the sweep's search space.
        store: path of the prepared store.
        trials: folder of all trials.
        workers: training workers of each trial; 1: the trial's own process trains.
        cpus_per_worker: logical CPUs of each, the threads that it computes with.
        gpus_per_worker: GPUs of each; a fraction lets trials share one.
    """

    base: TrainingConfig
    space: SearchSpace
    store: str
    trials: str
    workers: int = 1
    cpus_per_worker: float = 1
    gpus_per_worker: float = 0

    def config(self, settings: Settings) -> TrainingConfig:
        """The whole configuration of a trial.

        It trains for the sweep's budget, and is evaluated and saved at least as often as trials may be stopped.

        Raises:
            ConfigError: if the settings do not fit each other.
        """
        budget, schedule = self.space.budget, self.base.schedule
        every = min(schedule.evaluate_every_steps or budget.grace_steps, budget.grace_steps)
        steps = {"max_steps": budget.max_steps, "evaluate_every_steps": every, "checkpoint_every_steps": every}
        given = {f"schedule.{name}": value for name, value in steps.items()}
        return override_all(self.base, given | settings)

    def folder(self, settings: Settings) -> RunFolder:
        """Where a trial with these settings lies."""
        return RunFolder(self.trials, f"trial-{fingerprint(self.config(settings))[:10]}")


@dataclass(frozen=True)
class Best:
    """The best evaluated step of a trial."""

    step: int
    value: float


def evaluations(folder: RunFolder, metric: str) -> list[tuple[int, float]]:
    """(step, value) of the metric at each evaluated step after the start, in order."""
    reports = read_reports(folder.metrics)
    return [(one["step"], one["metrics"][metric]) for one in reports if one["step"] > 0 and metric in one["metrics"]]


def best_of(values: list[tuple[int, float]], mode: str) -> Best | None:
    """The best evaluated step, the first of equals; None before the first evaluation."""
    if not values:
        return None
    sign = 1 if mode == "max" else -1
    step, value = max(values, key=lambda pair: (sign * pair[1], -pair[0]))
    return Best(step, value)


def run_trial(settings: Settings, order: TrialOrder) -> None:
    """Train with ``settings``, telling Tune of every evaluation; called by Tune, in a process of its own.

    Raises:
        RaybioError: what ended the trial; also left in its ``failure.json``, so that trying again ends at once.
    """
    import ray.tune

    config, folder = order.config(settings), order.folder(settings)
    failure = read_json(folder.failure)
    if failure is not None:
        raise ConfigError(failure["message"])
    folder.open(order.space.system, config, Path(order.store), open_store(order.store).digest, ())
    told: list[tuple[int, float]] = []
    started = time.monotonic() - (read_json(folder.path / "trial.json") or {}).get("seconds", 0.0)
    try:
        for step, value in _trained(folder, order, config):
            told.append((step, value))
            best = best_of(told, order.space.mode)
            assert best is not None
            seconds = time.monotonic() - started
            write_json(folder.path / "trial.json", {"settings": settings, "seconds": seconds})
            ray.tune.report({"step": step, OBJECTIVE: best.value, "best_step": best.step, order.space.metric: value})
    except ClusterError:
        raise  # what was away may come back: Tune tries again
    except RaybioError as error:
        write_json(folder.failure, {"kind": type(error).__name__, "message": str(error)})
        raise
    if not told:
        raise ConfigError(f"metric: {order.space.metric!r} was never evaluated; want one that the system reports")


def _trained(folder: RunFolder, order: TrialOrder, config: TrainingConfig) -> Iterator[tuple[int, float]]:
    """(step, value) of each evaluation: those on disk, up to the step from which training goes on, and then new ones."""
    metric, last = order.space.metric, -1
    if order.workers > 1:
        for step, value in _trained_by_workers(folder, order, config):
            yield step, value
        return
    newest = folder.newest_checkpoint
    known_step = -1 if newest is None else int(newest.name.split("-")[1])
    for step, value in evaluations(folder, metric):
        if step <= known_step:
            last = step
            yield step, value
    if read_json(folder.outcome) is not None:
        return
    for step, metrics in _train_here(folder, order, config):
        if step > last and metric in metrics:
            yield step, metrics[metric]


def _train_here(folder: RunFolder, order: TrialOrder, config: TrainingConfig) -> Iterator[tuple[int, dict[str, float]]]:
    """Train in this process; yields the reports with an evaluation, except that of the untrained model."""
    import torch

    from raybio.training.checkpoint import CheckpointStore
    from raybio.training.loop import fit, local_batches

    torch.set_num_threads(max(1, math.floor(order.cpus_per_worker)))
    with folder.lock("writer", WRITER_LOCK_SECONDS):
        system = SYSTEMS[order.space.system].build(config, order.store)
        log, batches = MetricsLog(folder.metrics), local_batches(system, config.schedule.max_steps)
        checkpoints = CheckpointStore(folder.checkpoints, keep=config.schedule.keep_checkpoints)

        def from_step(first_step: int) -> Any:
            log.rewind(first_step)
            return batches(first_step)

        device = "cuda" if order.gpus_per_worker else "cpu"
        for report in fit(system, config, batches=from_step, checkpoints=checkpoints, device=device):
            if report.metrics:
                log.append(report.step, report.metrics, is_evaluation=report.is_evaluation)
            if report.is_evaluation and report.step > 0:
                yield report.step, report.metrics
            if report.is_last:
                checkpoints.wait()
                write_json(folder.outcome, {"status": report.reason, "step": report.step})
        checkpoints.close()


def _trained_by_workers(
    folder: RunFolder, order: TrialOrder, config: TrainingConfig
) -> Iterator[tuple[int, float]]:
    """Train with several workers; Ray Train works in a thread, and this one follows the run's log."""
    request = TrainRequest(
        system=order.space.system,
        config=config,
        store=Path(order.store),
        name=folder.name,
        runs=Path(order.trials),
        workers=order.workers,
        cpus_per_worker=order.cpus_per_worker,
        use_gpu=bool(order.gpus_per_worker),
        is_tracked=False,
        is_judged=False,
    )
    errors: list[BaseException] = []

    def work() -> None:
        try:
            train(request)
        except BaseException as error:  # raised below, in the thread that Tune watches
            errors.append(error)

    thread = threading.Thread(target=work, name="raybio-trial", daemon=True)
    thread.start()
    tail, is_alive = MetricsTail(folder.metrics), True
    while is_alive:
        thread.join(timeout=0.5)
        is_alive = thread.is_alive()
        for report in tail.read():
            if report["step"] > 0 and order.space.metric in report["metrics"]:
                yield report["step"], report["metrics"][order.space.metric]
    if errors:
        raise errors[0]
