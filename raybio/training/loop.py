"""The training loop: a generator of reports, the same in a test, on a laptop and on a cluster.

It owns time (when to log, evaluate, checkpoint, stop) and nothing else: the step knows how to learn, the checkpoint
store how to save, and whoever walks the generator what to do with a report.
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from raybio.core.batch import TokenBatch
from raybio.core.errors import CheckpointError, ConfigError
from raybio.core.interfaces import Collective, System
from raybio.training.checkpoint import CheckpointStore
from raybio.training.collapse import CollapseWatch
from raybio.training.collective import SingleProcess
from raybio.training.precision import Precision, check_precision, resolve_precision
from raybio.training.settings import TrainingConfig
from raybio.training.snapshot import TrainingState
from raybio.training.step import TrainStep

Batches = Callable[[int], Iterator[tuple[int, TokenBatch]]]
"""first step -> that worker's shards of the steps from there on, in order."""


FIRST_REPORTED_STEPS = (1, 3, 10)
"""Reported whatever ``log_every_steps`` is: the first loss, and how long a step takes once the data flows."""


@dataclass(frozen=True)
class Report:
    """What happened up to a step.

    Attributes:
        step: optimiser updates so far.
        metrics: losses of the step, means since the last report where that is meant, and evaluation results.
        is_evaluation: whether the metrics hold an evaluation.
        is_checkpoint: whether a checkpoint of this step was taken.
        is_last: whether the run ends here.
        reason: why it ends: ``finished``, ``early_stopping`` or ``stopped``.
        precision: ``fp32`` or ``bf16``.
    """

    step: int
    metrics: dict[str, float]
    is_evaluation: bool = False
    is_checkpoint: bool = False
    is_last: bool = False
    reason: str = ""
    precision: str = ""


@dataclass
class Progress:
    """What the loop itself remembers across a restart."""

    step: int = 0
    evaluated_step: int = -1
    best_metric: float | None = None
    num_evaluations_without_improvement: int = 0
    num_skipped: int = 0
    precision: str | None = None


def local_batches(system: System, max_steps: int, collective: Collective | None = None) -> Batches:
    """Batches made in this process, without Ray; for tests, measurements and machines without it."""
    collective = collective or SingleProcess()

    def batches(first_step: int) -> Iterator[tuple[int, TokenBatch]]:
        for step in range(first_step, max_steps):
            yield (
                step,
                system.batch_type.from_arrays(
                    system.collate(step, collective.rank, collective.world)
                ),
            )

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
    on_start: Callable[[int], None] = lambda first_step: None,
) -> Iterator[Report]:
    """Train ``system`` from its newest checkpoint, or from the start, to ``schedule.max_steps``.

    Every worker walks its own copy in step; all of them yield the same reports.

    Args:
        system: what is trained; its model is moved to ``device`` and changed in place.
        config: the system's whole configuration.
        batches: this worker's batches; default: ``local_batches``.
        collective: the other workers; default: none.
        device: where the model lives.
        precision: ``fp32`` or ``bf16``, as it was decided for the run; None: that of the checkpoint, or decided for
            this process by ``config.precision``.
        checkpoints: where to save and to resume from; None: nowhere.
        should_stop: asked at the start and after each step; if it says yes on any worker, all checkpoint and end.
        should_checkpoint: asked after each step; if it says yes on any worker, a checkpoint is taken between the usual
            ones, and the run goes on.
        on_start: called once, before the first report, with the step that the run starts from.

    Yields:
        a report of each of ``FIRST_REPORTED_STEPS``, every ``log_every_steps``, at each evaluation and checkpoint, and
        at the end.

    Raises:
        CheckpointError: if the checkpoints belong to another configuration, data or precision, or none verifies.
        ConfigError: if the GPU cannot compute in the precision.
        DivergedError: see ``TrainStep``.
    """
    collective = collective or SingleProcess()
    batches = batches or local_batches(system, config.schedule.max_steps, collective)
    run = _Run(system, config, collective, torch.device(device), precision, checkpoints)
    on_start(run.progress.step)
    yield from run.reports(batches, should_stop, should_checkpoint)


class _Run:
    """The state of one walk through ``fit``."""

    def __init__(
        self,
        system: System,
        config: TrainingConfig,
        collective: Collective,
        device: torch.device,
        precision: str | None,
        checkpoints: CheckpointStore | None,
    ) -> None:
        self.system, self.config, self.collective, self.device = system, config, collective, device
        self.checkpoints = checkpoints
        self.schedule = config.schedule
        system.model.to(device)
        saved = self._newest_checkpoint()
        self._agree_on(saved.step if saved else 0)
        self.progress = Progress(**saved.extra) if saved else Progress()
        self.precision = self.progress.precision = self._decided(precision)
        self.train_step = TrainStep(
            system, config, collective, Precision(self.precision, device.type)
        )
        if saved:
            saved.restore(system.model, self.train_step.optimizer)
            self.train_step.num_skipped = self.progress.num_skipped
        self.watch = None
        if collective.rank == 0:
            self.watch = CollapseWatch(
                config, is_pretrained=system.is_pretrained, is_supervised=system.is_supervised
            )

    def reports(
        self,
        batches: Batches,
        should_stop: Callable[[], bool],
        should_checkpoint: Callable[[], bool],
    ) -> Iterator[Report]:
        """Walk the batches; see ``fit``."""
        first_step = self.progress.step
        if self._anybody(should_stop)[0]:
            yield Report(first_step, {}, is_last=True, reason="stopped", precision=self.precision)
            return
        if self._is_evaluation_due() and self.progress.evaluated_step != first_step:
            # At the very start; or a signal came between an update and its evaluation.
            yield Report(first_step, self._evaluate(), is_evaluation=True, precision=self.precision)
        reason = "early_stopping" if self._has_stopped_rising() else ""
        if first_step >= self.schedule.max_steps:
            reason = "finished"
        if reason:
            yield Report(first_step, {}, is_last=True, reason=reason, precision=self.precision)
            return
        meter = _Meter()
        self.system.model.train()
        for step, batch in batches(first_step):
            if step != self.progress.step:
                raise ConfigError(
                    f"the stream brought step {step}, want {self.progress.step}: steps come in order"
                )
            metrics = self.train_step(step, batch.to(self.device))
            meter.add(metrics)
            self.progress.step = step + 1
            if self.watch is not None:
                self.watch.observe_step(self.progress.step, metrics)
            is_last = self.progress.step >= self.schedule.max_steps
            is_stopped, is_wanted = (
                (False, False) if is_last else self._anybody(should_stop, should_checkpoint)
            )
            reason = "finished" if is_last else "stopped" if is_stopped else ""
            report = self._report(meter, reason, is_wanted)
            if report is not None:
                yield report
            if reason or (report is not None and report.is_last):
                break
        if self.checkpoints is not None:
            self.checkpoints.wait()

    def _report(self, meter: "_Meter", reason: str, is_checkpoint_wanted: bool) -> Report | None:
        step, schedule = self.progress.step, self.schedule
        # Somebody who wants the run to end does not wait for an evaluation; the next start makes up for it.
        is_evaluation = reason != "stopped" and self._is_evaluation_due(
            at_the_end=reason == "finished"
        )
        is_checkpoint_due = (
            step % schedule.checkpoint_every_steps == 0 or bool(reason) or is_checkpoint_wanted
        )
        is_checkpoint = self.checkpoints is not None and is_checkpoint_due
        is_due = step in FIRST_REPORTED_STEPS or step % schedule.log_every_steps == 0
        if not (is_evaluation or is_checkpoint or reason or is_due):
            return None
        metrics = meter.read() | {"epoch": step / self.system.steps_per_epoch}
        if is_evaluation:
            metrics |= self._evaluate()
            if not reason and self._has_stopped_rising():
                reason, is_checkpoint = "early_stopping", self.checkpoints is not None
            meter.restart_clock()
        if is_checkpoint:
            self._save()
        return Report(
            step, metrics, is_evaluation, is_checkpoint, bool(reason), reason, self.precision
        )

    def _anybody(self, *questions: Callable[[], bool]) -> list[bool]:
        """Which of the questions any worker answers with yes; the same on all of them."""
        answers = torch.tensor([int(question()) for question in questions], device=self.device)
        return [bool(total) for total in self.collective.all_sum(answers).tolist()]

    def _evaluate(self) -> dict[str, float]:
        assert self.system.evaluate is not None
        self.system.model.eval()
        with torch.no_grad():
            metrics = dict(self.system.evaluate(self.system.model, self.collective))
        self.system.model.train()
        self.progress.evaluated_step = self.progress.step
        if self.watch is not None:
            self.watch.observe_evaluation(self.progress.step, metrics)
        self._note_rise(metrics)
        return metrics

    def _is_evaluation_due(self, at_the_end: bool = False) -> bool:
        every = self.schedule.evaluate_every_steps
        return bool(self.system.evaluate and every) and (
            at_the_end or self.progress.step % every == 0
        )

    def _has_stopped_rising(self) -> bool:
        is_watched = self.schedule.early_stopping_metric is not None
        return (
            is_watched
            and self.progress.num_evaluations_without_improvement
            >= self.schedule.early_stopping_patience
        )

    def _note_rise(self, metrics: dict[str, float]) -> None:
        name = self.schedule.early_stopping_metric
        if name is None:
            return
        if name not in metrics:
            raise ConfigError(
                f"schedule.early_stopping_metric {name!r} is not evaluated; there are {sorted(metrics)}"
            )
        best = -math.inf if self.progress.best_metric is None else self.progress.best_metric
        # A metric that is undefined (NaN) is no rise, and nothing has to be better than it.
        if metrics[name] > best:
            self.progress.best_metric, self.progress.num_evaluations_without_improvement = (
                metrics[name],
                0,
            )
        else:
            self.progress.num_evaluations_without_improvement += 1

    def _newest_checkpoint(self) -> Any:
        if self.checkpoints is None:
            return None
        return self.checkpoints.load_newest(
            self.config, self.system.data_digest, ignore=changeable_settings(self.config)
        )

    def _decided(self, given: str | None) -> str:
        """Return the run's precision: a resumed run keeps the one that it began with."""
        begun = self.progress.precision
        if begun and given and begun != given:
            raise CheckpointError(
                f"precision: the checkpoint of step {self.progress.step} was computed in {begun}, and the run is "
                f"recorded in run.json with {given}. Give the run a new name"
            )
        decided = begun or given
        if decided:
            check_precision(decided, self.device)
            return decided
        name = resolve_precision(self.config.precision, self.device).name
        # No driver has decided: workers on different machines agree on what all of them have.
        num_fp32 = self.collective.all_sum(torch.tensor(int(name == "fp32"), device=self.device))
        return "fp32" if int(num_fp32) else "bf16"

    def _agree_on(self, step: int) -> None:
        """Workers that read different checkpoints (a folder that is not the same everywhere) would drift apart."""
        highest, lowest = self.collective.all_max(
            torch.tensor([step, -step], device=self.device)
        ).tolist()
        if highest != -lowest:
            raise CheckpointError(
                f"the workers found checkpoints of steps {-lowest} to {highest}, want the same one: the run's folder "
                "differs between them. Put it on storage that they share"
            )

    def _save(self) -> None:
        """Rank 0 holds all there is to save: weights and optimiser are equal on every worker."""
        if self.checkpoints is None or self.collective.rank != 0:
            return
        self.progress.num_skipped = self.train_step.num_skipped
        self.checkpoints.save(
            TrainingState(self.system.model, self.train_step.optimizer, vars(self.progress)),
            self.progress.step,
        )


class _Meter:
    """Losses of the last step, and real tokens a second since the last reading."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}
        self._tokens = 0.0
        self._steps = 0
        self._since = time.perf_counter()

    def add(self, metrics: dict[str, float]) -> None:
        """Take the metrics of a step."""
        self._last = metrics
        self._tokens += metrics["tokens"]
        self._steps += 1

    def read(self) -> dict[str, float]:
        """The last losses and the rates since the last reading."""
        seconds = time.perf_counter() - self._since
        rates = {
            "tokens_per_second": self._tokens / seconds,
            "steps_per_second": self._steps / seconds,
        }
        self._tokens, self._steps = 0.0, 0
        self.restart_clock()
        return self._last | rates

    def restart_clock(self) -> None:
        """Leave out of the rates what was no training."""
        self._since = time.perf_counter()


def changeable_settings(config: TrainingConfig) -> tuple[str, ...]:
    """Settings that may change when a run is continued, since no finished step depends on them."""
    always = ("schedule.keep_checkpoints", "schedule.log_every_steps")
    rate_needs_the_end = config.optim.schedule != "constant" or config.optim.warmup_ratio > 0
    return always if rate_needs_the_end else (*always, "schedule.max_steps")
