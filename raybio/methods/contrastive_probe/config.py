"""Settings of Contrastive-Probe, of the probe, and of the baselines."""

from typing import Literal, get_args

from pydantic import Field

from raybio.core.config import BaseConfig
from raybio.core.distance import SavedDistance
from raybio.encoders.config import ClsTextEncoderConfig
from raybio.training.settings import OptimConfig, ScheduleConfig, TrainingConfig

NAME_TOKENS = 25
"""Maximum tokens of a name, as in the authors' code."""

QUERY_TOKENS = 50
"""Maximum tokens of a query, as in the authors' code."""

Match = Literal["name", "cui"]
Subset = Literal["full", "hard"]
Decode = Literal["independent", "order", "confidence"]
Refine = Literal["none", "order", "confidence"]

Prompts = Literal["human", "default", "released"]
"""Wording of the queries; see ``read_medlama``."""

BaselineMethod = Literal["mask-average", "x-factr", "generative", "hybrid"]
BASELINE_METHODS: tuple[BaselineMethod, ...] = get_args(BaselineMethod)


class ProbeConfig(BaseConfig):
    """The protocol of the probe; the defaults are the paper's."""

    metric: SavedDistance = Field(
        "euclidean", description="distance between embeddings; euclidean as in the paper's code"
    )
    candidates: Literal["all", "tails", "relation"] = Field(
        "all",
        description="all names, names that answer some query, or names that answer a query of the "
        "same relation",
    )
    exclude_head: bool = Field(
        False,
        description="remove the query's head from its candidates; a query whose only answer is its "
        "head cannot be correct then",
    )
    match: Match = Field(
        "name",
        description="name: a name is correct if it is an answer; cui: also if it shares a concept "
        "with one",
    )


class DecodeConfig(BaseConfig):
    """Settings by which X-FACTR fills masks."""

    decode: Decode = Field(
        default="confidence",
        description="independent: each mask by itself; order: from left to right; confidence: the "
        "most confident one first",
    )
    refine: Refine = Field(
        default="none",
        description="then mask and predict again, until nothing changes: each token in turn "
        "(order) or the least confident one (confidence)",
    )
    beam: int = Field(default=5, ge=1, le=64, description="hypotheses kept at each step")
    max_masks: int = Field(default=5, ge=1, le=32, description="maximum tokens of an answer")
    max_iterations: int = Field(
        default=10,
        ge=1,
        le=1000,
        description="maximum sweeps (order) or tokens (confidence) refined",
    )
    rescore: bool = Field(
        default=False,
        description="score each token of an answer given all others, not by its log-probability "
        "when it was predicted",
    )


class ClozeContrastConfig(BaseConfig):
    """The loss."""

    temperature: float = Field(
        0.04, gt=0, le=10, description="τ of the softmax over cosines; 0.04 in the authors' code"
    )


class ClozeConfig(BaseConfig):
    """Settings by which a sentence is divided into a query and its answer."""

    mask_ratio: float = Field(
        0.5,
        gt=0,
        lt=1,
        description="fraction of a sentence's words that determines the length of its answer; "
        "see tail",
    )
    tail: Literal["random", "fixed"] = Field(
        "random",
        description="words of the answer. random: 1 to 1 + mask_ratio of the sentence (rounded "
        "down), drawn once a sentence, so short sentences may exceed the ratio (the authors' "
        "code). fixed: mask_ratio of the sentence, rounded (the paper)",
    )
    max_tokens: int = Field(
        48,
        ge=4,
        description="maximum tokens of a query or an answer in training, special ones included. A "
        "longer answer loses its end, a longer query its beginning (in the authors' code its end, "
        "and the mask with it)",
    )


class ClozePlanConfig(BaseConfig):
    """The sentences of a step."""

    global_batch_rows: int = Field(192, ge=2, description="sentences of a step, over all workers")
    sentence_set: int | Literal["all"] = Field(
        "all", description="index of the store's sentence set to train on, from 0; all: every set"
    )
    num_sentences: int | None = Field(
        None, ge=2, description="size of a random sample of the set to train on; null: all of it"
    )
    num_held_out_sentences: int = Field(
        0,
        ge=0,
        description="random sentences of the set that are not trained on, and neither are equal "
        "ones. How well their queries retrieve their own answers needs no gold. 0: none (the "
        "paper trains on all)",
    )


class ProbeEvaluationConfig(ProbeConfig):
    """Settings by which saved steps are probed; the final table has all queries."""

    query_set: Literal["full", "hard", "both"] = Field(
        "full",
        description="queries during training; accuracies on the hard ones are val/hard_*",
    )
    queries_per_relation: int | None = Field(
        None,
        ge=1,
        description="size of a random sample of queries of each relation in training; null: all",
    )
    agreement_queries_per_relation: int = Field(
        200,
        ge=0,
        description="queries of a relation, of those during training, that are also probed with "
        "the default prompt. The agreement of the 10 names, without names near the query's head, "
        "selects a step without gold (val/agreement_at_10). 0: none",
    )
    max_query_tokens: int = Field(
        QUERY_TOKENS, ge=4, description="maximum tokens of a query, special ones included"
    )
    max_name_tokens: int = Field(
        NAME_TOKENS, ge=3, description="maximum tokens of a name, special ones included"
    )
    rivals: bool = Field(
        True,
        description="rows of the final table that need no encoder: likeness of characters, usual "
        "answers of the relation",
    )

    @property
    def query_sets(self) -> tuple[str, ...]:
        """Names of the query sets during training."""
        return ("full", "hard") if self.query_set == "both" else (self.query_set,)


class Config(TrainingConfig):
    """Settings of Contrastive-Probe; defaults are those of the authors' code, else the paper's."""

    # Unscaled embeddings, as in the probe: distances of unit vectors are another protocol.
    encoder: ClsTextEncoderConfig = ClsTextEncoderConfig(
        source="microsoft/BiomedNLP-BiomedBERT-base-uncased-abstract-fulltext",
        normalize=False,
        max_length=50,
    )
    cloze: ClozeConfig = ClozeConfig()
    objective: ClozeContrastConfig = ClozeContrastConfig()
    plan: ClozePlanConfig = ClozePlanConfig()
    evaluation: ProbeEvaluationConfig = ProbeEvaluationConfig()
    schedule: ScheduleConfig = ScheduleConfig(
        max_steps=500, checkpoint_every_steps=50, evaluate_every_steps=50, keep_checkpoints=10
    )
    optim: OptimConfig = OptimConfig(peak_lr=2e-5, weight_decay=0.01, max_grad_norm=None)


DEMO = Config(
    # From scratch, the first token's state carries no information; the mean is learned faster.
    encoder=ClsTextEncoderConfig(
        source="scratch",
        pooling="mean",
        normalize=False,
        num_layers=2,
        width=96,
        num_heads=4,
        ffn_width=192,
        max_length=50,
        dropout=0.0,
    ),
    cloze=ClozeConfig(mask_ratio=0.3),
    objective=ClozeContrastConfig(temperature=0.1),
    plan=ClozePlanConfig(global_batch_rows=96),
    schedule=ScheduleConfig(
        max_steps=200, checkpoint_every_steps=50, evaluate_every_steps=50, keep_checkpoints=10
    ),
    optim=OptimConfig(peak_lr=2e-3, num_warmup_steps=20, weight_decay=0.01),
)
"""Settings for the built-in simulated facts on two CPU cores: minutes."""
