"""Source files: checked, opened plain or gzip, read line by line, and described for manifests."""

import gzip
import os
import zlib
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, AnyStr, cast

from raybio.core.digest import json_digest, sha256_of
from raybio.core.errors import DataError
from raybio.store.data_sets import table_files

GZIP_MAGIC = b"\x1f\x8b"

MAX_LINE_LENGTH = 1 << 24
"""Maximum length of a line, in bytes or characters. A longer line indicates a damaged file."""

MAX_WHOLE_BYTES = 256 << 20
"""Maximum unpacked size of a file, or of a file in an archive, that is read as a whole."""


def plain_or_gzip(path: Path) -> Path:
    """Return ``path``, or ``path`` with ``.gz`` appended if only that exists."""
    zipped = path.parent / f"{path.name}.gz"
    # ``os.path.isfile`` returns False for names that are too long for the disk.
    return zipped if os.path.isfile(zipped) and not os.path.isfile(path) else path


@contextmanager
def open_source(path: Path, wanted: str) -> Iterator[IO[bytes]]:
    """Open a file for reading bytes, in a ``with`` block.

    Gzip is recognized by its content. A byte order mark at the beginning is skipped.

    Args:
        path: the file.
        wanted: what it should be, for errors: "a FASTA file".

    Raises:
        DataError: if there is no such file. Raised inside the block if the file cannot be read, or
            is a truncated or damaged gzip, which shows at its end.
    """
    try:
        # Opening a pipe would block.
        if not path.is_file():
            raise DataError(f"{path}: cannot be read (there is no such file), want {wanted}")
        with path.open("rb") as raw:
            is_gzip = raw.read(2) == GZIP_MAGIC
            raw.seek(0)
            with cast(IO[bytes], gzip.open(raw)) if is_gzip else raw as file:
                if file.read(len(BOM_UTF8)) != BOM_UTF8:
                    file.seek(0)
                yield file
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(
            f"{path}: the gzip stream is torn or damaged ({error}). Fetch the file again."
        ) from None
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror or error}), want {wanted}"
        ) from None


def begins_with(path: Path, character: bytes, wanted: str) -> bool:
    """Return whether the first character of a file that is no white space is ``character``.

    Args:
        path: the file, plain or gzip.
        character: a single byte, such as the ``b">"`` of FASTA.
        wanted: what the file should be, for errors: "a FASTA file".

    Raises:
        DataError: as ``open_source``.
    """
    with open_source(path, wanted) as file:
        while block := file.read(1 << 12):
            if content := block.lstrip():
                return content.startswith(character)
    return False


def read_whole(file: IO[bytes], name: str) -> bytes:
    """Return the content of an open file; its unpacked size is limited.

    Args:
        file: the file, or a member of an archive.
        name: its name in errors.

    Raises:
        DataError: if it has more than ``MAX_WHOLE_BYTES``; unpacking stops there.
    """
    content = file.read(MAX_WHOLE_BYTES + 1)
    if len(content) > MAX_WHOLE_BYTES:
        raise DataError(
            f"{name}: has more than {MAX_WHOLE_BYTES:,} bytes, which are read as a whole. Fetch "
            "the file again, or split it"
        )
    return content


def bounded_lines(file: IO[AnyStr], path: Path) -> Iterator[AnyStr]:
    """Yield the lines of an open file, with line ends, in bounded memory.

    Raises:
        DataError: naming a line that is longer than ``MAX_LINE_LENGTH``.
    """
    number = 0
    while line := file.readline(MAX_LINE_LENGTH + 1):
        number += 1
        if len(line) > MAX_LINE_LENGTH:
            raise DataError(
                f"{path}: line {number} is longer than {MAX_LINE_LENGTH >> 20} MiB, want one "
                "record a line. Split the line, or remove it"
            )
        yield line


def read_lines(path: Path, wanted: str) -> Iterator[str]:
    """Yield the lines of a UTF-8 file, with line ends and without a byte order mark.

    Args:
        path: the file, plain or gzip.
        wanted: what it should be, for errors: "a FASTA file".

    Raises:
        DataError: as ``open_source`` and ``bounded_lines``, and naming a line that is not UTF-8.
    """
    number = 0
    try:
        with open_source(path, wanted) as file:
            for line in bounded_lines(file, path):
                number += 1
                yield line.decode()
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: line {number} is not UTF-8 ({error.reason}); convert the file, for instance "
            "with iconv"
        ) from None


def check_readable_files(files: Iterable[Path]) -> None:
    """Refuse paths that are no regular files and no folders of tables, before anything is read.

    Raises:
        DataError: naming the first such path.
    """
    for file in (file for path in files for file in table_files(path)):
        if os.path.isfile(file):
            continue
        problem = "does not exist"
        if os.path.isdir(file):
            problem = f"is a folder; give its files, such as '{file}/*'"
        elif os.path.exists(file):
            problem = "is a pipe or a device, but is read twice; write it into a file first"
        raise DataError(f"{file}: {problem}")


def describe_files(files: list[Path]) -> dict[str, Any]:
    """Return name, size and sha256 of an input; several files share the sha256 of their digests.

    A folder of tables stands for its files.
    """
    files = [file for path in files for file in table_files(path)]
    digests = [(file.name, sha256_of(file)) for file in files]
    total = sum(file.stat().st_size for file in files)
    if len(files) == 1:
        return {"name": files[0].name, "bytes": total, "sha256": digests[0][1]}
    combined = json_digest(sorted(digests))
    return {
        "name": files[0].parent.name if files else "",
        "files": len(files),
        "bytes": total,
        "sha256": combined,
    }
