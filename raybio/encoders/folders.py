"""Folders that appear whole or not at all, and the commands that convert one into another."""

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from raybio.errors import DataError


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


def convert_command(convert: Callable[[str, str], Path], arguments: Sequence[str]) -> str | None:
    """The command ``[program, source, output]``: convert a folder; returns what went wrong, if anything did."""
    program, *places = arguments
    if len(places) != 2:
        return f"usage: python -m raybio.encoders.{Path(program).stem} SOURCE_FOLDER OUTPUT_FOLDER"
    try:
        sys.stdout.write(f"{convert(*places)}\n")
    except (DataError, OSError) as error:
        return f"error: {error}"
    return None


def _sync(folder: Path) -> None:
    """Force files to disk, so that a rename is not seen before what it names."""
    for file in [*folder.rglob("*"), folder]:
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
