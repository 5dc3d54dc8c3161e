"""One trial of a sweep at work: a run whose evaluations are told to Ray Tune as they come.

A sweep that is started again tells Tune of the steps that are on disk and goes on from the newest checkpoint. Whatever
the scheduler decided, it decides again; a trial that has ended only tells.

What Tune takes for a trial's checkpoint is a note of a folder and a step. The checkpoint itself stays in the folder,
and population-based training, which lets a trial go on from another one's weights, copies it from there.
"""

import socket
import time
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from raybio.core.errors import ClusterError, ConfigError, DivergedError, RaybioError
from raybio.core.records import read_recomputable, read_record, write_record
from raybio.methods import METHODS
from raybio.runtime.cluster.room import Resources
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.goal import Goal
from raybio.runtime.run.metrics_log import MetricsLog, MetricsTail, read_reports
from raybio.runtime.run.notices import warnings_to
from raybio.runtime.tune.trial import NOTE, Trial, TrialSpec, has_ended
from raybio.store.store import open_store
from raybio.training.checkpoint import copy_to_run, list_checkpoints, step_of_checkpoint
from raybio.training.settings import TrainingConfig

OBJECTIVE = "objective"
"""What Tune compares: the best value of the metric over the trial's evaluated steps so far."""


NOTICE_POLL_SECONDS = 2.0


def run_trial(asked: Mapping[str, Any], spec: TrialSpec) -> None:
    """Train, telling Tune of every evaluation; called by Tune, in a process of its own.

    An error that trying again would not cure is left in ``failure.json``, and the trial just ends.

    Raises:
        ClusterError: if something was away that may come back.
    """
    if spec.stop.exists():
        return
    trial = Trial(**asked)
    folder = spec.folder(trial)
    if not (folder.path / NOTE).exists():
        raise ClusterError(
            f"{socket.gethostname()} does not see {folder.path}, which the driver made: trials and driver must share "
            "the sweeps folder. Choose one that all of them see with --sweeps or RAYBIO_SWEEPS"
        )
    note = read_record(folder.path / NOTE, "trial")
    started, told = time.monotonic(), list[tuple[int, float]]()

    def note_time() -> None:
        nonlocal started
        now = time.monotonic()
        note["worker_seconds"] += spec.workers * (now - started)
        started = now
        if not has_ended(folder):
            write_record(folder.path / NOTE, "trial", note)

    try:
        told_step = _told_step(spec, trial)
        known = _known_values(folder, spec.goal)
        if known and spec.space.scheduler.kind == "pbt":
            # A population goes on from where its members stand: they would be judged by their first steps again.
            told_step = max(told_step, known[-1][0] - 1)
        with warnings_to(folder.notices):
            for step, value in chain(known, _new_values(folder, spec, trial)):
                told.append((step, value))
                note_time()
                if step > told_step:
                    _tell(folder, spec.goal, told)
        if not told and not spec.stop.exists() and not folder.failure.exists():
            if any(
                spec.goal.metric in report.get("not_finite", {})
                for report in read_reports(folder.metrics)
            ):
                raise DivergedError(
                    f"{spec.goal.metric} is undefined (NaN) at every evaluation, want a number to compare by: the "
                    "model predicts the same for all rows"
                )
            raise ConfigError(
                f"metric: {spec.space.metric!r} is never evaluated: the store holds nothing out to judge by"
            )
    except ClusterError:
        raise  # Tune tries again
    except RaybioError as error:
        write_record(
            folder.failure, "failure", {"kind": type(error).__name__, "message": str(error)}
        )
    finally:
        note_time()  # what came after the last evaluation, or came to none, has cost as much


def _tell(folder: RunFolder, goal: Goal, told: list[tuple[int, float]]) -> None:
    import tempfile

    import ray.tune

    step, value = told[-1]
    best = goal.best(told)
    assert best is not None
    report = {"step": step, OBJECTIVE: best[1], "best_step": best[0], goal.metric: value}
    with tempfile.TemporaryDirectory() as place:
        write_record(
            Path(place) / NOTE, "trial checkpoint", {"folder": str(folder.path), "step": step}
        )
        ray.tune.report(report, checkpoint=ray.tune.Checkpoint.from_directory(place))


def _told_step(spec: TrialSpec, trial: Trial) -> int:
    """The step up to which Tune knows the trial; another trial's checkpoint, if it goes on from one, is copied here.

    Raises:
        CheckpointError: if that checkpoint is gone or damaged.
    """
    import ray.tune

    found = ray.tune.get_checkpoint()
    if found is None:
        return -1
    with found.as_directory() as place:
        note = read_record(Path(place) / NOTE, "trial checkpoint")
    folder, donor = spec.folder(trial), Path(note["folder"])
    if donor != folder.path and not list_checkpoints(folder.checkpoints):
        _go_on_from(
            RunFolder(donor.parent, donor.name), folder, spec.config(trial.settings), note["step"]
        )
    return int(note["step"])


def _go_on_from(donor: RunFolder, folder: RunFolder, config: TrainingConfig, step: int) -> None:
    """Copy a checkpoint and what led to it."""
    saved = list_checkpoints(donor.checkpoints)
    source = next(
        (one for one in saved if step_of_checkpoint(one) == step), saved[0] if saved else None
    )
    if source is None:
        raise ClusterError(f"{donor.path}: has no checkpoint of step {step:,} to go on from")
    folder.make()
    log = MetricsLog(folder.metrics)
    for report in read_reports(donor.metrics):
        if report["step"] <= step_of_checkpoint(source):
            log.append(report["step"], report["metrics"], goes_on_from=donor.name)
    copy_to_run(source, folder.checkpoints, config, folder.records())


def _known_values(folder: RunFolder, goal: Goal) -> list[tuple[int, float]]:
    """(step, value) of each evaluation on disk, of a trial that goes on up to the step from which it does."""
    known = goal.values(read_reports(folder.metrics))
    if has_ended(folder):
        return known
    newest = folder.newest_checkpoint
    if newest is None or folder.failure.exists():
        return []
    return [(step, value) for step, value in known if step <= step_of_checkpoint(newest)]


def _new_values(folder: RunFolder, spec: TrialSpec, trial: Trial) -> Iterator[tuple[int, float]]:
    """(step, value) of each evaluation that is new, as it comes; none of a trial that came to its end."""
    if has_ended(folder) or folder.failure.exists():
        return
    outcome = read_recomputable(folder.outcome, "outcome")
    if outcome is not None and outcome["status"] != "stopped":
        return
    last = max((step for step, _ in _known_values(folder, spec.goal)), default=-1)
    store = open_store(spec.store)
    config = spec.config(trial.settings)
    folder.open(spec.space.method, config, Path(spec.store), store.digest, ())
    folder.record_precision(spec.precision_of(config))
    folder.stop.unlink(missing_ok=True)
    train = _trained_by_workers if spec.workers > 1 else _trained_here
    for step, value in train(folder, spec, config):
        if step > last:
            yield step, value


def _trained_here(
    folder: RunFolder, spec: TrialSpec, config: TrainingConfig
) -> Iterator[tuple[int, float]]:
    """Train in this process."""
    import torch

    from raybio.runtime.run.worker import walk_alone

    if spec.setup is not None:
        spec.setup(0, folder.path)
    torch.set_num_threads(spec.threads)
    device = "cuda" if spec.gpus_per_worker else "cpu"
    system = METHODS[spec.space.method].build(config, spec.store)
    reports = walk_alone(
        system,
        config,
        folder,
        device=device,
        precision=spec.precision_of(config),
        stop=spec.stop,
        goal=spec.goal,
        should_checkpoint=NodeNotice(),
    )
    for report in reports:
        line = {
            "step": report.step,
            "metrics": report.metrics,
            "is_evaluation": report.is_evaluation,
        }
        spec.goal.check(line)
        yield from spec.goal.values([line])


class NodeNotice:
    """Whether a checkpoint is due because this node will be taken away: at the notice, and until it is gone."""

    def __init__(self) -> None:
        """Find out which node this is."""
        import ray

        self._node, self._next_look = ray.get_runtime_context().get_node_id(), 0.0

    def __call__(self) -> bool:
        """Look, if it is time to."""
        import ray

        from raybio.runtime.run.worker import NOTICE_SECONDS

        now = time.monotonic()
        if now < self._next_look:
            return False
        # What Ray Train asks on behalf of its workers; here is nobody who would.
        is_draining = self._node in ray._private.state.state.get_draining_nodes()
        self._next_look = now + (NOTICE_SECONDS if is_draining else NOTICE_POLL_SECONDS)
        return is_draining


def _checked(goal: Goal, tail: MetricsTail) -> list[tuple[int, float]]:
    reports = tail.read()
    for report in reports:
        goal.check(report)
    return goal.values(reports)


def _trained_by_workers(
    folder: RunFolder, spec: TrialSpec, config: TrainingConfig
) -> Iterator[tuple[int, float]]:
    """Train with several workers: Ray Train works in a thread, and this one follows the run's log."""
    from raybio.runtime.run.worker import Order
    from raybio.runtime.run.worker_group import explained, fit_in_thread

    folder.outcome.unlink(missing_ok=True)
    resources = Resources(spec.workers, spec.cpus_per_worker, spec.gpus_per_worker, spec.threads)
    asked = Order(
        method=spec.space.method,
        config=config.to_mapping(),
        store=spec.store,
        runs=str(folder.path.parent),
        name=folder.name,
        threads=spec.threads,
        precision=spec.precision_of(config),
        start=folder.begin_start(),
        goal=spec.goal,
        setup=spec.setup,
    )
    work = fit_in_thread(asked, resources)
    tail, last = MetricsTail(folder.metrics), list[tuple[int, float]]()
    try:
        while work.thread.is_alive():
            work.thread.join(timeout=0.2)
            if spec.stop.exists():
                folder.stop.touch()
            for step, value in _checked(spec.goal, tail):
                if step < config.schedule.max_steps:
                    yield step, value
                else:  # told when the run has ended: at the last step a scheduler ends the trial, and its workers
                    last.append((step, value))
        yield from (*last, *_checked(spec.goal, tail))
    finally:
        if work.thread.is_alive():
            folder.stop.touch()  # Tune has enough of this trial
    if not folder.outcome.exists():
        raise explained(folder, work.error)
