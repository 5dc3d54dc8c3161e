"""Settings of the probe and of its baselines, without torch: a command that shows them in its help starts at once."""

from typing import Literal

from pydantic import Field

from raybio.config import BaseConfig


class ProbeConfig(BaseConfig):
    """What is asked and what counts; the defaults are the paper's."""

    metric: Literal["l2", "cosine"] = Field("l2", description="distance between embeddings; the paper's code has l2")
    candidates: Literal["all", "tails", "relation"] = Field(
        "all", description="all names, those that answer some query, or those that answer a query of the same relation"
    )
    exclude_head: bool = Field(
        False,
        description="leave the query's own entity out of its candidates; a query whose only answer it is cannot be "
        "right then",
    )
    match: Literal["name", "cui"] = Field(
        "name", description="a name is right if it is an answer; cui: or if it shares a concept with one"
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
    max_masks: int = Field(default=5, ge=1, le=32, description="answers of 1 to so many tokens are tried")
    max_iterations: int = Field(default=10, ge=1, le=1000, description="sweeps (order) or tokens (confidence) refined")
    rescore: bool = Field(
        default=False,
        description="judge answers by each token's log-probability with all the others in place, not by the one it had "
        "when it was predicted",
    )
