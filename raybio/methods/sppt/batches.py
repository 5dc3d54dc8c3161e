"""Typed batches of SPPT and its downstream tasks."""

from dataclasses import dataclass

from torch import Tensor

from raybio.core.batch import TokenBatch


@dataclass(frozen=True)
class LinkBatch(TokenBatch):
    """One worker's shard of a step of structure-preserving pre-training.

    The R sequences are the shard's anchors, then their positives, then their negatives. Columns of
    the pair masks run over the G sequences of the global batch: the shards of all workers in rank
    order, each in that same layout.

    Attributes:
        row_R: store row (graph node) of each sequence.
        num_anchors: number of anchors, shape ().
        linked_RG: True where the two nodes are linked in the graph.
        ignore_RG: True where a pair is neither positive nor negative: a sequence and itself, and by
            default copies of the same node.
        num_fallback_negatives: number of negatives from outside their anchor's group, shape ().
    """

    row_R: Tensor
    num_anchors: Tensor
    linked_RG: Tensor
    ignore_RG: Tensor
    num_fallback_negatives: Tensor


@dataclass(frozen=True)
class TaskBatch(TokenBatch):
    """One worker's shard of a step of a supervised task.

    ``label_T`` holds the class of each token if the task labels tokens.

    Attributes:
        target_R: class or number of each sequence, float64.
    """

    target_R: Tensor
