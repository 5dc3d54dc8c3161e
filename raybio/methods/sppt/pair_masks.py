"""Masks of the pairs of sequences of a global batch, made on the device from nodes and links.

Shape letters: R sequences of this worker, G sequences of all workers.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from raybio.core.interfaces import Collective, Gathered
from raybio.methods.sppt.batches import LinkBatch
from raybio.ops.grouped import lists_contain

SameNode = Literal["ignore", "positive", "negative"]


class PairMasks(NamedTuple):
    """Masks of pairs that are positive, or neither; every other pair is negative.

    Columns are the sequences of all workers in rank order, as ``Collective.all_gather`` has them.

    Attributes:
        linked_RG: True where two nodes are linked in the graph.
        ignore_RG: True where a pair is neither positive nor negative: a sequence and itself, and by
            default copies of the same node.
    """

    linked_RG: Tensor
    ignore_RG: Tensor


def pair_masks(
    batch: LinkBatch,
    collective: Collective,
    same_node: SameNode,
    gathered: Gathered | None = None,
) -> PairMasks:
    """Return the masks of this worker's sequences with those of all workers.

    Args:
        batch: this worker's shard.
        collective: the other workers.
        same_node: relation between two copies of a node.
        gathered: the embeddings of all sequences, if they were gathered before.
    """
    row_G, offset, _ = collective.all_gather(batch.row_R, gathered)
    num_sequences = len(batch.row_R)
    linked_RG = lists_contain(batch.link_sequence_E, batch.link_row_E, row_G, num_sequences)
    same_RG = batch.row_R[:, None] == row_G
    own_R = offset + torch.arange(num_sequences, device=row_G.device)
    itself_RG = own_R[:, None] == torch.arange(len(row_G), device=row_G.device)
    if same_node == "positive":
        linked_RG = linked_RG | (same_RG & ~itself_RG)
    return PairMasks(linked_RG, same_RG if same_node == "ignore" else itself_RG)
