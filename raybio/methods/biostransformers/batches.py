"""Typed batch of BioSTransformers."""

from dataclasses import dataclass

from torch import Tensor

from raybio.core.batch import TokenBatch


@dataclass(frozen=True)
class PairBatch(TokenBatch):
    """One worker's shard of a step: N texts, then the N terms paired with them, R = 2 N sequences.

    The loss finds false negatives on the device, from the term numbers: the size of a batch does
    not grow with the number of workers. E counts the terms of the articles of all pairs.

    Attributes:
        term_N: number of each pair's term.
        pair_E: pair of each term of its article.
        term_E: that term.
        num_deferred: number of pairs deferred from an earlier batch, shape ().
        num_forced: number of pairs that conflict with others of the batch, shape ().
        num_dropped: number of pairs that were dropped to fill the shard, shape ().
    """

    term_N: Tensor
    pair_E: Tensor
    term_E: Tensor
    num_deferred: Tensor
    num_forced: Tensor
    num_dropped: Tensor
