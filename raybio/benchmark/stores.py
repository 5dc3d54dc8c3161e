"""Stores of tasks: given ones, perhaps in a bucket, and those prepared from source files.

Source files are prepared on first use, next to the stores that trainings prepare.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer

from raybio.benchmark.task import files_digest
from raybio.core.errors import StorageError, StoreError
from raybio.core.location import BucketPath, Location, location
from raybio.runtime.run.options import default_folder
from raybio.store.demo_corpus import cached_store
from raybio.store.manifest import MANIFEST, SCHEMA_VERSION
from raybio.store.remote_store import fetch_store
from raybio.store.sources import check_readable_files
from raybio.store.store import S, Store, open_store

StoreLocation = Annotated[
    Path | BucketPath,
    BeforeValidator(lambda given: location(given, "store")),
    PlainSerializer(str),
]
"""A field for a prepared store: a local path, or the URI of a path in a bucket."""

_VERSION = 2
"""Raised whenever the same files give another store."""


def prepared(
    name: str, files: Mapping[str, Path], kind: type[S], prepare: Callable[[Path], S]
) -> S:
    """Return the store of these files, which the first call prepares.

    Args:
        name: first part of the name of its folder.
        files: its source files, by what they are to the task.
        kind: class of the store.
        prepare: writes the store at a path.

    Raises:
        DataError: if the files are damaged.
        StoreError: if the store cannot be written.
    """
    check_readable_files(list(files.values()))
    folder = f"benchmark-{name}-{_VERSION}.{SCHEMA_VERSION}-{files_digest(files)[-8:]}"
    home = default_folder("stores", "RAYBIO_STORES") / folder
    return cached_store(home.absolute(), kind, lambda _, path: prepare(path))


def missing_store(store: Location, kind: type[Store]) -> str:
    """Return why a store cannot be read; an empty text if it is there and of this kind.

    Args:
        store: its path; a store in a bucket is fetched to this machine.
        kind: its class.
    """
    try:
        open_store(store, kind)
    except (StorageError, StoreError) as error:
        return str(error)
    return ""


def store_files(store: Location) -> dict[str, Path]:
    """Return the manifest of a store, which changes with each of its files: it has their digests.

    A store in a bucket is fetched to this machine.
    """
    folder = store if isinstance(store, Path) else fetch_store(store)
    return {"store": folder / MANIFEST}
