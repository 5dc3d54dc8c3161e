"""Rows of the last layer's attention, only for the positions that are needed.

``output_attentions=True`` makes every layer compute its whole (L, L) attention without a fused
kernel. This module keeps the fused kernel and records the last layer's queries and keys instead:
a row then costs one product.

Shape letters: R sequences, L padded length, H heads, D width of a head, J requested rows of each
sequence.
"""

from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import sdpa_mask

from raybio.core.batch import PackedTokens, PaddedTokens
from raybio.core.errors import ConfigError
from raybio.encoders.packed import packed_attention, packed_states
from raybio.ops.similarity import at_least_fp32

IMPLEMENTATION = "raybio_recording_sdpa"


class StatesAndAttention(NamedTuple):
    """Encoded sequences.

    Attributes:
        hidden_RLD: last hidden states.
        attention_rows: positions (R, J) -> the last layer's attention rows there (R, J, H, L).
    """

    hidden_RLD: Tensor
    attention_rows: Callable[[Tensor], Tensor]


class _LayerInputs(NamedTuple):
    """Arguments of the last call of an attention layer."""

    query_RHLD: Tensor
    key_RHLD: Tensor
    scaling: float
    mask_RHLL: Tensor | None
    sliding_window: int | None


_recorded: ContextVar[list[_LayerInputs] | None] = ContextVar("_recorded", default=None)


def record_attention(model: PreTrainedModel) -> None:
    """Prepare a model for ``encode_with_attention``.

    Raises:
        ConfigError: if the model supports neither SDPA nor eager attention.
    """
    if model._supports_sdpa:
        model.set_attn_implementation(IMPLEMENTATION)
        return
    try:
        model.set_attn_implementation("eager")
    except (ValueError, NotImplementedError) as error:
        raise ConfigError(
            f"encoder.source: {type(model).__name__} does not return its attention ({error})"
        ) from None


def encode_with_attention(model: PreTrainedModel, tokens: PaddedTokens) -> StatesAndAttention:
    """Encode with a model that ``record_attention`` has prepared.

    Rows are softmax(q k / sqrt(d)) over real tokens, in float32 or wider, with gradients and
    without dropout. Models with eager attention only return theirs after dropout in training.

    Raises:
        ConfigError: if the model turns out not to return its attention.
    """
    inputs = {"input_ids": tokens.token_RL, "attention_mask": tokens.mask_RL.long()}
    if model.config._attn_implementation != IMPLEMENTATION:
        return _encode_eagerly(model, inputs)
    layers: list[_LayerInputs] = []
    token = _recorded.set(layers)
    try:
        hidden_RLD = model(**inputs).last_hidden_state
    finally:
        _recorded.reset(token)
    if not layers:
        raise _no_attention(model)
    return StatesAndAttention(hidden_RLD, partial(_rows, layers[-1], tokens.mask_RL))


def encode_packed_with_attention(
    model: PreTrainedModel, tokens: PackedTokens
) -> StatesAndAttention:
    """Encode packed sequences; states are (T, D), and L of attention rows is the longest length.

    Args:
        model: one that ``record_attention`` has prepared, with SDPA.
        tokens: no longer than the model has positions for.
    """
    layers: list[_LayerInputs] = []
    token = _recorded.set(layers)
    try:
        hidden_TD = packed_states(model, tokens)
    finally:
        _recorded.reset(token)
    if not layers:
        raise _no_attention(model)
    last = layers[-1]
    rows = slice(0, tokens.num_rows)
    query_RHLD, key_RHLD = (
        tokens.to_rectangle(part.squeeze(0).transpose(0, 1))[rows].transpose(1, 2)
        for part in (last.query_RHLD, last.key_RHLD)
    )
    mask_11LL = None
    if last.sliding_window is not None:
        offset_L = torch.arange(tokens.longest, device=hidden_TD.device)
        distance_LL = (offset_L[:, None] - offset_L).abs()
        mask_11LL = (distance_LL < last.sliding_window)[None, None]
    rectangle = last._replace(query_RHLD=query_RHLD, key_RHLD=key_RHLD, mask_RHLL=mask_11LL)
    return StatesAndAttention(hidden_TD, partial(_rows, rectangle, tokens.mask_SL[rows]))


def at_positions(value_RLX: Tensor, position_RJ: Tensor) -> Tensor:
    """Return the values (R, J, ...) at positions of each sequence."""
    num_rows, length = value_RLX.shape[:2]
    first_R1 = torch.arange(num_rows, device=position_RJ.device)[:, None] * length
    index_N = (first_R1 + position_RJ).flatten()
    return value_RLX.flatten(0, 1).index_select(0, index_N).unflatten(0, position_RJ.shape)


def _encode_eagerly(model: PreTrainedModel, inputs: dict[str, Tensor]) -> StatesAndAttention:
    output = model(**inputs, output_attentions=True)
    if not output.attentions or output.attentions[-1] is None:
        raise _no_attention(model)
    attention_RHLL = output.attentions[-1]
    return StatesAndAttention(
        output.last_hidden_state,
        partial(at_positions, attention_RHLL.transpose(1, 2)),
    )


def _no_attention(model: PreTrainedModel) -> ConfigError:
    return ConfigError(
        f"encoder.source: {type(model).__name__} returns no attention; want a model that does"
    )


def _rows(last: _LayerInputs, mask_RL: Tensor, position_RJ: Tensor) -> Tensor:
    query_RJHD = at_positions(last.query_RHLD.transpose(1, 2), position_RJ)
    score_RHJL = query_RJHD.transpose(1, 2) @ last.key_RHLD.transpose(2, 3)
    score_RJHL = at_least_fp32(score_RHJL).transpose(1, 2) * last.scaling
    score_RJHL = score_RJHL.masked_fill(~mask_RL[:, None, None], -torch.inf)
    if last.mask_RHLL is not None:  # layers with local attention
        mask_RHLL = last.mask_RHLL.expand(len(mask_RL), -1, -1, -1)
        mask_RJHL = at_positions(mask_RHLL.transpose(1, 2), position_RJ)
        if mask_RJHL.dtype == torch.bool:
            score_RJHL = score_RJHL.masked_fill(~mask_RJHL, -torch.inf)
        else:
            score_RJHL = score_RJHL + mask_RJHL
    return score_RJHL.softmax(-1)


def _recording_sdpa(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    layers = _recorded.get()
    # None when activations are recomputed in the backward pass.
    if layers is not None:
        scaling = options.get("scaling")
        if scaling is None:
            scaling = query.shape[-1] ** -0.5
        sliding_window = options.get("sliding_window")
        layers[:] = [_LayerInputs(query, key, scaling, attention_mask, sliding_window)]
    return packed_attention(module, query, key, value, attention_mask, **options)


AttentionInterface.register(IMPLEMENTATION, _recording_sdpa)
AttentionMaskInterface.register(IMPLEMENTATION, sdpa_mask)
