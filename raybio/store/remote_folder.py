"""Folders in buckets, such as models: all objects below a path, fetched once to each machine."""

import hashlib
from pathlib import Path

from raybio.core.errors import StorageError, named_by
from raybio.core.location import BucketPath
from raybio.store.bucket import BucketFolder
from raybio.store.bucket_cache import cached_copy
from raybio.store.manifest import canonical_json
from raybio.store.object_download import download_listed


def fetched_folder(path: BucketPath, option: str = "") -> Path:
    """Return this machine's copy of all objects below a path; each version is fetched once.

    Args:
        path: the folder.
        option: the option that gave it, for errors.

    Raises:
        StorageError: if there is nothing below the path, or it cannot be fetched.
    """
    shown = f"{option} {path}".strip()
    with named_by(option):
        infos = BucketFolder(path, is_patient=False).list()
    if not infos:
        raise StorageError(f"{shown}: there is nothing there. Want a folder with files")
    for info in infos:
        if any(part in ("", ".", "..") for part in info.name.split("/")):
            raise StorageError(f"{shown}: {info.name!r} cannot be the name of a file here")
    identity = [[str(path), info.name, info.num_bytes, *info.version] for info in infos]
    name = f"folder-{hashlib.sha256(canonical_json(identity)).hexdigest()}"
    bucket = BucketFolder(path)

    def fetch(partial: Path) -> None:
        for info in infos:
            # The last part of the path is the name that errors and reports show.
            download_listed(bucket, info, partial / path.name / info.name)

    num_bytes = sum(info.num_bytes for info in infos)
    return cached_copy(name, num_bytes, fetch) / path.name
