"""Several training runs of one command, as many at a time as fit the cluster.

Each run is a Ray task that trains in one process, in the run's own folder. Its weights equal those
of Ray Train with one worker and as many threads. Runs of several workers use Ray Train, one after
the other.
"""

import contextlib
import math
import signal
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from raybio.core.errors import InterruptedRunError, LongRunError, RaybioError, StopFileError
from raybio.core.text import count_of, first_names
from raybio.methods import METHODS
from raybio.runtime.cluster.connection import (
    cluster_nodes,
    cluster_to_join,
    local_node,
    started,
)
from raybio.runtime.cluster.resources import Node, Resources, TrialResources, fit_trials
from raybio.runtime.cluster.stop_signals import StopSignals
from raybio.runtime.console import PrintableConsole
from raybio.runtime.run.driver import planned, relay_of, train_opened
from raybio.runtime.run.duration import in_words
from raybio.runtime.run.follower import Follower
from raybio.runtime.run.open_run import (
    MOST_NAMED,
    OpenRun,
    compare_versions,
    warn_of_other_versions,
)
from raybio.runtime.run.progress import ProgressView
from raybio.runtime.run.result import Result, status_of_run
from raybio.runtime.run.spec import Compute, RunSpec
from raybio.runtime.run.tasks import MAX_RETRIES
from raybio.runtime.spool.lease import LostLeaseError
from raybio.runtime.tracking.tracker import wait_for_all
from raybio.store.store import open_store
from raybio.training.settings import COMPLETE

POLL_SECONDS = 0.2


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
        # Check before anything is recorded, since a plan that does not fit or a damaged store must
        # not count as a failed run.
        for store in {run.spec.store for run in unfinished}:
            open_store(store, verify=True)
        if len(runs) > 1 and all(run.spec.compute.num_workers == 1 for run in runs):
            if unfinished:
                _train_together(unfinished, len(runs))
        else:
            _train_in_turn(unfinished, len(runs))
    return [[run.finished or run.result() for run in group_runs] for group_runs in runs_by_group]


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
    num_complete = 0
    began = time.monotonic()
    for num_ended, (run, compute) in enumerate(zip(runs, computes, strict=True), start=1):
        if run.tracker.parent is not None:
            # The parent has ended. This run has the machine to itself, and samples its load.
            run.tracker.parent_run_id = run.tracker.parent.run_id
            run.tracker.parent = None
        try:
            outcome = train_opened(run, compute).status
            num_complete += outcome in COMPLETE
        except (RaybioError, OSError) as error:
            is_signal = isinstance(error, InterruptedRunError)
            if is_signal and not isinstance(error, StopFileError):
                raise
            is_stopped = isinstance(error, (StopFileError, LongRunError))
            outcome = f"{'stopped' if is_stopped else 'failed'}: {error}"
            failures.append(error)
        if num_runs > 1:
            elapsed = time.monotonic() - began
            ended = _ended_in_words(elapsed, num_complete, num_ended, len(runs), 1)
            print(f"{run.spec.name}: {outcome}; {ended}", flush=True)
    if failures:
        raise failures[0]


class Placement(NamedTuple):
    """The device and threads on which a run will be trained.

    Attributes:
        device: ``cuda`` or ``cpu``; None: not known before it starts.
        threads: threads of its worker; None: not known.
    """

    device: str | None
    threads: int | None


class Concurrency(NamedTuple):
    """How runs share a cluster.

    Attributes:
        num_at_a_time: number of runs that are trained at the same time.
        explanation: the reason, as a sentence.
        placements: placement of each run.
    """

    num_at_a_time: int
    explanation: str
    placements: list[Placement]


def concurrency(specs: Sequence[RunSpec], num_runs: int) -> Concurrency:
    """Return how the runs share the cluster in ``train_runs``.

    Args:
        specs: unfinished runs.
        num_runs: number of all runs of the command.

    Raises:
        ClusterError: if a run does not fit.
    """
    if num_runs == 1 or any(spec.compute.num_workers > 1 for spec in specs):
        devices = ["cpu" if spec.compute.use_gpu is False else None for spec in specs]
        placements = [Placement(device, None) for device in devices]
        return Concurrency(1, "1 run at a time", placements)
    nodes = [local_node()]
    if cluster_to_join():
        with started(threads=None, verbose=specs[0].verbose):
            nodes = cluster_nodes()
    shares = [_share(spec.compute, nodes, num_runs) for spec in specs]
    placements = []
    for spec, share in zip(specs, shares, strict=True):
        device = "cuda" if share.gpus_per_worker else "cpu"
        placements.append(Placement(device, _threads(spec.compute, share)))
    num_at_a_time = min(share.num_trials for share in shares)
    return Concurrency(num_at_a_time, shares[0].explanation, placements)


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


def _train_together(runs: Sequence[OpenRun], num_runs: int) -> None:
    """Train runs of one worker at the same time, as far as the cluster has room.

    Args:
        runs: unfinished runs, which this driver holds.
        num_runs: number of all runs of the command, which share the cluster. Finished runs count,
            so that a run has the same share at each start.
    """
    threads = None
    if not cluster_to_join():
        shares = [_share(run.spec.compute, [local_node()], num_runs) for run in runs]
        different = {
            _threads(run.spec.compute, share) for run, share in zip(runs, shares, strict=True)
        }
        threads = different.pop() if len(different) == 1 else None
    with StopSignals(*[run.folder.stop for run in runs]) as signals:
        tasks: list[_RunTask] = []
        refused: list[RaybioError | OSError] = []
        broken: Exception | None = None
        try:
            with started(threads=threads, verbose=runs[0].spec.verbose):
                signals.ray_has_started()
                nodes = cluster_nodes()
                if not signals.caught:
                    _work_off(_Queue(runs, nodes, num_runs), tasks, refused, signals)
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
    failed = [task for task in tasks if task.error is not None]
    if failed:
        for task in failed[1:]:
            print(f"{task.run.spec.name} failed, too: {task.error}", flush=True)
        assert failed[0].error is not None
        raise failed[0].error
    if refused:
        raise refused[0]


class _RunTask:
    """A run that has begun, as a Ray task.

    Attributes:
        run: the run.
        resources: resources that the task reserves, and its threads.
        start: name of the start.
        view: view that prints progress.
        status: status of the result; None before the run has ended.
        error: why it has failed or was refused.
    """

    def __init__(
        self,
        run: OpenRun,
        resources: Resources,
        start: str,
        relay: Any,
        console: PrintableConsole,
        warned: set[str],
    ) -> None:
        max_steps = run.spec.config.schedule.max_steps
        self.run = run
        self.resources = resources
        self.start = start
        self._relay = relay
        measures = METHODS[run.spec.method].table.measures
        self.view = ProgressView(
            run.spec.name, max_steps, console, warned=warned, measures=measures
        )
        self.status: str | None = None
        self.error: Exception | None = None
        self._follower = Follower(run.spec, resources)
        self._is_tracked = False

    def submit(self) -> Any:
        """Submit the task to Ray, which starts it when there is room; return its reference."""
        import ray

        from raybio.runtime.run.task_worker import train_in_task

        remote = ray.remote(train_in_task).options(
            num_cpus=self.resources.cpus_per_worker,
            num_gpus=self.resources.gpus_per_worker,
            max_retries=MAX_RETRIES,
            # Retry after any error, like Ray Train.
            retry_exceptions=True,
        )
        spec = self.run.worker_spec(self.resources.threads_per_worker, self.start, self._relay)
        return remote.remote(spec, use_gpu=self.resources.gpus_per_worker > 0)

    @property
    def has_started_training(self) -> bool:
        """Whether the task has started and reached its first step."""
        return self._follower.has_started

    @property
    def seconds_per_step(self) -> float | None:
        """The measured speed of the run; None before it is measured."""
        projection = self._follower.projection
        return None if projection is None else projection.seconds_per_step

    @property
    def evaluation_seconds(self) -> float | None:
        """The measured duration of an evaluation during training; None: none was measured."""
        return self._follower.evaluation_seconds

    def follow(self) -> None:
        """Print new messages and reports, and track the run from its first step on."""
        self._follower.update(self.view)
        if self.has_started_training:
            self._track()

    def end(self, caught: list[int], error: BaseException | None) -> None:
        """Conclude the run, unless it is concluded already.

        Errors are stored in ``error``, since the other runs have to be concluded too.

        Args:
            caught: signals that were received.
            error: the error that ended the task, if any.
        """
        if self.status is not None:
            return
        try:
            self._conclude(caught, error)
        except Exception as failure:  # such as a damaged record, or a full disk
            self.status = "failed"
            self.error = failure
            self.view.note(f"failed: {failure}")
            self._track()
            self.run.conclude(self.status)

    def _conclude(self, caught: list[int], error: BaseException | None) -> None:
        self.follow()
        self._track()
        self._follower.close()
        self.status = status_of_run(self.run.folder, caught, error)
        is_over = self.status not in COMPLETE and not caught
        if is_over and self._follower.refusal is not None:
            self.status = "stopped"
            self.error = LongRunError(self._follower.refusal)
        elif is_over and self.status == "stopped":
            stop = self.run.folder.stop
            text = f"{stop}: the run is stopped; the same command resumes it"
            self.error = StopFileError(text)
        elif self.status == "failed" and isinstance(error, LostLeaseError):
            self.error = error
            self.view.note(f"given up: {error}")
        elif self.status == "failed":
            from raybio.runtime.run.worker_group import explained

            self.error = explained(self.run.folder, error)
            self.error.__cause__ = error
            self.view.note(f"failed: {self.error}")
        self.run.conclude(self.status)

    def settle(self, seconds: float) -> bool:
        """Wait until MLflow has the concluded run; see ``OpenRun.settle``.

        Errors are stored in ``error``, as in ``end``.
        """
        assert self.status is not None
        try:
            return self.run.settle(self.status, seconds)
        except Exception as failure:
            self.error = self.error or failure
            return False

    def _track(self) -> None:
        if not self._is_tracked:
            self._is_tracked = True
            self.run.tracker.start()


class _Queue:
    """The runs of a command, which begin in order while others train.

    At most one more run has begun than the cluster trains at a time. So the number of threads does
    not grow with the number of runs, and an autoscaling cluster sees that more work is waiting.
    Each unfinished run holds one open file, its lock, from the beginning.

    Runs in a bucket cost more: from the beginning, each holds two threads, which renew its lease (a
    request every 10 s) and look for changed files every 2 s. 500 runs hold 1,000 threads and make
    50 requests a second.

    Attributes:
        num_at_a_time: maximum number of runs that are trained at the same time.
        num_left: number of runs that have not begun.
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
        shares = [_share(run.spec.compute, nodes, num_runs) for run in runs]
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

    def is_due(self, tasks: Iterable["_RunTask"]) -> bool:
        """Return whether a run is left and may begin.

        Args:
            tasks: runs that have begun and not ended.
        """
        num_waiting = sum(not task.has_started_training for task in tasks)
        return bool(self._waiting) and num_waiting <= self.num_at_a_time

    def begin(self) -> "_RunTask":
        """Record the start of the next run, with the threads that it computes with."""
        run, share = self._waiting.popleft()
        compute = run.spec.compute
        threads = _threads(compute, share)
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
        return _RunTask(run, resources, start, self._relay, self._console, self._warned)

    def _leave_out(self, refused: OpenRun) -> None:
        """Let the other runs go on without a run that could not begin."""
        self.num_steps -= refused.num_steps_left
        for run, _ in self._waiting:
            if run.tracker.parent is refused.tracker:
                # It would wait for a parent that is never tracked.
                run.tracker.parent_run_id = refused.tracker.run_id
                run.tracker.parent = None


def _share(compute: Compute, nodes: Sequence[Node], num_runs: int) -> TrialResources:
    """Return the resources that a run reserves: as given or recorded, else an equal share.

    Raises:
        ClusterError: if it does not fit.
    """
    cpus = compute.cpus_per_worker
    if cpus is None and compute.threads_per_worker is not None:
        # If this machine is smaller than the recorded one, threads share CPUs.
        largest = max((node.cpus for node in nodes), default=1.0)
        cpus = min(float(compute.threads_per_worker), largest)
    return fit_trials(
        nodes,
        workers=1,
        at_most=num_runs,
        least_cpus=1.0,
        cpus_per_worker=cpus,
        gpus_per_worker=compute.gpus_of_trial,
        what="run",
    )


def _threads(compute: Compute, share: TrialResources) -> int:
    """Return the threads that a run computes with."""
    return compute.threads_per_worker or max(1, int(share.cpus_per_worker))


def _work_off(
    queue: _Queue,
    tasks: list[_RunTask],
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

    pending: dict[Any, _RunTask] = {}
    num_runs = queue.num_left
    num_complete = 0
    num_ended = 0
    is_length_shown = False
    began = time.monotonic()
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
                    num_runs -= 1
                    print(f"{name}: given up: {error}", flush=True)
                    continue
                tasks.append(task)
                pending[task.submit()] = task
            if not pending:
                continue
            for reference, reason in _wait_for_ends(pending).items():
                task = pending.pop(reference)
                task.end(signals.caught, reason)
                num_ended += 1
                num_complete += task.status in COMPLETE
                ended = f"{num_ended} of {num_runs} runs"
                if not signals.caught:
                    elapsed = time.monotonic() - began
                    ended = _ended_in_words(
                        elapsed, num_complete, num_ended, num_runs, queue.num_at_a_time
                    )
                task.view.note(f"{task.status}; {ended}")
                # Whole runs say more of it than a first speed.
                is_length_shown = is_length_shown or num_complete > 0
            if not is_length_shown and num_runs > 1:
                is_length_shown = _show_length(pending.values(), num_runs, queue)
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


def _ended_in_words(
    elapsed: float, num_complete: int, num_ended: int, num_runs: int, num_at_a_time: int
) -> str:
    """Return how many runs have ended, and how long the others take if they take as long.

    Runs are assumed to train in rounds of ``num_at_a_time``. A round counts as over when its first
    run ends, and at least one is left. Failed runs have no length: without a complete run, nothing
    is known.
    """
    ended = f"{num_ended} of {num_runs} runs"
    if num_ended == num_runs or num_complete == 0:
        return ended
    seconds_per_round = elapsed / math.ceil(num_complete / num_at_a_time)
    rounds = math.ceil(num_runs / num_at_a_time) - math.ceil(num_ended / num_at_a_time)
    return f"{ended}, about {in_words(seconds_per_round * max(rounds, 1))} left"


def _show_length(tasks: Iterable[_RunTask], num_runs: int, queue: _Queue) -> bool:
    """Print how long the runs take, estimated from the first one whose speed is known.

    Returns:
        False if no speed is known yet.
    """
    num_rounds = math.ceil(num_runs / queue.num_at_a_time)
    for task in tasks:
        seconds_per_step = task.seconds_per_step
        if seconds_per_step is None:
            continue
        evaluations = "without evaluations"
        if task.evaluation_seconds is not None:
            schedule = task.run.spec.config.schedule
            seconds_per_step += task.evaluation_seconds / schedule.evaluate_every_steps
            evaluations = "with evaluations during training, without final ones"
        seconds = num_rounds * queue.num_steps / num_runs * seconds_per_step
        at_a_time = f"{min(queue.num_at_a_time, num_runs)} at a time"
        task.view.note(f"{num_runs} runs, {at_a_time}: about {in_words(seconds)}, {evaluations}")
        return True
    return False


def _wait_for_ends(pending: dict[Any, _RunTask]) -> dict[Any, BaseException | None]:
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


def _stop(pending: dict[Any, _RunTask]) -> None:
    """Make the runs end at their next step, and those that wait for CPUs never start."""
    import ray

    for reference, task in pending.items():
        # The disk may be full; the signal must still end the runs.
        with contextlib.suppress(OSError):
            task.run.folder.stop.touch()
        task.run.tracker.kill()
        if not task.has_started_training:
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


def _interrupted(
    tasks: Sequence[_RunTask], runs: Sequence[OpenRun], num_runs: int, number: int
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
