"""A queue of runs, which begin as Ray tasks when there is room and are followed until they end."""

import contextlib
import math
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from raybio.core.errors import RaybioError
from raybio.core.text import count_of
from raybio.runtime.cluster.resources import Node, Resources
from raybio.runtime.cluster.stop_signals import StopSignals
from raybio.runtime.console import PrintableConsole
from raybio.runtime.run.driver import relay_of
from raybio.runtime.run.duration import Tally, in_words
from raybio.runtime.run.open_run import OpenRun
from raybio.runtime.run.run_task import RunTask
from raybio.runtime.run.shares import share_of, threads_of
from raybio.runtime.spool.lease import LostLeaseError

POLL_SECONDS = 0.2


class RunQueue:
    """The runs of a command, which begin in order while others train.

    At most one more run has begun than the cluster trains at a time. So the number of threads does
    not grow with the number of runs, and an autoscaling cluster sees that more work is waiting.
    Each unfinished run holds one open file, its lock, from the beginning.

    Runs in a bucket cost more: from the beginning, each holds two threads, which renew its lease (a
    request every 10 s) and look for changed files every 2 s. 500 runs hold 1,000 threads and make
    50 requests a second.

    Attributes:
        num_at_a_time: maximum number of runs that are trained at the same time.
        num_steps: number of steps left of all runs.
    """

    def __init__(self, runs: Sequence[OpenRun], nodes: Sequence[Node], num_runs: int) -> None:
        """Divide the cluster.

        Args:
            runs: unfinished runs.
            nodes: nodes of the cluster.
            num_runs: number of all runs of the command.

        Raises:
            ClusterError: if a run fits no node.
        """
        shares = [share_of(run.spec.compute, nodes, num_runs) for run in runs]
        print(shares[0].explanation, flush=True)
        self._waiting = deque(zip(runs, shares, strict=True))
        self._relay = relay_of(runs)
        self.num_at_a_time = max(share.num_trials for share in shares)
        self.num_steps = sum(run.num_steps_left for run in runs)
        self._console = PrintableConsole(stderr=True, force_terminal=False)
        self._warned: set[str] = set()
        self._said: set[str] = set()

    @property
    def next_name(self) -> str:
        """The name of the run that is begun next."""
        return self._waiting[0][0].spec.name

    @property
    def num_left(self) -> int:
        """The number of runs that have not begun."""
        return len(self._waiting)

    def is_due(self, tasks: Iterable[RunTask]) -> bool:
        """Return whether a run is left and may begin.

        Args:
            tasks: runs that have begun and not ended.
        """
        num_waiting = sum(not task.follower.has_started for task in tasks)
        return bool(self._waiting) and num_waiting <= self.num_at_a_time

    def begin(self) -> RunTask:
        """Record the start of the next run, with the threads that it computes with."""
        run, share = self._waiting.popleft()
        compute = run.spec.compute
        threads = threads_of(compute, share)
        try:
            start, remarks = run.begin(replace(compute, threads_per_worker=threads))
        except (RaybioError, OSError):
            self._leave_out(run)
            raise
        for remark in remarks:
            if remark not in self._said:
                self._said.add(remark)
                print(remark, flush=True)
        resources = Resources(1, share.cpus_per_worker, share.gpus_per_worker, threads)
        return RunTask(run, resources, start, self._relay, self._console, self._warned)

    def _leave_out(self, refused: OpenRun) -> None:
        """Let the other runs go on without a run that could not begin."""
        self.num_steps -= refused.num_steps_left
        for run, _ in self._waiting:
            if run.tracker.parent is refused.tracker:
                # It would wait for a parent that is never tracked.
                run.tracker.parent_run_id = refused.tracker.run_id
                run.tracker.parent = None


def train_queue(
    queue: RunQueue,
    tasks: list[RunTask],
    refused: list[RaybioError | OSError],
    signals: StopSignals,
) -> None:
    """Begin the runs, and conclude each when it has ended; a signal stops all of them.

    Args:
        queue: the runs.
        tasks: receives the task of each run once it has begun, so that the caller can end it if a
            later one fails to begin.
        refused: receives the errors of runs that could not begin.
        signals: the signals that end the runs.
    """
    import ray

    pending: dict[Any, RunTask] = {}
    tally = Tally(queue.num_left, queue.num_at_a_time, time.monotonic())
    is_length_shown = False
    is_stopping = False
    try:
        while pending or (queue.num_left and not signals.caught):
            while not signals.caught and queue.is_due(pending.values()):
                name = queue.next_name
                try:
                    task = queue.begin()
                except (RaybioError, OSError) as error:
                    # For example, another driver has taken over a run in a bucket.
                    refused.append(error)
                    tally.num_runs -= 1
                    print(f"{name}: given up: {error}", flush=True)
                    continue
                tasks.append(task)
                pending[task.submit()] = task
            if not pending:
                continue
            for reference, reason in _wait_for_ends(pending).items():
                task = pending.pop(reference)
                task.end(signals.caught, reason)
                tally.count(str(task.status))
                now = None if signals.caught else time.monotonic()
                task.view.note(f"{task.status}; {tally.in_words(now)}")
                # Whole runs say more of it than a first speed.
                is_length_shown = is_length_shown or tally.num_complete > 0
            if not is_length_shown and tally.num_runs > 1:
                is_length_shown = _show_length(pending.values(), tally.num_runs, queue)
            if not signals.caught:
                continue
            if not is_stopping:
                is_stopping = True
                _stop(pending)
            if len(signals.caught) > 1 or all(task.run.is_trained for task in pending.values()):
                break
    finally:
        # Cancel them, since a shared cluster would continue with them.
        for reference in pending:
            ray.cancel(reference, force=True)


def _show_length(tasks: Iterable[RunTask], num_runs: int, queue: RunQueue) -> bool:
    """Print how long the runs take, estimated from the first one whose speed is known.

    Returns:
        False if no speed is known yet.
    """
    num_rounds = math.ceil(num_runs / queue.num_at_a_time)
    for task in tasks:
        projection = task.follower.projection
        if projection is None:
            continue
        seconds_per_step = projection.seconds_per_step
        evaluations = "without evaluations"
        evaluation_seconds = task.follower.evaluation_seconds
        if evaluation_seconds is not None:
            schedule = task.run.spec.config.schedule
            seconds_per_step += evaluation_seconds / schedule.evaluate_every_steps
            evaluations = "with evaluations during training, without final ones"
        seconds = num_rounds * queue.num_steps / num_runs * seconds_per_step
        at_a_time = f"{min(queue.num_at_a_time, num_runs)} at a time"
        task.view.note(f"{num_runs} runs, {at_a_time}: about {in_words(seconds)}, {evaluations}")
        return True
    return False


def _wait_for_ends(pending: dict[Any, RunTask]) -> dict[Any, BaseException | None]:
    """Wait briefly, follow the tasks, and return those that have ended with their errors.

    A task is ended if another driver has taken over its run.
    """
    import ray

    ended, _ = ray.wait(list(pending), timeout=POLL_SECONDS)
    error_by_reference = {reference: _error_of(reference) for reference in ended}
    for reference, task in pending.items():
        # A lasting problem with its files becomes the run's error when it ends; the others
        # continue.
        with contextlib.suppress(RaybioError, OSError):
            task.follow()
        try:
            task.run.check_lease()
        except LostLeaseError as error:
            # Only this task is cancelled: the other runs are still this driver's.
            ray.cancel(reference, force=True)
            error_by_reference[reference] = error
    return error_by_reference


def _stop(pending: dict[Any, RunTask]) -> None:
    """Make the runs end at their next step, and those that wait for CPUs never start."""
    import ray

    for reference, task in pending.items():
        # The disk may be full; the signal must still end the runs.
        with contextlib.suppress(OSError):
            task.run.folder.stop.touch()
        task.run.tracker.kill()
        if not task.follower.has_started:
            ray.cancel(reference)
    if pending:
        print(
            f"stopping {count_of(len(pending), 'run')} at the next step; checkpoints are written "
            "first (a second signal stops at once)",
            flush=True,
        )


def _error_of(reference: Any) -> BaseException | None:
    """Return the error that ended a task; None if it returned, or was cancelled by a signal."""
    import ray

    try:
        ray.get(reference)
    except ray.exceptions.TaskCancelledError:
        return None
    except ray.exceptions.RayTaskError as error:
        return error.cause or error
    except ray.exceptions.RayError as error:
        return error
    return None
