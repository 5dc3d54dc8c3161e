"""Several training runs of one command, as many at a time as fit the cluster.

Each run is a Ray task that trains in one process, in the run's own folder. Its weights equal those
of Ray Train with one worker and as many threads. Runs of several workers use Ray Train, one after
the other.
"""

import contextlib
import signal
import time
from collections.abc import Sequence
from dataclasses import replace

from raybio.core.errors import InterruptedRunError, LongRunError, RaybioError, StopFileError
from raybio.core.text import first_names
from raybio.runtime.cluster.connection import cluster_nodes, cluster_to_join, started
from raybio.runtime.cluster.stop_signals import StopSignals
from raybio.runtime.run.driver import planned, train_opened
from raybio.runtime.run.duration import Tally
from raybio.runtime.run.open_run import (
    MOST_NAMED,
    OpenRun,
    compare_versions,
    warn_of_other_versions,
)
from raybio.runtime.run.result import Result
from raybio.runtime.run.run_queue import RunQueue, train_queue
from raybio.runtime.run.run_task import RunTask
from raybio.runtime.run.shares import concurrency
from raybio.runtime.run.spec import RunSpec
from raybio.runtime.tracking.tracker import wait_for_all
from raybio.store.store import open_store
from raybio.training.settings import COMPLETE


def train_runs(groups: Sequence[Sequence[RunSpec]]) -> list[list[Result]]:
    """Start, resume or read runs, and return the results of each group.

    A failed run does not affect the others.

    Args:
        groups: runs that are compared, with a decided precision. In MLflow, the other runs of a
            group belong to its first.

    Raises:
        InterruptedRunError: if SIGINT or SIGTERM ended the runs.
        RaybioError: as ``train``. The error of a run is raised when all other runs have ended.
    """
    with contextlib.ExitStack() as held:
        runs_by_group = [_open(group, held) for group in groups]
        runs = [run for group_runs in runs_by_group for run in group_runs]
        unfinished = [run for run in runs if run.finished is None]
        if unfinished:
            _compare_versions(runs)
            # Check before anything is recorded, since a plan that does not fit or a damaged store
            # must not count as a failed run.
            for store in {run.spec.store for run in unfinished}:
                open_store(store, verify=True)
            is_one_worker = all(run.spec.compute.num_workers == 1 for run in runs)
            train = _train_together if is_one_worker and len(runs) > 1 else _train_in_turn
            train(unfinished, len(runs))
    return [[run.finished or run.result() for run in group_runs] for group_runs in runs_by_group]


def _open(group: Sequence[RunSpec], held: contextlib.ExitStack) -> list[OpenRun]:
    """Open the runs of a group, and hold the unfinished ones."""
    runs: list[OpenRun] = []
    for spec in group:
        first = runs[0] if runs else None
        if first is not None and first.finished is not None:
            spec = replace(spec, parent_run_id=first.finished.mlflow_run_id)
        with contextlib.ExitStack() as held_here:
            run = OpenRun.open(spec, held_here)
            if run.finished is not None:
                run.tracker.catch_up()
            else:
                held.enter_context(held_here.pop_all())
        if first is not None and first.finished is None:
            # Set the parent only now, not when creating the tracker: the key must not depend on it,
            # so that a command that trains only this run finds it again.
            run.tracker.parent = first.tracker
        runs.append(run)
    return runs


def _compare_versions(runs: Sequence[OpenRun]) -> None:
    """Print a warning for finished runs that other versions have trained.

    Unfinished runs warn when they begin.

    Raises:
        OtherVersionsError: for a strict run, finished or not; before anything is recorded.
    """
    changes_by_name = {}
    for run in runs:
        is_finished = run.finished is not None
        changes = compare_versions(run.folder, is_strict=run.spec.is_strict, has_ended=is_finished)
        if is_finished:
            changes_by_name[run.spec.name] = changes
    warn_of_other_versions(changes_by_name, "finished run")


def _train_in_turn(runs: Sequence[OpenRun], num_runs: int) -> None:
    """Train one run after the other, each with all of its workers.

    Args:
        runs: unfinished runs, which this driver holds.
        num_runs: number of all runs of the command.
    """
    computes = [planned(run) for run in runs]
    failures: list[RaybioError | OSError] = []
    tally = Tally(len(runs), 1, time.monotonic())
    for run, compute in zip(runs, computes, strict=True):
        if run.tracker.parent is not None:
            # The parent has ended. This run has the machine to itself, and samples its load.
            run.tracker.parent_run_id = run.tracker.parent.run_id
            run.tracker.parent = None
        try:
            outcome = train_opened(run, compute).status
        except (RaybioError, OSError) as error:
            is_signal = isinstance(error, InterruptedRunError)
            if is_signal and not isinstance(error, StopFileError):
                raise
            is_stopped = isinstance(error, (StopFileError, LongRunError))
            outcome = f"{'stopped' if is_stopped else 'failed'}: {error}"
            failures.append(error)
        tally.count(outcome)
        if num_runs > 1:
            print(f"{run.spec.name}: {outcome}; {tally.in_words(time.monotonic())}", flush=True)
    if failures:
        raise failures[0]


def _train_together(runs: Sequence[OpenRun], num_runs: int) -> None:
    """Train runs of one worker at the same time, as far as the cluster has room.

    Args:
        runs: unfinished runs, which this driver holds.
        num_runs: number of all runs of the command, which share the cluster. Finished runs count,
            so that a run has the same share at each start.
    """
    threads = None
    if not cluster_to_join():
        placements = concurrency([run.spec for run in runs], num_runs).placements
        different = {placement.threads for placement in placements}
        threads = different.pop() if len(different) == 1 else None
    with StopSignals(*[run.folder.stop for run in runs]) as signals:
        tasks: list[RunTask] = []
        refused: list[RaybioError | OSError] = []
        broken: Exception | None = None
        try:
            with started(threads=threads, verbose=runs[0].spec.verbose):
                signals.ray_has_started()
                nodes = cluster_nodes()
                if not signals.caught:
                    train_queue(RunQueue(runs, nodes, num_runs), tasks, refused, signals)
        except (KeyboardInterrupt, SystemExit) as error:  # while Ray was starting
            signals.count_exit(error)
        except Exception as error:
            broken = error
            raise
        finally:
            for task in tasks:
                task.end(signals.caught, broken)
            wait_for_all([task.settle for task in tasks], is_killed=bool(signals.caught))
    if signals.caught:
        raise _interrupted(tasks, runs, num_runs, signals.caught[0])
    failures = [(task.run.spec.name, task.error) for task in tasks if task.error is not None]
    for name, failure in failures[1:]:
        print(f"{name} failed, too: {failure}", flush=True)
    errors = [*(failure for _, failure in failures), *refused]
    if errors:
        raise errors[0]


def _interrupted(
    tasks: Sequence[RunTask], runs: Sequence[OpenRun], num_runs: int, number: int
) -> InterruptedRunError:
    """Return the error of a command that a signal ended.

    Args:
        tasks: runs that have begun and are concluded.
        runs: all runs that were not finished when the command started.
        num_runs: number of all runs of the command.
        number: the signal.
    """
    name = signal.Signals(number).name
    complete = {task.run.spec.name for task in tasks if task.status in COMPLETE}
    left = [run.spec.name for run in runs if run.spec.name not in complete]
    if not left:
        text = f"all {num_runs} runs are finished; the same command shows their table"
    else:
        listed = first_names(left, MOST_NAMED)
        verb = "is" if len(left) == 1 else "are"
        text = (
            f"{len(left)} of {num_runs} runs {verb} not finished ({listed}); the same command "
            "resumes them"
        )
    return InterruptedRunError(number, f"{name}: {text}")
