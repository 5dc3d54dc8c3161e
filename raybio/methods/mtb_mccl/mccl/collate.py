"""Batches of fine-tuning: shuffled documents with their labeled pairs."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from raybio.core.batch import deal
from raybio.core.randomness import shuffled_epochs
from raybio.methods.mtb_mccl.documents.collate import DocumentReader
from raybio.methods.mtb_mccl.mccl.config import DocumentPlanConfig
from raybio.methods.mtb_mccl.mccl.labeled_pairs import LabeledPairs, coarse_labels


@dataclass(frozen=True)
class RelationCollate:
    """(step, rank, world) -> the arrays of a ``LabeledDocumentBatch``.

    Attributes:
        reader: reads documents for the encoder.
        labeled: the training pairs.
        plan: number of documents per step.
        seed: the run's seed.
        is_coarse: whether all relations are one class.
    """

    reader: DocumentReader
    labeled: LabeledPairs
    plan: DocumentPlanConfig
    seed: int
    is_coarse: bool = False

    def __post_init__(self) -> None:
        """Check that there is a training pair."""
        self.labeled.check()

    def __call__(self, step: int, rank: int, world: int) -> Mapping[str, np.ndarray]:
        """Return the arrays of worker ``rank``'s shard of ``step``."""
        labeled = self.labeled
        size = self.plan.global_batch_rows
        index = shuffled_epochs(
            step * size, size, num_rows=len(labeled.rows), seed=self.seed, name="documents"
        )
        # With fewer documents than a step takes, each comes once: a copy of a pair would be its
        # own nearest neighbor.
        distinct = np.array(list(dict.fromkeys(labeled.rows[index].tolist())))
        row_R = distinct[deal(self.reader.lengths(distinct), world) == rank]
        self.reader.store.request(row_R)
        rows = row_R.tolist()
        marked = [self.reader.marked(row) for row in rows]
        arrays = self.reader.arrays(rows, marked, [labeled.pairs(row) for row in rows])
        num_classes = len(labeled.store.relation_names)
        label_PC = np.concatenate(
            [np.zeros((0, num_classes), bool), *(labeled.labels(row) for row in rows)]
        )
        if self.is_coarse:
            label_PC = coarse_labels(label_PC)
        # List labels on the host: on a GPU, the host would have to wait for their number.
        pair_G, class_G = np.nonzero(label_PC)
        return arrays | {"label_PC": label_PC, "pair_G": pair_G, "class_G": class_G}

    @property
    def steps_per_epoch(self) -> float:
        """Steps in which every document comes once."""
        return len(self.labeled.rows) / self.plan.global_batch_rows
