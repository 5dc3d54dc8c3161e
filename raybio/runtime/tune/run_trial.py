"""Run one trial of a sweep: a training run whose evaluations are reported to Ray Tune.

A resumed sweep reports the evaluations on disk again, and training resumes from the newest
checkpoint, so the scheduler makes the same decisions again. An ended trial only reports.

The checkpoint that Tune sees is a small record of a folder and a step. The weights stay in the
trial's folder. Population-based training copies them from there when one trial exploits another.

For a sweep in a bucket, this process works on a copy of the trial's folder (``runtime/spool``).
With several workers, it runs on the driver's machine, in the driver's folder, and its workers have
copies.
"""

import contextlib
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from raybio.core.errors import ClusterError, ConfigError, DivergedError, RaybioError
from raybio.core.records import read_recomputable, read_record, write_record
from raybio.runtime.cluster.resources import Resources
from raybio.runtime.run.encoder_source import encoder_record, pin_encoder, pin_on_worker
from raybio.runtime.run.folder import RunFolder, record_failure
from raybio.runtime.run.goal import Goal
from raybio.runtime.run.metrics_log import MetricsLog, MetricsTail, read_reports
from raybio.runtime.run.notices import warnings_to
from raybio.runtime.spool.relay import WorkerCopy, worker_copy
from raybio.runtime.tune.trial import TRIAL_RECORD, SweepSpec, Trial, has_ended
from raybio.store.store import open_store
from raybio.training.checkpoint import copy_to_run, list_checkpoints, step_of_checkpoint
from raybio.training.settings import TrainingConfig

BEST_VALUE = "objective"
"""The value that Tune compares: the best of the metric over the trial's evaluated steps."""

StepValues = Iterator[tuple[int, float]]
"""(step, value of the metric) of evaluations, in order."""


def run_trial(settings: Mapping[str, Any], spec: SweepSpec) -> None:
    """Train and report every evaluation to Tune, which calls this in a separate process.

    An error that a retry would not cure is written to ``failure.json``, and the trial ends.

    Args:
        settings: fields of ``Trial``.
        spec: specification that the sweep's trials share.

    Raises:
        ClusterError: if a resource is unavailable that may recover.
    """
    if spec.stop.exists():
        return
    trial = Trial(**settings)
    with _process_of(spec, trial) as process:
        folder = process.folder
        if process.stop.exists():
            return
        if not (folder.path / TRIAL_RECORD).exists():
            raise ClusterError(
                f"{socket.gethostname()} does not see {folder.path}, which the driver made: trials "
                "and driver must share the sweeps folder. Choose one that all of them see, or a "
                "bucket, with --sweeps or RAYBIO_SWEEPS"
            )
        clock = _TrialClock(folder, spec.run.compute.num_workers)
        try:
            _train_and_report(process, clock)
        except ClusterError:
            # Tune tries again.
            raise
        except (RaybioError, OSError) as error:
            record_failure(folder, error)
            if not folder.failure.exists():
                # Tune tries again.
                raise
        finally:
            # Count the cost of training after the last evaluation too.
            clock.record()


@dataclass(frozen=True)
class _Process:
    """A trial's process.

    Attributes:
        spec: specification that the sweep's trials share.
        trial: the trial.
        copy: its run, from the view of this process.
    """

    spec: SweepSpec
    trial: Trial
    copy: WorkerCopy

    @property
    def folder(self) -> RunFolder:
        """The trial's folder, from the view of this process."""
        return self.copy.spec.run.folder

    @property
    def config(self) -> TrainingConfig:
        """The trial's configuration."""
        return self.copy.spec.run.config

    @property
    def stop(self) -> Path:
        """The stop file by which the driver ends this process."""
        return self.spec.stop if self.copy.remote is None else self.folder.stop

    def newest_step(self) -> int | None:
        """Return the step that training resumes from; None: from its beginning.

        The log of a checkpoint in a bucket replaces the log of this process.
        """
        if self.copy.remote is not None:
            return self.copy.remote.restore_newest_log(self.folder.metrics)
        newest = self.folder.newest_checkpoint
        return None if newest is None else step_of_checkpoint(newest)


@contextlib.contextmanager
def _process_of(spec: SweepSpec, trial: Trial) -> Iterator[_Process]:
    worker_spec = spec.worker_spec(trial)
    if spec.run.compute.num_workers > 1:
        yield _Process(spec, trial, WorkerCopy(worker_spec, None))
        return
    with worker_copy(worker_spec, rank=0) as copy:
        yield _Process(spec, trial, copy)


class _TrialClock:
    """Adds the seconds of training, summed over workers, to the trial's record."""

    def __init__(self, folder: RunFolder, num_workers: int) -> None:
        self._folder = folder
        self._num_workers = num_workers
        self._content = read_record(folder.path / TRIAL_RECORD, "trial") or {}
        self._since = time.monotonic()

    def record(self) -> None:
        """Add the time since the last call; the record of an ended trial stays as it is."""
        now = time.monotonic()
        self._content["worker_seconds"] += self._num_workers * (now - self._since)
        self._since = now
        if not has_ended(self._folder):
            write_record(self._folder.path / TRIAL_RECORD, "trial", self._content)


def _train_and_report(process: _Process, clock: _TrialClock) -> None:
    spec = process.spec
    folder = process.folder
    reported_step = _reported_step(spec, process.trial)
    known = _known_values(process)
    if known and spec.space.scheduler.kind == "pbt":
        # With reports of earlier steps, the scheduler would compare the population by them again.
        reported_step = max(reported_step, known[-1][0] - 1)
    values: list[tuple[int, float]] = []
    with warnings_to(folder.notices):
        for step, value in chain(known, _new_values(process, known)):
            values.append((step, value))
            clock.record()
            if step > reported_step:
                # The driver reads the trial's files when Tune calls it.
                process.copy.flush()
                _report(process, values)
    if not values and not process.stop.exists() and not folder.failure.exists():
        raise _without_values(folder, spec)


def _without_values(folder: RunFolder, spec: SweepSpec) -> RaybioError:
    """Return the error of a complete trial that has no value to be compared by."""
    metric = spec.goal.metric
    for report in read_reports(folder.metrics):
        if metric in report.get("not_finite", {}):
            return DivergedError(
                f"{metric} is undefined (NaN) at every evaluation, want a number to compare by: "
                "the model predicts the same for all rows"
            )
    return ConfigError(
        f"metric: {spec.space.metric!r} is never evaluated: the store has no held-out rows"
    )


def _report(process: _Process, values: list[tuple[int, float]]) -> None:
    """Report the newest and the best of a trial's values to Tune."""
    import tempfile

    import ray.tune

    goal = process.spec.goal
    step, value = values[-1]
    best = goal.best(values)
    assert best is not None
    report = {"step": step, BEST_VALUE: best[1], "best_step": best[0], goal.metric: value}
    if process.spec.run.bucket is not None:
        # A Tune checkpoint would need a folder that all nodes see. Without one, steps are reported
        # again, which is harmless.
        ray.tune.report(report)
        return
    content = {"folder": str(process.folder.path), "step": step}
    with tempfile.TemporaryDirectory() as temporary:
        write_record(Path(temporary) / TRIAL_RECORD, "trial checkpoint", content)
        ray.tune.report(report, checkpoint=ray.tune.Checkpoint.from_directory(temporary))


def _reported_step(spec: SweepSpec, trial: Trial) -> int:
    """Return the step up to which Tune knows the trial.

    This also copies the checkpoint of another trial that this one exploits.

    Raises:
        ClusterError: if that checkpoint is gone.
    """
    import ray.tune

    folder = spec.folder(trial)
    checkpoint = ray.tune.get_checkpoint()
    if checkpoint is None:
        if trial.donor and not list_checkpoints(folder.checkpoints):
            # The driver was killed before the checkpoint was copied, and Tune no longer knows it.
            donor_folder = RunFolder(folder.path.parent, trial.donor)
            _exploit(donor_folder, folder, spec.config(trial.settings), None)
        return -1
    with checkpoint.as_directory() as temporary:
        content = read_record(Path(temporary) / TRIAL_RECORD, "trial checkpoint") or {}
    donor = Path(content["folder"])
    step = int(content["step"])
    if donor != folder.path and not list_checkpoints(folder.checkpoints):
        _exploit(RunFolder(donor.parent, donor.name), folder, spec.config(trial.settings), step)
    return step


def _exploit(donor: RunFolder, folder: RunFolder, config: TrainingConfig, step: int | None) -> None:
    """Copy a checkpoint of the donor, and its log up to there.

    It is the checkpoint of ``step``, or else the newest one before the last step, since after the
    last step nothing is left to train.
    """
    checkpoints = list_checkpoints(donor.checkpoints)
    if not checkpoints:
        of_step = "" if step is None else f" of step {step:,}"
        raise ClusterError(f"{donor.path}: has no checkpoint{of_step} to resume from")
    wanted = [each for each in checkpoints if step_of_checkpoint(each) == step]
    before_end = [
        each for each in checkpoints if step_of_checkpoint(each) < config.schedule.max_steps
    ]
    source = (wanted or before_end or checkpoints)[0]
    folder.make()
    log = MetricsLog(folder.metrics)
    for report in read_reports(donor.metrics):
        if report["step"] <= step_of_checkpoint(source):
            log.append(report["step"], report["metrics"], exploited_from=donor.name)
    copy_to_run(source, folder.checkpoints, config, folder.records())


def _known_values(process: _Process) -> list[tuple[int, float]]:
    """Return (step, value) of the evaluations on disk that training will not repeat."""
    folder = process.folder
    goal = process.spec.goal
    if has_ended(folder):
        return goal.values(read_reports(folder.metrics))
    newest_step = process.newest_step()
    if newest_step is None or folder.failure.exists():
        return []
    known = goal.values(read_reports(folder.metrics))
    return [(step, value) for step, value in known if step <= newest_step]


def _new_values(process: _Process, known: list[tuple[int, float]]) -> StepValues:
    """Train, and yield (step, value) of each new evaluation; nothing for an ended trial.

    Args:
        process: the trial's process.
        known: (step, value) of evaluations that training does not repeat.
    """
    spec = process.spec
    folder = process.folder
    config = process.config
    if has_ended(folder) or folder.failure.exists():
        return
    outcome = read_recomputable(folder.outcome, "outcome")
    if outcome is not None and outcome["status"] != "stopped":
        return
    last = max((step for step, _ in known), default=-1)
    # The driver has verified only the copy of its own machine.
    store = open_store(spec.run.store, verify=True, digest=spec.data_digest)
    folder.open(spec.space.method, config, spec.run.store, store.digest, ())
    folder.record_precision(spec.precision_of(config))
    # Use the sweep's commit, unless the trial has begun with its own or has another source.
    pin_on_worker(spec.encoder)
    pin_encoder(folder)
    folder.record_encoder(encoder_record(config))
    folder.stop.unlink(missing_ok=True)
    train = _train_by_workers if spec.run.compute.num_workers > 1 else _train_here
    for step, value in train(process):
        if step > last:
            yield step, value


def _train_here(process: _Process) -> StepValues:
    """Train in this process, and yield (step, value) of each evaluation."""
    from raybio.runtime.run.task_worker import train_here

    spec = process.spec
    reports = train_here(
        process.copy.spec,
        device="cuda" if spec.run.compute.gpus_per_worker else "cpu",
        stop=process.stop,
        remote=process.copy.remote,
    )
    # Read values from the log, which also has a report that was lost in a kill after its
    # checkpoint.
    tail = MetricsTail(process.folder.metrics)
    for _ in reports:
        yield from _check_new_values(spec.goal, tail)


def _check_new_values(goal: Goal, tail: MetricsTail) -> list[tuple[int, float]]:
    """Return (step, value) of new evaluations in the log, after checking them."""
    reports = tail.read()
    for report in reports:
        goal.check(report)
    return goal.values(reports)


def _train_by_workers(process: _Process) -> StepValues:
    """Train with several workers, and yield (step, value) of each evaluation.

    Ray Train runs in a thread, while this thread reads the run's log.
    """
    from raybio.runtime.run.worker_group import explained, fit_in_thread

    spec = process.spec
    folder = process.folder
    max_steps = process.config.schedule.max_steps
    folder.outcome.unlink(missing_ok=True)
    compute = spec.run.compute
    resources = Resources(
        compute.num_workers,
        compute.cpus_per_worker or 1,
        compute.gpus_per_worker or 0,
        spec.threads,
    )
    work = fit_in_thread(replace(process.copy.spec, start=folder.begin_start()), resources)
    tail = MetricsTail(folder.metrics)
    # At the last step, a scheduler ends a trial and its workers, so the last value is held back
    # until they end.
    last: list[tuple[int, float]] = []
    try:
        while work.thread.is_alive():
            work.thread.join(timeout=0.2)
            if spec.stop.exists():
                folder.stop.touch()
            for step, value in _check_new_values(spec.goal, tail):
                if step < max_steps:
                    yield step, value
                else:
                    last.append((step, value))
        yield from last
        yield from _check_new_values(spec.goal, tail)
    finally:
        if work.thread.is_alive():
            # Tune has ended this trial, so its workers must stop.
            folder.stop.touch()
    if not folder.outcome.exists():
        raise explained(folder, work.error)
