"""Collation of a supervised task: shuffled training rows, their tokens and what is to be told of them.

Shape letters: R sequences of the shard, T tokens of them end to end.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from pydantic import Field

from raybio.batches import IGNORED_LABEL, TokenBatch
from raybio.config import BaseConfig
from raybio.data.collate import ReadRows
from raybio.data.task_store import IGNORED, TaskStore
from raybio.functional.hashing import shuffled_epochs


class TaskPlanConfig(BaseConfig):
    """Which rows make up a step."""

    global_batch_rows: int = Field(32, ge=1, description="sequences of a step, over all workers")


@dataclass(frozen=True)
class TaskCollate:
    """(step, rank, world) -> the arrays of a ``TaskBatch``.

    Attributes:
        store: the rows.
        plan_config: how many make up a step.
        read: rows to tokens.
        seed: the run's seed.
    """

    store: TaskStore
    plan_config: TaskPlanConfig
    read: ReadRows
    seed: int

    @property
    def steps_per_epoch(self) -> float:
        """Steps in which every training row is seen once."""
        return len(self.store.split_rows("train")) / self.plan_config.global_batch_rows

    def __call__(self, step: int, rank: int, world: int) -> Mapping[str, np.ndarray]:
        """The arrays of worker ``rank``'s shard of ``step``."""
        batch, train = self.plan_config.global_batch_rows, self.store.split_rows("train")
        drawn_B = shuffled_epochs(step * batch, batch, num_rows=len(train), seed=self.seed, name="rows")
        row_R = train[drawn_B[batch * rank // world : batch * (rank + 1) // world]]
        token_T, indptr_R1, is_special_T = self.read(row_R)
        return {
            "token_T": token_T,
            "indptr_R1": indptr_R1,
            "label_T": labels_of_tokens(self.store, row_R, indptr_R1, is_special_T),
            "target_R": self.store.target_N[row_R],
        }


def labels_of_tokens(
    store: TaskStore, row_R: np.ndarray, indptr_R1: np.ndarray, is_special_T: np.ndarray
) -> np.ndarray:
    """Class of each token (T,), int64: of residues, from a sequence's first one on; special tokens are ignored."""
    label_T = np.full(len(is_special_T), IGNORED_LABEL, dtype=np.int64)
    if not len(store.class_T):
        return label_T
    residue_T = np.flatnonzero(~is_special_T)
    num_R = np.add.reduceat(~is_special_T, indptr_R1[:-1]) if len(row_R) else np.empty(0, np.int64)
    within = np.arange(len(residue_T)) - np.repeat(np.cumsum(num_R) - num_R, num_R)
    found = store.class_T[np.repeat(store.indptr_N1[row_R], num_R) + within].astype(np.int64)
    label_T[residue_T] = np.where(found == IGNORED, IGNORED_LABEL, found)
    return label_T


def read_labelled(store: TaskStore, read: ReadRows, row_R: np.ndarray) -> TokenBatch:
    """Rows for judging, with the classes of their tokens."""
    token_T, indptr_R1, is_special_T = read(row_R)
    return TokenBatch(
        token_T=torch.from_numpy(token_T.astype(np.int64)),
        indptr_R1=torch.from_numpy(indptr_R1.astype(np.int64)),
        label_T=torch.from_numpy(labels_of_tokens(store, row_R, indptr_R1, is_special_T)),
    )
