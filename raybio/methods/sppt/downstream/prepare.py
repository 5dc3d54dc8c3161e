"""Preparation of a task: examples of its files -> quarantine -> dev split -> store."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from raybio.core.errors import DataError
from raybio.core.text import cut_text, first_names
from raybio.methods.sppt.downstream.config import TASKS, TEST_SHARE, DownstreamTask
from raybio.methods.sppt.downstream.formats.example import UNKNOWN, Example
from raybio.methods.sppt.downstream.store import (
    IGNORED,
    TaskStore,
    commit_task,
    content_keys,
)
from raybio.methods.sppt.proteins.formats.residues import LETTERS
from raybio.store.preparation import preparing
from raybio.store.quarantine import Quarantine
from raybio.store.store import SPLITS

DRAWN = "rows_with_drawn_split"
"""Entry of a manifest: rows whose split no file states."""

MAX_TAGS = 128
"""Classes of residues; a store has one byte a residue."""

NO_LABEL = "row without a label"
"""Reason to skip a row of a task with one class a row."""

SPLIT_SEED = 0
"""Seed of the choice of dev and test rows, so that equal files give equal stores."""


VECTORS = (("0", "1"), ("0.0", "1.0"), ("False", "True"))
"""Items of lists that have a number for each class, in place of names."""


def prepare_task(
    out: str | Path, name: str, files: Sequence[Path], examples: Iterator[Example]
) -> TaskStore:
    """Write a task's examples into a store. Classes are numbered in alphabetical order.

    Args:
        out: folder of the store.
        name: one of ``TASKS``.
        files: source files of the examples.
        examples: as ``read_task_files`` returns them.

    Raises:
        DataError: if a file is missing or damaged, too many rows are bad, or a split is empty.
        StoreError: if the store cannot be written.
    """
    task = TASKS[name]
    with preparing(out, {"files": files}, {"task": name}) as new:
        rows = [example for example in examples if _is_valid(example, task, new.quarantine)]
        new.quarantine.check("row", _advice(task, new.quarantine), has_option=False)
        num_drawn = sum(not row.split for row in rows)
        keys = content_keys([row.content for row in rows], on_texts=task.on_texts)
        rows = _with_dev(_with_drawn_splits(rows, keys), keys, task.dev_share)
        for split in SPLITS:
            if not any(row.split == split for row in rows):
                raise DataError(
                    f"{files[0]}: the task has no {split} rows, want some; are all of its files "
                    "there?"
                )
        names = _class_names(rows, task)
        if task.labels != "number" and len(names) < 2:
            raise DataError(
                f"{files[0]}: has {len(names)} classes ({', '.join(names)}), want two at least"
            )
        if task.labels == "class_set" and tuple(names) in VECTORS:
            raise DataError(
                f"{files[0]}: all labels are {names[0]} and {names[1]}, as in a list of whether a "
                "row has each class; want the names of its classes, such as 'a;b'"
            )
        number_by_label = {label: number for number, label in enumerate(names)} | {"": IGNORED}
        if task.labels == "residues" and len(names) > MAX_TAGS:
            raise DataError(
                f"{files[0]}: has {len(names)} tags ({first_names(names, 3)}), want at most "
                f"{MAX_TAGS}"
            )
        return commit_task(
            new.draft,
            contents=[row.content.encode() for row in rows],
            splits=[row.split for row in rows],
            targets=[_target(row, task, number_by_label) for row in rows],
            classes=[_classes(row, task, number_by_label) for row in rows],
            class_names=names,
            with_words=task.on_texts,
            provenance=new.provenance() | ({DRAWN: num_drawn} if num_drawn else {}),
        )


def _is_valid(example: Example, task: DownstreamTask, quarantine: Quarantine) -> bool:
    quarantine.saw("row", 1)
    reason = _defect(example, task)
    if reason:
        quarantine.add("row", reason, example.file, example.line, cut_text(example.content, 40))
    return not reason


def _defect(example: Example, task: DownstreamTask) -> str:
    """Return the reason to skip an example, "" for a valid one."""
    if not example.content.strip():
        return "row without a text" if task.on_texts else "row without a sequence"
    if not task.on_texts and "*" in example.content:
        return "stop symbol '*' in the sequence"
    if not task.on_texts and set(example.content.encode()) - set(LETTERS):
        return "letter that is not an amino acid"
    if task.labels == "residues" and len(example.label) != len(example.content):  # type: ignore[arg-type]
        return "other number of labels than residues"
    if task.labels == "residues" and UNKNOWN in example.label:  # type: ignore[operator]
        return "residue with a label that is none"
    if task.labels == "class" and not example.label:
        return NO_LABEL
    if task.labels == "number" and not np.isfinite(float(example.label)):  # type: ignore[arg-type]
        return "label that is no finite number"
    return ""


def _advice(task: DownstreamTask, quarantine: Quarantine) -> str:
    """Return the task that takes rows without a label, if there are such rows; else ""."""
    if not quarantine.count_by_reason[NO_LABEL]:
        return ""
    other = "text_multilabel" if task.on_texts else "protein_multilabel"
    return f"Rows with several labels, or none, are for the task {other}"


def _with_drawn_splits(rows: list[Example], keys: list[str]) -> list[Example]:
    """Return the rows with those without a split drawn into dev, test and training.

    Rows of equal keys get the same split. A content with more rows than test, such as the wild
    type, is in training if there are enough others.
    """
    rows_by_key: dict[str, list[int]] = {}
    for index, row in enumerate(rows):
        if not row.split:
            rows_by_key.setdefault(keys[index], []).append(index)
    if not rows_by_key:
        return rows
    candidates, _ = _without_frequent(list(rows_by_key.values()), TEST_SHARE)
    # The draw does not depend on the order of the rows.
    candidates = sorted(candidates, key=lambda same: min(rows[index].content for index in same))
    drawn = np.random.default_rng(SPLIT_SEED).permutation(len(candidates)).tolist()
    num_test = max(1, round(TEST_SHARE * len(candidates)))
    split_by_key = dict.fromkeys(rows_by_key, "train")
    for position, index in enumerate(drawn[: 2 * num_test]):
        key = keys[candidates[index][0]]
        split_by_key[key] = "test" if position < num_test else "dev"
    return [
        row if row.split else row._replace(split=split_by_key[key])
        for row, key in zip(rows, keys, strict=True)
    ]


def _with_dev(rows: list[Example], keys: list[str], share: float) -> list[Example]:
    """Return the rows with a share of training moved to dev, unless there are dev rows.

    Rows of equal keys stay together: dev chooses weights, which may have memorized training.
    Rows of a single content, such as the wild type, cannot choose weights: a content with more rows
    than dev stays in training, and enough others are drawn that none has more than half of dev. If
    there are too few contents for both, at most half of them are drawn.
    """
    if any(row.split == "dev" for row in rows):
        return rows
    train = [index for index, row in enumerate(rows) if row.split == "train"]
    rows_by_key: dict[str, list[int]] = {}
    for index in train:
        rows_by_key.setdefault(keys[index], []).append(index)
    candidates, num_wanted = _without_frequent(list(rows_by_key.values()), share)
    drawn: set[int] = set()
    order = np.random.default_rng(SPLIT_SEED).permutation(len(candidates)).tolist()
    num_largest = 0
    for num_contents, position in enumerate(order):
        is_mixed = (
            num_largest <= 1 or 2 * num_largest <= len(drawn) or 2 * (num_contents + 1) > len(order)
        )
        if len(drawn) >= num_wanted and is_mixed:
            break
        drawn.update(candidates[position])
        num_largest = max(num_largest, len(candidates[position]))
    return [row._replace(split="dev") if index in drawn else row for index, row in enumerate(rows)]


def _without_frequent(candidates: list[list[int]], share: float) -> tuple[list[list[int]], int]:
    """Return the contents with at most the wanted number of rows, and that number.

    Several frequent contents are excluded only if the others hold that share of all rows: otherwise
    the few contents that do not repeat would split a table in which most do.

    Args:
        candidates: the rows of each content.
        share: wanted fraction of the rows that are returned.
    """
    num_contents = len(candidates)
    num_enough = share * sum(map(len, candidates))
    while True:
        num_wanted = max(1, round(share * sum(map(len, candidates))))
        small = [same for same in candidates if len(same) <= num_wanted]
        is_enough = len(small) == num_contents - 1 or sum(map(len, small)) >= num_enough
        if not small or len(small) == len(candidates) or not is_enough:
            return candidates, num_wanted
        candidates = small


def _class_names(rows: list[Example], task: DownstreamTask) -> list[str]:
    """Return the classes of all splits, also those without a training row."""
    if task.labels == "number":
        return []
    if task.labels == "class":
        return sorted({str(row.label) for row in rows})
    names: set[str] = set()
    for row in rows:
        names.update(label for label in row.label if label)  # type: ignore[union-attr]
    return sorted(names)


def _target(row: Example, task: DownstreamTask, number_by_label: dict[str, int]) -> float:
    """Return the class or number of a row, 0 in a task on residues or sets of classes."""
    if task.labels == "class":
        return number_by_label[str(row.label)]
    return float(row.label) if task.labels == "number" else 0.0  # type: ignore[arg-type]


def _classes(row: Example, task: DownstreamTask, number_by_label: dict[str, int]) -> np.ndarray:
    """Return the class of each residue, or the set of classes of a row; empty in other tasks."""
    if task.labels not in ("residues", "class_set"):
        return np.array([], np.int8)
    # There are thousands of GO terms.
    dtype = np.int32 if task.labels == "class_set" else np.int8
    return np.array([number_by_label[label] for label in row.label], dtype)  # type: ignore[union-attr]
