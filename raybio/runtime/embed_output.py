"""The output of a bulk embedding: where it may be written, and its local file."""

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from raybio.core.errors import ConfigError
from raybio.core.files import check_writable_file, check_writable_folder
from raybio.core.location import BucketPath, Location
from raybio.store.bucket import BucketFolder
from raybio.store.bucket_cache import working_folder
from raybio.store.object_download import download_object

NumberType = Literal["float32", "float16"]
Unit = Literal["input", "token"]

WRITTEN_FILES = "embeddings-*-of-*.parquet"
"""Pattern of the names of the files in an output that is a folder."""


def check_output_path(out: Location) -> None:
    """Refuse a path at which no output can be written, before long work starts.

    Raises:
        ConfigError: for a local path that cannot be written, a folder with other files, a bucket
            without a path, another suffix than ``.parquet``, or a folder in a bucket.
        StorageError: for a bucket that is missing or refuses.
    """
    if isinstance(out, BucketPath) and not out.key:
        raise ConfigError(
            f"--out {out}: want a file in the bucket, such as {out}/embeddings.parquet"
        )
    if is_folder_of_files(out):
        if isinstance(out, BucketPath):
            raise ConfigError(f"--out {out}: want a .parquet file; folders are written to disks")
        check_writable_folder(out)
        if next(out.glob("*"), None) is not None and next(out.glob(WRITTEN_FILES), None) is None:
            raise ConfigError(
                f"--out {out}: holds files and no embeddings; want a new or empty folder"
            )
        return
    if not out.name.lower().endswith(".parquet"):
        raise ConfigError(
            f"--out {out}: embeddings are written as Parquet; want a .parquet file, or a folder, "
            "without a suffix, for a file a part"
        )
    if isinstance(out, BucketPath):
        BucketFolder(out.parent, is_patient=False).check_conditional_writes("--out")
    else:
        check_writable_file(out)


def is_folder_of_files(out: Location) -> bool:
    """Return whether an output is a folder with a file per part: its name then has no suffix."""
    return "." not in out.name


@contextlib.contextmanager
def output_here(out: Location) -> Iterator[Path]:
    """Yield the local path of the output.

    An output in a bucket is fetched before the block or, if it does not exist, uploaded after it.
    """
    if not isinstance(out, BucketPath):
        yield out
        return
    name = f"embed-{hashlib.sha256(str(out).encode()).hexdigest()[:16]}"
    busy = f"{out}: another command is at work on this embedding. Choose another --out."
    with working_folder(name, busy) as folder:
        # Free the disk: a killed command may have left a file as large as the output.
        _empty(folder)
        here = folder / out.name
        bucket = BucketFolder(out.parent)
        is_there = bucket.info(out.name) is not None
        try:
            if is_there:
                download_object(bucket, out.name, here)
            yield here
            if here.exists() and not is_there:
                bucket.upload(here, out.name)
        finally:
            _empty(folder)


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
