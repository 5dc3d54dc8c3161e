"""Micro-batches: a worker's shard cut into groups of sequences within a budget of tokens.

On a GPU they are packed: concatenated, without padding. On a CPU, where it is faster, and for
encoders that cannot read packed sequences, they are padded groups of similar length.

Shape letters: R sequences of the shard, M sequences of one micro-batch.
"""

import logging
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from raybio.core.batch import PADDING_MULTIPLE, StaticShape, TokenBatch, Tokens, to_device
from raybio.core.errors import ConfigError
from raybio.core.interfaces import Encoder
from raybio.encoders.packed import reads_head_width
from raybio.training.precision import Precision
from raybio.training.settings import MemoryConfig

CPU_OVERHEAD_TOKENS = 128
"""Cost of one more micro-batch on a CPU, in padded tokens that take as long to encode."""

GPU_OVERHEAD_TOKENS = 2048
"""The same on a GPU, which large groups utilize better; an estimate, not a measurement."""

logger = logging.getLogger(__name__)


class MicroBatch(NamedTuple):
    """Sequences that are encoded at once.

    Attributes:
        tokens: padded or packed, on the encoder's device.
        embedding_rows: indices of their embeddings in the whole batch, on that device.
    """

    tokens: Tokens
    embedding_rows: Tensor


def micro_batches(
    batch: TokenBatch, encoder: Encoder, device: torch.device, *, max_tokens: int
) -> Iterator[MicroBatch]:
    """Yield the micro-batches of a batch, which is on the host, from long sequences to short ones.

    Args:
        batch: all sequences.
        encoder: its ``packing`` says how it reads them.
        device: where it computes.
        max_tokens: tokens that are encoded at once, padding included.
    """
    if not batch.num_rows:
        return
    # Evaluations are not compiled: they take little time, and do not change with the setting.
    shape = encoder.static_shape if encoder.training else None
    is_packed = shape is not None or reads_packed(encoder, device)
    if shape is not None:
        groups = packed_micro_batches(batch.length_R, max_tokens=shape.num_tokens)
    elif is_packed:
        groups = packed_micro_batches(batch.length_R, max_tokens=max_tokens)
    else:
        groups = token_budget_micro_batches(
            batch.length_R, max_tokens=max_tokens, overhead_tokens=overhead_tokens_on(device)
        )
    for row_M in groups:
        tokens: Tokens
        if shape is not None:
            tokens = batch.pack_static(row_M, encoder.pad_id, shape)
        else:
            cut = batch.pack if is_packed else batch.pad
            tokens = cut(row_M, encoder.pad_id)
        yield MicroBatch(tokens.to(device), to_device(batch.embedding_rows(row_M), device))


def reads_packed(encoder: Encoder, device: torch.device) -> bool:
    """Return whether an encoder's batches are packed; warn once if it cannot read packed ones."""
    is_wanted = device.type == "cuda" if encoder.packing == "auto" else encoder.packing
    reason = encoder.why_padded() if is_wanted else ""
    if reason:
        _warn_of_padding(reason)
    return is_wanted and not reason


def static_shape(
    encoder: Encoder, memory: MemoryConfig, precision: Precision
) -> StaticShape | None:
    """Return the shape of the micro-batches of a compiled encoder; None: it is not compiled.

    Raises:
        ConfigError: if ``memory.compile`` is true, and the encoder or other settings refuse it.
    """
    is_gpu = precision.device_type == "cuda"
    if memory.compile is False or (memory.compile == "auto" and not is_gpu):
        return None
    reason = encoder.why_eager()
    if is_gpu:
        # With padding, each sequence would be as long as the longest that the shape allows.
        if precision.name != "bf16":
            reason = reason or f"attention pads packed sequences in {precision.name}; bf16 does not"
        if not all(map(reads_head_width, _head_widths(encoder))):
            reason = reason or "attention pads heads that FlashAttention cannot read"
    max_tokens = memory.max_tokens_per_micro_batch
    longest = getattr(encoder, "max_tokens", 0)
    if memory.gradient_caching:
        reason = reason or "memory.gradient_caching encodes twice, which must be equal"
    if memory.packing is False:
        reason = reason or "memory.packing is false, and padded shapes differ"
    if max_tokens < longest:
        reason = reason or (
            f"memory.max_tokens_per_micro_batch is {max_tokens}, and a sequence may have {longest}"
        )
    if not reason:
        return StaticShape(max_tokens, longest)
    if memory.compile == "auto":
        return None
    raise ConfigError(f"memory.compile is true: {reason}. Set memory.compile=false")


def _head_widths(encoder: Encoder) -> set[int]:
    """Return the widths of the attention heads of an encoder's configurations."""
    configs: list[Any] = [each.config for each in encoder.modules() if hasattr(each, "config")]
    return {
        config.hidden_size // config.num_attention_heads
        for config in configs
        if getattr(config, "num_attention_heads", 0)
    }


@cache
def _warn_of_padding(reason: str) -> None:
    logger.warning("memory.packing: %s, and computes their padding", reason)


def packed_micro_batches(length_R: Tensor, *, max_tokens: int) -> list[Tensor]:
    """Group sequences in order of their lengths, from long to short, up to ``max_tokens`` each.

    A longer sequence gets a group of its own.

    Args:
        length_R: tokens of each sequence, on the host.
        max_tokens: maximum of the tokens of a group.

    Returns:
        Row indices (M,) of each group, int64; every row is in exactly one group.

    Raises:
        ValueError: if ``max_tokens`` is not positive.
    """
    if max_tokens < 1:
        raise ValueError(f"got max_tokens={max_tokens}, want at least 1")
    lengths = length_R.numpy()
    order_R = np.argsort(-lengths, kind="stable")
    end_R = np.cumsum(lengths[order_R])
    groups = []
    start = 0
    while start < len(order_R):
        num_before = end_R[start - 1] if start else 0
        end = int(np.searchsorted(end_R, num_before + max_tokens, side="right"))
        end = max(end, start + 1)
        groups.append(torch.from_numpy(order_R[start:end]))
        start = end
    return groups


def token_budget_micro_batches(
    length_R: Tensor,
    *,
    max_tokens: int,
    multiple: int = PADDING_MULTIPLE,
    overhead_tokens: int | None = None,
) -> list[Tensor]:
    """Group sequences of similar length so that each padded group stays within ``max_tokens``.

    Groups go from long to short, so that memory peaks in the first one: a budget that is too large
    fails at once and not after an hour. The result depends on the lengths only.

    Args:
        length_R: tokens of each sequence.
        max_tokens: maximum of sequences × padded length of a group. A longer sequence gets a group
            of its own.
        multiple: padded lengths are rounded up to this.
        overhead_tokens: cost of one more group in padded tokens; groups are cut so that the padded
            tokens and this cost are least in total. None: groups are filled to the limit.

    Returns:
        Row indices (M,) of each group, int64 on the device of ``length_R``; every row is in exactly
        one group.

    Raises:
        ValueError: if ``max_tokens`` or ``multiple`` is not positive.
    """
    if max_tokens < 1 or multiple < 1:
        raise ValueError(
            f"got max_tokens={max_tokens} and multiple={multiple}, want both at least 1"
        )
    sorted_length_R, order_R = torch.sort(length_R, descending=True, stable=True)
    lengths = sorted_length_R.cpu().numpy()
    padded_length_R = np.maximum(-(-lengths // multiple) * multiple, 1)
    num_left_R = np.arange(len(lengths), 0, -1)
    max_size_R = np.minimum(np.maximum(max_tokens // padded_length_R, 1), num_left_R)
    size_R = max_size_R
    if overhead_tokens is not None:
        size_R = _cheapest_sizes(padded_length_R, max_size_R, overhead_tokens)
    sizes = []
    start = 0
    while start < len(lengths):
        sizes.append(int(size_R[start]))
        start += sizes[-1]
    return list(torch.split(order_R, sizes)) if sizes else []


def overhead_tokens_on(device: torch.device) -> int:
    """Return the cost of one more padded micro-batch, in padded tokens."""
    return CPU_OVERHEAD_TOKENS if device.type == "cpu" else GPU_OVERHEAD_TOKENS


def _cheapest_sizes(
    padded_length_R: np.ndarray, max_size_R: np.ndarray, overhead_tokens: int
) -> np.ndarray:
    """Return the size of each row's group in the cheapest partition of it and all later rows.

    Dynamic programming from the last row to the first.
    """
    num_rows = len(padded_length_R)
    size_R = np.zeros(num_rows, dtype=np.int64)
    cost_R1 = np.zeros(num_rows + 1, dtype=np.int64)
    for row in range(num_rows - 1, -1, -1):
        max_size = max_size_R[row]
        tokens_by_size = padded_length_R[row] * np.arange(1, max_size + 1)
        cost_by_size = tokens_by_size + cost_R1[row + 1 : row + 1 + max_size]
        size_R[row] = cost_by_size.argmin() + 1
        cost_R1[row] = cost_by_size[size_R[row] - 1] + overhead_tokens
    return size_R
