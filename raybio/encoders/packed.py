"""Transformers over packed sequences, without padding except in attention on a CPU.

Linear layers, norms and embeddings process real tokens only. Attention must know where sequences
end. On a GPU it is FlashAttention's kernel for sequences of different lengths
(``torch.nn.attention.varlen``); elsewhere sequences are padded for attention only. The kernel does
not support float32, for which a GPU pads, too.

Shape letters: T tokens end to end, S sequences, L longest, H heads, D width of a head or of a
state, R sequences without the padding at the end.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from raybio.core.batch import PackedTokens, StaticTokens
from raybio.core.errors import ConfigError
from raybio.ops.similarity import at_least_fp32

IMPLEMENTATION = "raybio_packed_sdpa"

BACKEND = "inductor"
"""Backend of ``torch.compile``."""

_NO_LIMIT = 2**31 - 1
"""Graphs of a process, which may train hundreds of models one after the other, as in a sweep."""

_PACKABLE = ("bert", "distilbert", "electra", "esm", "modernbert", "roberta", "xlm-roberta")
"""Types of models that accept token positions and pass arguments on to their attention.

``tests/encoders/test_packed.py`` compares each with padded sequences.
"""

_LAYERS = {"distilbert": "transformer", "modernbert": ""}
"""The submodule of a type that holds its layers, if it is not ``encoder``; "": the model itself."""

_POSITIONS_AFTER_PAD = ("roberta", "xlm-roberta")
"""Types that count positions from ``pad_token_id + 1``, as fairseq does."""

MAX_FP32_LENGTH = 128
"""Longest sequence for which a CPU that trains in bf16 computes attention in float32.

Up to this length, torch's bf16 kernel is slower than its float32 kernel because of its gradient:
1.5 to 8 times for heads of 32 and 64, attention forward and backward (benchmarks, P13 and P14).
"""

MAX_HEAD_WIDTH = 256
"""Widest head that FlashAttention reads; widths are multiples of 8."""


def why_padded(model: PreTrainedModel) -> str:
    """Return why a model cannot read packed sequences; empty if it can."""
    if model.config.model_type in _PACKABLE:
        return ""
    return f"a model of type {model.config.model_type} reads padded sequences"


def set_attention(model: PreTrainedModel) -> None:
    """Let a model with SDPA attention read packed sequences, too; others stay as they are."""
    if model.config._attn_implementation == "sdpa":
        model.set_attn_implementation(IMPLEMENTATION)


def packed_states(model: PreTrainedModel, tokens: PackedTokens) -> Tensor:
    """Return the model's last states (T, D).

    Args:
        model: the transformer without head, of a type that ``why_padded`` accepts, after
            ``set_attention``.
        tokens: no sequence is longer than the model has positions for.
    """
    inputs = _inputs(model, tokens)
    if isinstance(tokens, StaticTokens):
        with _compiled_layers(model):
            output = model(**inputs, packing=_shapes_only(tokens))
    else:
        output = model(**inputs, packing=tokens)
    state_TD: Tensor = output.last_hidden_state[0]
    return state_TD


@contextmanager
def _compiled_layers(model: PreTrainedModel) -> Iterator[None]:
    """Compile the model's layers within this block.

    Embeddings are not compiled, except ModernBERT's. In deterministic mode, the compiled gradient
    of an embedding table adds one row after the other, which for a table of few rows takes longer
    than all layers. The module is changed within the block, so only one thread may use it.
    """
    layers = model.get_submodule(_LAYERS.get(model.config.model_type, "encoder"))
    if "forward" in vars(layers):
        raise ConfigError(
            "memory.compile is true: another package has replaced the forward method of "
            f"{type(layers).__name__}. Set memory.compile=false"
        )
    # An attribute of the module hides the method of its class.
    layers.forward = functools.partial(_compiled_forward(), layers)
    try:
        limits = {"recompile_limit": _NO_LIMIT, "accumulated_recompile_limit": _NO_LIMIT}
        with torch._dynamo.config.patch(limits):
            yield
    finally:
        del layers.forward


@functools.cache
def _compiled_forward() -> Callable[..., Any]:
    # One graph: a part that cannot be compiled raises an error instead of making steps slow.
    return torch.compile(_forward, backend=BACKEND, dynamic=False, fullgraph=True)


def _forward(layers: nn.Module, *arguments: Any, **options: Any) -> Any:
    return type(layers).forward(layers, *arguments, **options)


def _shapes_only(tokens: StaticTokens) -> StaticTokens:
    """Return the tokens without fields whose shape differs between micro-batches.

    Only the number of sequences is dynamic (from two on); only attention reads it.
    """
    nothing = tokens.label_K[:0]
    fixed = replace(tokens, num_rows=0, label_index_K=nothing, label_K=nothing)
    torch._dynamo.maybe_mark_dynamic(fixed.indptr_S1, 0)
    if not fixed.token_T.is_cuda:
        # Cache them here, since their lock cannot be compiled. FlashAttention needs neither.
        _ = fixed._index_T
        torch._dynamo.maybe_mark_dynamic(fixed.mask_SL, 0)
    return fixed


def packed_mean(
    state_TD: Tensor, tokens: PackedTokens, is_counted_T: Tensor | None = None
) -> Tensor:
    """Return the mean (R, D) of the states of each sequence, in float32 or wider.

    Args:
        state_TD: states of all tokens.
        tokens: the sequences.
        is_counted_T: tokens that count, bool; None: all. Without any, the mean is 0.
    """
    wide_TD = at_least_fp32(state_TD)
    if is_counted_T is None:
        count_S = tokens.indptr_S1.diff()
    else:
        wide_TD = torch.where(is_counted_T[:, None], wide_TD, 0.0)
        count_S = sum_of_sequences(is_counted_T.float(), tokens)
    mean_SD = sum_of_sequences(wide_TD, tokens) / count_S.clamp(min=1)[:, None]
    return mean_SD[: tokens.num_rows]


def first_states(state_TD: Tensor, tokens: PackedTokens) -> Tensor:
    """Return the state of the first token of each sequence (R, D)."""
    return state_TD.index_select(0, tokens.indptr_S1[: tokens.num_rows])


def sum_of_sequences(value_TX: Tensor, tokens: PackedTokens) -> Tensor:
    """Return the sum of the values of each sequence (S, X), in the same order every time."""
    return torch.segment_reduce(
        value_TX, "sum", offsets=tokens.indptr_S1.long(), axis=0, initial=0, unsafe=True
    )


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    packing: PackedTokens | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attend within each packed sequence; an attention function as transformers calls it.

    Without ``packing`` it is transformers' SDPA attention of padded sequences.
    """
    if packing is None:
        return _padded_attention(module, [query, key, value], attention_mask, **options), None
    # ``part[0]`` would copy its gradient into zeros, once per layer and part.
    heads_THD = [part.squeeze(0).transpose(0, 1) for part in (query, key, value)]
    sliding_window = options.pop("sliding_window", None)
    # The window of transformers counts the token itself.
    window = None if sliding_window is None else sliding_window - 1
    if query.is_cuda and reads_without_padding(query):
        scaling = options.get("scaling")
        dropout = options.get("dropout") or 0.0
        return _varlen(heads_THD, packing, scaling, window, dropout)[None], None
    mask_SL = packing.mask_SL
    mask_S1LL = mask_SL[:, None, None]
    if window is not None:
        offset_L = torch.arange(packing.longest, device=query.device)
        mask_S1LL = mask_S1LL & ((offset_L[:, None] - offset_L).abs() <= window)
    heads_SHLD = [packing.to_rectangle(part_THD).transpose(1, 2) for part_THD in heads_THD]
    attended_SLHD = _padded_attention(module, heads_SHLD, mask_S1LL, **options)
    return packing.from_rectangle(attended_SLHD)[None], None


def _padded_attention(
    module: nn.Module, heads_SHLD: list[Tensor], mask: Tensor | None, **options: Any
) -> Tensor:
    """Return transformers' SDPA attention (S, L, H, D) of queries, keys and values (S, H, L, D)."""
    query_SHLD = heads_SHLD[0]
    dtype = query_SHLD.dtype
    is_slow = (
        module.training
        and dtype == torch.bfloat16
        and query_SHLD.device.type == "cpu"
        and query_SHLD.shape[2] <= MAX_FP32_LENGTH
    )
    if not is_slow:
        return sdpa_attention_forward(module, *heads_SHLD, mask, **options)[0]
    with torch.autocast("cpu", enabled=False):
        wide_SHLD = [part_SHLD.float() for part_SHLD in heads_SHLD]
        attended_SLHD, _ = sdpa_attention_forward(module, *wide_SHLD, mask, **options)
    return attended_SLHD.to(dtype)


def reads_without_padding(query: Tensor) -> bool:
    """Return whether FlashAttention can read packed heads (..., D) on a GPU."""
    is_half = query.dtype in (torch.bfloat16, torch.float16)
    return is_half and reads_head_width(query.shape[-1])


def reads_head_width(width: int) -> bool:
    """Return whether FlashAttention can read heads of a width."""
    return width <= MAX_HEAD_WIDTH and width % 8 == 0


def _varlen(
    heads_THD: list[Tensor],
    packing: PackedTokens,
    scaling: float | None,
    window: int | None,
    dropout: float = 0.0,
) -> Tensor:
    indptr_S1 = packing.indptr_S1
    longest = packing.longest
    inputs: Any = (*heads_THD, indptr_S1, indptr_S1, longest, longest)
    reach = -1 if window is None else window
    if dropout:
        # The operation that varlen_attn calls, which has no argument for dropout.
        attended_THD, *_ = torch.ops.aten._flash_attention_forward(
            *inputs,
            dropout,
            False,  # not causal
            return_debug_mask=False,
            scale=scaling,
            window_size_left=reach,
            window_size_right=reach,
        )
    else:
        attended_THD = varlen_attn(*inputs, scale=scaling, window_size=(reach, reach))
    return cast(Tensor, attended_THD)


def _inputs(model: PreTrainedModel, tokens: PackedTokens) -> dict[str, Any]:
    """Return the arguments of a model: one row of all tokens, with the positions of each."""
    config = model.config
    position_1T = tokens.position_T[None]
    has_pad_offset = config.model_type in _POSITIONS_AFTER_PAD or (
        config.model_type == "esm" and config.position_embedding_type == "absolute"
    )
    if has_pad_offset:
        position_1T = position_1T + config.pad_token_id + 1
    inputs: dict[str, Any] = {"input_ids": tokens.token_T[None], "position_ids": position_1T}
    if config.model_type == "esm" and config.token_dropout:
        inputs["inputs_embeds"] = _esm_embeddings(model, tokens, position_1T)
        del inputs["input_ids"]
    if config.model_type == "modernbert":
        # Without given masks, ModernBERT would make a T x T mask for its local attention.
        inputs["attention_mask"] = dict.fromkeys(("full_attention", "sliding_attention"))
    return inputs


def _esm_embeddings(model: PreTrainedModel, tokens: PackedTokens, position_1T: Tensor) -> Tensor:
    """Return ESM's embeddings with its ``token_dropout``, which counts within each sequence.

    Masked tokens are 0, and all tokens of a sequence are scaled by the share of unmasked tokens in
    training over that in the sequence, as in ``EsmEmbeddings.forward``.
    """
    table = model.embeddings
    is_mask_T = tokens.token_T == table.mask_token_id
    num_masked_S = sum_of_sequences(is_mask_T.float(), tokens)
    observed_S = num_masked_S / tokens.indptr_S1.diff()
    in_training = 0.15 * 0.8
    word_TD = table.word_embeddings(tokens.token_T).masked_fill(is_mask_T[:, None], 0.0)
    observed_T1 = observed_S.index_select(0, tokens.row_T)[:, None]
    scaled_TD = (word_TD * (1 - in_training) / (1 - observed_T1)).to(word_TD.dtype)
    embedding_1TD: Tensor = table(inputs_embeds=scaled_TD[None], position_ids=position_1T)
    return embedding_1TD


AttentionInterface.register(IMPLEMENTATION, packed_attention)
AttentionMaskInterface.register(IMPLEMENTATION, sdpa_mask)
