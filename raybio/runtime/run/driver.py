"""The driver of one training run: start or resume it in Ray Train, follow it, report it."""

import contextlib
import signal
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from raybio.core.errors import (
    InterruptedRunError,
    LongRunError,
    RaybioError,
    StopFileError,
    one_line,
)
from raybio.methods import METHODS
from raybio.runtime.cluster.connection import check_plan, connected
from raybio.runtime.cluster.stop_signals import StopSignals
from raybio.runtime.run.follower import Follower
from raybio.runtime.run.open_run import OpenRun
from raybio.runtime.run.precision import with_precision
from raybio.runtime.run.progress import ProgressView
from raybio.runtime.run.result import Result, status_of_run, summarize
from raybio.runtime.run.spec import Compute, RunSpec
from raybio.runtime.tracking.tracker import FINISH_SECONDS, KILLED_SECONDS
from raybio.store.store import open_store

if TYPE_CHECKING:
    from raybio.runtime.run.worker_group import Work


def train(spec: RunSpec) -> Result:
    """Start a run, resume the run of that name, or return the result of a finished one.

    Raises:
        CheckpointError: if the run of that name has other settings or another store, or no sound
            checkpoint.
        ConfigError: for a bad name or tracking URI, or settings that do not fit the store or the
            machine.
        ClusterError: if the plan does not fit the cluster, the storage fails, or the workers kept
            failing.
        DivergedError: if the loss is no longer finite.
        InterruptedRunError: if a signal, or a stop file that the user made, ended the run.
        RecordError: if a record of the run is damaged and cannot be rebuilt.
        LongRunError: if a run on CPUs takes more than a day and that is not accepted. It is
            stopped at a checkpoint.
        StoreError: if the store is missing, or a file of it has changed.
    """
    with contextlib.ExitStack() as held:
        run = OpenRun.open(spec, held)
        if run.finished is not None:
            run.tracker.catch_up()
            return run.finished
        # Check before anything is recorded, since a plan that does not fit or a damaged store must
        # not count as a failed run.
        compute = planned(run)
        open_store(spec.store, verify=True)
        return train_opened(run, compute)


def train_opened(run: OpenRun, compute: Compute) -> Result:
    """Train a run that this driver holds and that is not finished, on a sound store.

    Args:
        run: the run.
        compute: the result of ``planned``.

    Raises:
        RaybioError: as ``train``.
    """
    if run.spec.precision is None:
        (run.spec,) = with_precision([run.spec])
    with StopSignals(run.folder.stop) as signals:
        start, remarks = run.begin(compute)
        for remark in remarks:
            print(remark, flush=True)
        return _run(run, compute, signals, start)


def planned(run: OpenRun) -> Compute:
    """Return the compute settings of the next start.

    Raises:
        ClusterError: if they do not fit the cluster.
    """
    compute = run.spec.compute
    plan = check_plan(compute.num_workers, compute.cpus_per_worker, compute.use_gpu)
    if plan is None or compute.threads_per_worker is not None:
        return compute
    # Record the threads, so that the next start has as many even if it trains next to other runs.
    return replace(compute, threads_per_worker=plan.threads_per_worker)


def _run(run: OpenRun, compute: Compute, signals: StopSignals, start: str) -> Result:
    folder = run.folder
    run.tracker.start()
    status = "failed"
    try:
        with connected(
            compute.num_workers,
            compute.cpus_per_worker,
            use_gpu=compute.use_gpu,
            threads=compute.threads_per_worker,
            verbose=run.spec.verbose,
        ) as resources:
            signals.ray_has_started()
            error = None
            if not signals.caught:
                # Import only after Ray has started: it reads its environment variables when it is
                # imported.
                from raybio.runtime.run.worker_group import fit_in_thread

                relay = relay_of([run])
                worker_spec = run.worker_spec(resources.threads_per_worker, start, relay)
                follower = Follower(run.spec, resources)
                work = fit_in_thread(worker_spec, resources)
                _follow(work, follower, run, signals.caught)
                error = work.error
        status = status_of_run(folder, signals.caught, error)
        if status == "failed":
            from raybio.runtime.run.worker_group import explained

            raise explained(folder, error) from error
        if status == "stopped":
            raise _interrupted(run, signals.caught)
    except LongRunError:
        status = "stopped"
        raise
    except (KeyboardInterrupt, SystemExit) as error:  # while Ray was starting
        signals.count_exit(error)
        status = "stopped"
        raise _interrupted(run, signals.caught) from None
    finally:
        try:
            run.conclude(status)
        finally:
            run.settle(status, KILLED_SECONDS if status == "stopped" else FINISH_SECONDS)
    return run.result()


def _follow(work: "Work", follower: Follower, run: OpenRun, caught: list[int]) -> None:
    """Show what the workers write until they have ended; a signal stops them.

    Raises:
        LongRunError: if the run takes more than a day on CPUs and that is not accepted.
    """
    measures = METHODS[run.spec.method].table.measures
    max_steps = run.spec.config.schedule.max_steps
    is_stopping = False
    with ProgressView(run.spec.name, max_steps, measures=measures) as view:
        while work.thread.is_alive():
            work.thread.join(timeout=0.2)
            run.check_lease()
            try:
                follower.update(view)
            except (RaybioError, OSError) as error:  # tried again
                view.warn(one_line(error))
            if not follower.has_started and not caught:
                view.wait()
            if caught and not is_stopping:
                # Call it once: it interrupts a pause between two tries to reach MLflow.
                is_stopping = True
                run.tracker.kill()
            if caught:
                view.say(
                    "stopping; all steps are trained"
                    if run.is_trained
                    else "stopping at the next step; a checkpoint is written first "
                    "(a second signal stops at once)"
                )
            if len(caught) > 1 or (caught and run.is_trained):
                break
            if run.folder.failure.exists():
                # Ray would only restart the workers. Wait for a checkpoint in progress.
                work.thread.join(timeout=10)
                break
        follower.update(view)
    if follower.refusal is not None and not caught:
        raise LongRunError(follower.refusal)


def relay_of(runs: Sequence[OpenRun]) -> Any:
    """Start the actor that takes files from workers, if the runs are in a bucket; else return None.

    The actor lives as long as its handle, which is returned.
    """
    if all(run.spool is None for run in runs):
        return None
    from raybio.runtime.spool.relay import start_relay

    return start_relay(runs[0].folder.path.parent)


def _interrupted(run: OpenRun, caught: list[int]) -> InterruptedRunError:
    """Return the error of a run that a signal ended, or a stop file that the user made."""
    step = summarize(run.folder, run.spec.config, "stopped", None)["step"]
    ended = f"stopped at step {step}; the same command resumes the run"
    if run.is_trained:
        ended = (
            f"stopped after the last step, {step}; the same command continues the final evaluation"
        )
    if not caught:
        return StopFileError(f"{run.folder.stop.name}: {ended}")
    return InterruptedRunError(caught[0], f"{signal.Signals(caught[0]).name}: {ended}")
