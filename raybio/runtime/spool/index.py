"""Files of a spool, and the index of files that the bucket has."""

import os
from pathlib import Path
from typing import Any

from raybio.core.errors import RecordFormatError
from raybio.core.records import read_recomputable, write_record
from raybio.runtime.run.folder import RunFolder

INDEX = ".mirror.json"
CHECKPOINTS = "checkpoints"


def files_of(folder: RunFolder) -> list[Path]:
    """Return the files of a run except hidden ones and checkpoints.

    Raises:
        OSError: if a folder cannot be read, since its files must not count as missing.
    """
    paths = []
    for root, folders, names in os.walk(folder.path, onerror=_raise_unless_gone):
        top = Path(root)
        folders[:] = sorted(
            name for name in folders if not name.startswith(".") and name != CHECKPOINTS
        )
        paths += [top / name for name in sorted(names) if not name.startswith(".")]
    return paths


def _raise_unless_gone(error: OSError) -> None:
    # A folder may be removed between its own listing and that of its files.
    if not isinstance(error, FileNotFoundError):
        raise error


def is_checkpoint(name: str) -> bool:
    """Return whether a file, by its path below the spool, is one of a checkpoint."""
    return CHECKPOINTS in name.split("/")[:-1]


def state_of(path: Path) -> list[int]:
    """Return size, time and inode of a file, which change when it is written."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ino]


def read_index(folder: Path) -> dict[str, list[Any]]:
    """Return path below a spool -> state of the file, and version of its object."""
    try:
        content = read_recomputable(folder / INDEX, "mirror") or {}
    except RecordFormatError:
        content = {}  # of another version of raybio: everything is fetched again
    return dict(content.get("files", {}))


def write_index(folder: Path, index: dict[str, list[Any]]) -> None:
    """Write what ``read_index`` returns."""
    write_record(folder / INDEX, "mirror", {"files": index})
