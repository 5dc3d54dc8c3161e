"""Folders of the library ``datasets``, as tables in several files, and the names of tables.

corpus/state.json, dataset_info.json, data-00000-of-00002.arrow, ...    save_to_disk
corpus/dataset_dict.json, train/state.json, test/state.json, ...        of several splits
corpus/train-00000-of-00002.parquet, ... (or in corpus/data)            the hub
"""

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from raybio.core.errors import DataError

PARQUET = ".parquet"
ARROW = ".arrow"
TSV = ".tsv"
JSON_LINES = ".jsonl"
SUFFIXES = (TSV, ".csv", JSON_LINES, PARQUET, ARROW)

_SHARD = re.compile(r"-(\d{5})-of-(\d{5})(?!\d)")
"""Matches number and count in ``train-00000-of-00002.parquet``."""

STATE = "state.json"
"""File in a folder that ``save_to_disk`` wrote; it names the Arrow files."""

DATASET_DICT = "dataset_dict.json"
"""File in a folder with several such folders, one per split."""


def suffix_of(path: Path) -> str:
    """Return the suffix of a file's name in lower case, without ``.gz``."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def is_folder(path: Path) -> bool:
    """Return whether there is such a folder; a name that is too long for the disk gives False."""
    return os.path.isdir(path)


def is_table(path: Path) -> bool:
    """Return whether a name says that a file is a table with named columns, or a folder is one."""
    return _is_dataset(path) if is_folder(path) else suffix_of(path) in SUFFIXES


def table_files(path: Path) -> list[Path]:
    """Return the files of a data set's folder in order; of any other path itself.

    A folder is a data set if ``save_to_disk`` wrote it, or if it or its folder ``data`` holds the
    files of one split: ``train-00000-of-00002.parquet``, or other tables with numbered names.

    Raises:
        DataError: if the folder has several splits, or not all files of one.
    """
    if not is_folder(path) or not _is_dataset(path):
        return [path]
    if (path / STATE).is_file():
        state = _read_json(path / STATE)
        try:
            files = [path / file["filename"] for file in state["_data_files"]]
        except (KeyError, TypeError):
            raise DataError(f"{path / STATE}: names no files; write the data set again") from None
        missing = [file.name for file in files if not os.path.isfile(file)]
        if missing:
            raise DataError(
                f"{path}/{missing[0]:.60}: cannot be read (there is no such file); {STATE} names "
                "it. Write the data set again"
            )
        return files
    if (path / DATASET_DICT).is_file():
        splits = sorted(each.parent.name for each in path.glob(f"*/{STATE}"))
        raise DataError(
            f"{path}: has the splits {', '.join(splits) or 'of no folder'}; want the folder of one"
        )
    files = _tables_in(path)
    splits = sorted({re.sub(r"[-_.]?\d+.*$", "", file.name.split(".")[0]) for file in files})
    if len(splits) > 1:
        raise DataError(
            f"{path}: holds the tables {', '.join(splits)}; want one: give its files, or a folder "
            "of its own"
        )
    check_shards(path, files)
    return files


def check_shards(folder: Path, files: Sequence[Path]) -> None:
    """Refuse a split with missing files, or with files in two formats.

    Raises:
        DataError: naming them.
    """
    file_by_stem: dict[str, Path] = {}
    for file in files:
        stem = Path(file.name.lower().removesuffix(".gz")).stem
        other = file_by_stem.setdefault(stem, file)
        if other is not file:
            raise DataError(
                f"{folder}: holds {other.name} and {file.name}, whose rows would be read twice; "
                "keep one"
            )
    # A file with another name is a part of its own.
    shards_by_split: dict[tuple[str, int], list[tuple[str, Path]]] = {}
    for file in files:
        shard = _SHARD.search(file.name)
        if shard is not None:
            split = (file.name[: shard.start()], int(shard[2]))
            shards_by_split.setdefault(split, []).append((shard[1], file))
    for (_, count), shards in shards_by_split.items():
        num_found = len({number for number, _ in shards})
        first = shards[0][1].name
        if num_found < count:
            raise DataError(
                f"{folder}: holds {num_found} of the {count} files of {first}; fetch the others"
            )
        if len(shards) > count:
            raise DataError(
                f"{folder}: holds {len(shards)} files of {first}, more than its {count}; keep one "
                "of each number"
            )


def _is_dataset(path: Path) -> bool:
    known = (path / STATE, path / DATASET_DICT)
    return any(file.is_file() for file in known) or bool(_tables_in(path))


def _tables_in(folder: Path) -> list[Path]:
    """Return the files of tables in a folder, or in its folder ``data``, by name."""
    for candidate in (folder, folder / "data"):
        files = [path for path in sorted(candidate.glob("[!.]*")) if suffix_of(path) in SUFFIXES]
        if files:
            return files
    return []


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: cannot be read ({error}); write the data set again") from None
