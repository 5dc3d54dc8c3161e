"""One optimizer step, on one or many workers."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from raybio.core.batch import TokenBatch
from raybio.core.errors import DivergedError
from raybio.core.interfaces import Collective, System
from raybio.core.randomness import derive_seed
from raybio.training.determinism import deterministic_kernels
from raybio.training.grad_cache import compute_gradients
from raybio.training.gradient_sum import GradientSum
from raybio.training.micro_batches import static_shape
from raybio.training.optim import build_optimizer, clip_gradients, learning_rate, set_learning_rate
from raybio.training.precision import Precision
from raybio.training.settings import TrainingConfig

Metrics = dict[str, float]


class LaunchedStep:
    """A step that a GPU may still compute; the host waits for it when its metrics are read."""

    def __init__(
        self, names: list[str], values: Tensor, complete: Callable[[Metrics], Metrics]
    ) -> None:
        """Start to copy the metrics to the host.

        Args:
            names: names of the metrics.
            values: the metrics, on the device.
            complete: function that checks them and adds metrics of the host.
        """
        self._names = names
        self._complete = complete
        self._values = values
        self._copied: torch.cuda.Event | None = None
        if values.is_cuda:
            self._values = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self._values.copy_(values, non_blocking=True)
            self._copied = torch.cuda.Event()
            self._copied.record()

    def read(self) -> Metrics:
        """Return the metrics of the global batch; call it once, in the order of the steps.

        Raises:
            DivergedError: see ``TrainStep``.
        """
        if self._copied is not None:
            self._copied.synchronize()
        return self._complete(dict(zip(self._names, self._values.tolist(), strict=True)))


class TrainStep:
    """A step on a system's model: gradients of the global batch, clipping, update, metrics.

    All workers that call it with their shards of one step get the same weights: gradients are
    summed over workers, and the update is a deterministic function of the sum.

    The host never waits for a GPU in ``launch``. The optimizer itself skips an update with a
    non-finite loss or gradient, and all later ones, unless ``on_nonfinite`` is ``skip``.

    Attributes:
        optimizer: AdamW over the model.
        num_skipped: steps, among those read, that were skipped because of a non-finite gradient.
    """

    def __init__(
        self, system: System, config: TrainingConfig, collective: Collective, precision: Precision
    ) -> None:
        self.system = system
        self.config = config
        self.collective = collective
        self.precision = precision
        system.model.packing = config.memory.packing
        system.model.static_shape = static_shape(system.model, config.memory, precision)
        self.optimizer = build_optimizer(system.model, config.optim, collective)
        self.gradients = GradientSum(
            system.model.parameters(), collective, sent_as=config.gradients_sent_as
        )
        self.num_skipped = 0
        self._has_diverged: Tensor | None = None

    def __call__(self, step: int, batch: TokenBatch) -> Metrics:
        """Take step number ``step`` (from 0) with this worker's shard, and wait for its metrics.

        Raises:
            DivergedError: for a non-finite loss or gradient, unless ``on_nonfinite`` is ``skip``.
                The weights stay those of the step before.
        """
        return self.launch(step, batch).read()

    def launch(self, step: int, batch: TokenBatch) -> LaunchedStep:
        """Take step number ``step`` (from 0) with this worker's shard of the global batch.

        Args:
            step: number of the step.
            batch: on the host.

        Returns:
            The step, whose metrics are still to be read.

        Raises:
            ConfigError: for an operation without a deterministic kernel and ``determinism: exact``.
        """
        with deterministic_kernels(self.config.determinism):
            return self._launch(step, batch)

    def _launch(self, step: int, batch: TokenBatch) -> LaunchedStep:
        parameters = [
            parameter for parameter in self.system.model.parameters() if parameter.requires_grad
        ]
        loss, terms = compute_gradients(
            self.system,
            batch,
            self.collective,
            max_tokens=self.config.memory.max_tokens_per_micro_batch,
            gradient_caching=self.config.memory.gradient_caching,
            precision=self.precision,
            seed_of=lambda number: derive_seed(
                self.config.seed, "dropout", step, self.collective.rank, number
            ),
            gradients=self.gradients,
        )
        num_tokens = torch.full((), len(batch.token_T), device=loss.device)
        shares = {"loss": loss, **terms, "tokens": num_tokens}
        names = sorted(shares)
        # One collective operation, with the terms in the same order on every worker.
        totals = self.collective.all_sum(torch.stack([shares[name].double() for name in names]))
        gradient_norm = clip_gradients(parameters, self.config.optim.max_grad_norm)
        rate = learning_rate(step, self.config.schedule.max_steps, self.config.optim)
        set_learning_rate(self.optimizer, rate)
        self.optimizer.found_inf = self._is_skipped(totals[names.index("loss")], gradient_norm)  # type: ignore[attr-defined]
        self.optimizer.step()

        def complete(metrics: Metrics) -> Metrics:
            if not (math.isfinite(metrics["loss"]) and math.isfinite(metrics["gradient_norm"])):
                self._count_or_stop(step, metrics)
            return metrics | {"learning_rate": rate, "skipped_steps": self.num_skipped}

        values = torch.cat([totals, gradient_norm.double()[None]])
        return LaunchedStep([*names, "gradient_norm"], values, complete)

    def _is_skipped(self, loss: Tensor, gradient_norm: Tensor) -> Tensor:
        """Return 1.0 if the update is to be skipped, else 0.0, in a tensor ()."""
        is_skipped = (~(loss.isfinite() & gradient_norm.isfinite())).float()
        if self.config.on_nonfinite == "skip":
            return is_skipped
        if self._has_diverged is not None:
            is_skipped = torch.maximum(is_skipped, self._has_diverged)
        self._has_diverged = is_skipped
        return is_skipped

    def _count_or_stop(self, step: int, metrics: Metrics) -> None:
        if self.config.on_nonfinite == "stop":
            raise DivergedError(
                f"step {step}: loss {metrics['loss']}, gradient norm {metrics['gradient_norm']}, "
                "want finite numbers. The last checkpoint is "
                "intact. Lower optim.peak_lr, lengthen the warm-up, or set on_nonfinite=skip"
            )
        self.num_skipped += 1
