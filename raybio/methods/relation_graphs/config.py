"""Settings of CLDR, CLGS and CLNER."""

from typing import Annotated, Literal, NamedTuple

from pydantic import Field, model_validator

from raybio.core.config import BaseConfig
from raybio.encoders.config import TextEncoderConfig
from raybio.training.settings import OptimConfig, ScheduleConfig, TrainingConfig


class SamplesConfig(BaseConfig):
    """Samples that a word is compared with (CLNER)."""

    num_samples: int = Field(80, ge=2, description="words that each word is compared with")
    num_positives: int = Field(30, ge=1, description="maximum number of samples with the same tag")

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
        8, ge=1, description="false graphs per true one; fewer if the words do not suffice"
    )
    negatives: NegativeChoice = Field(
        "entities",
        description="words that may not replace one end of a relation: entities, all words of the "
        "entities to which the other end is related (the paper); last_words, only their last words "
        "(the authors' code)",
    )


Model = Literal["cldr", "clgs", "clner", "joint"]


class GraphObjectiveConfig(BaseConfig):
    """The loss."""

    temperature: float = Field(0.1, gt=0, description="τ")
    self_loop: float = Field(
        0.8,
        ge=0,
        le=1,
        description="λ of cldr: weight of a node's own state; its neighbor has 1 - λ",
    )
    pairing: Literal["paper", "diagonal"] = Field(
        "diagonal",
        description="cldr: the text of each pair with its own graph (the authors' code, which "
        "produced the paper's figures), or the text of a true pair with the graphs of its pairs "
        "(the paper's Equation 5)",
    )
    reduction: Literal["mean", "sum"] = Field(
        "mean",
        description="over the sentences of a step; the authors' code sums, with the same learning "
        "rate",
    )
    in_batch_negatives: bool = Field(
        False,
        description="cldr, clgs: true graphs of other sentences of the step are false ones, too "
        "(not in the paper)",
    )
    text_pooling: Literal["mean", "max", "cls"] = Field(
        "mean", description="clgs: pooling of a sentence's words"
    )
    graph_pooling: Literal["mean", "max"] = Field(
        "mean", description="clgs: pooling of a graph's nodes"
    )
    projection_width: int | None = Field(
        None,
        ge=1,
        description="clgs: linear projection of text and graph to this width; the paper's is 512",
    )
    tag_weight: float = Field(
        1.0, gt=0, description="joint: weight of the loss of tags, relative to that of pairs"
    )


Count = Annotated[int, Field(ge=1)]

Weight = Annotated[float, Field(gt=0)]


class FoldConfig(BaseConfig):
    """Training, validation and test sentences."""

    fold: int = Field(1, ge=1, description="number of the store's fold, from 1")
    validation_share: float = Field(
        0.1,
        ge=0,
        lt=1,
        description="fraction of a fold's training sentences that is kept for validation, if the "
        "store has no validation sentences; drawn as by the authors",
    )
    train_on_validation: bool = Field(
        False,
        description="train on validation sentences, too: the paper's last run, after all settings "
        "are chosen",
    )


class KnnConfig(BaseConfig):
    """Evaluation by kNN and a linear probe; F1 on validation sentences chooses among candidates."""

    num_pair_neighbors: tuple[Count, ...] = Field(
        (5,),
        min_length=1,
        description="candidate numbers of nearest training pairs that vote on a pair",
    )
    num_tag_neighbors: tuple[Count, ...] = Field(
        (7,),
        min_length=1,
        description="candidate numbers of nearest training words that vote on a word's tag",
    )
    candidates: Literal["all", "chunk_ends"] = Field(
        "all",
        description="pairs that may be related: all pairs of a sentence, as in the authors' code, "
        "or pairs of words that end predicted chunks, which is faster and drops pairs without "
        "entities",
    )
    both_orders: bool = Field(
        False,
        description="a training pair counts in the nearer order of its words (not in the paper)",
    )
    num_sentences_in_training: int | None = Field(
        100,
        ge=0,
        description="first validation sentences that kNN evaluates during training; null: all; 0: "
        "none, only the loss on all of them, without embedding the training sentences",
    )
    probe_l2: float = Field(1e-4, gt=0, description="L2 penalty of the linear probe")
    probe_positive_weights: tuple[Weight, ...] = Field(
        (1.0,),
        min_length=1,
        description="candidate weights of related pairs in the linear probe",
    )
    spert_overlaps: bool = Field(
        True,
        description="SpERT's scores are of all annotated entities; false: without those that "
        "overlap another, and without relations whose ends overlap",
    )
    rivals: bool = Field(
        True,
        description="rows of the final table that need no training of an encoder: look-up, "
        "characters, the initial encoder with chosen settings",
    )

    @property
    def first_settings(self) -> "WordKnnSettings":
        """The first of the candidates, or the only ones."""
        return WordKnnSettings(
            self.num_pair_neighbors[0], self.num_tag_neighbors[0], self.probe_positive_weights[0]
        )

    @property
    def chooses_neighbors(self) -> bool:
        """Whether validation sentences choose among numbers of neighbors."""
        return len(self.num_pair_neighbors) > 1 or len(self.num_tag_neighbors) > 1

    @property
    def has_choice(self) -> bool:
        """Whether validation sentences choose among any candidates."""
        return self.chooses_neighbors or len(self.probe_positive_weights) > 1

    @property
    def with_candidates(self) -> "KnnConfig":
        """The same settings with the candidates of rivals, which are the same for all of them."""
        return self.model_copy(update=CANDIDATES)


CANDIDATES = {
    "num_pair_neighbors": (1, 3, 5, 9),
    "num_tag_neighbors": (1, 3, 7, 15),
    "probe_positive_weights": (1.0, 2.0, 4.0, 8.0, 16.0),
}
"""Candidates of rivals and of the tables of folds: the defaults of ``KnnConfig``, and others."""


class WordEncoderConfig(TextEncoderConfig):
    """The encoder, and the pooling of word pieces."""

    max_length: int | Literal["auto"] = Field(
        default=256,
        description="maximum tokens of a sentence, special tokens included; longer ones are an "
        "error",
    )
    word_pooling: Literal["mean", "first"] = Field(
        default="mean",
        description="a word is the mean of its pieces, or its first piece; CharacterBERT has one "
        "state per word",
    )
    lower_case: bool = Field(
        default=True, description="read words in lower case, as the authors' code does"
    )
    num_frozen_layers: int = Field(
        default=6,
        ge=0,
        description="number of first layers that are frozen, with the embeddings; 0: nothing is "
        "frozen",
    )


class SentencePlanConfig(BaseConfig):
    """The sentences of a step."""

    global_batch_rows: int | None = Field(
        None,
        ge=1,
        description="sentences per step over all workers; null: the paper's 8, and 16 for clner",
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
            self.evaluation.has_choice or self.schedule.best_metric or self.schedule.has_evaluations
        )
        if self.data.train_on_validation and wants:
            raise ValueError(
                "data.train_on_validation is true, and then no sentence is left to choose by; "
                "want one number each in evaluation.num_pair_neighbors, num_tag_neighbors and "
                "probe_positive_weights, schedule.early_stopping_metric=null, "
                "schedule.keep_best=null and schedule.evaluate_every_steps=0"
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


class WordKnnSettings(NamedTuple):
    """Neighbors that vote on a pair and on a tag, and the weight of related pairs in the probe."""

    num_pair_neighbors: int
    num_tag_neighbors: int
    probe_positive_weight: float
