"""The batch of Contrastive-Probe."""

from dataclasses import dataclass

from torch import Tensor

from raybio.core.batch import TokenBatch


@dataclass(frozen=True)
class ClozeBatch(TokenBatch):
    """One worker's shard of a step: N queries, then their N answers, R = 2 N sequences.

    Attributes:
        sentence_key_R: equal for sequences of equal sentences.
        text_key_R: equal for equal texts.
    """

    sentence_key_R: Tensor
    text_key_R: Tensor
