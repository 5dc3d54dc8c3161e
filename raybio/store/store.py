"""The store of a prepared corpus: a folder of memory-mapped Arrow IPC files and a manifest.

``manifest.json`` names every file with its size and sha256 and is written last; a folder without it
is not a store. Opening checks sizes, in milliseconds. ``verify=True`` also reads the files that
this machine has not verified yet (``core/verification.py``). Methods declare the columns
(``columns.py``).
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

import numpy as np
import pyarrow as pa
from typing_extensions import TypeVar

from raybio.core.digest import json_digest
from raybio.core.errors import DamagedStoreError, StoreError
from raybio.core.files import TooLargeError, read_limited
from raybio.core.location import BucketPath, Location, absolute, location
from raybio.core.records import MAX_RECORD_BYTES
from raybio.core.verification import first_damage
from raybio.store.bucket_cache import remove_copy
from raybio.store.manifest import (
    DERIVED,
    MANIFEST,
    PREPARE_AGAIN,
    REPLACED,
    command_for,
    kind_and_command,
    parse_manifest,
)
from raybio.store.remote_store import fetch_store

SPLITS = ("train", "dev", "test")
"""Names of the splits of a labeled corpus."""


class Store:
    """An open store of any kind; every array is a read-only view of a mapped file.

    It pickles as its location and digest, and each process maps it once.

    Attributes:
        path: its folder; for a store in a bucket, the folder of this machine's copy.
        location: the folder or the path in a bucket from which it was opened.
        manifest: content of ``manifest.json``.
        digest: sha256 of the manifest, which covers the sha256 of every file.
    """

    kind: ClassVar[str] = ""
    """Name of the kind of store in manifests; "" for any."""

    make_again: ClassVar[str] = PREPARE_AGAIN
    """Advice in errors about a damaged store of this kind."""

    inputs_are: ClassVar[Literal["proteins", "texts"]] = "texts"
    """Kind of the inputs that ``inputs`` returns."""

    input_fields: ClassVar[tuple[str, ...]] = ()
    """Fields of a row that can be embedded as a whole; empty if inputs have marked parts."""

    def __init__(
        self,
        path: Path,
        manifest: dict[str, Any],
        digest: str,
        location: Location | None = None,
        folder_id: tuple[int, int] | None = None,
    ) -> None:
        """Use ``open_store`` instead."""
        self.path = path
        self.location = location or path
        self.manifest = manifest
        self.digest = digest
        self._batch_by_name: dict[str, pa.RecordBatch] = {}
        self._folder_id = folder_id

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the location and the digest, which is checked when the store is opened again."""
        return _reopen, (type(self), str(self.location), self.digest)

    @property
    def _advice(self) -> str:
        if isinstance(self.location, BucketPath):
            return f"Remove {self.path}: it is a copy, and fetched again."
        return self.make_again

    @property
    def num_rows(self) -> int:
        """The number of rows, N."""
        return int(self.manifest["counts"]["rows"])

    @property
    def content_digest(self) -> str:
        """The sha256 of the kind and of all files' digests.

        Unlike ``digest`` it does not depend on the source files: the same content has the same one,
        whatever the format in which it was given.
        """
        digests = {name: facts["sha256"] for name, facts in self.manifest["files"].items()}
        content = {"kind": self.manifest["kind"], "files": digests}
        return json_digest(content)

    def verify(self, *, again: bool = True) -> None:
        """Read every file and compare its sha256 with the manifest's.

        Args:
            again: also read files that this machine has verified and that have not changed since.

        Raises:
            StoreError: naming the first file that differs.
        """
        sha256_by_name = {name: facts["sha256"] for name, facts in self.manifest["files"].items()}
        damage = first_damage(self.path, sha256_by_name, self.digest, StoreError, again=again)
        if damage is not None:
            raise DamagedStoreError(
                f"{self.path / damage.name}: sha256 is {damage.sha256[:16]}…, the manifest says "
                f"{sha256_by_name[damage.name][:16]}…: the file was damaged or changed after "
                f"preparing. {self._advice}"
            )

    def map_all(self) -> None:
        """Map every file, so that this process can read the store even after it is replaced.

        Raises:
            StoreError: if a file is damaged, or another store has taken the place of this one.
        """
        for name in self.manifest["files"]:
            self._batch(name)

    def _batch(self, name: str) -> pa.RecordBatch:
        """Return a file's content, which stays mapped from the first call on.

        Raises:
            StoreError: if the file is damaged, or another store has taken the place of this one.
        """
        if name not in self._batch_by_name:
            batch = _map(self.path / name)
            self._check_not_replaced()
            self._batch_by_name[name] = batch
        return self._batch_by_name[name]

    def _check_not_replaced(self) -> None:
        """Refuse another store that has taken the place of this one since it was opened."""
        folder_id = _folder_id(self.path)
        if folder_id == self._folder_id:
            return
        _, digest = _read_manifest(self.path, type(self))
        if digest != self.digest:
            raise StoreError(f"{self.path}: {REPLACED}")
        self._folder_id = folder_id

    def derived_path(self, name: str) -> Path:
        """Return the path of a file that is computed from the store; its folder may not exist."""
        return self.path / DERIVED / name

    def inputs(self, field: str, start: int, end: int) -> tuple[pa.Array, pa.Array]:
        """Return keys (M,) and contents (M,) of the rows ``[start, end)``.

        Args:
            field: one of ``input_fields``.
            start: first row.
            end: row after the last one.

        Returns:
            Keys as strings, and upper-case residue letters or UTF-8 as large_binary; empty where a
            row lacks the field.
        """
        raise NotImplementedError

    def groups_of(self, row_R: np.ndarray) -> list[str] | None:
        """Return the name of each row's group; None if rows have no groups."""
        return None

    def links_of(self, row_R: np.ndarray) -> dict[str, list[list[str]]]:
        """Return the keys that each row is linked to, by kind of link; empty without links."""
        return {}

    def column(self, file: str, name: str) -> pa.Array:
        """Return a column of a file, mapped.

        Raises:
            StoreError: if the file lacks the column, because the store was prepared before the
                column was introduced.
        """
        batch = self._batch(file)
        if name not in batch.schema.names:
            raise StoreError(
                f"{self.path}: was prepared when stores did not keep {name}. {PREPARE_AGAIN}"
            )
        return batch.column(name)


S = TypeVar("S", bound=Store, default=Store)

_OPENED: dict[tuple[type[Store], str, str], Store] = {}

_PINNED: dict[str, str] = {}
"""Location of a store -> the digest that it must have; see ``pinned``."""


@contextlib.contextmanager
def pinned(path: str | Path | BucketPath, digest: str) -> Iterator[None]:
    """Within the block, this process opens the store at ``path`` only with this digest.

    Workers pin the store that their driver has recorded. If the store is prepared again meanwhile,
    it is refused. If it is in a bucket, this machine's copy is used without a request.
    """
    name = str(absolute(location(path, "store")))
    before = _PINNED.get(name, "")
    _PINNED[name] = digest or before
    try:
        yield
    finally:
        _PINNED[name] = before


def open_store(
    path: str | os.PathLike[str] | BucketPath,
    kind: type[S] = Store,  # type: ignore[assignment]
    *,
    verify: bool = False,
    digest: str = "",
) -> S:
    """Open a prepared store.

    A store in a bucket is fetched into the cache of this machine (``RAYBIO_CACHE``), once.

    Args:
        path: its folder, or the URI of its path in a bucket.
        kind: class of the store; ``Store`` opens any.
        verify: also check the sha256 of every file that this machine has not verified in its
            present state; training does so before it starts.
        digest: the digest that it must have; "": the one of ``pinned``, or any if it is not pinned.

    Raises:
        ConfigError: for a URI that is not supported.
        StorageError: if it cannot be fetched from a bucket.
        StoreError: naming the file, if the store is missing, unfinished, of another kind, digest or
            schema version, truncated or changed.
    """
    given = location(path, "store")
    digest = digest or _PINNED.get(str(absolute(given)), "")
    if isinstance(given, Path):
        return _open(given.resolve(), kind, None, verify, digest)
    folder = fetch_store(given, digest, kind=kind.kind)
    try:
        return _open(folder, kind, given, verify, digest)
    except DamagedStoreError:
        # Only this machine's copy is damaged, not the store in the bucket.
        remove_copy(folder)
        for key in [key for key, store in _OPENED.items() if store.path == folder]:
            del _OPENED[key]
        return _open(fetch_store(given, digest), kind, given, verify, digest)


def _open(
    folder: Path, kind: type[S], origin: BucketPath | None, verify: bool, wanted_digest: str
) -> S:
    folder_id = _folder_id(folder)
    try:
        manifest, digest = _read_manifest(folder, kind)
    except StoreError as error:
        if origin is None:
            raise
        # A copy is fetched again.
        raise DamagedStoreError(str(error)) from None
    if wanted_digest and digest != wanted_digest:
        raise StoreError(
            f"{folder}: holds store {digest[:16]}, want {wanted_digest[:16]}: {REPLACED}"
        )
    if kind.kind not in ("", manifest["kind"]):
        raise StoreError(
            f"{origin or folder}: is a store of {kind_and_command(manifest['kind'])}; want one of "
            f"{kind_and_command(kind.kind)}."
        )
    for name, facts in manifest["files"].items():
        try:
            num_bytes = (folder / name).stat().st_size
        except OSError as error:
            raise DamagedStoreError(
                f"{folder / name}: cannot be read ({error.strerror}). {kind.make_again}"
            ) from None
        if num_bytes != facts["bytes"]:
            raise DamagedStoreError(
                f"{folder / name}: holds {num_bytes:,} bytes, want {facts['bytes']:,}: it was "
                f"truncated or changed. {kind.make_again}"
            )
    key = (kind, str(origin or folder), digest)
    if key not in _OPENED or _OPENED[key].path != folder:
        _OPENED[key] = kind(folder, manifest, digest, origin, folder_id)
    store = cast(S, _OPENED[key])
    if verify:
        store.verify(again=False)
    return store


def _folder_id(folder: Path) -> tuple[int, int] | None:
    """Return device and inode of a folder; None if it does not exist."""
    try:
        state = folder.stat()
    except OSError:
        return None
    return state.st_dev, state.st_ino


def _reopen(kind: type[S], path: str, digest: str) -> S:
    return open_store(path, kind, digest=digest)


def _read_manifest(folder: Path, kind: type[Store]) -> tuple[dict[str, Any], str]:
    path = folder / MANIFEST
    try:
        content = read_limited(path, MAX_RECORD_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        state = "does not exist"
        if folder.is_dir():
            state = "has no manifest.json, so it is no finished store"
            inner = [child.parent for child in sorted(folder.glob(f"*/{MANIFEST}"))]
            if inner:
                state += f"; want a store in it, such as {inner[0]}"
        elif folder.exists():
            state = "is a file, want the folder of a prepared store"
        raise StoreError(f"{folder}: {state}. Prepare one with {command_for(kind.kind)}.") from None
    except OSError as error:
        raise StoreError(f"{path}: cannot be read ({error.strerror}).") from None
    except TooLargeError as error:
        raise StoreError(f"{error}. {PREPARE_AGAIN}") from None
    return parse_manifest(content, folder)


def _map(path: Path) -> pa.RecordBatch:
    try:
        with pa.memory_map(str(path)) as file, pa.ipc.open_file(file) as reader:
            if reader.num_record_batches != 1:
                raise StoreError(
                    f"{path}: holds {reader.num_record_batches} record batches, want 1. "
                    f"{PREPARE_AGAIN}"
                )
            return reader.get_batch(0)
    except (pa.ArrowException, OSError) as error:
        raise StoreError(
            f"{path}: is not a readable Arrow file ({error}). {PREPARE_AGAIN}"
        ) from None
