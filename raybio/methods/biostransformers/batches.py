"""Typed batch of BioSTransformers."""

from dataclasses import dataclass

from torch import Tensor

from raybio.core.batch import TokenBatch


@dataclass(frozen=True)
class PairBatch(TokenBatch):
    """One worker's shard of a step: N texts, then the N terms paired with them, R = 2 N sequences.

    Columns of the masks are the G pairs of the global batch: the shards of all workers, in rank
    order.

    Attributes:
        ignore_NG: True where another pair's term belongs to the text's own article.
        ignore_reverse_NG: True where the term belongs to the article of another pair's text; (N, 0)
            unless the loss is symmetric.
        num_deferred: number of pairs deferred from an earlier batch, shape ().
        num_forced: number of pairs that conflict with others of the batch, shape ().
        num_dropped: number of pairs that were dropped to fill the shard, shape ().
    """

    ignore_NG: Tensor
    ignore_reverse_NG: Tensor
    num_deferred: Tensor
    num_forced: Tensor
    num_dropped: Tensor
