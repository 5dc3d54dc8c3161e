"""What encoders of words and of residues have in common: where they come from, their sizes, how they are made.

What encoders share: states of tokens, and one embedding from the states of a sequence.

Shape letters: R sequences, L padded length, D width.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from raybio.core.batch import PaddedTokens
from raybio.core.errors import ConfigError
from raybio.encoders.config import Pooling, TransformerConfig
from raybio.ops.similarity import at_least_fp32


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
        ConfigError: if the tokenizer has more than the model's tokens, or the model cannot
            recompute activations.
    """
    if num_tokens > model.config.vocab_size:
        raise ConfigError(
            f"encoder.source {config.source!r}: its tokenizer has {num_tokens} tokens and its "
            f"model only {model.config.vocab_size}. They do not belong together; save both again "
            "from where they came."
        )
    if config.recompute_activations:
        if not model.supports_gradient_checkpointing:
            raise ConfigError(
                f"encoder.recompute_activations: {type(model).__name__} cannot do it; set it to "
                "false"
            )
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})


logger = logging.getLogger(__name__)


def resolve_pooling(
    setting: Pooling | Literal["auto"], *, source: str, stated: Pooling | None, default: Pooling
) -> Pooling:
    """Return the pooling of an encoder: the setting, else that of its source, else the method's.

    A setting that contradicts the source wins, with a warning once a process.

    Args:
        setting: ``encoder.pooling``.
        source: ``encoder.source``.
        stated: what the source says; None: nothing.
        default: what the method's paper has.
    """
    if setting == "auto":
        return stated or default
    if stated not in (None, setting):
        _warn_of_other_pooling(setting, source, stated)
    return setting


@cache
def _warn_of_other_pooling(setting: str, source: str, stated: str) -> None:
    logger.warning(
        "encoder.pooling is %s, and encoder.source %r was trained with %s: its embeddings may "
        "have collapsed. Leave encoder.pooling out (auto) to pool as the source does",
        setting,
        source,
        stated,
    )


def last_hidden_states(model: PreTrainedModel, tokens: PaddedTokens, max_tokens: int) -> Tensor:
    """The model's last states (R, L, D); behind ``max_tokens``, where there may be no positions, they are zero.

    Padding to a multiple of 8 may stick out there; that no sequence does is the caller's to check.
    """
    length = tokens.token_RL.shape[1]
    token_RL, mask_RL = tokens.token_RL[:, :max_tokens], tokens.mask_RL[:, :max_tokens]
    hidden_RLD: Tensor = model(input_ids=token_RL, attention_mask=mask_RL.long()).last_hidden_state
    return (
        functional.pad(hidden_RLD, (0, 0, 0, length - max_tokens))
        if length > max_tokens
        else hidden_RLD
    )


def mean_over(hidden_RLD: Tensor, mask_RL: Tensor) -> Tensor:
    """Mean (R, D) of the states where ``mask_RL`` is True, in float32 or wider; zero where it is True nowhere."""
    total_RD = torch.where(mask_RL[..., None], at_least_fp32(hidden_RLD), 0.0).sum(1)
    return total_RD / mask_RL.sum(1, keepdim=True).clamp(min=1)
