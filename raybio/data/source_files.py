"""Opening source files for reading, plain or gzip."""

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, AnyStr, cast

from raybio.errors import DataError

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
        raise DataError(f"{path}: the gzip stream is torn or damaged ({error}). Fetch the file again.") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error}), want {wanted}") from None


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
