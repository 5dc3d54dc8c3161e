"""What encoders of words and of residues have in common: where they come from, their sizes, how they are made."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch
from pydantic import Field, model_validator
from transformers import PreTrainedModel

from raybio.config import BaseConfig
from raybio.encoders.sources import SCRATCH
from raybio.errors import ConfigError


class TransformerConfig(BaseConfig):
    """Which transformer to train. Sizes and vocabulary of a checkpoint are its own; those here are for scratch."""

    source: str = Field(
        default=SCRATCH,
        min_length=1,
        description="'scratch' for random weights, a local folder written by save_pretrained or sentence-transformers, "
        "or a hub id such as facebook/esm2_t12_35M_UR50D (proteins: BERT or ESM) or "
        "sentence-transformers/all-MiniLM-L6-v2 (texts); only safetensors, no code that comes along",
    )
    revision: str = Field(default="main", description="branch, tag or commit of a hub id; a commit pins the weights")
    num_layers: int = Field(default=12, ge=1, le=200, description="scratch only: transformer layers")
    width: int = Field(default=768, ge=2, le=16384, description="scratch only: numbers in a hidden state")
    num_heads: int = Field(default=12, ge=1, le=256, description="scratch only: attention heads; must divide width")
    ffn_width: int = Field(default=3072, ge=1, le=65536, description="scratch only: width inside the feed-forward part")
    recompute_activations: bool = Field(
        default=False, description="forget activations in the forward pass and compute them again: less memory, slower"
    )

    @model_validator(mode="after")
    def _heads_divide_width(self) -> Self:
        if self.width % self.num_heads:
            raise ValueError(f"width {self.width} is not a multiple of num_heads {self.num_heads}; change one of them")
        return self

    def fresh_sizes(self, *, dropout: float, attention_dropout: float | None = None) -> dict[str, Any]:
        """The sizes of a model from scratch, as the configurations of BERT and ESM call them."""
        return {
            "hidden_size": self.width,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "intermediate_size": self.ffn_width,
            "hidden_dropout_prob": dropout,
            "attention_probs_dropout_prob": dropout if attention_dropout is None else attention_dropout,
            "attn_implementation": "sdpa",
        }


@contextmanager
def seeded_weights(seed: int) -> Iterator[None]:
    """Weights that are drawn inside depend on ``seed`` alone, and torch's global generators are left as they were."""
    with torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed, which would reseed the accelerators too.
        torch.default_generator.manual_seed(seed)
        yield


def fit_model(model: PreTrainedModel, config: TransformerConfig, num_tokens: int) -> None:
    """Check a model against its tokenizer, and set it to recompute activations if that is asked for.

    Raises:
        ConfigError: if the tokenizer has more than the model's tokens, or the model cannot recompute activations.
    """
    if num_tokens > model.config.vocab_size:
        raise ConfigError(
            f"encoder.source {config.source!r}: its tokenizer has {num_tokens} tokens and its model only "
            f"{model.config.vocab_size}. They do not belong together; save both again from where they came."
        )
    if config.recompute_activations:
        if not model.supports_gradient_checkpointing:
            raise ConfigError(f"encoder.recompute_activations: {type(model).__name__} cannot do it; set it to false")
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
