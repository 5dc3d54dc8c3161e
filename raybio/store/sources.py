"""Opening source files for reading, plain or gzip."""

import gzip
import hashlib
import os
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, AnyStr, cast

from raybio.core.errors import DataError
from raybio.store.store import canonical_json, sha256_of

GZIP_MAGIC = b"\x1f\x8b"


MAX_LINE_LENGTH = 1 << 24
"""Of one record: bytes, or characters of a file that is open as text. A longer line is no record but a damaged file."""


def plain_or_gzip(path: Path) -> Path:
    """The file, or ``FILE.gz`` where that is there and the file is not."""
    zipped = path.with_name(f"{path.name}.gz")
    return zipped if zipped.is_file() and not path.is_file() else path


@contextmanager
def open_source(path: Path, wanted: str) -> Iterator[IO[bytes]]:
    """The bytes of a file for a ``with`` block; gzip is recognised by its content, whatever the file is called.

    Args:
        path: the file.
        wanted: what it should be, for errors: "a FASTA file".

    Raises:
        DataError: if there is no such file, and also from within the block: if it cannot be read, or is a torn or
            damaged gzip, which shows at its end.
    """
    try:
        # A pipe would be waited for.
        if not path.is_file():
            raise DataError(f"{path}: cannot be read (there is no such file), want {wanted}")
        with path.open("rb") as raw:
            is_gzip = raw.read(2) == GZIP_MAGIC
            raw.seek(0)
            with cast(IO[bytes], gzip.open(raw)) if is_gzip else raw as file:
                yield file
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(
            f"{path}: the gzip stream is torn or damaged ({error}). Fetch the file again."
        ) from None
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror or error}), want {wanted}"
        ) from None


def bounded_lines(file: IO[AnyStr], path: Path) -> Iterator[AnyStr]:
    """The lines of an open file with their ends, as iterating over it gives them, in bounded memory.

    Raises:
        DataError: with the number of a line that is longer than ``MAX_LINE_LENGTH``.
    """
    number = 0
    while line := file.readline(MAX_LINE_LENGTH + 1):
        number += 1
        if len(line) > MAX_LINE_LENGTH:
            raise DataError(
                f"{path}: line {number} is longer than {MAX_LINE_LENGTH >> 20} MiB, want one record a line. Split the "
                "line, or remove it"
            )
        yield line


def read_lines(path: Path, wanted: str) -> Iterator[str]:
    """The lines of a UTF-8 file with their ends, without a byte order mark; ``path`` and ``wanted`` as above.

    Raises:
        DataError: as ``open_source`` and ``bounded_lines``, and with the line if it is not UTF-8.
    """
    number = 0
    try:
        with open_source(path, wanted) as file:
            for number, line in enumerate(bounded_lines(file, path), start=1):
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: line {number} is not UTF-8 ({error.reason}); convert the file, for instance with iconv"
        ) from None


def check_readable_files(files: Iterable[Path]) -> None:
    """Refuse an input that is not there, before anything is read.

    Raises:
        DataError: naming the first one that is missing.
    """
    for file in files:
        if not os.path.isfile(file):
            what = "does not exist"
            if os.path.isdir(file):
                what = f"is a folder; give its files, such as '{file}/*'"
            elif os.path.exists(file):
                what = "is a pipe or a device, and is read twice; write it into a file first"
            raise DataError(f"{file}: {what}")


def describe_files(files: list[Path]) -> dict[str, Any]:
    """Name, size and sha256 of an input; of many files together, the sha256 of the list of theirs."""
    digests = [(file.name, sha256_of(file)) for file in files]
    total = sum(file.stat().st_size for file in files)
    if len(files) == 1:
        return {"name": files[0].name, "bytes": total, "sha256": digests[0][1]}
    combined = hashlib.sha256(canonical_json(sorted(digests))).hexdigest()
    return {
        "name": files[0].parent.name if files else "",
        "files": len(files),
        "bytes": total,
        "sha256": combined,
    }
