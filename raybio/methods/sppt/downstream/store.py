"""Store of a supervised task: proteins or texts with their labels and splits.

Shape letters: N rows, R some of them, T residues or bytes of all rows, concatenated, C classes, K
classes of all rows, concatenated.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from raybio.methods.sppt.downstream.config import TASKS
from raybio.ops.segments import entries_of_rows
from raybio.store.columns import ArrowColumn, NumberColumn, TextColumn, column_tables
from raybio.store.prefetch import byte_lengths, take_rows
from raybio.store.ragged import Ragged
from raybio.store.store import SPLITS, Store
from raybio.store.text_keys import text_keys
from raybio.store.word_counts import WordCounts, count_words
from raybio.store.writer import Draft

ROWS = "rows.arrow"
CLASSES = "classes.arrow"
WORDS = "words.arrow"

IGNORED = -1
"""Class of a residue without a label."""


class TaskStore(Store):
    """An open store of labeled sequences."""

    kind = "task"

    content = ArrowColumn(ROWS, "content", pa.large_binary())
    """Residues or UTF-8 text of each row."""

    split_number_N = NumberColumn(ROWS, "split", np.int8)
    """Index of each row's split in ``SPLITS``."""

    target_N = NumberColumn(ROWS, "target", np.float64)
    """Class or number of each row; zeros in a task on residues or sets of classes."""

    classes = ArrowColumn(ROWS, "classes")
    """Class of each residue of each row, int8, or the set of classes of each row, int32; empty in
    other tasks."""

    class_names = TextColumn(CLASSES, "name")
    """Names of the classes; none in a regression task."""

    count_by_word = WordCounts(WORDS)
    """Counts of the most frequent words; none in a task on proteins."""

    @property
    def task(self) -> str:
        """Name of the task, one of ``TASKS``."""
        return str(self.manifest["parameters"]["task"])

    @cached_property
    def residue_T(self) -> np.ndarray:
        """Residues of all rows, concatenated, uint8; in a task on texts their bytes."""
        return self._content.value_T

    @cached_property
    def indptr_N1(self) -> np.ndarray:
        """Row n is ``residue_T[indptr_N1[n] : indptr_N1[n + 1]]``."""
        return self._content.indptr_N1

    def texts(self, row_R: np.ndarray) -> list[str]:
        """Return the texts or sequences of these rows."""
        return [text.decode() for text in take_rows(self.content, row_R).to_pylist()]

    def text_lengths(self, row_R: np.ndarray) -> np.ndarray:
        """Return the bytes of these rows' texts (R,)."""
        return byte_lengths(self.content, row_R)

    def targets(self, row_R: np.ndarray) -> np.ndarray:
        """Return the class (R,), int64, or the number (R,), float64, of each of these rows.

        In a task on sets of classes: whether each row has each class (R, C), bool.
        """
        labels = TASKS[self.task].labels
        if labels == "class_set":
            entry_K, number_K = entries_of_rows(self.classes.offsets.to_numpy(), row_R)
            class_K = self.classes.values.to_numpy(zero_copy_only=True)[entry_K]
            has_class_RC = np.zeros((len(row_R), len(self.class_names)), bool)
            has_class_RC[number_K, class_K] = True
            return has_class_RC
        target_R = self.target_N[row_R]
        return target_R.astype(np.int64) if labels == "class" else target_R

    def residue_classes(self, row_R: np.ndarray) -> np.ndarray:
        """Return the classes of all labeled residues of these rows, int64, concatenated."""
        entry_K, _ = entries_of_rows(self.indptr_N1, row_R)
        class_K = self.class_T[entry_K].astype(np.int64)
        return class_K[class_K != IGNORED]

    def split_rows(self, split: str) -> np.ndarray:
        """Return the rows of one of ``SPLITS``, ascending."""
        return np.flatnonzero(self.split_number_N == SPLITS.index(split))

    def known_from_training(self) -> dict[str, int]:
        """Return by evaluation split the number of rows whose content is in training too."""
        return {
            split: len(self.split_rows(split)) - len(self.new_rows(split))
            for split in ("dev", "test")
        }

    def new_rows(self, split: str) -> np.ndarray:
        """Return the rows of a split whose content no training row has, see ``content_keys``."""
        training = set(self._keys(self.split_rows("train")))
        row_S = self.split_rows(split)
        return row_S[[key not in training for key in self._keys(row_S)]]

    def classes_absent_from_training(self) -> dict[str, list[str]]:
        """Return by evaluation split the classes without a training row, if there are any.

        Tasks on numbers or residues have none.
        """
        if not self._has_classes:
            return {}
        training = self._classes_of(self.split_rows("train"))
        names_by_split = {}
        for split in ("dev", "test"):
            absent = np.setdiff1d(self._classes_of(self.split_rows(split)), training)
            if len(absent):
                names_by_split[split] = [self.class_names[number] for number in absent]
        return names_by_split

    def rare_classes(self) -> list[str]:
        """Return the classes with a single training row.

        Tasks on numbers or residues have none.
        """
        if not self._has_classes:
            return []
        target = self.targets(self.split_rows("train"))
        if target.ndim == 1:
            num_rows_C = np.bincount(target.astype(np.int64), minlength=len(self.class_names))
        else:
            num_rows_C = (target > 0).sum(axis=0)
        return [self.class_names[number] for number in np.flatnonzero(num_rows_C == 1)]

    def similar_classes(self) -> list[list[str]]:
        """Return groups of classes whose names differ only in case or outer blanks.

        Tasks on numbers or residues have none.
        """
        if not self._has_classes:
            return []
        names_by_plain: dict[str, list[str]] = {}
        for name in self.class_names:
            names_by_plain.setdefault(name.strip().casefold(), []).append(name)
        return [names for names in names_by_plain.values() if len(names) > 1]

    def _keys(self, row_R: np.ndarray) -> list[str]:
        return content_keys(self.texts(row_R), on_texts=TASKS[self.task].on_texts)

    @property
    def _has_classes(self) -> bool:
        return TASKS[self.task].labels in ("class", "class_set")

    def _classes_of(self, row_R: np.ndarray) -> np.ndarray:
        """Return the numbers of the classes that some of these rows have."""
        target = self.targets(row_R)
        return np.unique(target) if target.ndim == 1 else np.flatnonzero(target.any(axis=0))

    @cached_property
    def class_T(self) -> np.ndarray:
        """Class of each residue, int8, ``IGNORED`` without a label; of a task on residues."""
        return self.classes.values.to_numpy(zero_copy_only=True)

    @cached_property
    def _content(self) -> Ragged:
        return Ragged.of(self.content)


def content_keys(contents: Sequence[str], *, on_texts: bool) -> list[str]:
    """Return keys of contents, equal for copies.

    Texts are copies if they differ in case, spaces and punctuation only; proteins if they are
    equal.
    """
    if not on_texts:
        return list(contents)
    # Texts without a letter or digit have the key 0, but are no copies of each other.
    return [
        str(key) if key else content
        for key, content in zip(text_keys(contents).tolist(), contents, strict=True)
    ]


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
    """Write and commit the store of a task, and return it open.

    Args:
        draft: the store to be written.
        contents: residues or text of each row.
        splits: one of ``SPLITS`` for each row.
        targets: class or number of each row.
        classes: class of each residue of each row, int8, or the set of classes of each row, int32;
            empty arrays in other tasks.
        class_names: names of the classes.
        with_words: whether rows are texts, whose words are counted and whose copies are found.
        provenance: what the manifest records of the input.

    Raises:
        StoreError: if the store cannot be written.
    """
    count_by_word = count_words(content.decode() for content in contents) if with_words else {}
    bounds = np.cumsum([0, *map(len, classes)], dtype=np.int64)
    tables = column_tables(
        TaskStore,
        {
            "content": contents,
            "split_number_N": np.array([SPLITS.index(split) for split in splits]),
            "target_N": np.array(targets),
            "classes": pa.LargeListArray.from_arrays(
                pa.array(bounds), pa.array(np.concatenate(classes))
            ),
            "class_names": class_names,
            "count_by_word": count_by_word,
        },
    )
    keys = content_keys([content.decode() for content in contents], on_texts=with_words)
    training = {key for key, split in zip(keys, splits, strict=True) if split == "train"}
    leakage = {}
    for name in ("dev", "test"):
        known = [key in training for key, split in zip(keys, splits, strict=True) if split == name]
        leakage[f"{name}_rows_in_training"] = sum(known)
    provenance = provenance | {"leakage": leakage}
    counts = {"rows": len(contents)} | {f"{split}_rows": splits.count(split) for split in SPLITS}
    return draft.commit(TaskStore, tables, counts | {"classes": len(class_names)}, provenance)
