"""Folders that are written to: checked beforehand, and such as appear whole or not at all."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from raybio.errors import ConfigError


def demand_folder(path: Path, option: str = "--out") -> None:
    """Refuse a path at which no folder is and none can be made, before hours go into what is to be written there.

    Raises:
        ConfigError: with the option that named it.
    """
    there = next(one for one in (path, *path.absolute().parents) if one.exists())
    if not there.is_dir():
        what = "is a file" if there == path else f"{there} is a file"
        raise ConfigError(f"{option} {path}: {what}; want a folder, which may be there or not")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(f"{option} {path}: {there} cannot be written; choose another folder")


def demand_file(path: Path, option: str = "--out") -> None:
    """Refuse a path at which no file can be written.

    Raises:
        ConfigError: with the option that named it.
    """
    if path.is_dir():
        raise ConfigError(f"{option} {path}: is a folder; want a file, which may be there or not")
    demand_folder(path.absolute().parent, option)


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
        _take_the_place_of(path, fresh, workshop / "old")
    finally:
        shutil.rmtree(workshop, ignore_errors=True)


def _take_the_place_of(path: Path, fresh: Path, aside: Path) -> None:
    if not path.exists():
        fresh.rename(path)
        return
    path.rename(aside)
    try:
        fresh.rename(path)
    except OSError:
        aside.rename(path)
        raise


def _sync(folder: Path) -> None:
    """Force files to disk, so that a rename is not seen before what it names."""
    for file in [*folder.rglob("*"), folder]:
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
