"""What runs in each Ray Train worker: the training loop, walked, with its files."""

import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray.train
import ray.train.torch
import torch
from ray.train.v2._internal.execution.context import get_train_context

from raybio.core.batch import TokenBatch
from raybio.core.digest import weights_digest
from raybio.core.errors import ClusterError, RaybioError
from raybio.core.final_report import FinalReport
from raybio.core.interfaces import Collective, System
from raybio.core.records import read_record, write_record
from raybio.evaluation.unit_scores import write_unit_scores
from raybio.methods import METHODS
from raybio.runtime.run.folder import COMPLETE, RunFolder
from raybio.runtime.run.goal import Goal
from raybio.runtime.run.metrics_log import MetricsLog, read_reports
from raybio.runtime.run.notices import report_start, warnings_to
from raybio.runtime.run.stream import stream_batches
from raybio.training.checkpoint import CheckpointStore
from raybio.training.collective import ProcessGroup, SingleProcess
from raybio.training.loop import Batches, Report, fit, local_batches
from raybio.training.settings import TrainingConfig

WRITER_LOCK_SECONDS = 60.0
"""How long the workers of a killed driver may live on; two seconds is usual."""


STOP_POLL_SECONDS = 0.2


NOTICE_SECONDS = 10.0
"""Between two checkpoints of a run that is about to lose a node: nobody knows when in its notice the node goes."""


@dataclass(frozen=True)
class Order:
    """What the driver asks of every worker; plain values, so that it travels.

    Attributes:
        method: its name in ``METHODS``.
        config: the whole configuration as plain values.
        store: path of the prepared store.
        runs: folder of all runs.
        name: the run's name.
        threads: threads to compute with; None: the CPUs of this machine divided by its workers.
        precision: ``fp32`` or ``bf16``, decided by the driver.
        start: what ``RunFolder.begin_start`` returned.
        goal: what a sweep looks at, if the run is one of its trials.
        setup: called as ``setup(rank, attempt folder)`` before anything else; tests plant their faults with it.
    """

    method: str
    config: dict[str, Any]
    store: str
    runs: str
    name: str
    threads: int | None
    precision: str
    start: str
    goal: Goal | None = None
    setup: Callable[[int, Path], None] | None = None


def work(order: Order) -> None:
    """Train, and leave ``outcome.json``, or ``failure.json`` for an error that trying again would not cure."""
    folder = RunFolder(order.runs, order.name)
    rank = ray.train.get_context().get_world_rank()
    # In this order: the driver begins a new start before it removes the failure of the one before.
    if read_record(folder.failure, "failure") is not None or not folder.is_newest_start(
        order.start
    ):
        return  # Ray has restarted the workers of a start that is over
    if not folder.identity.exists():
        raise ClusterError(
            f"rank {rank} on {socket.gethostname()} does not see {folder.path}, which the driver made: workers and "
            "driver must share the runs folder. Choose one that all of them see with --runs or RAYBIO_RUNS"
        )
    try:
        with warnings_to(folder.notices, rank):
            if order.setup is not None:
                order.setup(rank, folder.path)
            _train(order, folder)
    except ClusterError:
        raise  # another worker is gone, or the storage is: Ray starts all of them again
    except RaybioError as error:
        write_record(
            folder.failure, "failure", {"kind": type(error).__name__, "message": str(error)}
        )
        raise


def _train(order: Order, folder: RunFolder) -> None:
    context = ray.train.get_context()
    rank, world = context.get_world_rank(), context.get_world_size()
    torch.set_num_threads(
        order.threads or max(1, torch.get_num_threads() // context.get_local_world_size())
    )
    collective: Collective = ProcessGroup() if world > 1 else SingleProcess()
    entry = METHODS[order.method]
    config = entry.config.from_mapping(order.config)
    checkpoints = _checkpoints(folder, config)
    if rank != 0:
        collective.all_sum(torch.zeros(1))  # rank 0 holds the folder now
        _walk(order, folder, config, collective, checkpoints, log=None)
        return
    with folder.lock("writer", WRITER_LOCK_SECONDS):
        if not folder.is_newest_start(order.start):
            raise ClusterError(f"{folder.path}: the run has been started again meanwhile")
        checkpoints.check_writable()
        collective.all_sum(torch.zeros(1))
        _walk(order, folder, config, collective, checkpoints, MetricsLog(folder.metrics))
        checkpoints.close()


def _walk(
    order: Order,
    folder: RunFolder,
    config: TrainingConfig,
    collective: Collective,
    checkpoints: CheckpointStore,
    log: MetricsLog | None,
) -> None:
    system = METHODS[order.method].build(config, order.store)

    def batches(first_step: int) -> Iterator[tuple[int, TokenBatch]]:
        _agree(first_step, collective)
        return stream_batches(
            system.collate,
            first_step=first_step,
            num_steps=config.schedule.max_steps - first_step,
            rank=collective.rank,
            world=collective.world,
            batch_type=system.batch_type,
        )

    reports = walk(
        system,
        config,
        folder,
        batches=batches,
        collective=collective,
        device=ray.train.torch.get_device(),
        precision=order.precision,
        checkpoints=checkpoints,
        log=log,
        stop=folder.stop,
        goal=order.goal,
        should_checkpoint=_Notice() if collective.rank == 0 else lambda: False,
    )
    for report in reports:
        if report.is_evaluation or report.is_checkpoint or report.is_last:
            # A barrier of all workers, so not for each line of the log; reports are the same on all of them.
            ray.train.report({"step": report.step, **report.metrics})


def walk(
    system: System,
    config: TrainingConfig,
    folder: RunFolder,
    *,
    batches: Batches,
    collective: Collective,
    device: torch.device | str,
    precision: str,
    checkpoints: CheckpointStore,
    log: MetricsLog | None,
    stop: Path,
    goal: Goal | None,
    should_checkpoint: Callable[[], bool] = lambda: False,
) -> Iterator[Report]:
    """Walk ``fit``: every report is in the log before it is passed on, and ``outcome.json`` is there before the last.

    A run of its own is judged and exported at its end; a trial is exported whenever it is better than before.

    Args, beside those of ``fit``:
        folder: of the run.
        log: of the first worker; None on all others.
        stop: a file that, once it is there, ends the run at its next step.
        goal: what a sweep looks at; None: this is no trial.
    """

    def on_start(first_step: int) -> None:
        if log is not None:
            log.rewind(first_step)
            report_start(folder.notices, first_step, system.steps_per_epoch)

    metrics: dict[str, float] = {}
    reports = fit(
        system,
        config,
        batches=batches,
        collective=collective,
        device=device,
        precision=precision,
        checkpoints=checkpoints,
        should_stop=_StopFlag(stop),
        should_checkpoint=should_checkpoint,
        on_start=on_start,
    )
    for report in reports:
        metrics |= report.metrics
        if log is not None and report.metrics:
            log.append(report.step, report.metrics, is_evaluation=report.is_evaluation)
            if (
                goal is not None
                and report.is_evaluation
                and goal.is_reached_first(read_reports(folder.metrics), report.step)
            ):
                system.export(folder.export, _card(folder, system, config, report.metrics))
        if report.is_last:
            checkpoints.wait()
            _finish(
                folder,
                system,
                config,
                collective,
                report,
                metrics,
                log is not None,
                is_judged=goal is None,
            )
        yield report


def walk_alone(
    system: System,
    config: TrainingConfig,
    folder: RunFolder,
    *,
    device: torch.device | str,
    precision: str,
    stop: Path,
    goal: Goal | None,
    should_checkpoint: Callable[[], bool] = lambda: False,
) -> Iterator[Report]:
    """As ``walk``, in a process that trains by itself and makes its own batches.

    Raises:
        ClusterError: if another process is at work on the folder.
    """
    with folder.lock("writer", WRITER_LOCK_SECONDS):
        checkpoints = _checkpoints(folder, config)
        yield from walk(
            system,
            config,
            folder,
            batches=local_batches(system, config.schedule.max_steps),
            collective=SingleProcess(),
            device=device,
            precision=precision,
            checkpoints=checkpoints,
            log=MetricsLog(folder.metrics),
            stop=stop,
            goal=goal,
            should_checkpoint=should_checkpoint,
        )
        checkpoints.close()


def _checkpoints(folder: RunFolder, config: TrainingConfig) -> CheckpointStore:
    return CheckpointStore(
        folder.checkpoints, keep=config.schedule.keep_checkpoints, run=folder.records()
    )


def _agree(first_step: int, collective: Collective) -> None:
    """All workers must resume from one checkpoint; a slow shared disk may show the newest to some of them only."""
    total = int(collective.all_sum(torch.tensor(first_step)))
    if total != first_step * collective.world:
        raise ClusterError(
            f"rank {collective.rank} resumes from step {first_step}, and the mean over {collective.world} workers is "
            f"{total / collective.world:g}: they see different checkpoints. They are started again"
        )


def _finish(
    folder: RunFolder,
    system: System,
    config: TrainingConfig,
    collective: Collective,
    last: Report,
    metrics: dict[str, float],
    is_writer: bool,
    is_judged: bool,
) -> None:
    """Judge and export a finished model; say where a stopped one stands."""
    is_complete = last.reason in COMPLETE and is_judged
    report: FinalReport | None = None
    if is_complete and system.final_evaluate is not None:
        report = system.final_evaluate(system.model, collective)
    if not is_writer:
        return
    if is_complete:
        system.export(folder.export, _card(folder, system, config, metrics))
        write_unit_scores(folder.unit_scores, {} if report is None else report.unit_scores)
    outcome = {
        "status": last.reason,
        "precision": last.precision,
        "step": last.step,
        "metrics": metrics,
        "final": {} if report is None else report.to_json(),
        "weights_sha256": weights_digest(system.model.state_dict().items()),
    }
    write_record(folder.outcome, "outcome", outcome)


def _card(
    folder: RunFolder, system: System, config: TrainingConfig, metrics: dict[str, float]
) -> dict[str, Any]:
    return {
        "name": folder.name,
        "Data digest": system.data_digest,
        "Metrics": metrics,
        "Configuration": config.to_mapping(),
    }


class _StopFlag:
    """Whether the driver wants the run to end; looks at the file a few times a second, however short the steps."""

    def __init__(self, path: Path) -> None:
        self.path, self._is_set, self._next_look = path, False, 0.0

    def __call__(self) -> bool:
        now = time.monotonic()
        if not self._is_set and now >= self._next_look:
            self._is_set, self._next_look = self.path.exists(), now + STOP_POLL_SECONDS
        return self._is_set


class _Notice:
    """Whether a checkpoint is due because a node of the run will be taken away: at the notice, and until it is gone."""

    def __init__(self) -> None:
        self._next_time = 0.0

    def __call__(self) -> bool:
        now = time.monotonic()
        # What ray.train.get_preemption_info() gives; that is a barrier of all workers, and this is asked at each step.
        if get_train_context().preemption_context.preemption_info is None or now < self._next_time:
            return False
        self._next_time = now + NOTICE_SECONDS
        return True
