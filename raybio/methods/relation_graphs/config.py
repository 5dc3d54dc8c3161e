"""Settings of CLDR, CLGS and CLNER."""

from typing import Annotated, Literal, NamedTuple

from pydantic import Field, model_validator

from raybio.core.config import BaseConfig
from raybio.encoders.config import TextEncoderConfig
from raybio.training.settings import OptimConfig, ScheduleConfig, TrainingConfig


class SamplesConfig(BaseConfig):
    """Samples that a word is compared with (CLNER)."""

    num_samples: int = Field(80, ge=2, description="words that each word is compared with")
    num_positives: int = Field(30, ge=1, description="of these, at most so many of its own tag")

    @model_validator(mode="after")
    def _others_have_room(self) -> "SamplesConfig":
        if self.num_positives >= self.num_samples:
            raise ValueError(
                f"num_positives {self.num_positives} leaves no room among num_samples "
                f"{self.num_samples} for words of other tags; want fewer"
            )
        return self


NegativeChoice = Literal["entities", "last_words"]


class GraphsConfig(BaseConfig):
    """False graphs (CLDR, CLGS)."""

    num_negatives: int = Field(
        8, ge=1, description="false graphs beside each true one, fewer where there are not enough"
    )
    negatives: NegativeChoice = Field(
        "entities",
        description="words that may not replace one end of a relation: entities, all words of the "
        "entities to which the other end is related (the paper); last_words, their last words "
        "alone (the authors' code)",
    )


Model = Literal["cldr", "clgs", "clner", "joint"]


class GraphObjectiveConfig(BaseConfig):
    """The loss."""

    temperature: float = Field(0.1, gt=0, description="τ")
    self_loop: float = Field(
        0.8,
        ge=0,
        le=1,
        description="λ of cldr: how much of a node's state is its own, and not its neighbour's",
    )
    pairing: Literal["paper", "diagonal"] = Field(
        "diagonal",
        description="cldr: each pair's own text against its graph (the authors' code, which made "
        "the paper's figures), or the text of a true pair against the graphs of all its pairs "
        "(the paper's Equation 5)",
    )
    reduction: Literal["mean", "sum"] = Field(
        "mean",
        description="over the sentences of a step; the authors' code sums, at the same learning "
        "rate",
    )
    in_batch_negatives: bool = Field(
        False,
        description="cldr, clgs: true graphs of the step's other sentences are false ones too "
        "(not in the paper)",
    )
    text_pooling: Literal["mean", "max", "cls"] = Field(
        "mean", description="clgs: a sentence's text is of its words"
    )
    graph_pooling: Literal["mean", "max"] = Field(
        "mean", description="clgs: a graph is of its nodes"
    )
    projection_width: int | None = Field(
        None,
        ge=1,
        description="clgs: text and graph go through a linear map to so many numbers each; the "
        "paper's 512",
    )
    tag_weight: float = Field(
        1.0, gt=0, description="joint: weight of the loss of tags beside that of pairs"
    )


Count = Annotated[int, Field(ge=1)]


Weight = Annotated[float, Field(gt=0)]


class FoldConfig(BaseConfig):
    """Training, validation and test sentences."""

    fold: int = Field(1, ge=1, description="of the store's folds, from 1")
    validation_share: float = Field(
        0.1,
        ge=0,
        lt=1,
        description="of a fold's training sentences, where the store has no validation sentences "
        "of its own: drawn as the authors draw them. They do not train",
    )
    train_on_validation: bool = Field(
        False,
        description="validation sentences train too: the paper's last run, after all settings are "
        "chosen",
    )


class KnnConfig(BaseConfig):
    """Evaluation by kNN and a linear probe; F1 on validation sentences chooses among candidates."""

    pair_neighbours: tuple[Count, ...] = Field(
        (5,),
        min_length=1,
        description="nearest training pairs that vote on a pair; of several numbers the one with "
        "the best F1 on the validation sentences is taken",
    )
    tag_neighbours: tuple[Count, ...] = Field(
        (7,), min_length=1, description="nearest training words that vote on a word's tag; likewise"
    )
    candidates: Literal["all", "chunk_ends"] = Field(
        "all",
        description="pairs that may be related: all of a sentence, as in the authors' code, or "
        "those of two words that end chunks found by tags, which is faster and leaves out what no "
        "entity supports",
    )
    both_orders: bool = Field(
        False,
        description="a training pair counts in whichever order of its words is nearer (not in the "
        "paper)",
    )
    num_sentences_in_training: int | None = Field(
        100,
        ge=0,
        description="first validation sentences whose pairs and tags are judged during training; "
        "null: all; 0: none, which leaves the loss on all of them and saves embedding the "
        "training sentences",
    )
    probe_l2: float = Field(
        1e-4, gt=0, description="how strongly the linear probe's weights are held back"
    )
    probe_positive_weights: tuple[Weight, ...] = Field(
        (1.0,),
        min_length=1,
        description="how much a related pair counts in the linear probe; of several the one with "
        "the best F1 on the validation sentences is taken",
    )

    @property
    def first_settings(self) -> "KnnSettings":
        """The first candidates: the only ones if there is nothing to choose."""
        return KnnSettings(
            self.pair_neighbours[0], self.tag_neighbours[0], self.probe_positive_weights[0]
        )

    @property
    def has_choice(self) -> bool:
        """Whether validation sentences choose among candidates."""
        return any(
            len(each) > 1
            for each in (self.pair_neighbours, self.tag_neighbours, self.probe_positive_weights)
        )


class WordEncoderConfig(TextEncoderConfig):
    """The encoder, and the pooling of word pieces."""

    max_length: int | Literal["auto"] = Field(
        default=256,
        description="most tokens of a sentence, special ones included; a longer one is an error",
    )
    word_pooling: Literal["mean", "first"] = Field(
        default="mean",
        description="a word is the mean of its pieces, or its first piece; CharacterBERT has one "
        "state a word",
    )
    lower_case: bool = Field(
        default=True, description="words are read in lower case, as in the authors' code"
    )
    num_frozen_layers: int = Field(
        default=6,
        ge=0,
        description="the first so many layers are not trained, nor the embeddings; 0: all are",
    )


class SentencePlanConfig(BaseConfig):
    """The sentences of a step."""

    global_batch_rows: int | None = Field(
        None,
        ge=1,
        description="sentences of a step, over all workers; null: the paper's 8, and 16 for clner",
    )


class Config(TrainingConfig):
    """Settings of relation-aware embeddings; the defaults are the paper's."""

    model: Model = Field(
        "cldr", description="cldr: pairs; clgs: sentences; clner: tags; joint: pairs and tags"
    )
    encoder: WordEncoderConfig = WordEncoderConfig(source="helboukkouri/character-bert-medical")
    data: FoldConfig = FoldConfig()
    graphs: GraphsConfig = GraphsConfig()
    samples: SamplesConfig = SamplesConfig()
    objective: GraphObjectiveConfig = GraphObjectiveConfig()
    plan: SentencePlanConfig = SentencePlanConfig()
    evaluation: KnnConfig = KnnConfig()
    schedule: ScheduleConfig = ScheduleConfig(
        max_steps=8640,  # 20 epochs of 3,460 sentences
        checkpoint_every_steps=432,
        evaluate_every_steps=432,
        early_stopping_metric="val/log_likelihood",
        early_stopping_patience=3,
    )
    optim: OptimConfig = OptimConfig(
        peak_lr=1e-5, schedule="constant", weight_decay=1e-6, max_grad_norm=None
    )

    @model_validator(mode="after")
    def _choosing_needs_sentences_that_do_not_train(self) -> "Config":
        wants = (
            self.evaluation.has_choice
            or self.schedule.early_stopping_metric
            or self.schedule.evaluate_every_steps
        )
        if self.data.train_on_validation and wants:
            raise ValueError(
                "data.train_on_validation is true, and then no sentence is left to choose by; "
                "want one number each in evaluation.pair_neighbours, tag_neighbours and "
                "probe_positive_weights, schedule.early_stopping_metric=null and "
                "schedule.evaluate_every_steps=0"
            )
        return self


DEMO = Config(
    model="joint",
    encoder=WordEncoderConfig(
        source="scratch",
        num_layers=2,
        width=64,
        num_heads=4,
        ffn_width=128,
        max_length=64,
        dropout=0.1,
        num_frozen_layers=0,
    ),
    schedule=ScheduleConfig(max_steps=600, checkpoint_every_steps=200, evaluate_every_steps=200),
    optim=OptimConfig(peak_lr=1e-3, warmup_ratio=0.06, schedule="linear", weight_decay=0.01),
)
"""Settings for the simulated demo sentences: one minute on two CPU cores."""


class KnnSettings(NamedTuple):
    """Neighbors that vote on a pair and on a tag, and the weight of related pairs in the probe."""

    pair_neighbours: int
    tag_neighbours: int
    probe_positive_weight: float
