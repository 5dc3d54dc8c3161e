"""Micro-batches: a worker's shard cut into groups of sequences within a budget of padded tokens.

Shape letters: R sequences of the shard, M sequences of one micro-batch.
"""

import numpy as np
import torch
from torch import Tensor

from raybio.core.batch import PADDING_MULTIPLE

CPU_OVERHEAD_TOKENS = 128
"""Cost of one more micro-batch on a CPU, in padded tokens that take as long to encode."""


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
            tokens and this cost are least in total. None: groups are filled to the limit, which
            suits a GPU.

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


def overhead_tokens_on(device: torch.device) -> int | None:
    """Return the cost of one more micro-batch; None on a GPU, which large groups fill better."""
    return CPU_OVERHEAD_TOKENS if device.type == "cpu" else None


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
