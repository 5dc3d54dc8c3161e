"""Collation of a supervised task: shuffled training rows, their tokens and labels.

Shape letters: B rows of the global batch, R rows of a shard, T tokens of these rows, K residues,
all concatenated.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from raybio.core.batch import IGNORED_LABEL, TokenBatch, deal
from raybio.core.randomness import shuffled_epochs
from raybio.methods.sppt.collate import ReadRows
from raybio.methods.sppt.downstream.config import TASKS, TaskPlanConfig
from raybio.methods.sppt.downstream.store import IGNORED, TaskStore


@dataclass(frozen=True)
class TaskCollate:
    """Function (step, rank, world) -> arrays of a ``TaskBatch``.

    Attributes:
        store: the task.
        plan_config: size of the global batch.
        read: reader of rows as tokens.
        seed: the run's seed.
    """

    store: TaskStore
    plan_config: TaskPlanConfig
    read: ReadRows
    seed: int

    @property
    def steps_per_epoch(self) -> float:
        """Steps in which every training row occurs once."""
        return len(self.store.split_rows("train")) / self.plan_config.global_batch_rows

    def __call__(self, step: int, rank: int, world: int) -> Mapping[str, np.ndarray]:
        """Return the arrays of worker ``rank``'s shard of ``step``."""
        batch = self.plan_config.global_batch_rows
        train = self.store.split_rows("train")
        drawn_B = shuffled_epochs(
            step * batch, batch, num_rows=len(train), seed=self.seed, name="rows"
        )
        row_B = train[drawn_B]
        row_R = row_B[deal(self.read.lengths(row_B), world) == rank]
        token_T, indptr_R1, is_special_T = self.read(row_R)
        return {
            "token_T": token_T,
            "indptr_R1": indptr_R1,
            "label_T": token_labels(self.store, row_R, indptr_R1, is_special_T),
            "target_X": self.store.targets(row_R).astype(np.float64).ravel(),
        }


def token_labels(
    store: TaskStore, row_R: np.ndarray, indptr_R1: np.ndarray, is_special_T: np.ndarray
) -> np.ndarray:
    """Return the class of each token (T,), int64, ``IGNORED_LABEL`` for special tokens.

    In a task without residue labels all tokens are ignored.
    """
    label_T = np.full(len(is_special_T), IGNORED_LABEL, dtype=np.int64)
    if TASKS[store.task].labels != "residues":
        return label_T
    position_K, _, residue_K = read_residues(store, row_R, indptr_R1, is_special_T)
    class_K = store.class_T[residue_K].astype(np.int64)
    label_T[position_K] = np.where(class_K == IGNORED, IGNORED_LABEL, class_K)
    return label_T


def read_residues(
    store: TaskStore, row_R: np.ndarray, indptr_R1: np.ndarray, is_special_T: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the residues that tokens stand for, in order of the tokens, int64 (K,) each.

    The tokens of a row that are not special are its first residues, in order.

    Returns:
        The position of each token, the number of its row in ``row_R``, and its residue's index in
        ``store.residue_T``.
    """
    position_K = np.flatnonzero(~is_special_T)
    num_residues_R = np.empty(0, np.int64)
    if len(row_R):
        num_residues_R = np.add.reduceat(~is_special_T, indptr_R1[:-1])
    first_R = np.cumsum(num_residues_R) - num_residues_R
    number_K = np.repeat(np.arange(len(row_R)), num_residues_R)
    offset_K = np.arange(len(position_K)) - first_R[number_K]
    return position_K, number_K, store.indptr_N1[row_R][number_K] + offset_K


def read_labeled(store: TaskStore, read: ReadRows, row_R: np.ndarray) -> TokenBatch:
    """Return the tokens of these rows with their labels, for evaluation."""
    token_T, indptr_R1, is_special_T = read(row_R)
    label_T = token_labels(store, row_R, indptr_R1, is_special_T)
    return TokenBatch.from_numpy(token_T, indptr_R1, label_T)
