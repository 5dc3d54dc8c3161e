"""The batch of Contrastive-Probe."""

from dataclasses import dataclass

from torch import Tensor

from raybio.core.batch import TokenBatch


@dataclass(frozen=True)
class ClozeBatch(TokenBatch):
    """One worker's shard of a step: N queries, then their N answers, R = 2 N sequences.

    Columns run over the G sequences of the global batch: the shards of all workers in rank order,
    each in that layout.

    Attributes:
        positive_R: column of the answer of each query, and of the query of each answer.
        ignore_RG: True for a column that is neither positive nor negative: the sequence itself,
            sequences of an equal sentence, and those with the text of the anchor or its positive.
    """

    positive_R: Tensor
    ignore_RG: Tensor
