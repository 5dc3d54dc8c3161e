"""Source files in buckets: objects are listed, matched with patterns, and fetched.

A single object is requested by its name, since listing its neighbors may take minutes.
"""

import fnmatch
import glob
from collections.abc import Sequence
from pathlib import Path

from raybio.core.digest import json_digest
from raybio.core.errors import ConfigError, named_by
from raybio.core.location import BucketPath
from raybio.core.text import size_text
from raybio.store.bucket import BucketFolder, ObjectInfo
from raybio.store.bucket_cache import cached_copy
from raybio.store.object_download import download_listed
from raybio.store.remote_folder import fetch_folder


def fetch_input_files(pattern: BucketPath, option: str) -> list[Path]:
    """Return local copies of the objects that match, sorted by name; an object is fetched once.

    A copy has the name of its object in a folder named like the object's, so that manifests
    describe it like a local file.

    Args:
        pattern: an object, or a pattern as ``glob`` reads it.
        option: the option that gave it, for errors.

    Raises:
        ConfigError: if nothing matches.
        StorageError: if the bucket is missing or refuses, or the cache has no room.
    """
    parts = pattern.key.split("/")
    num_fixed = 0
    while num_fixed < len(parts) - 1 and not glob.has_magic(parts[num_fixed]):
        num_fixed += 1
    fixed = BucketPath(pattern.scheme, pattern.bucket, "/".join(parts[:num_fixed]), pattern.account)
    matching = _matching(fixed, parts[num_fixed:], pattern, option)
    bucket = BucketFolder(fixed)
    # The version identifies the content.
    identity = [[str(fixed), info.name, info.num_bytes, *info.version] for info in matching]
    name = f"sources-{json_digest(identity)}"
    copy_by_name = _copies([info.name for info in matching], fixed)
    num_bytes = sum(info.num_bytes for info in matching)

    def fetch(partial: Path) -> None:
        print(f"{pattern}: fetching {len(matching):,} files, {size_text(num_bytes)}", flush=True)
        for info in matching:
            download_listed(bucket, info, partial / copy_by_name[info.name])

    folder = cached_copy(name, num_bytes, fetch)
    return [folder / copy_by_name[info.name] for info in matching]


def fetch_input_file(path: BucketPath, option: str, only: Sequence[str] = ()) -> Path:
    """Return the local copy of one object or of a folder.

    Args:
        path: the object or folder.
        option: the option that gave it, for errors.
        only: for a folder, prefixes of the names of the objects to fetch; empty: all.

    Raises:
        ConfigError: if there is no such object, or it is a pattern of several.
        StorageError: as ``fetch_input_files``, and for a folder with none of ``only``.
    """
    with named_by(option):
        is_folder = BucketFolder(path, is_patient=False).has_objects()
    if is_folder:
        return fetch_folder(path, option, only=only)
    files = fetch_input_files(path, option)
    if len(files) > 1:
        raise ConfigError(f"{option} {path}: matches {len(files):,} files, want one")
    return files[0]


def _matching(
    fixed: BucketPath, parts: Sequence[str], pattern: BucketPath, option: str
) -> list[ObjectInfo]:
    """Return the objects below ``fixed`` whose names match, sorted by name.

    Raises:
        ConfigError: if there are none.
    """
    bucket = BucketFolder(fixed, is_patient=False)
    if len(parts) == 1 and not glob.has_magic(parts[0]):
        return [_object(bucket, parts[0], pattern, option)]
    with named_by(option):
        infos = bucket.list()
    # A name that looks like a pattern is one if nothing else matches, as for local files.
    matching = [info for info in infos if _matches(info.name.split("/"), parts)] or [
        info for info in infos if info.name == "/".join(parts)
    ]
    if not matching:
        is_folder = any(info.name.startswith("/".join(parts) + "/") for info in infos)
        raise _no_object(pattern, option, is_folder)
    return matching


def _object(bucket: BucketFolder, name: str, path: BucketPath, option: str) -> ObjectInfo:
    """Return the object of a name, with the version that a listing gives it.

    Raises:
        ConfigError: if there is none.
    """
    with named_by(option):
        info = bucket.info(name) if name else None
        # An empty object may represent a folder.
        if info is None or not info.num_bytes:
            is_folder = BucketFolder(path, is_patient=False).has_objects()
            if info is None or is_folder:
                raise _no_object(path, option, is_folder)
    return info._replace(version=info.version._replace(generation=None))


def _no_object(path: BucketPath, option: str, is_folder: bool) -> ConfigError:
    hint = f"; it is a folder: give its files, such as '{path}/*'" if is_folder else ""
    return ConfigError(f"{option} {path}: no such object{hint}")


def _matches(names: Sequence[str], parts: Sequence[str]) -> bool:
    """Return whether the parts of a name match those of a pattern, as ``glob`` matches files."""
    if not parts:
        return not names
    if parts[0] == "**" and len(parts) > 1:
        skips = bool(names) and not names[0].startswith(".") and _matches(names[1:], parts)
        return skips or _matches(names, parts[1:])
    if not names:
        return False
    is_hidden = names[0].startswith(".") and not parts[0].startswith(".")
    if is_hidden or not fnmatch.fnmatchcase(names[0], parts[0]):
        return False
    return _matches(names[1:], parts[1:])


def _copies(names: Sequence[str], fixed: BucketPath) -> dict[str, str]:
    """Return the path of each copy: the number of its folder, its folder's name, its name."""
    number_by_folder: dict[str, int] = {}
    copy_by_name = {}
    for name in names:
        folder = (fixed / name).parent
        number = number_by_folder.setdefault(folder.key, len(number_by_folder))
        copy_by_name[name] = f"{number}/{folder.name}/{(fixed / name).name}"
    return copy_by_name
