"""Reader of TAPE's files (Rao et al. 2019): LMDB or JSON, one file a split."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from raybio.core.errors import DataError
from raybio.methods.sppt.downstream.config import TASKS
from raybio.methods.sppt.downstream.formats.example import (
    SS3,
    UNKNOWN,
    Example,
    TaskFiles,
    data_file,
    existing,
    named_errors,
)
from raybio.methods.sppt.downstream.formats.tape_lmdb import lmdb_records
from raybio.store.json import stream_records

LABEL_KEYS = {
    "remote_homology": "fold_label",
    "secondary_structure": "ss3",
    "stability": "stability_score",
    "fluorescence": "log_fluorescence",
}

FILE_ENDINGS = {
    "train": ("train",),
    "dev": ("valid",),
    "test": ("test", "test_fold_holdout", "cb513"),
}


def read_tape(name: str, source: Path) -> TaskFiles | None:
    """Return the examples of a folder with files such as ``remote_homology_train.lmdb``.

    Returns:
        None if there are no such files.

    Raises:
        DataError: if a split exists both as LMDB and as JSON.
    """
    path_by_split: dict[str, Path] = {}
    for split, endings in FILE_ENDINGS.items():
        for ending in endings:
            candidates = [existing(source / f"{name}_{ending}.{kind}") for kind in ("lmdb", "json")]
            paths = [path for path in candidates if path is not None]
            if len(paths) > 1:
                names = " and ".join(path.name for path in paths)
                raise DataError(f"{source}: has {names}; want one of them, since they may differ")
            if paths:
                path_by_split[split] = paths[0]
    if not path_by_split:
        return None
    files = [data_file(path) for path in path_by_split.values()]
    return TaskFiles(files, _examples(name, path_by_split))


def _examples(name: str, path_by_split: dict[str, Path]) -> Iterator[Example]:
    key = LABEL_KEYS[name]
    wanted = f"an object with primary and {key}, such as TAPE's"
    for split, path in path_by_split.items():
        for number, record in enumerate(_records(path), start=1):
            with named_errors(path, f"record {number}", wanted):
                sequence = str(record["primary"]).upper()
                label = _label(record[key], TASKS[name].labels)
            yield Example(sequence, split, label, path.name, number)


def _records(path: Path) -> Iterator[Any]:
    if path.suffix == ".lmdb":
        yield from lmdb_records(path)
    else:
        for _, record in stream_records(path):
            yield record


def _label(value: Any, labels: str) -> str | float | list[str]:
    if labels == "residues":
        return [SS3.get(state, UNKNOWN) for state in value]
    if labels == "number":
        return float(np.ravel(value)[0])  # a list of one number
    return str(value)
