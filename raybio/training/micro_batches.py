"""Cutting a worker shard into micro-batches that fit a budget of padded tokens.

Shape letters: R sequences of the shard, M sequences of one micro-batch.
"""

import torch
from torch import Tensor

from raybio.batches import PADDING_MULTIPLE


def token_budget_micro_batches(length_R: Tensor, *, max_tokens: int, multiple: int = PADDING_MULTIPLE) -> list[Tensor]:
    """Group sequences of similar length so that each group, padded to its longest, stays within ``max_tokens``.

    Groups go from long to short, so that memory peaks in the first one: a budget too large fails at once and not
    after an hour. The result depends on the lengths alone.

    Args:
        length_R: tokens of each sequence.
        max_tokens: limit of sequences × padded length of a group; one sequence longer than that gets its own group.
        multiple: padded lengths are rounded up to this.

    Returns:
        Row indices (M,) of each group, int64 on the device of ``length_R``; every row is in exactly one group.

    Raises:
        ValueError: if ``max_tokens`` or ``multiple`` is not positive.
    """
    if max_tokens < 1 or multiple < 1:
        raise ValueError(f"got max_tokens={max_tokens} and multiple={multiple}, want both at least 1")
    sorted_length_R, order_R = torch.sort(length_R, descending=True, stable=True)
    lengths = sorted_length_R.tolist()
    sizes, start = [], 0
    while start < len(lengths):
        padded_length = max(-(-lengths[start] // multiple) * multiple, 1)
        size = min(max(max_tokens // padded_length, 1), len(lengths) - start)
        sizes.append(size)
        start += size
    return list(torch.split(order_R, sizes)) if sizes else []
