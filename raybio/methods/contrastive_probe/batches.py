"""The typed batch of Contrastive-Probe."""

from dataclasses import dataclass

from torch import Tensor

from raybio.core.batch import TokenBatch


@dataclass(frozen=True)
class ClozeBatch(TokenBatch):
    """One worker's shard of a step of cloze pairs: N queries, then their N answers, R = 2 N sequences.

    Columns run over the G sequences of the global batch: the shards of all workers in rank order, each in that layout.

    Attributes:
        positive_R: column of the answer of each query and of the query of each answer.
        ignore_RG: True where a column is neither positive nor negative: the sequence itself, all of an equal sentence,
            and all whose text is that of the sequence or of its positive.
    """

    positive_R: Tensor
    ignore_RG: Tensor
