"""Attention rows."""

from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from raybio.core.batch import PaddedTokens
from raybio.core.errors import ConfigError
from raybio.ops.similarity import at_least_fp32

IMPLEMENTATION = "raybio_recording_sdpa"


class StatesAndAttention(NamedTuple):
    """Last hidden states (R, L, D), and a function of (sequence_K, position_K) to attention rows (K, H, L)."""

    hidden_RLD: Tensor
    rows: Callable[[Tensor, Tensor], Tensor]


class _Remembered(NamedTuple):
    query_RHLD: Tensor
    key_RHLD: Tensor
    scaling: float
    mask_RHLL: Tensor | None


_last: ContextVar[list[_Remembered] | None] = ContextVar("_last", default=None)


def record_attention(model: PreTrainedModel) -> None:
    """Prepare a model for ``encode_with_attention``.

    Raises:
        ConfigError: if it gives its attention in no way.
    """
    if model._supports_sdpa:
        model.set_attn_implementation(IMPLEMENTATION)
        return
    try:
        model.set_attn_implementation("eager")
    except (ValueError, NotImplementedError) as error:
        raise ConfigError(
            f"encoder.source: {type(model).__name__} does not give its attention ({error})"
        ) from None


def encode_with_attention(model: PreTrainedModel, tokens: PaddedTokens) -> StatesAndAttention:
    """Encode with a model that ``record_attention`` has prepared.

    Rows are softmax(q k / sqrt(d)) over real tokens, in float32 or wider; they have gradients. They are without
    dropout, but of models that know no other attention than their own ("eager"): those give it after dropout while they
    train.

    Raises:
        ConfigError: if the model turns out not to give its attention.
    """
    given = {"input_ids": tokens.token_RL, "attention_mask": tokens.mask_RL.long()}
    if model.config._attn_implementation != IMPLEMENTATION:
        output = model(**given, output_attentions=True)
        if not output.attentions or output.attentions[-1] is None:
            raise ConfigError(
                f"encoder.source: {type(model).__name__} gives no attention; want a model that does"
            )
        whole_RHLL = output.attentions[-1]
        return StatesAndAttention(
            output.last_hidden_state, lambda row_K, place_K: whole_RHLL[row_K, :, place_K]
        )
    found: list[_Remembered] = []
    token = _last.set(found)
    try:
        hidden_RLD = model(**given).last_hidden_state
    finally:
        _last.reset(token)
    if not found:
        raise ConfigError(
            f"encoder.source: {type(model).__name__} gives no attention; want a model that does"
        )
    return StatesAndAttention(hidden_RLD, partial(_rows, found[-1], tokens.mask_RL))


def _rows(last: _Remembered, mask_RL: Tensor, sequence_K: Tensor, position_K: Tensor) -> Tensor:
    order_K = torch.sort(sequence_K, stable=True).indices
    query_KHD = last.query_RHLD[sequence_K[order_K], :, position_K[order_K]]
    sizes = torch.bincount(sequence_K, minlength=len(mask_RL)).tolist()
    # By sequence: its keys are read once, not once for each of its rows.
    scores = [
        torch.einsum("phd,hld->phl", query_PHD, last.key_RHLD[number])
        for number, query_PHD in enumerate(query_KHD.split(sizes))
    ]
    score_KHL = at_least_fp32(torch.cat(scores)) * last.scaling
    score_KHL = score_KHL.masked_fill(~mask_RL[sequence_K[order_K], None], -torch.inf)
    if last.mask_RHLL is not None:  # layers that look at their neighbourhood alone
        sees_KHL = last.mask_RHLL.expand(len(mask_RL), -1, -1, -1)[
            sequence_K[order_K], :, position_K[order_K]
        ]
        if sees_KHL.dtype == torch.bool:
            score_KHL = score_KHL.masked_fill(~sees_KHL, -torch.inf)
        else:
            score_KHL = score_KHL + sees_KHL
    return score_KHL.softmax(-1)[torch.argsort(order_K)]


def _remembering_sdpa(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    found = _last.get()
    # None while activations are computed again for the backward pass.
    if found is not None:
        scaling = options.get("scaling")
        found[:] = [
            _Remembered(
                query, key, query.shape[-1] ** -0.5 if scaling is None else scaling, attention_mask
            )
        ]
    return sdpa_attention_forward(module, query, key, value, attention_mask, **options)  # type: ignore[return-value]


AttentionInterface.register(IMPLEMENTATION, _remembering_sdpa)


AttentionMaskInterface.register(IMPLEMENTATION, sdpa_mask)
