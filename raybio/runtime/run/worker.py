"""One training worker of Ray Train: it builds the method and runs the loop with its shard."""

import contextlib
import socket
from collections.abc import Iterator

import ray.train
import ray.train.torch
import torch
from ray.exceptions import RayTaskError

from raybio.core.batch import TokenBatch
from raybio.core.errors import ClusterError, RaybioError
from raybio.core.files import delete_leftovers
from raybio.core.interfaces import Collective
from raybio.core.records import read_record
from raybio.runtime.cluster.connection import collective_timeout_seconds
from raybio.runtime.run.encoder_source import pin_on_worker
from raybio.runtime.run.folder import RunFolder, record_failure
from raybio.runtime.run.metrics_log import MetricsLog
from raybio.runtime.run.node_preparation import start_preparation
from raybio.runtime.run.notices import warnings_to
from raybio.runtime.run.preemption import notice_of_any_node
from raybio.runtime.run.run_loop import (
    WRITER_LOCK_SECONDS,
    Training,
    built_system,
    checkpoints_of,
    run_loop,
)
from raybio.runtime.run.spec import WorkerSpec
from raybio.runtime.run.stream import NUM_TASKS_FOR_GPU, stream_batches
from raybio.runtime.spool.relay import worker_copy
from raybio.store.store import pinned
from raybio.training.checkpoint import CheckpointStore
from raybio.training.collective import ProcessGroup, SingleProcess
from raybio.training.determinism import set_environment
from raybio.training.remote_checkpoints import RemoteCheckpoints


def work(spec: WorkerSpec) -> None:
    """Train and write ``outcome.json``, or ``failure.json`` for an error that no retry cures."""
    rank = ray.train.get_context().get_world_rank()
    with worker_copy(spec, rank) as copy:
        _work(copy.spec, rank, copy.remote)


def _work(spec: WorkerSpec, rank: int, remote: RemoteCheckpoints | None) -> None:
    run = spec.run
    folder = run.folder
    # Read the failure first: the driver begins a new start before it removes the last failure.
    has_failed = read_record(folder.failure, "failure") is not None
    if has_failed or not folder.is_newest_start(spec.start):
        return  # Ray has restarted the workers of a start that is over
    if not folder.identity.exists():
        raise ClusterError(
            f"rank {rank} on {socket.gethostname()} does not see {folder.path}, which the driver "
            "made: workers and driver must share the runs folder. Choose one that all of them see "
            "with --runs or RAYBIO_RUNS"
        )
    try:
        with warnings_to(folder.notices, rank):
            if run.setup is not None:
                run.setup(rank, folder.path)
            _train(spec, folder, remote)
    except ClusterError:
        raise  # another worker or the storage is gone: Ray restarts all workers
    except (RaybioError, OSError) as error:
        # A process left over from a killed driver must not end the start that came after it.
        if folder.is_newest_start(spec.start):
            record_failure(folder, error)
        raise


def _train(spec: WorkerSpec, folder: RunFolder, remote: RemoteCheckpoints | None) -> None:
    set_environment(spec.run.config.determinism)
    context = ray.train.get_context()
    local_threads = torch.get_num_threads() // context.get_local_world_size()
    torch.set_num_threads(spec.threads or max(1, local_threads))
    collective: SingleProcess | ProcessGroup = SingleProcess()
    if context.get_world_size() > 1:
        collective = ProcessGroup(timeout_seconds=collective_timeout_seconds())
    config = spec.run.config
    checkpoints = checkpoints_of(folder, config, remote)
    with (
        _writer_log(spec, folder, collective, checkpoints) as log,
        pinned(spec.run.store, folder.data_digest),
    ):
        pin_on_worker(folder.encoder)
        system = built_system(spec.run, collective, verifies_store=context.get_local_rank() == 0)
        if context.get_local_rank() == 0:
            start_preparation(system.prepare_node)

        device = ray.train.torch.get_device()

        def batches(first_step: int) -> Iterator[tuple[int, TokenBatch]]:
            """Return (step, batch) pairs of this worker, from ``first_step`` to the last step."""
            return stream_batches(
                system.collate,
                first_step=first_step,
                num_steps=config.schedule.max_steps - first_step,
                rank=collective.rank,
                world=collective.world,
                batch_type=system.batch_type,
                num_tasks=NUM_TASKS_FOR_GPU if device.type == "cuda" else 1,
            )

        assert spec.run.precision is not None
        training = Training(
            system=system,
            config=config,
            folder=folder,
            device=device,
            precision=spec.run.precision,
            goal=spec.goal,
            should_checkpoint=notice_of_any_node() if collective.rank == 0 else lambda: False,
        )
        reports = run_loop(
            training, batches=batches, collective=collective, checkpoints=checkpoints, log=log
        )
        for report in reports:
            # This is a barrier of all workers, so it is skipped for most lines of the log. It is
            # also skipped for the last one: before that, rank 0 draws maps for longer than the
            # others may wait.
            if (report.is_evaluation or report.is_checkpoint) and not report.is_last:
                _report(collective, {"step": report.step, **report.metrics})


def _report(collective: SingleProcess | ProcessGroup, metrics: dict[str, float]) -> None:
    """Report to Ray Train together with all workers.

    Raises:
        ClusterError: if another worker does not come within Ray Train's timeout.
    """
    with collective.operation("report"):
        try:
            ray.train.report(metrics)
        except RayTaskError as error:
            # The error's own text is a traceback; the second line of its cause names a variable of
            # Ray.
            raise RuntimeError(str(error.cause).partition("\n")[0]) from error


@contextlib.contextmanager
def _writer_log(
    spec: WorkerSpec, folder: RunFolder, collective: Collective, checkpoints: CheckpointStore
) -> Iterator[MetricsLog | None]:
    """Yield the log on rank 0, which holds the folder and writes checkpoints; None on the others.

    The other workers wait until rank 0 holds the folder.

    Raises:
        ClusterError: if the run has been started again meanwhile.
    """
    if collective.rank != 0:
        collective.all_sum(torch.zeros(1))
        yield None
        return
    with folder.lock("writer", WRITER_LOCK_SECONDS):
        if not folder.is_newest_start(spec.start):
            raise ClusterError(f"{folder.path}: the run has been started again meanwhile")
        checkpoints.check_writable()
        delete_leftovers(folder.export)
        collective.all_sum(torch.zeros(1))
        try:
            yield MetricsLog(folder.metrics)
            checkpoints.close()
        finally:
            checkpoints.join()
