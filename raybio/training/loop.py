"""The training loop: a generator of reports, the same in a test, on a laptop and on a cluster.

The loop owns time: when to log, evaluate, save and stop. The step owns learning, the checkpoint
store owns saving, and the caller that iterates decides what to do with a report.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from raybio.core.batch import TokenBatch
from raybio.core.errors import CheckpointError, ClusterError, ConfigError, OtherVersionsError
from raybio.core.interfaces import Collective, System
from raybio.core.records import fields_of
from raybio.core.version import changed_values, have_changed, last_values
from raybio.training.checkpoint import CheckpointStore
from raybio.training.checkpoint_files import CheckpointState
from raybio.training.collapse import CollapseWatch
from raybio.training.collective import SingleProcess
from raybio.training.determinism import gather_arithmetic, set_environment
from raybio.training.meter import Meter
from raybio.training.precision import (
    Precision,
    check_precision,
    embedding_precision,
    resolve_precision,
)
from raybio.training.progress import Progress, has_stopped_improving, update_best
from raybio.training.settings import COMPLETE, TrainingConfig
from raybio.training.sharded_optimizer import ShardedAdamW
from raybio.training.snapshot import BaseWeights, TrainingState
from raybio.training.step import LaunchedStep, TrainStep

_log = logging.getLogger(__name__)

Batches = Callable[[int], Iterator[tuple[int, TokenBatch]]]
"""first step -> this worker's shards of that step and all later ones, in order."""

FIRST_REPORTED_STEPS = (1, 3, 10)
"""Steps that are always reported, for the first loss, and for the speed once the data flows."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """A report of the run up to a step.

    Attributes:
        step: optimizer updates so far.
        metrics: losses of the step, rates and ``stall_seconds`` (waiting for input, of the worker
            that waited longest) since the last report, and evaluation metrics.
        is_evaluation: whether the metrics hold an evaluation.
        is_evaluation_pending: whether the run was stopped before the evaluation of this step. The
            next start evaluates first, and reports the step again as a whole.
        is_checkpoint: whether a checkpoint of this step was saved.
        is_last: whether the run ends here.
        reason: why the run ends: ``finished``, ``early_stopping`` or ``stopped``.
        precision: ``fp32``, ``tf32`` or ``bf16``.
        best_step: in the last report, the step of the best weights if they were loaded into the
            model; None if the model has the weights of ``step``.
    """

    step: int
    metrics: dict[str, float]
    is_evaluation: bool = False
    is_checkpoint: bool = False
    is_last: bool = False
    reason: str = ""
    precision: str = ""
    best_step: int | None = None
    is_evaluation_pending: bool = False

    def to_progress(self) -> dict[str, Any]:
        """Return the part of the report that the checkpoint stores, as keyword arguments."""
        return {
            "step": self.step,
            "metrics": self.metrics,
            "is_evaluation": self.is_evaluation,
            "is_evaluation_pending": self.is_evaluation_pending,
            "precision": self.precision,
        }


def local_batches(system: System, max_steps: int, collective: Collective | None = None) -> Batches:
    """Return batches that this process collates itself, without Ray Data."""
    collective = collective or SingleProcess()

    def batches(first_step: int) -> Iterator[tuple[int, TokenBatch]]:
        for step in range(first_step, max_steps):
            arrays = system.collate(step, collective.rank, collective.world)
            yield step, system.batch_type.from_arrays(arrays)

    return batches


def fit(
    system: System,
    config: TrainingConfig,
    *,
    batches: Batches | None = None,
    collective: Collective | None = None,
    device: torch.device | str = "cpu",
    precision: str | None = None,
    checkpoints: CheckpointStore | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    should_checkpoint: Callable[[], bool] = lambda: False,
    on_start: Callable[[int, Report | None], None] = lambda first_step, report: None,
    restores_best: bool = True,
) -> Iterator[Report]:
    """Train ``system`` from its newest checkpoint, or from the start, to ``schedule.max_steps``.

    Every worker iterates its own copy in step; all of them yield the same reports.

    Args:
        system: what is trained; its model is moved to ``device`` and changed in place.
        config: the system's whole configuration; epochs of its schedule become steps.
        batches: this worker's batches; default: ``local_batches``.
        collective: the other workers; default: none.
        device: where the model computes.
        precision: ``fp32``, ``tf32`` or ``bf16``, as decided for the run; None: the checkpoint's,
            or decided for this process by ``config.precision``.
        checkpoints: where to save and to resume from; None: nowhere.
        should_stop: called at the start and after each step; if it returns True on any worker, all
            workers save a checkpoint and end.
        should_checkpoint: called after each step; if it returns True on any worker, an extra
            checkpoint is saved, and the run continues.
        on_start: called once before the first report, with the step that the run starts from and,
            after a checkpoint, the report of that step: a process that was killed after the
            checkpoint may not have yielded it.
        restores_best: at the end of training, before the last report, put the best weights by
            ``schedule.best_metric`` into the model; needs ``checkpoints``.

    Yields:
        A report of each of ``FIRST_REPORTED_STEPS``, every ``log_every_steps``, at each evaluation
        and checkpoint, and at the end.

    Raises:
        CheckpointError: if the checkpoints belong to another configuration, data or precision, or
            none verifies.
        ConfigError: if the GPU cannot compute in the precision, or a metric of ``schedule`` is
            never evaluated.
        DivergedError: see ``TrainStep``.
    """
    collective = collective or SingleProcess()
    schedule = config.schedule.in_steps(system.steps_per_epoch)
    config = config.model_copy(update={"schedule": schedule})
    batches = batches or local_batches(system, schedule.max_steps, collective)
    run = _Run(system, config, collective, torch.device(device), precision, checkpoints)
    on_start(run.progress.step, run.resumed_report)
    for report in run.reports(batches, should_stop, should_checkpoint):
        if restores_best and report.reason in COMPLETE:
            report = replace(report, best_step=run.restore_best())
        yield report


class _Run:
    """The state of one call of ``fit``."""

    def __init__(
        self,
        system: System,
        config: TrainingConfig,
        collective: Collective,
        device: torch.device,
        precision: str | None,
        checkpoints: CheckpointStore | None,
    ) -> None:
        self.system = system
        self.config = config
        self.collective = collective
        self.device = device
        self.checkpoints = checkpoints
        self.schedule = config.schedule
        self._check_metrics()
        set_environment(config.determinism)
        self.base = None if checkpoints is None else BaseWeights.of(system.model)
        system.model.to(device)
        saved = self._newest_checkpoint()
        collective.step = saved.step if saved else 0
        self._agree_on(collective.step)
        self.progress = Progress()
        if saved:
            self.progress = Progress(**fields_of(Progress, saved.extra, saved.path))
        self.precision = self._decide_precision(precision)
        self.progress.precision = self.precision
        self.train_step = TrainStep(
            system, config, collective, Precision(self.precision, device.type)
        )
        if saved:
            saved.restore(system.model, self.train_step.optimizer, self.base)
            self.train_step.num_skipped = self.progress.num_skipped
            self._warn_of_extra_evaluation()
        self.resumed_report = self._report_of_checkpoint(saved)
        self.launched: LaunchedStep | None = None
        self.num_read = self.progress.step
        self.watch = None
        if collective.rank == 0:
            self.watch = CollapseWatch(
                config, is_pretrained=system.is_pretrained, is_supervised=system.is_supervised
            )

    def _warn_of_extra_evaluation(self) -> None:
        """Warn if a run was extended and its former last step may be chosen as the best one."""
        step = self.progress.step
        every = self.schedule.evaluate_every_steps
        is_extra = self.progress.evaluated_step == step and every > 0 and step % every != 0
        is_chosen = self.schedule.best_metric is not None
        if is_extra and is_chosen and not self._is_finished() and self.collective.rank == 0:
            _log.warning(
                "step %d was the run's last one, and was evaluated although it is no multiple of "
                "%d. Early stopping and the choice of the best weights count that evaluation; a "
                "run that was as long from the start does not have it",
                step,
                every,
            )

    def _report_of_checkpoint(self, saved: CheckpointState | None) -> Report | None:
        """Return the checkpoint's report, which is pending if its step is evaluated first."""
        if saved is None or self.progress.report is None:
            return None
        fields = fields_of(Report, self.progress.report, saved.path)
        return Report(**fields | {"is_evaluation_pending": self._is_overdue()})

    def reports(
        self,
        batches: Batches,
        should_stop: Callable[[], bool],
        should_checkpoint: Callable[[], bool],
    ) -> Iterator[Report]:
        """Train on the batches; see ``fit``."""
        for early_report in self._reports_before(should_stop):
            yield early_report
            if early_report.is_last:
                self._wait_for_checkpoints()
                return
        meter = Meter(self.collective)
        self.system.model.train()
        for step, batch in meter.timed(batches(self.progress.step)):
            report = self._train_one(step, batch, meter, should_stop, should_checkpoint)
            if report is None:
                continue
            yield report
            if report.is_last:
                break
        else:
            raise ConfigError(
                f"the stream ended after step {self.progress.step}, want "
                f"{self.schedule.max_steps} steps"
            )
        self._wait_for_checkpoints()

    def _wait_for_checkpoints(self) -> None:
        """Return when every checkpoint is written."""
        if self.checkpoints is not None:
            self.checkpoints.wait()

    def _reports_before(self, should_stop: Callable[[], bool]) -> Iterator[Report]:
        """Yield the reports before the first batch: an evaluation, and the end if it is reached."""
        step = self.progress.step
        if self._on_any_worker(should_stop):
            yield self._last_report("stopped")
            return
        if self._is_overdue():
            # This happens at step 0, after a signal between an update and its evaluation, or if
            # max_steps was lowered to the current step.
            reported = {} if self.progress.report is None else self.progress.report["metrics"]
            report = Report(
                step=step,
                metrics=reported | self._evaluate(),
                is_evaluation=True,
                precision=self.precision,
            )
            self.progress.report = report.to_progress()
            is_end = self._is_finished() or has_stopped_improving(self.progress, self.schedule)
            is_kept = is_end or self.progress.best_step == step
            is_saved = self._save() if is_kept else False
            yield replace(report, is_checkpoint=is_saved)
        reason = self._reason_to_end_at_start()
        if reason:
            yield self._last_report(reason)

    def _last_report(self, reason: str) -> Report:
        """Return the report of a start that trains no step."""
        return Report(
            step=self.progress.step,
            metrics={},
            is_last=True,
            reason=reason,
            precision=self.precision,
        )

    def _reason_to_end_at_start(self) -> str:
        """Return why a resumed run trains no step; an empty string if it does."""
        if self._is_finished():
            return "finished"
        if has_stopped_improving(self.progress, self.schedule):
            return "early_stopping"
        return ""

    def _train_one(
        self,
        step: int,
        batch: TokenBatch,
        meter: Meter,
        should_stop: Callable[[], bool],
        should_checkpoint: Callable[[], bool],
    ) -> Report | None:
        """Train one step; return its report, None if none is due.

        Raises:
            ConfigError: if the batch belongs to another step.
            DivergedError: see ``_read_step``.
        """
        if step != self.progress.step:
            raise ConfigError(
                f"the stream brought step {step}, want {self.progress.step}: steps come in order"
            )
        launched = self.train_step.launch(step, batch)
        # A GPU computes this step while the host waits for the metrics of the previous one.
        self._read_step(meter)
        self.launched = launched
        self.progress.step = step + 1
        self.collective.step = self.progress.step
        if self.progress.step >= self.schedule.max_steps:
            return self._report(meter, "finished", is_checkpoint_requested=False)
        is_stopped, is_checkpoint_requested = self._on_any_worker_each(
            should_stop, should_checkpoint
        )
        return self._report(meter, "stopped" if is_stopped else "", is_checkpoint_requested)

    def _read_step(self, meter: Meter) -> None:
        """Read the metrics of the launched step, if they have not been read.

        Raises:
            DivergedError: see ``TrainStep``; updates after the diverged step have been skipped.
        """
        if self.launched is None:
            return
        metrics = self.launched.read()
        self.launched = None
        self.num_read += 1
        meter.add(metrics)
        if self.watch is not None:
            self.watch.observe_step(self.num_read, metrics)

    def _report(self, meter: Meter, reason: str, is_checkpoint_requested: bool) -> Report | None:
        """Evaluate and save if due; return the report of the step, None if none is due."""
        step = self.progress.step
        schedule = self.schedule
        # A stop does not wait for an evaluation; the next start catches up on it.
        is_evaluation_due = self._is_evaluation_due(is_finished=reason == "finished")
        is_evaluation = is_evaluation_due and reason != "stopped"
        is_evaluation_pending = is_evaluation_due and reason == "stopped"
        is_checkpoint_due = (
            step % schedule.checkpoint_every_steps == 0 or bool(reason) or is_checkpoint_requested
        )
        is_checkpoint = self.checkpoints is not None and is_checkpoint_due
        is_due = step in FIRST_REPORTED_STEPS or step % schedule.log_every_steps == 0
        if not (is_evaluation or is_checkpoint or reason or is_due):
            return None
        self._read_step(meter)
        metrics = meter.read() | {"epoch": step / self.system.steps_per_epoch}
        if is_evaluation:
            metrics |= self._evaluate()
            if not reason and has_stopped_improving(self.progress, self.schedule):
                reason = "early_stopping"
            if reason or self.progress.best_step == step:
                is_checkpoint = self.checkpoints is not None
            meter.restart_clock()
        report = Report(
            step=step,
            metrics=metrics,
            is_evaluation=is_evaluation,
            is_evaluation_pending=is_evaluation_pending,
            precision=self.precision,
        )
        # The checkpoint comes before the report is yielded.
        self.progress.report = report.to_progress()
        if is_checkpoint:
            self._save()
        return replace(report, is_checkpoint=is_checkpoint, is_last=bool(reason), reason=reason)

    def _on_any_worker(self, condition: Callable[[], bool]) -> bool:
        return self._on_any_worker_each(condition)[0]

    def _on_any_worker_each(self, *conditions: Callable[[], bool]) -> list[bool]:
        """Return, on all workers, whether each condition holds on any worker."""
        holds = [int(condition()) for condition in conditions]
        return [bool(total) for total in self.collective.host_sum(holds)]

    def _evaluate(self) -> dict[str, float]:
        assert self.system.evaluate is not None
        self.system.model.eval()
        precision = Precision(self.precision, self.device.type)
        with self.collective.patient(), torch.no_grad(), embedding_precision(precision):
            metrics = dict(self.system.evaluate(self.system.model, self.collective))
        self.system.model.train()
        self.progress.evaluated_step = self.progress.step
        if self.watch is not None:
            self.watch.observe_evaluation(self.progress.step, metrics)
        update_best(self.progress, self.schedule, metrics | self._of_first_worker(metrics))
        return metrics

    def _of_first_worker(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Return the metrics that decide about the run, as the first worker has them.

        Workers that compute a metric each for itself may differ in its last bits, and must not
        differ in when they stop or which weights they keep.
        """
        # A missing one is refused afterwards, by all workers.
        names = [name for name in self.schedule.deciding_metrics if name in metrics]
        values = torch.tensor([metrics[name] for name in names], dtype=torch.float64)
        if self.collective.rank != 0:
            values.zero_()
        return dict(zip(names, self.collective.all_sum(values).tolist(), strict=True))

    def _is_evaluation_due(self, is_finished: bool) -> bool:
        every = self.schedule.evaluate_every_steps
        if self.system.evaluate is None or every == 0:
            return False
        return is_finished or self.progress.step % every == 0

    def _is_overdue(self) -> bool:
        """Return whether the step from which a run begins or resumes lacks an evaluation."""
        is_due = self._is_evaluation_due(self._is_finished())
        return is_due and self.progress.evaluated_step != self.progress.step

    def _is_finished(self) -> bool:
        return self.progress.step >= self.schedule.max_steps

    def _check_metrics(self) -> None:
        name = self.schedule.best_metric
        if name is not None and self.system.evaluate is None:
            raise ConfigError(
                f"the schedule chooses weights by {name}, and {self.system.name} has no validation "
                "rows to evaluate. Prepare a store with some, or set schedule.keep_best and "
                "schedule.early_stopping_metric to null"
            )

    def restore_best(self) -> int | None:
        """Put the best weights into the model; return their step, None if it has them already."""
        best_step = self.progress.best_step
        if self.checkpoints is None or best_step in (None, self.progress.step):
            return None
        self.checkpoints.wait_for(best_step)
        self._on_any_worker(lambda: False)  # a barrier: rank 0 has written by now
        self.checkpoints.of_step(best_step).restore(self.system.model, base=self.base)
        return best_step

    def _newest_checkpoint(self) -> CheckpointState | None:
        if self.checkpoints is None:
            return None
        arithmetic = gather_arithmetic(self.collective, self.device, self.config.determinism)
        saved = self.checkpoints.load_newest(
            self.config, self.system.data_digest, changeable_settings(self.config), arithmetic
        )
        # All workers know the same, so one of them compares.
        if saved is not None and self.collective.rank == 0:
            used = saved.manifest.get("arithmetic", {})
            is_strict = self.checkpoints.is_strict
            changes = changed_values(used if is_strict else last_values(used), arithmetic)
            if changes:
                message = (
                    f"the checkpoint of step {saved.step} was computed otherwise, so the run will "
                    f"not end with the bits of an unbroken one ({'; '.join(changes)})"
                )
                if is_strict and have_changed(used):
                    raise OtherVersionsError(
                        f"{message}. Leave out --strict, or choose another --name"
                    )
                if is_strict:
                    raise OtherVersionsError(f"{message}. Restore that, or leave out --strict")
                _log.warning(message)
        return saved

    def _decide_precision(self, given: str | None) -> str:
        """Return the run's precision; a resumed run keeps the one it began with."""
        begun = self.progress.precision
        if begun and given and begun != given:
            raise CheckpointError(
                f"precision: the checkpoint of step {self.progress.step} was computed in {begun}, "
                f"and the run is recorded in run.json with {given}. Give the run a new name"
            )
        decided = begun or given
        if decided:
            check_precision(decided, self.device)
            return decided
        name = resolve_precision(self.config.precision, self.device).name
        # Without a decision of the driver, workers agree on what all their machines support.
        (num_fp32,) = self.collective.host_sum([name == "fp32"])
        return "fp32" if num_fp32 else name

    def _agree_on(self, step: int) -> None:
        """Check that all workers resume from one step.

        On a slow disk or bucket, only some workers may see the newest checkpoint.

        Raises:
            ClusterError: if they do not; workers that are started again may agree.
        """
        steps = torch.tensor([step, -step], device=self.device)
        highest, negative_lowest = self.collective.all_max(steps).tolist()
        lowest = -negative_lowest
        if highest != lowest:
            raise ClusterError(
                f"the workers found checkpoints of steps {lowest} to {highest}, want the same one. "
                "They are started again; if that does not help, their runs folders differ"
            )

    def _save(self) -> bool:
        """Save on rank 0, since weights are equal on every worker; gather a sharded state first.

        Return whether there is a checkpoint store.
        """
        if self.checkpoints is None:
            return False
        optimizer = self.train_step.optimizer
        gathered = optimizer.gather_state() if isinstance(optimizer, ShardedAdamW) else None
        if self.collective.rank == 0:
            progress = self.progress
            progress.num_skipped = self.train_step.num_skipped
            state = TrainingState(self.system.model, optimizer, vars(progress), self.base, gathered)
            self.checkpoints.save(state, progress.step, progress.best_step)
        return True


def changeable_settings(config: TrainingConfig) -> tuple[str, ...]:
    """Return the settings that may change on resume, since no finished step depends on them."""
    settings = [
        "determinism",
        "optim.shard_state",
        "schedule.keep_checkpoints",
        "schedule.log_every_steps",
    ]
    depends_on_max_steps = config.optim.schedule != "constant" or config.optim.warmup_ratio > 0
    if not depends_on_max_steps:
        settings += ["schedule.max_epochs", "schedule.max_steps"]
    return tuple(settings)
