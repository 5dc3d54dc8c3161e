"""Settings of SPPT on synthetic graphs."""

from typing import Literal, get_args

from pydantic import Field, model_validator

from raybio.core.config import BaseConfig
from raybio.encoders.config import ClsTextEncoderConfig
from raybio.methods.sppt.config import MaskConfig, ObjectiveConfig, PlanConfig, check_sampling
from raybio.training.settings import OptimConfig, ScheduleConfig, TrainingConfig

HEIGHT = 1.5**0.5
"""Of a triangle: a way that is shorter meets no more than one of its corners."""


GraphKind = Literal[
    "cliques", "plane", "moebius", "sphere", "torus", "homophily", "motif", "structural"
]
KINDS: tuple[GraphKind, ...] = get_args(GraphKind)


NUM_KEPT = 3
"""Topics of a sentence that are stored, the strongest first."""


class TopicConfig(BaseConfig):
    """How topics are found; the defaults are the paper's where it states them."""

    num_topics: int = Field(100, ge=NUM_KEPT, description="topics")
    max_share: float = Field(
        0.7, gt=0, le=1, description="words in more than this share of the sentences are left out"
    )
    min_count: int = Field(100, ge=1, description="words in fewer sentences are left out")
    min_words: int = Field(
        5, ge=1, description="sentences with fewer words, or fewer that count, are left out"
    )
    num_passes: int = Field(5, ge=1, description="times that all sentences are looked at")
    seed: int = Field(1, ge=0, description="of the topics' beginning")


class SyntheticConfig(BaseConfig):
    """Which graph, and over which sentences."""

    kind: GraphKind = Field(
        "cliques", description="the graph; null settings below are the paper's for it"
    )
    repeat: int = Field(0, ge=0, description="number of the draw of graph and sentences")
    num_nodes: int | None = Field(
        None, ge=10, description="nodes of cliques and surfaces (50, 100, 300)"
    )
    radius: float | None = Field(
        None,
        gt=0,
        lt=HEIGHT,
        description="surfaces: nearer points are linked (0.15, 0.2); a triangle's edge is 1.414",
    )
    noise: float = Field(
        0.0, ge=0, le=1, description="chance of each pair of nodes to be linked all the same"
    )
    noise_removes: bool = Field(False, description="pairs of noise that are linked lose their link")
    min_share: float = Field(
        0.9,
        gt=0,
        le=1,
        description="cliques and cycles: sentences whose strongest topic is at least so much of them",
    )
    min_sentences: int = Field(
        25, ge=1, description="surfaces: sentences that a triangle of topics must have"
    )
    per_triangle: int = Field(
        75, ge=1, description="surfaces: sentences of a triangle that nodes are drawn from"
    )
    spread: Literal["even", "uniform"] = Field(
        "even",
        description="surfaces: how a triangle's sentences are drawn: so that rare mixtures of topics are as likely as "
        "frequent ones, or uniformly, as the authors' code does in effect",
    )
    self_loops: bool = Field(
        False,
        description="every node is a neighbour of itself, as on the authors' surfaces: it may be drawn as its own "
        "positive, and nodes on a surface that are near no other stay in the graph",
    )


class Config(TrainingConfig):
    """Settings of SPPT on synthetic graphs; the defaults are the paper's for cliques."""

    encoder: ClsTextEncoderConfig = ClsTextEncoderConfig(
        num_layers=2,
        width=10,
        num_heads=2,
        ffn_width=8,
        max_length=350,
        dropout=0.0,
        normalise=False,
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
"""Settings for the embedded simulated sentences on two CPU cores: a minute or two a graph."""
