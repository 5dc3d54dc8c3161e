"""Downstream tasks of the SPPT paper, and the settings of fine-tuning on them."""

from typing import Literal, NamedTuple

from pydantic import Field

from raybio.core.config import BaseConfig
from raybio.encoders.config import TransformerConfig
from raybio.training.settings import OptimConfig, ScheduleConfig, TrainingConfig

Labels = Literal["class", "class_set", "number", "residues"]
Measure = Literal["accuracy", "spearman", "macro_f1"]
HeadKind = Literal["auto", "linear", "mlp", "conv"]


class DownstreamTask(NamedTuple):
    """A supervised task.

    Attributes:
        on_texts: whether its inputs are texts; otherwise they are proteins.
        labels: a class, a set of classes or a number a row, or a class a residue.
        measure: the published measure.
        dev_share: fraction of training rows that become dev, if the files have no dev split.
        recipe: recipe with the settings of a user's own task; None: ``paper_TASK``.
    """

    on_texts: bool
    labels: Labels
    measure: Measure
    dev_share: float = 0.1
    recipe: str | None = None

    @property
    def is_own(self) -> bool:
        """Whether users bring its rows in tables; otherwise it is a published task."""
        return self.recipe is not None


TASKS: dict[str, DownstreamTask] = {
    "remote_homology": DownstreamTask(False, "class", "accuracy"),
    "secondary_structure": DownstreamTask(False, "residues", "accuracy"),
    "stability": DownstreamTask(False, "number", "spearman"),
    "fluorescence": DownstreamTask(
        False, "number", "spearman", dev_share=0.2
    ),  # as in TAPE's files
    "paper_field": DownstreamTask(True, "class", "macro_f1"),
    "scicite": DownstreamTask(True, "class", "macro_f1"),
    "acl_arc": DownstreamTask(True, "class", "macro_f1"),
    "protein_classification": DownstreamTask(
        False, "class", "accuracy", recipe="paper_remote_homology"
    ),
    "protein_multilabel": DownstreamTask(
        False, "class_set", "macro_f1", recipe="paper_remote_homology"
    ),
    "protein_regression": DownstreamTask(False, "number", "spearman", recipe="paper_fluorescence"),
    "residue_tagging": DownstreamTask(
        False, "residues", "accuracy", recipe="paper_secondary_structure"
    ),
    "text_classification": DownstreamTask(True, "class", "macro_f1", recipe="paper_scicite"),
    "text_multilabel": DownstreamTask(True, "class_set", "macro_f1", recipe="paper_scicite"),
    "text_regression": DownstreamTask(True, "number", "spearman", recipe="paper_scicite"),
}
"""Tasks of the paper, and kinds of users' own tasks."""

THRESHOLD = 0.5
"""A predicted set has the classes of this probability or more."""

TEST_SHARE = 0.1
"""Fraction of the rows of a table without splits that become test."""


class TaskPlanConfig(BaseConfig):
    """Settings of the rows of a step."""

    global_batch_rows: int = Field(32, ge=1, description="sequences of a step, over all workers")


class TaskEncoderConfig(TransformerConfig):
    """Settings of the encoder and its head."""

    max_length: int = Field(
        512,
        ge=4,
        description="maximum length in tokens, special tokens included; longer sequences are "
        "truncated",
    )
    pooling: Literal["auto", "cls", "mean"] = Field(
        "auto",
        description="embedding of a sequence: state of the first token, or mean; auto: as the "
        "source states, else cls (the paper)",
    )
    dropout: float | None = Field(
        0.1,
        ge=0,
        lt=1,
        description="dropout of states and attention; for texts also before the head, as in the "
        "authors' code; null: the checkpoint's own, and none before the head",
    )
    vocabulary_size: int = Field(
        30_522, ge=8, description="scratch only, texts: maximum size of the vocabulary"
    )
    head: HeadKind = Field(
        "auto",
        description="linear (the paper); mlp: 512 units (TAPE, for sequences); conv: over 5 and 3 "
        "tokens (TAPE, for residues); auto: mlp or conv for proteins, linear for texts",
    )


class TaskEvaluationConfig(BaseConfig):
    """Settings of the final evaluation."""

    rivals: bool = Field(
        True,
        description="rows of the final table that need no training of an encoder: ridge and kNN "
        "on residues, words and the frozen encoder",
    )


class Config(TrainingConfig):
    """Settings of fine-tuning. ``raybio train finetune`` adds the paper's for each task."""

    encoder: TaskEncoderConfig = TaskEncoderConfig()
    plan: TaskPlanConfig = TaskPlanConfig()
    evaluation: TaskEvaluationConfig = TaskEvaluationConfig()
    optim: OptimConfig = OptimConfig(
        peak_lr=1e-5, schedule="constant", num_warmup_steps=0, weight_decay=0.0
    )
    schedule: ScheduleConfig = ScheduleConfig(
        max_steps=10_000,
        evaluate_every_steps=500,
        checkpoint_every_steps=500,
        early_stopping_patience=25,
    )


DEMO = Config(
    encoder=TaskEncoderConfig(
        num_layers=2, width=64, num_heads=4, ffn_width=128, max_length=72, pooling="mean"
    ),
    optim=OptimConfig(peak_lr=2e-3, schedule="constant", num_warmup_steps=20, weight_decay=0.0),
    schedule=ScheduleConfig(
        max_steps=300,
        evaluate_every_steps=50,
        checkpoint_every_steps=100,
        keep_best="val/log_likelihood",
    ),
)
"""Settings of the demo: about a minute on two CPU cores."""
