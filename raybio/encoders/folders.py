"""Folders that appear whole or not at all."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder that becomes ``path`` when the block ends well; an older ``path`` is replaced.

    After an error or a kill, ``path`` is what it was before (at worst, for an instant between two renames, absent with
    its old content beside it).

    Raises:
        FileExistsError: if ``path`` is a file.
    """
    if path.exists() and not path.is_dir():
        raise FileExistsError(f"{path} is a file; want a folder's path. Remove it or choose another one.")
    path.parent.mkdir(parents=True, exist_ok=True)
    workshop = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        fresh = workshop / "new"
        fresh.mkdir()
        yield fresh
        _sync(fresh)
        if path.exists():
            path.rename(workshop / "old")
        fresh.rename(path)
    finally:
        shutil.rmtree(workshop, ignore_errors=True)


def _sync(folder: Path) -> None:
    """Force files to disk, so that a rename is not seen before what it names."""
    for file in [*folder.rglob("*"), folder]:
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
