"""The typed batch of BioSTransformers."""

from dataclasses import dataclass

from torch import Tensor

from raybio.core.batch import TokenBatch


@dataclass(frozen=True)
class PairBatch(TokenBatch):
    """One worker's shard of a step of (text, term) pairs: N texts, then their N terms, R = 2 N sequences.

    Columns of the masks run over the pairs of the global batch: the shards of all workers in rank order.

    Attributes:
        ignore_NG: True where the term of another pair belongs to the text's own article.
        ignore_reverse_NG: True where the term belongs to the article of another pair's text; (N, 0) if not asked for.
        num_deferred: pairs that were put off from an earlier batch, shape ().
        num_forced: pairs that conflict with others of the batch and were taken all the same, shape ().
    """

    ignore_NG: Tensor
    ignore_reverse_NG: Tensor
    num_deferred: Tensor
    num_forced: Tensor
