"""Functions that all encoders share: seeded weights, checks against the tokenizer, states, pooling.

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

logger = logging.getLogger(__name__)


@contextmanager
def seeded_weights(seed: int) -> Iterator[None]:
    """Context in which random weights depend on ``seed`` only; global generators stay unchanged."""
    with torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed, which would reseed the accelerators too.
        torch.default_generator.manual_seed(seed)
        yield


def fit_model(model: PreTrainedModel, config: TransformerConfig, num_tokens: int) -> None:
    """Check a model against its tokenizer, and turn on recomputed activations if they are set.

    Raises:
        ConfigError: if the tokenizer has more tokens than the model, or the model cannot recompute
            activations.
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


def resolve_pooling(
    setting: Pooling | Literal["auto"], *, source: str, stated: Pooling | None, default: Pooling
) -> Pooling:
    """Return the pooling of an encoder: the setting, else that of its source, else the method's.

    A setting that contradicts the source wins, with a warning once a process.

    Args:
        setting: ``encoder.pooling``.
        source: ``encoder.source``.
        stated: pooling that the source states; None: none.
        default: pooling of the method's paper.
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
    """Return the model's last states (R, L, D); zeros beyond ``max_tokens``.

    Padding to a multiple of 8 may exceed ``max_tokens``, where the model may have no positions.
    The caller checks that no sequence is longer.
    """
    length = tokens.token_RL.shape[1]
    token_RL = tokens.token_RL[:, :max_tokens]
    mask_RL = tokens.mask_RL[:, :max_tokens]
    hidden_RLD: Tensor = model(input_ids=token_RL, attention_mask=mask_RL.long()).last_hidden_state
    if length > max_tokens:
        return functional.pad(hidden_RLD, (0, 0, 0, length - max_tokens))
    return hidden_RLD


def mean_over(hidden_RLD: Tensor, mask_RL: Tensor) -> Tensor:
    """Return the mean (R, D) of states where ``mask_RL`` is True, in float32 or wider.

    Rows without any True are zero.
    """
    total_RD = torch.where(mask_RL[..., None], at_least_fp32(hidden_RLD), 0.0).sum(1)
    return total_RD / mask_RL.sum(1, keepdim=True).clamp(min=1)
