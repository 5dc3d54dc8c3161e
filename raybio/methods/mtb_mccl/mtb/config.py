"""Settings of MTB pre-training; the defaults are the paper's for the biomedical corpus."""

from typing import Literal

from pydantic import Field, model_validator

from raybio.core.config import BaseConfig
from raybio.methods.mtb_mccl.config import RelationEncoderConfig
from raybio.training.settings import OptimConfig, ScheduleConfig, TrainingConfig


class BlankConfig(BaseConfig):
    """Masking of entities and of words."""

    blank_rate: float = Field(
        0.7,
        ge=0,
        le=1,
        description="fraction of a document's entities whose mentions are replaced by [BLANK]",
    )
    mask_rate: float = Field(
        0.15, ge=0, le=1, description="fraction of the tokens outside mentions to be predicted"
    )


class PairCountConfig(BaseConfig):
    """Selection of recurring entity pairs."""

    min_documents: int = Field(
        16,
        ge=2,
        description="minimum number of documents with both entities; the paper: 16 for BioRED, "
        "3 for DocRED",
    )
    num_pairs: int = Field(
        5000, ge=2, description="of these pairs, keep those with the highest mutual information"
    )


class MtbObjectiveConfig(BaseConfig):
    """The loss: L_rel + L_self + L_mlm, and the paper's ablations."""

    temperature: float = Field(0.05, gt=0, le=10, description="τ of L_rel and L_self")
    relation_loss: Literal["contrastive", "binary", "multi_center"] = Field(
        "contrastive",
        description="form of L_rel; binary: equality of two pairs, as in vanilla MTB; "
        "multi_center: MCCL with one class per entity pair",
    )
    weight_temperature: float = Field(
        0.2,
        gt=0,
        description="τ₁ of multi_center: 0.2, as in the paper's fine-tuning on BioRED; it states "
        "none for pre-training (Re-DocRED: 0.01)",
    )
    logit_temperature: float = Field(
        0.2, gt=0, description="τ₂ of multi_center: 0.2, as τ₁ (Re-DocRED: 0.03)"
    )
    relation_weight: float = Field(
        1.0, ge=0, description="weight of L_rel: the same entity pair in two documents"
    )
    self_weight: float = Field(
        1.0, ge=0, description="weight of L_self: the same pair in two dropout passes"
    )
    mlm_weight: float = Field(
        1.0, ge=0, description="weight of L_mlm: masked tokens outside mentions"
    )
    type_filter: bool = Field(
        True,
        description="negatives differ in the type of head or tail; false: all other pairs are "
        "negatives",
    )
    self_exclude_positives: bool = Field(
        False,
        description="exclude other occurrences of the same entity pair from the negatives of "
        "L_self (not in the paper)",
    )

    @model_validator(mode="after")
    def _has_positive_weight(self) -> "MtbObjectiveConfig":
        if not self.relation_weight + self.self_weight + self.mlm_weight:
            raise ValueError(
                "relation_weight, self_weight and mlm_weight are all 0; want one above 0"
            )
        return self


class DocumentPairPlanConfig(BaseConfig):
    """The documents of a step."""

    global_batch_rows: int = Field(
        16,
        ge=2,
        multiple_of=2,
        description="documents per step over all workers, drawn as pairs that share an entity pair",
    )
    max_pairs_per_document: int = Field(
        64,
        ge=1,
        description="entity pairs per document in the loss: recurring pairs first, then random "
        "ones",
    )
    max_document_pairs_per_entity_pair: int = Field(
        10,
        ge=1,
        description="document pairs of an entity pair that count for the length of an epoch",
    )


class EntityPairConfig(PairCountConfig):
    """Selection of the positives, and of pairs held out for evaluation."""

    held_out_share: float = Field(
        0.05,
        ge=0,
        lt=1,
        description="fraction of the recurring pairs that never enter the loss; evaluations "
        "retrieve them",
    )


class PairEvaluationConfig(BaseConfig):
    """Evaluation by retrieval of the same entity pair in another document."""

    num_pairs: int = Field(
        200,
        ge=1,
        description="number of recurring pairs to retrieve, for trained and for held-out pairs",
    )
    blank_rate: float = Field(
        0.7,
        ge=0,
        le=1,
        description="fraction of a document's entities that evaluations blank, whatever "
        "blanks.blank_rate: scores of runs are comparable only at one rate",
    )
    rivals: bool = Field(
        True,
        description="rows of the final table that need no encoder: entity types, TF-IDF",
    )


class Config(TrainingConfig):
    """Settings of MTB pre-training."""

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
"""Settings for the simulated demo documents: one minute on two CPU cores."""
