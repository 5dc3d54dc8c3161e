"""Settings of BioSTransformers."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from raybio.core.config import BaseConfig
from raybio.encoders.config import TextEncoderConfig
from raybio.training.settings import OptimConfig, ScheduleConfig, TrainingConfig


class ArticleConfig(BaseConfig):
    """How a store of articles is prepared."""

    validation_share: float = Field(
        0.05, ge=0, lt=1, description="share of articles kept out of training"
    )
    seed: int = Field(0, ge=0, description="chooses the articles kept out")
    max_bad_share: float = Field(0.1, ge=0, le=1, description="maximum fraction of invalid records")


class TextConfig(BaseConfig):
    """How a stored text becomes what the tokenizer sees."""

    max_characters: int = Field(
        500, ge=1, description="characters of a text that are read, as in the paper's code"
    )


FIELDS = ("title", "abstract", "vernacular_title")


class RankingConfig(BaseConfig):
    """What is minimised."""

    temperature: float = Field(
        0.05, gt=0, le=10, description="τ of the softmax over cosines; 1 / 20 in the paper's code"
    )
    learn_temperature: bool = Field(
        False, description="τ is trained along, beginning with temperature"
    )
    symmetric: bool = Field(
        False, description="terms are ranked against texts as well, and the two losses averaged"
    )


class TermEvaluationConfig(BaseConfig):
    """How term retrieval is measured; the final table takes all validation articles."""

    num_articles: int = Field(
        500, ge=0, description="validation articles asked during training; 0: all of them"
    )
    field: Literal["auto", "title", "abstract"] = Field(
        "auto",
        description="which text of an article is asked; auto: abstracts where they are trained on, else titles",
    )
    block_rows: int = Field(1024, ge=1, description="queries whose candidates are scored at once")


Fields = Annotated[
    tuple[Literal["title", "abstract"], ...],
    # So that --set plan.fields=title,abstract is understood.
    BeforeValidator(lambda value: tuple(value.split(",")) if isinstance(value, str) else value),
]


class PairPlanConfig(BaseConfig):
    """Which pairs there are, and which of them are in one step."""

    global_batch_rows: int = Field(384, ge=2, description="pairs of a step, over all workers")
    fields: Fields = Field(
        ("title",), min_length=1, description="texts that are paired with terms: title, abstract"
    )
    conflicts: Literal["reject", "mask"] = Field(
        "reject",
        description="a term of another pair that belongs to the text's own article: reject puts the pair into another "
        "batch (the paper), mask leaves the candidate out of the loss",
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
        description="pairs of one term and field that are used, chosen by chance; null: all",
    )


class Config(TrainingConfig):
    """Settings of BioSTransformers; the defaults are the paper's, or its code's."""

    encoder: TextEncoderConfig = TextEncoderConfig(source="sentence-transformers/all-MiniLM-L6-v2")
    text: TextConfig = TextConfig()
    objective: RankingConfig = RankingConfig()
    plan: PairPlanConfig = PairPlanConfig()
    evaluation: TermEvaluationConfig = TermEvaluationConfig()
    optim: OptimConfig = OptimConfig(
        peak_lr=2e-5, num_warmup_steps=500, schedule="linear", weight_decay=0.01
    )

    @property
    def asked_field(self) -> str:
        """Which text of an article is asked in evaluations: "title" or "abstract"."""
        asked = self.evaluation.field
        return asked if asked != "auto" else max(self.plan.fields, key=FIELDS.index)


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
"""Settings for the embedded simulated literature on two CPU cores: minutes."""
