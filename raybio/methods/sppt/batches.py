"""Typed batches of SPPT and its downstream tasks."""

from dataclasses import dataclass

from torch import Tensor

from raybio.core.batch import TokenBatch


@dataclass(frozen=True)
class LinkBatch(TokenBatch):
    """One worker's shard of a step of structure-preserving pre-training.

    The R sequences are the shard's anchors, then their positives, then their negatives.
    ``pair_masks`` turns nodes and links into masks of pairs on the device, so the size of a batch
    does not grow with the number of workers.

    Attributes:
        row_R: store row (graph node) of each sequence.
        num_anchors: number of anchors, shape ().
        link_sequence_E: sequence of each link to a node of the global batch.
        link_row_E: the node that each link leads to.
        num_fallback_negatives: number of negatives from outside their anchor's group, shape ().
    """

    row_R: Tensor
    num_anchors: Tensor
    link_sequence_E: Tensor
    link_row_E: Tensor
    num_fallback_negatives: Tensor


@dataclass(frozen=True)
class TaskBatch(TokenBatch):
    """One worker's shard of a step of a supervised task.

    ``label_T`` holds the class of each token if the task labels tokens.

    Attributes:
        target_X: float64; class or number of each sequence (X = R), or 1 for each of C classes that
            a sequence has, sequence after sequence (X = R C).
    """

    target_X: Tensor
