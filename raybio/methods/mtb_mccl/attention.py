"""Rows of the last layer's attention, only for the positions that are needed.

``output_attentions=True`` makes every layer compute its whole (L, L) attention without a fused
kernel. This module keeps the fused kernel and records the last layer's queries and keys instead:
a row then costs one product.

Shape letters: R sequences, L padded length, H heads, D width of a head, K requested rows.
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
        attention_rows: (sequence (K,), position (K,)) -> last layer's attention rows (K, H, L).
    """

    hidden_RLD: Tensor
    attention_rows: Callable[[Tensor, Tensor], Tensor]


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
    model: PreTrainedModel, tokens: PackedTokens, num_rows_S: list[int]
) -> StatesAndAttention:
    """Encode packed sequences; states are (T, D), and attention rows (K, H, longest).

    Args:
        model: one that ``record_attention`` has prepared, with SDPA.
        tokens: no longer than the model has positions for.
        num_rows_S: how many rows of each sequence are requested, in their order.
    """
    layers: list[_LayerInputs] = []
    token = _recorded.set(layers)
    try:
        hidden_TD = packed_states(model, tokens, IMPLEMENTATION)
    finally:
        _recorded.reset(token)
    if not layers:
        raise _no_attention(model)
    last = layers[-1]
    query_SHLD, key_SHLD = (
        tokens.to_rectangle(part[0].transpose(0, 1)).transpose(1, 2)
        for part in (last.query_RHLD, last.key_RHLD)
    )
    mask_11LL = None
    if last.sliding_window is not None:
        offset_L = torch.arange(tokens.longest, device=hidden_TD.device)
        distance_LL = (offset_L[:, None] - offset_L).abs()
        mask_11LL = (distance_LL < last.sliding_window)[None, None]
    rectangle = last._replace(query_RHLD=query_SHLD, key_RHLD=key_SHLD, mask_RHLL=mask_11LL)
    rows = partial(_sorted_rows, rectangle, tokens.mask_SL, num_rows_R=num_rows_S)
    return StatesAndAttention(hidden_TD, rows)


def _encode_eagerly(model: PreTrainedModel, inputs: dict[str, Tensor]) -> StatesAndAttention:
    output = model(**inputs, output_attentions=True)
    if not output.attentions or output.attentions[-1] is None:
        raise _no_attention(model)
    attention_RHLL = output.attentions[-1]
    return StatesAndAttention(
        output.last_hidden_state,
        lambda sequence_K, position_K: attention_RHLL[sequence_K, :, position_K],
    )


def _no_attention(model: PreTrainedModel) -> ConfigError:
    return ConfigError(
        f"encoder.source: {type(model).__name__} returns no attention; want a model that does"
    )


def _rows(last: _LayerInputs, mask_RL: Tensor, sequence_K: Tensor, position_K: Tensor) -> Tensor:
    order_K = torch.sort(sequence_K, stable=True).indices
    num_rows_R = torch.bincount(sequence_K, minlength=len(mask_RL)).tolist()
    row_KHL = _sorted_rows(last, mask_RL, sequence_K[order_K], position_K[order_K], num_rows_R)
    return row_KHL[torch.argsort(order_K)]


def _sorted_rows(
    last: _LayerInputs,
    mask_RL: Tensor,
    sequence_K: Tensor,
    position_K: Tensor,
    num_rows_R: list[int],
) -> Tensor:
    """Return attention rows; those of a sequence are adjacent, and ``num_rows_R`` counts them."""
    query_KHD = last.query_RHLD[sequence_K, :, position_K]
    # By sequence, so that its keys are read once and not once per row.
    scores = [
        torch.einsum("phd,hld->phl", query_PHD, last.key_RHLD[number])
        for number, query_PHD in enumerate(query_KHD.split(num_rows_R))
    ]
    score_KHL = at_least_fp32(torch.cat(scores)) * last.scaling
    score_KHL = score_KHL.masked_fill(~mask_RL[sequence_K, None], -torch.inf)
    if last.mask_RHLL is not None:  # layers with local attention
        mask_RHLL = last.mask_RHLL.expand(len(mask_RL), -1, -1, -1)
        mask_KHL = mask_RHLL[sequence_K, :, position_K]
        if mask_KHL.dtype == torch.bool:
            score_KHL = score_KHL.masked_fill(~mask_KHL, -torch.inf)
        else:
            score_KHL = score_KHL + mask_KHL
    return score_KHL.softmax(-1)


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
