"""Folders in buckets, such as models: all objects below a path, fetched once to each machine."""

from collections.abc import Sequence
from pathlib import Path

from raybio.core.digest import json_digest
from raybio.core.errors import StorageError, named_by
from raybio.core.location import BucketPath
from raybio.store.bucket import BucketFolder
from raybio.store.bucket_cache import cached_copy
from raybio.store.object_download import download_listed


def fetch_folder(
    path: BucketPath, option: str = "", *, siblings: Sequence[str] = (), only: Sequence[str] = ()
) -> Path:
    """Return this machine's copy of all objects below a path; each version is fetched once.

    Args:
        path: the folder.
        option: the option that gave it, for errors.
        siblings: names of objects next to the folder that are fetched too, where they exist.
        only: prefixes of the names of the objects to fetch; empty: all.

    Raises:
        StorageError: if there is nothing below the path, or it cannot be fetched.
    """
    shown = f"{option} {path}".strip()
    with named_by(option):
        infos = BucketFolder(path, is_patient=False).list()
        if only:
            infos = [info for info in infos if info.name.startswith(tuple(only))]
        if not infos:
            wanted = ", ".join(only) or "files"
            raise StorageError(f"{path}: there is nothing there. Want a folder with {wanted}")
        next_to = BucketFolder(path.parent, is_patient=False)
        others = [info for name in siblings if (info := next_to.info(name)) is not None]
    for info in infos:
        if any(part in ("", ".", "..") for part in info.name.split("/")):
            raise StorageError(f"{shown}: {info.name!r} cannot be the name of a file here")
    identity = [
        [str(folder), info.name, info.num_bytes, *info.version]
        for folder, listed in ((path, infos), (path.parent, others))
        for info in listed
    ]
    name = f"folder-{json_digest(identity)}"
    # Errors and reports show the last two parts of the path, so the copy keeps them.
    inside = Path(path.parent.name, path.name)

    def fetch(partial: Path) -> None:
        for folder, listed, below in (
            (path.parent, others, inside.parent),
            (path, infos, inside),
        ):
            bucket = BucketFolder(folder)
            for info in listed:
                download_listed(bucket, info, partial / below / info.name)

    num_bytes = sum(info.num_bytes for info in (*infos, *others))
    return cached_copy(name, num_bytes, fetch) / inside
