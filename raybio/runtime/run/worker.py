"""One training worker of Ray Train: it builds the method and runs the loop with its shard."""

import contextlib
import socket
import time
from collections.abc import Iterator

import ray.train
import ray.train.torch
import torch
from ray.train.v2._internal.execution.context import get_train_context

from raybio.core.batch import TokenBatch
from raybio.core.errors import ClusterError, RaybioError
from raybio.core.interfaces import Collective
from raybio.core.records import read_record, write_record
from raybio.methods import METHODS
from raybio.runtime.run.encoder_source import pin_encoder
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.metrics_log import MetricsLog
from raybio.runtime.run.notices import warnings_to
from raybio.runtime.run.run_loop import WRITER_LOCK_SECONDS, checkpoints_of, run_loop
from raybio.runtime.run.spec import WorkerSpec
from raybio.runtime.run.stream import stream_batches
from raybio.training.checkpoint import CheckpointStore
from raybio.training.collective import ProcessGroup, SingleProcess

NOTICE_SECONDS = 10.0
"""Between two checkpoints of a run that is about to lose a node: the notice does not say when."""


def work(spec: WorkerSpec) -> None:
    """Train and write ``outcome.json``, or ``failure.json`` for an error that no retry cures."""
    run = spec.run
    folder = run.folder
    rank = ray.train.get_context().get_world_rank()
    # In this order: the driver begins a new start before it removes the last start's failure.
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
            _train(spec, folder)
    except ClusterError:
        raise  # another worker or the storage is gone: Ray restarts all workers
    except RaybioError as error:
        failure = {"kind": type(error).__name__, "message": str(error)}
        write_record(folder.failure, "failure", failure)
        raise


def _train(spec: WorkerSpec, folder: RunFolder) -> None:
    context = ray.train.get_context()
    local_threads = torch.get_num_threads() // context.get_local_world_size()
    torch.set_num_threads(spec.threads or max(1, local_threads))
    collective: Collective = SingleProcess()
    if context.get_world_size() > 1:
        collective = ProcessGroup()
    config = spec.run.config
    checkpoints = checkpoints_of(folder, config)
    with _writer_log(spec, folder, collective, checkpoints) as log:
        pin_encoder(folder)
        system = METHODS[spec.run.method].build(config, spec.run.store)

        def batches(first_step: int) -> Iterator[tuple[int, TokenBatch]]:
            _check_agreement(first_step, collective)
            return stream_batches(
                system.collate,
                first_step=first_step,
                num_steps=config.schedule.max_steps - first_step,
                rank=collective.rank,
                world=collective.world,
                batch_type=system.batch_type,
            )

        assert spec.run.precision is not None
        reports = run_loop(
            system,
            config,
            folder,
            batches=batches,
            collective=collective,
            device=ray.train.torch.get_device(),
            precision=spec.run.precision,
            checkpoints=checkpoints,
            log=log,
            stop=folder.stop,
            goal=spec.goal,
            should_checkpoint=_NodeNotice() if collective.rank == 0 else lambda: False,
        )
        for report in reports:
            if report.is_evaluation or report.is_checkpoint or report.is_last:
                # A barrier of all workers, so not for each line of the log. All report the same.
                ray.train.report({"step": report.step, **report.metrics})


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
        collective.all_sum(torch.zeros(1))
        yield MetricsLog(folder.metrics)
        checkpoints.close()


def _check_agreement(first_step: int, collective: Collective) -> None:
    """Refuse to resume from different checkpoints.

    A slow shared disk may show the newest checkpoint to some workers only.

    Raises:
        ClusterError: if workers resume from different steps.
    """
    total = int(collective.all_sum(torch.tensor(first_step)))
    if total != first_step * collective.world:
        raise ClusterError(
            f"rank {collective.rank} resumes from step {first_step}, and the mean over "
            f"{collective.world} workers is {total / collective.world:g}: they see different "
            "checkpoints. They are started again"
        )


class _NodeNotice:
    """Whether a checkpoint is due because a node of the run will be taken away.

    Due at the notice, and every ``NOTICE_SECONDS`` until the node is gone.
    """

    def __init__(self) -> None:
        self._next_time = 0.0

    def __call__(self) -> bool:
        now = time.monotonic()
        # ray.train.get_preemption_info() would be a barrier of all workers at each step.
        info = get_train_context().preemption_context.preemption_info
        if info is None or now < self._next_time:
            return False
        self._next_time = now + NOTICE_SECONDS
        return True
