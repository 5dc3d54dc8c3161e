"""A training run as a Ray task: one process that makes its own batches."""

import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from raybio.core.errors import ClusterError, RaybioError
from raybio.core.records import read_record
from raybio.runtime.run import preemption
from raybio.runtime.run.encoder_source import pin_on_worker
from raybio.runtime.run.folder import record_failure
from raybio.runtime.run.node_preparation import start_preparation
from raybio.runtime.run.notices import warnings_to
from raybio.runtime.run.run_loop import Training, built_system, train_single_process
from raybio.runtime.run.spec import WorkerSpec
from raybio.runtime.spool.relay import worker_copy
from raybio.store.store import pinned
from raybio.training.collective import SingleProcess
from raybio.training.loop import Report
from raybio.training.remote_checkpoints import RemoteCheckpoints


def train_in_task(spec: WorkerSpec, *, use_gpu: bool) -> None:
    """Train and write ``outcome.json``, or ``failure.json`` for an error that no retry cures.

    Raises:
        ClusterError: if something is unavailable that may come back.
    """
    with worker_copy(spec, rank=0) as copy:
        _train(copy.spec, copy.remote, use_gpu=use_gpu)


def _train(spec: WorkerSpec, remote: RemoteCheckpoints | None, *, use_gpu: bool) -> None:
    run = spec.run
    folder = run.folder
    if not folder.identity.exists():
        raise ClusterError(
            f"{socket.gethostname()} does not see {folder.path}, which the driver made: workers "
            "and driver must share the runs folder. Choose one that all of them see with --runs or "
            "RAYBIO_RUNS"
        )
    # Read the failure first: the driver begins a new start before it removes the last failure.
    has_failed = read_record(folder.failure, "failure") is not None
    # A task that was waiting for CPUs when a signal came must not start.
    if has_failed or folder.stop.exists() or not folder.is_newest_start(spec.start):
        return
    try:
        with warnings_to(folder.notices):
            reports = train_here(
                spec,
                device="cuda" if use_gpu else "cpu",
                stop=folder.stop,
                remote=remote,
                start=spec.start,
            )
            for _ in reports:
                pass
    except ClusterError:
        raise  # Ray starts the task again
    except (RaybioError, OSError) as error:
        if not folder.is_newest_start(spec.start):
            return
        record_failure(folder, error)
        if not folder.failure.exists():
            raise


def train_here(
    spec: WorkerSpec,
    *,
    device: str,
    stop: Path,
    remote: RemoteCheckpoints | None,
    start: str | None = None,
    is_evaluated: bool = True,
) -> Iterator[Report]:
    """Train a run in this process, a Ray task or actor, and yield its reports.

    Args:
        spec: the run from the view of this process, with its precision and threads.
        device: ``cuda`` or ``cpu``.
        stop: stop file; once it exists, the run ends at its next step.
        remote: the run's checkpoints in a bucket; None: they are in its folder.
        start: as in ``train_single_process``.
        is_evaluated: whether a finished run has its final evaluation.

    Raises:
        ClusterError: if something is unavailable that may come back.
        RaybioError: for anything else that ends the training.
    """
    run = spec.run
    folder = run.folder
    assert run.precision is not None
    assert spec.threads is not None
    if run.setup is not None:
        run.setup(0, folder.path)
    torch.set_num_threads(spec.threads)
    pin_on_worker(folder.encoder)
    with pinned(run.store, folder.data_digest):
        system = built_system(run, SingleProcess(), verifies_store=True)
        start_preparation(system.prepare_node)
        if not is_evaluated:
            system = replace(system, final_evaluate=None)
        training = Training(
            system=system,
            config=run.config,
            folder=folder,
            device=device,
            precision=run.precision,
            stop=stop,
            goal=spec.goal,
            should_checkpoint=preemption.notice_of_this_node(),
        )
        yield from train_single_process(training, start=start, remote=remote)
