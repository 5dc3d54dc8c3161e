"""Reader of SciBERT's text classification tasks: one JSON object a line, one file a split."""

import json
from collections.abc import Iterator
from pathlib import Path

from raybio.core.errors import DataError
from raybio.methods.sppt.downstream.formats.example import Example, TaskFiles, existing
from raybio.store.sources import read_lines

FILE_NAMES = {"train": "train.txt", "dev": "dev.txt", "test": "test.txt"}

TABLE_HEADER = ("tokens", "category")
"""Text and label of a header row that the paper-field files contain as data."""


def read_scibert(source: Path) -> TaskFiles | None:
    """Return the examples of ``train.txt``, ``dev.txt`` and ``test.txt``, None without them."""
    path_by_split = {}
    for split, name in FILE_NAMES.items():
        path = existing(source / name)
        if path is not None:
            path_by_split[split] = path
    if not path_by_split:
        return None
    return TaskFiles(list(path_by_split.values()), _examples(path_by_split))


def _examples(path_by_split: dict[str, Path]) -> Iterator[Example]:
    for split, path in path_by_split.items():
        for number, line in enumerate(read_lines(path, "a JSON object a line"), start=1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
                text = record["text"]
                label = record["label"]
            except (ValueError, KeyError, TypeError, RecursionError):
                raise DataError(
                    f"{path}, line {number}: want an object with text and label"
                ) from None
            if (text, label) != TABLE_HEADER:
                yield Example(str(text), split, str(label), path.name, number)
