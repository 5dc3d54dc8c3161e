"""Settings of BioSTransformers."""

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from raybio.core.config import FIRST_DEFAULT, BaseConfig
from raybio.encoders.config import TextEncoderConfig
from raybio.training.settings import OptimConfig, ScheduleConfig, TrainingConfig

FIELDS = ("title", "abstract", "vernacular_title")
"""Texts of an article in the store."""

MIN_TEMPERATURE = 0.01
"""Lower bound of a learned temperature, as in CLIP.

Below it, one candidate dominates the softmax and gradients explode.
"""


class ArticleConfig(BaseConfig):
    """Settings of the preparation of articles."""

    validation_share: float = Field(
        0.05, ge=0, lt=1, description="fraction of articles kept out of training"
    )
    seed: int = Field(0, ge=0, description="seed of the choice of these articles")
    max_bad_share: float = Field(0.1, ge=0, le=1, description="maximum fraction of invalid records")


class TextConfig(BaseConfig):
    """Settings of a text before tokenization."""

    max_characters: int = Field(
        500, ge=1, description="maximum length of a text in characters, as in the paper's code"
    )


class RankingConfig(BaseConfig):
    """Settings of the loss."""

    temperature: float = Field(
        0.05, gt=0, le=10, description="τ of the softmax over cosines; 1 / 20 in the paper's code"
    )
    learn_temperature: bool = Field(
        False, description="train τ, starting with objective.temperature"
    )
    symmetric: bool = Field(
        False, description="also rank texts for terms, and average the two losses"
    )

    @model_validator(mode="after")
    def _learned_temperature_is_not_below_its_bound(self) -> Self:
        if self.learn_temperature and self.temperature < MIN_TEMPERATURE:
            raise ValueError(
                f"temperature is {self.temperature}, and a learned one stays at or above "
                f"{MIN_TEMPERATURE}; want at least that, or learn_temperature=false"
            )
        return self


class TermEvaluationConfig(BaseConfig):
    """Settings of term retrieval."""

    num_articles: int = Field(
        500, ge=0, description="validation articles used during training; 0: all of them"
    )
    num_articles_at_the_end: int = Field(
        20_000,
        ge=0,
        description="the same for the final table, which embeds them for each encoder; 0: all of "
        "them",
        json_schema_extra={FIRST_DEFAULT: 0},
    )
    field: Literal["auto", "title", "abstract"] = Field(
        "auto",
        description="text of an article that is the query; auto: abstract if plan.fields has it, "
        "else title",
    )
    block_rows: int = Field(1024, ge=1, description="queries whose candidates are scored at once")
    rivals: bool = Field(
        True,
        description="rows of the final table that need no encoder: frequent terms, TF-IDF, BM25, "
        "nearest articles",
    )


Fields = Annotated[
    tuple[Literal["title", "abstract"], ...],
    # Allows --set plan.fields=title,abstract.
    BeforeValidator(lambda value: tuple(value.split(",")) if isinstance(value, str) else value),
]


class PairPlanConfig(BaseConfig):
    """Settings of the training pairs and their batches."""

    global_batch_rows: int = Field(384, ge=2, description="pairs of a step, over all workers")
    fields: Fields = Field(
        ("title",), min_length=1, description="texts that are paired with terms: title, abstract"
    )
    conflicts: Literal["reject", "drop", "mask"] = Field(
        "reject",
        description="handling of a pair whose term belongs to another text's article; reject: "
        "moves the pair to another batch; drop: loses it, as the authors' code; mask: the loss "
        "ignores the candidate",
    )
    window_steps: int = Field(
        32, ge=1, description="steps among which a rejected pair finds another batch"
    )
    stop_terms: Literal["none", "check_tags"] = Field(
        "none", description="terms that are never paired: MeSH check tags such as Humans and Female"
    )
    max_pairs_per_term: int | None = Field(
        None,
        ge=1,
        description="maximum number of pairs of one term and field, chosen at random; null: all",
    )

    @model_validator(mode="after")
    def _fields_differ(self) -> Self:
        if len(set(self.fields)) < len(self.fields):
            raise ValueError(f"fields: got {','.join(self.fields)}, want each field once")
        return self


class Config(TrainingConfig):
    """Settings of BioSTransformers. Defaults are those of the paper or of its code."""

    encoder: TextEncoderConfig = TextEncoderConfig(source="sentence-transformers/all-MiniLM-L6-v2")
    text: TextConfig = TextConfig()
    objective: RankingConfig = RankingConfig()
    plan: PairPlanConfig = PairPlanConfig()
    evaluation: TermEvaluationConfig = TermEvaluationConfig()
    optim: OptimConfig = OptimConfig(
        peak_lr=2e-5, num_warmup_steps=500, schedule="linear", weight_decay=0.01
    )

    @property
    def query_field(self) -> str:
        """Text of an article that is the query in evaluations: "title" or "abstract"."""
        if self.evaluation.field != "auto":
            return self.evaluation.field
        return max(self.plan.fields, key=FIELDS.index)


DEMO = Config(
    encoder=TextEncoderConfig(
        source="scratch", num_layers=2, width=96, num_heads=4, ffn_width=192, max_length=64
    ),
    plan=PairPlanConfig(
        global_batch_rows=64, fields=("title", "abstract"), stop_terms="check_tags"
    ),
    schedule=ScheduleConfig(max_steps=400, checkpoint_every_steps=100, evaluate_every_steps=100),
    optim=OptimConfig(peak_lr=1e-3, num_warmup_steps=40, schedule="linear", weight_decay=0.01),
)
"""Settings of the demo on the simulated literature: minutes on two CPU cores."""
