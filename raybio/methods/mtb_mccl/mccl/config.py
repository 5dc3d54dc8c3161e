"""Settings of relation extraction; the defaults are those of Zhou et al., 2023, for BioRED."""

from typing import Annotated, Literal, NamedTuple

from pydantic import Field, model_validator

from raybio.core.config import BaseConfig
from raybio.methods.mtb_mccl.config import RelationEncoderConfig
from raybio.training.settings import OptimConfig, ScheduleConfig, TrainingConfig


class LabelConfig(BaseConfig):
    """The labels that training sees."""

    label_fraction: float = Field(
        1.0,
        gt=0,
        le=1,
        description="fraction of the training and validation pairs that keep their label, drawn "
        "from seed; other pairs are dropped, and so are documents without a pair",
    )
    is_coarse: bool = Field(
        False,
        description="train with one class for all relations; kNN and evaluations use the relations",
    )


ObjectiveKind = Literal["mccl", "ce", "supcon", "lazy"]


class RelationObjectiveConfig(BaseConfig):
    """The loss."""

    kind: ObjectiveKind = Field(
        "mccl",
        description="mccl: multi-center contrastive loss; ce: cross entropy of a linear "
        "classifier; supcon: supervised contrastive loss; lazy: no training, kNN on the encoder "
        "as it is",
    )
    weight_temperature: float = Field(
        0.2, gt=0, description="τ₁ of mccl: if small, only the nearest members of a class count"
    )
    logit_temperature: float = Field(0.2, gt=0, description="τ₂ of mccl")
    num_proxies: int = Field(1, ge=0, description="mccl: trained proxies per class")
    temperature: float = Field(0.1, gt=0, description="τ of supcon")
    ce_weight: float = Field(
        0.0,
        ge=0,
        le=1,
        description="mccl: weight of a linear classifier's cross entropy in the loss (not in the "
        "paper)",
    )


class KnnSettings(NamedTuple):
    """Settings by which a pair is classified.

    Attributes:
        num_neighbors: nearest neighbors per class; 0: a linear classifier decides.
        bias_weight: factor of the trained class biases.
    """

    num_neighbors: int
    bias_weight: float

    def __str__(self) -> str:
        """Return a description."""
        if not self.num_neighbors:
            return "linear classifier"
        return (
            f"classwise kNN with {self.num_neighbors} neighbors per class, biases times "
            f"{self.bias_weight:g}"
        )


LINEAR = KnnSettings(0, 0.0)
"""A linear classifier decides."""


class DocumentPlanConfig(BaseConfig):
    """The documents of a step."""

    global_batch_rows: int = Field(32, ge=1, description="documents per step over all workers")


class RelationEvaluationConfig(BaseConfig):
    """Candidates for classwise kNN, among which F1 on the validation pairs chooses; rivals."""

    num_neighbors: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        (1, 3, 5, 10, 20), min_length=1, description="candidate numbers of neighbors per class"
    )
    bias_weights: tuple[float, ...] = Field(
        (0.0, 1.0),
        min_length=1,
        description="candidate factors of mccl's trained biases. The paper uses 1. Biases learn "
        "class frequencies, which the distances of neighbors already reflect",
    )
    max_documents: int = Field(
        0,
        ge=0,
        description="validation documents used during training; 0: all of them. The final table "
        "has all",
    )
    rivals: bool = Field(
        True,
        description="rows of the final table that need no training of an encoder: softmax on the "
        "frozen encoder, ridge on TF-IDF",
    )

    @property
    def knn_candidates(self) -> tuple[KnnSettings, ...]:
        """All combinations."""
        return tuple(
            KnnSettings(k, weight) for weight in self.bias_weights for k in self.num_neighbors
        )


class Config(TrainingConfig):
    """Settings of relation extraction."""

    encoder: RelationEncoderConfig = RelationEncoderConfig(
        source="microsoft/BiomedNLP-BiomedBERT-base-uncased-abstract"
    )
    data: LabelConfig = LabelConfig()
    objective: RelationObjectiveConfig = RelationObjectiveConfig()
    plan: DocumentPlanConfig = DocumentPlanConfig()
    evaluation: RelationEvaluationConfig = RelationEvaluationConfig()
    schedule: ScheduleConfig = ScheduleConfig(
        max_steps=1250, checkpoint_every_steps=125, evaluate_every_steps=125
    )
    optim: OptimConfig = OptimConfig(
        peak_lr=5e-5, warmup_ratio=0.06, schedule="linear", weight_decay=0.01
    )

    @model_validator(mode="after")
    def _lazy_has_one_step(self) -> "Config":
        if self.objective.kind == "lazy" and self.schedule.max_steps > 1:
            raise ValueError(
                "objective.kind is lazy, which trains nothing; set schedule.max_steps=1"
            )
        return self

    @model_validator(mode="after")
    def _coarse_needs_knn(self) -> "Config":
        reasons = {"ce": "has a classifier of the training classes", "lazy": "trains nothing"}
        reason = reasons.get(self.objective.kind)
        if self.data.is_coarse and reason:
            raise ValueError(
                f"data.is_coarse merges all relations in training, and objective.kind="
                f"{self.objective.kind} {reason}; want objective.kind=mccl or supcon, or "
                "data.is_coarse=false"
            )
        return self


DEMO = Config(
    encoder=RelationEncoderConfig(
        source="scratch",
        num_layers=2,
        width=64,
        num_heads=4,
        ffn_width=128,
        max_length=128,
        dropout=0.1,
    ),
    schedule=ScheduleConfig(max_steps=300, checkpoint_every_steps=100, evaluate_every_steps=100),
    optim=OptimConfig(peak_lr=1e-3, warmup_ratio=0.06, schedule="linear", weight_decay=0.01),
)
"""Settings for the simulated demo documents: one minute on two CPU cores."""
