"""Disk that a preparation of articles takes, computed and checked before it starts.

Parsed files (parts) stay until the store is committed. Meanwhile the folder of the store takes at
most 1.1 times the bytes of the parts: buckets of articles, each of which is removed when it is
appended to the store, and the store.
"""

import contextlib
import os
import shutil
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from raybio.core.errors import StoreError
from raybio.core.files import nearest_existing
from raybio.core.text import size_text
from raybio.methods.biostransformers.formats.medline_parts import (
    FileReport,
    part_path,
    total_bytes,
)
from raybio.store.data_sets import table_files
from raybio.store.sources import GZIP_MAGIC

PART_OF_GZIP = 1.7
"""Bytes of a part for each byte of its MEDLINE file in gzip; 1.1 to 1.7 in five real files."""

PART_OF_XML = 0.25
"""The same for an uncompressed MEDLINE file; 0.12 to 0.24 in these files."""

PART_OF_TABLE = 1.2
"""The same for a table: its texts, and some bytes for each article and term."""

TABLE_OF_GZIP = 4
"""Bytes of a table for each byte in gzip."""

STORE_OF_PARTS = 1.1
"""Bytes that a store of articles takes while it is written, for each byte of the parts."""


class Need(NamedTuple):
    """Bytes that will be written into a folder, and what they are."""

    folder: Path
    num_bytes: float
    what: str


def check_disk_of_files(files: Sequence[Path], *, parts: Path, out: Path) -> None:
    """Check the disk for parsing and storing MEDLINE files. Parts that exist are not made again.

    Raises:
        StoreError: if there is too little.
    """
    new_bytes = 0.0
    all_bytes = 0.0
    for file in files:
        part = part_path(file, parts)
        if part.is_file():
            all_bytes += part.stat().st_size
            continue
        plain_bytes, gzip_bytes = _plain_and_gzip_bytes(file)
        part_bytes = PART_OF_XML * plain_bytes + PART_OF_GZIP * gzip_bytes
        new_bytes += part_bytes
        all_bytes += part_bytes
    needs = [
        Need(parts, new_bytes, "parsed files"),
        Need(out, STORE_OF_PARTS * all_bytes, "the store and its sorting"),
    ]
    check_free_space(needs, "--out or --parts")


def check_disk_of_parts(reports: Sequence[FileReport], *, out: Path) -> None:
    """Check the disk for sorting parts into a store, when their true size is known.

    Raises:
        StoreError: if there is too little.
    """
    need = Need(out, STORE_OF_PARTS * total_bytes(reports), "the store and its sorting")
    check_free_space([need], "--out")


def check_disk_of_tables(files: Sequence[Path], *, out: Path) -> None:
    """Check the disk for storing tables of articles; folders of data sets count with their files.

    Raises:
        DataError: if a folder has several splits, or not all files of one.
        StoreError: if there is too little.
    """
    part_bytes = 0.0
    for file in chain.from_iterable(map(table_files, files)):
        plain_bytes, gzip_bytes = _plain_and_gzip_bytes(file)
        part_bytes += PART_OF_TABLE * (plain_bytes + TABLE_OF_GZIP * gzip_bytes)
    needs = [
        Need(out, part_bytes, "articles"),
        Need(out, STORE_OF_PARTS * part_bytes, "the store and its sorting"),
    ]
    check_free_space(needs, "--out")


def check_free_space(needs: Sequence[Need], options: str) -> None:
    """Check that each file system has room for all that will be written on it.

    Args:
        needs: what is written, and into which folders; they need not exist yet.
        options: options that choose the folders, for the error.

    Raises:
        StoreError: naming the folder, its free space and what it has to hold.
    """
    needs_by_device: dict[int, list[Need]] = {}
    for need in needs:
        needs_by_device.setdefault(nearest_existing(need.folder).stat().st_dev, []).append(need)
    for on_device in needs_by_device.values():
        folder = nearest_existing(on_device[-1].folder)
        num_bytes = sum(need.num_bytes for need in on_device)
        free_bytes = shutil.disk_usage(folder).free
        if num_bytes > free_bytes:
            written = [need for need in on_device if need.num_bytes]
            parts = ", ".join(f"{size_text(need.num_bytes)} of {need.what}" for need in written)
            raise StoreError(
                f"{folder}: its disk has {size_text(free_bytes)} free, want about "
                f"{size_text(num_bytes)} ({parts}). Free some space, or choose another {options}."
            )


def _plain_and_gzip_bytes(file: Path) -> tuple[int, int]:
    """Return the (plain, gzip) bytes of a file, one of which is 0; (0, 0) if it is no file."""
    # The reader will refuse it. Opening a pipe here would block.
    if not os.path.isfile(file):
        return 0, 0
    num_bytes = file.stat().st_size
    if file.suffix == ".parquet":
        with contextlib.suppress(pa.ArrowException, OSError):
            data = pq.read_metadata(file)
            groups = [data.row_group(number) for number in range(data.num_row_groups)]
            return max(num_bytes, sum(group.total_byte_size for group in groups)), 0
    try:
        with file.open("rb") as opened:
            is_gzip = opened.read(2) == GZIP_MAGIC
    except OSError:
        return 0, 0
    return (0, num_bytes) if is_gzip else (num_bytes, 0)
