"""Run a sweep from the driver: many trials of one method, started and stopped by Ray Tune.

    sweeps/NAME/
        run.json            what must not change between two starts: space, base, store
        trials/trial-.../   the folder of each trial, as any run's; export/ is its best model
        best.yaml           the winner's whole configuration, for the method's own job
        result.json         the leaderboard; also as leaderboard.csv
        report.html         both, and pictures

A resumed sweep reads only its trials' folders, never Tune's own snapshot. For a sweep in a bucket,
``sweeps`` is the driver's copy (``runtime/spool``).
"""

import contextlib
import json
import logging
import math
import shutil
import signal
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import ray
from pydantic import create_model, field_validator
from ray import tune
from ray.tune.progress_reporter import TrialProgressCallback
from ray.tune.trainable import wrap_function

from raybio.core.config import BaseConfig, present_path
from raybio.core.errors import (
    CheckpointError,
    ClusterError,
    ConfigError,
    DiskError,
    InterruptedRunError,
    LongRunError,
    OtherVersionsError,
    RaybioError,
    RecordError,
)
from raybio.core.location import absolute
from raybio.core.records import read_recomputable, read_record, write_record
from raybio.core.search_space import SearchSpace
from raybio.methods import METHODS, present_name
from raybio.runtime.cluster.connection import (
    cluster_nodes,
    cluster_to_join,
    local_node,
    started,
)
from raybio.runtime.cluster.resources import (
    Node,
    TrialResources,
    memory_reason,
    trial_resources,
)
from raybio.runtime.cluster.stop_signals import StopSignals
from raybio.runtime.run.checks import check_lengths, report_cuts
from raybio.runtime.run.encoder_source import encoder_record, pin_encoder
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.open_run import compare_versions, warn_of_other_versions
from raybio.runtime.run.precision import show_decision, worker_processors
from raybio.runtime.run.worker_group import wait_for_workers
from raybio.runtime.spool import spool
from raybio.runtime.tracking.tracker import Tracker, how_to_show, tracking_uri
from raybio.runtime.tune.callback import TrialCallback
from raybio.runtime.tune.leaderboard import RankedSettings, TrialRecord, repetitions, write_results
from raybio.runtime.tune.length import SweepLength
from raybio.runtime.tune.plan import planned
from raybio.runtime.tune.report import write_sweep_report
from raybio.runtime.tune.run_trial import run_trial
from raybio.runtime.tune.search import TRIAL, listed, tune_config
from raybio.runtime.tune.trial import (
    ENDED,
    FAILED,
    FINISHED,
    INTERRUPTED,
    TRIAL_RECORD,
    SweepSpec,
    earlier_trials,
    first_trials,
    has_ended,
    new_trial_record,
    recorded_trial,
    status_of,
)
from raybio.store.store import open_store
from raybio.training.precision import Decision, decide_precision

MAX_TRIAL_FAILURES = 3

STOP_SECONDS = 60.0
"""Time that trials have for a last checkpoint after a signal."""

FREE_SETTINGS = tuple(
    f"space.budget.{name}"
    for name in ("num_trials", "max_concurrent_trials", "num_repeated", "num_seeds")
)
"""Settings that may change when a sweep is resumed."""


CURABLE = tuple(
    kind.__name__ for kind in (ClusterError, DiskError, CheckpointError, OtherVersionsError)
)
"""Kinds of failures after which a trial may do better when the sweep is resumed."""


@dataclass(frozen=True)
class SweepResult:
    """The result of a sweep.

    Attributes:
        folder: the sweep's folder.
        spec: the sweep, with its precision and the compute settings of its trials.
        ranking: settings, the best first.
        trials: trials, the best first.
        mlflow_run_id: id of the parent run; None if tracking could not be reached.
        uri: URI of MLflow.
    """

    folder: RunFolder
    spec: SweepSpec
    ranking: list[RankedSettings]
    trials: list[TrialRecord]
    mlflow_run_id: str | None
    uri: str

    @property
    def mlflow_line(self) -> str:
        """The parent run in MLflow, and how to look at it."""
        return how_to_show(self.mlflow_run_id, self.uri)

    def folder_of(self, trial: TrialRecord) -> RunFolder:
        """Return the folder of a trial."""
        return RunFolder(self.folder.path / "trials", trial.name)

    def check_finished(self) -> None:
        """Raise if a trial of the sweep has failed or was stopped.

        Raises:
            ClusterError: with the settings and the error of the first one.
        """
        failed = [
            f"{json.dumps(trial.settings)}: {trial.error}"
            for trial in self.trials
            if trial.status != FINISHED
        ]
        if failed:
            raise ClusterError(
                f"{self.folder.path}: {len(failed)} of {len(self.trials)} trials did not reach "
                f"their end, such as {failed[0]}. The same command repeats those that failed for "
                "want of a machine; others want another --name"
            )


def sweep(spec: SweepSpec) -> SweepResult:
    """Start a sweep, or resume the sweep of that name.

    Raises:
        CheckpointError: if the sweep of that name has another space, base or store.
        ClusterError: if no trial fits, or Ray cannot start; for a sweep in a bucket, if another
            driver holds it.
        ConfigError: for a bad name or tracking URI, or settings that do not fit the store.
        InterruptedRunError: if SIGINT or SIGTERM ended the sweep; the same command resumes it.
        LongRunError: if a sweep on CPUs takes more than a day and that is not accepted. It is
            stopped at checkpoints.
        OtherVersionsError: if the sweep is strict, and other versions have trained any trial;
            nothing is written. Also if one was trained on other hardware, when it resumes.
        StoreError: if the store is missing, damaged or of another kind.
    """
    run = replace(spec.run, store=absolute(spec.run.store))
    spec = replace(spec, run=run)
    space = spec.space
    folder = run.folder
    method = METHODS[space.method]
    if run.bucket is not None:
        check_scheduler(space)
    uri = tracking_uri(run.tracking, run.runs)
    store = open_store(run.store, method.store, verify=True)
    with contextlib.ExitStack() as held:
        held_spool = None
        if run.bucket is not None:
            held_spool = held.enter_context(spool.held(folder, run.bucket))
        pin_encoder(folder)
        planned(space, spec.check)
        lengths = method.input_lengths(run.config, store)
        check_lengths(lengths, run.explicit)
        if held_spool is None:
            folder.make()
            held.enter_context(folder.lock("driver", timeout_seconds=5))
        identity = _identity(space, run.config)
        folder.open(space.method, identity, run.store, store.digest, FREE_SETTINGS)
        _check_names(spec)
        _restore_records(folder, spec)
        if _cluster_failures(folder) or not _is_complete(spec):
            _compare_versions(folder, is_strict=run.is_strict)
        launch = read_record(folder.launch, "launch") or {}
        is_accepted = run.accepts_long_run or launch.get("is_length_accepted", False)
        run = replace(run, accepts_long_run=is_accepted)
        spec = replace(spec, run=run)
        launch |= {"given": dict(spec.options), "tracking": run.tracking}
        if is_accepted:
            launch["is_length_accepted"] = True
        write_record(folder.launch, "launch", launch)
        _forget_cluster_failures(folder, spec)
        if not _is_complete(spec):
            if not cluster_to_join():
                # Check before anything is recorded: a plan that does not fit must not count as a
                # failed sweep.
                _trial_resources(spec, [local_node()])
            folder.record_precision(_decide_precision(spec, folder).name)
            folder.record_encoder(encoder_record(run.config))
        spec = replace(
            spec,
            run=replace(run, precision=folder.precision),
            data_digest=store.digest,
            encoder=folder.encoder,
        )
        if held_spool is not None:
            spec = replace(spec, start=uuid.uuid4().hex, lease=held_spool.key)
        tracker = Tracker(folder, uri, space.method, identity.to_mapping(), store.digest)
        if not _is_complete(spec):
            report_cuts(lengths, folder, tracker)
        with StopSignals(spec.stop) as signals:
            return _carry_out(spec, tracker, signals, held_spool)


def check_scheduler(space: SearchSpace) -> None:
    """Refuse a scheduler that a sweep in a bucket cannot have.

    Raises:
        ConfigError: for population-based training, whose trials read each other's folders.
    """
    if space.scheduler.kind == "pbt":
        raise ConfigError(
            "scheduler.kind: pbt, with sweeps in a bucket; want a folder that all nodes see "
            "(--sweeps or RAYBIO_SWEEPS), or asha, hyperband, median or none"
        )


def _identity(space: SearchSpace, base: BaseConfig) -> BaseConfig:
    """Return the identity of a sweep, equal for all starts: its search space and base settings.

    The fields have the classes of both, so that settings that are newer than a sweep get their
    defaults, and those of former names their present ones.
    """

    def with_present_names(recorded: SearchSpace) -> SearchSpace:
        renamed = recorded.renamed(partial(present_path, type(base)))
        return renamed.model_copy(update={"method": present_name(recorded.method)})

    identity: type[BaseConfig] = create_model(
        "SweepIdentity",
        __base__=BaseConfig,
        __validators__={"with_present_names": field_validator("space")(with_present_names)},
        space=(type(space), ...),
        base=(type(base), ...),
    )
    return identity.model_validate({"space": space, "base": base})


def _check_names(spec: SweepSpec) -> None:
    """Refuse trials whose folders would get other names, since they would train and count twice.

    Raises:
        CheckpointError: naming the first one.
    """
    for path in sorted((spec.path / "trials").glob(f"*/{TRIAL_RECORD}")):
        content = read_recomputable(path, "trial")
        if content is None:
            continue  # later restored from the sweep's record, or refused
        name = spec.folder(recorded_trial(spec, content.get("trial"), path)).path.name
        if path.parent.name != name:
            raise CheckpointError(
                f"{path.parent}: the present raybio names this trial {name}. The sweep was begun "
                "by another version, or settings have other defaults now: choose another --name"
            )


def _decide_precision(spec: SweepSpec, folder: RunFolder) -> Decision:
    """Decide and print the precision of all trials with ``precision: auto``.

    A resumed sweep keeps its precision.

    Raises:
        ClusterError: if no trial fits, or a node of the cluster does not answer.
        ConfigError: for bf16 on GPUs without it, or tf32 on anything but GPUs with it.
    """
    base: str = "auto" if "precision" in spec.space.paths else spec.run.config.precision
    setting = folder.precision or base
    processors = []
    if setting != "fp32":
        processors = worker_processors(
            lambda nodes: _trial_resources(spec, nodes), verbose=spec.run.verbose
        )
    decision = decide_precision(setting, processors)
    if folder.precision and base == "auto":
        show_decision(replace(decision, reason="as the sweep began"))
    else:
        show_decision(decision)
    return decision


def _carry_out(
    spec: SweepSpec,
    tracker: Tracker,
    signals: StopSignals,
    held_spool: spool.HeldSpool | None,
) -> SweepResult:
    """Run the remaining trials, and write results and report."""
    folder = tracker.folder
    callback = TrialCallback(folder, spec, tracker)
    tracker.start()
    status = "FAILED"
    try:
        callback.catch_up()
        if not _is_complete(spec):
            spec = _run_tune(spec, callback, signals, held_spool)
        ranking, trials = write_results(folder, spec)
        write_sweep_report(folder, spec, ranking, trials)
        if signals.caught:
            raise _interrupted(signals)
        if callback.refused is not None:
            raise _refusal(folder, callback.refused)
        if callback.too_long is not None:
            raise LongRunError(callback.too_long)
        if spec.stop.exists() and not _is_complete(spec):
            # A user created the stop file: raybio's own comes with a signal.
            signals.caught.append(signal.SIGINT)
            raise _interrupted(signals)
        if not ranking:
            raise _all_failed(folder, trials)
        status = "FINISHED"
    except LongRunError:
        status = "KILLED"
        raise
    except (KeyboardInterrupt, SystemExit) as error:  # while Ray was starting
        signals.count_exit(error)
        raise _interrupted(signals) from None
    finally:
        has_failed = status == "FAILED" and not signals.caught
        if has_failed and held_spool is not None and held_spool.lease.is_taken_over():
            callback.abandon()
        try:
            callback.close(is_killed=bool(signals.caught))
        finally:
            tracker.finish("KILLED" if signals.caught else status)
    return SweepResult(folder, spec, ranking, trials, tracker.run_id, tracker.uri)


def _interrupted(signals: StopSignals) -> InterruptedRunError:
    name = signal.Signals(signals.caught[0]).name
    return InterruptedRunError(signals.caught[0], f"{name}: the same command resumes the sweep")


def _refusal(folder: RunFolder, failure: dict[str, Any]) -> RaybioError:
    """Return the error of a sweep of which one trial has shown that it cannot go on."""
    if failure["kind"] == OtherVersionsError.__name__:
        return OtherVersionsError(failure["message"])
    return ConfigError(
        f"{failure['message']}. {folder.path} cannot produce a result: correct the search space, "
        "and give another --name or delete that folder"
    )


def _all_failed(folder: RunFolder, trials: list[TrialRecord]) -> ClusterError:
    reasons = sorted({trial.error for trial in trials if trial.error}) or ["no reason was given"]
    return ClusterError(
        f"{folder.path}: none of {len(trials)} trials came to an evaluation; the first reason of "
        f"{len(reasons)}: {reasons[0]}. trials.csv has all of them"
    )


def _restore_records(folder: RunFolder, spec: SweepSpec) -> None:
    """Restore damaged and missing records of trials from ``trials.json``.

    Raises:
        RecordError: for a trial that is not in it.
    """
    trials = {spec.folder(trial).name: trial for trial in earlier_trials(spec)}
    for path in sorted((folder.path / "trials").glob("*/")):
        record = path / TRIAL_RECORD
        if path.name in trials and read_recomputable(record, "trial") is None:
            write_record(record, "trial", new_trial_record(trials[path.name]))
        elif read_record(record, "trial") is None and (path / "metrics.jsonl").exists():
            raise RecordError(
                f"{record}: missing, want the trial's settings. Restore it from a backup"
            )
        if read_recomputable(path / ENDED, "trial end") is None:
            # The trial resumes, and the scheduler decides again.
            (path / ENDED).unlink(missing_ok=True)


def _compare_versions(folder: RunFolder, *, is_strict: bool) -> None:
    """Print a warning if other versions have trained any of the trials so far.

    Raises:
        OtherVersionsError: if the sweep is strict, naming the first of these trials.
    """
    changes_by_name = {}
    reruns = {path.parent for path in _cluster_failures(folder)}
    for path in sorted((folder.path / "trials").glob("*/")):
        trial = RunFolder(path.parent, path.name, option=None)
        status = status_of(trial)
        if status == FAILED and path not in reruns:
            # It has no result, and is not trained again.
            continue
        has_result = status not in (FAILED, INTERRUPTED)
        changes = compare_versions(trial, is_strict=is_strict, has_ended=has_result)
        changes_by_name[f"{folder.name}/trials/{path.name}"] = changes
    warn_of_other_versions(changes_by_name, "trial")


def _forget_cluster_failures(folder: RunFolder, spec: SweepSpec) -> None:
    """Reset trials that failed because of the cluster, a disk or checkpoints, so that they rerun.

    Other failed trials would fail again.
    """
    spec.stop.unlink(missing_ok=True)
    for path in _cluster_failures(folder):
        (path.parent / ENDED).unlink(missing_ok=True)
        path.unlink()


def _cluster_failures(folder: RunFolder) -> list[Path]:
    """Return the failure records of trials that rerun."""
    paths = []
    for path in (folder.path / "trials").glob("*/failure.json"):
        failure = read_recomputable(path, "failure")
        if failure is None or failure["kind"] in CURABLE:
            paths.append(path)
    return paths


def _is_complete(spec: SweepSpec) -> bool:
    """Return whether all trials that the budget wants have ended."""
    space = spec.space
    first = first_trials(spec)
    # There are fewer trials than in the budget if the space is exhausted.
    if len(first) < len(planned(space, spec.check)):
        return False
    if not all(has_ended(spec.folder(trial)) for trial in first):
        return False
    # Other repetitions, of settings that are no longer the best, may stay interrupted.
    return all(has_ended(spec.folder(trial)) for trial in repetitions(spec))


def _run_tune(
    spec: SweepSpec,
    callback: TrialCallback,
    signals: StopSignals,
    held_spool: spool.HeldSpool | None,
) -> SweepSpec:
    """Run the sweep by Ray Tune, in a thread; return the spec with each trial's CPUs and GPUs.

    Raises:
        ClusterError: if it ends early; for a sweep in a bucket, if another driver has taken it
            over.
    """
    # The dashboard is needed: through its State API, Tune frees resources of stopped trials.
    with started(threads=None, with_dashboard=True, verbose=spec.run.verbose):
        signals.ray_has_started()
        fitting = _trial_resources(spec, cluster_nodes())
        print(fitting.explanation, flush=True)
        if not spec.run.verbose:
            # ``TrialCallback`` already prints a line for every failure.
            logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
        compute = replace(
            spec.run.compute,
            cpus_per_worker=fitting.cpus_per_worker,
            gpus_per_worker=fitting.gpus_per_worker,
        )
        relay = None
        if held_spool is not None:
            from raybio.runtime.spool.relay import start_relay  # imports Ray

            relay = start_relay(spec.path / "trials", spec.path)
        spec = replace(spec, run=replace(spec.run, compute=compute), relay=relay)
        callback.spec = spec
        length = SweepLength(spec, fitting.num_trials)
        work = _Work(spec, callback, fitting.num_trials, signals)
        work.start()
        is_killed = False
        while work.is_alive() and len(signals.caught) < 2:
            work.join(timeout=0.2)
            length.update()
            callback.too_long = length.refusal
            if held_spool is not None:
                held_spool.lease.check_not_lost()
            if signals.caught and not is_killed:
                is_killed = True
                callback.kill()
        if work.error is not None and not signals.caught:
            reason = memory_reason(work.error) or work.error
            raise ClusterError(
                f"{spec.path}: the sweep ended early: {reason}. The same command resumes it"
            ) from work.error
    return spec


def _trial_resources(spec: SweepSpec, nodes: Sequence[Node]) -> TrialResources:
    compute = spec.run.compute
    return trial_resources(
        nodes,
        spec.space,
        workers=compute.num_workers,
        cpus_per_worker=compute.cpus_per_worker,
        gpus_per_worker=compute.gpus_per_worker,
    )


class _Work(threading.Thread):
    """Ray Tune at work."""

    def __init__(
        self,
        spec: SweepSpec,
        callback: TrialCallback,
        max_concurrent: int,
        signals: StopSignals,
    ) -> None:
        super().__init__(name="raybio-sweep", daemon=True)
        self.spec = spec
        self.callback = callback
        self.max_concurrent = max_concurrent
        self.signals = signals
        self.error: BaseException | None = None

    def run(self) -> None:
        """Run the sweep, then repeat its best settings with other seeds."""
        try:
            folder = self.callback.folder
            shutil.rmtree(folder.ray, ignore_errors=True)
            search = tune_config(self.spec, first_trials(self.spec), self.max_concurrent)
            if search is not None:
                self._fit(*search)
            if self.signals.caught or self.callback.too_long or self.spec.stop.exists():
                return
            again = repetitions(self.spec)
            if again:
                self._fit(*listed(again, self.max_concurrent))
        except BaseException as error:
            # The waiting thread raises it.
            self.error = error

    def _fit(self, param_space: dict[str, Any], config: tune.TuneConfig) -> None:
        tune.Tuner(
            tune.with_resources(_trainable(self.spec), _reserved(self.spec)),
            param_space=param_space,
            tune_config=replace(config, reuse_actors=self.spec.run.compute.num_workers == 1),
            run_config=tune.RunConfig(
                # Use a new name each time, since trials resume from their own folders.
                name=uuid.uuid4().hex[:8],
                storage_path=str(self.callback.folder.ray),
                failure_config=tune.FailureConfig(max_failures=MAX_TRIAL_FAILURES),
                callbacks=[self.callback, _SilentProgress()],
                stop=_Stopper(self.signals),
                verbose=0,
            ),
        ).fit()


def _run(config: dict[str, Any], spec: SweepSpec) -> None:
    run_trial(config[TRIAL], spec)


def _trainable(spec: SweepSpec) -> Any:
    """Return the trainable that Tune starts for a trial."""
    run = tune.with_parameters(_run, spec=spec)
    if spec.run.compute.num_workers == 1:
        return run

    class WithWorkers(wrap_function(run)):  # type: ignore[misc]
        """Ends only after its workers, so that their reserved resources are free."""

        def cleanup(self) -> None:
            super().cleanup()
            wait_for_workers(STOP_SECONDS)

    return WithWorkers


def _reserved(spec: SweepSpec) -> dict[str, float]:
    """Return Tune's resources for a trial's process; several workers reserve their own."""
    compute = spec.run.compute
    if compute.num_workers > 1 and spec.run.bucket is not None:
        # It works in the driver's folder, so on the driver's machine, which may have no CPUs for
        # tasks.
        return {f"node:{ray.util.get_node_ip_address()}": 0.001}
    if compute.num_workers > 1:
        return {"CPU": 0.01}
    reserved = {"CPU": compute.cpus_per_worker, "GPU": compute.gpus_per_worker}
    return {name: amount for name, amount in reserved.items() if amount}


class _SilentProgress(TrialProgressCallback):  # type: ignore[misc]
    """Prints nothing.

    Without a callback of this class, Tune adds its own, which prints ended trials at any verbosity.
    """

    def __getstate__(self) -> dict[str, Any]:
        # See TrialCallback.
        return {}

    def _print(self, msg: str) -> None:
        pass


class _Stopper(tune.Stopper):
    """Ends all trials some time after a signal, so that they can write a last checkpoint."""

    def __init__(self, signals: StopSignals) -> None:
        self._signals = signals
        self._deadline = math.inf

    def __getstate__(self) -> dict[str, Any]:
        # See TrialCallback.
        return {}

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        if self._signals.caught and self._deadline == math.inf:
            self._deadline = time.monotonic() + STOP_SECONDS
        return time.monotonic() > self._deadline
