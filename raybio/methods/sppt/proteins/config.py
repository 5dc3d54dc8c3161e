"""Settings of SPPT on protein interaction graphs."""

from typing import Literal, Self

from pydantic import Field, model_validator

from raybio.encoders.config import TransformerConfig
from raybio.methods.sppt.config import (
    LinkEvaluationConfig,
    MaskConfig,
    ObjectiveConfig,
    PlanConfig,
    check_sampling,
)
from raybio.training.settings import OptimConfig, ScheduleConfig, TrainingConfig


class InputConfig(MaskConfig):
    """Conversion of a stored sequence to the tokens that an encoder reads."""

    max_length: int = Field(
        4096, ge=4, description="tokens of a sequence, special ones included; longer ones are cut"
    )
    # Evaluations and exported models read the front, so that an encoder must be trained on it, too.
    crop: Literal["ends", "front", "random"] = Field(
        "ends",
        description="part of a longer sequence that is kept in training: the front, randomly the "
        "front or the back (ends, as in the paper's code), or a random window (random)",
    )


class EncoderConfig(TransformerConfig):
    """The protein encoder. Sizes and vocabulary are for scratch; a checkpoint has its own."""

    vocabulary: Literal["tape", "esm"] = Field(
        default="tape",
        description="scratch only: tape is a BERT over TAPE's letters, esm an ESM-2 with rotary "
        "positions; a checkpoint's vocabulary is read from its tokenizer",
    )
    max_positions: int = Field(
        default=4104,
        ge=8,
        le=1_048_576,
        description="most tokens of a sequence, special ones included (4104 = 4096 residues and "
        "two special tokens, rounded up to 8); a checkpoint with a position table has its own "
        "limit",
    )
    dropout: float | None = Field(
        default=None,
        ge=0.0,
        lt=1.0,
        description="dropout of states and attention; null: the checkpoint's own, 0 for scratch as "
        "in ESM-2, because a run sees each of millions of sequences once or a few times and "
        "underfits rather than overfits",
    )
    pooling: Literal["auto", "cls", "mean"] = Field(
        default="auto",
        description="sequence embedding: the first token's last state, or the mean over "
        "residues; auto: what the folder of the source says, such as an export, else cls (as "
        "published), or mean for a T5, which has no first token",
    )

    @model_validator(mode="after")
    def _rotary_positions_fit(self) -> Self:
        if self.vocabulary == "esm" and (self.width // self.num_heads) % 2:
            raise ValueError(
                f"width / num_heads is {self.width // self.num_heads}; "
                "rotary positions (vocabulary esm) want an even number"
            )
        return self


class Config(TrainingConfig):
    """Settings of SPPT on proteins; the defaults are the paper's where it states them."""

    encoder: EncoderConfig = EncoderConfig()
    input: InputConfig = InputConfig()
    objective: ObjectiveConfig = ObjectiveConfig()
    plan: PlanConfig = PlanConfig()
    evaluation: LinkEvaluationConfig = LinkEvaluationConfig()

    @model_validator(mode="after")
    def _parts_fit(self) -> "Config":
        if self.encoder.source == "scratch" and self.input.max_length > self.encoder.max_positions:
            raise ValueError(
                f"input.max_length {self.input.max_length} is more than encoder.max_positions "
                f"{self.encoder.max_positions}: raise the second or lower the first"
            )
        check_sampling(self.plan, self.objective)
        return self


DEMO = Config(
    encoder=EncoderConfig(
        num_layers=2, width=128, num_heads=4, ffn_width=512, max_positions=72, pooling="mean"
    ),
    input=InputConfig(max_length=72, crop="front"),
    objective=ObjectiveConfig(lambda_spml=0.5),
    plan=PlanConfig(global_batch_rows=64, anchor_order="group_first", num_negatives_per_anchor=0),
    schedule=ScheduleConfig(max_steps=300, checkpoint_every_steps=100, evaluate_every_steps=50),
    optim=OptimConfig(peak_lr=1e-3, num_warmup_steps=50, schedule="cosine", final_lr_ratio=0.05),
)
"""Settings for the embedded miniature tree of life: minutes on two CPU cores.

A batch is one species. So all its unlinked pairs are tier-1 negatives, and no others are drawn.
"""
