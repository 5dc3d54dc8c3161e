"""Stores that tasks prepare from source files on first use, next to those of trainings."""

from collections.abc import Callable, Mapping
from pathlib import Path

from raybio.benchmark.task import files_digest
from raybio.core.config import BaseConfig, fingerprint
from raybio.core.location import Location
from raybio.runtime.run.options import default_folder
from raybio.store.demo_corpus import cached_store
from raybio.store.manifest import MANIFEST, SCHEMA_VERSION
from raybio.store.sources import check_readable_files
from raybio.store.store import S

_VERSION = 2
"""Raised whenever the same files give another store."""


def prepared(
    name: str,
    files: Mapping[str, Path],
    config: BaseConfig,
    kind: type[S],
    prepare: Callable[[Path], S],
) -> S:
    """Return the store of these files, which the first call prepares.

    Args:
        name: first part of the name of its folder.
        files: its source files, by what they are to the task.
        config: settings of the preparation.
        kind: class of the store.
        prepare: writes the store at a path.

    Raises:
        DataError: if the files are damaged.
        StoreError: if the store cannot be written.
    """
    check_readable_files(list(files.values()))
    digest = fingerprint(config)[:4] + files_digest(files)[-8:]
    folder = f"benchmark-{name}-{_VERSION}.{SCHEMA_VERSION}-{digest}"
    home = default_folder("stores", "RAYBIO_STORES") / folder
    return cached_store(home.absolute(), kind, lambda _, path: prepare(path))


def store_files(store: Location) -> dict[str, Path]:
    """Return the file that changes with anything in a store: its manifest has their digests."""
    return {"store": Path(str(store)) / MANIFEST}
