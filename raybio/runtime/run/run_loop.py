"""The training loop of one process with the files of its run: log, checkpoints, export, result."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from raybio.core.digest import weights_digest
from raybio.core.errors import EvaluationStoppedError
from raybio.core.files import delete_leftovers
from raybio.core.final_report import FinalReport
from raybio.core.interfaces import Collective, System
from raybio.core.records import write_record
from raybio.evaluation.unit_scores import stored_unit_scores, write_unit_scores
from raybio.methods import METHODS
from raybio.runtime.run.card import run_card
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.goal import Goal
from raybio.runtime.run.metrics_log import MetricsLog, read_reports
from raybio.runtime.run.notices import report_start
from raybio.runtime.run.shared_scores import shared_scores
from raybio.runtime.run.spec import RunSpec
from raybio.store.store import open_store
from raybio.training.checkpoint import CheckpointStore
from raybio.training.collective import SingleProcess
from raybio.training.loop import Batches, Report, fit, local_batches
from raybio.training.precision import Precision, embedding_precision
from raybio.training.prefetched import prefetched
from raybio.training.remote_checkpoints import RemoteCheckpoints
from raybio.training.settings import COMPLETE, TrainingConfig

WRITER_LOCK_SECONDS = 60.0
"""Maximum time that workers may outlive a killed driver; two seconds are usual."""

STOP_POLL_SECONDS = 0.2


@dataclass(frozen=True, kw_only=True)
class Training:
    """The training of a process: system, configuration, and the folder of its run.

    Attributes:
        system: what is trained; its model is moved to ``device`` and changed in place.
        config: the system's whole configuration.
        folder: the folder of the run.
        device: where the model computes.
        precision: ``fp32``, ``tf32`` or ``bf16``, as decided for the run.
        stop: stop file; once it exists, the run ends at its next step. None: ``folder.stop``.
        goal: metric of a sweep; None: the run is no trial.
        should_checkpoint: called after each step; if it returns True on any worker, an extra
            checkpoint is saved.
    """

    system: System
    config: TrainingConfig
    folder: RunFolder
    device: torch.device | str
    precision: str
    stop: Path | None = None
    goal: Goal | None = None
    should_checkpoint: Callable[[], bool] = lambda: False


def built_system(run: RunSpec, collective: Collective, *, verifies_store: bool) -> System:
    """Open the store and build the method; return when all workers have done so.

    They wait for one another without a limit: a large store may take longer to read, or to fetch
    from a bucket, than workers otherwise wait. One worker of each node verifies the store.
    """
    with collective.patient("opening the store"):
        if verifies_store:
            # The driver has verified only the copy of its own machine.
            open_store(run.store, verify=True)
        method = METHODS[run.method]
        open_store(run.store, method.store).map_all()
        return method.build(run.config, run.store)


def run_loop(
    training: Training,
    *,
    batches: Batches,
    collective: Collective,
    checkpoints: CheckpointStore,
    log: MetricsLog | None,
) -> Iterator[Report]:
    """Run ``fit``, write its reports to the log, and write ``outcome.json`` at the end.

    A report is in the log, and the outcome on disk, before the report is yielded. A run is
    evaluated and exported at its end, with its best weights if ``schedule.best_metric`` is set. A
    trial is exported whenever it is better than before.

    Args:
        training: what is trained, and the folder of its run.
        batches: this worker's batches.
        collective: all workers.
        checkpoints: where to save and to resume from.
        log: log of the first worker; None on all others.
    """
    system = training.system
    folder = training.folder
    metrics: dict[str, float] = {}

    def write(report: Report) -> None:
        """Add a report to the log; export a trial that is better than before."""
        metrics.update(report.metrics)
        if not report.metrics:
            return
        if training.goal is not None and report.is_evaluation:
            # The first worker may embed a reference set meanwhile, and the others wait for it.
            with collective.patient("an export"):
                if log is not None:
                    # Export before the log has the step, for which its checkpoint waits.
                    _export_if_best(training, training.goal, report)
        if log is None:
            return
        log.append(
            report.step,
            report.metrics,
            # After a power loss, the log must have the report of each checkpoint.
            is_synced=report.is_checkpoint,
            is_evaluation_pending=report.is_evaluation_pending,
            is_evaluation=report.is_evaluation,
        )

    def on_start(first_step: int, report: Report | None) -> None:
        """Truncate the log after the first step, and add the checkpoint's report of this step."""
        is_replaced = first_step == 0 if report is None else report.is_evaluation_pending
        if log is not None:
            checkpoints.restore_log(log.path)
            # Without a checkpoint, the logged report of step 0 may belong to other weights.
            log.rewind(first_step - 1 if is_replaced else first_step)
            kind = torch.device(training.device).type
            report_start(
                folder.notices,
                first_step,
                system.steps_per_epoch,
                kind,
                is_first_step_reported=is_replaced,
            )
        # If its evaluation is pending, it is written with the complete report of the step.
        if report is not None and not report.is_evaluation_pending:
            write(report)

    should_stop = _StopFlag(training.stop or folder.stop)
    reports = fit(
        system,
        training.config,
        batches=batches,
        collective=collective,
        device=training.device,
        precision=training.precision,
        checkpoints=checkpoints,
        should_stop=should_stop,
        should_checkpoint=training.should_checkpoint,
        on_start=on_start,
        restores_best=training.goal is None,
    )
    for report in reports:
        write(report)
        if report.is_last:
            checkpoints.wait()
            reason = _finish(
                training, collective, report, metrics, should_stop, is_writer=log is not None
            )
            report = replace(report, reason=reason)
        yield report


def _export_if_best(training: Training, goal: Goal, report: Report) -> None:
    """Export a trial's model if no evaluation in its log is as good as the report's."""
    finite = {name: value for name, value in report.metrics.items() if math.isfinite(value)}
    line = {"step": report.step, "metrics": finite}
    folder = training.folder
    if not goal.is_reached_first([*read_reports(folder.metrics), line], report.step):
        return
    card = run_card(
        folder,
        training.system,
        training.config,
        step=report.step,
        precision=report.precision,
        metrics=report.metrics,
    )
    training.system.export(folder.export, card)


def train_single_process(
    training: Training, *, start: str | None = None, remote: RemoteCheckpoints | None = None
) -> Iterator[Report]:
    """Train in a single process, which makes its own batches; see ``run_loop``.

    Args:
        training: what is trained, and the folder of its run.
        start: name of the run's start; a process of an older start must not change the folder.
            None: there is no other start.
        remote: the run's checkpoints in a bucket; None: they are in its folder.

    Raises:
        ClusterError: if another process trains in the folder.
    """
    folder = training.folder
    with folder.lock("writer", WRITER_LOCK_SECONDS):
        # The run may have been started again while this process built its system.
        if start is not None and not folder.is_newest_start(start):
            return
        delete_leftovers(folder.export)
        checkpoints = checkpoints_of(folder, training.config, remote)
        batches = local_batches(training.system, training.config.schedule.max_steps)
        if torch.device(training.device).type == "cuda":
            batches = prefetched(batches)
        try:
            yield from run_loop(
                training,
                batches=batches,
                collective=SingleProcess(),
                checkpoints=checkpoints,
                log=MetricsLog(folder.metrics),
            )
            checkpoints.close()
        finally:
            checkpoints.join()


def checkpoints_of(
    folder: RunFolder, config: TrainingConfig, remote: RemoteCheckpoints | None = None
) -> CheckpointStore:
    """Return the checkpoints of a run, which keep copies of its records.

    Args:
        folder: the run's folder.
        config: its configuration.
        remote: its checkpoints in a bucket; None: they are in its folder.
    """
    return CheckpointStore(
        folder.checkpoints,
        keep=config.schedule.keep_checkpoints,
        run=folder.records(),
        remote=remote,
        log=folder.metrics,
        is_strict=bool(folder.read_launch().get("is_strict")),
    )


def _finish(
    training: Training,
    collective: Collective,
    last: Report,
    metrics: dict[str, float],
    should_stop: Callable[[], bool],
    *,
    is_writer: bool,
) -> str:
    """Evaluate and export the model if the run is finished, and write the outcome.

    Return why the run ends: ``stopped``, too, if it was stopped while it was evaluated.
    """
    system = training.system
    config = training.config
    folder = training.folder
    reason = last.reason
    is_complete = reason in COMPLETE and training.goal is None
    report: FinalReport | None = None
    if is_complete and system.final_evaluate is not None:
        shared = shared_scores(system.name, system.data_digest, config, folder, last.precision)
        precision = Precision(last.precision, torch.device(training.device).type)
        try:
            with collective.patient(), embedding_precision(precision):
                report = system.final_evaluate(system.model, collective, shared, should_stop)
        except EvaluationStoppedError:
            # The next start has no step to train, and reads the scores of the models so far.
            reason = "stopped"
            is_complete = False
    if not is_writer:
        return reason
    if is_complete:
        step = last.step
        metrics_of_weights = metrics
        if last.best_step is not None:
            step = last.best_step
            metrics_of_weights = _metrics_of_step(folder, step)
        card = run_card(
            folder,
            system,
            config,
            step=step,
            precision=last.precision,
            metrics=metrics_of_weights,
            report=report,
        )
        system.export(folder.export, card)
        if report is not None:
            layout = METHODS[system.name].table
            write_unit_scores(folder.unit_scores, stored_unit_scores(report.unit_scores, layout))
    outcome = {
        "status": reason,
        "time_ms": int(time.time() * 1000),
        "precision": last.precision,
        "step": last.step,
        "best_step": last.best_step,
        "metrics": metrics,
        "final": {} if report is None else report.to_json(),
        "weights_sha256": weights_digest(system.model.state_dict().items()),
    }
    write_record(folder.outcome, "outcome", outcome)
    return reason


def _metrics_of_step(folder: RunFolder, step: int) -> dict[str, float]:
    """Return the metrics that the run's log has of a step."""
    metrics: dict[str, float] = {}
    for report in read_reports(folder.metrics):
        if report["step"] == step:
            metrics |= report["metrics"]
    return metrics


class _StopFlag:
    """The stop request of the driver.

    The stop file is checked only a few times per second, however short the steps are.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._is_set = False
        self._next_look = 0.0

    def __call__(self) -> bool:
        now = time.monotonic()
        if not self._is_set and now >= self._next_look:
            self._is_set = self._path.exists()
            self._next_look = now + STOP_POLL_SECONDS
        return self._is_set
