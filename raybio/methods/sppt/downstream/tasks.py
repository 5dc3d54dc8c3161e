"""The downstream tasks of SPPT (facts §5.2): what is read, what is told, and by which score."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from pydantic import Field

from raybio.core.config import BaseConfig
from raybio.core.errors import DataError
from raybio.methods.sppt.downstream.config import TASKS, Task
from raybio.methods.sppt.downstream.store import IGNORED, SPLITS, TaskStore, commit_task
from raybio.methods.sppt.proteins.formats.residues import LETTERS
from raybio.store.quarantine import Quarantine
from raybio.store.sources import check_readable_files, describe_files
from raybio.store.writer import Draft

UNKNOWN = "?"
"""Label of a residue that a reader does not know; such rows are set aside."""


class Example(NamedTuple):
    """One row of a source.

    Attributes:
        content: residues or text.
        split: one of ``SPLITS``.
        label: class, number, or the class of each residue with "" where nothing is known.
        file: where it stands.
        line: which line or record of it, from 1.
    """

    content: str
    split: str
    label: str | float | Sequence[str]
    file: str
    line: int


class TaskConfig(BaseConfig):
    """How a task's files become a store."""

    dev_share: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="share of the training rows that become dev, without any; null: the task's own",
    )
    seed: int = Field(0, ge=0, description="which they are")
    max_bad_share: float = Field(
        0.1, ge=0, le=1, description="share of bad rows beyond which the input is refused"
    )


def prepare_task(
    out: str | Path,
    name: str,
    files: Sequence[Path],
    examples: Iterator[Example],
    config: TaskConfig | None = None,
    *,
    force: bool = False,
) -> TaskStore:
    """Write a task's examples into a store; classes are numbered by the alphabet.

    Args:
        out: folder of the store.
        name: one of ``TASKS``.
        files: where the examples come from.
        examples: what a reader of ``task_files`` yields.
        config: settings; their defaults if None.
        force: replace a store that is there already.

    Raises:
        DataError: if a file is missing or damaged, too many rows are bad, or training or test rows are missing.
        StoreError: if the store cannot be written.
    """
    config, task = config or TaskConfig(), TASKS[name]
    quarantine = Quarantine(config.max_bad_share)
    check_readable_files(files)
    with Draft(out, force=force) as draft:
        good = [one for one in examples if _is_good(one, task, quarantine)]
        quarantine.check("row")
        good = _with_dev(good, config.dev_share or task.dev_share, config.seed)
        for split in SPLITS:
            if not any(one.split == split for one in good):
                raise DataError(
                    f"{files[0]}: the task has no {split} rows, want some; are all of its files there?"
                )
        names = _class_names(good, task)
        if task.labels != "number" and len(names) < 2:
            raise DataError(
                f"{files[0]}: has {len(names)} classes ({', '.join(names)}), want two at least"
            )
        number = {label: place for place, label in enumerate(names)} | {"": IGNORED}
        is_class, is_residues = task.labels == "class", task.labels == "residues"
        provenance = {
            "sources": {"files": describe_files(list(files))},
            "parameters": config.to_mapping() | {"task": name},
            "quarantine": quarantine.summary(),
        }
        return commit_task(
            draft,
            contents=[one.content.encode() for one in good],
            splits=[one.split for one in good],
            targets=[
                number[one.label] if is_class else 0.0 if is_residues else float(one.label)
                for one in good
            ],  # type: ignore[arg-type,index]
            classes=[
                np.array([number[label] for label in one.label] if is_residues else [], np.int8)  # type: ignore[union-attr]
                for one in good
            ],
            class_names=names,
            with_words=task.on_texts,
            provenance=provenance,
        )


def _is_good(one: Example, task: Task, quarantine: Quarantine) -> bool:
    quarantine.saw("row", 1)
    reason = _what_is_wrong(one, task)
    if reason:
        quarantine.add("row", reason, one.file, one.line, one.content[:40])
    return not reason


def _what_is_wrong(one: Example, task: Task) -> str:
    if not one.content.strip():
        return "row without a text" if task.on_texts else "row without a sequence"
    if not task.on_texts and "*" in one.content:
        return "sequence with a stop codon"
    if not task.on_texts and set(one.content.encode()) - set(LETTERS):
        return "letter that is not an amino acid"
    if task.labels == "residues" and len(one.label) != len(one.content):  # type: ignore[arg-type]
        return "other number of labels than residues"
    if task.labels == "residues" and UNKNOWN in one.label:  # type: ignore[operator]
        return "residue with a label that is none"
    if task.labels == "class" and not one.label:
        return "row without a label"
    if task.labels == "number" and not np.isfinite(float(one.label)):  # type: ignore[arg-type]
        return "label that is no finite number"
    return ""


def _with_dev(good: list[Example], share: float, seed: int) -> list[Example]:
    """A part of the training rows is dev where the files have none."""
    if any(one.split == "dev" for one in good):
        return good
    train = [place for place, one in enumerate(good) if one.split == "train"]
    rng = np.random.default_rng(seed)
    drawn = set(rng.permutation(train)[: max(1, round(share * len(train)))].tolist())
    return [one._replace(split="dev") if place in drawn else one for place, one in enumerate(good)]


def _class_names(good: list[Example], task: Task) -> list[str]:
    if task.labels == "number":
        return []
    # Those of all splits: what training never shows is told wrong, and counts.
    if task.labels == "class":
        return sorted({str(one.label) for one in good})
    return sorted({label for one in good for label in one.label if label})  # type: ignore[union-attr]
