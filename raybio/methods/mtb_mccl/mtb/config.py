"""Settings of MTB pre-training."""

from typing import Literal

from pydantic import Field, model_validator

from raybio.core.config import BaseConfig
from raybio.methods.mtb_mccl.config import RelationEncoderConfig
from raybio.training.settings import OptimConfig, ScheduleConfig, TrainingConfig


class BlankConfig(BaseConfig):
    """What is hidden in documents."""

    blank_rate: float = Field(
        0.7, ge=0, le=1, description="share of a document's entities that lose their words"
    )
    mask_rate: float = Field(
        0.15, ge=0, le=1, description="share of the words outside of mentions to be guessed"
    )


class PairCountConfig(BaseConfig):
    """Which pairs of entities recur."""

    min_documents: int = Field(
        16,
        ge=2,
        description="documents that a pair occurs in, at least; 16 for BioRED, 3 for DocRED in the paper",
    )
    num_pairs: int = Field(
        5000, ge=2, description="of those, the pairs with the greatest mutual information"
    )


class MtbObjectiveConfig(BaseConfig):
    """What is minimised."""

    temperature: float = Field(0.05, gt=0, le=10, description="τ of both contrastive parts")
    relation_loss: Literal["contrastive", "binary", "multi_center"] = Field(
        "contrastive",
        description="form of L_rel; binary: are two pairs the same? as in MTB before this paper; multi_center: MCCL, "
        "each pair of entities a class, with τ₁ = τ₂ = 0.2",
    )
    relation_weight: float = Field(
        1.0, ge=0, description="of L_rel: the same two entities in two documents"
    )
    self_weight: float = Field(
        1.0, ge=0, description="of L_self: the same pair under two draws of dropout"
    )
    mlm_weight: float = Field(1.0, ge=0, description="of L_mlm: words outside of mentions")
    type_filter: bool = Field(
        True,
        description="negatives have another type of entity on either side; false: all other pairs are negatives",
    )
    self_exclude_positives: bool = Field(
        False,
        description="the same two entities in other documents are no negatives of L_self (not in the paper)",
    )

    @model_validator(mode="after")
    def _something_counts(self) -> "MtbObjectiveConfig":
        if not self.relation_weight + self.self_weight + self.mlm_weight:
            raise ValueError(
                "relation_weight, self_weight and mlm_weight are all 0; want one above it"
            )
        return self


class DocumentPairPlanConfig(BaseConfig):
    """Which documents make up a step."""

    global_batch_rows: int = Field(
        16,
        ge=2,
        multiple_of=2,
        description="documents of a step, over all workers: couples that share a pair of entities",
    )
    max_pairs_per_document: int = Field(
        64,
        ge=1,
        description="pairs of a document that are compared: those that recur first, others by chance",
    )


class EntityPairConfig(PairCountConfig):
    """Which pairs of entities are taken for positives."""

    held_out_share: float = Field(
        0.05,
        ge=0,
        lt=1,
        description="of those, pairs that are never compared in training and asked for in evaluations",
    )


class PairEvaluationConfig(BaseConfig):
    """How the encoder is judged: do two entities find themselves again in another document?"""

    num_pairs: int = Field(
        200, ge=1, description="recurring pairs that are asked for, of each kind"
    )


class Config(TrainingConfig):
    """BaseConfig of MTB; the defaults are the paper's for the biomedical corpus."""

    encoder: RelationEncoderConfig = RelationEncoderConfig(
        source="microsoft/BiomedNLP-BiomedBERT-base-uncased-abstract"
    )
    pairs: EntityPairConfig = EntityPairConfig()
    blanks: BlankConfig = BlankConfig()
    objective: MtbObjectiveConfig = MtbObjectiveConfig()
    plan: DocumentPairPlanConfig = DocumentPairPlanConfig()
    evaluation: PairEvaluationConfig = PairEvaluationConfig()
    schedule: ScheduleConfig = ScheduleConfig(max_steps=2000)
    optim: OptimConfig = OptimConfig(
        peak_lr=5e-6, warmup_ratio=0.06, schedule="linear", weight_decay=0.01
    )


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
    pairs=EntityPairConfig(min_documents=2),
    schedule=ScheduleConfig(max_steps=150, checkpoint_every_steps=50, evaluate_every_steps=50),
    optim=OptimConfig(peak_lr=1e-3, warmup_ratio=0.06, schedule="linear", weight_decay=0.01),
)
"""BaseConfig for the embedded simulated documents on two CPU cores: a minute."""
