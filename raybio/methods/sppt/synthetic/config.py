"""Settings of SPPT on synthetic graphs."""

from typing import Literal, get_args

from pydantic import Field, model_validator

from raybio.core.config import BaseConfig
from raybio.encoders.config import ClsTextEncoderConfig
from raybio.methods.sppt.config import MaskConfig, ObjectiveConfig, PlanConfig, check_sampling
from raybio.training.settings import OptimConfig, ScheduleConfig, TrainingConfig

TRIANGLE_HEIGHT = 1.5**0.5
"""Height of a surface's triangles, whose edges have length sqrt(2).

A shorter path passes at most one corner.
"""


GraphKind = Literal[
    "cliques", "plane", "moebius", "sphere", "torus", "homophily", "motif", "structural"
]
KINDS: tuple[GraphKind, ...] = get_args(GraphKind)


NUM_KEPT = 3
"""Topics stored of each sentence, the strongest first."""


class TopicConfig(BaseConfig):
    """Settings of the topic model. Defaults are the paper's where it states them."""

    num_topics: int = Field(100, ge=NUM_KEPT, description="topics")
    max_share: float = Field(
        0.7, gt=0, le=1, description="words in more than this fraction of sentences are ignored"
    )
    min_count: int = Field(100, ge=1, description="words in fewer sentences are ignored")
    min_words: int = Field(
        5, ge=1, description="sentences with fewer words, or fewer counted words, are skipped"
    )
    num_passes: int = Field(5, ge=1, description="passes over all sentences")
    seed: int = Field(1, ge=0, description="seed of the topic model")


class SyntheticConfig(BaseConfig):
    """Settings of the graph and its sentences."""

    kind: GraphKind = Field(
        "cliques", description="the graph; settings below that are null take the paper's value"
    )
    repeat: int = Field(0, ge=0, description="index of the draw of graph and sentences")
    num_nodes: int | None = Field(
        None, ge=10, description="number of nodes of cliques and surfaces (50, 100, 300)"
    )
    radius: float | None = Field(
        None,
        gt=0,
        lt=TRIANGLE_HEIGHT,
        description="surfaces: points at a smaller distance are linked (0.15, 0.2); "
        "a triangle's edge has length 1.414",
    )
    noise: float = Field(
        0.0, ge=0, le=1, description="probability to link a pair of nodes at random"
    )
    noise_removes: bool = Field(
        False, description="noise also removes the link of a drawn pair that has one"
    )
    min_share: float = Field(
        0.9,
        gt=0,
        le=1,
        description="cliques and cycles: minimum share of a sentence's strongest topic",
    )
    sentences: Literal["random", "strongest"] = Field(
        "random",
        description="cycles: which sentences of its topic a class has; random: as in the paper; "
        "strongest: those with the largest share of the topic, as in the authors' code",
    )
    min_sentences: int = Field(
        25, ge=1, description="surfaces: minimum number of sentences of a triangle's topics"
    )
    per_triangle: int = Field(
        75, ge=1, description="surfaces: sentences of a triangle among which nodes are drawn"
    )
    spread: Literal["even", "uniform"] = Field(
        "even",
        description="surfaces: how a triangle's sentences are drawn; even: rare mixtures of topics "
        "are as likely as frequent ones; uniform: as the authors' code does in effect",
    )
    self_loops: bool = Field(
        False,
        description="every node is its own neighbor, as on the authors' surfaces: it may be drawn "
        "as its own positive, and isolated nodes of a surface stay in the graph",
    )


class Config(TrainingConfig):
    """Settings of SPPT on synthetic graphs. Defaults are the paper's for cliques."""

    encoder: ClsTextEncoderConfig = ClsTextEncoderConfig(
        num_layers=2,
        width=10,
        num_heads=2,
        ffn_width=8,
        max_length=350,
        dropout=0.0,
        normalize=False,
        vocabulary="characters",
    )
    input: MaskConfig = MaskConfig()
    objective: ObjectiveConfig = ObjectiveConfig(loss="margin_contrastive", lambda_spml=0.1)
    plan: PlanConfig = PlanConfig(global_batch_rows=50)
    graph: SyntheticConfig = SyntheticConfig()
    schedule: ScheduleConfig = ScheduleConfig(
        max_steps=8000, evaluate_every_steps=8000, checkpoint_every_steps=1000
    )
    optim: OptimConfig = OptimConfig(peak_lr=3e-4, schedule="constant", num_warmup_steps=0)

    @model_validator(mode="after")
    def _parts_fit(self) -> "Config":
        check_sampling(self.plan, self.objective)
        return self


DEMO = Config(
    encoder=Config().encoder.model_copy(
        update={"num_layers": 2, "width": 48, "num_heads": 4, "ffn_width": 96, "max_length": 64}
    ),
    plan=PlanConfig(global_batch_rows=24),
    schedule=ScheduleConfig(max_steps=400, evaluate_every_steps=400, checkpoint_every_steps=200),
    optim=OptimConfig(peak_lr=2e-3, schedule="constant", num_warmup_steps=20),
    memory={"max_tokens_per_micro_batch": 8192},
)
"""Settings of the demo on simulated sentences: about two minutes a graph on two CPU cores."""
