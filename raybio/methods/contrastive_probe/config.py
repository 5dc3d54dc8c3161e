"""Settings of the probe and of its baselines, without torch: a command that shows them in its help starts at once."""

from typing import Literal

from pydantic import Field

from raybio.core.config import BaseConfig
from raybio.encoders.config import ClsTextEncoderConfig
from raybio.training.settings import OptimConfig, ScheduleConfig, TrainingConfig


class ProbeConfig(BaseConfig):
    """What is asked and what counts; the defaults are the paper's."""

    metric: Literal["l2", "cosine"] = Field(
        "l2", description="distance between embeddings; the paper's code has l2"
    )
    candidates: Literal["all", "tails", "relation"] = Field(
        "all",
        description="all names, those that answer some query, or those that answer a query of the same relation",
    )
    exclude_head: bool = Field(
        False,
        description="leave the query's own entity out of its candidates; a query whose only answer it is cannot be "
        "right then",
    )
    match: Literal["name", "cui"] = Field(
        "name",
        description="a name is right if it is an answer; cui: or if it shares a concept with one",
    )


class DecodeConfig(BaseConfig):
    """How masks are filled."""

    decode: Literal["independent", "order", "confidence"] = Field(
        default="confidence",
        description="independent: each mask by itself; order: from left to right; confidence: the surest one first",
    )
    refine: Literal["none", "order", "confidence"] = Field(
        default="none",
        description="afterwards, again and again: each token in turn (order) or the least sure one (confidence) is "
        "masked and predicted anew, until nothing changes",
    )
    beam: int = Field(default=5, ge=1, le=64, description="hypotheses kept at each step")
    max_masks: int = Field(
        default=5, ge=1, le=32, description="answers of 1 to so many tokens are tried"
    )
    max_iterations: int = Field(
        default=10, ge=1, le=1000, description="sweeps (order) or tokens (confidence) refined"
    )
    rescore: bool = Field(
        default=False,
        description="judge answers by each token's log-probability with all the others in place, not by the one it had "
        "when it was predicted",
    )


class ClozeContrastConfig(BaseConfig):
    """What is minimised."""

    temperature: float = Field(
        0.04, gt=0, le=10, description="τ of the softmax over cosines; 0.04 in the authors' code"
    )


class ClozeConfig(BaseConfig):
    """How a sentence is divided into a query and its answer."""

    mask_ratio: float = Field(
        0.5,
        gt=0,
        lt=1,
        description="share of a sentence's words by which its answer's are reckoned; see tail",
    )
    tail: Literal["random", "fixed"] = Field(
        "random",
        description="words of the answer: random, 1 to 1 + mask_ratio of the sentence (rounded down), drawn once a "
        "sentence, so that short answers may be above the ratio (the authors' code); fixed, mask_ratio of the "
        "sentence, rounded (the paper)",
    )
    max_tokens: int = Field(
        48,
        ge=4,
        description="tokens of a query or an answer, special ones included, in training; a longer answer loses its "
        "end, a longer query its beginning (by the authors' code its end, and the mask with it)",
    )


class ClozePlanConfig(BaseConfig):
    """Which sentences make up a step."""

    global_batch_rows: int = Field(192, ge=2, description="sentences of a step, over all workers")
    sentence_set: int | Literal["all"] = Field(
        "all",
        description="number of the store's sentence set that is trained on, from 0; all: every set",
    )
    num_sentences: int | None = Field(
        None,
        ge=2,
        description="sentences that are trained on, chosen by chance; null: all of the set",
    )
    num_held_out_sentences: int = Field(
        0,
        ge=0,
        description="sentences of the set, chosen by chance, that neither they nor their equals are trained on: how "
        "well each one's query finds its own answer among theirs needs no gold; 0: none (the paper trains on all)",
    )


NAME_TOKENS, QUERY_TOKENS = 25, 50


class EvaluationConfig(ProbeConfig):
    """How saved steps are probed; the final table has all queries of all query sets."""

    query_set: Literal["full", "hard", "both"] = Field(
        "full",
        description="queries that are asked during training; accuracies on the hard ones are val/hard_*",
    )
    queries_per_relation: int | None = Field(
        None,
        ge=1,
        description="queries of a relation asked during training, chosen by chance; null: all",
    )
    agreement_queries_per_relation: int = Field(
        200,
        ge=0,
        description="queries of a relation, of those asked during training, that are asked in the relation's own words "
        "too: how far the 10 names agree, those near the query's head left out, chooses a step without gold "
        "(val/agreement_at_10); 0: none",
    )
    max_query_tokens: int = Field(
        QUERY_TOKENS, ge=4, description="tokens of a query, special ones included"
    )
    max_name_tokens: int = Field(
        NAME_TOKENS, ge=3, description="tokens of a name, special ones included"
    )

    @property
    def query_sets(self) -> tuple[str, ...]:
        """Names of the query sets that are asked during training."""
        return ("full", "hard") if self.query_set == "both" else (self.query_set,)


class Config(TrainingConfig):
    """Settings of Contrastive-Probe; the defaults are those of the authors' code, or the paper's."""

    # Embeddings as they are, as `probe` takes them: distances between unit vectors would be another protocol.
    encoder: ClsTextEncoderConfig = ClsTextEncoderConfig(
        source="microsoft/BiomedNLP-BiomedBERT-base-uncased-abstract-fulltext",
        normalise=False,
        max_length=50,
    )
    cloze: ClozeConfig = ClozeConfig()
    objective: ClozeContrastConfig = ClozeContrastConfig()
    plan: ClozePlanConfig = ClozePlanConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    schedule: ScheduleConfig = ScheduleConfig(
        max_steps=500, checkpoint_every_steps=50, evaluate_every_steps=50, keep_checkpoints=10
    )
    optim: OptimConfig = OptimConfig(peak_lr=2e-5, weight_decay=0.01, max_grad_norm=None)


DEMO = Config(
    # From scratch nothing has been gathered in the first token's state; the mean over tokens is learned far sooner.
    encoder=ClsTextEncoderConfig(
        source="scratch",
        pooling="mean",
        normalise=False,
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
"""Settings for the embedded simulated world of facts on two CPU cores: minutes."""
