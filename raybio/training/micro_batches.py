"""Cutting a worker shard into micro-batches that fit a budget of padded tokens.

Shape letters: R sequences of the shard, M sequences of one micro-batch.
"""

import numpy as np
import torch
from torch import Tensor

from raybio.batches import PADDING_MULTIPLE

CPU_OVERHEAD_TOKENS = 128
"""Padded tokens whose encoding takes a CPU about as long as what one more micro-batch costs by itself."""


def token_budget_micro_batches(
    length_R: Tensor, *, max_tokens: int, multiple: int = PADDING_MULTIPLE, overhead_tokens: int | None = None
) -> list[Tensor]:
    """Group sequences of similar length so that each group, padded to its longest, stays within ``max_tokens``.

    Groups go from long to short, so that memory peaks in the first one: a budget too large fails at once and not
    after an hour. The result depends on the lengths alone.

    Args:
        length_R: tokens of each sequence.
        max_tokens: limit of sequences × padded length of a group; one sequence longer than that gets its own group.
        multiple: padded lengths are rounded up to this.
        overhead_tokens: what one more group costs, in padded tokens: groups are cut so that the padded tokens and these
            are fewest in all. None: groups are filled to the limit, as a GPU wants it.

    Returns:
        Row indices (M,) of each group, int64 on the device of ``length_R``; every row is in exactly one group.

    Raises:
        ValueError: if ``max_tokens`` or ``multiple`` is not positive.
    """
    if max_tokens < 1 or multiple < 1:
        raise ValueError(f"got max_tokens={max_tokens} and multiple={multiple}, want both at least 1")
    sorted_length_R, order_R = torch.sort(length_R, descending=True, stable=True)
    lengths = sorted_length_R.cpu().numpy()
    padded_length_R = np.maximum(-(-lengths // multiple) * multiple, 1)
    most_R = np.minimum(np.maximum(max_tokens // padded_length_R, 1), np.arange(len(lengths), 0, -1))
    size_R = most_R if overhead_tokens is None else _cheapest_sizes(padded_length_R, most_R, overhead_tokens)
    sizes, start = [], 0
    while start < len(lengths):
        sizes.append(int(size_R[start]))
        start += sizes[-1]
    return list(torch.split(order_R, sizes)) if sizes else []


def overhead_tokens_on(device: torch.device) -> int | None:
    """What one more micro-batch costs there: a CPU is never idle, a GPU is filled by larger ones."""
    return CPU_OVERHEAD_TOKENS if device.type == "cpu" else None


def _cheapest_sizes(padded_length_R: np.ndarray, most_R: np.ndarray, overhead_tokens: int) -> np.ndarray:
    """The size of the group that begins at each row, of the cheapest way to cut that row and all behind it."""
    num_rows = len(padded_length_R)
    size_R, cost_R1 = np.zeros(num_rows, dtype=np.int64), np.zeros(num_rows + 1, dtype=np.int64)
    for row in range(num_rows - 1, -1, -1):
        ways = padded_length_R[row] * np.arange(1, most_R[row] + 1) + cost_R1[row + 1 : row + 1 + most_R[row]]
        size_R[row] = ways.argmin() + 1
        cost_R1[row] = ways[size_R[row] - 1] + overhead_tokens
    return size_R
