"""The store of a supervised task: sequences of residues or texts, what is to be told of them, and their splits.

Shape letters: N rows, T residues or bytes of all rows end to end.

Collation of a supervised task: shuffled training rows, their tokens and what is to be told of them.

Shape letters: R sequences of the shard, T tokens of them end to end.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from raybio.core.batch import IGNORED_LABEL, TokenBatch
from raybio.core.randomness import shuffled_epochs
from raybio.methods.sppt.collate import ReadRows
from raybio.methods.sppt.downstream.config import TaskPlanConfig
from raybio.store.columns import ArrowColumn, NumberColumn, TextColumn, column_tables
from raybio.store.ragged import Ragged
from raybio.store.store import Store
from raybio.store.word_counts import WordCounts, count_words
from raybio.store.writer import Draft

ROWS, CLASSES, WORDS = "rows.arrow", "classes.arrow", "words.arrow"


SPLITS = ("train", "dev", "test")


IGNORED = -1
"""Class of a residue of which nothing is known."""


class TaskStore(Store):
    """An open store of labelled sequences."""

    kind = "task"

    content = ArrowColumn(ROWS, "content", pa.large_binary())
    """Residues or UTF-8 text of each row."""

    split_number_N = NumberColumn(ROWS, "split", np.int8)
    """Index of each row's split in ``SPLITS``."""

    target_N = NumberColumn(ROWS, "target", np.float64)
    """Class or number of each row; zeros in a task on residues."""

    classes = ArrowColumn(ROWS, "classes")
    """Class of each residue of each row; empty in other tasks."""

    class_names = TextColumn(CLASSES, "name")
    """Names of the classes; none in a regression task."""

    count_by_word = WordCounts(WORDS)
    """Counts of the most frequent words; none in a task on proteins."""

    @property
    def task(self) -> str:
        """Its name, of ``tasks.TASKS``."""
        return str(self.manifest["parameters"]["task"])

    @cached_property
    def residue_T(self) -> np.ndarray:
        """Residues of all rows end to end, uint8; of a task on texts their bytes."""
        return self._content.value_T

    @cached_property
    def indptr_N1(self) -> np.ndarray:
        """Row n is ``residue_T[indptr_N1[n] : indptr_N1[n + 1]]``."""
        return self._content.indptr_N1

    def texts(self, row_R: np.ndarray) -> list[str]:
        """Some texts."""
        return [text.decode() for text in self.content.take(pa.array(row_R)).to_pylist()]

    def split_rows(self, split: str) -> np.ndarray:
        """Rows of one of ``SPLITS``, ascending."""
        return np.flatnonzero(self.split_number_N == SPLITS.index(split))

    def known_from_training(self) -> dict[str, int]:
        """Of dev and test, how many rows have a text or sequence that a training row has too."""
        return {
            split: len(self.split_rows(split)) - len(self.new_rows(split)) for split in SPLITS[1:]
        }

    def new_rows(self, split: str) -> np.ndarray:
        """Rows of a split whose text or sequence no training row has."""
        taught, row_N = set(self.texts(self.split_rows("train"))), self.split_rows(split)
        return row_N[[one not in taught for one in self.texts(row_N)]]

    def untaught_classes(self) -> dict[str, list[str]]:
        """Of dev and test the classes of rows that training has no row of, if any; nothing of other tasks."""
        if not self.class_names or len(self.class_T):
            return {}
        taught = self.target_N[self.split_rows("train")]
        found = {
            split: np.setdiff1d(self.target_N[self.split_rows(split)], taught)
            for split in SPLITS[1:]
        }
        return {
            split: [self.class_names[int(one)] for one in new]
            for split, new in found.items()
            if len(new)
        }

    @cached_property
    def class_T(self) -> np.ndarray:
        """Class of each residue, int8, ``IGNORED`` where nothing is known; empty of other tasks."""
        return self.classes.values.to_numpy(zero_copy_only=True)

    @cached_property
    def _content(self) -> Ragged:
        return Ragged.of(self.content)


def commit_task(
    draft: Draft,
    *,
    contents: list[bytes],
    splits: list[str],
    targets: list[float],
    classes: list[np.ndarray],
    class_names: list[str],
    with_words: bool,
    provenance: dict[str, Any],
) -> TaskStore:
    """Write and commit a store.

    Args:
        draft: where it is made.
        contents: residues or text of each row.
        splits: one of ``SPLITS`` each.
        targets: class or number of each row.
        classes: of each row, class of each residue; empty arrays for other tasks.
        class_names: names of the classes.
        with_words: whether rows are texts.
        provenance: the manifest's account of the input.

    Raises:
        StoreError: if it cannot be written.
    """
    count_by_word = count_words(content.decode() for content in contents) if with_words else {}
    bounds = np.cumsum([0, *map(len, classes)], dtype=np.int64)
    class_T = np.concatenate([np.empty(0, np.int8), *classes]).astype(np.int8)
    tables = column_tables(
        TaskStore,
        {
            "content": contents,
            "split_number_N": np.array([SPLITS.index(split) for split in splits]),
            "target_N": np.array(targets),
            "classes": pa.LargeListArray.from_arrays(pa.array(bounds), pa.array(class_T)),
            "class_names": class_names,
            "count_by_word": count_by_word,
        },
    )
    counts = {"rows": len(contents)} | {f"{split}_rows": splits.count(split) for split in SPLITS}
    return draft.commit(TaskStore, tables, counts | {"classes": len(class_names)}, provenance)


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
        drawn_B = shuffled_epochs(
            step * batch, batch, num_rows=len(train), seed=self.seed, name="rows"
        )
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
