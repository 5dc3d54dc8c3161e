"""A sweep, seen from the driver: many trials of one method, which Ray Tune starts and stops, and what they found.

    sweeps/NAME/
        run.json            what must not change between two starts: space, base configuration, store
        trials/trial-.../   each trial's folder, as any run's; export/ is the model of its best step
        best.yaml           the winner's whole configuration, for the method's own job
        result.json         the leaderboard; also as leaderboard.csv
        report.html         both, and pictures

A sweep that is started again goes on from its trials' folders alone (``trial``), never from Tune's own snapshot.
"""

import logging
import math
import shutil
import signal
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.progress_reporter import TrialProgressCallback
from ray.tune.trainable import wrap_function

from raybio.core.config import BaseConfig
from raybio.core.errors import ClusterError, ConfigError, RecordError
from raybio.core.records import read_recomputable, read_record, write_record
from raybio.core.search_space import SearchSpace
from raybio.methods import METHODS
from raybio.runtime.cluster.connection import (
    cluster_nodes,
    cluster_to_join,
    local_node,
    started,
)
from raybio.runtime.cluster.room import Node, Room, room_of_trials
from raybio.runtime.cluster.stop_signals import StopSignals
from raybio.runtime.run.driver import InterruptedRunError, check_lengths, report_cuts
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.precision import show_decision, worker_processors
from raybio.runtime.run.worker_group import wait_for_workers
from raybio.runtime.tracking.tracker import Tracker, tracking_uri
from raybio.runtime.tune.callback import TrialCallback, earlier_trials
from raybio.runtime.tune.leaderboard import RankedSettings, TrialRecord, repetitions, write_results
from raybio.runtime.tune.plan import planned
from raybio.runtime.tune.report import write_sweep_report
from raybio.runtime.tune.run_trial import run_trial
from raybio.runtime.tune.search import TRIAL, listed, tune_config
from raybio.runtime.tune.trial import ENDED, NOTE, TrialSpec, has_ended, new_note
from raybio.store.store import open_store
from raybio.training.precision import Decision, decide_precision
from raybio.training.settings import TrainingConfig

MAX_TRIAL_FAILURES = 3


STOP_SECONDS = 60.0
"""How long trials have for a last checkpoint."""


FREE_SETTINGS = tuple(
    f"space.budget.{name}"
    for name in ("num_trials", "max_concurrent_trials", "num_repeated", "num_seeds")
)
"""What may change when a sweep goes on."""


class _Identity(BaseConfig):
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
        cpus_per_worker: logical CPUs of each; None: an equal part of what there is, for as many trials as are wanted.
        gpus_per_worker: GPUs of each, a fraction lets trials share one; None: 1 if there are GPUs.
        verbose: show Ray's own logs.
        given: options of this start that the next start of the command is to begin with, by name.
        explicit: dotted paths of settings of ``base`` that the user gave one by one.
        setup: called in each training process first; tests plant their faults with it.
    """

    space: SearchSpace
    base: TrainingConfig
    store: Path
    name: str
    sweeps: Path
    tracking: str | None = None
    workers: int = 1
    cpus_per_worker: float | None = None
    gpus_per_worker: float | None = None
    verbose: bool = False
    given: Mapping[str, Any] = field(default_factory=dict)
    explicit: frozenset[str] = frozenset()
    setup: Any = None


@dataclass(frozen=True)
class SweepResult:
    """What came of a sweep.

    Attributes:
        folder: where it lies.
        spec: what its trials share.
        ranking: settings, the best first.
        trials: the best first.
        mlflow_run_id: of the parent run; None if tracking could not be reached.
        uri: of MLflow.
    """

    folder: RunFolder
    spec: TrialSpec
    ranking: list[RankedSettings]
    trials: list[TrialRecord]
    mlflow_run_id: str | None
    uri: str


def sweep(request: SweepRequest) -> SweepResult:
    """Start a sweep, or go on with the one of that name.

    Raises:
        CheckpointError: if the sweep of that name has another space, base or store.
        ClusterError: if no trial has room, or Ray cannot start.
        ConfigError: for a bad name or tracking URI, or settings that do not fit the store.
        InterruptedRunError: if SIGINT or SIGTERM asked the sweep to end; the same command goes on from there.
        StoreError: if the store is missing, damaged or of another kind.
    """
    folder, entry, space = (
        RunFolder(request.sweeps, request.name),
        METHODS[request.space.method],
        request.space,
    )
    uri = tracking_uri(request.tracking, request.sweeps)
    store = open_store(request.store, entry.store, verify=True)
    place = str(Path(request.store).absolute())
    spec = TrialSpec(
        request.base, space, place, str(folder.path), request.workers, setup=request.setup
    )
    planned(space, spec.check)
    lengths = entry.input_lengths(request.base, store)
    check_lengths(lengths, request.explicit)
    folder.make()
    with folder.lock("driver", timeout_seconds=5):
        # Sweeps that tie nothing are what they were before there was such a thing.
        told = {
            name: value for name, value in space.to_mapping().items() if value or name != "tied"
        }
        identity = _Identity(space=told, base=request.base.to_mapping())
        folder.open(space.method, identity, Path(place), store.digest, FREE_SETTINGS)
        started = {"given": dict(request.given), "tracking": request.tracking}
        write_record(
            folder.launch, "launch", (read_record(folder.launch, "launch") or {}) | started
        )
        _restore_records(folder, spec)
        _forget_what_may_pass(folder, spec)
        if not _is_complete(spec):
            if not cluster_to_join():
                _room(
                    request, [local_node()]
                )  # before anything is recorded: a plan that cannot run is no failed sweep
            folder.record_precision(_decided(request, folder).name)
        spec = replace(spec, precision=folder.precision or "auto")
        tracker = Tracker(folder, uri, space.method, identity.to_mapping(), store.digest)
        if not _is_complete(spec):
            report_cuts(lengths, folder, tracker)
        with StopSignals(spec.stop) as signals:
            return _carry_out(request, spec, folder, tracker, signals)


def _decided(request: SweepRequest, folder: RunFolder) -> Decision:
    """Decide the precision of all trials with ``precision: auto``, and print it; a sweep that goes on keeps its own.

    Raises:
        ClusterError: if no trial has room, or a node of the cluster does not answer.
        ConfigError: for bf16 on GPUs without it.
    """
    base: str = "auto" if "precision" in request.space.paths else request.base.precision
    setting = folder.precision or base
    processors = []
    if setting != "fp32":
        processors = worker_processors(lambda nodes: _room(request, nodes), verbose=request.verbose)
    decision = decide_precision(setting, processors)
    show_decision(
        replace(decision, reason="as the sweep began")
        if folder.precision and base == "auto"
        else decision
    )
    return decision


def _carry_out(
    request: SweepRequest,
    spec: TrialSpec,
    folder: RunFolder,
    tracker: Tracker,
    signals: StopSignals,
) -> SweepResult:
    callback = TrialCallback(folder, spec, tracker)
    tracker.start()
    status = "FAILED"
    try:
        callback.catch_up()
        if not _is_complete(spec):
            spec = _tuned(request, spec, callback, signals)
        found = write_results(folder, spec)
        write_sweep_report(folder, spec, *found)
        if signals.caught:
            raise _interrupted(signals)
        if callback.refused is not None:
            raise ConfigError(
                f"{callback.refused}. Nothing can come of {folder.path}: correct the search space, and give another "
                "--name or delete that folder"
            )
        if not found[0]:
            raise _all_failed(folder, found[1])
        status = "FINISHED"
    except KeyboardInterrupt:  # while Ray was starting
        if not signals.caught:
            raise
        raise _interrupted(signals) from None
    finally:
        callback.close(is_killed=bool(signals.caught))
        tracker.finish("KILLED" if signals.caught else status)
    return SweepResult(folder, spec, *found, mlflow_run_id=tracker.run_id, uri=tracker.uri)


def _interrupted(signals: StopSignals) -> InterruptedRunError:
    name = signal.Signals(signals.caught[0]).name
    return InterruptedRunError(
        signals.caught[0], f"{name}: the same command goes on with the sweep"
    )


def _all_failed(folder: RunFolder, trials: list[TrialRecord]) -> ClusterError:
    reasons = sorted({one.error for one in trials if one.error}) or ["no reason was given"]
    return ClusterError(
        f"{folder.path}: none of {len(trials)} trials came to an evaluation; the first reason of {len(reasons)}: "
        f"{reasons[0]}. trials.csv has all of them"
    )


def _restore_records(folder: RunFolder, spec: TrialSpec) -> None:
    """Write damaged and missing records of trials again, from what is known otherwise.

    Raises:
        RecordError: if one cannot be.
    """
    trials = {spec.folder(trial).name: trial for trial in earlier_trials(folder.path)}
    for path in sorted((folder.path / "trials").glob("*/")):
        note = path / NOTE
        if path.name in trials and read_recomputable(note, "trial") is None:
            write_record(note, "trial", new_note(trials[path.name]))
        elif read_record(note, "trial") is None and (path / "metrics.jsonl").exists():
            raise RecordError(
                f"{note}: missing, and it says what the trial is. Restore it from a backup"
            )
        if read_recomputable(path / ENDED, "trial end") is None:
            # The trial goes on, and the sweep decides again.
            (path / ENDED).unlink(missing_ok=True)


def _forget_what_may_pass(folder: RunFolder, spec: TrialSpec) -> None:
    """Trials that failed for want of a machine are tried again; those that failed by themselves would do so again."""
    spec.stop.unlink(missing_ok=True)
    for failure in (folder.path / "trials").glob("*/failure.json"):
        reason = read_recomputable(failure, "failure")
        if reason is None or reason["kind"] == "ClusterError":
            (failure.parent / ENDED).unlink(missing_ok=True)
            failure.unlink()


def _is_complete(spec: TrialSpec) -> bool:
    """Whether all trials that the budget wants have ended."""
    known, space = earlier_trials(Path(spec.sweep)), spec.space
    num_wanted = (
        space.budget.num_trials
        if space.search.kind == "optuna"
        else len(planned(space, spec.check))
    )
    first = [trial for trial in known if set(trial.settings) <= space.paths]
    if len(first) < num_wanted or not all(has_ended(spec.folder(trial)) for trial in known):
        return False
    return all(has_ended(spec.folder(trial)) for trial in repetitions(spec))


def _tuned(
    request: SweepRequest, spec: TrialSpec, callback: TrialCallback, signals: StopSignals
) -> TrialSpec:
    """Let Ray Tune work through the sweep, in a thread; returns the order as trials got it."""
    # Its State API is what frees the resources of trials that are stopped.
    with started(threads=None, with_dashboard=True, verbose=request.verbose):
        signals.install()
        signals.is_starting = False
        fitting = _room(request, cluster_nodes())
        print(fitting.arithmetic, flush=True)
        if not request.verbose:
            # Every failure is told by TrialCallback, in a line.
            logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
        spec = replace(
            spec, cpus_per_worker=fitting.cpus_per_worker, gpus_per_worker=fitting.gpus_per_worker
        )
        callback.spec = spec
        work = _Work(spec, callback, fitting.num_trials, signals)
        work.start()
        is_killed = False
        while work.is_alive() and len(signals.caught) < 2:
            work.join(timeout=0.2)
            if signals.caught and not is_killed:
                is_killed = True
                callback.kill()
        if work.error is not None and not signals.caught:
            message = f"{spec.sweep}: the sweep ended early: {work.error}. The same command goes on"
            raise ClusterError(message) from work.error
    return spec


def _room(request: SweepRequest, nodes: Sequence[Node]) -> Room:
    return room_of_trials(
        nodes,
        request.space.budget,
        workers=request.workers,
        cpus_per_worker=request.cpus_per_worker,
        gpus_per_worker=request.gpus_per_worker,
    )


class _Work(threading.Thread):
    """Ray Tune at work."""

    def __init__(
        self, spec: TrialSpec, callback: TrialCallback, at_once: int, signals: StopSignals
    ) -> None:
        super().__init__(name="raybio-sweep", daemon=True)
        self.spec, self.callback, self.at_once, self.signals = spec, callback, at_once, signals
        self.error: BaseException | None = None

    def run(self) -> None:
        """The sweep, and then its best settings again with other seeds."""
        try:
            shutil.rmtree(self.callback.folder.ray, ignore_errors=True)
            known = self.spec.space.paths
            earlier = [
                one
                for one in earlier_trials(self.callback.folder.path)
                if set(one.settings) <= known
            ]
            if first := tune_config(self.spec, earlier, self.at_once):
                self._fit(*first)
            if not self.signals.caught and (again := repetitions(self.spec)):
                self._fit(*listed(again, self.at_once))
        except BaseException as error:  # told by whoever waits for the thread
            self.error = error

    def _fit(self, param_space: dict[str, Any], config: tune.TuneConfig) -> None:
        tune.Tuner(
            tune.with_resources(_trainable(self.spec), _reserved(self.spec)),
            param_space=param_space,
            tune_config=replace(config, reuse_actors=self.spec.workers == 1),
            run_config=tune.RunConfig(
                # A new name each time: trials go on from their own folders.
                name=uuid.uuid4().hex[:8],
                storage_path=str(self.callback.folder.ray),
                failure_config=tune.FailureConfig(max_failures=MAX_TRIAL_FAILURES),
                callbacks=[self.callback, _Unsaid()],
                stop=_Stopper(self.signals),
                verbose=0,
            ),
        ).fit()


def _run(config: dict[str, Any], spec: TrialSpec) -> None:
    run_trial(config[TRIAL], spec)


def _trainable(spec: TrialSpec) -> Any:
    """What Tune starts for a trial."""
    run = tune.with_parameters(_run, spec=spec)
    if spec.workers == 1:
        return run

    class WithWorkers(wrap_function(run)):  # type: ignore[misc]
        """Ends after its workers: what they reserved would stay reserved if the process that started them just went."""

        def cleanup(self) -> None:
            super().cleanup()
            wait_for_workers(STOP_SECONDS)

    return WithWorkers


def _reserved(spec: TrialSpec) -> dict[str, float]:
    """What Tune reserves for a trial's own process; workers beside it reserve their own."""
    if spec.workers > 1:
        return {"CPU": 0.01}
    return {
        name: has
        for name, has in (("CPU", spec.cpus_per_worker), ("GPU", spec.gpus_per_worker))
        if has
    }


class _Unsaid(TrialProgressCallback):  # type: ignore[misc]
    """Says nothing; without one of its kind, Tune adds its own, which tells of ended trials whatever ``verbose`` is."""

    def __getstate__(self) -> dict[str, Any]:
        return {}  # see TrialCallback

    def _print(self, msg: str) -> None:
        pass


class _Stopper(tune.Stopper):
    """Ends what is left of a sweep once a signal has come and trials have had their time for a last checkpoint."""

    def __init__(self, signals: StopSignals) -> None:
        self._signals, self._deadline = signals, math.inf

    def __getstate__(self) -> dict[str, Any]:
        return {}  # see TrialCallback

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        if self._signals.caught and self._deadline == math.inf:
            self._deadline = time.monotonic() + STOP_SECONDS
        return time.monotonic() > self._deadline
