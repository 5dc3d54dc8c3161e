"""The store of a prepared corpus: a folder of memory-mapped Arrow IPC files and a manifest.

``manifest.json`` names every file with its size and sha256 and is written last; a folder without it
is not a store. Opening checks sizes in milliseconds, ``verify=True`` reads what this machine has
not verified yet (``verification.py``). The methods declare what the files hold (``columns.py``).
"""

import hashlib
import json
from pathlib import Path
from typing import Any, ClassVar, cast

import pyarrow as pa
from typing_extensions import TypeVar

from raybio.core.errors import StoreError
from raybio.core.files import check_local
from raybio.store.verification import Verification, file_state

SCHEMA_VERSION = 2

MANIFEST = "manifest.json"

PREPARE_AGAIN = "Prepare it again with jobs/prepare.py (--force replaces it)."

SPLITS = ("train", "dev", "test")
"""Names of the splits of a labeled corpus."""


class Store:
    """An open store of any kind; every array is a read-only view of a mapped file.

    It pickles as its path and digest, and each process maps it once.

    Attributes:
        path: its folder.
        manifest: content of ``manifest.json``.
        digest: sha256 of the manifest, which covers the sha256 of every file.
    """

    kind: ClassVar[str] = ""
    """Name of the kind of store, as the manifest has it; "" for any."""

    def __init__(self, path: Path, manifest: dict[str, Any], digest: str) -> None:
        """Use ``open_store`` instead."""
        self.path = path
        self.manifest = manifest
        self.digest = digest
        self._batch_by_name: dict[str, pa.RecordBatch] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the path and the digest, which is checked when the store is opened again."""
        return _reopen, (type(self), str(self.path), self.digest)

    @property
    def num_rows(self) -> int:
        """The number of rows, N."""
        return int(self.manifest["counts"]["rows"])

    def verify(self, *, again: bool = True) -> None:
        """Read every file and compare its sha256 with the manifest's.

        Args:
            again: also read files that this machine has verified and that have not changed since.

        Raises:
            StoreError: naming the first file that differs.
        """
        verification = Verification(self.path, self.digest)
        for name, facts in self.manifest["files"].items():
            state = file_state(self.path / name)
            if not again and verification.covers(name, state):
                continue
            found = sha256_of(self.path / name)
            if found != facts["sha256"]:
                verification.remove(name)
                raise StoreError(
                    f"{self.path / name}: sha256 is {found[:16]}…, the manifest says "
                    f"{facts['sha256'][:16]}…: the file was damaged or changed after preparing. "
                    f"{PREPARE_AGAIN}"
                )
            # What is written while it is read has no state that the sha256 belongs to.
            if file_state(self.path / name) == state:
                verification.add(name, state)

    def _batch(self, name: str) -> pa.RecordBatch:
        """Return a file's content, which stays mapped from the first call on."""
        if name not in self._batch_by_name:
            self._batch_by_name[name] = _map(self.path / name)
        return self._batch_by_name[name]

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


def open_store(path: str | Path, kind: type[S] = Store, *, verify: bool = False) -> S:  # type: ignore[assignment]
    """Open a prepared store.

    Args:
        path: its folder.
        kind: class of the store; ``Store`` opens any.
        verify: also check the sha256 of every file that this machine has not verified in its
            present state; training does so before it starts.

    Raises:
        ConfigError: if the path is a URI.
        StoreError: naming the file, if the store is missing, unfinished, of another kind or schema
            version, truncated or changed.
    """
    check_local(path, "--store")
    folder = Path(path).resolve()
    manifest, digest = _read_manifest(folder)
    if kind.kind not in ("", manifest["kind"]):
        raise StoreError(
            f"{folder}: is a store of {manifest['kind']}, want one of {kind.kind}. Choose another "
            "--store."
        )
    for name, facts in manifest["files"].items():
        try:
            num_bytes = (folder / name).stat().st_size
        except OSError as error:
            raise StoreError(
                f"{folder / name}: cannot be read ({error.strerror}). {PREPARE_AGAIN}"
            ) from None
        if num_bytes != facts["bytes"]:
            raise StoreError(
                f"{folder / name}: holds {num_bytes:,} bytes, want {facts['bytes']:,}: it was "
                f"truncated or changed. {PREPARE_AGAIN}"
            )
    store = cast(S, _OPENED.setdefault((kind, str(folder), digest), kind(folder, manifest, digest)))
    if verify:
        store.verify(again=False)
    return store


def _reopen(kind: type[S], path: str, digest: str) -> S:
    store = open_store(path, kind)
    if store.digest != digest:
        raise StoreError(
            f"{path}: holds store {store.digest[:16]}, want {digest[:16]}: it was prepared again "
            "while in use. Start the run again."
        )
    return store


def _read_manifest(folder: Path) -> tuple[dict[str, Any], str]:
    path = folder / MANIFEST
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        state = "does not exist"
        if folder.is_dir():
            state = "has no manifest.json, so it is no finished store"
        elif folder.exists():
            state = "is a file, want the folder of a prepared store"
        raise StoreError(f"{folder}: {state}. Prepare one with jobs/prepare.py.") from None
    except OSError as error:
        raise StoreError(f"{path}: cannot be read ({error.strerror}).") from None
    try:
        manifest = json.loads(content)
        version = manifest["schema_version"]
        checksum = manifest.pop("checksum")
    except (ValueError, KeyError, TypeError, AttributeError):
        raise StoreError(
            f"{path}: is damaged, want JSON as the store's writer left it. {PREPARE_AGAIN}"
        ) from None
    if version != SCHEMA_VERSION:
        raise StoreError(
            f"{folder}: has store schema version {version}, this raybio reads version "
            f"{SCHEMA_VERSION}. {PREPARE_AGAIN}"
        )
    if checksum != hashlib.sha256(canonical_json(manifest)).hexdigest():
        raise StoreError(
            f"{path}: its content does not match its own checksum: it was changed. {PREPARE_AGAIN}"
        )
    return manifest, hashlib.sha256(content).hexdigest()


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


def canonical_json(value: Any) -> bytes:
    """Return JSON with sorted keys and no spaces, as UTF-8."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def sha256_of(path: str | Path) -> str:
    """Return the sha256 of a file, in hex.

    Raises:
        StoreError: if it cannot be read.
    """
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise StoreError(f"{path}: cannot be read ({error.strerror}).") from None
