"""Settings of downstream tasks."""

from typing import Literal, NamedTuple

from pydantic import Field

from raybio.core.config import BaseConfig
from raybio.encoders.config import TransformerConfig
from raybio.training.settings import OptimConfig, ScheduleConfig, TrainingConfig

Labels = Literal["class", "number", "residues"]


Measure = Literal["accuracy", "spearman", "macro_f1"]


class Task(NamedTuple):
    """What a task is.

    Attributes:
        on_texts: whether it reads texts, else proteins.
        labels: a class or a number a row, or a class a residue.
        measure: what is published of it.
        dev_share: share of the training rows that become dev, where files have none.
    """

    on_texts: bool
    labels: Labels
    measure: Measure
    dev_share: float = 0.1


TASKS: dict[str, Task] = {
    "remote_homology": Task(False, "class", "accuracy"),
    "secondary_structure": Task(False, "residues", "accuracy"),
    "stability": Task(False, "number", "spearman"),
    "fluorescence": Task(False, "number", "spearman", dev_share=0.2),  # as TAPE's files have it
    "paper_field": Task(True, "class", "macro_f1"),
    "scicite": Task(True, "class", "macro_f1"),
    "acl_arc": Task(True, "class", "macro_f1"),
}


class TaskPlanConfig(BaseConfig):
    """Which rows make up a step."""

    global_batch_rows: int = Field(32, ge=1, description="sequences of a step, over all workers")


HeadKind = Literal["auto", "linear", "mlp", "conv"]


class TaskEncoderConfig(TransformerConfig):
    """Which encoder is tuned, and the head on it."""

    max_length: int = Field(
        512, ge=4, description="tokens of a sequence, special ones included; longer ones are cut"
    )
    pooling: Literal["auto", "cls", "mean"] = Field(
        "auto",
        description="a sequence: the first token's state, or the mean; auto: as the source says, else cls (the paper)",
    )
    dropout: float = Field(
        0.1,
        ge=0,
        lt=1,
        description="of states and attention; of texts before the head too, as in the authors' code",
    )
    vocabulary_size: int = Field(
        30_522, ge=8, description="scratch only, texts: most tokens of the vocabulary"
    )
    head: HeadKind = Field(
        "auto",
        description="linear (the paper); mlp: 512 units (TAPE, on sequences); conv: over 5 and 3 tokens (TAPE, on "
        "residues); auto: mlp or conv for proteins, linear for texts",
    )


class Config(TrainingConfig):
    """Settings of fine-tuning; ``jobs/finetune.py`` knows those that the paper has for each task."""

    encoder: TaskEncoderConfig = TaskEncoderConfig()
    plan: TaskPlanConfig = TaskPlanConfig()
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
    schedule=ScheduleConfig(max_steps=300, evaluate_every_steps=50, checkpoint_every_steps=100),
)
"""Settings for the embedded task on two CPU cores: a minute."""
