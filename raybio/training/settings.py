"""Settings of every training run, and how runs end."""

import math
from typing import Literal

from pydantic import Field, model_validator

from raybio.core.config import REPLACES, BaseConfig

EXACT_ENVIRONMENT = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "NCCL_ALGO": "Ring"}
"""Environment variables of ``determinism: exact``; variables that are already set are kept.

They are read when cuBLAS starts and when the first collective is called.
"""


COMPLETE = ("finished", "early_stopping")
"""Reasons and statuses of a complete run."""


class ScheduleConfig(BaseConfig):
    """When the loop logs, evaluates, saves and stops, in steps (optimizer updates).

    Epochs become steps when the store is known, see ``in_steps``. Where steps are given and epochs
    are not, the epochs of a configuration below become null.
    """

    max_steps: int = Field(
        100_000,
        ge=1,
        description="steps of the whole run",
        json_schema_extra={REPLACES: "max_epochs"},
    )
    max_epochs: float | None = Field(
        None, gt=0, description="epochs of the whole run; decides max_steps if it is set"
    )
    log_every_steps: int = Field(10, ge=1, description="steps between two reports of losses")
    checkpoint_every_steps: int = Field(500, ge=1, description="steps between two checkpoints")
    evaluate_every_steps: int = Field(
        1000,
        ge=0,
        description="steps between two evaluations; 0: none",
        json_schema_extra={REPLACES: "evaluate_every_epochs"},
    )
    evaluate_every_epochs: float | None = Field(
        None,
        gt=0,
        description="epochs between two evaluations; decides evaluate_every_steps if it is set",
    )
    keep_checkpoints: int = Field(3, ge=1, description="newest checkpoints that are kept")
    keep_best: str | None = Field(
        None,
        description="evaluation metric, higher is better, of the weights that the final table and "
        "the export use; null: early_stopping_metric, and without that the last weights",
    )
    early_stopping_metric: str | None = Field(
        None,
        description="evaluation metric, higher is better, that stops the run when it no longer "
        "rises",
    )
    early_stopping_patience: int = Field(
        5, ge=1, description="evaluations without a rise before the run stops"
    )

    @model_validator(mode="after")
    def _metrics_need_evaluations(self) -> "ScheduleConfig":
        for setting in ("early_stopping_metric", "keep_best"):
            if getattr(self, setting) and not self.has_evaluations:
                raise ValueError(
                    f"{setting} needs evaluations: set evaluate_every_steps above 0, or {setting} "
                    "to null"
                )
        return self

    @property
    def has_evaluations(self) -> bool:
        """Whether the run is evaluated while it trains."""
        return bool(self.evaluate_every_steps or self.evaluate_every_epochs)

    @property
    def has_epochs(self) -> bool:
        """Whether steps depend on the size of the store."""
        return self.max_epochs is not None or self.evaluate_every_epochs is not None

    def in_steps(self, steps_per_epoch: float) -> "ScheduleConfig":
        """Return the schedule with epochs converted to steps.

        Args:
            steps_per_epoch: steps in which every row is an anchor once; may be fractional. The last
                epoch is trained to its end, so ``max_steps`` is rounded up.
        """
        steps = {}
        if self.max_epochs is not None:
            # Guard against rounding: 3 epochs of 10/3 steps must be 10 steps.
            steps["max_steps"] = max(1, math.ceil(self.max_epochs * steps_per_epoch - 1e-6))
        if self.evaluate_every_epochs is not None:
            steps["evaluate_every_steps"] = max(
                1, round(self.evaluate_every_epochs * steps_per_epoch)
            )
        return self.model_copy(update=steps)

    @property
    def best_metric(self) -> str | None:
        """The metric that selects the best weights; None: the last weights are kept."""
        return self.keep_best or self.early_stopping_metric

    @property
    def deciding_metrics(self) -> list[str]:
        """The metrics that end the run or select its weights."""
        return [name for name in (self.early_stopping_metric, self.keep_best) if name is not None]


class MemoryConfig(BaseConfig):
    """Sizes of what is computed at once. They change memory and time, not the result.

    The exception is dropout, whose masks depend on the micro-batches.
    """

    max_tokens_per_micro_batch: int = Field(
        16_384, ge=8, description="tokens encoded at once on a worker, padding included"
    )
    packing: bool | Literal["auto"] = Field(
        "auto",
        description="encode sequences end to end, without padding; auto: on a GPU",
    )
    compile: bool | Literal["auto"] = Field(
        False,
        description="compile the encoder's layers (torch.compile), for packed micro-batches of "
        "few sizes; auto: on a GPU, where the encoder can be",
    )
    gradient_caching: bool = Field(
        False,
        description="encode twice and keep the activations of one micro-batch at a time (large "
        "global batches)",
    )


Device = Literal["auto", "cpu", "gpu"]
"""Where workers train; ``auto``: on GPUs if there is one for each worker."""

EmbeddingPrecision = Literal["fp32", "tf32", "bf16"]
"""Precision of an encoder that embeds; ``tf32`` and ``bf16`` where the machine has them."""

PrecisionName = Literal[EmbeddingPrecision, "auto"]


class OptimConfig(BaseConfig):
    """Settings of AdamW, its learning rate schedule and gradient clipping.

    Where one of ``num_warmup_steps`` and ``warmup_ratio`` is given, the other one of a
    configuration below becomes 0.
    """

    peak_lr: float = Field(3e-4, gt=0, description="Learning rate after the warm-up.")
    scalar_lr: float = Field(
        1e-3,
        gt=0,
        description="Peak of the learning rate of single numbers, such as a learned temperature.",
    )
    schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant",
        description="How the learning rate falls from its peak to final_lr_ratio of it at the last "
        "step.",
    )
    num_warmup_steps: int = Field(
        0,
        ge=0,
        description="Steps in which the learning rate rises linearly to its peak.",
        json_schema_extra={REPLACES: "warmup_ratio"},
    )
    warmup_ratio: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Warm-up as a fraction of all steps; used where num_warmup_steps is 0.",
        json_schema_extra={REPLACES: "num_warmup_steps"},
    )
    final_lr_ratio: float = Field(
        0.0, ge=0, le=1, description="Learning rate at the last step over the peak."
    )
    weight_decay: float = Field(
        0.01, ge=0, description="Decoupled weight decay; not on biases and norms."
    )
    beta1: float = Field(0.9, ge=0, lt=1, description="Decay of the mean of gradients.")
    beta2: float = Field(0.999, ge=0, lt=1, description="Decay of the mean of squared gradients.")
    eps: float = Field(1e-8, gt=0, description="Added to the root of the second moment.")
    max_grad_norm: float | None = Field(
        1.0,
        ge=0,
        description="Gradients are scaled down to this global norm; null or 0 switches it off.",
    )
    shard_state: bool | Literal["auto"] = Field(
        "auto",
        description="Each of several workers keeps the state of a part of the parameters (ZeRO-1); "
        "auto: from 650 million trainable numbers on. The weights are the same.",
    )


class TrainingConfig(BaseConfig):
    """Base of the configuration of every method."""

    seed: int = Field(0, ge=0, description="of weights, order, crops, masks and dropout")
    schedule: ScheduleConfig = ScheduleConfig()
    optim: OptimConfig = OptimConfig()
    memory: MemoryConfig = MemoryConfig()
    precision: PrecisionName = Field(
        "auto",
        description="arithmetic of the encoder; auto: bf16 if the machine has it; tf32: float32 "
        "with products in TF32, on NVIDIA GPUs",
    )
    determinism: Literal["exact", "fast"] = Field(
        "exact",
        description="exact: deterministic kernels only, so that a resumed run ends with the same "
        "bits; fast: torch's own choice",
    )
    gradients_sent_as: Literal["fp32", "bf16"] = Field(
        "fp32",
        description="numbers in which workers send and add their gradients; bf16: half the bytes, "
        "rounded to 8 bits",
    )
    on_nonfinite: Literal["stop", "skip"] = Field(
        "stop",
        description="a loss or gradient that is NaN or infinite ends the run, or its step is "
        "skipped and counted",
    )
