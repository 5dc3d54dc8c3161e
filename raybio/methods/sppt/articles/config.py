"""Settings of SPPT on citation graphs."""

from pydantic import Field, model_validator

from raybio.encoders.config import ClsTextEncoderConfig
from raybio.methods.sppt.config import (
    LinkEvaluationConfig,
    MaskConfig,
    ObjectiveConfig,
    PlanConfig,
    check_sampling,
)
from raybio.training.settings import OptimConfig, ScheduleConfig, TrainingConfig


class ArticleEvaluationConfig(LinkEvaluationConfig):
    """Settings of link retrieval on texts."""

    test_graphs: int = Field(
        0,
        ge=0,
        description="test graphs whose samples the final evaluation includes; 0: none; "
        "the paper's Table 7 has 5",
    )
    samples: int = Field(100, ge=1, description="samples of each test graph")
    nodes_per_sample: int = Field(
        200, ge=1, description="nodes drawn for a sample, to which their neighbors are added"
    )


class Config(TrainingConfig):
    """Settings of SPPT on texts. Defaults are the paper's where it states them."""

    encoder: ClsTextEncoderConfig = ClsTextEncoderConfig(
        source="allenai/scibert_scivocab_uncased", normalize=False, max_length=512
    )
    input: MaskConfig = MaskConfig()
    objective: ObjectiveConfig = ObjectiveConfig(loss="margin_contrastive", lambda_spml=0.01)
    plan: PlanConfig = PlanConfig()
    evaluation: ArticleEvaluationConfig = ArticleEvaluationConfig(
        num_nodes_per_group=200,
        num_nodes_per_group_at_the_end=5000,
        # All articles may be one group, whose scores cost the square of its nodes.
        max_neighbors_at_the_end=200_000,
    )

    @model_validator(mode="after")
    def _parts_fit(self) -> "Config":
        check_sampling(self.plan, self.objective)
        return self


DEMO = Config(
    encoder=ClsTextEncoderConfig(
        num_layers=2,
        width=96,
        num_heads=4,
        ffn_width=192,
        max_length=64,
        dropout=0.0,
        pooling="mean",
        normalize=False,
    ),
    objective=ObjectiveConfig(loss="margin_contrastive", lambda_spml=0.1),
    schedule=ScheduleConfig(max_steps=400, checkpoint_every_steps=100, evaluate_every_steps=100),
    optim=OptimConfig(peak_lr=1e-3, num_warmup_steps=40, schedule="linear"),
)
"""Settings of the demo on the simulated citation graph: minutes on two CPU cores."""
