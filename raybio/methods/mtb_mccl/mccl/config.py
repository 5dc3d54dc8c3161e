"""Settings of relation extraction: MCCL, cross entropy, SupCon."""

from typing import Annotated, Literal, NamedTuple

from pydantic import Field, model_validator

from raybio.core.config import BaseConfig
from raybio.methods.mtb_mccl.config import RelationEncoderConfig
from raybio.training.settings import OptimConfig, ScheduleConfig, TrainingConfig


class LabelConfig(BaseConfig):
    """How much training is told of relations."""

    label_fraction: float = Field(
        1.0,
        gt=0,
        le=1,
        description="share of the training and validation pairs that keep their label, drawn from "
        "seed; all others are left out, and so are documents without a pair",
    )
    is_coarse: bool = Field(
        False,
        description="training is told only whether a pair has a relation, and not which; neighbours and evaluations "
        "keep the relations",
    )


ObjectiveKind = Literal["mccl", "ce", "supcon", "lazy"]


class RelationObjectiveConfig(BaseConfig):
    """What is minimised."""

    kind: ObjectiveKind = Field(
        "mccl",
        description="mccl: multi-center contrastive loss; ce: a linear classifier; supcon: supervised "
        "contrastive loss; lazy: nothing is trained, and pairs are classified by their neighbours",
    )
    weight_temperature: float = Field(
        0.2, gt=0, description="τ₁ of mccl: small, only a class' nearest pairs count"
    )
    logit_temperature: float = Field(0.2, gt=0, description="τ₂ of mccl")
    num_proxies: int = Field(
        1, ge=0, description="mccl: how many trained members of its own each class has"
    )
    temperature: float = Field(0.1, gt=0, description="τ of supcon")
    ce_weight: float = Field(
        0.0,
        ge=0,
        le=1,
        description="mccl: share of a linear classifier's cross entropy beside it (not in the paper)",
    )


class KnnSettings(NamedTuple):
    """How neighbours decide.

    Attributes:
        num_neighbors: how many of each class; 0: a linear classifier decides.
        bias_weight: what the classes' trained biases are multiplied by.
    """

    num_neighbors: int
    bias_weight: float

    def __str__(self) -> str:
        """In words."""
        if not self.num_neighbors:
            return "a linear classifier decides"
        return (
            f"{self.num_neighbors} neighbours of a class decide, biases times {self.bias_weight:g}"
        )


class DocumentPlanConfig(BaseConfig):
    """Which documents make up a step."""

    global_batch_rows: int = Field(32, ge=1, description="documents of a step, over all workers")


LINEAR = KnnSettings(0, 0.0)


class RelationEvaluationConfig(BaseConfig):
    """How pairs are classified in evaluations."""

    num_neighbors: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        (1, 3, 5, 10, 20),
        min_length=1,
        description="numbers of neighbours of a class to choose from, by F1 on the validation pairs",
    )
    bias_weights: tuple[float, ...] = Field(
        (0.0, 1.0),
        min_length=1,
        description="what mccl's trained biases may be multiplied by for neighbours, chosen likewise. The paper's is "
        "1; but biases learn how frequent classes are, and of a frequent class the neighbours are nearer anyway",
    )

    @property
    def knn_candidates(self) -> tuple[KnnSettings, ...]:
        """All to choose from."""
        return tuple(
            KnnSettings(k, weight) for weight in self.bias_weights for k in self.num_neighbors
        )


class Config(TrainingConfig):
    """Settings of relation extraction; the defaults are the paper's for BioRED."""

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
    def _lazy_trains_nothing(self) -> "Config":
        if self.objective.kind == "lazy" and self.schedule.max_steps > 1:
            raise ValueError(
                "objective.kind is lazy, which trains nothing; set schedule.max_steps=1"
            )
        return self

    @model_validator(mode="after")
    def _neighbours_tell_relations_apart(self) -> "Config":
        kind, why = (
            self.objective.kind,
            {"ce": "classifies by what training knows", "lazy": "trains nothing"},
        )
        if self.data.is_coarse and kind in why:
            raise ValueError(
                f"data.is_coarse hides from training which relation a pair has, and objective.kind is {kind}, which "
                f"{why[kind]}; want objective.kind=mccl or supcon, or data.is_coarse=false"
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
"""Settings for the embedded simulated documents on two CPU cores: a minute."""
