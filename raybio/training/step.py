"""One optimizer step, on one or many workers."""

import math
import time
from typing import Any

import torch

from raybio.core.batch import TokenBatch
from raybio.core.errors import DivergedError
from raybio.core.interfaces import Collective, System
from raybio.core.randomness import derive_seed
from raybio.training.collective import sum_gradients
from raybio.training.grad_cache import compute_gradients
from raybio.training.optim import build_optimizer, clip_gradients, learning_rate, set_learning_rate
from raybio.training.precision import Precision
from raybio.training.settings import TrainingConfig


class TrainStep:
    """A step on a system's model: gradients of the global batch, clipping, update, metrics.

    All workers that call it with their shards of one step get the same weights: gradients are
    summed over workers, and the update is a deterministic function of the sum.

    Attributes:
        optimizer: AdamW over the model.
        num_skipped: steps skipped because of a non-finite gradient.
    """

    def __init__(
        self, system: System, config: TrainingConfig, collective: Collective, precision: Precision
    ) -> None:
        self.system = system
        self.config = config
        self.collective = collective
        self.precision = precision
        self.optimizer = build_optimizer(system.model, config.optim)
        self.num_skipped = 0

    def __call__(self, step: int, batch: TokenBatch) -> dict[str, float]:
        """Take step number ``step`` (from 0) with this worker's shard of the global batch.

        Returns:
            Metrics of the global batch.

        Raises:
            DivergedError: for a non-finite loss or gradient, unless ``on_nonfinite`` is ``skip``.
                The weights stay those of the step before.
        """
        started = time.perf_counter()
        parameters = [
            parameter for parameter in self.system.model.parameters() if parameter.requires_grad
        ]
        self.optimizer.zero_grad(set_to_none=True)
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
        )
        sum_gradients(parameters, self.collective)
        totals = self._sum_over_workers({"loss": loss, **terms, "tokens": batch.indptr_R1[-1]})
        gradient_norm = clip_gradients(parameters, self.config.optim.max_grad_norm)
        rate = learning_rate(step, self.config.schedule.max_steps, self.config.optim)
        if math.isfinite(totals["loss"]) and math.isfinite(gradient_norm):
            set_learning_rate(self.optimizer, rate)
            self.optimizer.step()
        else:
            self._skip_or_stop(step, totals["loss"], gradient_norm)
        return {
            **totals,
            "gradient_norm": gradient_norm,
            "learning_rate": rate,
            "skipped_steps": self.num_skipped,
            "step_seconds": time.perf_counter() - started,
        }

    def _sum_over_workers(self, shares: dict[str, Any]) -> dict[str, float]:
        """Sum all shares in one collective, in an order that is the same on every worker."""
        device = shares["loss"].device
        names = sorted(shares)
        stacked = torch.stack(
            [torch.as_tensor(shares[name], dtype=torch.float64, device=device) for name in names]
        )
        return dict(zip(names, self.collective.all_sum(stacked).tolist(), strict=True))

    def _skip_or_stop(self, step: int, loss: float, gradient_norm: float) -> None:
        if self.config.on_nonfinite == "stop":
            raise DivergedError(
                f"step {step}: loss {loss}, gradient norm {gradient_norm}, want finite numbers. "
                "The last checkpoint is "
                "intact. Lower optim.peak_lr, lengthen the warm-up, or set on_nonfinite=skip"
            )
        self.num_skipped += 1
