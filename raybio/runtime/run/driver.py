"""One training run, seen from the driver: start or resume it in Ray Train, follow it, report it."""

import contextlib
import signal
from dataclasses import replace
from typing import TYPE_CHECKING

from raybio.core.errors import LongRunError, RaybioError
from raybio.core.final_report import FinalReport
from raybio.core.records import read_record, write_record
from raybio.evaluation.run_plots import plot_final, plot_run
from raybio.methods import METHODS
from raybio.runtime.cluster.connection import check_plan, connected
from raybio.runtime.cluster.stop_signals import StopSignals
from raybio.runtime.run.checks import check_spec, input_lengths, report_cuts
from raybio.runtime.run.folder import COMPLETE, RunFolder
from raybio.runtime.run.follower import Follower
from raybio.runtime.run.metrics_log import read_reports
from raybio.runtime.run.precision import with_precision
from raybio.runtime.run.progress import ProgressView
from raybio.runtime.run.result import (
    Result,
    finished_result,
    result_of,
    status_of_run,
    summarize,
)
from raybio.runtime.run.spec import RunSpec, WorkerSpec
from raybio.runtime.tracking.tracker import Tracker, tracking_uri
from raybio.store.store import open_store
from raybio.training.checkpoint import step_of_checkpoint
from raybio.training.loop import changeable_settings
from raybio.training.settings import TrainingConfig

if TYPE_CHECKING:
    from raybio.runtime.run.worker_group import Work

_MLFLOW_STATUS = {
    "finished": "FINISHED",
    "early_stopping": "FINISHED",
    "stopped": "KILLED",
    "failed": "FAILED",
}


class InterruptedRunError(RaybioError):
    """A signal ended the run after a checkpoint; the same command resumes it."""

    def __init__(self, signal_number: int, message: str) -> None:
        """Remember the signal: the process ends with 128 + its number."""
        super().__init__(message)
        self.exit_code = 128 + signal_number


def train(spec: RunSpec) -> Result:
    """Start a run, resume the one of that name, or return the result of a finished one.

    Raises:
        CheckpointError: if the run of that name has other settings or another store, or no sound
            checkpoint.
        ConfigError: for a bad name or tracking URI, or settings that do not fit the store or the
            machine.
        ClusterError: if the plan does not fit the cluster, the storage fails, or the workers kept
            failing.
        DivergedError: if the loss is no longer finite.
        InterruptedRunError: if SIGINT or SIGTERM ended the run.
        RecordError: if a record of the run is damaged and cannot be rebuilt.
        LongRunError: if a run on CPUs takes more than a day and that is not accepted. It is
            stopped at a checkpoint.
        StoreError: if the store is missing, or a file of it has changed.
    """
    folder = spec.folder
    uri = tracking_uri(spec.tracking, spec.runs)
    spec = spec.in_steps()
    digest = check_spec(spec)
    folder.make()
    with folder.lock("driver", timeout_seconds=5):
        free = changeable_settings(spec.config)
        is_old = folder.open(spec.method, spec.config, spec.store.absolute(), digest, free)
        finished = finished_result(folder, spec.config) if is_old else None
        tracker = Tracker(
            folder, uri, spec.method, spec.config.to_mapping(), digest, spec.parent_run_id
        )
        if finished is not None:
            tracker.catch_up()
            return finished
        # Before anything is recorded: neither a plan that does not fit nor a damaged store is a
        # failed run.
        compute = spec.compute
        check_plan(compute.num_workers, compute.cpus_per_worker, compute.use_gpu)
        open_store(spec.store, verify=True)
        if spec.precision is None:
            (spec,) = with_precision([spec])
        assert spec.precision is not None  # the run is not finished
        # After the checks: the next start must not take a refused plan for the run's own.
        launch = {"tracking": spec.tracking, "is_length_accepted": spec.is_length_accepted}
        write_record(folder.launch, "launch", compute.to_record() | launch)
        folder.record_precision(spec.precision)
        start = folder.begin_start()
        # This start may be killed before it can replace what the last one left.
        for path in (
            folder.stop,
            folder.failure,
            folder.outcome,
            folder.unit_scores,
            folder.result,
        ):
            path.unlink(missing_ok=True)
        report_cuts(input_lengths(spec), folder, tracker)
        with StopSignals(folder.stop) as signals:
            return _run(spec, folder, tracker, signals, start)


def _run(
    spec: RunSpec, folder: RunFolder, tracker: Tracker, signals: StopSignals, start: str
) -> Result:
    tracker.start()
    status = "failed"
    compute = spec.compute
    try:
        with connected(
            compute.num_workers,
            compute.cpus_per_worker,
            use_gpu=compute.use_gpu,
            verbose=spec.verbose,
        ) as resources:
            signals.install()
            signals.is_starting = False
            error = None
            if not signals.caught:
                # Not before Ray has started: its environment is read when it is imported.
                from raybio.runtime.run.worker_group import fit_in_thread

                threads = compute.threads_per_worker or resources.threads_per_worker
                on_workers = replace(spec, store=spec.store.absolute(), runs=folder.path.parent)
                worker_spec = WorkerSpec(run=on_workers, threads=threads, start=start)
                follower = Follower(spec, resources)
                work = fit_in_thread(worker_spec, resources)
                _follow(work, follower, spec, tracker, signals.caught)
                error = work.error
        status = status_of_run(folder, signals.caught, error)
        if status == "failed":
            from raybio.runtime.run.worker_group import explained

            raise explained(folder, error)
        if status == "stopped":
            raise _interrupted(folder, spec.config, signals.caught[0])
    except LongRunError:
        status = "stopped"
        raise
    except (KeyboardInterrupt, SystemExit) as error:  # while Ray was starting
        # Ray's own handler of SIGTERM, installed meanwhile, exits with the signal's number.
        if isinstance(error, SystemExit) and error.code != signal.SIGTERM:
            raise
        status = "stopped"
        number = signals.caught[0] if signals.caught else signal.SIGTERM
        raise _interrupted(folder, spec.config, number) from None
    finally:
        _write_result(folder, spec.config, status, tracker.run_id)
        if status in COMPLETE:
            with contextlib.suppress(OSError, ValueError):
                plot_run(read_reports(folder.metrics), folder.plots)
                outcome = read_record(folder.outcome, "outcome") or {}
                plot_final(FinalReport.from_json(outcome.get("final", {})), folder.plots)
        tracker.finish(_MLFLOW_STATUS[status])
        # A tracking server that was away may have given the id only now.
        _write_result(folder, spec.config, status, tracker.run_id)
    written = read_record(folder.result, "result")
    assert written is not None
    return result_of(written, folder, was_finished=False)


def _follow(
    work: "Work", follower: Follower, spec: RunSpec, tracker: Tracker, caught: list[int]
) -> None:
    """Show what the workers write until they have ended; a signal stops them.

    Raises:
        LongRunError: if the run takes more than a day on CPUs and that is not accepted.
    """
    folder = spec.folder
    measures = METHODS[spec.method].table.measures
    with ProgressView(spec.name, spec.config.schedule.max_steps, measures=measures) as view:
        while work.thread.is_alive():
            work.thread.join(timeout=0.2)
            follower.update(view)
            if caught:
                tracker.kill()
                view.say(
                    "stopping at the next step; a checkpoint is written first (once more: at once)"
                )
            if len(caught) > 1 or (caught and _is_trained(folder, spec.config)):
                break
            if folder.failure.exists():
                # Ray would restart the workers for nothing. A checkpoint in progress gets its time.
                work.thread.join(timeout=10)
                break
        follower.update(view)
    if follower.refusal is not None and not caught:
        raise LongRunError(follower.refusal)


def _interrupted(folder: RunFolder, config: TrainingConfig, number: int) -> InterruptedRunError:
    step = summarize(folder, config, "stopped", None)["step"]
    name = signal.Signals(number).name
    return InterruptedRunError(
        number, f"{name}: stopped at step {step}; the same command resumes the run"
    )


def _write_result(
    folder: RunFolder, config: TrainingConfig, status: str, run_id: str | None
) -> None:
    write_record(folder.result, "result", summarize(folder, config, status, run_id))


def _is_trained(folder: RunFolder, config: TrainingConfig) -> bool:
    """Whether the last step is saved: the same command repeats the final evaluation alone."""
    newest = folder.newest_checkpoint
    return newest is not None and step_of_checkpoint(newest) >= config.schedule.max_steps
